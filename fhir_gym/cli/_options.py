"""Options shared by several commands, and their parsers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from fhir_gym.arguments import parse_phrasing, require_name
from fhir_gym.cli._console import progress

if TYPE_CHECKING:
    from fhir_gym.episode_config import EpisodeConfig
    from fhir_gym.fhir import Credentials, World
    from fhir_gym.rollouts import Budget, Prices, Rollout
    from fhir_gym.suites import Suite


def one_pack(text: str) -> str:
    """Return the env id that an argument names; if the argument names a module, import it and return its env id."""
    if "/" in text and ":" not in text:  # an env id; if it is unknown, the command reports it
        return text
    from fhir_gym.tasks import find_packs

    packs = find_packs(text)
    if len(packs) > 1:
        raise typer.BadParameter(f"{text} registers {', '.join(packs)}; choose one, such as {text}:{packs[0]}")
    return packs[0]


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
        metavar="N|brief|paraphrase",
        help="Number of the prompt's wording; brief: one sentence; paraphrase: a paraphrase for each variation. "
        "Default: each variation draws one of the prompts.",
    ),
]

AGENT_SETTINGS = "NAME=VALUE"
SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", metavar=AGENT_SETTINGS, help="Setting of the agent; may be repeated.")
]
WorkersOption = Annotated[int, typer.Option(min=0, help="Number of worker processes; 0 runs in this process.")]
ModelOption = Annotated[str | None, typer.Option(help="Name of a model; the agent is then chat.")]
BaseUrlOption = Annotated[
    str | None,
    typer.Option(help="OpenAI-compatible endpoint of the model; default: OPENAI_BASE_URL or OpenAI's endpoint."),
]
ConcurrencyOption = Annotated[int, typer.Option(min=1, help="Number of episodes that a model agent runs concurrently.")]
SeedOption = Annotated[int, typer.Option(help="Seed of the agent's randomness.")]
MaxTokensOption = Annotated[
    int | None, typer.Option(min=1, help="Start no episode after the run has used this many tokens.")
]


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups of options: a parameter whose type is a dataclass stands for the dataclass's fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: group for name, group in hints.items() if is_dataclass(group)}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if name in groups:
            annotations = get_type_hints(groups[name], include_extras=True)
            parameters += [
                Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=annotations[field.name])
                for field in fields(groups[name])
            ]
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name]))

    @wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@dataclass(frozen=True)
class AgentOptions:
    """An agent and its settings."""

    agent: Annotated[
        str | None,
        typer.Option(
            help="chat (the default with --model), gold, idle, local, random, scripted, an installed agent, or your "
            "own as module:Class."
        ),
    ] = None
    model: ModelOption = None
    base_url: BaseUrlOption = None
    setting: SettingsOption = None
    protocol: Annotated[
        Literal["text", "tools"] | None,
        typer.Option(help="Whether a model acts by text or by tool calls; default: text."),
    ] = None
    configuration: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="NAME",
            help="Configuration of the agent chat: baseline, spec, memory, memory-spec, memory-spec-runtime, text or "
            "medagentbench; those with memory also need --set memory=FILE.",
        ),
    ] = None

    def name(self, default: str | None = None) -> str:
        """Return the name of the agent.

        Args:
            default: The agent if the user names neither an agent nor a model.

        Raises:
            typer.BadParameter: The user names neither, and there is no default.
        """
        if self.agent is not None:
            return self.agent
        if self.model is not None:
            return "chat"
        if default is None:
            raise typer.BadParameter("name a model with --model, or another agent with --agent")
        return default

    def settings(self) -> dict[str, Any]:
        """Return the settings of all options together with those of the configuration of the agent ``chat``.

        Raises:
            typer.BadParameter: A setting has a wrong form, or it is one that the configuration chooses.
        """
        options = {"model": self.model, "base_url": self.base_url, "protocol": self.protocol}
        settings = agent_settings(self.setting) | {name: value for name, value in options.items() if value}
        if self.configuration is None:
            return settings
        from fhir_gym.agents import chat_settings

        chosen = chat_settings(self.configuration, settings.get("memory"))
        for name in chosen:
            if name in settings and name != "memory":
                raise typer.BadParameter(f"--config {self.configuration} already sets {name}: leave one of them out")
        return settings | chosen


@dataclass(frozen=True)
class RunOptions:
    """How many episodes run, and where."""

    repeats: Annotated[int, typer.Option(min=1, help="Number of episodes of each variation.")] = 1
    workers: WorkersOption = 0
    concurrency: ConcurrencyOption = 8
    seed: SeedOption = 0


@dataclass(frozen=True)
class PriceOptions:
    """Prices of a model's tokens."""

    price_in: Annotated[float | None, typer.Option(min=0, help="Price of a million input tokens.")] = None
    price_out: Annotated[float | None, typer.Option(min=0, help="Price of a million output tokens.")] = None

    def prices(self) -> Prices | None:
        """Return the prices that the user gave; None if the user gave none."""
        from fhir_gym.rollouts import Prices

        if self.price_in is None and self.price_out is None:
            return None
        return Prices(self.price_in or 0.0, self.price_out or 0.0)


