"""A simulated model for dry runs of experiments, which makes deterministic mistakes."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from fhir_gym.actions import GRAMMAR, Action, Delete, Finish, Get, Post, Put
from fhir_gym.errors import FhirGymError
from fhir_gym.fhir import World
from fhir_gym.fhir.definitions import RESOURCE_TYPES
from fhir_gym.observations import read_response
from fhir_gym.tasks import LatestResponse, Params, Task, get_task
from fhir_gym.testing.servers import ScriptedReply
from fhir_gym.types import Wording

Call = tuple[str, dict[str, Any]]
"""Name and arguments of a call of a tool that looks something up."""
Moves = Generator[Action | Call, str, None]
"""The moves of the simulated model in an episode; it receives the result of each move."""

_DRAWS = 2**32
_RESOURCE = re.compile(r'"resourceType": ?"([A-Z][A-Za-z]+)"|(?:GET|POST|PUT|DELETE) /([A-Z][A-Za-z]+)')
_TYPES = frozenset(RESOURCE_TYPES) - {"Bundle", "OperationOutcome"}
_MEMORY_TOOLS = ("getMacroReflections", "getMicroReflections")
_SPECIFICATION_TOOLS = ("getStructureDefinition", "getSearchParams")
_GROUNDED = "according to FHIR R4"
"""Words in the reflections of a reflector that has read the specification."""


@dataclass(frozen=True, slots=True)
class _KnownEpisode:
    """An episode that the simulated model recognises by its prompt."""

    env_id: str
    task: Task[Any]
    variation: int
    prompt: str
    params: Params = field(compare=False)

    def draw(self, *parts: object) -> float:
        """Return a number from 0 to 1 that only this task and these parts determine."""
        text = "/".join(map(str, (self.env_id, self.task.key, *parts)))
        return crc32(text.encode()) / _DRAWS


@dataclass(slots=True)
class _Knowledge:
    """What the simulated model has read in an episode.

    Attributes:
        memory: Whether the model has read reflections.
        grounded: Whether these reflections refer to the specification.
        specification: Whether the model has read the specification.
    """

    memory: bool = False
    grounded: bool = False
    specification: bool = False

    def read(self, tool: str, result: str) -> None:
        """Take note of the result of a lookup."""
        if tool in _MEMORY_TOOLS and result.startswith("1."):
            self.memory = True
            self.grounded |= _GROUNDED in result
        if tool in _SPECIFICATION_TOOLS and not result.startswith("Error:"):
            self.specification = True

    @property
    def failure_shift(self) -> float:
        """What the knowledge adds to the log-odds of a failure."""
        return -1.1 * self.memory - 0.4 * self.grounded - 0.15 * self.specification

    @property
    def slip_rate(self) -> float:
        """Probability of a wrong request before a right one."""
        return 0.3 * (0.45 if self.memory else 1.0) * (0.6 if self.specification else 1.0)


class StudyModel:
    """A policy for `ChatServer` that behaves like an agent, an evaluator or a reflector, depending on the request.

    As an agent, the policy plays reference solutions with mistakes: wrong requests that it corrects, and failures of
    several kinds, such as another resource type, a missing or prohibited request, or a wrong answer. The task, the
    variation and the request's sampling seed determine the mistakes. They become rarer after the policy has read
    reflections or FHIR definitions with its tools. As an evaluator and a reflector, it replies with plausible JSON.

    Args:
        worlds: The world of each pack, by env id.
        episodes: Env id, task, variation and wording of each episode.

    Raises:
        FhirGymError: Two episodes have the same prompt but different parameters.
    """

    def __init__(self, worlds: Mapping[str, World], episodes: Iterable[tuple[str, str, int, Wording]]) -> None:
        self._known: dict[str, _KnownEpisode] = {}
        for env_id, key, number, phrasing in episodes:
            task = get_task(env_id, key)
            variation = task.variation(number, worlds[env_id], phrasing)
            episode = _KnownEpisode(env_id, task, number, variation.prompt, variation.params)
            other = self._known.setdefault(variation.prompt, episode)
            if other.task is not task or other.params != variation.params:
                raise FhirGymError(f"{env_id}, task {key}, variation {number} has the same prompt as another episode")

    def __call__(self, request: Mapping[str, Any]) -> ScriptedReply | str:
        """Return the next reply."""
        messages = request["messages"]
        user = next(str(message["content"]) for message in messages if message["role"] == "user")
        tools = [tool["function"]["name"] for tool in request.get("tools") or ()]
        episode = next((self._known[text] for text in _prefixes(user) if text in self._known), None)
        system = str(messages[0]["content"]) if messages[0]["role"] == "system" else ""
        if "execution_quality" in system:
            return _critique(user)
        if "micro" in system and "macro" in system:
            return _reflection(user, messages, tools)
        if episode is None:
            raise FhirGymError(f"no announced episode has this prompt: {user[:200]!r}")
        move = _next_move(_moves(episode, request.get("seed") or 0, tools), messages)
        if isinstance(move, tuple):
            return ScriptedReply(f"I look up {move[0]} first.", calls=[move])
        if "finish" not in tools:
            return move.text()
        call = GRAMMAR.to_tool_call(move)
        return f"No tool call is equivalent to {move.text()}" if call is None else ScriptedReply(calls=[call])


def _critique(run: str) -> str:
    """Return an evaluator's reply to the text of a run."""
    errors = len(re.findall(r"HTTP 4\d\d|Invalid action", run))
    quality = max(1, 5 - errors)
    modes = ["requests that the server refused"] if errors else []
    critique = (
        f"The server refused {errors} requests; the agent should check parameters and bodies before it sends them."
        if errors
        else "Every request was accepted; the agent should check its answer against the request before it finishes."
    )
    reply = {"execution_quality": quality, "constraint_adherence": 4, "failure_modes": modes, "critique": critique}
    return json.dumps(reply)


