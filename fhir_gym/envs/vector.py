"""Many episodes side by side in one process, on one world."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from fhir_gym.envs.env import FHIREnv, check_arguments
from fhir_gym.episode import open_world
from fhir_gym.errors import FhirGymError
from fhir_gym.fhir import World
from fhir_gym.tasks import Grading, RewardRule

__all__ = ["FHIRVectorEnv"]


class FHIRVectorEnv(SyncVectorEnv):
    """What `gymnasium.make_vec` gives by default: environments that share one opened world.

    A step of the embedded server takes well under a millisecond, so processes only pay off where the agent itself is
    slow; then use ``vectorization_mode="async", vector_kwargs={"shared_memory": False}``.

    Args:
        env_id: The pack.
        num_envs: Number of environments.
        max_episode_steps: Gymnasium's own step limit on top of `max_steps`; None for none.
        autoreset_mode: When an environment whose episode is over starts the next one: ``"NextStep"`` (the step after
            the last one resets and ignores its action), ``"SameStep"``, or ``"Disabled"``.
        tasks: As for `FHIREnv`, like all that follow.
        split: See `FHIREnv`.
        phrasing: See `FHIREnv`.
        world: See `FHIREnv`.
        fhir_server: Refused with more than one environment: their episodes would meet there.
        max_steps: See `FHIREnv`.
        reward: See `FHIREnv`.
        grading: See `FHIREnv`.
        render_mode: See `FHIREnv`.
        task_file: See `FHIREnv`.
        funcs_file: See `FHIREnv`.
        unknown: Refused.
    """

    # Gymnasium closes what is collected, also where __init__ did not get far.
    _owns_world = False

    def __init__(
        self,
        env_id: str,
        *,
        num_envs: int = 1,
        max_episode_steps: int | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        tasks: str | Sequence[str] | None = None,
        split: str | None = None,
        phrasing: int | None = None,
        world: World | str | Path | None = None,
        fhir_server: str | None = None,
        max_steps: int | None = None,
        reward: RewardRule = "sparse",
        grading: Grading = "state",
        render_mode: str | None = None,
        task_file: str | Path | None = None,
        funcs_file: str | Path | None = None,
        **unknown: object,
    ) -> None:
        check_arguments(unknown)
        if fhir_server is not None and num_envs > 1:
            raise FhirGymError(f"one FHIR server serves one environment at a time, not {num_envs}")
        self._world, self._owns_world = open_world(world, env_id)

        def create() -> FHIREnv | TimeLimit[str, str]:
            env = FHIREnv(
                env_id,
                tasks=tasks,
                split=split,
                phrasing=phrasing,
                world=self._world,
                fhir_server=fhir_server,
                max_steps=max_steps,
                reward=reward,
                grading=grading,
                render_mode=render_mode,
                task_file=task_file,
                funcs_file=funcs_file,
            )
            return env if max_episode_steps is None else TimeLimit(env, max_episode_steps)

        super().__init__([create] * num_envs, autoreset_mode=autoreset_mode)

    def close_extras(self, **kwargs: object) -> None:
        """Close the environments, then their world if it was opened here."""
        super().close_extras(**kwargs)
        if self._owns_world:
            self._world.close()