@dataclass(frozen=True)
class BudgetOptions(PriceOptions):
    """Limits of a run."""

    max_episodes: Annotated[int | None, typer.Option(min=1, help="Start at most this many episodes.")] = None
    max_tokens: MaxTokensOption = None
    max_seconds: Annotated[float | None, typer.Option(min=0.001, help="Start no episode after this many seconds.")] = (
        None
    )
    max_cost: Annotated[
        float | None, typer.Option(min=0, help="Start no episode after the run has cost this much; it needs prices.")
    ] = None

    def budget(self) -> Budget:
        """Return the limits."""
        from fhir_gym.rollouts import Budget

        return Budget(self.max_episodes, self.max_tokens, self.max_seconds, self.max_cost, self.prices())


@dataclass(frozen=True)
class SuiteOptions:
    """What the suite medagentbench-official-v1 needs."""

    task_file: Annotated[
        Path | None, typer.Option("--task-file", help="MedAgentBench's own task file, for medagentbench-official-v1.")
    ] = None
    funcs_file: Annotated[
        Path | None, typer.Option("--funcs-file", help="MedAgentBench's function list, for medagentbench-official-v1.")
    ] = None
    world: Annotated[
        str | None, typer.Option("--world", help="World with MedAgentBench's patients, for medagentbench-official-v1.")
    ] = None

    def suite(self, name: str) -> Suite:
        """Return a suite by its name."""
        from fhir_gym.suites import get_suite

        return get_suite(name, task_file=self.task_file, funcs_file=self.funcs_file, world=self.world)


@dataclass(frozen=True)
class CredentialOptions:
    """What a FHIR server requires from its clients."""

    fhir_header: Annotated[
        list[str] | None,
        typer.Option(
            "--fhir-header",
            metavar="NAME:VALUE",
            help="Header of all requests to the FHIR server, such as 'X-Tenant: ward-7'; may be repeated.",
        ),
    ] = None
    fhir_header_from_env: Annotated[
        list[str] | None,
        typer.Option(
            "--fhir-header-from-env",
            metavar="NAME:VARIABLE",
            help="Header whose value is in an environment variable, such as X-Api-Key:FHIR_KEY; may be repeated.",
        ),
    ] = None
    fhir_token: Annotated[
        str | None,
        typer.Option(
            "--fhir-token-from-env",
            metavar="VARIABLE",
            help="Environment variable with the token that the FHIR server requires (Authorization: Bearer …).",
        ),
    ] = None
    fhir_user: Annotated[
        str | None,
        typer.Option(
            "--fhir-user",
            metavar="USER:VARIABLE",
            help="User of the FHIR server (basic authentication), and the environment variable with the password.",
        ),
    ] = None
    fhir_ca: Annotated[
        Path | None,
        typer.Option("--fhir-ca", metavar="FILE", help="PEM file with the certificate authorities to trust."),
    ] = None

    def credentials(self) -> Credentials:
        """Return the credentials.

        Raises:
            typer.BadParameter: An argument has another form, a variable is not set, or two options set the same header.
        """
        from fhir_gym.fhir import Credentials

        headers = [_pair(line, "Name: value", "--fhir-header") for line in self.fhir_header or ()]
        for line in self.fhir_header_from_env or ():
            name, variable = _pair(line, "NAME:VARIABLE", "--fhir-header-from-env")
            headers.append((name, _from_env(variable, "--fhir-header-from-env")))
        try:
            if self.fhir_token is not None:
                headers += Credentials.bearer(_from_env(self.fhir_token, "--fhir-token-from-env")).headers.items()
            if self.fhir_user is not None:
                name, variable = _pair(self.fhir_user, "USER:VARIABLE", "--fhir-user")
                headers += Credentials.basic(name, _from_env(variable, "--fhir-user")).headers.items()
            names = [name.lower() for name, _ in headers]
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise typer.BadParameter(f"the options --fhir-… set the header {twice[0]!r} twice")
            return Credentials(dict(headers), ca=self.fhir_ca)
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
    chosen_names = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    return chosen_names or None


