"""Register env ids with Gymnasium."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gymnasium.envs.registration import register, registry
from gymnasium.error import Error

from fhir_gym.errors import TaskError

__all__ = ["SHIPPED", "is_env_id", "register_envs"]

SHIPPED: Mapping[str, str] = {
    "FHIRAgent/ActionReasoning-v0": "fhir_gym.tasks.packs.action_reasoning",
    "FHIRAgent/Appointment-v0": "fhir_gym.tasks.packs.appointment",
    "FHIRAgent/GeneticTesting-v0": "fhir_gym.tasks.packs.genetic_testing",
    "FHIRAgent/MedAgentBench-v0": "fhir_gym.tasks.packs.medagentbench",
    "FHIRAgent/Shift-v0": "fhir_gym.tasks.packs.shift",
}
"""Maps the env id of each shipped pack to its module, which is imported on first use."""

_ENV_ID = re.compile(r"([\w-]+/)?[\w.-]+-v\d+")


def is_env_id(name: str) -> bool:
    """Whether a name has the form of an env id with a version: ``My/Pack-v0``."""
    return _ENV_ID.fullmatch(name) is not None


def register_envs(*env_ids: str) -> None:
    """Register packs as Gymnasium environments.

    `import fhir_gym` calls this function for shipped and installed packs. `fhir_gym.tasks.register` calls it for other
    packs.

    Raises:
        TaskError: An env id breaks Gymnasium's rules.
    """
    for env_id in env_ids:
        if env_id in registry:
            continue
        try:
            # String entry points keep the spec JSON-serialisable. The environment itself applies the step limit.
            register(
                env_id,
                entry_point="fhir_gym.envs:FHIREnv",
                vector_entry_point="fhir_gym.envs:FHIRVectorEnv",
                # After a first reset that raised an error, such as an unknown option, Gymnasium's passive checker would
                # fail at every step. The tests check the class with check_env.
                disable_env_checker=True,
                kwargs={"env_id": env_id},
            )
        except Error as error:
            raise TaskError(f"a pack needs an env id such as My/Pack-v0, not {env_id!r}: {error}") from error