def _reflection(run: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[str]) -> ScriptedReply | str:
    """Return a reflector's reply to the text of a run; look up a definition first if the request offers that."""
    counts = Counter(
        named_type or other for named_type, other in _RESOURCE.findall(run) if (named_type or other) in _TYPES
    )
    names = sorted(counts, key=lambda name: (-counts[name], name))[:2] or ["Patient"]
    looked_up = any(message["role"] == "tool" for message in messages)
    if "getStructureDefinition" in tools and not looked_up:
        return ScriptedReply(calls=[("getStructureDefinition", {"resourceType": names[0]})])
    basis = f", {_GROUNDED}" if looked_up else ""
    lessons = [
        ("search", "Search {} only by parameters that the server supports{}, and read all pages of the result."),
        ("create", "Send a complete {} with its own resourceType and all references{}."),
    ]
    micro = [
        {"resource_type": name, "operation": operation, "lesson": lesson.format(name, basis)}
        for name in names
        for operation, lesson in lessons
    ]
    plan = f"Find the {' and '.join(names)} records first{basis}, then write, then answer with the requested ids."
    return json.dumps({"micro": micro, "macro": [{"lesson": plan}]})


def _prefixes(text: str) -> Iterator[str]:
    """Yield the complete text, then the text before each empty line, the longest first."""
    yield text
    at = text.rfind("\n\n")
    while at >= 0:
        yield text[:at]
        at = text.rfind("\n\n", 0, at)


def _next_move(moves: Moves, messages: Sequence[Mapping[str, Any]]) -> Action | Call:
    """Replay the moves against the results in the messages, and return the next move."""
    move = next(moves)
    start = next(place for place, message in enumerate(messages) if message["role"] == "user")
    for message in messages[start + 1 :]:
        if message["role"] != "assistant":
            try:
                move = moves.send(str(message["content"]))
            except StopIteration:
                return Finish([])
    return move


def _moves(episode: _KnownEpisode, seed: int, tools: Sequence[str]) -> Moves:
    knowledge = yield from _lookups(episode, seed, tools)
    if episode.draw(episode.variation, seed, "fails") >= _failure_rate(episode, knowledge):
        yield from _solve(episode, seed, knowledge)
        return
    kinds = _FAILURES if episode.task.kind == "action" else _QUERY_FAILURES
    kind = kinds[int(episode.draw(episode.variation, seed, "how") * len(kinds))]
    yield from kind(episode, seed, knowledge)


def _lookups(episode: _KnownEpisode, seed: int, tools: Sequence[str]) -> Generator[Call, str, _Knowledge]:
    """Call the lookup tools that are offered, most of the time."""
    knowledge = _Knowledge()
    resource = _main_resource(episode)
    operation = "create" if episode.task.kind == "action" else "search"
    calls: tuple[Call, ...] = (
        ("getMacroReflections", {"task": episode.prompt}),
        ("getMicroReflections", {"resourceType": resource, "operation": operation}),
        ("getSearchParams", {"resourceType": resource}),
        ("getStructureDefinition", {"resourceType": resource}),
    )
    for name, arguments in calls:
        if name in tools and episode.draw(episode.variation, seed, name) < 0.8:
            result = yield name, arguments
            knowledge.read(name, result)
    return knowledge


def _failure_rate(episode: _KnownEpisode, knowledge: _Knowledge) -> float:
    """Return the probability of a failure: tasks differ most, variations less."""
    odds = -0.9 + 0.5 * episode.task.difficulty + 4.0 * (episode.draw("task") - 0.5)
    odds += 2.0 * (episode.draw(episode.variation, "variation") - 0.5) + knowledge.failure_shift
    return 1 / (1 + math.exp(-odds))


