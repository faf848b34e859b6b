"""Careless policies for live tasks: they act in batches, or close Tasks early, to avoid what other people do.

They follow the reference solution, which works on FHIR Tasks: it sets each to ``in-progress``, and closes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from fhir_gym.actions import Action, Finish, Get, Patch, Put
from fhir_gym.soundness.near_misses import batch
from fhir_gym.soundness.policy_runner import Policy, PolicyRun, Script, script
from fhir_gym.soundness.recording import GoldRecording
from fhir_gym.tasks.core.params import Params
from fhir_gym.tasks.core.task import Gold, LatestResponse, Task
from fhir_gym.types import Json, Resource

_OPEN = ("requested", "in-progress")
_CLOSED = ("completed", "rejected")
_CLOSING = ("status", "businessStatus", "output")
_DONE: Resource = {"status": "completed", "businessStatus": {"text": "done"}}

Replace = Callable[[Action, Resource, dict[str, Resource]], tuple[Action, Resource | None]]
"""Function of an update of a Task, its body, and the bodies with which Tasks were begun.

It returns the action to send instead, and what the reference solution reads instead of the response (None for the
response).
"""


def live_policies(task: Task[Any], params: Params, run: PolicyRun, gold: GoldRecording) -> Iterator[Policy]:
    """Yield policies that act in batches or close Tasks early.

    Args:
        task: The task.
        params: Parameters of the variation.
        run: The reference episode.
        gold: Its recording.
    """
    if not any(_updates_task(step.action) and step.body["status"] == "in-progress" for step in gold.steps):
        return
    yield Policy("acts in batches", "begins and closes in one Bundle", _following(task, params, _begin_at_the_end))
    yield Policy("closes early", "closes at once, works later", _following(task, params, _close_at_once))
    if _others_wrote_tasks(run):
        yield Policy("acts in batches", "begins and stops in one Bundle", _following(task, params, _begin_and_stop))
        yield Policy("closes early", "closes and reopens", _following(task, params, _close_and_reopen))
    yield from _writing_beside_a_look(gold)
    yield from _finishing_late(run, gold)


def _following(task: Task[Any], params: Params, change: Replace) -> Callable[[LatestResponse], Gold]:
    """Return a policy that follows the reference solution, with other updates of Tasks."""

    def play(fhir: LatestResponse) -> Gold:
        steps = task.gold(params, LatestResponse())
        begun: dict[str, Resource] = {}
        answer: Json
        action = next(steps, None)
        while action is not None:
            sent, answer = action, None
            if _updates_task(action):
                body = json.loads(action.body or "{}")
                if body["status"] == "in-progress":
                    begun[body["id"]] = body
                sent, told = change(action, body, begun)
                answer = told and told | {"meta": {"versionId": "1"}}
            yield sent
            try:
                action = steps.send(fhir.json() if answer is None else answer)
            except StopIteration:
                action = None

    return play


def _begin_at_the_end(action: Action, body: Resource, _: dict[str, Resource]) -> tuple[Action, Resource | None]:
    """Set a Task to in-progress and close it in one batch."""
    if body["status"] == "in-progress":
        return Get(action.url), body
    return (batch(_put(body | {"status": "in-progress"}), _put(body)), body) if _closes(body) else (action, None)


def _begin_and_stop(action: Action, body: Resource, begun: dict[str, Resource]) -> tuple[Action, Resource | None]:
    """Set a Task to in-progress and to another status in one batch; close it as it was then."""
    if body["status"] == "in-progress":
        return batch(_put(body), _put(body | {"status": "accepted"})), body
    return _as_begun(body, begun), body


def _close_at_once(action: Action, body: Resource, _: dict[str, Resource]) -> tuple[Action, Resource | None]:
    """Close a Task as done in the batch that begins it, and again only if something else is to be reported."""
    if body["status"] == "in-progress":
        return batch(_put(body), _put(body | _DONE)), body
    is_closed = body["status"] == "completed" and "output" not in body
    return (Get(action.url) if is_closed else _put(body)), body


def _close_and_reopen(action: Action, body: Resource, begun: dict[str, Resource]) -> tuple[Action, Resource | None]:
    """Close a Task in the batch that begins it, and reopen it in the batch that closes it, as it was then."""
    if body["status"] == "in-progress":
        return batch(_put(body), _put(body | _DONE)), body
    closing = _as_begun(body, begun)
    return (batch(_put(begun.get(body["id"], body)), closing) if _closes(body) else closing), body


def _as_begun(body: Resource, begun: dict[str, Resource]) -> Action:
    """Return the update of a Task that drops what other people have added since it was begun."""
    return _put(begun.get(body["id"], body) | {name: body[name] for name in _CLOSING if name in body})


def _writing_beside_a_look(gold: GoldRecording) -> Iterator[Policy]:
    """Yield policies that change a record in the batch with a look at an empty worklist, before more work comes."""
    idle, open_tasks = [], set[str]()
    for number, step in enumerate(gold.steps):
        if step.action.kind == "GET" and step.action.url.startswith("/Task?"):
            if number and not open_tasks:
                idle.append(number)
            entries = step.answer.get("entry", []) if isinstance(step.answer, dict) else []
            tasks = [one["resource"] for one in entries if one["resource"]["resourceType"] == "Task"]
            open_tasks = {one["id"] for one in tasks if one["status"] in _OPEN}
        elif _updates_task(step.action) and not step.refused and step.body["status"] not in _OPEN:
            open_tasks.discard(step.body["id"])
    for number in idle[:1] if len(idle) > 1 else ():
        for kind, id in list(gold.residents.items())[:1]:
            actions = gold.actions
            actions[number] = batch(Patch(f"/{kind}/{id}", _in_french(kind)), actions[number])
            yield Policy("acts in batches", f"changes a {kind} beside a look", _finished(actions, gold))


def _in_french(resource_type: str) -> Resource:
    """Return a FHIRPath Patch that sets the language of a record."""
    values = {"valueCode": "add"}, {"valueString": resource_type}, {"valueString": "language"}, {"valueCode": "fr"}
    parts = [{"name": name} | value for name, value in zip(("type", "path", "name", "value"), values, strict=True)]
    return {"resourceType": "Parameters", "parameter": [{"name": "operation", "part": parts}]}


def _finishing_late(run: PolicyRun, gold: GoldRecording) -> Iterator[Policy]:
    """Yield policies that close a Task in time before their last update for it, which they send at the end."""
    end = run.end.timeline[-1].at
    in_progress: dict[str, None] = {}
    writes: list[int] = []
    for number, step in enumerate(gold.steps):
        if not step.writes or step.refused:
            continue
        if not _updates_task(step.action):
            writes.append(number)
        elif step.body["status"] == "in-progress":
            in_progress.setdefault(step.body["id"])
        else:
            # Work on a Task that began earlier may have been interrupted, so the writes may be for that one.
            is_first = next(iter(in_progress), "") == step.body["id"]
            in_progress.pop(step.body["id"], None)
            *others, last = writes or [number]
            writes = []
            due = datetime.fromisoformat(step.body["restriction"]["period"]["end"])
            if is_first and others and _closes(step.body) and gold.steps[last].action.kind == "PUT" and due < end:
                actions = [*gold.actions[:last], *gold.actions[last + 1 :], gold.steps[last].action]
                yield Policy("closes early", f"{step.action.url}, and updates later", _finished(actions, gold))


def _others_wrote_tasks(run: PolicyRun) -> bool:
    """Whether other people wrote a Task after the agent had begun it."""
    begun: set[str] = set()
    for timed in run.end.timeline:
        action = timed.logged.action
        if timed.event and action.url in begun and '"note"' in (action.body or ""):
            return True
        if not timed.event and _updates_task(action):
            begun.add(action.url)
    return False


def _updates_task(action: Action) -> bool:
    return action.kind == "PUT" and action.url.startswith("/Task/")


def _closes(body: Resource) -> bool:
    return body["status"] in _CLOSED


def _put(body: Resource) -> Action:
    return Put(f"/{body['resourceType']}/{body['id']}", body)


def _finished(actions: Sequence[Action], gold: GoldRecording) -> Script:
    return script([*actions, Finish(gold.answer)])
