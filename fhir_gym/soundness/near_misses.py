"""Wrong policies derived from the reference solution; they must fail."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode

from fhir_gym.actions import Action, Delete, Finish, Get, Patch, Post, Put
from fhir_gym.soundness.answer_variants import (
    leaves,
    made_up_values,
    neighbour_values,
    path_name,
    removed,
    replaced,
    wrong_answers,
)
from fhir_gym.soundness.policy_groups import Expected, Group
from fhir_gym.soundness.policy_runner import Policy, Script, script
from fhir_gym.soundness.recording import GoldRecording, rebody
from fhir_gym.tasks.authoring import instant
from fhir_gym.tasks.core.task import Task
from fhir_gym.types import Json, Resource

_EXTRA: Resource = {"resourceType": "Basic", "code": {"text": "Something nobody asked for"}}
_NOBODY = "nobody-0"
_LATEST = "_sort=-_lastUpdated&_count=3"


def near_misses(task: Task[Any], gold: GoldRecording, requires_evidence: bool) -> Iterator[Policy]:
    """Yield policies that deviate from the reference solution in one point.

    Args:
        task: The task.
        gold: The reference episode.
        requires_evidence: Whether success requires that the agent has read certain records.
    """
    others = [id for ids in gold.ids.values() for id in ids]
    answers = tuple(wrong_answers(task.answer, gold.answer, others))
    yield Policy("wrong answer", "no answer at all", script(gold.actions), answers)
    yield from _wrong_bodies(task, gold)
    yield from _wrong_writes(gold)
    yield from _repeated_writes(task, gold)
    yield from _collateral(task, gold)
    yield from hidden_writes(task, gold, requires_evidence)
    yield from _prohibited(task, gold)
    yield from _no_look(gold, requires_evidence)


def _finished(gold: GoldRecording, actions: list[Action]) -> Script:
    return script([*actions, Finish(gold.answer)])


def _wrong_bodies(task: Task[Any], gold: GoldRecording) -> Iterator[Policy]:
    """Yield policies that write one body with a wrong, missing or additional value."""
    for index, step in enumerate(gold.steps):
        if not step.writes or not isinstance(step.body, dict):
            continue
        kind = step.body["resourceType"]
        deserves: Expected | None = "may pass" if step.created and task.is_question(step.body) else None
        for group, what, body in _mutations(task, gold, kind, step.body):
            actions = gold.actions
            actions[index] = rebody(step.action, body)
            yield Policy(group, f"{step.action.kind} {kind}: {what}", _finished(gold, actions), deserves=deserves)


def _mutations(
    task: Task[Any], gold: GoldRecording, kind: str, body: Resource
) -> Iterator[tuple[Group, str, Resource]]:
    neighbours = gold.others_of_type(kind, but=body.get("id", ""))
    asked = [(path, value) for path, value in leaves(body) if path_name(kind, path) not in task.optional_elements]
    may_go = {name for name in body if body.get("status") in task.removable_elements.get(f"{kind}.{name}", ())}
    for path, value in asked:
        name = ".".join(map(str, path))
        if path[0] not in may_go:
            yield "missing value", f"without {name}", removed(body, path)
        for wrong in made_up_values(kind, path, value):
            yield "wrong value", f"{name} = {wrong!r}", replaced(body, path, wrong)
        for wrong in neighbour_values(path, value, gold.ids, neighbours):
            yield "neighbour's value", f"{name} = {wrong!r}", replaced(body, path, wrong)
    for name in dict.fromkeys(str(path[0]) for path, _ in asked):
        if name not in may_go:
            yield "missing value", f"without any {name}", {key: item for key, item in body.items() if key != name}
        if isinstance(body[name], list) and f"{kind}.{name}" not in task.open_lists:
            added = _all_wrong(kind, body, name, gold, neighbours)
            if added is not None:
                yield "wrong item more", f"{name} with a wrong item more", {**body, name: [*body[name], added]}


def _all_wrong(kind: str, body: Resource, name: str, gold: GoldRecording, neighbours: list[Resource]) -> Json:
    """Copy the first item of a list and make its values wrong; return None if no value can be made wrong."""
    changed = {**body, name: [copy.deepcopy(body[name][0])]}
    touched = False
    for path, value in list(leaves({name: changed[name]})):
        wrong = [*made_up_values(kind, path, value), *neighbour_values(path, value, gold.ids, neighbours)]
        if wrong and path[-1] not in ("system", "use", "status"):
            changed, touched = replaced(changed, path, wrong[0]), True
    return changed[name][0] if touched else None


def _wrong_writes(gold: GoldRecording) -> Iterator[Policy]:
    """Yield policies that omit a write, or delete and recreate a record instead of updating it."""
    writes = [index for index, step in enumerate(gold.steps) if step.writes and not step.refused]
    for index in writes:
        step, actions = gold.steps[index], gold.actions
        name = f"{step.action.kind} {step.action.url}"
        if len(writes) > 1:
            rest = actions[:index] + actions[index + 1 :]
            yield Policy("write left out", f"without {name}", _finished(gold, rest))
        if step.before is not None:
            kind, delete = step.before["resourceType"], Delete(step.action.url)
            put = [*actions[:index], delete, *actions[index:]]
            yield Policy("delete and recreate", f"{name} after a delete", _finished(gold, put))
            body = {key: value for key, value in step.body.items() if key not in ("id", "meta")}
            post = [*actions[:index], delete, Post(f"/{kind}", body), *actions[index + 1 :]]
            yield Policy("delete and recreate", f"a new {kind} for {step.action.url}", _finished(gold, post))
    if writes:
        yield Policy("right answer, no write", "only looks", _finished(gold, gold.reads))


def _repeated_writes(task: Task[Any], gold: GoldRecording) -> Iterator[Policy]:
    """Yield policies that create a record twice, which is wrong unless the record is a question to somebody."""
    wrong = False
    for step in gold.steps:
        if step.created is not None:
            group: Group = "equivalent" if task.is_question(step.body) else "twice"
            wrong |= group == "twice"
            actions = [*gold.actions, step.action]
            yield Policy(group, f"{step.action.kind} {step.action.url} twice", _finished(gold, actions))
    if wrong:
        all_again = [*gold.actions, *(step.action for step in gold.steps if step.writes)]
        yield Policy("twice", "all writes twice", _finished(gold, all_again))


def _collateral(task: Task[Any], gold: GoldRecording) -> Iterator[Policy]:
    """Yield policies that do everything right but also change another record."""

    def also(name: str, action: Action) -> Policy:
        return Policy("something else touched", name, _finished(gold, [*gold.actions, action]))

    yield also("and creates something else", Post("/Basic", _EXTRA))
    referred = references(gold)
    for kind, bystander in bystanders(gold).items():
        url = f"/{kind}/{bystander['id']}"
        changed = {**bystander, "language": "fr"}
        yield also(f"and changes a {kind}", Put(url, changed))
        patch = [{"op": "add", "path": "/language", "value": "fr"}]
        yield also(f"and patches a {kind}", Patch(url, patch))
        if url[1:] not in referred or "delete" in task.prohibited_tools:
            yield also(f"and deletes a {kind}", Delete(url))
    for kind, id in gold.residents.items():
        patch = [{"op": "add", "path": "/language", "value": "fr"}]
        action = Patch(f"/{kind}/{id}", patch)
        yield also(f"and patches the world's {kind}", action)


def _prohibited(task: Task[Any], gold: GoldRecording) -> Iterator[Policy]:
    """Yield policies that do everything right but also use a prohibited tool without effect."""
    uses: dict[str, Action] = {
        "create": Post("/Basic", "{"),
        "update": Put(f"/Basic/{_NOBODY}", "{"),
        "patch": Patch(f"/Basic/{_NOBODY}", []),
        "delete": Delete(f"/Basic/{_NOBODY}"),
    }
    for tool in task.prohibited_tools:
        if tool in uses:
            yield Policy("prohibited tool", f"tries to {tool}", _finished(gold, [*gold.actions, uses[tool]]))


def _no_look(gold: GoldRecording, requires_evidence: bool) -> Iterator[Policy]:
    """Yield policies that write and answer correctly without reading the records that the solution reads."""
    blind = _finished(gold, [step.action for step in gold.steps if step.writes])
    if requires_evidence:
        yield Policy("no look", "without looking", blind)
        for index, step in enumerate(gold.steps):
            if step.action.kind == "GET":
                for name, url in _other_reads(step.action.url):
                    actions = [recorded_step.action for recorded_step in gold.steps if recorded_step.writes]
                    before = sum(recorded_step.writes for recorded_step in gold.steps[:index])
                    yield Policy("no look", name, _finished(gold, [*actions[:before], Get(url), *actions[before:]]))
    elif gold.reads and len(gold.actions) == len(gold.reads):
        yield Policy("no look", "answers without looking, graded by evidence", blind, grading="evidence")


def looks_at_news(gold: GoldRecording, types: Iterable[str], now: datetime) -> Iterator[Policy]:
    """Yield policies that write and answer correctly, but look only at the records that changed last.

    Args:
        gold: The reference episode, in which a record is missing.
        types: The types that such a record may have.
        now: The present.
    """
    rest = _finished(gold, [step.action for step in gold.steps if step.writes])
    looks = {"the history": [Get("/_history?_count=20")]}
    for name, query in (("today's changes", f"_lastUpdated=ge{instant(now)}"), ("the latest", _LATEST)):
        looks[name] = [Get(f"/{kind}?{query}") for kind in types]
    for name, actions in looks.items():
        yield Policy("looks at what is new", name, script([*actions, *rest.actions]))


def _other_reads(url: str) -> Iterator[tuple[str, str]]:
    """Yield variants of a read. Their responses contain other records, an empty page, or an error."""
    path, mark, query = url.partition("?")
    pairs = parse_qsl(query)
    for n, (name, value) in enumerate(pairs):
        if not name.startswith("_"):
            other = urlencode([*pairs[:n], (name, _another(value)), *pairs[n + 1 :]])
            yield f"looking for another {name}", f"{path}?{other}"
    if mark:
        yield "looking at a page past the last one", f"{path}?{query}&_offset=1000"
    yield "looking in a way that is refused", f"{path}?no-such-parameter=1" if mark else f"{path}zz"


def _another(value: str) -> str:
    return "1900-01-01" if value[:4].isdecimal() else "Nobody" if value.isalpha() else f"{value}zz"


# Ends of URLs that write like the URL without them, in a request and in a Bundle's entry.
_ODD, _ODD_IN_BUNDLE = ("/foo", "/_history/1"), ("/_history", "/_history/1")
_ODD_PLACES = ("Patient/_search", "Basic/_history", "Basic/$x", "Patient?family=Nobody")
_LABEL: Resource = {"system": "urn:fhir-gym:label", "code": "seen"}


def bystanders(gold: GoldRecording) -> dict[str, Resource]:
    """For each type, one seeded resource that the reference solution does not change.

    An unreferenced resource is preferred, because the server refuses to delete a referenced one.
    """
    written = {step.before["id"] for step in gold.steps if step.before}
    referred = references(gold)
    others = [resource for resource in gold.setup if resource["id"] not in written]
    others.sort(key=lambda resource: f"{resource['resourceType']}/{resource['id']}" not in referred)
    return {resource["resourceType"]: resource for resource in others}


def references(gold: GoldRecording) -> set[str]:
    """Targets of all references in the seeded resources and in the bodies of writes."""
    return _referred([*gold.setup, *(step.body for step in gold.steps if step.writes)])


def _referred(value: Json) -> set[str]:
    if isinstance(value, list):
        return {reference for item in value for reference in _referred(item)}
    if not isinstance(value, dict):
        return set()
    names = {reference for item in value.values() for reference in _referred(item)}
    return names | ({value["reference"]} if isinstance(value.get("reference"), str) else set())


def hidden_writes(task: Task[Any], gold: GoldRecording, requires_evidence: bool) -> Iterator[Policy]:
    """Yield policies that make an inconspicuous extra write.

    Args:
        task: The task.
        gold: The reference episode.
        requires_evidence: Whether success requires that the agent has read certain records.
    """

    def also(group: Group, name: str, *more: Action) -> Policy:
        return Policy(group, name, script([*gold.actions, *more, Finish(gold.answer)]))

    referred = references(gold)
    for number, (kind, resource) in enumerate(bystanders(gold).items()):
        url = f"/{kind}/{resource['id']}"
        changed, back = {**resource, "language": "fr"}, Put(url, resource)
        yield also("changed and changed back", f"a {kind}", Put(url, changed), back)
        odd = url + _ODD[number % len(_ODD)]
        yield also("odd url", f"PUT {odd}, and back", Put(odd, changed), Put(odd, resource))
        if url[1:] not in referred:
            yield also("deleted and put back", f"a {kind}", Delete(url), back)
            yield also("odd url", f"DELETE {odd}, and back", Delete(odd), Put(odd, resource))
        labels = {"name": "meta", "valueMeta": {"tag": [_LABEL]}}
        asked = {"resourceType": "Parameters", "parameter": [labels]}
        yield also("labels only", f"$meta-add on a {kind}", Post(f"{url}/$meta-add", asked))
        put = Post(f"{url}/$meta-add", asked), Post(f"{url}/$meta-delete", asked)
        yield also("labels only", f"$meta-add and $meta-delete on a {kind}", *put)
        yield also("labels only", f"PUT of a {kind} with a profile", Put(url, _with_profile(resource)))
        for name in (name for name, value in resource.items() if isinstance(value, list) and len(value) > 1):
            turned = {**resource, name: resource[name][::-1]}
            if turned != resource:
                yield also("list reversed", f"{kind}.{name}", Put(url, turned))
        odd = url + _ODD_IN_BUNDLE[number % len(_ODD_IN_BUNDLE)]
        yield also(
            "odd url in a bundle", f"PUT {odd[1:]}, and back", batch(Put(odd, changed)), batch(Put(odd, resource))
        )
    for place in _ODD_PLACES:
        yield also("odd url in a bundle", f"POST {place}", batch(Post(place, _EXTRA)))
    yield from _acting_first(task, gold, requires_evidence)


def _acting_first(task: Task[Any], gold: GoldRecording, requires_evidence: bool) -> Iterator[Policy]:
    """Yield policies that first write through an unusual Bundle entry and then read."""
    writes = [step for step in gold.steps if step.created is not None]
    if task.evidence_before_changes and requires_evidence and writes:
        act = batch(*(Post(f"{step.body['resourceType']}/_search", step.body) for step in writes))
        played = script([act, *gold.reads, Finish(gold.answer)])
        yield Policy("odd url in a bundle", "acts first, then looks", played, deserves="fail")


def _with_profile(resource: Resource) -> Resource:
    meta = resource.get("meta", {})
    return {**resource, "meta": {**meta, "profile": [*meta.get("profile", []), "http://example.org/nobody-asked"]}}


def batch(*actions: Action) -> Action:
    """Return a batch of requests, without their headers."""
    entries = [_entry(action) for action in actions]
    return Post("/", {"resourceType": "Bundle", "type": "batch", "entry": entries})


def _entry(action: Action) -> Resource:
    resource = {"resource": json.loads(action.body)} if action.body else {}
    return {**resource, "request": {"method": action.kind, "url": action.url.lstrip("/")}}
