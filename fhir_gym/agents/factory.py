"""Make agents by name, and the settings of the study's configurations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fhir_gym.agents.baselines import GoldAgent, IdleAgent, RandomAgent, ScriptedAgent
from fhir_gym.agents.chat import ChatAgent
from fhir_gym.agents.chat_messages import ChatProtocol
from fhir_gym.agents.local import LocalAgent
from fhir_gym.agents.protocol import Agent, require_agent
from fhir_gym.arguments import require_name
from fhir_gym.errors import AgentError, ArgumentError, FhirGymError, UnknownNameError, WrongTypeError, in_one_line
from fhir_gym.plugins import AGENTS as GROUP
from fhir_gym.plugins import entry_points_of, find_object, load_plugin


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a model may use in an episode.

    Attributes:
        about: Description in one line.
        protocol: ``text`` or ``tools``.
        tools: The setting ``tools`` of `ChatAgent`.
        memory: How the memory was trained: ``plain`` (without the FHIR specification) or ``spec`` (with it); None for
            a configuration without memory.
        system: System prompt; None for the default of the protocol and the tools.
    """

    name: str
    about: str
    protocol: ChatProtocol
    tools: tuple[str, ...] = ()
    memory: Literal["plain", "spec"] | None = None
    system: str | None = None


CONFIGURATIONS: Mapping[str, Configuration] = MappingProxyType(
    {
        configuration.name: configuration
        for configuration in (
            Configuration("baseline", "FHIR tools only.", "tools", ("fhir",)),
            Configuration("spec", "FHIR tools, and the FHIR specification.", "tools", ("fhir", "spec")),
            Configuration(
                "memory",
                "FHIR tools, and a memory trained without the FHIR specification.",
                "tools",
                ("fhir", "memory"),
                "plain",
            ),
            Configuration(
                "memory-spec",
                "FHIR tools, and a memory trained with the FHIR specification.",
                "tools",
                ("fhir", "memory"),
                "spec",
            ),
            Configuration(
                "memory-spec-runtime",
                "FHIR tools, a memory trained with the FHIR specification, and the specification itself.",
                "tools",
                ("fhir", "spec", "memory"),
                "spec",
            ),
            Configuration("text", "Actions as text (GET, POST, ..., FINISH) with the default system prompt.", "text"),
            Configuration(
                "medagentbench",
                "Actions as text without a system prompt, as in MedAgentBench; for its rules use grading official.",
                "text",
                system="",
            ),
        )
    }
)
"""All configurations by name. The first five are those of the study."""


def chat_settings(configuration: str | Configuration, memory_file: str | Path | None = None) -> dict[str, Any]:
    """Return the settings of the agent ``chat`` for a configuration, without the model and the endpoint.

    Args:
        configuration: The configuration or its name.
        memory_file: The memory file of a configuration with memory.

    Raises:
        UnknownNameError: The configuration does not exist.
        ArgumentError: The memory file is missing or superfluous.

    Examples:
        >>> chat_settings("spec")
        {'protocol': 'tools', 'tools': ['fhir', 'spec']}
    """
    if isinstance(configuration, str):
        require_name("configuration", configuration, CONFIGURATIONS)
        configuration = CONFIGURATIONS[configuration]
    name = configuration.name
    if configuration.memory is not None and memory_file is None:
        raise ArgumentError(f"the configuration {name} needs a memory file")
    if configuration.memory is None and memory_file is not None:
        raise ArgumentError(f"the configuration {name} has no memory: leave the memory file out")
    settings: dict[str, Any] = {"protocol": configuration.protocol}
    if set(configuration.tools) - {"fhir"}:  # the protocol alone says whether the FHIR tools are offered
        settings["tools"] = list(configuration.tools)
    if memory_file is not None:
        settings["memory"] = str(memory_file)
    if configuration.system is not None:
        settings["system"] = configuration.system
    return settings


Factory = Callable[..., Any]

