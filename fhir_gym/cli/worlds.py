"""The commands `fhir-gym worlds …` and `fhir-gym servers restore`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fhir_gym.cli._console import fields, note, print_json, print_text, progress, table
from fhir_gym.cli._options import CredentialOptions, JsonOption, with_option_groups

if TYPE_CHECKING:
    from fhir_gym.fhir import World
    from fhir_gym.worlds import Comparison, ImportReport

app = typer.Typer(
    help="List, build, import, upload, compare, export, remove, inspect and verify worlds (the data with which a "
    "server starts).",
    no_args_is_help=True,
)

servers = typer.Typer(help="Undo the changes that episodes have left on a FHIR server.", no_args_is_help=True)
_PATHS_SHOWN = 20

WorldArgument = Annotated[str, typer.Argument(help="Name of a world or path of a world file.")]
ServerArgument = Annotated[str, typer.Argument(help="Base URL of the server, such as http://localhost:8080/fhir.")]

OutOption = Annotated[Path | None, typer.Option(help="World file to write; by default a file in the cache.")]


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the worlds that can be loaded by name."""
    from fhir_gym import worlds

    available = worlds.available()
    if as_json:
        print_json(
            [{"name": world.name, "description": world.description, "built": world.built} for world in available]
        )
        return
    table(
        ("name", "built", "description"),
        [(world.name, "yes" if world.built else "no", world.description) for world in available],
    )


@app.command()
def build(
    name: Annotated[str, typer.Argument(help="Name of a generated world, such as hospital-small.")],
    seed: Annotated[int, typer.Option(help="Seed of the generator; the same seed gives the same content.")] = 0,
    out: OutOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing world file.")] = False,
) -> None:
    """Build a world and print its path. An interrupted build leaves no file behind."""
    from fhir_gym import worlds

    with progress(f"Building {name}") as update:
        path = worlds.build(name, out, seed=seed, overwrite=overwrite, progress=update)
    print_text(str(path))


@app.command("import")
@with_option_groups
def import_(
    *,
    source: Annotated[str, typer.Argument(help="Folder (searched recursively), file, or URL of a FHIR server.")],
    format: Annotated[
        Literal["ndjson", "bundles"] | None,
        typer.Option(
            help="File format: ndjson (bulk export, one resource per line) or bundles (one Bundle per .json file, as "
            "from Synthea); by default detected from the file extensions."
        ),
    ] = None,
    types: Annotated[
        str | None,
        typer.Option(help="Resource types to fetch from a server, such as Patient,Observation; default: all."),
    ] = None,
    access: CredentialOptions,
    name: Annotated[str | None, typer.Option(help="Name of the world; by default the name of the folder.")] = None,
    out: OutOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing world.")] = False,
) -> None:
    """Import your own data as a world; a failed import leaves no world behind.

    To resume an interrupted import from a server, run the same command again.

    Example: fhir-gym worlds import export/ --name ward-7

    Example: fhir-gym worlds import http://localhost:8080/fhir --name hapi
    """
    from fhir_gym import worlds

    credentials = access.credentials()
    reports: list[ImportReport] = []
    with progress(f"Importing {source}") as update:
        if "://" in source:
            world = worlds.import_server(
                source,
                types=types.replace(",", " ").split() if types is not None else None,
                credentials=credentials,
                out=out,
                name=name,
                replace=replace,
                progress=update,
                on_report=reports.append,
            )
        else:
            world = worlds.import_files(
                source, format=format, out=out, name=name, replace=replace, progress=update, on_report=reports.append
            )
    with world:
        _show(world)
    for report in reports:
        _warn(report)


