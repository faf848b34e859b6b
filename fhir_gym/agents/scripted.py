"""An agent that sends the texts of a script, or texts that a function returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fhir_gym.actions import Finish
from fhir_gym.agents.protocol import EpisodeContext
from fhir_gym.types import Json


class ScriptedAgent:
    """An agent that sends its texts in order and then finishes with an empty answer.

    Args:
        script: The texts for every episode, or a function that returns a text for an observation and a step (from 0).
        name: Name of the agent in records.
    """

    def __init__(self, script: str | Sequence[str] | Callable[[str, int], str], *, name: str = "scripted") -> None:
        self.name = name
        if callable(script):
            self._script: tuple[str, ...] | Callable[[str, int], str] = script
            self.settings: Mapping[str, Json] = {"function": getattr(script, "__qualname__", type(script).__name__)}
        else:
            self._script = (script,) if isinstance(script, str) else tuple(script)
            self.settings = {"script": list(self._script)}
        self._step = 0

    def reset(self, observation: str, context: EpisodeContext) -> None:
        """Return to the first text."""
        self._step = 0

    def act(self, observation: str) -> str:
        """Return the next text."""
        step = self._step
        self._step += 1
        if not isinstance(self._script, tuple):
            return self._script(observation, step)
        return self._script[step] if step < len(self._script) else Finish().text()
