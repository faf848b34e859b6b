"""Notes that colleagues add to Tasks while the agent works on them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from benchmarks.shift_live_agents import AGENTS
from fhir_gym import Episode
from fhir_gym.actions import Action, Patch
from fhir_gym.fhir import World
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.tasks.packs.shift.live.simulation import LiveSimulation
from fhir_gym.tasks.packs.shift.live.worklist import CLOSED
from fhir_gym.types import Json
from tests.tasks.packs.shift.live.playing import (
    Change,
    additions,
    failed,
    params_of,
    play,
    results,
    shift_of,
    task_of,
    written_for,
)
from tests.tasks.packs.shift.playing import follow

CLOSING = ("status", "businessStatus", "output")


@pytest.fixture
def noted(hospital: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Episode]:
    """A shift with questions and registrations; colleagues add notes to all Tasks."""
    with shift_of(("I1", "Q3"), hospital, monkeypatch, "notes", minutes=60, load=1.5, events=4) as episode:
        episode.start()
        yield episode


def noted_tasks(episode: Episode) -> set[str]:
    """Return the ids of the Tasks to which colleagues have added notes."""
    return {*written_for(episode, "note")}


def test_the_reference_solution_keeps_the_notes(noted: Episode) -> None:
    play(noted)
    assert len(noted_tasks(noted)) > 5 and not failed(noted)
    for request in params_of(noted).requests:
        task = noted.session.read("Task", request.id) or {}
        assert task.get("note", []) == ([{"text": request.note}] if request.id in noted_tasks(noted) else [])


def test_a_note_that_the_server_refused_does_not_count(noted: Episode, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = LiveSimulation._handle

    def refusing_notes(simulation: LiveSimulation, request: Request) -> Response:
        is_note = request.method == "PUT" and b'"note"' in request.body
        return Response(413) if is_note else handle(simulation, request)

    monkeypatch.setattr(LiveSimulation, "_handle", refusing_notes)
    play(noted)
    assert len(noted_tasks(noted)) > 5 and not failed(noted)


def test_who_overwrites_notes_fails_these_requests_alone(noted: Episode) -> None:
    solution, _ = AGENTS["closes Tasks without If-Match"]
    follow(noted, solution(params_of(noted)), lambda action: [action])
    assert failed(noted) and failed(noted) <= noted_tasks(noted)
    for id in failed(noted):
        assert results(noted)[id][1].actual["problem"] == "other elements of the Task changed: note"


def patching(**more: Json) -> Change:
    """Return a function that closes Tasks by a patch, which also sets some more elements."""

    def change(action: Action) -> list[Action]:
        body = json.loads(action.body or "{}") if task_of(action) else {}
        if body.get("status") not in CLOSED:
            return [action]
        return [Patch(action.url, additions({name: body[name] for name in CLOSING if name in body} | more))]

    return change


def test_a_patch_keeps_the_notes(noted: Episode) -> None:
    play(noted, patching())
    assert noted_tasks(noted) and not failed(noted)


def test_notes_of_the_agent_must_not_replace_others(noted: Episode) -> None:
    play(noted, patching(note=[{"text": "Done."}]))
    assert failed(noted) == noted_tasks(noted)
