"""An agent that does nothing. A task that rewards this agent is unsound."""

from __future__ import annotations

from collections.abc import Mapping

from fhir_gym.actions import Finish
from fhir_gym.agents.protocol import EpisodeContext
from fhir_gym.types import Json


class IdleAgent:
    """An agent that finishes at once with an empty answer."""

    name = "idle"

    def __init__(self) -> None:
        self.settings: Mapping[str, Json] = {}

    def reset(self, observation: str, context: EpisodeContext) -> None:
        """Do nothing."""

    def act(self, observation: str) -> str:
        """Return ``FINISH([])``."""
        return Finish().text()
