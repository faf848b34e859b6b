"""Entry point of the command line `fhir-gym`: run a command, and convert errors to messages and exit codes.

Exit codes:
    0: Success.
    1: The command failed, or its result is negative: a file, server, model or package that it needs cannot be used, an
        output exists, an episode has no verdict, a task is unsound.
    2: The command line or a file of settings (TOML) is wrong: an unknown name or field, an invalid value, a missing
        option.
    130: Ctrl-C.
"""

from __future__ import annotations

import io
import os
import platform
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import version as installed_version
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

from fhir_gym.cli import (
    art,
    dataset,
    demo,
    experiment,
    mcp,
    memory,
    publish,
    report,
    rollout,
    serve,
    suites,
    tasks,
    train,
    view,
    worlds,
)
from fhir_gym.cli._console import note, print_text
from fhir_gym.errors import ArgumentError, FhirGymError

_INTERRUPTED = 130
_UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]
"""Typer's base class of usage errors; Typer's version determines which module defines it."""


app = typer.Typer(
    name="fhir-gym",
    help="RL environments for LLM agents on an embedded FHIR R4 server.\n\n"
    "New here? Start with `fhir-gym demo`, which takes a few seconds.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _show_version(asked: bool) -> None:
    if asked:
        print_text(f"fhir-gym {installed_version('fhir-gym')} (Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version of fhir_gym and of Python.", callback=_show_version)
    ] = False,
) -> None:
    """Accept the options that come before the command."""


_PANELS = {
    "Start": ("demo",),
    "Play and evaluate": ("tasks", "evaluate", "rollout", "report", "view", "replay", "suites", "submission"),
    "Data": ("worlds", "dataset"),
    "Train": ("train", "memory"),
    "Serve and publish": ("serve", "servers", "mcp", "openenv", "publish"),
    "Research": ("experiment", "research"),
}
"""The commands as `fhir-gym --help` groups and orders them."""

research = typer.Typer(
    help="Commands for researchers and integrators: task files of action-based reasoning, the server of a Harbor task.",
    no_args_is_help=True,
)
research.add_typer(art.app, name="art")
research.add_typer(serve.harbor, name="harbor")

app.command("demo")(demo.demo)
app.add_typer(tasks.app, name="tasks")
app.command("rollout")(rollout.rollout)
app.command("report")(report.report)
app.command("view")(view.view)
app.command("replay")(view.replay)
app.command("evaluate")(suites.evaluate)
app.add_typer(suites.app, name="suites")
app.add_typer(suites.submission, name="submission")
app.add_typer(worlds.app, name="worlds")
app.command("dataset")(dataset.dataset)
app.add_typer(train.app, name="train")
app.add_typer(memory.app, name="memory")
app.command("serve")(serve.serve)
app.add_typer(mcp.app, name="mcp")
app.add_typer(serve.openenv, name="openenv")
app.add_typer(publish.app, name="publish")
app.add_typer(worlds.servers, name="servers")
app.add_typer(experiment.app, name="experiment")
app.add_typer(research, name="research")


@lru_cache(maxsize=1)
def _command() -> Any:
    command: Any = get_command(app)
    for panel, names in _PANELS.items():
        for name in names:
            command.commands[name] = command.commands.pop(name)
            command.commands[name].rich_help_panel = panel
    _hide_types_of_flags(command)
    return command


def _hide_types_of_flags(command: Any) -> None:
    """Let the help show no type for options that take no value, where Typer would write `<bool>`."""
    for parameter in command.get_params(typer.Context(command)):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for child in getattr(command, "commands", {}).values():
        _hide_types_of_flags(child)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its exit code.

    Args:
        argv: Arguments without the program name; by default the arguments of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # the terminal may not be able to encode all names
    command = _command()
    sys.excepthook = _tell
    try:
        # Calling `app()` instead would print six lines for a usage error, and nothing for Ctrl-C.
        arguments = list(sys.argv[1:] if argv is None else argv)
        with _surroundings(), command.make_context("fhir-gym", arguments) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as left:
        sys.exit(left.exit_code)
    except KeyboardInterrupt:
        note("interrupted")
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        _leave_quietly()
    except Exception as error:
        _leave(_line(error), 2 if isinstance(error, _UsageError | ArgumentError) else 1, show=error)
    sys.exit(0)


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback in which control characters are escaped."""
    note("".join(traceback.format_exception(error)))


def _line(error: Exception) -> str:
    """Return the message of an error as one line."""
    if isinstance(error, _UsageError):
        message = error.format_message().replace("Value error, ", "")  # empty if Typer has printed the help
        message = " ".join(message.split())
        return message and f"{message} (see {error.ctx.command_path if error.ctx else 'fhir-gym'} --help)"
    if isinstance(error, FhirGymError):
        return str(error)
    if isinstance(error, OSError):  # such as a missing file or a full disk
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said} (a bug in fhir_gym or in a pack; set FHIR_GYM_DEBUG=1 for a traceback)"


@contextmanager
def _surroundings() -> Iterator[None]:
    """Make modules of the current folder importable if no installed module has the name; print warnings in one line."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = _warn
        yield


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    note(f"warning: {message}", style="yellow")


def _leave(message: str, code: int, *, show: BaseException | None = None) -> NoReturn:
    if show is not None and os.environ.get("FHIR_GYM_DEBUG"):
        raise show
    if message:
        note(f"error: {message.rstrip()}", style="red")
    sys.exit(code)


def _leave_quietly() -> NoReturn:
    """Exit silently if the program that reads the output has stopped, as in ``fhir-gym … | head``."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)
