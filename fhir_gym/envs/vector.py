"""Many episodes side by side in one process, on one world."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from fhir_gym.arguments import require_name, require_whole
from fhir_gym.envs.env import FHIREnv, check_arguments
from fhir_gym.episode import open_world
from fhir_gym.errors import FhirGymError, WrongTypeError
from fhir_gym.fhir import World

__all__ = ["FHIRVectorEnv"]


_NO_LIMIT = -1
"""How Gymnasium's `make` is told to set no limit."""


class FHIRVectorEnv(SyncVectorEnv):
    """What `gymnasium.make_vec` gives by default: environments that share one opened world.

    A step of the embedded server takes well under a millisecond, so processes only pay off where the agent itself is
    slow; then use ``vectorization_mode="async", vector_kwargs={"shared_memory": False}``.

    Args:
        env_id: The pack.
        num_envs: Number of environments.
        max_episode_steps: Gymnasium's own step limit: the same as `max_steps`, and the smaller of both holds.
        autoreset_mode: When an environment whose episode is over starts the next one: ``"NextStep"`` (the step after
            the last one resets and ignores its action), ``"SameStep"``, or ``"Disabled"``.
        world: A world, or the name or path of one; None for the pack's own.
        fhir_server: As for `FHIREnv`; refused with more than one environment: their episodes would meet there.
        arguments: Those of `FHIREnv`.
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
        world: World | str | Path | None = None,
        fhir_server: str | None = None,
        **arguments: Any,
    ) -> None:
        check_arguments(arguments)
        require_whole("num_envs", num_envs, 1)
        if max_episode_steps not in (None, _NO_LIMIT):
            require_whole("max_episode_steps", max_episode_steps, 1)
        mode = AutoresetMode(
            require_name(
                "autoreset mode", getattr(autoreset_mode, "value", autoreset_mode), [one.value for one in AutoresetMode]
            )
        )
        if fhir_server is not None and num_envs > 1:
            raise FhirGymError(f"one FHIR server serves one environment at a time, not {num_envs}")
        self._world, self._owns_world = open_world(world, env_id)

        def create() -> FHIREnv | TimeLimit[str, str]:
            env = FHIREnv(env_id, world=self._world, fhir_server=fhir_server, **arguments)
            return env if max_episode_steps in (None, _NO_LIMIT) else TimeLimit(env, max_episode_steps)

        super().__init__([create] * num_envs, autoreset_mode=mode)

    def step(self, actions: Sequence[str]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Do one action in each environment.

        Args:
            actions: A text for each environment.

        Raises:
            WrongTypeError: They are no list of texts, or not as many as environments.
        """
        if isinstance(actions, str) or not isinstance(actions, Sequence | np.ndarray) or len(actions) != self.num_envs:
            raise WrongTypeError(f"step() takes a list of {self.num_envs} actions, one text for each environment")
        return super().step(actions)

    def close_extras(self, **kwargs: object) -> None:
        """Close the environments, then their world if it was opened here."""
        super().close_extras(**kwargs)
        if self._owns_world:
            self._world.close()
