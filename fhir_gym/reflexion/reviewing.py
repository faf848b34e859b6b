"""Ask the evaluator and the reflector about episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fhir_gym.agents import Completion, ContextWindowExceeded, Message, Opening, Usage
from fhir_gym.agents.completions import parse_completion
from fhir_gym.agents.provider import Provider
from fhir_gym.agents.tool_sources import ToolSource, error_text
from fhir_gym.reflexion.config import MemoryTrainingConfig
from fhir_gym.reflexion.prompts import (
    EVALUATOR_PROMPT,
    evaluator_message,
    reflector_message,
    reflector_prompt,
    repair_message,
)
from fhir_gym.reflexion.replies import Critique, Lessons, parse_critique, parse_lessons
from fhir_gym.reflexion.training_folder import ReplyJournal, request_key, require_budget
from fhir_gym.rollouts import BudgetTracker, Rollout

MAX_LOOKUPS = 8
"""Maximum number of calls of the specification tools for one episode."""
_MAX_REPLIES = MAX_LOOKUPS + 4
"""Maximum number of replies of a model about one episode."""
_REPAIRS = 2
"""Number of times that an unreadable answer is asked for again."""
_MAX_REPEATED = 4_000
"""Maximum number of characters of an unreadable answer that the next request repeats."""
_UNSEEN = "The evaluator gave no usable critique."

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Review:
    """What the evaluator and the reflector said about an episode.

    Attributes:
        critique: The evaluator's judgement; None if its answers were unreadable.
        lessons: The reflector's lessons; None if its answers were unreadable.
    """

    critique: Critique | None
    lessons: Lessons | None


@dataclass(slots=True)
class _Role:
    """A model with its connection and its tools."""

    name: str
    provider: Provider
    tools: ToolSource | None = None
    seed: int | None = None


@dataclass
class Reviewer:
    """Asks the evaluator and the reflector.

    Attributes:
        config: The settings.
        journal: The replies that are already paid for.
        budgets: The budget of each role.
        tools: The specification tools of the reflector; None without them.
    """

    config: MemoryTrainingConfig
    journal: ReplyJournal
    budgets: Mapping[str, BudgetTracker]
    tools: ToolSource | None = None
    _failed: bool = field(default=False, init=False)
    _running: dict[str, asyncio.Future[Completion]] = field(default_factory=dict, init=False)

    async def review_all(
        self, rollouts: Sequence[Rollout], on_review: Callable[[int], None] = lambda done: None
    ) -> list[Review]:
        """Return the reviews of episodes in their order.

        After a failure, running requests continue to their end, so that their replies are kept.

        Args:
            rollouts: The episodes.
            on_review: Called with the number of finished reviews.

        Raises:
            InfraError: A model's endpoint failed.
            EndpointError: A model's endpoint is misconfigured.
            TrainingBudgetError: The budget is spent.
        """
        evaluator = self._role("evaluator", None)
        reflector = self._role("reflector", self.tools)
        limit = asyncio.Semaphore(self.config.concurrency)
        finished = 0

        async def review(rollout: Rollout) -> Review:
            nonlocal finished
            async with limit:
                outcome = await self._review(rollout, evaluator, reflector)
            finished += 1
            on_review(finished)
            return outcome

        try:
            results = await asyncio.gather(*map(review, rollouts), return_exceptions=True)
        finally:
            await evaluator.provider.aclose()
            await reflector.provider.aclose()
            if self.tools is not None:
                await self.tools.aclose()
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise next((error for error in errors if not isinstance(error, _StoppedError)), errors[0])
        return [result for result in results if isinstance(result, Review)]

    async def _review(self, rollout: Rollout, evaluator: _Role, reflector: _Role) -> Review:
        chars = self.config.run_chars
        critique = await self._ask(evaluator, EVALUATOR_PROMPT, evaluator_message(rollout, chars), parse_critique)
        said = critique.text() if critique else _UNSEEN
        message = reflector_message(rollout, said, chars)
        return Review(critique, await self._ask(reflector, reflector_prompt(self.tools), message, parse_lessons))

    async def _ask(self, role: _Role, prompt: str, text: str, parse: Callable[[str], T | str]) -> T | None:
        """Return the parsed answer of a model; None if all its answers are unreadable."""
        messages: list[Message] = [{"role": "system", "content": prompt}, {"role": "user", "content": text}]
        repairs, lookups = 0, 0
        for _ in range(_MAX_REPLIES):
            try:
                completion = await self._complete(role, messages)
            except ContextWindowExceeded:
                return None
            message = _message(completion, role, len(messages))
            messages.append(message)
            calls = message.get("tool_calls")
            if calls:
                for call in calls:
                    lookups += 1
                    messages.append(await _looked_up(role, call, lookups))
                continue
            answer = parse(str(message["content"]))
            if not isinstance(answer, str):
                return answer
            if repairs == _REPAIRS:
                return None
            repairs += 1
            messages[-1] = message | {"content": str(message["content"])[:_MAX_REPEATED]}
            messages.append({"role": "user", "content": repair_message(answer)})
        return None

    async def _complete(self, role: _Role, messages: Sequence[Message]) -> Completion:
        """Return the reply to a request. An equal request is sent only once, also if it is running at the moment."""
        opening = Opening(protocol="text", messages=(), seed=role.seed)
        key = request_key(role.name, role.provider.model.request(messages, opening))
        recorded = self.journal.find(key)
        if recorded is not None:
            return recorded
        if key not in self._running:
            request = asyncio.ensure_future(self._request(role, list(messages), opening, key))
            request.add_done_callback(lambda _: self._running.pop(key, None))
            self._running[key] = request
        return await self._running[key]

    async def _request(self, role: _Role, messages: Sequence[Message], opening: Opening, key: str) -> Completion:
        if self._failed:
            raise _StoppedError
        try:
            require_budget(self.budgets[role.name])
            completion = await role.provider.complete(messages, opening)
        except ContextWindowExceeded:
            raise
        except BaseException:
            self._failed = True
            raise
        self.journal.add(key, role.name, completion)
        self.budgets[role.name].spend(completion.usage or Usage())
        return completion

    def _role(self, name: str, tools: ToolSource | None) -> _Role:
        settings = self.config.role(name)
        return _Role(name, settings.provider(tools.schemas() if tools else None), tools, settings.seed)


class _StoppedError(Exception):
    """Another review failed, so this one sends no further request."""


def _message(completion: Completion, role: _Role, number: int) -> Message:
    """Return a completion as the assistant message that later requests contain."""
    model = parse_completion(completion, "tools" if role.tools else "text", number)[0].model
    if model is None:
        raise RuntimeError("the first reply has no model reply")
    return model.message


async def _looked_up(role: _Role, call: dict[str, Any], number: int) -> Message:
    function = call["function"]
    if role.tools is None or number > MAX_LOOKUPS:
        result = error_text("there are no further look-ups; write your answer now")
    else:
        result = await role.tools.call(function["name"], function["arguments"], None)
    return {"role": "tool", "tool_call_id": call["id"], "content": result}
