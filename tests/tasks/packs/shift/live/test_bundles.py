"""Bundles in live shifts: what happens follows each entry, and each entry is carried out once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from benchmarks.shift_live_agents import AGENTS
from fhir_gym import Episode
from fhir_gym.actions import Action, Finish, Get, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import parse_instant
from fhir_gym.tasks.packs.shift.live.plan import WHICH_PATIENT
from fhir_gym.types import Resource
from tests.tasks.packs.shift.live.playing import (
    batch,
    closed_as,
    events,
    failed,
    now_of,
    params_of,
    play,
    results,
    shift_of,
    wait,
    worklist,
    written_for,
)
from tests.tasks.packs.shift.playing import follow


@pytest.fixture
def noted(hospital: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Episode]:
    """A shift with questions and registrations; colleagues add notes to all Tasks, and many requesters object."""
    with shift_of(("I1", "Q3"), hospital, monkeypatch, "bundles", minutes=60, load=1.5, events=4) as episode:
        episode.start()
        yield episode


@pytest.fixture
def calm(hospital: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Episode]:
    """A shift with registrations, in which nobody else does anything."""
    with shift_of(["Q3"], hospital, monkeypatch, "calm", minutes=60, events=0, asking=0) as episode:
        episode.start()
        yield episode


def test_a_task_begins_with_the_entry_that_sets_it_to_in_progress(noted: Episode) -> None:
    solution, _ = AGENTS["sets Tasks to in-progress and another status in one batch, closes them blindly"]
    follow(noted, solution(params_of(noted)), lambda action: [action])
    lost = {*written_for(noted, "note")}
    assert len(lost) > 5 and lost <= failed(noted) | {
        request.id for request in params_of(noted).requests if request.withdrawn
    }
    assert events(noted).count("message") > 2


@pytest.mark.parametrize("statuses", [("in-progress", "completed"), ("in-progress", "accepted", "rejected")])
def test_one_bundle_is_no_time_to_object(calm: Episode, statuses: tuple[str, ...]) -> None:
    task = worklist(calm)[0]
    states = [closed_as(task, "no such patient") | {"status": status} for status in statuses]
    first, *others = (Put(f"/Task/{task['id']}", state) for state in states)
    calm.step(batch(first, *[Get("/Patient?_count=1")] * 9, *others))
    calm.step(Finish([]))
    assert "for 2 minutes" in str(results(calm)[task["id"]][1].actual)


@pytest.mark.parametrize(("notes", "is_late"), [(0, False), (1, False), (2, True)])
def test_a_write_in_a_bundle_counts_when_the_writes_before_it_have_taken_their_time(
    calm: Episode, notes: int, is_late: bool
) -> None:
    task = worklist(calm)[0] | {"status": "in-progress"}
    url = f"/Task/{task['id']}"
    calm.step(Put(url, task))
    wait(calm, parse_instant(task["restriction"]["period"]["end"]) - timedelta(seconds=100))
    noted = (Put(url, task | {"note": [{"text": f"Note {number}"}]}) for number in range(notes))
    calm.step(batch(*noted, Put(url, closed_as(task, "no such patient"))))
    calm.step(Finish([]))
    assert ("late" in results(calm)[task["id"]][1].actual["closed"]) is is_late


def idle(episode: Episode) -> None:
    """Set the open Tasks to on-hold; more come later."""
    owner = f"Organization/{params_of(episode).desk}"
    while tasks := episode.session.search("Task", owner=owner, status="requested,in-progress"):
        for task in tasks:
            episode.step(Put(f"/Task/{task['id']}", task | {"status": "on-hold"}))
    assert now_of(episode) < max(parse_instant(request.arrives) for request in params_of(episode).requests)


def test_a_batch_with_a_write_is_carried_out_once_and_does_not_wait(calm: Episode) -> None:
    idle(calm)
    now = now_of(calm)
    patient = calm.session.search("Patient", _count=1)[0]
    wrecked = {name: value for name, value in patient.items() if name not in ("name", "birthDate")}
    new: Resource = {"resourceType": "Basic", "code": {"text": "new"}}
    calm.step(batch(Put(f"/Patient/{patient['id']}", wrecked), Post("/Basic", new), Get("/Task?status=requested")))
    assert now_of(calm) == now + timedelta(seconds=60 + 60 + 20)
    assert len(calm.session.versions("Patient", patient["id"], 5)) == int(patient["meta"]["versionId"]) + 1
    assert len(calm.session.search("Basic")) == 1
    play(calm)
    assert not calm.verdict().success and "nothing else changed" in {check.name for check in calm.verdict().failed}


def test_a_batch_with_a_refused_write_does_not_wait(calm: Episode) -> None:
    idle(calm)
    now = now_of(calm)
    calm.step(batch(Put("/Task/unknown", {"resourceType": "Patient"}), Get("/Task?status=requested")))
    assert now_of(calm) == now + timedelta(seconds=40)


@pytest.mark.parametrize(
    "look",
    [
        Get("/Task?status=requested&_count=1"),
        Get("/Task?status=requested&_summary=count"),
        Post("/Task/_search", None, headers={"content-type": "application/x-www-form-urlencoded"}),
        batch(Get("/Patient?_count=1"), Get("/Task?status=requested")),
        Get("/Organization?_id={desk}&_revinclude=Task:owner"),
    ],
    ids=["search", "count", "POST", "batch", "revinclude"],
)
def test_every_search_for_tasks_waits_for_the_next_one(calm: Episode, look: Action) -> None:
    idle(calm)
    now = now_of(calm)
    coming = min(arrives for request in params_of(calm).requests if (arrives := parse_instant(request.arrives)) > now)
    calm.step(replace(look, url=look.url.format(desk=params_of(calm).desk)))
    assert now_of(calm) >= coming


def test_a_question_in_a_bundle_is_answered_once(calm: Episode) -> None:
    task = worklist(calm)[0]
    about = {"basedOn": [{"reference": f"Task/{task['id']}"}], "reasonCode": [{"text": WHICH_PATIENT}]}
    question = {"resourceType": "Communication", "id": "asked", "status": "completed", **about}
    calm.step(
        batch(Put("/Communication/asked", question), Put("/Communication/asked", question | {"priority": "stat"}))
    )
    wait(calm, now_of(calm) + timedelta(minutes=12))
    assert events(calm).count("answer") == 1
