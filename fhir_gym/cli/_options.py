"""Options shared by several commands, and their parsers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from fhir_gym.fhir import Credentials
    from fhir_gym.rollouts import Prices


def one_pack(text: str) -> str:
    """Return the env id that an argument names; if the argument names a module, import it and return its env id."""
    if "/" in text and ":" not in text:  # an env id; if it is unknown, the command reports it
        return text
    from fhir_gym.tasks import find_packs

    found = find_packs(text)
    if len(found) > 1:
        raise typer.BadParameter(f"{text} registers {', '.join(found)}; choose one, such as {text}:{found[0]}")
    return found[0]


def _packs(texts: list[str] | None) -> list[str]:
    """Return the env ids that several arguments name."""
    return [one_pack(text) for text in texts or ()]


EnvArgument = Annotated[
    str,
    typer.Argument(
        metavar="ENV_ID",
        callback=one_pack,
        help="Env id, such as FHIRAgent/Appointment-v0, or a module that registers an environment.",
    ),
]
PacksOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pack",
        metavar="ENV_ID",
        callback=_packs,
        help="Env id of a pack to use instead of the packs modelled on FHIR-AgentEval; may be repeated.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WorldOption = Annotated[str, typer.Option(help="Name of a world (see `worlds list`) or path of a world file.")]
OwnWorldOption = Annotated[
    str | None,
    typer.Option(help="Name of a world (see `worlds list`) or path of a world file; by default the environment's own."),
]
PhrasingOption = Annotated[
    str | None,
    typer.Option(
        metavar="N|brief",
        help="Number of the prompt's wording, or brief for one sentence; default: each variation has its own.",
    ),
]

AGENT_SETTINGS = "NAME=VALUE"
SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", metavar=AGENT_SETTINGS, help="Setting of the agent; may be repeated.")
]
ProtocolOption = Annotated[
    Literal["text", "tools"] | None,
    typer.Option(help="Whether a model acts by text or by tool calls; default: text. Same as --set protocol=…"),
]
ConfigurationOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="NAME",
        help="Configuration of the agent chat: baseline, spec, memory, memory-spec, memory-spec-runtime, text or "
        "medagentbench; those with memory also need --set memory=FILE.",
    ),
]
RepeatsOption = Annotated[int, typer.Option(min=1, help="Number of episodes of each variation.")]
WorkersOption = Annotated[int, typer.Option(min=0, help="Number of worker processes; 0 runs in this process.")]
ConcurrencyOption = Annotated[int, typer.Option(min=1, help="Number of episodes that a model agent runs concurrently.")]
SeedOption = Annotated[int, typer.Option(help="Seed of the agent's randomness.")]
MaxEpisodesOption = Annotated[int | None, typer.Option(min=1, help="Start at most this many episodes.")]
MaxTokensOption = Annotated[
    int | None, typer.Option(min=1, help="Start no episode after the run has used this many tokens.")
]
MaxSecondsOption = Annotated[float | None, typer.Option(min=0.001, help="Start no episode after this many seconds.")]
MaxCostOption = Annotated[
    float | None, typer.Option(min=0, help="Start no episode after the run has cost this much; it needs prices.")
]
SuiteTasksOption = Annotated[
    Path | None, typer.Option("--task-file", help="MedAgentBench's own task file, for medagentbench-official-v1.")
]
SuiteFuncsOption = Annotated[
    Path | None, typer.Option("--funcs-file", help="MedAgentBench's function list, for medagentbench-official-v1.")
]
SuiteWorldOption = Annotated[
    str | None, typer.Option("--world", help="World with MedAgentBench's patients, for medagentbench-official-v1.")
]
PriceInOption = Annotated[float | None, typer.Option(min=0, help="Price of a million input tokens.")]
PriceOutOption = Annotated[float | None, typer.Option(min=0, help="Price of a million output tokens.")]

FhirServerOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="Base URL of a running FHIR server that contains the world; default: the embedded server. If repeated, "
        "episodes run on all these servers at the same time.",
    ),
]
FhirHeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fhir-header",
        metavar="NAME:VALUE",
        help="Header of all requests to the FHIR server, such as 'X-Tenant: ward-7'; may be repeated.",
    ),
]
FhirHeaderFromEnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fhir-header-from-env",
        metavar="NAME:VARIABLE",
        help="Header whose value is in an environment variable, such as X-Api-Key:FHIR_KEY; may be repeated.",
    ),
]
FhirTokenOption = Annotated[
    str | None,
    typer.Option(
        "--fhir-token-from-env",
        metavar="VARIABLE",
        help="Environment variable with the token that the FHIR server requires (Authorization: Bearer …).",
    ),
]
FhirUserOption = Annotated[
    str | None,
    typer.Option(
        "--fhir-user",
        metavar="USER:VARIABLE",
        help="User of the FHIR server (basic authentication), and the environment variable with the password.",
    ),
]
FhirCaOption = Annotated[
    Path | None, typer.Option("--fhir-ca", metavar="FILE", help="PEM file with the certificate authorities to trust.")
]


def fhir_credentials(
    headers: list[str] | None, headers_from_env: list[str] | None, token: str | None, user: str | None, ca: Path | None
) -> Credentials:
    """Return the credentials that the options ``--fhir-…`` give.

    Raises:
        typer.BadParameter: An argument has another form, a variable is not set, or two options set the same header.
    """
    from fhir_gym.fhir import Credentials

    found = [_pair(line, "Name: value", "--fhir-header") for line in headers or ()]
    for line in headers_from_env or ():
        name, variable = _pair(line, "NAME:VARIABLE", "--fhir-header-from-env")
        found.append((name, _from_env(variable, "--fhir-header-from-env")))
    try:
        if token is not None:
            found += Credentials.bearer(_from_env(token, "--fhir-token-from-env")).headers.items()
        if user is not None:
            name, variable = _pair(user, "USER:VARIABLE", "--fhir-user")
            found += Credentials.basic(name, _from_env(variable, "--fhir-user")).headers.items()
        given = [name.lower() for name, _ in found]
        if twice := sorted({name for name in given if given.count(name) > 1}):
            raise typer.BadParameter(f"the options --fhir-… set the header {twice[0]!r} twice")
        return Credentials(dict(found), ca=ca)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _from_env(variable: str, option: str) -> str:
    if variable not in os.environ:  # the message does not quote the argument, which may be a password
        raise typer.BadParameter("the environment variable that it names is not set", param_hint=option)
    return os.environ[variable].strip()


def _pair(line: str, form: str, option: str) -> tuple[str, str]:
    name, colon, value = (part.strip() for part in line.partition(":"))
    if not colon or not name:
        raise typer.BadParameter(f"an argument does not have the form {form!r}", param_hint=option)  # it may be secret
    return name, value


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


def numbers_by_name(given: list[str] | None) -> dict[str, float]:
    """Parse numbers in the form ``name=number``.

    Raises:
        typer.BadParameter: A text does not have the form ``name=number``.
    """
    found: dict[str, float] = {}
    for text in given or []:
        name, _, number = text.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            raise typer.BadParameter(f"{text!r} does not have the form NAME=NUMBER") from None
    return found


def with_configuration(settings: dict[str, Any], configuration: str | None) -> dict[str, Any]:
    """Return agent settings together with those of a configuration of the agent ``chat``.

    Raises:
        typer.BadParameter: A given setting is one that the configuration chooses.
    """
    if configuration is None:
        return settings
    from fhir_gym.agents import chat_settings

    chosen = chat_settings(configuration, settings.get("memory"))
    for name in chosen:
        if name in settings and name != "memory":
            raise typer.BadParameter(f"--config {configuration} already sets {name}: leave one of them out")
    return settings | chosen


def prices_of(price_in: float | None, price_out: float | None) -> Prices | None:
    """Return the prices that the user gave; None if the user gave none."""
    from fhir_gym.rollouts import Prices

    return None if price_in is None and price_out is None else Prices(price_in or 0.0, price_out or 0.0)
