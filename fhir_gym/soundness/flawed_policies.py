"""Policies that follow the reference solution but make one systematic mistake, also while other people write.

Each policy is consistent: if it picks a wrong record, it uses that record as the solution uses the right record.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

import orjson

from fhir_gym.actions import Action, Finish, Get, Patch, Post, Put
from fhir_gym.actions.model import url_problem
from fhir_gym.errors import TaskError
from fhir_gym.fhir.messages import Response
from fhir_gym.soundness.answer_variants import consists_of_ids, none_answer
from fhir_gym.soundness.near_misses import batch
from fhir_gym.soundness.policy_groups import Expected
from fhir_gym.soundness.policy_runner import Policy, PolicyRun, Script, script
from fhir_gym.soundness.recording import GoldRecording, with_ids
from fhir_gym.tasks.authoring.bundles import entries
from fhir_gym.tasks.core.ids import id_number
from fhir_gym.tasks.core.params import Params
from fhir_gym.tasks.core.task import Gold, LatestResponse, Task
from fhir_gym.types import Json, Resource

_WORDS = (
    *("", "none", "None", "NONE", "null", "nil", "no", "No", "yes", "true", "false", "unknown", "n/a", "N/A", "-"),
    *("not found", "none found", "no slot", "new patient", "success", "done", "ok", "[]", "{}"),
)
_NUMBERS = (-1, *range(21))
_FORMS: tuple[list[Json], ...] = ([None], [[]], [{}], [True], [False], ["", ""], [None, None], [0, None], [0, 0])
_TOKEN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,62}[A-Za-z0-9])?")


def constant_answers(prompt: str, number_asked: bool) -> Iterator[Policy]:
    """Yield policies that idle, or answer without any request: common words, numbers, or words of the prompt.

    Args:
        prompt: The variation's prompt.
        number_asked: Whether a number may be right; then a guessed number may succeed by chance.
    """
    yield Policy("idle", "finishes at once", script([Finish()]))
    yield Policy("idle", "does nothing", script([]))
    numbers: list[list[Json]] = [[number] for number in _NUMBERS]
    answers: list[list[Json]] = [*_FORMS, *([word] for word in _WORDS)]
    if number_asked:
        named = tuple((f"answers {answer!r}", answer) for answer in numbers)
        yield Policy("guessed number", "answers [0.25]", script([Finish([0.25])]), answers=named)
    else:
        answers += [*numbers, *([str(number)] for number in _NUMBERS)]
    answers += [[sentence.strip()] for sentence in re.split(r"[.\n]", prompt) if sentence.strip()]
    tokens = list(dict.fromkeys(_TOKEN.findall(prompt)))
    answers += [[token] for token in tokens if not (number_asked and token.isdecimal())]
    ids = [token for token in tokens if id_number(token) is not None and not token.isdecimal()]
    answers += [[first, second] for first in ids for second in ids]
    answers += [[kind, *some] for some in (ids[:1], ids) for kind in (0, 1, len(some))]
    named = tuple((f"answers {answer!r}", answer) for answer in answers)
    yield Policy("constant answer", "answers [0.5]", script([Finish([0.5])]), answers=named)


def always_create(task: Task[Any], gold: GoldRecording) -> Iterator[Policy]:
    """Yield policies that create an empty resource or a copy of a seeded resource, and answer with the new id.

    Each type that the task requires is tried.
    """
    for kind in task.required_resources:
        yield Policy("always create", f"a bare {kind}", _creating(kind, {"resourceType": kind}))
        for resource in gold.others_of_type(kind)[:3]:
            copy = {name: value for name, value in resource.items() if name not in ("id", "meta")}
            yield Policy("always create", f"a copy of {kind}/{resource['id']}", _creating(kind, copy))


def _creating(kind: str, body: Json) -> Any:
    def play(fhir: LatestResponse) -> Gold:
        created = yield Post(f"/{kind}", body)
        yield Finish([created["id"]] if isinstance(created, dict) and "id" in created else [])

    return play


def other_variation(task: Task[Any], gold: GoldRecording, other: GoldRecording) -> Iterator[Policy]:
    """Yield policies that replay another variation's solution: all requests, only the reads, or only the answer.

    Args:
        task: The task.
        gold: The reference episode of this variation.
        other: The reference episode of the other variation.
    """
    actions: list[Action] = other.actions
    # Two variations may share an answer without ids by chance; then the replayed solution may pass.
    differs = other.answer != gold.answer
    may: Expected | None = None if differs or consists_of_ids(task.answer) else "may pass"
    yield Policy("other variation", "all of its solution", script([*actions, Finish(other.answer)]), deserves=may)
    if differs:
        yield Policy("other variation", "its answer", script([Finish(other.answer)]))
        yield Policy("other variation", "its look-ups and answer", script([*other.reads, Finish(other.answer)]))


_LOST = (RuntimeError, LookupError, TypeError, TaskError)
"""Exceptions that a reference solution raises if a search does not return the expected record."""
_ID = re.compile(r"[A-Za-z0-9\-.]{2,64}")
_MOST_TARGETS, _MOST_DECOYS = 4, 12
_STATUSES = ("status", "clinicalStatus", "verificationStatus", "active")
"""Elements that say whether a record is valid or active."""
_BY_STATUS = frozenset({"status", "clinical-status", "verification-status", "active"})
"""Search parameters that filter by the elements in `_STATUSES`."""

Change = Callable[[int, Action], Action]
See = Callable[[int, Action, Response], Response]


def flawed_policies(task: Task[Any], params: Params, gold: GoldRecording) -> Iterator[Policy]:
    """Yield policies that report no result, skip part of the work, or confuse the target with a similar record."""
    yield Policy("says none", "looks up, then says none", script([*gold.reads, Finish(none_answer(task.answer))]))
    yield from careless_policies(task, params, gold)
    yield from _ignoring_decoys(task, params, gold)


def careless_policies(task: Task[Any], params: Params, gold: GoldRecording) -> Iterator[Policy]:
    """Yield policies that ignore search conditions, later pages, statuses, or all hits after the first.

    Such a policy may succeed by chance; `benchmarks.hasty_policies` reports how often. The policies have the same names
    in all variations.
    """
    yield from _hasty_searches(task, params, gold)
    yield from _first_hits(task, params, gold)
    yield from _no_paging(task, params, gold)
    yield from _ignoring_status(task, params, gold)


def _modified_solution(
    task: Task[Any], params: Params, change: Change, see: See = lambda number, action, response: response
) -> Callable[[LatestResponse], Gold]:
    """Build a policy that follows the reference solution, but modifies actions and responses.

    If the modified solution does not find a record, or asks for too many to fit into a URL, the policy answers that
    there is no such record.
    """

    def play(fhir: LatestResponse) -> Gold:
        eyes = LatestResponse()
        steps = task.gold(params)
        action = next(steps)
        for number in range(task.gold_steps):
            sent = change(number, action)
            if sent.kind != "FINISH" and url_problem(sent.url):
                yield Finish(none_answer(task.answer))
                return
            yield sent
            if fhir.last is not None:
                eyes.last = see(number, sent, fhir.last)
            try:
                action = steps.send(eyes.json())
            except StopIteration:
                return
            except _LOST:
                yield Finish(none_answer(task.answer))
                return

    return play


def _hasty_searches(task: Task[Any], params: Params, gold: GoldRecording) -> Iterator[Policy]:
    """Yield policies that drop one parameter of one search, and use all hits or only the first hit."""
    for index, step in enumerate(gold.steps):
        path, mark, query = step.action.url.partition("?")
        for name in dict.fromkeys(name for name, _ in parse_qsl(query)) if step.action.kind == "GET" and mark else ():

            def change(number: int, action: Action, index: int = index, dropped: str = name) -> Action:
                return _keeping(action, lambda other: other != dropped) if number == index else action

            def see(number: int, action: Action, response: Response, index: int = index) -> Response:
                return _first_entry(number, action, response) if number == index else response

            label = f"/{path.strip('/').partition('/')[0]} without {name}"
            yield Policy("hasty search", label, _modified_solution(task, params, change))
            if not name.startswith("_"):
                yield Policy("first hit", label, _modified_solution(task, params, change, see))


def _first_hits(task: Task[Any], params: Params, gold: GoldRecording) -> Iterator[Policy]:
    """Yield policies that keep one condition of each search and use only the first hit."""
    searches = [names for step in gold.steps if (names := _conditions(step.action))]
    for position in range(max(map(len, searches), default=0)):

        def change(number: int, action: Action, position: int = position) -> Action:
            names = _conditions(action)
            if action.kind != "GET" or not names:
                return action
            kept = names[position % len(names)]
            return _keeping(action, lambda name: name == kept)

        kept = ", ".join(names[position % len(names)] for names in searches)
        yield Policy("first hit", f"by {kept}", _modified_solution(task, params, change, _first_entry))


def _no_paging(task: Task[Any], params: Params, gold: GoldRecording) -> Iterator[Policy]:
    """Yield policies that omit ``_count``, so that they see only the first page of each search in the default size."""
    if any(name == "_count" for step in gold.steps for name in _names(step.action)):

        def change(number: int, action: Action) -> Action:
            return _keeping(action, lambda name: name != "_count") if action.kind == "GET" else action

        yield Policy("no paging", "first pages only", _modified_solution(task, params, change))


def _ignoring_status(task: Task[Any], params: Params, gold: GoldRecording) -> Iterator[Policy]:
    """Yield policies that do not search by status and treat every record as if its status were right."""
    right = _right_statuses(gold)
    asked = any(name in _BY_STATUS for step in gold.steps for name in _names(step.action))
    if not asked and all(_with_status(entry, right) == entry for step in gold.steps for entry in entries(step.answer)):
        return

    def change(number: int, action: Action) -> Action:
        return _keeping(action, lambda name: name not in _BY_STATUS) if action.kind == "GET" else action

    def see(number: int, action: Action, response: Response) -> Response:
        bundle = _searched(action, response)
        if bundle is None:
            return response
        seen = [{**entry, "resource": _with_status(entry["resource"], right)} for entry in bundle.get("entry", [])]
        return Response(response.status, response.headers, orjson.dumps({**bundle, "entry": seen}))

    yield Policy("status ignored", "whatever the status", _modified_solution(task, params, change, see))


def _right_statuses(gold: GoldRecording) -> Mapping[str, Mapping[str, Json]]:
    """Map each resource type to its right status.

    That is the status of the records that the solution uses. For other types, it is the most common status.
    """
    resources = [entry for step in gold.steps for entry in entries(step.answer)]
    right: dict[str, Mapping[str, Json]] = {}
    for kind in dict.fromkeys(entry["resourceType"] for entry in resources):
        usual = Counter(orjson.dumps(_status(entry)) for entry in resources if entry["resourceType"] == kind)
        right[kind] = orjson.loads(usual.most_common(1)[0][0])
    return right | {target["resourceType"]: _status(target) for target in _targets(gold)}


def _status(resource: Resource) -> dict[str, Json]:
    return {name: resource[name] for name in _STATUSES if name in resource}


def _with_status(resource: Resource, right: Mapping[str, Mapping[str, Json]]) -> Resource:
    return {**resource, **right.get(resource["resourceType"], {})}


def _names(action: Action) -> list[str]:
    """Names of all search parameters of an action."""
    return [name for name, _ in parse_qsl(action.url.partition("?")[2])]


def _conditions(action: Action) -> list[str]:
    """Names of the search parameters that filter; those that start with ``_`` are excluded."""
    return [name for name in _names(action) if not name.startswith("_")]


def _keeping(action: Action, keeps: Callable[[str], bool]) -> Action:
    path, mark, query = action.url.partition("?")
    return Get(path, [(name, value) for name, value in parse_qsl(query) if keeps(name)]) if mark else action


def _first_entry(number: int, action: Action, response: Response) -> Response:
    """Reduce the Bundle of a search response to its first entry."""
    bundle = _searched(action, response)
    if bundle is None:
        return response
    return Response(response.status, response.headers, orjson.dumps({**bundle, "entry": bundle.get("entry", [])[:1]}))


def _searched(action: Action, response: Response) -> dict[str, Any] | None:
    """The Bundle of a search response; None for other responses."""
    if action.kind != "GET" or "?" not in action.url or response.status != 200:
        return None
    bundle: dict[str, Any] = orjson.loads(response.body)
    return bundle


def _ignoring_decoys(task: Task[Any], params: Params, gold: GoldRecording) -> Iterator[Policy]:
    """Yield policies that confuse the target with a decoy (a similar wrong record): everywhere, or in one update."""
    for target in _targets(gold):
        kind, id = target["resourceType"], target["id"]
        good = task.alternatives(params)
        others_of_type = [
            resource for resource in gold.others_of_type(kind, but=id) if f"{kind}/{resource['id']}" not in good
        ]
        for decoy in others_of_type[:_MOST_DECOYS]:

            def change(number: int, action: Action, target: Resource = target, decoy: Resource = decoy) -> Action:
                if action.kind == "PUT" and action.url.strip("/") == f"{target['resourceType']}/{target['id']}":
                    return _applied(orjson.loads(action.body or "{}"), target, decoy)
                return with_ids(action, {target["id"]: decoy["id"]})

            name = f"{kind}/{decoy['id']} taken for {id}"
            yield Policy("ignores decoys", name, _modified_solution(task, params, change))
    for index, step in enumerate(gold.steps):
        if step.before is None:
            continue
        kind, id = step.before["resourceType"], step.before["id"]
        for decoy in gold.others_of_type(kind, but=id)[:_MOST_DECOYS]:
            actions = gold.actions
            actions[index] = _applied(step.body, step.before, decoy)
            name = f"PUT {kind}/{decoy['id']} instead"
            yield Policy(
                "ignores decoys", name, script([*actions, Finish(gold.answer)]), deserves="fail unless replaced"
            )


def _targets(gold: GoldRecording) -> list[Resource]:
    """Seeded resources whose ids occur in the reference solution, a few of each type."""
    texts = [step.action.text() for step in gold.steps] + [Finish(gold.answer).text()]
    ids = {id for text in texts for id in _ID.findall(text)}
    by_type: dict[str, list[Resource]] = {}
    for resource in gold.setup:
        if resource["id"] in ids:
            by_type.setdefault(resource["resourceType"], []).append(resource)
    return [resource for some in by_type.values() for resource in some[:_MOST_TARGETS]]


def _applied(body: Resource, target: Resource, decoy: Resource) -> Action:
    """The PUT that makes the same change to the decoy as `body` makes to the target."""
    own = ("id", "meta", "resourceType")
    change = {name: value for name, value in body.items() if target.get(name) != value and name not in own}
    kept = {name: value for name, value in decoy.items() if name in body or name not in target}
    return Put(f"/{decoy['resourceType']}/{decoy['id']}", {**kept, **change})


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
    """Yield policies that act in batches or close Tasks early."""
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
        steps = task.gold(params)
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
            tasks = [entry["resource"] for entry in entries if entry["resource"]["resourceType"] == "Task"]
            open_tasks = {task["id"] for task in tasks if task["status"] in _OPEN}
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
            # The writes may be for a Task that was begun earlier and interrupted.
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
