"""Send the requests of the recordings to a server, and compare its answers with those of a real HAPI server.

    python -m tests.conformance.recorded                               the embedded server, in process
    python -m tests.conformance.recorded --base http://localhost:8080/fhir   a running server, which must be empty
    python -m tests.conformance.recorded --base … --record new.jsonl.gz      write its answers to a new recording

The recordings in `data/` hold what HAPI FHIR 8.8.0 (R4, settings of its starter project, in-memory H2, UTC, without
reuse of cached search results) answered on the 409 resources of `data/data.json.gz`: 4,775 requests of every kind, and
2,795 at the edges. HAPI itself, started a second time, gives 99.4 % of the same bodies. Cases run in file order on one
server; a case that writes touches only what it creates. A step's url may hold ``{{BASE}}``, ``{{ID:k}}`` (the id that
step k got) or ``{{NEXT:k}}`` (the next link of step k's answer). ``stable`` is the highest level at which HAPI agrees
with itself.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from fhir_gym.fhir import Request, Session, World, WorldBuilder
from tests.conformance.replay import COLUMNS, HEADERS, LEVELS, Answer, Case, Client, Normal, level_of, run, same_headers

DATA = Path(__file__).with_name("data")
FIRST, EDGE = "recorded", "recorded_edge"
"""The recordings: requests of every kind, and requests at the edges."""
BASE = "http://127.0.0.1:8080/fhir"


def _content(body: Any, raw: str | None, content_type: str) -> str | None:
    """Return the text of a request's body: a form and raw text as they are, everything else as JSON."""
    if raw is not None or body is None:
        return raw
    return body if isinstance(body, str) and "form" in content_type else json.dumps(body)


class SessionClient:
    """Sends requests to a session."""

    def __init__(self, session: Session) -> None:
        self.base = BASE
        self.session = session

    def ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: Any = None, raw: str | None = None
    ) -> Answer:
        path = url.removeprefix(self.base)
        path = "" if path == "/" else path
        sent = {"accept": "application/fhir+json", **{k.lower(): v for k, v in (headers or {}).items()}}
        data = _content(body, raw, sent.get("content-type", ""))
        if data is not None:
            sent.setdefault("content-type", "application/fhir+json")
        sent["host"] = "127.0.0.1:8080"
        path = quote(path, safe="".join(map(chr, range(33, 127))))
        path, _, query = path.partition("?")
        answer = self.session.handle(Request(method, path, query, sent, (data or "").encode()))
        result: Answer = {"status": answer.status, "headers": dict(answer.headers)}
        try:
            parsed = json.loads(answer.body)
        except ValueError:
            parsed = None
        return result | ({"text": answer.text[:4000]} if parsed is None else {"json": parsed})


def floors_file(recording: str) -> Path:
    """Return the file with the minimum shares of a recording."""
    return Path(__file__).with_name(recording.replace("recorded", "floors") + ".json")


def empty_world(folder: Path) -> World:
    """Return an empty world; its present is the time of the recordings."""
    path = folder / "empty.sqlite"
    with WorldBuilder(path, name="empty", seed=None, now=datetime(2026, 11, 21, 22, tzinfo=UTC)):
        pass
    return World.open(path)


class HttpClient:
    """Sends requests to a running server."""

    def __init__(self, base: str, http: httpx.Client) -> None:
        self.base, self._http = base.rstrip("/"), http

    def ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: Any = None, raw: str | None = None
    ) -> Answer:
        path = url.removeprefix(self.base)
        sent = httpx.Headers({"Accept": "application/fhir+json"} | dict(headers or {}))
        data = _content(body, raw, sent.get("Content-Type", ""))
        if data is not None:
            sent.setdefault("Content-Type", "application/fhir+json")
        try:
            answer = self._http.request(
                method, f"{self.base}{'' if path == '/' else path}", headers=sent, content=data and data.encode()
            )
        except httpx.TransportError:
            return {"status": 0, "headers": {}, "text": "no answer"}
        kept = {name: answer.headers[name] for name in HEADERS if name in answer.headers}
        try:
            return {"status": answer.status_code, "headers": kept, "json": answer.json()}
        except ValueError:
            return {"status": answer.status_code, "headers": kept, "text": answer.text[:4000]}


