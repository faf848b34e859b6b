"""Send requests recorded with a real HAPI server to a session, and compare the responses with HAPI's.

`python -m tests.conformance.recorded SHARED [--edge] [--group G] [--show N] [--level L] [--write-floors]` prints the
same table as the recordings' replay tool, which needs an HTTP server and more time.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import math
import tempfile
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

from fhir_gym.fhir import Request, Session, World, WorldBuilder

FIRST, EDGE = "recorded", "recorded_edge"
"""The recordings: requests of every kind, and requests at the edges."""
BASE = "http://127.0.0.1:8080/fhir"


class Client:
    """Sends the replay tool's requests to a session."""

    def __init__(self, session: Session) -> None:
        self.base = BASE
        self.session = session

    def ask(
        self, method: str, url: str, headers: dict[str, str] | None = None, body: Any = None, raw: str | None = None
    ) -> dict[str, Any]:
        path = url.removeprefix(self.base)
        path = "" if path == "/" else path
        sent = {"accept": "application/fhir+json", **{k.lower(): v for k, v in (headers or {}).items()}}
        form = isinstance(body, str) and "form" in sent.get("content-type", "")
        data = raw if raw is not None else None if body is None else body if form else json.dumps(body)
        if data is not None:
            sent.setdefault("content-type", "application/fhir+json")
        sent["host"] = "127.0.0.1:8080"
        path = quote(path, safe="".join(map(chr, range(33, 127))))
        path, _, query = path.partition("?")
        answer = self.session.handle(Request(method, path, query, sent, (data or "").encode()))
        result: dict[str, Any] = {"status": answer.status, "headers": dict(answer.headers)}
        try:
            parsed = json.loads(answer.body)
        except ValueError:
            parsed = None
        return result | ({"text": answer.text[:4000]} if parsed is None else {"json": parsed})


def floors_file(recording: str) -> Path:
    """Return the file with the minimum shares of a recording."""
    return Path(__file__).with_name(recording.replace("recorded", "floors") + ".json")


def replay_tool(shared: Path) -> ModuleType:
    """Import the replay tool as a module."""
    spec = importlib.util.spec_from_file_location("replay", shared / "conformance" / "replay.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def empty_world(folder: Path) -> World:
    """Return an empty world; its present is the time of the recordings."""
    path = folder / "empty.sqlite"
    with WorldBuilder(path, name="empty", seed=None, now=datetime(2026, 11, 21, 22, tzinfo=UTC)):
        pass
    return World.open(path)


def load(client: Client, shared: Path) -> list[str]:
    """PUT the recordings' resources, and return the resources that the server refused."""
    refused = []
    for resource in json.loads((shared / "conformance" / "data.json").read_text()):
        url = f"/{resource['resourceType']}/{resource['id']}"
        answer = client.ask("PUT", url, body=resource)
        if answer["status"] not in (200, 201):
            refused.append(f"{url} {answer}")
    return refused


def compare(
    shared: Path, recording: str = FIRST, *, group: str | None = None, show: int = 0, level: str = "body"
) -> dict[str, dict[str, float]]:
    """Return the shares of equal responses by group and column; `groups` has the means over the groups."""
    tool = replay_tool(shared)
    tally: dict[str, Counter[str]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as folder, empty_world(Path(folder)).session(pretty=True) as session:
        client = Client(session)
        refused = load(client, shared)
        assert not refused, refused[:3]
        with gzip.open(shared / "conformance" / f"{recording}.jsonl.gz", "rt") as lines:
            for case in map(json.loads, lines):
                if group and case["group"] not in group.split(","):
                    continue
                answers = tool.run(client, case)
                reference, ours = tool.Normal(case["base"]), tool.Normal(client.base)
                for step, ref, got in zip(case["steps"], case["answers"], answers, strict=True):
                    alike = tool.alike(ref, got, reference, ours)
                    if alike is not None and tool.LEVELS.index(alike) >= tool.LEVELS.index(ref.get("stable", "body")):
                        alike = "body"
                    row = tally[case["group"]]
                    row["n"] += 1
                    reached = tool.LEVELS.index(alike) + 1 if alike else 0
                    row.update(tool.LEVELS[:reached])
                    row["headers"] += ref.get("status", 0) >= 500 or tool.same_headers(ref, got, reference, ours)
                    if show > 0 and reached <= tool.LEVELS.index(level):
                        show -= 1
                        print(f"--- {case['id']} {step['method']} {step['url']}  alike: {alike or 'nothing'}")
                        print("  asked    ", json.dumps(step, ensure_ascii=False)[:500])
                        print("  reference", _short(ref))
                        print("  here     ", _short(got))
    shares = {g: {c: row[c] / row["n"] for c in tool.COLUMNS} | {"n": row["n"]} for g, row in sorted(tally.items())}
    mean = {c: sum(row[c] for row in shares.values()) / max(len(shares), 1) for c in tool.COLUMNS}
    return shares | {"groups": mean | {"n": len(shares)}}


def _short(answer: dict[str, Any]) -> str:
    body = json.dumps(answer.get("json", answer.get("text")), ensure_ascii=False)
    return f"{answer.get('status')} {answer.get('headers')} {body}"[:1500]


def _write_floors(table: dict[str, dict[str, float]], path: Path) -> None:
    """Raise each floor (minimum share) to the measured share, rounded down; never lower a floor."""
    old: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.exists() else {}
    kept: dict[str, dict[str, float]] = {name: {} for name in old}
    table = kept | table  # with --group, the other groups keep their floors
    rows = []
    for group, row in table.items():
        if group != "groups":
            before = old.get(group, {})
            floors = {c: max(before.get(c, 0), math.floor(row[c] * 1000) / 1000) for c in row if c != "n"} or before
            rows.append(f"{json.dumps(group)}: {json.dumps(floors)}")
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shared", type=Path)
    parser.add_argument("--edge", action="store_const", const=EDGE, default=FIRST, help="the second recording")
    parser.add_argument("--group")
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--level", default="body")
    parser.add_argument("--write-floors", action="store_true", help="raise the floors to what is reached")
    options = parser.parse_args()
    table = compare(options.shared, options.edge, group=options.group, show=options.show, level=options.level)
    if options.write_floors:
        _write_floors(table, floors_file(options.edge))
    columns = ("status", "result", "order", "body", "headers")
    print(f"{'group':16} {'n':>5} " + " ".join(f"{c:>7}" for c in columns))
    for group, row in table.items():
        print(f"{group:16} {row['n']:5.0f} " + " ".join(f"{row[c]:7.1%}" for c in columns))


if __name__ == "__main__":
    main()
