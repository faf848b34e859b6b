"""A base class that lets a `ConcurrentAgent` also act synchronously."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from fhir_gym.agents.conversation import Conversation
from fhir_gym.agents.protocol import EpisodeContext, Reply


class SyncAdapter(ABC):
    """Implements `Agent` for a `ConcurrentAgent`. Conversations run one at a time on an event loop of their own."""

    _running: tuple[asyncio.Runner, Conversation] | None = None

    @abstractmethod
    def converse(self, observation: str, context: EpisodeContext) -> Conversation:
        """Start an episode that runs concurrently with others."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close what the agent opened on the current event loop. The agent may be used again."""

    def reset(self, observation: str, context: EpisodeContext) -> None:
        """Start an episode for `act`."""
        self.close()
        self._running = (asyncio.Runner(), self.converse(observation, context))

    def act(self, observation: str) -> Reply:
        """Return the next action of the episode that `reset` started. Inside an event loop, use `converse` instead."""
        if self._running is None:
            raise RuntimeError("act() before reset()")
        runner, conversation = self._running
        return runner.run(conversation.act(observation))

    def close(self) -> None:
        """Close the event loop and the conversation that `reset` opened."""
        if self._running is not None:
            runner, self._running = self._running[0], None
            runner.run(self.aclose())
            runner.close()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the agent without a running episode."""
        return self.__dict__ | {"_running": None}
