"""Env ids in Gymnasium's registry."""

from __future__ import annotations

from gymnasium.envs.registration import register, registry

from fhir_gym import tasks

__all__ = ["register_envs"]


def register_envs() -> tuple[str, ...]:
    """Register every pack of tasks as an environment; `import fhir_gym` does.

    Call it again after `fhir_gym.tasks.register` made a new pack.

    Returns:
        The env ids.
    """
    for env_id in tasks.packs():
        if env_id not in registry:
            # Entry points as texts, so that a spec can be written as JSON; no step limit here, the env has its own.
            register(
                env_id,
                entry_point="fhir_gym.envs:FHIREnv",
                vector_entry_point="fhir_gym.envs:FHIRVectorEnv",
                kwargs={"env_id": env_id},
            )
    return tasks.packs()
