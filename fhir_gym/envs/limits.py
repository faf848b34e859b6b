"""Step limits that wrappers set on an environment."""

from __future__ import annotations

import inspect

import gymnasium
from gymnasium.wrappers import TimeLimit


def step_limit_around(env: gymnasium.Env[str, str]) -> int | None:
    """Return the lowest step limit of the `TimeLimit` wrappers around an environment; None without such wrappers.

    An environment must know the last step to grade the episode there. But Gymnasium does not tell an environment about
    its wrappers, such as the `TimeLimit` that `make(max_episode_steps=…)` adds. This function therefore searches the
    call stack for wrappers that have called `reset`. Call it only from the environment's `reset`.
    """
    limits = []
    frame = inspect.currentframe()
    frame = frame and frame.f_back and frame.f_back.f_back
    while frame is not None:
        caller = frame.f_locals.get("self")
        if not isinstance(caller, gymnasium.Env) and not frame.f_globals.get("__name__", "").startswith("gymnasium."):
            break
        if isinstance(caller, TimeLimit) and caller.unwrapped is env:
            limits.append(caller._max_episode_steps)
        frame = frame.f_back
    return min(limits, default=None)