def _solve(episode: _KnownEpisode, seed: int, knowledge: _Knowledge, most: int | None = None) -> Moves:
    """Follow the reference solution, with wrong requests before right ones; stop before a number of actions."""
    fhir = LatestResponse()
    solution = episode.task.gold(episode.params)
    try:
        action = next(solution)
        number = 0
        while most is None or number < most:
            if action.kind != "FINISH" and episode.draw(episode.variation, seed, "slip", number) < knowledge.slip_rate:
                yield _slip(action)
            fhir.last = read_response((yield action))
            action = solution.send(fhir.json())
            number += 1
    except StopIteration:
        pass


def _slip(action: Action) -> Action:
    """Return a request that the server refuses, for the same resource type as the action."""
    resource = action.url.lstrip("/").partition("?")[0].partition("/")[0] or "Patient"
    if action.kind == "GET":
        return Get(f"/{resource}", {"fullname": "unknown"})
    other = "Patient" if resource != "Patient" else "Practitioner"
    return Post(f"/{resource}", {"resourceType": other})


def _wrong_resource(episode: _KnownEpisode, seed: int, knowledge: _Knowledge) -> Moves:
    """Search another resource type and answer with its ids."""
    resource = "Encounter" if _main_resource(episode) != "Encounter" else "Observation"
    yield _slip(Get(f"/{resource}"))
    result = yield Get(f"/{resource}", {"_count": "2"})
    yield Finish(_ids(result))


def _missing_action(episode: _KnownEpisode, seed: int, knowledge: _Knowledge) -> Moves:
    """Stop before the last request of the solution."""
    yield from _solve(episode, seed, knowledge, most=max(0, _length(episode) - 1))
    yield Finish([])


def _wrong_order(episode: _KnownEpisode, seed: int, knowledge: _Knowledge) -> Moves:
    """Use the tools of a solution in the opposite order, with incomplete requests."""
    tools = max(episode.task.required_tools, key=lambda required_tool: len(set(required_tool)), default=())
    if len(set(tools)) < 2:
        yield from _wrong_resource(episode, seed, knowledge)
        return
    url = f"/{_main_resource(episode)}"
    resource = {"resourceType": _main_resource(episode)}
    requests = {
        "create": Post(url, resource),
        "read": Get(f"{url}/0"),
        "update": Put(f"{url}/0", {**resource, "id": "0"}),
        "delete": Delete(f"{url}/0"),
    }
    for tool in reversed(tools):
        yield requests.get(tool, Get(url, {"_count": "1"}))
    yield Finish([])


def _prohibited(episode: _KnownEpisode, seed: int, knowledge: _Knowledge) -> Moves:
    """Delete a resource that the task does not mention, then solve the task."""
    result = yield Get(f"/{_main_resource(episode)}", {"_count": "1"})
    ids = _ids(result)
    if ids:
        yield Delete(f"/{ids[0]}")
    yield from _solve(episode, seed, knowledge)


def _wrong_answer(episode: _KnownEpisode, seed: int, knowledge: _Knowledge) -> Moves:
    """Follow the solution, but finish with another answer."""
    yield from _solve(episode, seed, knowledge, most=_length(episode))
    yield Finish([f"{_main_resource(episode)}/0"])


def _gives_up(episode: _KnownEpisode, seed: int, knowledge: _Knowledge) -> Moves:
    """Repeat wrong requests, then give up."""
    for _ in range(2 + int(episode.draw(episode.variation, seed, "patience") * 4)):
        yield _slip(Get(f"/{_main_resource(episode)}"))
    yield Finish([])


def _loops(episode: _KnownEpisode, seed: int, knowledge: _Knowledge) -> Moves:
    """Repeat a search until the step limit."""
    while True:
        yield Get(f"/{_main_resource(episode)}", {"_count": "3"})


_QUERY_FAILURES = (_wrong_resource, _missing_action, _wrong_answer, _prohibited, _gives_up, _loops)
_FAILURES = (_wrong_order, *_QUERY_FAILURES)


def _length(episode: _KnownEpisode) -> int:
    """Return the number of requests that a solution needs."""
    return min(
        (len(required_tool) for required_tool in episode.task.required_tools), default=episode.task.gold_steps - 1
    )


def _main_resource(episode: _KnownEpisode) -> str:
    return (episode.task.required_resources or ("Patient",))[-1]


def _ids(result: str) -> list[str]:
    """Return the references of the resources in a response."""
    try:
        body = json.loads(result[result.index("{") :])
    except ValueError:
        return []
    resources = [entry.get("resource") for entry in body.get("entry") or ()] if isinstance(body, dict) else []
    return [
        f"{resource['resourceType']}/{resource['id']}"
        for resource in resources
        if isinstance(resource, dict) and "id" in resource
    ]
