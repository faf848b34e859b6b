"""Gymnasium environments, with one id for each pack of tasks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fhir_gym.registration import register_envs

if TYPE_CHECKING:
    from fhir_gym.envs.env import FHIREnv, TextSpace
    from fhir_gym.envs.vector import FHIRVectorEnv

__all__ = ["FHIREnv", "FHIRVectorEnv", "TextSpace", "register_envs"]

_HOMES = {"FHIREnv": "env", "FHIRVectorEnv": "vector", "TextSpace": "env"}


def __getattr__(name: str) -> Any:
    """Import an environment class on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"fhir_gym.envs.{_HOMES[name]}"), name)
