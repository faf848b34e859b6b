"""Options shared by several commands, and their parsers."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer


def _one_pack(text: str) -> str:
    """Return the env id that an argument names; if the argument names a module, import it and return its env id."""
    if "/" in text and ":" not in text:  # an env id; if it is unknown, the command reports it
        return text
    from fhir_gym.tasks import find_packs

    found = find_packs(text)
    if len(found) > 1:
        raise typer.BadParameter(f"{text} registers {', '.join(found)}; choose one, such as {text}:{found[0]}")
    return found[0]


EnvArgument = Annotated[
    str,
    typer.Argument(
        metavar="ENV_ID",
        callback=_one_pack,
        help="Env id, such as FHIRAgent/Appointment-v0, or a module that registers an environment.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WorldOption = Annotated[str, typer.Option(help="Name of a world (see `worlds list`) or path of a world file.")]
OwnWorldOption = Annotated[
    str | None,
    typer.Option(help="Name of a world (see `worlds list`) or path of a world file; by default the environment's own."),
]

AGENT_SETTINGS = "NAME=VALUE"


def names(text: str | None) -> tuple[str, ...] | None:
    """Split a list of names at commas; return None, which means all, if the list is empty."""
    found = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    return found or None


def agent_settings(given: list[str] | None) -> dict[str, Any]:
    """Parse agent settings in the form ``name=value``; values may be JSON.

    Raises:
        typer.BadParameter: A setting does not have the form ``name=value``.
    """
    settings: dict[str, Any] = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{text!r} does not have the form {AGENT_SETTINGS}")
        try:
            settings[name.strip()] = json.loads(value)
        except ValueError:
            settings[name.strip()] = value
    return settings
