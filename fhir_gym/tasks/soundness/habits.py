"""Agents with a habit: they follow the reference solution, but for one thing they always get wrong.

Each takes what it finds and stays consistent: it acts on the wrong record as the solution acts on the right one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl

import orjson

from fhir_gym.actions import Action, Finish, Get, Put
from fhir_gym.fhir.messages import Response
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.soundness.answers import none_of
from fhir_gym.tasks.soundness.arena import Policy, script
from fhir_gym.tasks.soundness.recording import Recording, with_ids
from fhir_gym.tasks.task import Fhir, Gold, Task
from fhir_gym.types import Resource

__all__ = ["habits"]

_LOST = (RuntimeError, LookupError, TypeError)
"""What a reference solution raises when it does not find what it looks for."""
_ID = re.compile(r"[A-Za-z0-9\-.]{2,64}")
_MOST_TARGETS, _MOST_DECOYS = 4, 12

Change = Callable[[int, Action], Action]
See = Callable[[Action, Response], Response]


def habits(task: Task[Any], params: Params, gold: Recording) -> Iterator[Policy]:
    """All of them.

    Args:
        task: The task.
        params: The variation.
        gold: Its reference solution's episode.
    """
    yield Policy("says none", "looks up, then says none", script([*gold.reads, Finish(none_of(task.answer))]))
    yield from _hasty_searches(task, params, gold)
    yield from _first_hits(task, params, gold)
    yield from _ignoring_decoys(task, params, gold)


def _living(
    task: Task[Any], params: Params, change: Change, see: See = lambda action, response: response
) -> Callable[[Fhir], Gold]:
    """The reference solution, alive, with its actions changed and the answers seen with other eyes.

    Where it no longer finds what it needs it says that there is nothing.
    """

    def play(fhir: Fhir) -> Gold:
        eyes = Fhir()
        steps = task.gold(params, eyes)
        action = next(steps)
        for number in range(task.gold_steps):
            sent = change(number, action)
            yield sent
            if fhir.last is not None:
                eyes.last = see(sent, fhir.last)
            try:
                action = steps.send(eyes.json())
            except StopIteration:
                return
            except _LOST:
                yield Finish(none_of(task.answer))
                return

    return play


def _hasty_searches(task: Task[Any], params: Params, gold: Recording) -> Iterator[Policy]:
    """One condition of one search is left out."""
    for index, step in enumerate(gold.steps):
        path, mark, query = step.action.url.partition("?")
        for name, _ in parse_qsl(query) if step.action.kind == "GET" and mark else ():

            def change(number: int, action: Action, index: int = index, dropped: str = name) -> Action:
                return _keeping(action, lambda other: other != dropped) if number == index else action

            yield Policy("hasty search", f"{path} without {name}", _living(task, params, change))


def _first_hits(task: Task[Any], params: Params, gold: Recording) -> Iterator[Policy]:
    """Each search has one of its conditions only, and its first hit is taken."""
    searches = [parse_qsl(step.action.url.partition("?")[2]) for step in gold.steps if "?" in step.action.url]
    for position in range(max((len(pairs) for pairs in searches), default=0)):

        def change(number: int, action: Action, position: int = position) -> Action:
            names = [name for name, _ in parse_qsl(action.url.partition("?")[2]) if not name.startswith("_")]
            if action.kind != "GET" or not names:
                return action
            kept = names[position % len(names)]
            return _keeping(action, lambda name: name == kept)

        yield Policy("first hit", f"by condition {position}", _living(task, params, change, _first_entry))


def _keeping(action: Action, wanted: Callable[[str], bool]) -> Action:
    path, mark, query = action.url.partition("?")
    return Get(path, [(name, value) for name, value in parse_qsl(query) if wanted(name)]) if mark else action


def _first_entry(action: Action, response: Response) -> Response:
    """A search's answer with its first match only."""
    if action.kind != "GET" or "?" not in action.url or response.status != 200:
        return response
    bundle = orjson.loads(response.body)
    return Response(response.status, response.headers, orjson.dumps({**bundle, "entry": bundle.get("entry", [])[:1]}))


def _ignoring_decoys(task: Task[Any], params: Params, gold: Recording) -> Iterator[Policy]:
    """A decoy is taken for the record it resembles: from when that is found, or in one update alone."""
    for target in _targets(gold):
        kind, id = target["resourceType"], target["id"]
        good = task.as_good(params)
        kin = [one for one in gold.kin(kind, but=id) if f"{kind}/{one['id']}" not in good]
        for decoy in kin[:_MOST_DECOYS]:

            def change(number: int, action: Action, target: Resource = target, decoy: Resource = decoy) -> Action:
                if action.kind == "PUT" and action.url.strip("/") == f"{target['resourceType']}/{target['id']}":
                    return _applied(orjson.loads(action.body or "{}"), target, decoy)
                return with_ids(action, {target["id"]: decoy["id"]})

            name = f"{kind}/{decoy['id']} taken for {id}"
            yield Policy("ignores decoys", name, _living(task, params, change))
    for index, step in enumerate(gold.steps):
        if step.before is None:
            continue
        kind, id = step.before["resourceType"], step.before["id"]
        for decoy in gold.kin(kind, but=id)[:_MOST_DECOYS]:
            actions = gold.actions
            actions[index] = _applied(step.body, step.before, decoy)
            name = f"PUT {kind}/{decoy['id']} instead"
            yield Policy("ignores decoys", name, script([*actions, Finish(gold.answer)]), deserves="fail")


def _targets(gold: Recording) -> list[Resource]:
    """The prepared resources that the reference solution acts on or answers, a few of each type."""
    texts = [step.action.text() for step in gold.steps] + [Finish(gold.answer).text()]
    known = {id for text in texts for id in _ID.findall(text)}
    found: dict[str, list[Resource]] = {}
    for one in gold.setup:
        if one["id"] in known:
            found.setdefault(one["resourceType"], []).append(one)
    return [one for some in found.values() for one in some[:_MOST_TARGETS]]


def _applied(body: Resource, target: Resource, decoy: Resource) -> Action:
    """An update of the target, made on the decoy."""
    own = ("id", "meta", "resourceType")
    change = {name: value for name, value in body.items() if target.get(name) != value and name not in own}
    kept = {name: value for name, value in decoy.items() if name in body or name not in target}
    return Put(f"/{decoy['resourceType']}/{decoy['id']}", {**kept, **change})