def read_chosen(files: Iterable[Path], tasks: Iterable[str]) -> Iterator[Rollout]:
    """Yield the rollouts of files that belong to one of the tasks, or all if no task is named.

    Raises:
        RecordError: A file has no rollouts.
        UnknownNameError: There are no rollouts of a task; raised after the last rollout.
    """
    from fhir_gym.rollouts import no_rollouts, read_rollouts

    wanted_tasks = tuple(tasks)
    seen: dict[str, None] = {}
    for file in files:
        any_record = False
        for rollout in read_rollouts(file):
            any_record = True
            seen[rollout.task.key] = None
            if not wanted_tasks or rollout.task.key in wanted_tasks:
                yield rollout
        if not any_record:
            raise no_rollouts(file)
    for task in wanted_tasks:
        require_name("task of these rollouts", task, seen)


def agent_settings(pairs: list[str] | None) -> dict[str, Any]:
    """Parse agent settings in the form ``name=value``; values may be JSON.

    Raises:
        typer.BadParameter: A setting does not have the form ``name=value``.
    """
    settings: dict[str, Any] = {}
    for text in pairs or []:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{text!r} does not have the form {AGENT_SETTINGS}")
        try:
            settings[name.strip()] = json.loads(value)
        except ValueError:
            settings[name.strip()] = value
    return settings


def numbers_by_name(pairs: list[str] | None) -> dict[str, float]:
    """Parse numbers in the form ``name=number``.

    Raises:
        typer.BadParameter: A text does not have the form ``name=number``.
    """
    numbers: dict[str, float] = {}
    for text in pairs or []:
        name, _, number = text.partition("=")
        try:
            numbers[name.strip()] = float(number)
        except ValueError:
            raise typer.BadParameter(f"{text!r} does not have the form NAME=NUMBER") from None
    return numbers


GradingOption = Annotated[
    Literal["state", "evidence"],
    typer.Option(
        help="What to grade. state: the end state and the answer; evidence: also whether the agent read the records."
    ),
]
RewardOption = Annotated[
    Literal["sparse", "dense"], typer.Option(help="sparse: 1 for success, else 0; dense: share of passed checks.")
]
MaxStepsOption = Annotated[
    int | None, typer.Option(min=1, help="Number of actions after which an episode is truncated.")
]


def open_worlds(names: Iterable[str], stack: ExitStack) -> dict[str, World]:
    """Open each world once; `stack` closes them."""
    from fhir_gym import worlds

    opened: dict[str, World] = {}
    for name in dict.fromkeys(names):
        with progress(f"Building {name}") as update:
            opened[name] = stack.enter_context(worlds.load(name, progress=update))
    return opened


@dataclass(frozen=True)
class EpisodeOptions:
    """Which tasks episodes have, how these are worded, and how episodes end and are graded."""

    level: Annotated[int | None, typer.Option(min=1, help="Only tasks of this level, in packs with levels.")] = None
    dial: Annotated[
        list[str] | None,
        typer.Option("--dial", metavar="NAME=NUMBER", help="Dial of the tasks, such as minutes=60; may be repeated."),
    ] = None
    phrasing: PhrasingOption = None
    grading: GradingOption = "state"
    reward: RewardOption = "sparse"
    max_steps: MaxStepsOption = None

    def config(self, env_id: str, **others: Any) -> EpisodeConfig:
        """Return the settings of a pack's episodes; `others` are further fields of `EpisodeConfig`."""
        from fhir_gym.episode_config import EpisodeConfig

        return EpisodeConfig(
            env_id,
            level=self.level,
            dials=numbers_by_name(self.dial),
            phrasing=parse_phrasing(self.phrasing),
            grading=self.grading,
            reward=self.reward,
            max_steps=self.max_steps,
            **others,
        )

    def configs(self, env_ids: Iterable[str], world: str | None, stack: ExitStack) -> list[EpisodeConfig]:
        """Return the settings of each pack's episodes with an open world, which `stack` closes.

        Args:
            env_ids: Env ids of the packs; repeated ones count once.
            world: World of all packs; None for the packs' own worlds.
            stack: Where the worlds are entered.
        """
        from fhir_gym.tasks import get_pack

        worlds = {env_id: world or get_pack(env_id).world for env_id in env_ids}
        opened = open_worlds(worlds.values(), stack)
        return [self.config(env_id, world=opened[name]) for env_id, name in worlds.items()]
