"""The commands `fhir-gym view` and `fhir-gym replay`."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fhir_gym.cli._console import note, print_json, print_text, progress, table
from fhir_gym.cli._options import JsonOption

if TYPE_CHECKING:
    from fhir_gym.rollouts import Rollout
    from fhir_gym.rollouts.timeline import Timeline


def view(
    rollouts: Annotated[
        list[Path] | None, typer.Argument(help="Rollout files, and folders of experiments.", show_default=False)
    ] = None,
    world: Annotated[
        str | None, typer.Option(help="Name of a world (see `worlds list`) or path of a world file to show.")
    ] = None,
    host: Annotated[str, typer.Option(help="Loopback address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 selects a free port.")] = 8765,
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the pages to this new folder instead of serving them.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Number of processes for --export.", show_default="one per CPU")
    ] = None,
) -> None:
    """Show rollouts and worlds in a browser, and let a person play tasks.

    The table of episodes is live while a run appends to the files.

    Example: fhir-gym view rollouts.jsonl

    Example: fhir-gym view rollouts.jsonl --export pages
    """
    from fhir_gym import web

    opened = None
    if world is not None:
        from fhir_gym import worlds

        with progress(f"Building {world}") as update:
            opened = worlds.load(world, progress=update)
    if export is not None:
        with progress("Writing pages") as update:
            pages = web.export_viewer(
                rollouts or [],
                export,
                world=opened,
                workers=os.cpu_count() or 1 if workers is None else workers,
                progress=update,
            )
        print_text(f"wrote {pages:,} pages; open {export / 'index.html'}")
        return
    web.serve_viewer(
        rollouts or [], world=opened, host=host, port=port, ready=lambda url: note(f"{url} (stop with Ctrl-C)")
    )


def replay(
    rollouts: Annotated[Path, typer.Argument(help="A rollout file, or the folder of an evaluation.")],
    number: Annotated[
        int | None,
        typer.Option(
            "--episode", min=1, help="Position of the episode in the file; default: the first failed one, or the first."
        ),
    ] = None,
    world: Annotated[
        str | None, typer.Option(help="Name or path of the world; default: the default world of the pack.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Replay an episode on the embedded server, and show what the agent and other people did, and what was right.

    Example: fhir-gym replay rollouts.jsonl --episode 2
    """
    from fhir_gym.episode_config import EpisodeConfig
    from fhir_gym.rollouts.timeline import replay
    from fhir_gym.suites.card import ROLLOUTS

    rollout = _chosen(rollouts / ROLLOUTS if rollouts.is_dir() else rollouts, number)
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
        task = rollout.task
        print_text(f"{rollout.env_id}, task {task.key}, variation {task.variation}: {task.title}\n\n{rollout.prompt}\n")
        _print(timeline)


def _chosen(path: Path, number: int | None) -> Rollout:
    """Return an episode of a file: the one at a position, or else the first failed one, or the first."""
    from itertools import islice

    from fhir_gym.rollouts import read_rollouts

    if number is None:
        failed = (rollout for rollout in read_rollouts(path) if rollout.success is False)
        rollout = next(failed, None) or next(read_rollouts(path), None)
    else:
        rollout = next(islice(read_rollouts(path), number - 1, None), None)
    if rollout is None:
        raise typer.BadParameter(f"{path} has fewer than {number or 1} episodes")
    return rollout


def _print(timeline: Timeline) -> None:
    timed = any(entry.time for entry in timeline.entries)
    for number, entry in enumerate(timeline.entries, 1):
        when = entry.time if timed else f"{number:4d}"
        who = "        " if entry.who == "agent" else f"[{entry.who}] "
        print_text(f"{when}  {who}{entry.action}  ->  {entry.result}")
    print_text()
    rows = [
        (check.name, "passed" if check.passed else "FAILED", check.expected, check.actual)
        for check in timeline.verdict.checks
    ]
    table(("check", "result", "expected", "found"), rows)
    process = timeline.verdict.process
    reference = "" if process.reference is None else f" (reference solution: {process.reference})"
    print_text(f"{process.total} requests{reference}")
    score = "" if timeline.verdict.score is None else f", score {timeline.verdict.score:.3f}"
    print_text(f"{'success' if timeline.verdict.success else 'no success'}{score}")
