"""Compare our official verdicts with those of MedAgentBench's own grader.

    python -m benchmarks.official_agreement --tasks test_data_v2.json --world FOLDER --episodes graded.jsonl.gz

Replays recorded episodes and prints one JSON object: the number of episodes and the number of equal verdicts, in total
and by task class.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fhir_gym import worlds
from fhir_gym.fhir import Session, World
from fhir_gym.tasks.packs.medagentbench.official import (
    OfficialCase,
    OfficialConversation,
    OfficialVerdict,
    judge,
    read_cases,
)
from fhir_gym.tasks.packs.medagentbench.official.conversation import TASK_ERROR
from fhir_gym.tasks.packs.medagentbench.official.records import OfficialRecords
from fhir_gym.tasks.packs.medagentbench.official.verdict import Transcript

_VERDICTS = ("refsol_verdict", "official_verdict")
_OUTSIDE = ("task error", "agent context limit", "agent validation failed", "unknown")
"""Statuses of MedAgentBench's runs that cannot be derived from the agent's messages."""

_NO_FINISH = "no_finish"


@dataclass(frozen=True, slots=True)
class ReplayedEpisode:
    """The outcome of a replayed episode.

    Attributes:
        status: Status of the conversation.
        result: The content of FINISH.
    """

    status: str
    result: object
    verdict: OfficialVerdict


def replay(
    case: OfficialCase,
    messages: Iterable[object],
    session: Session,
    *,
    stopped: str | None = None,
    error: object = None,
) -> ReplayedEpisode:
    """Replay an agent's messages against a server and judge them.

    Args:
        case: The task.
        messages: The agent's messages.
        session: The server; it receives only the GETs.
        stopped: Recorded status of an episode that ended because of an error (``task error``); otherwise None.
        error: Recorded result of an episode that ended because of an error.
    """
    conversation = OfficialConversation()
    for message in messages:
        if not isinstance(message, str):  # as in the benchmark, a missing text is an error
            stopped, error = TASK_ERROR, {"error": "the agent's message is no text"}
            break
        turn = conversation.take(message)
        if turn.ends:
            break
        request = turn.request(session.base_url) if turn.kind == "GET" else None
        conversation.reply(turn, session.handle(request) if request else None)
        if conversation.over:
            break
    status, result = conversation.status or stopped or _NO_FINISH, conversation.result
    if status == TASK_ERROR:
        result = error
    transcript = Transcript(conversation.history, result, f"{session.base_url}/")
    return ReplayedEpisode(status, result, judge(case, transcript, OfficialRecords(session.handle)))


def main(arguments: list[str] | None = None) -> int:
    """Replay, compare and print; return 1 if a verdict differs."""
    parser = argparse.ArgumentParser(prog="benchmarks.official_agreement", description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=Path, required=True, help="the benchmark's task file")
    parser.add_argument("--world", required=True, help="a world, or a folder of NDJSON files to import")
    parser.add_argument("--episodes", type=Path, required=True, help="recorded episodes as JSON lines, gzipped or not")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print the first N differences to stderr")
    args = parser.parse_args(arguments)
    with ExitStack() as stack:
        session = stack.enter_context(stack.enter_context(open_data(args.world, stack)).session())
        cases = {case.id: case for case in read_cases(args.tasks)}
        report, differing = compare(cases, session, records(args.episodes))
    for resource in differing[: args.show]:
        print(json.dumps(resource, ensure_ascii=False), file=sys.stderr)
    print(json.dumps(report))
    return 0 if report["agree"] == report["episodes"] else 1


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Read the recorded episodes of a file."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from (json.loads(line) for line in file if line.strip())


def compare(
    cases: dict[str, OfficialCase], session: Session, episodes: Iterator[dict[str, Any]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Replay episodes. Return the report, and the episodes on which the two verdicts differ."""
    report: dict[str, Any] = {"episodes": 0, "agree": 0, "accepted": 0, "status_agree": 0, "by_class": {}}
    differing = []
    for record in episodes:
        ours, theirs = _replayed(cases[record["task_id"]], session, record), _recorded(record)
        tally = report["by_class"].setdefault(record.get("task_class") or _kind(record), {"episodes": 0, "agree": 0})
        agree = ours.verdict.accepted == theirs
        report["accepted"] += theirs
        report["status_agree"] += ours.status == record.get("status", ours.status)
        for count in (report, tally):
            count["episodes"] += 1
            count["agree"] += agree
        if not agree:
            differing.append({**record, "ours": ours.verdict.accepted, "why": ours.verdict.reason})
    report["by_class"] = dict(sorted(report["by_class"].items()))
    return report, differing


def _replayed(case: OfficialCase, session: Session, record: dict[str, Any]) -> ReplayedEpisode:
    stopped = record.get("status")
    outside = {"stopped": stopped, "error": record.get("result")} if stopped in _OUTSIDE else {}
    return replay(case, record["actions"], session, **outside)


def _recorded(record: dict[str, Any]) -> bool:
    return any(record.get(name) is True for name in _VERDICTS)


def _kind(record: dict[str, Any]) -> str:
    return str(record["task_id"]).removeprefix("train_").partition("_")[0]


def open_data(name: str, stack: ExitStack) -> World:
    """Open a world by name or path, or import a folder of NDJSON files into a temporary world."""
    if not Path(name).is_dir():
        return worlds.load(name)
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    return worlds.import_files(name, out=Path(folder) / "imported.sqlite")


if __name__ == "__main__":
    sys.exit(main())
