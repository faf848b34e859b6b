"""The command `fhir-gym demo`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fhir_gym.cli._console import note, print_text, progress
from fhir_gym.cli._options import WorldOption
from fhir_gym.cli._summary import Summary, print_transcript
from fhir_gym.errors import FhirGymError
from fhir_gym.files import require_writable

if TYPE_CHECKING:
    from fhir_gym.fhir import World

_ENV_ID = "FHIRAgent/Appointment-v0"
_AGENTS = ("gold", "random", "idle")
_TASKS = ("01", "02a", "02b", "11a", "14a", "15a")
_SHOWN = "15a"
"""Task of the episode to print; its solution searches, decides and writes."""


def demo(
    out: Annotated[Path, typer.Option(help="Output folder; files of an earlier demo are replaced.")] = Path(
        "demo-output"
    ),
    variations: Annotated[int, typer.Option(min=1, max=1000, help="Number of variations of each task.")] = 3,
    world: WorldOption = "hospital-small",
) -> None:
    """Run three agents on six appointment tasks, and print the results.

    The demo writes a record of every episode and a dataset for fine-tuning, and prints one episode turn by turn.
    """
    from fhir_gym import rollouts, worlds

    records, examples = out / "rollouts.jsonl", out / "train.jsonl"
    _require_own(records, examples)
    with progress(f"Building {world}") as update:
        opened = worlds.load(world, progress=update)
    note("Agents: gold follows the reference solutions, random acts at random, idle does nothing.")
    with opened:
        summary = _run(opened, records, variations)
    report = rollouts.write_dataset(rollouts.read_rollouts(records), examples, "messages")
    summary.print(groups=False)
    print_text()
    print_text(f"{records}  {summary.seen} episodes with every turn and check")
    print_text(f"{examples}  {report.rows} chats of successful episodes, for fine-tuning")
    print_text()
    shown = (
        rollout
        for rollout in rollouts.read_rollouts(records)
        if (rollout.agent.name, rollout.task.key) == ("gold", _SHOWN)
    )
    print_transcript(next(shown))
    note(f"more numbers: fhir-gym report {records}; all episodes in the browser (extra web): fhir-gym view {records}")


def _require_own(records: Path, examples: Path) -> None:
    """Raise FhirGymError if the output folder contains files that an earlier demo did not write."""
    from fhir_gym import rollouts

    for path in (records, examples):
        require_writable(path)
    earlier = records.exists() and all(
        (rollout.env_id, rollout.agent.name in _AGENTS, rollout.task.key in _TASKS) == (_ENV_ID, True, True)
        for rollout in rollouts.read_rollouts(records)
    )
    if not earlier and (records.exists() or examples.exists()):
        raise FhirGymError(f"{records.parent} contains files that no demo wrote; choose another folder with --out")


def _run(world: World, records: Path, variations: int) -> Summary:
    from fhir_gym import rollouts

    summary = Summary()
    total = len(_AGENTS) * len(_TASKS) * variations

    def running() -> Iterator[rollouts.Rollout]:
        for agent in _AGENTS:
            yield from rollouts.run(_ENV_ID, agent, tasks=_TASKS, variations=range(variations), world=world)

    with progress("Running agents") as update:
        watched = summary.watch(running(), lambda done: update(done, total))
        rollouts.write_rollouts(records, watched, overwrite=True)
    return summary