@app.command()
@with_option_groups
def upload(
    *,
    world: WorldArgument,
    server: ServerArgument,
    add: Annotated[
        bool,
        typer.Option(
            "--add",
            help="Keep other resources of the world's types on the server; those with the same id are replaced.",
        ),
    ] = False,
    access: CredentialOptions,
    as_json: JsonOption = False,
) -> None:
    """Upload a world to a FHIR server, and compare them afterwards.

    To resume an interrupted upload, run the same command again.

    Example: fhir-gym worlds upload hospital-small http://localhost:8080/fhir
    """
    from fhir_gym import worlds

    credentials = access.credentials()
    with open_world(world) as opened, progress(f"Uploading {opened.name}") as update:
        report = worlds.upload(opened, server, add=add, credentials=credentials, progress=update)
    if as_json:
        print_json(asdict(report))
        return
    before = f", of which {report.held:,} were there before" if report.held else ""
    print_text(f"{report.server} has all {report.resources:,} resources of {report.world}{before}; compared: equal")
    note(f"{report.requests} requests")


@app.command()
@with_option_groups
def compare(
    *,
    world: WorldArgument,
    server: ServerArgument,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many differences; all are counted.")] = 100,
    access: CredentialOptions,
    as_json: JsonOption = False,
) -> None:
    """Compare a world with the resources of the same types on a FHIR server; exit with 1 if they differ.

    Versions, times of the last update and other elements that servers set themselves are not compared.

    Example: fhir-gym worlds compare hospital-small http://localhost:8080/fhir
    """
    from fhir_gym import worlds

    credentials = access.credentials()
    with open_world(world) as opened, progress(f"Comparing {opened.name}") as update:
        comparison = worlds.compare(opened, server, credentials=credentials, most=limit, progress=update)
    if as_json:
        print_json({**asdict(comparison), "equal": comparison.equal})
    elif comparison.equal:
        print_text(f"equal: {comparison.server} has the {comparison.compared:,} resources of {comparison.world}")
    else:
        for difference in comparison.differences:
            print_text(f"{difference.kind}  {difference.resource}{'  ' + difference.path if difference.path else ''}")
        told = ", ".join(f"{number:,} {kind}" for kind, number in comparison.counts.items())
        note(f"{comparison.server} differs from {comparison.world}: {told}")
    if not comparison.equal:
        raise typer.Exit(1)


@app.command()
def export(
    world: WorldArgument,
    folder: Annotated[Path, typer.Argument(help="Folder to write; it must not exist or must be empty.")],
    format: Annotated[
        Literal["ndjson", "transaction"],
        typer.Option(help="ndjson: one file per type, as in Bulk Data; transaction: Bundles to post in order."),
    ] = "ndjson",
) -> None:
    """Export a world as files.

    Example: fhir-gym worlds export hospital-small exported/
    """
    from fhir_gym import worlds

    with open_world(world) as opened:
        with progress(f"Exporting {opened.name}") as update:
            files = worlds.export(opened, folder, format=format, progress=update)
        print_text(
            f"{opened.manifest.total:,} resources in {len(files)} file{'s' if len(files) > 1 else ''} of {folder}"
        )


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="Name of an imported or a generated world.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove a world from the cache. A generated world is rebuilt on its next use; an imported world is lost.

    The command also removes the pages that an interrupted import with this name has fetched.
    """
    from fhir_gym import worlds

    cached_world = worlds.cached_world(name)
    if not (cached_world.files or cached_world.unfinished):
        note(f"nothing to remove: {name} is not built")
        return
    files = len(cached_world.files) + (cached_world.unfinished is not None)
    size = f"{files} file{'s' if files > 1 else ''}, {cached_world.bytes / 1e6:,.1f} MB"
    if not yes:
        lost = "It is rebuilt on its next use." if cached_world.generated else "It was imported and cannot be rebuilt."
        if not sys.stdin.isatty():
            raise typer.BadParameter(f"pass --yes to remove {name} ({size}). {lost}")
        typer.confirm(f"Remove {name} ({size})? {lost}", abort=True, err=True)
    worlds.remove(name)
    print_text(f"removed {name} ({size})")


@app.command()
def info(world: WorldArgument, as_json: JsonOption = False) -> None:
    """Show a world's counts, current time, seed and content hash."""
    with open_world(world) as opened:
        if as_json:
            print_json({**opened.manifest.model_dump(mode="json"), "path": str(opened.path)})
        else:
            _show(opened)


