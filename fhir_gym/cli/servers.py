"""The command `fhir-gym servers restore`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from fhir_gym.cli._console import note, print_json, print_text, progress
from fhir_gym.cli._options import CredentialOptions, JsonOption, with_option_groups
from fhir_gym.cli.worlds import ServerArgument, WorldArgument, open_world

if TYPE_CHECKING:
    from fhir_gym.worlds import Comparison

app = typer.Typer(help="Undo the changes that episodes have left on a FHIR server.", no_args_is_help=True)


@app.command("restore")
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
