"""Policies that come close to the reference solution and must fail, made from it automatically."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl

from fhir_gym.actions import Action, Delete, Finish, Get, Patch, Post, Put
from fhir_gym.tasks.ids import id_number
from fhir_gym.tasks.soundness.arena import Policy, script
from fhir_gym.tasks.soundness.recording import Recording, Step, rebody, with_ids
from fhir_gym.tasks.soundness.values import leaves, path_name, removed, replaced, wrong_values
from fhir_gym.tasks.task import Task
from fhir_gym.types import Json, Resource

__all__ = ["near_misses"]

_EXTRA: Resource = {"resourceType": "Basic", "code": {"text": "Something nobody asked for"}}
_NOBODY = "nobody-0"


def near_misses(task: Task[Any], gold: Recording, must_look: bool) -> Iterator[Policy]:
    """All of them.

    Args:
        task: The task.
        gold: Its reference solution's episode.
        must_look: Whether the right answer is that there is nothing.
    """
    yield from _wrong_answers(gold)
    yield from _wrong_bodies(task, gold)
    yield from _wrong_targets(gold)
    yield from _wrong_writes(gold)
    yield from _collateral(task, gold)
    yield from _prohibited(task, gold)
    yield from _no_look(task, gold, must_look)


def _miss(name: str, actions: list[Action]) -> Policy:
    return Policy("near miss", name, script(actions))


def _finished(gold: Recording, actions: list[Action]) -> list[Action]:
    return [*actions, Finish(gold.answer)]


def _wrong_answers(gold: Recording) -> Iterator[Policy]:
    """Everything done right, another answer given."""
    answers: list[tuple[str, list[Json]]] = []
    others = [id for ids in gold.ids.values() for id in ids]
    for position, right in enumerate(gold.answer):
        head, tail = gold.answer[:position], gold.answer[position + 1 :]
        answers += [
            (f"answer {position}: another id {other}", [*head, other, *tail]) for other in others if other != right
        ]
        answers.append((f"answer {position} missing", [*head, *tail]))
        answers.append((f"answer {position} empty", [*head, None, *tail]))
        if (number := id_number(right)) is not None:
            following = str(right).replace(str(number), str(number + 1))
            answers.append((f"answer {position}: the following id", [*head, following, *tail]))
    answers.append(("answer with one item more", [*gold.answer, others[0] if others else _NOBODY]))
    answers.append(("answer repeated", [*gold.answer, *(gold.answer or [None])]))
    if gold.answer != gold.answer[::-1]:
        answers.append(("answer in reverse", gold.answer[::-1]))
    yield Policy("near miss", "no answer at all", script(gold.actions), answers=tuple(answers))


def _wrong_bodies(task: Task[Any], gold: Recording) -> Iterator[Policy]:
    """One element of one body wrong, missing, or joined by a wrong one."""
    for index, step in enumerate(gold.steps):
        if not step.writes or not isinstance(step.body, dict):
            continue
        kind = step.body["resourceType"]
        for what, body in _mutations(task, gold, kind, step.body):
            actions = gold.actions
            actions[index] = rebody(step.action, body)
            yield _miss(f"{step.action.kind} {kind}: {what}", _finished(gold, actions))


def _mutations(task: Task[Any], gold: Recording, kind: str, body: Resource) -> Iterator[tuple[str, Resource]]:
    neighbours = gold.kin(kind, but=body.get("id", ""))
    asked = [(path, value) for path, value in leaves(body) if path_name(kind, path) not in task.unasked]
    for path, value in asked:
        name = ".".join(map(str, path))
        yield f"{name} missing", removed(body, path)
        for wrong in wrong_values(kind, path, value, gold.ids, neighbours):
            yield f"{name} = {wrong!r}", replaced(body, path, wrong)
    for name in dict.fromkeys(str(path[0]) for path, _ in asked):
        yield f"{name} missing altogether", {key: item for key, item in body.items() if key != name}
        if isinstance(body[name], list):
            added = _all_wrong(kind, body, name, gold, neighbours)
            if added is not None:
                yield f"{name} with a wrong item more", {**body, name: [*body[name], added]}


def _all_wrong(kind: str, body: Resource, name: str, gold: Recording, neighbours: list[Resource]) -> Json:
    """A copy of a list's first item in which every value that can be is another; None if none can."""
    changed = {**body, name: [copy.deepcopy(body[name][0])]}
    touched = False
    for path, value in list(leaves({name: changed[name]})):
        wrong = wrong_values(kind, path, value, gold.ids, neighbours)
        if wrong and path[-1] not in ("system", "use", "status"):
            changed, touched = replaced(changed, path, wrong[0]), True
    return changed[name][0] if touched else None


def _wrong_targets(gold: Recording) -> Iterator[Policy]:
    """A decoy taken for a resource the solution changes or refers to: everywhere, and in each request alone."""
    for index, step in enumerate(gold.steps):
        if step.before is None:
            continue
        kind, id = step.before["resourceType"], step.before["id"]
        for decoy in gold.kin(kind, but=id):
            actions = gold.actions
            actions[index] = _applied_to(decoy, step)
            yield _miss(f"PUT {kind}/{decoy['id']} instead", _finished(gold, actions))
            consistent = [with_ids(action, {id: decoy["id"]}) for action in actions]
            consistent[index] = actions[index]
            answer = with_ids(Finish(gold.answer), {id: decoy["id"]})
            yield _miss(f"{kind}/{decoy['id']} taken for the right one", [*consistent, answer])


