"""Policies that do everything right but also make an inconspicuous extra write; they must fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fhir_gym.actions import Action, Delete, Finish, Post, Put
from fhir_gym.soundness.policy_groups import Group
from fhir_gym.soundness.policy_runner import Policy, script
from fhir_gym.soundness.recording import GoldRecording
from fhir_gym.tasks.core.task import Task
from fhir_gym.types import Json, Resource

# Ends of URLs that write like the URL without them, in a request and in a Bundle's entry.
_ODD, _ODD_IN_BUNDLE = ("/foo", "/_history/1"), ("/_history", "/_history/1")
_ODD_PLACES = ("Patient/_search", "Basic/_history", "Basic/$x", "Patient?family=Nobody")
_EXTRA: Resource = {"resourceType": "Basic", "code": {"text": "Something nobody asked for"}}
_LABEL: Resource = {"system": "urn:fhir-gym:label", "code": "seen"}


def bystanders(gold: GoldRecording) -> dict[str, Resource]:
    """For each type, one seeded resource that the reference solution does not change.

    An unreferenced resource is preferred, because the server refuses to delete a referenced one.
    """
    written = {step.before["id"] for step in gold.steps if step.before}
    referred = references(gold)
    others = [one for one in gold.setup if one["id"] not in written]
    others.sort(key=lambda one: f"{one['resourceType']}/{one['id']}" not in referred)
    return {one["resourceType"]: one for one in others}


def references(gold: GoldRecording) -> set[str]:
    """Targets of all references in the seeded resources and in the bodies of writes."""
    return _referred([*gold.setup, *(step.body for step in gold.steps if step.writes)])


def _referred(value: Json) -> set[str]:
    if isinstance(value, list):
        return {found for item in value for found in _referred(item)}
    if not isinstance(value, dict):
        return set()
    found = {found for item in value.values() for found in _referred(item)}
    return found | ({value["reference"]} if isinstance(value.get("reference"), str) else set())


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
    for number, (kind, one) in enumerate(bystanders(gold).items()):
        url = f"/{kind}/{one['id']}"
        changed, back = {**one, "language": "fr"}, Put(url, one)
        yield also("changed and changed back", f"a {kind}", Put(url, changed), back)
        odd = url + _ODD[number % len(_ODD)]
        yield also("odd url", f"PUT {odd}, and back", Put(odd, changed), Put(odd, one))
        if url[1:] not in referred:
            yield also("deleted and put back", f"a {kind}", Delete(url), back)
            yield also("odd url", f"DELETE {odd}, and back", Delete(odd), Put(odd, one))
        labels = {"name": "meta", "valueMeta": {"tag": [_LABEL]}}
        asked = {"resourceType": "Parameters", "parameter": [labels]}
        yield also("labels only", f"$meta-add on a {kind}", Post(f"{url}/$meta-add", asked))
        put = Post(f"{url}/$meta-add", asked), Post(f"{url}/$meta-delete", asked)
        yield also("labels only", f"$meta-add and $meta-delete on a {kind}", *put)
        yield also("labels only", f"PUT of a {kind} with a profile", Put(url, _with_profile(one)))
        for name in (name for name, value in one.items() if isinstance(value, list) and len(value) > 1):
            turned = {**one, name: one[name][::-1]}
            if turned != one:
                yield also("list reversed", f"{kind}.{name}", Put(url, turned))
        odd = url + _ODD_IN_BUNDLE[number % len(_ODD_IN_BUNDLE)]
        yield also("odd url in a bundle", f"PUT {odd[1:]}, and back", batch(Put(odd, changed)), batch(Put(odd, one)))
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