@app.command()
def verify(world: WorldArgument) -> None:
    """Verify a world file against its content hash; exit with an error if it is damaged.

    This takes about ten seconds per million resources.
    """
    with open_world(world) as opened:
        opened.verify()
        print_text(f"{opened.path} is intact ({opened.manifest.total:,} resources)")


@servers.command("restore")
@with_option_groups
def restore(
    *,
    world: WorldArgument,
    server: ServerArgument,
    from_world: Annotated[
        bool,
        typer.Option(
            "--from-world",
            help="Compare all resources, and make the server equal to the world: for episodes of another machine.",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Forget what cannot be undone, unreadable notes and the notes of other worlds, so that the next "
            "episode can start.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    access: CredentialOptions,
    as_json: JsonOption = False,
) -> None:
    """Undo the changes that an interrupted episode of this machine has left on a FHIR server.

    The next episode on the server does this too. If a change cannot be undone, the command still undoes the others.

    Example: fhir-gym servers restore hospital-small http://localhost:8080/fhir
    """
    from fhir_gym import worlds

    credentials = access.credentials()
    with open_world(world) as opened:
        comparison = None
        if from_world:
            with progress(f"Comparing {opened.name}") as update:
                comparison = worlds.compare(opened, server, credentials=credentials, progress=update)
            _confirm_changes(comparison, yes)
        report = worlds.restore(opened, server, comparison=comparison, force=force, credentials=credentials)
    if as_json:
        print_json(asdict(report))
        return
    for resource in report.resources:
        print_text(f"restored {resource}")
    for name in report.left:
        note(f"not undone: {name}")
    if not (report.resources or report.left):
        print_text(f"nothing to restore on {report.server}")
        if not from_world:
            note("for episodes of another machine, use --from-world")


def _confirm_changes(comparison: Comparison, yes: bool) -> None:
    """Ask before resources of a server are replaced and deleted."""
    if comparison.equal or yes:
        return
    number = comparison.counts
    what = (
        f"on {comparison.server}, create {number['missing']:,}, replace {number['different']:,} and delete "
        f"{number['extra']:,} resources"
    )
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"pass --yes to do this: {what}")
    typer.confirm(f"Do this: {what}?", abort=True, err=True)


def open_world(world: str) -> World:
    """Open a world, and build it first if necessary."""
    from fhir_gym import worlds

    with progress(f"Building {world}") as update:
        return worlds.load(world, progress=update)


def _show(world: World) -> None:
    manifest = world.manifest
    fields(
        [
            ("name", manifest.name),
            ("path", world.path),
            ("now", manifest.now.isoformat()),
            ("seed", "none (imported)" if manifest.seed is None else manifest.seed),
            ("content hash", manifest.content_hash),
            ("resources", f"{manifest.total:,}"),
            *((f"  {resource_type}", f"{count:,}") for resource_type, count in manifest.counts.items()),
        ]
    )


def _warn(report: ImportReport) -> None:
    """Print notes about a successful import."""
    read = f"{report.files} files read" if report.files else f"read from {report.source}"
    lines = [f"{read}; the world's current time is {report.now.isoformat()} ({report.now_source})", *report.notes]
    if report.doubles:
        lines.append(f"{report.doubles} exact duplicates were skipped")
    if report.dangling:
        lines.append(f"{report.dangling} dangling references were kept, such as {report.examples[0]}")
    if report.altered:
        lines.append(f"{report.altered} resources were stored with changes, such as {report.altered_examples[0]}")
    for what, paths in (("dropped because FHIR R4 does not define them", report.dropped), ("changed", report.changed)):
        if paths:
            shown = ", ".join(f"{path} ({count})" for path, count in list(paths.items())[:_PATHS_SHOWN])
            rest = f" and {len(paths) - _PATHS_SHOWN} more" if len(paths) > _PATHS_SHOWN else ""
            lines.append(f"elements {what}: {shown}{rest}")
    for line in lines:
        note(line)
