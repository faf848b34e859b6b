"""A policy for the scripted chat server that follows the reference solutions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fhir_gym import tasks
from fhir_gym.actions import GRAMMAR, Action, Finish
from fhir_gym.episode import read_response
from fhir_gym.errors import FhirGymError
from fhir_gym.fhir import World
from fhir_gym.tasks import LatestResponse, Params, Task
from fhir_gym.testing.chat_server import ScriptedReply, offers_actions


class GoldOverChat:
    """A policy for `ChatServer` that solves tasks with tool calls if the request offers tools, otherwise with text.

    The policy tests the path between a model and an episode. Unlike a model, the policy knows the announced tasks and
    variations, and recognises them by their prompts. It then follows the reference solution, which reads the server's
    responses from the messages. Lookups in the conversation, which a policy around this one may have made, are skipped.

    Args:
        world: The world of the tasks.
        episodes: Env id, task and variation of each announced episode.

    Raises:
        FhirGymError: Two announced episodes have the same prompt but different parameters.
    """

    def __init__(self, world: World, episodes: Iterable[tuple[str, str, int]]) -> None:
        self._known: dict[str, tuple[Task[Any], Params]] = {}
        for env_id, key, number in episodes:
            task = tasks.get_task(env_id, key)
            variation = task.variation(number, world)
            known = self._known.setdefault(variation.prompt, (task, variation.params))
            if known != (task, variation.params):
                raise FhirGymError(f"{env_id}, task {key}, variation {number} has the same prompt as another episode")

    def __call__(self, request: Mapping[str, Any]) -> ScriptedReply | str:
        """Return the next action of the solution."""
        messages = [message for message in request["messages"] if message["role"] != "system"]
        action = self._next(messages[0]["content"], _without_lookups(messages[1:]))
        if not offers_actions(request):
            return action.text()
        call = GRAMMAR.to_tool_call(action)
        return f"No tool call is equivalent to {action.text()}" if call is None else ScriptedReply(calls=[call])

    def _next(self, task_text: str, later: Iterable[Mapping[str, Any]]) -> Action:
        known = next((self._known[prompt] for prompt in _beginnings(task_text) if prompt in self._known), None)
        if known is None:
            raise FhirGymError(f"no announced task has this prompt: {task_text[:200]!r}")
        task, params = known
        fhir = LatestResponse()
        solution = task.gold(params, fhir)
        try:
            action = next(solution)
            for message in later:
                if message["role"] != "assistant":
                    fhir.last = read_response(message["content"])
                    action = solution.send(fhir.json())
        except StopIteration:
            return Finish()
        return action


def _without_lookups(messages: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the messages except the results of calls to tool sources."""
    lookups: set[str] = set()
    for message in messages:
        calls = message.get("tool_calls") or ()
        lookups |= {call["id"] for call in calls if call["function"]["name"] not in GRAMMAR.tool_names}
        if message.get("tool_call_id") not in lookups:
            yield message


def _beginnings(text: str) -> Iterator[str]:
    """Yield the text before each empty line, then the complete text."""
    at = text.find("\n\n")
    while at >= 0:
        yield text[:at]
        at = text.find("\n\n", at + 1)
    yield text
