"""Ask the evaluator and the reflector about episodes, and read their answers, which may be anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fhir_gym.actions import GRAMMAR, Invalid
from fhir_gym.agents import Completion, ContextWindowExceeded, Message, Opening, Usage
from fhir_gym.agents.chat_messages import Lookup
from fhir_gym.agents.completions import parse_completion
from fhir_gym.agents.memory import OPERATIONS, Reflection, find_operation
from fhir_gym.agents.memory.memory import Operation
from fhir_gym.agents.provider import Provider
from fhir_gym.agents.tool_sources import ToolSource, error_text
from fhir_gym.fhir.definitions import RESOURCE_TYPES
from fhir_gym.reflexion.config import MemoryTrainingConfig
from fhir_gym.reflexion.training_folder import ReplyJournal, request_key, require_budget
from fhir_gym.rollouts import BudgetTracker, Rollout, Turn
from fhir_gym.types import Json

MAX_MICRO, MAX_MACRO = 6, 3
"""Maximum numbers of lessons that are taken from one answer."""
_MAX_TRIES = 200
"""Maximum number of positions at which an object may start."""
_MAX_SHOWN = 4_000


class Critique(BaseModel):
    """The evaluator's judgement of an episode.

    Attributes:
        execution_quality: From 1 to 5: correct and economical use of the tools.
        constraint_adherence: From 1 to 5: whether the agent did what the task demands and forbids.
        failure_modes: A short phrase for each mistake.
        critique: The judgement in words.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    execution_quality: int = Field(ge=1, le=5)
    constraint_adherence: int = Field(ge=1, le=5)
    failure_modes: tuple[str, ...] = ()
    critique: str = Field(min_length=1)

    def text(self) -> str:
        """Return the judgement as the reflector reads it."""
        modes = "; ".join(self.failure_modes) or "none"
        return (
            f"execution quality {self.execution_quality} of 5, constraint adherence {self.constraint_adherence} of 5\n"
            f"failure modes: {modes}\n{self.critique}"
        )[:_MAX_SHOWN]


@dataclass(frozen=True, slots=True)
class Lesson:
    """A lesson as the reflector wrote it, before it is filtered.

    Attributes:
        resource_type: Resource type of a micro lesson; None for a macro lesson.
        operation: Operation of a micro lesson; None for a macro lesson.
    """

    text: str
    resource_type: str | None = None
    operation: Operation | None = None


@dataclass(slots=True)
class Lessons:
    """The lessons in an answer of the reflector.

    Attributes:
        lessons: The usable lessons; micro lessons come first.
        dropped: Why each of the other entries was dropped.
    """

    lessons: list[Lesson] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)


def parse_critique(text: str) -> Critique | str:
    """Return the critique in an answer, or what is wrong with the answer."""
    reply = _object_with(text, ("execution_quality", "critique"))
    if isinstance(reply, str):
        return reply
    try:
        return Critique.model_validate(reply)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def parse_lessons(text: str) -> Lessons | str:
    """Return the lessons in an answer, or what is wrong with the answer. A wrong entry is dropped, others are kept."""
    reply = _object_with(text, ("micro", "macro"))
    if isinstance(reply, str):
        return reply
    micro, macro = reply.get("micro") or [], reply.get("macro") or []
    if not isinstance(micro, list) or not isinstance(macro, list):
        return "micro and macro must be lists"
    result = Lessons()
    for entries, read, limit in ((micro, _micro, MAX_MICRO), (macro, _macro, MAX_MACRO)):
        kept = 0
        for entry in entries:
            lesson = "too many lessons" if kept == limit else read(entry)
            if isinstance(lesson, str):
                result.dropped.append(lesson)
            else:
                result.lessons.append(lesson)
                kept += 1
    return result


def _micro(entry: Json) -> Lesson | str:
    if not isinstance(entry, dict) or not _is_text(entry.get("lesson")):
        return "malformed"
    resource_type, operation = entry.get("resource_type"), find_operation(str(entry.get("operation")))
    if not isinstance(resource_type, str) or resource_type not in RESOURCE_TYPES:
        return "unknown resource type"
    return Lesson(entry["lesson"], resource_type, operation) if operation else "unknown operation"


def _macro(entry: Json) -> Lesson | str:
    text = entry.get("lesson") if isinstance(entry, dict) else entry
    return Lesson(text) if isinstance(text, str) and _is_text(text) else "malformed"


def _is_text(value: Json) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _object_with(text: str, keys: Iterable[str]) -> dict[str, Any] | str:
    """Return the last JSON object in a text that has one of the keys, or what is wrong."""
    decoder = json.JSONDecoder()
    at, longest = text.find("{"), None
    for _ in range(_MAX_TRIES):
        if at < 0:
            break
        end = at + 1
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and any(key in value for key in keys):
            longest = value
        at = text.find("{", end)
    return longest if longest is not None else f"it contains no JSON object with {' and '.join(keys)}"


EVALUATOR_PROMPT = (
    "You are the evaluator. You judge how an agent carried out a task on a FHIR R4 server. You get the task, the "
    "agent's actions with the server's responses, and the result of an automatic check of the final state and answer. "
    "The automatic check is right about success. Find out why the run went as it did: look at each action, name the "
    "first one that went wrong, and say which instruction of the task was not followed.\n"
    "Answer with one JSON object and nothing else:\n"
    '{"execution_quality": 1 to 5, "constraint_adherence": 1 to 5, '
    '"failure_modes": ["a short phrase for each distinct mistake"], "critique": "at most 150 words"}\n'
    "execution_quality is about correct and economical use of the tools. constraint_adherence is about what the task "
    "demands and forbids. failure_modes is empty for a run without mistakes."
)
"""System prompt of the evaluator."""

