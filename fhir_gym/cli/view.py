"""The command `fhir-gym view`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fhir_gym.cli._console import note, print_text, progress


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
