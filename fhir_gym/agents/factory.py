"""Agents by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fhir_gym.agents.chat import ChatAgent
from fhir_gym.agents.gold import GoldAgent
from fhir_gym.agents.idle import IdleAgent
from fhir_gym.agents.local import LocalAgent
from fhir_gym.agents.protocol import Agent
from fhir_gym.agents.random_agent import RandomAgent
from fhir_gym.agents.scripted import ScriptedAgent
from fhir_gym.errors import FhirGymError, UnknownNameError

__all__ = ["AGENTS", "make_agent"]

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
"""What makes an agent, by name."""


def make_agent(name: str, /, **settings: Any) -> Agent:
    """An agent by name.

    Args:
        name: One of `AGENTS`.
        settings: Arguments of its class.

    Raises:
        UnknownNameError: There is no such agent or setting.
        FhirGymError: A setting is missing, or of another type.

    Example:
        >>> make_agent("random", finish=0.1).name
        'random'
    """
    if name not in AGENTS:
        raise UnknownNameError("agent", name, AGENTS)
    maker = AGENTS[name]
    parameters = inspect.signature(maker).parameters
    for setting in settings:
        if setting not in parameters:
            raise UnknownNameError(f"setting of agent {name}", setting, parameters)
    for parameter in parameters.values():
        if parameter.default is parameter.empty and parameter.name not in settings:
            raise FhirGymError(f"agent {name} needs a value for {parameter.name}")
    _check_types(name, maker, settings)
    return maker(**settings)


def _check_types(name: str, maker: Callable[..., Agent], settings: Mapping[str, Any]) -> None:
    """Refuse values of another type, as texts from a command line may be; their range is the agent's to check."""
    hints = get_type_hints(maker.__init__)
    for setting, value in settings.items():
        kind: TypeAdapter[Any] = TypeAdapter(hints[setting], config=ConfigDict(strict=True))
        try:
            kind.validate_python(value)
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] != "literal_error":  # the agent says which it knows
                # Without the value: it may be a secret.
                raise FhirGymError(f"{setting} of agent {name} {first['msg'].removeprefix('Input ')}") from error
