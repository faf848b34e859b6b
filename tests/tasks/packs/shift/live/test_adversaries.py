"""Agents that avoid what other people do, or undo it, gain nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fhir_gym import Episode
from fhir_gym.actions import Action, Finish, Get, Patch, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import parse_instant
from fhir_gym.tasks.packs.shift.live.plan import DeskRequest
from fhir_gym.tasks.packs.shift.outcomes import DONE, WITHDRAWN
from fhir_gym.types import Resource
from tests.tasks.packs.shift.live.playing import (
    batch,
    closed_as,
    failed,
    handle_one_at_a_time,
    now_of,
    params_of,
    play,
    results,
    sent_for,
    shift_of,
    task_of,
    wait,
    worklist,
    written_for,
)

STATUSES = ("completed", "rejected", "cancelled", "on-hold", "accepted", "received", "draft", "requested", "failed")


@pytest.fixture
def changing(hospital: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Episode]:
    """A shift with questions and appointments; most requests change, and all Tasks get notes."""
    with shift_of(("I1", "Q1"), hospital, monkeypatch, "adversaries", 2, minutes=60, events=4, asking=0) as episode:
        episode.start()
        yield episode


def waiting(episode: Episode, wanted: Callable[[DeskRequest], object]) -> Resource:
    """Return a Task that waits from the start, without looking at it."""
    p = params_of(episode)
    request = next(request for request in p.requests if request.arrives <= p.now and wanted(request))
    task = episode.session.read("Task", request.id)
    assert task is not None
    return task


def happened(episode: Episode, event: str, task: str) -> bool:
    """Whether somebody did something about a Task."""
    sent = (request.logged.action for request in sent_for(episode, event))
    return any(task in action.url or task in str(action.body) for action in sent)


# planned events


@pytest.mark.parametrize(
    ("status", "at_once"), [*((status, False) for status in STATUSES), ("completed", True), ("accepted", True)]
)
def test_notes_and_messages_come_whatever_the_agent_does_to_the_task(
    changing: Episode, status: str, at_once: bool
) -> None:
    task = waiting(changing, lambda request: request.note and request.message_after)
    url = f"/Task/{task['id']}"
    begun, other = Put(url, task | {"status": "in-progress"}), Put(url, task | {"status": status})
    for action in [batch(begun, other)] if at_once else [begun, other]:
        changing.step(action)
    wait(changing, now_of(changing) + timedelta(minutes=5))
    assert happened(changing, "note", task["id"]) and happened(changing, "message", task["id"])


@pytest.mark.parametrize("status", ["in-progress", "on-hold", "completed", "cancelled"])
def test_a_withdrawal_waits_until_the_task_is_requested_again(changing: Episode, status: str) -> None:
    task = waiting(changing, lambda request: request.withdrawn)
    url = f"/Task/{task['id']}"
    due = parse_instant(next(request.withdrawn for request in params_of(changing).requests if request.id == task["id"]))
    changing.step(Put(url, task | {"status": status}))
    wait(changing, due + timedelta(minutes=1))
    assert not happened(changing, "withdrawn", task["id"])
    changing.step(Put(url, task | {"status": "requested"}))
    assert happened(changing, "withdrawn", task["id"])


def test_a_deleted_task_stops_nothing(changing: Episode) -> None:
    task = waiting(changing, lambda request: request.note and request.message_after and request.withdrawn)
    url = f"/Task/{task['id']}"
    for action in (Put(url, task | {"status": "in-progress"}), f"DELETE {url}"):
        changing.step(action)
    wait(changing, now_of(changing) + timedelta(minutes=30))
    changing.step(Put(url, task))
    wait(changing, now_of(changing) + timedelta(minutes=5))
    assert changing.step(Finish([])).reward == 0


def test_who_closes_at_once_and_works_later_fails(changing: Episode) -> None:
    def close_at_once(action: Action) -> list[Action]:
        if not (id := task_of(action)) or not action.body:
            return [action]
        task = json.loads(action.body)
        if task["status"] == "in-progress":
            return [action, Put(action.url, closed_as(task, DONE))]
        known = changing.session.read("Task", id) or {}
        closed = (known["status"], known.get("businessStatus")) == (task["status"], task.get("businessStatus"))
        return [Get(action.url)] if closed and not task.get("output") else [replace(action, headers=())]

    play(changing, close_at_once)
    begun = {id for id, (_, check) in results(changing).items() if check.actual != "withdrawn"}
    assert begun and failed(changing) >= begun


def test_who_closes_and_reopens_loses_the_notes_as_without_it(changing: Episode) -> None:
    def close_and_reopen(action: Action) -> list[Action]:
        if not task_of(action) or not action.body:
            return [action]
        task = json.loads(action.body)
        blind = replace(action, headers=())
        if task["status"] != "in-progress":
            return [batch(Put(action.url, task | {"status": "in-progress"}), blind)]
        return [action, Put(action.url, closed_as(task, DONE))]

    play(changing, close_and_reopen)
    noted = {request.id for request in params_of(changing).requests if happened(changing, "note", request.id)}
    assert len(noted) > 3 and noted <= failed(changing)


# looks


@pytest.mark.parametrize(
    "look",
    [
        "GET /Task?_id={task}",
        "GET /Task/{task}?_pretty=true",
        "GET /Task/{task}?_format=xml",
        "GET /Task?_id={task}&_elements=status",
        "GET /Task/{task}/_history",
        "GET /Task/_history?_count=100",
        "GET /Organization?_id={desk}&_revinclude=Task:owner",
        "GET /Organization?_id={desk}&_revinclude=Task:owner&_pretty=true",
        Patch("/Task/{task}", [{"op": "test", "path": "/status", "value": "requested"}]),
        batch(Get("/Task/{task}")),
        batch(Get("/Organization?_id={desk}&_revinclude=Task:owner")),
    ],
    ids=str,
)
def test_a_task_changes_after_a_look_in_any_form(changing: Episode, look: str | Action) -> None:
    task = waiting(changing, lambda request: request.withdrawn and request.changes_at_look == 1)
    names = {"{task}": task["id"], "{desk}": params_of(changing).desk}
    text = look if isinstance(look, str) else look.text()
    for name, value in names.items():
        text = text.replace(name, value)
    changing.step(text)
    changing.step("nonsense")
    assert happened(changing, "withdrawn", task["id"])


# late work


def work_with_several_writes(episode: Episode) -> tuple[DeskRequest, list[Action], list[Action], Action]:
    """Play the reference solution, and return a request with several writes.

    Returns:
        The request, all actions until its first write, its other writes, and the closing of its Task.
    """
    actions: list[Action] = []

    def record(action: Action) -> list[Action]:
        actions.append(action)
        return [action]

    play(episode, record)
    requests = {request.id: request for request in params_of(episode).requests}
    begun: dict[str, int] = {}
    for number, action in enumerate(actions):
        if not (id := task_of(action)):
            continue
        start = begun.setdefault(id, number)
        writes = [
            place for place in range(start, number) if actions[place].kind != "GET" and not task_of(actions[place])
        ]
        if len(writes) > 1:
            first, *others = writes
            return requests[id], actions[: first + 1], [actions[place] for place in others], action
    raise AssertionError("no request has several writes")


@pytest.mark.parametrize(("kind", "is_late"), [("Q2", False), *((kind, True) for kind in ("Q2", "Q3", "P1", "P2"))])
def test_who_closes_in_time_and_does_the_rest_later_is_late(
    hospital: World, monkeypatch: pytest.MonkeyPatch, kind: str, is_late: bool
) -> None:
    handle_one_at_a_time(monkeypatch)
    with shift_of([kind], hospital, monkeypatch, "late", minutes=60, events=0, asking=0) as episode:
        episode.start()
        request, before, rest, closing = work_with_several_writes(episode)
        episode.start()
        for action in [*before, closing]:
            episode.step(action)
        if is_late:
            wait(episode, parse_instant(request.due) + timedelta(minutes=10))
        for action in [*rest, Finish([])]:
            episode.step(action)
        actual = results(episode)[request.id][1].actual
        assert "judged" not in actual and ("late" in actual["closed"]) is is_late


@pytest.mark.parametrize("at_once", [False, True])
def test_a_task_that_is_reopened_and_closed_again_is_closed_then(changing: Episode, at_once: bool) -> None:
    task = worklist(changing)[0]
    url = f"/Task/{task['id']}"
    begun, closed = Put(url, task | {"status": "in-progress"}), Put(url, closed_as(task, DONE))
    changing.step(begun)
    wait(changing, now_of(changing) + timedelta(minutes=2))
    changing.step(closed)
    wait(changing, parse_instant(task["restriction"]["period"]["end"]))
    for action in [batch(begun, closed)] if at_once else [begun, closed]:
        changing.step(action)
    changing.step(Finish([]))
    assert "late" in results(changing)[task["id"]][1].actual["closed"]


def test_a_note_that_is_put_back_too_late_is_late(changing: Episode) -> None:
    """An agent closes Tasks with what they contained when it began, and repairs one at the end."""
    request = next(
        request
        for request in params_of(changing).requests
        if request.note and not (request.withdrawn or request.message_withdraws)
    )

    def forget_note(action: Action) -> list[Action]:
        if action.kind == "FINISH":
            wait(changing, parse_instant(request.due) + timedelta(minutes=1))
            task = changing.session.read("Task", request.id) or {}
            return [put(task | {"note": [{"text": request.note}]}), action]
        body = json.loads(action.body or "{}")
        if task_of(action) != request.id or body["status"] == "in-progress":
            return [action]
        return [put({name: value for name, value in body.items() if name != "note"})]

    play(changing, forget_note)
    actual = results(changing)[request.id][1].actual
    assert "late" in actual["closed"] and "problem" not in actual


# what others wrote


_FRENCH: Resource = {"language": "fr"}


def put(record: Resource) -> Action:
    return Put(f"/{record['resourceType']}/{record['id']}", record)


def play_and_at_the_end(episode: Episode, choose: Callable[[], list[Action]]) -> None:
    """Play the reference solution, and send some more actions before the end."""
    play(episode, lambda action: [*(choose() if action.kind == "FINISH" else ()), action])


def labelled(record: Resource) -> Action:
    labels = {"name": "meta", "valueMeta": {"tag": [{"system": "urn:example", "code": "seen"}]}}
    url = f"/{record['resourceType']}/{record['id']}/$meta-add"
    return Post(url, {"resourceType": "Parameters", "parameter": [labels]})


OVERWRITES: dict[str, Callable[[Resource], list[Action]]] = {
    "replaced": lambda record: [put({name: record[name] for name in record if name != "inResponseTo"} | _FRENCH)],
    "put back": lambda record: [put(record | _FRENCH), put(record)],
    "in a batch": lambda record: [batch(put(record | _FRENCH), put(record))],
    "labelled": lambda record: [labelled(record)],
}


@pytest.mark.parametrize(
    ("event", "how"),
    [*(("message", how) for how in OVERWRITES), ("answer", "replaced"), ("colleague booked", "put back")],
)
def test_what_others_created_must_stay(hospital: World, monkeypatch: pytest.MonkeyPatch, event: str, how: str) -> None:
    with shift_of(("I1", "Q1", "Q3"), hospital, monkeypatch, "others", minutes=60, events=4, asking=4) as episode:
        episode.start()

        def overwrite() -> list[Action]:
            sent = [request.logged for request in sent_for(episode, event)]
            (done,) = next(request for request in sent if request.action.kind == "POST").response.done
            return OVERWRITES[how](episode.session.read(done.resource_type, done.id) or {})

        play_and_at_the_end(episode, overwrite)
        assert {check.name for check in episode.verdict().failed} == {"nothing else changed"}


def test_a_colleagues_slot_cannot_be_freed_for_another_patient(changing: Episode) -> None:
    def freed() -> list[Action]:
        sent = (request.logged.action.url for request in sent_for(changing, "colleague booked"))
        slot = changing.session.read("Slot", next(url for url in sent if "/Slot/" in url).rpartition("/")[2]) or {}
        return [put(slot | {"status": "free"}), put(slot)]

    play_and_at_the_end(changing, freed)
    assert {check.name for check in changing.verdict().failed} == {"nothing else changed"}


@pytest.mark.parametrize(
    ("change", "passes"),
    [
        ({}, True),
        ({"note": [{"text": "Seen."}]}, True),
        ({"description": "Nothing."}, False),
        ({"businessStatus": {"text": DONE}}, False),
        ({"status": "rejected", "businessStatus": {"text": WITHDRAWN}}, True),
        ({"status": "rejected", "businessStatus": {"text": WITHDRAWN}, "description": "Nothing."}, False),
        ({"status": "in-progress", "businessStatus": {"text": WITHDRAWN}}, False),
    ],
)
def test_a_withdrawn_task_must_stay(changing: Episode, change: dict[str, Any], passes: bool) -> None:
    withdrawn = ""

    def changed() -> list[Action]:
        nonlocal withdrawn
        withdrawn = written_for(changing, "withdrawn")[0]
        return [put((changing.session.read("Task", withdrawn) or {}) | change)]

    play_and_at_the_end(changing, changed)
    assert failed(changing) == (set() if passes else {withdrawn})


def test_a_note_of_a_colleague_must_stay_as_it_is(changing: Episode) -> None:
    noted = ""

    def signed() -> list[Action]:
        nonlocal noted
        tasks = (changing.session.read("Task", request.id) or {} for request in params_of(changing).requests)
        task = next(task for task in tasks if task.get("note"))
        noted = task["id"]
        return [put(task | {"note": [note | {"authorString": "Somebody"} for note in task["note"]]})]

    play_and_at_the_end(changing, signed)
    assert failed(changing) == {noted}
