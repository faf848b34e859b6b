"""Let an agent read lessons at the end of its prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

from fhir_gym.agents import Agent, AsyncConversation, ConcurrentAgent, EpisodeContext, Reply
from fhir_gym.types import Json


class VariationName(NamedTuple):
    """The pack, the task and the variation of an episode."""

    env_id: str
    task: str
    variation: int


def with_lessons(agent: Agent | ConcurrentAgent, lessons: Mapping[VariationName, str]) -> Agent | ConcurrentAgent:
    """Return an agent whose prompts end with lessons.

    Args:
        agent: The agent.
        lessons: The text for each variation.
    """
    return _ConcurrentReader(agent, lessons) if isinstance(agent, ConcurrentAgent) else _Reader(agent, lessons)


class _Lessons:
    """The parts that both kinds of agents share."""

    def __init__(self, agent: Agent | ConcurrentAgent, lessons: Mapping[VariationName, str]) -> None:
        self.name = agent.name
        plain = json.dumps(sorted(lessons.items()), ensure_ascii=True)
        digest = blake2b(plain.encode(), digest_size=8).hexdigest()
        self.settings: Mapping[str, Json] = {**agent.settings, "lessons": digest}
        self._lessons = lessons

    def add(self, text: str, context: EpisodeContext) -> str:
        """Return a text with the lessons of an episode at its end."""
        lessons = self._lessons.get(VariationName(context.env_id, context.task, context.variation))
        return f"{text}\n\n{lessons}" if lessons else text


class _ConcurrentReader(_Lessons):
    def __init__(self, agent: ConcurrentAgent, lessons: Mapping[VariationName, str]) -> None:
        super().__init__(agent, lessons)
        self._agent = agent

    def converse(self, observation: str, context: EpisodeContext) -> AsyncConversation:
        read = replace(context, prompt=self.add(context.prompt, context))
        return self._agent.converse(self.add(observation, context), read)

    async def aclose(self) -> None:
        await self._agent.aclose()


class _Reader(_Lessons):
    def __init__(self, agent: Agent, lessons: Mapping[VariationName, str]) -> None:
        super().__init__(agent, lessons)
        self._agent = agent
        self._first: str | None = None

    def reset(self, observation: str, context: EpisodeContext) -> None:
        self._first = self.add(observation, context)
        self._agent.reset(self._first, replace(context, prompt=self.add(context.prompt, context)))

    def act(self, observation: str) -> str | Reply:
        first, self._first = self._first, None
        return self._agent.act(first or observation)
