"""Env ids in Gymnasium's registry."""

from __future__ import annotations

import re

from gymnasium.envs.registration import register, registry
from gymnasium.error import Error

from fhir_gym.errors import TaskError

__all__ = ["SHIPPED", "is_env_id", "register_envs"]

SHIPPED = (
    "FHIRAgent/ActionReasoning-v0",
    "FHIRAgent/Appointment-v0",
    "FHIRAgent/GeneticTesting-v0",
    "FHIRAgent/MedAgentBench-v0",
)
"""Packs that come with this package, named here so that `import fhir_gym` need not load tasks and server."""

_ENV_ID = re.compile(r"([\w-]+/)?[\w.-]+-v\d+")


def is_env_id(name: str) -> bool:
    """Whether a name has the form of an env id with a version: ``My/Pack-v0``."""
    return _ENV_ID.fullmatch(name) is not None


def register_envs(*env_ids: str) -> None:
    """Register packs of tasks as environments.

    `import fhir_gym` does it for the packs that are shipped or installed, `fhir_gym.tasks.register` for others.

    Args:
        env_ids: Ids of packs.

    Raises:
        TaskError: An id is none by Gymnasium's rules.
    """
    for env_id in env_ids:
        if env_id in registry:
            continue
        try:
            # Entry points as texts, so that a spec can be written as JSON; no step limit here, the env has its own.
            register(
                env_id,
                entry_point="fhir_gym.envs:FHIREnv",
                vector_entry_point="fhir_gym.envs:FHIRVectorEnv",
                kwargs={"env_id": env_id},
            )
        except Error as error:
            raise TaskError(f"a pack needs an env id such as My/Pack-v0, not {env_id!r}: {error}") from error
