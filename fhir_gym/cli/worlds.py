"""`fhir-gym worlds …`: list, build, import, info."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fhir_gym.cli._console import fields, print_json, print_text, progress, table
from fhir_gym.cli._options import JsonOption, WorldOption

__all__ = ["app"]

app = typer.Typer(help="What a server holds: list, build, import and inspect worlds.", no_args_is_help=True)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the worlds that can be loaded by name."""
    from fhir_gym import worlds

    found = worlds.available()
    if as_json:
        print_json([{"name": info.name, "description": info.description, "built": info.built, "path": str(info.path)} for info in found])
        return
    table(("name", "built", "description"), [(info.name, "yes" if info.built else "no", info.description) for info in found])


@app.command()
def build(
    name: Annotated[str, typer.Argument(help="Name of a generated world, e.g. hospital-small.")],
    out: Annotated[Path | None, typer.Option(help="File to write; by default the cache folder.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the generator; the same seed gives the same bytes.")] = 0,
) -> None:
    """Build a world and print where it is. Nothing is left behind if this is interrupted."""
    from fhir_gym import worlds

    with progress(f"Building {name}") as update:
        path = worlds.build(name, out, seed=seed, progress=update)
    print_text(str(path))


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="Folder with .ndjson files (FHIR bulk export), searched in depth.")],
    out: Annotated[Path | None, typer.Option(help="File to write; by default the cache folder.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the world; by default that of the folder.")] = None,
) -> None:
    """Import a folder of NDJSON files as a world and print where it is.

    Example: fhir-gym worlds import export/ --name ward-7; fhir-gym serve --world ward-7
    """
    from fhir_gym import worlds

    with progress(f"Importing {source}") as update, worlds.import_ndjson(source, out=out, name=name, progress=update) as world:
        _show(world)


@app.command()
def info(
    world: Annotated[str, typer.Argument(help="Name of a world or path of a world file.")],
    as_json: JsonOption = False,
) -> None:
    """Show a world's manifest: name, seed, sizes, its clock, content hash."""
    from fhir_gym import worlds

    with progress(f"Building {world}") as update:
        opened = worlds.load(world, progress=update)
    with opened:
        if as_json:
            print_json({**opened.manifest.model_dump(mode="json"), "path": str(opened.path)})
        else:
            _show(opened)
