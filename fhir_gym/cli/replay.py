"""The command `fhir-gym replay`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fhir_gym.cli._console import print_json, print_text, table
from fhir_gym.cli._options import JsonOption

if TYPE_CHECKING:
    from fhir_gym.rollouts.timeline import Timeline


def replay(
    rollouts: Annotated[Path, typer.Argument(help="A rollout file.")],
    number: Annotated[int, typer.Option("--episode", min=1, help="Position of the episode in the file.")] = 1,
    world: Annotated[
        str | None, typer.Option(help="Name or path of the world; default: the default world of the pack.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Replay an episode on the embedded server, and show what the agent and other people did, and what was right.

    Example: fhir-gym replay rollouts.jsonl --episode 2
    """
    from itertools import islice

    from fhir_gym.episode_config import EpisodeConfig
    from fhir_gym.rollouts import read_rollouts
    from fhir_gym.rollouts.timeline import replay

    rollout = next(islice(read_rollouts(rollouts), number - 1, None), None)
    if rollout is None:
        raise typer.BadParameter(f"{rollouts} has fewer than {number} episodes")
    opened, is_own = EpisodeConfig(rollout.env_id, world=world).resolve_world()
    try:
        timeline = replay(rollout, opened)
    finally:
        if is_own:
            opened.close()
    if json:
        entries = [asdict(entry) for entry in timeline.entries]
        print_json({"timeline": entries, "verdict": timeline.verdict.model_dump(mode="json")})
    else:
        _print(timeline)


def _print(timeline: Timeline) -> None:
    timed = any(entry.time for entry in timeline.entries)
    for number, entry in enumerate(timeline.entries, 1):
        when = entry.time if timed else f"{number:4d}"
        who = "        " if entry.who == "agent" else f"[{entry.who}] "
        print_text(f"{when}  {who}{entry.action}  ->  {entry.result}")
    print_text()
    rows = [
        (check.name, "right" if check.passed else "wrong", check.expected, check.actual)
        for check in timeline.verdict.checks
    ]
    table(("check", "result", "expected", "found"), rows)
    process = timeline.verdict.process
    reference = "" if process.reference is None else f" (reference solution: {process.reference})"
    print_text(f"{process.total} requests{reference}")
    score = "" if timeline.verdict.score is None else f", score {timeline.verdict.score:.3f}"
    print_text(f"{'success' if timeline.verdict.success else 'no success'}{score}")