AGENTS: Mapping[str, Callable[..., Agent]] = MappingProxyType(
    {
        "chat": ChatAgent,
        "gold": GoldAgent,
        "idle": IdleAgent,
        "local": LocalAgent,
        "random": RandomAgent,
        "scripted": ScriptedAgent,
    }
)
"""Classes of the agents of this package, by name."""


def agent_names() -> tuple[str, ...]:
    """Return the sorted names of the agents in this package and in installed plugins."""
    return tuple(sorted({*AGENTS, *entry_points_of(GROUP)}))


def make_agent(name: str, /, **settings: Any) -> Agent:
    """Make an agent by name. Some plugins return only a `ConcurrentAgent` instead of an `Agent`; `run` accepts both.

    Args:
        name: One of `agent_names`, or ``module:name``. The latter names an agent class, a function that returns an
            agent, or a function whose first parameter is ``observation`` and that returns the action.
        settings: Arguments of the class or function.

    Raises:
        UnknownNameError: The agent, module or setting does not exist.
        PluginError: The import of a plugin or module fails.
        AgentError: The agent's own code raises an exception.
        ArgumentError: A setting is missing or has the wrong type, or the named object is not an agent.

    Examples:
        >>> make_agent("random", finish=0.1).name
        'random'
    """
    if not isinstance(name, str):
        raise UnknownNameError("agent", name, agent_names())
    if name in AGENTS:
        return cast(Agent, _call(name, AGENTS[name], settings))
    installed = entry_points_of(GROUP)
    if name in installed:
        factory = load_plugin(installed[name])
    elif ":" in name:
        factory = find_object(name)
    else:
        raise UnknownNameError("agent", name, agent_names())
    if callable(factory) and _is_policy(factory):
        return ScriptedAgent(_FunctionScript(factory), name=factory.__name__)
    try:
        return cast(Agent, require_agent(_call(name, factory, settings) if callable(factory) else factory))
    except WrongTypeError as error:
        raise WrongTypeError(f"{name} is not an agent: {error}") from error


class _FunctionScript:
    """Adapts an action function for `ScriptedAgent`; the function may take the observation without the step."""

    def __init__(self, function: Callable[..., str]) -> None:
        self._function = function
        self._takes_step = len(inspect.signature(function).parameters) > 1
        self.__qualname__ = function.__qualname__

    def __call__(self, observation: str, step: int) -> str:
        return self._function(observation, step) if self._takes_step else self._function(observation)


def _is_policy(factory: Factory) -> bool:
    parameters = [] if inspect.isclass(factory) else list(inspect.signature(factory).parameters)
    return parameters[:1] == ["observation"]


def _call(name: str, maker: Factory, settings: Mapping[str, Any]) -> Any:
    """Check settings against the parameters of a class or function, then call it with the settings."""
    parameters = inspect.signature(maker).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    named = {
        parameter.name: parameter
        for parameter in parameters.values()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    for setting in settings:
        if setting not in named and not takes_any:
            raise UnknownNameError(f"setting of agent {name}", setting, named)
    for parameter in named.values():
        if parameter.default is parameter.empty and parameter.name not in settings:
            raise ArgumentError(f"agent {name} needs a value for {parameter.name}")
    _check_types(name, maker, settings)
    try:
        return maker(**settings)
    except FhirGymError:
        raise
    except Exception as error:
        raise AgentError(f"agent {name} cannot be created: {in_one_line(error)}") from error


def _check_types(name: str, maker: Factory, settings: Mapping[str, Any]) -> None:
    """Raise if a value has the wrong type, as a value from the command line may. The agent itself checks ranges."""
    try:
        hints = get_type_hints(maker.__init__ if inspect.isclass(maker) else maker)
    except NameError:  # the name of a type is imported only for type checkers, so the types cannot be checked
        return
    for setting, value in settings.items():
        if setting not in hints:
            continue
        config = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)
        kind: TypeAdapter[Any] = TypeAdapter(hints[setting], config=config)
        try:
            kind.validate_python(value)
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] != "literal_error":  # the agent itself lists the valid values
                # The value is not shown: it may be a secret.
                raise ArgumentError(f"{setting} of agent {name} {first['msg'].removeprefix('Input ')}") from error
