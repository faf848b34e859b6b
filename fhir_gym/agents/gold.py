"""An agent that follows the task's reference solution."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from fhir_gym import tasks
from fhir_gym.actions import Action, Finish
from fhir_gym.agents.protocol import EpisodeContext
from fhir_gym.episode import read_response
from fhir_gym.tasks import LatestResponse
from fhir_gym.types import Json


class GoldAgent:
    """An agent that performs the reference solution, which reads only the server's responses."""

    name = "gold"

    def __init__(self) -> None:
        self.settings: Mapping[str, Json] = {}
        self._fhir = LatestResponse()
        self._solution: Generator[Action, Json, None] | None = None
        self._started = False

    def reset(self, observation: str, context: EpisodeContext) -> None:
        """Start the reference solution of the task."""
        task = context.source or tasks.get_task(context.env_id, context.task)
        params = task.variation(context.variation, context.world).params
        self._fhir = LatestResponse()
        self._solution = task.gold(params, self._fhir)
        self._started = False

    def act(self, observation: str) -> str:
        """Return the next action of the solution, or ``FINISH([])`` after the last action."""
        if self._solution is None:
            raise RuntimeError("act() before reset()")
        try:
            if self._started:
                self._fhir.last = read_response(observation)
                return self._solution.send(self._fhir.json()).text()
            self._started = True
            return next(self._solution).text()
        except StopIteration:
            return Finish().text()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the agent without a running episode."""
        return {"settings": self.settings, "_fhir": LatestResponse(), "_solution": None, "_started": False}
