"""Agents by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

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
        FhirGymError: A setting is missing.

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
    return maker(**settings)