def load(client: Client) -> list[str]:
    """PUT the recordings' resources, and return the resources that the server refused."""
    refused = []
    for resource in json.loads(gzip.decompress((DATA / "data.json.gz").read_bytes())):
        url = f"/{resource['resourceType']}/{resource['id']}"
        answer = client.ask("PUT", url, body=resource)
        if answer["status"] not in (200, 201):
            refused.append(f"{url} {answer}")
    return refused


def cases(recording: str, group: str | None = None) -> Iterator[Case]:
    """Yield the cases of a recording, or those of some groups, given with commas between them."""
    with gzip.open(DATA / f"{recording}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for case in map(json.loads, lines):
            if not group or case["group"] in group.split(","):
                yield case


@contextmanager
def loaded(base: str | None = None) -> Iterator[Client]:
    """Open a client of a server that contains the recordings' resources: a running one, or the embedded one."""
    with ExitStack() as stack:
        client: Client
        if base:
            client = HttpClient(base, stack.enter_context(httpx.Client(timeout=60)))
        else:
            world = empty_world(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            client = SessionClient(stack.enter_context(world.session(pretty=True)))
        refused = load(client)
        assert not refused, refused[:3]
        yield client


def compare(
    recording: str = FIRST, *, base: str | None = None, group: str | None = None, show: int = 0, level: str = "body"
) -> dict[str, dict[str, float]]:
    """Return the shares of equal responses by group and column; `groups` has the means over the groups."""
    tally: dict[str, Counter[str]] = defaultdict(Counter)
    with loaded(base) as client:
        for case in cases(recording, group):
            normals = Normal(case["base"]), Normal(client.base)
            for step, reference, answer in zip(case["steps"], case["answers"], run(client, case), strict=True):
                alike = level_of(reference, answer, normals)
                if alike is not None and LEVELS.index(alike) >= LEVELS.index(reference.get("stable", "body")):
                    alike = "body"
                row = tally[case["group"]]
                row["n"] += 1
                reached = LEVELS.index(alike) + 1 if alike else 0
                row.update(LEVELS[:reached])
                row["headers"] += reference.get("status", 0) >= 500 or same_headers(reference, answer, normals)
                if show > 0 and reached <= LEVELS.index(level):
                    show -= 1
                    print(f"--- {case['id']} {step['method']} {step['url']}  alike: {alike or 'nothing'}")
                    print("  asked    ", json.dumps(step, ensure_ascii=False)[:500])
                    print("  reference", _short(reference))
                    print("  here     ", _short(answer))
    shares = {g: {c: row[c] / row["n"] for c in COLUMNS} | {"n": row["n"]} for g, row in sorted(tally.items())}
    mean = {c: sum(row[c] for row in shares.values()) / max(len(shares), 1) for c in COLUMNS}
    return shares | {"groups": mean | {"n": len(shares)}}


def record(recording: str, base: str, out: Path, group: str | None = None) -> None:
    """Ask a running server the requests of a recording, and write its answers to a new recording."""
    with loaded(base) as client, gzip.open(out, "wt", encoding="utf-8") as lines:
        for case in cases(recording, group):
            recorded = {**case, "base": client.base, "answers": run(client, case)}
            lines.write(json.dumps(recorded, ensure_ascii=False, separators=(",", ":")) + "\n")


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="base URL of a running server that is empty; without it, the embedded server")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the answers of the running server")
    parser.add_argument("--edge", action="store_const", const=EDGE, default=FIRST, help="the second recording")
    parser.add_argument("--group")
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--level", default="body")
    parser.add_argument("--write-floors", action="store_true", help="raise the floors to what is reached")
    options = parser.parse_args()
    if options.record:
        if not options.base:
            parser.error("--record needs --base")
        record(options.edge, options.base, options.record, options.group)
        return
    table = compare(options.edge, base=options.base, group=options.group, show=options.show, level=options.level)
    if options.write_floors:
        _write_floors(table, floors_file(options.edge))
    print(f"{'group':16} {'n':>5} " + " ".join(f"{c:>7}" for c in COLUMNS))
    for group, row in table.items():
        print(f"{group:16} {row['n']:5.0f} " + " ".join(f"{row[c]:7.1%}" for c in COLUMNS))


if __name__ == "__main__":
    main()
