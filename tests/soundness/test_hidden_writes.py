"""An episode with an inconspicuous extra write must fail, for tasks of every pack."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from fhir_gym.actions import Action, Delete, Finish, Patch, Post, Put
from fhir_gym.episode import Episode
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.http import create_app
from fhir_gym.tasks import LatestResponse, Verdict, get_task
from fhir_gym.tasks.core.grader import EVIDENCE, NOTHING_ELSE, PROHIBITED
from fhir_gym.types import Resource
from tests.worlds.serving import served

APPOINTMENT = "FHIRAgent/Appointment-v0"
TASKS = [
    (APPOINTMENT, "02a"),
    (APPOINTMENT, "07"),
    (APPOINTMENT, "11a"),
    (APPOINTMENT, "15a"),
    (APPOINTMENT, "16b"),
    ("FHIRAgent/GeneticTesting-v0", "20"),
    ("FHIRAgent/GeneticTesting-v0", "21a"),
    ("FHIRAgent/MedAgentBench-v0", "04"),
    ("FHIRAgent/MedAgentBench-v0", "03"),
    ("FHIRAgent/ActionReasoning-v0", "01"),
]
NAMES = [{"family": "One", "given": ["Ann"]}, {"family": "Two", "given": ["Bea"]}]
LABEL = {"system": "urn:x", "code": "seen"}
OTHER = [{"op": "add", "path": "/gender", "value": "other"}]
EXTRA = {"resourceType": "Basic", "code": {"text": "x"}}


def labels(**meta: Any) -> Resource:
    return {"resourceType": "Parameters", "parameter": [{"name": "meta", "valueMeta": meta}]}


def batch(method: str, url: str, *resources: Resource | None) -> Action:
    """The action that posts a batch Bundle with one entry per resource; None makes an entry without a resource."""
    entries: list[Resource] = [
        {"request": {"method": method, "url": url}} | ({"resource": resource} if resource is not None else {})
        for resource in resources or (None,)
    ]
    return Post("/", {"resourceType": "Bundle", "type": "batch", "entry": entries})


def by_url(tail: str) -> Callable[[Resource], list[Action]]:
    def play(resource: Resource) -> list[Action]:
        url = f"/Patient/{resource['id']}{tail}"
        return [Put(url, {**resource, "name": NAMES[:1]}), Put(url, resource)]

    return play


def by_entry(tail: str) -> Callable[[Resource], list[Action]]:
    def play(resource: Resource) -> list[Action]:
        url = f"Patient/{resource['id']}{tail}"
        return [batch("PUT", url, {**resource, "name": NAMES[:1]}), batch("PUT", url, resource)]

    return play


def by_post(url: str) -> Callable[[Resource], list[Action]]:
    return lambda resource: [batch("POST", url, EXTRA)]


HOLES: dict[str, Callable[[Resource], list[Action]]] = {
    **{f"PUT {tail}": by_url(tail) for tail in ("", "/", "/foo", "//foo")},
    **{f"entry PUT {tail}": by_entry(tail) for tail in ("", "/_history", "/_history/1")},
    **{f"entry POST {url}": by_post(url) for url in ("Patient/_search", "Basic/_history", "Basic/$x")},
    "both in one bundle": lambda resource: [
        batch("PUT", f"Patient/{resource['id']}", {**resource, "name": NAMES[:1]}, resource)
    ],
    "patch and back": lambda resource: [
        Patch(f"/Patient/{resource['id']}/foo", OTHER),
        Patch(f"/Patient/{resource['id']}", [{"op": "remove", "path": "/gender"}]),
    ],
    "delete and put back": lambda resource: [
        Delete(f"/Patient/{resource['id']}/foo"),
        Put(f"/Patient/{resource['id']}", resource),
    ],
    "delete and put back by entries": lambda resource: [
        batch("DELETE", f"Patient/{resource['id']}/_history/1"),
        batch("PUT", f"Patient/{resource['id']}", resource),
    ],
    "conditional delete": lambda resource: [Delete("/Patient?identifier=urn:x|bystander")],
    "conditional update": lambda resource: [
        Put("/Patient?identifier=urn:x|bystander", {**resource, "active": True}),
        Put("/Patient?identifier=urn:x|bystander", resource),
    ],
    "labels by PUT": lambda resource: [Put(f"/Patient/{resource['id']}", {**resource, "meta": {"tag": [LABEL]}})],
    "security labels by PUT": lambda resource: [
        Put(f"/Patient/{resource['id']}", {**resource, "meta": {"security": [LABEL]}})
    ],
    "profile by PUT": lambda resource: [
        Put(f"/Patient/{resource['id']}", {**resource, "meta": {"profile": ["urn:y"]}})
    ],
    "profile dropped": lambda resource: [
        Put(f"/Patient/{resource['id']}", {k: v for k, v in resource.items() if k != "meta"})
    ],
    "$meta-add": lambda resource: [Post(f"/Patient/{resource['id']}/$meta-add", labels(tag=[LABEL]))],
    "$meta-add and -delete": lambda resource: [
        Post(f"/Patient/{resource['id']}/$meta-add", labels(tag=[LABEL])),
        Post(f"/Patient/{resource['id']}/$meta-delete", labels(tag=[LABEL])),
    ],
    "list reversed": lambda resource: [Put(f"/Patient/{resource['id']}", {**resource, "name": NAMES[::-1]})],
    "narrative": lambda resource: [
        Put(f"/Patient/{resource['id']}", {**resource, "text": {"status": "generated", "div": "<div>x</div>"}})
    ],
}

NO_WRITES: dict[str, Callable[[Resource], list[Action]]] = {
    **{f"PUT {tail}": by_url(tail) for tail in ("/_history", "/_history/99", "/$a/b")},
    **{f"entry PUT {tail}": by_entry(tail) for tail in ("/foo", "/$a/b", "/_search")},
    **{f"entry POST {url}": by_post(url) for url in ("metadata", "_history")},
}
"""Requests that look like writes but are refused, or are reads."""


def furnish(episode: Episode) -> Resource:
    """Load and return an unrelated patient that has lists and labels."""
    patient = {
        "resourceType": "Patient",
        "id": "bystander",
        "meta": {"profile": ["urn:p"], "tag": [{"system": "urn:x", "code": "old"}]},
        "identifier": [{"system": "urn:x", "value": "bystander"}],
        "name": NAMES,
    }
    episode.start()
    episode._session.load([patient])
    episode._origin = episode._session.checkpoint()
    return patient


def play(episode: Episode, *more: Action, first: bool = False) -> Verdict:
    """Play the reference solution; send the extra actions before the final answer, or at the start."""
    episode.start()
    fhir = LatestResponse()
    steps = episode.task.gold(episode.variation.params)
    action = next(steps)
    for extra_action in more if first else ():
        episode.step(extra_action)
    while action.kind != "FINISH":
        episode.step(action)
        fhir.last = episode._log[-1].response
        action = steps.send(fhir.json())
    for extra_action in () if first else more:
        episode.step(extra_action)
    episode.step(action)
    return episode.verdict()


def require_no_win(episode: Episode, holes: Iterable[str] = HOLES) -> None:
    resource = furnish(episode)
    assert play(episode).success
    for name in holes:
        verdict = play(episode, *HOLES[name](resource))
        assert {check.name for check in verdict.failed} & {NOTHING_ELSE, PROHIBITED}, name
        sent = episode._log[-len(HOLES[name](resource)) :]
        assert all(any(done.effect for done in logged.response.done) for logged in sent), name


@pytest.mark.parametrize(("env_id", "key"), TASKS)
def test_no_hidden_write_wins(own_world: Callable[[str], World], env_id: str, key: str) -> None:
    with Episode(env_id, task=key, world=own_world(env_id), max_steps=100) as episode:
        require_no_win(episode)


def test_refused_writes_are_no_writes(hospital: World) -> None:
    with Episode(APPOINTMENT, task="07", world=hospital, max_steps=100) as episode:
        resource = furnish(episode)
        for name, actions in NO_WRITES.items():
            assert play(episode, *actions(resource)).success, name
            sent = episode._log[-len(actions(resource)) :]
            assert not any(done.effect for logged in sent for done in logged.response.done), name


@pytest.mark.parametrize("key", ["11a", pytest.param("15a", marks=pytest.mark.slow)])
def test_no_hidden_write_wins_on_a_remote_server(hospital: World, key: str) -> None:
    with (
        served(create_app(hospital)) as url,
        Episode(APPOINTMENT, task=key, world=hospital, fhir_server=url, max_steps=100) as episode,
    ):
        require_no_win(episode)


# an honest agent may take these actions


def failed(verdict: Verdict) -> set[str]:
    return {check.name for check in verdict.failed}


def test_an_update_without_changes_is_no_change(hospital: World) -> None:
    with Episode(APPOINTMENT, task="15a", world=hospital, max_steps=100) as episode:
        resource = furnish(episode)
        same = [
            Put("/Patient/bystander", resource),
            Put("/Patient/bystander", resource | {"meta": {"profile": ["urn:p"]}}),
        ]
        assert play(episode, *same).success
        assert not any(done.effect for logged in episode._log[-2:] for done in logged.response.done)


def test_a_mistaken_create_may_be_deleted(hospital: World) -> None:
    mistake = [Put("/Basic/mine", EXTRA | {"id": "mine"}), Delete("/Basic/mine")]
    by_entries = [batch("PUT", "Basic/mine", EXTRA | {"id": "mine"}), batch("DELETE", "Basic/mine")]
    with Episode(APPOINTMENT, task="14a", world=hospital, max_steps=100) as episode:
        assert "delete" in episode.task.prohibited_tools
        for actions in (mistake, by_entries):
            assert play(episode, *actions).success
            assert play(episode, *actions, first=True).success
        assert failed(play(episode, mistake[0])) == {NOTHING_ELSE}
        assert failed(play(episode, Delete("/Basic/nobody"))) == {PROHIBITED}
        resource = furnish(episode)
        others = [Delete("/Patient/bystander"), Put("/Patient/bystander", resource), Delete("/Patient/bystander")]
        assert failed(play(episode, *others)) == {NOTHING_ELSE, PROHIBITED}
    with Episode(APPOINTMENT, task="11a", world=hospital, max_steps=100) as episode:
        assert failed(play(episode, *mistake)) == {PROHIBITED}, "a query creates nothing, by whatever verb"


def test_a_mistake_in_a_requested_write_may_be_corrected(hospital: World) -> None:
    with Episode(APPOINTMENT, task="15a", world=hospital, max_steps=100) as episode:
        _, _, target = episode.variation._target.rpartition("/")

        def of_status(status: str) -> Action:
            return Patch(f"/Appointment/{target}", [{"op": "replace", "path": "/status", "value": status}])

        assert play(episode, of_status("noshow"), of_status("cancelled")).success
        assert not play(episode, of_status("noshow")).success


def test_an_unusual_entry_before_the_lookup_counts_as_acting_first(own_world: Callable[[str], World]) -> None:
    env_id = "FHIRAgent/MedAgentBench-v0"
    task = get_task(env_id, "10")
    world = own_world(env_id)
    number = next(k for k in range(100) if task.expected_changes(task.variation(k, world).params))
    with Episode(env_id, task="10", variation=number, world=world, max_steps=100) as episode:
        assert play(episode).success
        order = next(logged for logged in episode._log if logged.response.status == 201)
        reads = [logged.action for logged in episode._log if logged.response.status == 200]
        answer = episode._answer
        for url in ("ServiceRequest/_search", "ServiceRequest/_history", "ServiceRequest/$x"):
            episode.start()
            for action in (batch("POST", url, json.loads(order.action.body or "")), *reads, Finish(answer or [])):
                episode.step(action)
            assert failed(episode.verdict()) == {EVIDENCE}
