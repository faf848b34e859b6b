"""The vector environment: several environments in one process that share one world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from typing_extensions import override

from fhir_gym.arguments import require_name, require_whole
from fhir_gym.envs.env import ARGUMENTS, FHIREnv
from fhir_gym.episode_config import EpisodeConfig, EpisodeSettings
from fhir_gym.errors import ArgumentError, WrongTypeError
from fhir_gym.tasks import DEFAULT_SPLIT

_NO_LIMIT = -1
"""Value with which Gymnasium's `make` sets no step limit."""


class FHIRVectorEnv(SyncVectorEnv):
    """The default vector environment of `gymnasium.make_vec`. Its environments share one open world.

    A step of the embedded server takes well under a millisecond, so separate processes help only if the agent itself is
    slow. In that case, use ``vectorization_mode="async", vector_kwargs={"shared_memory": False}``.

    Args:
        env_id: Env id of the pack, or an `EpisodeConfig`.
        num_envs: Number of environments.
        max_episode_steps: Gymnasium's name for `max_steps`. If both are given, the smaller limit applies.
        autoreset_mode: When an environment starts its next episode: ``"NextStep"`` (the step after
            the episode's end resets the environment and ignores the action), ``"SameStep"``, or ``"Disabled"``.
        tasks: As for `FHIREnv`.
        render_mode: As for `FHIREnv`.
        prepared: As for `FHIREnv`.
        settings: As for `FHIREnv`. `fhir_server` lists one server for each environment.
    """

    # Gymnasium also closes environments whose __init__ failed.
    _owns_world = False

    def __init__(
        self,
        env_id: str | EpisodeConfig,
        *,
        num_envs: int = 1,
        max_episode_steps: int | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        tasks: str | Sequence[str] | None = None,
        render_mode: str | None = None,
        prepared: int = 0,
        **settings: Unpack[EpisodeSettings],
    ) -> None:
        config = EpisodeConfig.of(env_id, settings, ARGUMENTS, default_split=DEFAULT_SPLIT)
        require_whole("num_envs", num_envs, 1)
        if max_episode_steps not in (None, _NO_LIMIT):
            require_whole("max_episode_steps", max_episode_steps, 1)
        modes = [mode.value for mode in AutoresetMode]
        mode = AutoresetMode(require_name("autoreset mode", getattr(autoreset_mode, "value", autoreset_mode), modes))
        servers = config.servers
        if servers and len(servers) != num_envs:
            raise ArgumentError(
                f"each environment needs a FHIR server of its own: fhir_server lists {len(servers)} and num_envs is "
                f"{num_envs}"
            )
        self._world, self._owns_world = config.resolve_world()
        config = replace(config, world=self._world)

        def create(server: str | None) -> FHIREnv | TimeLimit[str, str]:
            env = FHIREnv(
                replace(config, fhir_server=server),
                tasks=tasks,
                render_mode=render_mode,
                prepared=prepared,
                split=config.split,
            )
            return env if max_episode_steps in (None, _NO_LIMIT) else TimeLimit(env, max_episode_steps)

        creators = [partial(create, server) for server in servers or [None] * num_envs]
        super().__init__(creators, autoreset_mode=mode)

    @override
    def step(self, actions: Sequence[str]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Perform one action in each environment.

        Args:
            actions: One text for each environment.

        Raises:
            WrongTypeError: `actions` is not a list with one text for each environment.
        """
        if isinstance(actions, str) or not isinstance(actions, Sequence | np.ndarray) or len(actions) != self.num_envs:
            raise WrongTypeError(f"step() takes a list of {self.num_envs} actions, one text for each environment")
        return super().step(actions)

    @override
    def close_extras(self, **kwargs: object) -> None:
        super().close_extras(**kwargs)
        if self._owns_world:
            self._world.close()
