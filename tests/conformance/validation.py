"""Compare validation with the recorded answers of a HAPI server, for valid and for damaged records.

`python -m tests.conformance.validation [--group G] [--show N] [--what W]` prints a table: by group, the share
of equal verdicts of `$validate` and of equal statuses of a POST in strict mode, the number of invalid records stored
and of valid records refused, and the share of equal expressions and texts of the errors.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from fhir_gym.fhir import Request, Session
from tests.conformance.recorded import cases, empty_world
from tests.conformance.replay import Case

RECORDING = "recorded_validate"
COLUMNS = ("verdict", "strict", "let_in", "kept_out", "expressions", "texts", "issues")
_JSON = {"content-type": "application/fhir+json"}


def _post(session: Session, url: str, resource: Any) -> tuple[int, list[dict[str, Any]]]:
    response = session.handle(Request("POST", url, headers=_JSON, body=json.dumps(resource).encode()))
    answer = response.json() if response.body else {}
    return response.status, answer.get("issue", []) if isinstance(answer, dict) else []


def _errors(issues: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [issue for issue in issues if issue["severity"] in ("error", "fatal")]


def _expressions(issues: list[dict[str, Any]]) -> list[str]:
    """Return where the errors are, each place once: two errors of one cause at one place count as one."""
    return sorted({", ".join(issue.get("expression", [])) for issue in _errors(issues)})


def _texts(issues: list[dict[str, Any]]) -> list[str]:
    return sorted(f"{issue['severity']} {issue.get('expression')} {issue.get('diagnostics')}" for issue in issues)


def judge(case: Case, plain: Session, strict: Session) -> dict[str, Any]:
    """Return what is equal in our answers to a case, and the answers."""
    kind = case["type"]
    status, issues = _post(plain, f"/{kind}/$validate", case["resource"])
    stored, reasons = _post(strict, f"/{kind}", case["resource"])
    valid = case["status"] == 200 and not _errors(case["issues"])
    ours = status == 200 and not _errors(issues)
    expected = case["strict"]["status"]
    return {
        "verdict": valid == ours and status == case["status"],
        "strict": stored == expected,
        "let_in": expected == 422 and stored != 422,
        "kept_out": expected != 422 and stored == 422,
        "expressions": None if valid else _expressions(issues) == _expressions(case["issues"]),
        "texts": None if valid else _texts(_errors(issues)) == _texts(_errors(case["issues"])),
        "issues": _texts(issues) == _texts(case["issues"]),
        "ours": (status, issues, stored, reasons),
    }


def compare(*, group: str | None = None, show: int = 0, what: str = "verdict") -> dict[str, dict[str, float]]:
    """Return the shares and numbers by group; `all` has those of all records."""
    tally: dict[str, Counter[str]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as folder:
        world = empty_world(Path(folder))
        with world.session() as plain, world.session(validation="strict") as strict:
            for case in cases(RECORDING, group):
                result = judge(case, plain, strict)
                for row in (tally[case["group"]], tally["all"]):
                    row["n"] += 1
                    row["invalid"] += result["expressions"] is not None
                    row.update(column for column in COLUMNS if result[column])
                wrong = what in ("let_in", "kept_out")
                if show > 0 and result[what] is wrong:
                    show -= 1
                    _show(case, result["ours"])
    return {name: _shares(tally[name]) for name in sorted(tally, key=lambda name: (name == "all", name))}


def _shares(row: Counter[str]) -> dict[str, float]:
    of = {"verdict": row["n"], "strict": row["n"], "let_in": 1, "kept_out": 1, "issues": row["n"]}
    return {"n": row["n"]} | {column: row[column] / max(of.get(column, row["invalid"]), 1) for column in COLUMNS}


def _show(case: Case, ours: tuple[int, list[Any], int, list[Any]]) -> None:
    status, issues, stored, reasons = ours
    theirs, here = set(_texts(case["issues"])), set(_texts(issues))
    print(f"--- {case['id']} {case['group']}: $validate {status} (HAPI {case['status']}), ", end="")
    print(f"strict {stored} (HAPI {case['strict']['status']})")
    print("  record", json.dumps(case["resource"], ensure_ascii=False)[:600])
    for mark, texts in (("- HAPI only", theirs - here), ("+ only here", here - theirs)):
        for text in sorted(texts):
            print(f"  {mark}: {text[:400]}")
    if stored != case["strict"]["status"]:
        print("  strict, HAPI:", [issue["diagnostics"][:300] for issue in case["strict"]["issues"]])
        print("  strict, here:", [issue.get("diagnostics", "")[:300] for issue in reasons])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group")
    parser.add_argument("--show", type=int, default=0, help="how many differing cases to print")
    parser.add_argument("--what", default="verdict", choices=COLUMNS, help="the column of the cases to print")
    options = parser.parse_args()
    table = compare(group=options.group, show=options.show, what=options.what)
    print(f"{'group':12} {'n':>4} " + " ".join(f"{column:>11}" for column in COLUMNS))
    for group, row in table.items():
        cells = (f"{row[c]:11.0f}" if c in ("let_in", "kept_out") else f"{row[c]:11.1%}" for c in COLUMNS)
        print(f"{group:12} {row['n']:4.0f} " + " ".join(cells))


if __name__ == "__main__":
    main()
