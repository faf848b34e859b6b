"""The commands put together, and the one place where an error becomes a line and an exit code.

Exit codes: 0 done, 1 it failed (or a task is unsound), 2 wrong usage, 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from fhir_gym.cli import art, dataset, demo, report, rollout, serve, tasks, version, worlds
from fhir_gym.cli._console import note
from fhir_gym.errors import FhirGymError, UnknownNameError

__all__ = ["app", "main"]

app = typer.Typer(
    name="fhir-gym",
    help="Environments in which LLM agents do real tasks on an embedded FHIR R4 server.\n\n"
    "New here? `fhir-gym demo` shows everything in a minute.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command("demo")(demo.demo)
app.command("serve")(serve.serve)
app.command("rollout")(rollout.rollout)
app.command("dataset")(dataset.dataset)
app.command("report")(report.report)
app.add_typer(worlds.app, name="worlds")
app.add_typer(tasks.app, name="tasks")
app.add_typer(art.app, name="art")
app.command("version")(version.version)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code.

    Args:
        argv: Arguments without the program's name; those of the process if not given.
    """
    try:
        app(args=None if argv is None else list(argv), prog_name="fhir-gym")
    except UnknownNameError as error:
        _leave(str(error), 2)
    except (FhirGymError, OSError) as error:
        # An OSError here is a file the user named or a full disk: a line says it better than a traceback.
        _leave(str(error), 1, show=error)
    raise AssertionError("typer leaves by SystemExit")


def _leave(message: str, code: int, *, show: BaseException | None = None) -> NoReturn:
    if show is not None and os.environ.get("FHIR_GYM_DEBUG"):
        raise show
    note(f"error: {message.rstrip()}", style="red")
    sys.exit(code)
