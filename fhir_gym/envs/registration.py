"""Env ids in Gymnasium's registry."""

from __future__ import annotations

from gymnasium.envs.registration import register, registry

__all__ = ["SHIPPED", "register_envs"]

SHIPPED = (
    "FHIRAgent/ActionReasoning-v0",
    "FHIRAgent/Appointment-v0",
    "FHIRAgent/GeneticTesting-v0",
    "FHIRAgent/MedAgentBench-v0",
)
"""Packs that come with this package, named here so that `import fhir_gym` need not load tasks and server."""


def register_envs(*env_ids: str) -> None:
    """Register packs of tasks as environments.

    `import fhir_gym` does it for the packs it ships; call it for those you made with `fhir_gym.tasks.register`.

    Args:
        env_ids: Ids of packs.
    """
    for env_id in env_ids:
        if env_id not in registry:
            # Entry points as texts, so that a spec can be written as JSON; no step limit here, the env has its own.
            register(
                env_id,
                entry_point="fhir_gym.envs:FHIREnv",
                vector_entry_point="fhir_gym.envs:FHIRVectorEnv",
                kwargs={"env_id": env_id},
            )