REFLECTOR_PROMPT = (
    "You are the reflector. You write lessons that help an agent with future tasks on a FHIR R4 server. You get one "
    "run of the agent, the result of an automatic check, and an evaluator's critique. Future tasks concern other "
    "patients, other records and other dates, so a lesson never mentions a name, an id, a date, a time or a number of "
    "this run; write <name>, <id>, <date> where an example needs one. Lessons of a successful run keep what worked.\n"
    "There are two kinds of lessons. A micro lesson is about one operation on one resource type: which search "
    "parameters to use, which elements a resource needs, in which form. A macro lesson is about tasks like this one as "
    "a whole: the plan, the order of the steps, how to choose among results, what the task forbids.\n"
    "Answer with one JSON object and nothing else:\n"
    '{"micro": [{"resource_type": "Slot", "operation": "search", "lesson": "one or two sentences"}], '
    '"macro": [{"lesson": "one to three sentences"}]}\n'
    f"operation is one of {', '.join(OPERATIONS)}. Write at most 6 micro and 3 macro lessons, only those that would "
    "change what the agent does; both lists may be empty."
)
"""System prompt of the reflector."""

SPECIFICATION_NOTE = (
    " You can look up the FHIR R4 specification with the tools. Check each micro lesson against it before you answer: "
    "search parameters, elements, data types and codes must exist."
)
"""Sentence that the reflector's system prompt ends with if it may look up the specification."""

LESSONS_HEADING = "Lessons from your earlier attempt at this task:"
"""First line of the lessons that the agent reads in a later trial."""

_ENDED = {
    "step_limit": "\nThe agent reached the limit of actions.",
    "context_limit": "\nThe conversation became too long for the agent's model.",
}
_MAX_OBSERVATION = 3_000
_MAX_ACTION = 3_000
"""Maximum numbers of characters of one observation and of one action."""


def evaluator_message(rollout: Rollout, run_chars: int) -> str:
    """Return the text that the evaluator reads about an episode.

    Args:
        rollout: The episode.
        run_chars: Maximum number of characters of the turns.
    """
    return f"{_run(rollout, run_chars)}\n\n{_outcome(rollout)}"


def reflector_message(rollout: Rollout, critique: str, run_chars: int) -> str:
    """Return the text that the reflector reads about an episode.

    Args:
        rollout: The episode.
        critique: The evaluator's critique.
        run_chars: Maximum number of characters of the turns.
    """
    return f"{evaluator_message(rollout, run_chars)}\n\nCritique of the evaluator:\n{critique}"


def reflector_prompt(tools: ToolSource | None) -> str:
    """Return the reflector's system prompt."""
    return REFLECTOR_PROMPT + (SPECIFICATION_NOTE if tools else "")


def repair_message(problem: str) -> str:
    """Return the request to repeat an unreadable answer."""
    return f"Your answer cannot be used: {problem}. Answer again with one JSON object of the form above, nothing else."


def lessons_text(reflections: Iterable[Reflection]) -> str:
    """Return reflections as the text that the agent reads at the end of its prompt in a later trial."""
    lines = [
        f"- {reflection.text}"
        if reflection.kind == "macro"
        else f"- {reflection.operation} {reflection.resource_type}: {reflection.text}"
        for reflection in reflections
    ]
    return "\n".join([LESSONS_HEADING, *lines])


def _run(rollout: Rollout, run_chars: int) -> str:
    turns = [_turn(number, turn) for number, turn in enumerate(rollout.turns, start=1)]
    turns += map(_lookup, rollout.final_lookups)
    head = f"Task ({rollout.task.title}):\n{rollout.prompt}\n\nRun of the agent (at most {rollout.max_steps} actions):"
    return "\n\n".join([head, *_fitting(turns, run_chars)])


def _turn(number: int, turn: Turn) -> str:
    action, result = _shortened(_as_made(turn), _MAX_ACTION), _shortened(turn.read, _MAX_OBSERVATION)
    return "\n\n".join([*map(_lookup, turn.lookups), f"Action {number}:\n{action}\nResult {number}:\n{result}"])


def _lookup(lookup: Lookup) -> str:
    call = _shortened(f"{lookup.tool}({lookup.arguments})", _MAX_ACTION)
    return f"Look-up:\n{call}\nResult:\n{_shortened(lookup.result, _MAX_OBSERVATION)}"


def _as_made(turn: Turn) -> str:
    """Return an action as the agent made it: a tool call is written as the name of the tool and its arguments."""
    if turn.tool is None:
        return turn.action
    action = GRAMMAR.parse(turn.action)
    call = None if turn.error is not None or isinstance(action, Invalid) else GRAMMAR.to_tool_call(action)
    if call is None:  # an invalid call, of which the record keeps the text
        return turn.text or turn.action
    name, arguments = call
    said = f"{turn.text}\n" if turn.text else ""
    return f"{said}{name}({json.dumps(arguments, ensure_ascii=False)})"


def _outcome(rollout: Rollout) -> str:
    ended = {
        "step_limit": " The agent reached the limit of actions.",
        "context_limit": " The conversation was too long.",
    }
    explanation = rollout.verdict.explanation if rollout.verdict else "There is no verdict."
    return f"Automatic check:\n{_shortened(explanation, _MAX_OBSERVATION)}{ended.get(rollout.stop_reason, '')}"


def _fitting(turns: Sequence[str], limit: int) -> list[str]:
    """Return the first and the last turns that fit together; a note replaces the turns between them."""
    kept = list(turns)
    left_out = 0
    while len(kept) > 2 and sum(map(len, kept)) > limit:
        del kept[len(kept) // 2]
        left_out += 1
    if left_out:
        kept.insert((len(kept) + 1) // 2, f"({left_out} turns in the middle are left out.)")
    return kept


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit} more characters)"


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