def _applied_to(decoy: Resource, step: Step) -> Action:
    """The update of a step, made on another resource."""
    before = step.before or {}
    change = {name: value for name, value in step.body.items() if before.get(name) != value and name != "meta"}
    return Put(f"/{decoy['resourceType']}/{decoy['id']}", {**decoy, **change})


def _wrong_writes(gold: Recording) -> Iterator[Policy]:
    """A write left out, done twice, or done through delete and create."""
    writes = [index for index, step in enumerate(gold.steps) if step.writes]
    for index in writes:
        step, actions = gold.steps[index], gold.actions
        name = f"{step.action.kind} {step.action.url}"
        yield _miss(f"without {name}", _finished(gold, actions[:index] + actions[index + 1 :]))
        if step.action.kind == "POST":
            yield _miss(f"{name} twice", _finished(gold, [*actions, step.action]))
        if step.action.kind == "PUT":
            recreated = [*actions[:index], Delete(step.action.url), *actions[index:]]
            yield _miss(f"{name} after a delete", _finished(gold, recreated))
    if len(writes) > 1:
        yield _miss("right answer without any write", _finished(gold, gold.reads))


def _collateral(task: Task[Any], gold: Recording) -> Iterator[Policy]:
    """Everything done right, and something else touched."""
    written = {step.before["id"] for step in gold.steps if step.before}
    yield _miss("and creates something else", _finished(gold, [*gold.actions, Post("/Basic", _EXTRA)]))
    referred = _referred([*gold.setup, *(step.body for step in gold.steps if step.writes)])
    others = [one for one in gold.setup if one["id"] not in written]
    # The last of each type is taken: one that nothing refers to, if there is one, for only that can be deleted.
    others.sort(key=lambda one: f"{one['resourceType']}/{one['id']}" not in referred)
    bystanders = {one["resourceType"]: one for one in others}
    for kind, one in bystanders.items():
        url = f"/{kind}/{one['id']}"
        changed = {**one, "language": "fr"}
        yield _miss(f"and changes a {kind}", _finished(gold, [*gold.actions, Put(url, changed)]))
        patch = [{"op": "add", "path": "/language", "value": "fr"}]
        yield _miss(f"and patches a {kind}", _finished(gold, [*gold.actions, Patch(url, patch)]))
        if url[1:] not in referred or "delete" in task.prohibited_tools:
            yield _miss(f"and deletes a {kind}", _finished(gold, [*gold.actions, Delete(url)]))
    for kind, id in gold.residents.items():
        patch = [{"op": "add", "path": "/language", "value": "fr"}]
        action = Patch(f"/{kind}/{id}", patch)
        yield _miss(f"and patches the world's {kind}", _finished(gold, [*gold.actions, action]))


def _referred(value: Json) -> set[str]:
    """What the References anywhere in a value point to."""
    if isinstance(value, list):
        return {found for item in value for found in _referred(item)}
    if not isinstance(value, dict):
        return set()
    found = {found for item in value.values() for found in _referred(item)}
    return found | ({value["reference"]} if isinstance(value.get("reference"), str) else set())


def _prohibited(task: Task[Any], gold: Recording) -> Iterator[Policy]:
    """Everything done right, and a prohibited tool used to no effect."""
    uses: dict[str, Action] = {
        "create": Post("/Basic", "{"),
        "update": Put(f"/Basic/{_NOBODY}", "{"),
        "patch": Patch(f"/Basic/{_NOBODY}", []),
        "delete": Delete(f"/Basic/{_NOBODY}"),
    }
    for tool in task.prohibited_tools:
        if tool in uses:
            yield _miss(f"and tries to {tool}", _finished(gold, [*gold.actions, uses[tool]]))


def _no_look(task: Task[Any], gold: Recording, must_look: bool) -> Iterator[Policy]:
    """The right writes and answer without having looked, or having looked elsewhere."""
    blind = _finished(gold, [step.action for step in gold.steps if step.writes])
    if must_look:
        yield _miss("without looking", blind)
        for index, step in enumerate(gold.steps):
            path, _, query = step.action.url.partition("?")
            pairs = parse_qsl(query)
            for n, (name, value) in enumerate(pairs):
                if step.action.kind == "GET" and not name.startswith("_"):
                    other = [*pairs[:n], (name, _elsewhere(value)), *pairs[n + 1 :]]
                    actions = [*gold.actions[:index], Get(path, other), *gold.actions[index + 1 :]]
                    yield _miss(f"looking for another {name}", _finished(gold, actions))
            actions = [*gold.actions[:index], Get(path, {"no-such-parameter": "1"}), *gold.actions[index + 1 :]]
            yield _miss("looking in a way that is refused", _finished(gold, actions))
    elif gold.reads:
        yield Policy("lazy", "looks up, then says none", script([*gold.reads, Finish()]))
        if len(gold.actions) == len(gold.reads):
            yield Policy("lazy", "answers without looking, graded by evidence", script(blind), grading="evidence")


def _elsewhere(value: str) -> str:
    return "1900-01-01" if value[:4].isdecimal() else "Nobody" if value.isalpha() else f"{value}zz"
