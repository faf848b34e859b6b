"""Changes of Tasks that are still requested."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fhir_gym import Episode
from fhir_gym.actions import Finish, Get, Patch, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.live.plan import DeskRequest
from tests.tasks.packs.shift.live.playing import events, failed, params_of, play, results, shift_of, worklist
from tests.tasks.packs.shift.playing import answer_of


@pytest.fixture
def changing(hospital: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Episode]:
    """A shift with questions and appointments; most requests change before somebody works on them."""
    with shift_of(("I1", "Q1"), hospital, monkeypatch, "changes", minutes=60, events=4, asking=0) as episode:
        episode.start()
        yield episode


def first_withdrawn(episode: Episode) -> DeskRequest:
    """Return a request that waits from the start and is withdrawn soon after the agent has seen it once."""
    p = params_of(episode)
    return next(
        request
        for request in p.requests
        if request.withdrawn and request.changes_at_look == 1 and request.arrives <= p.now
    )


def status_of(episode: Episode, task: str) -> str:
    return str(answer_of(episode.step(Get(f"/Task/{task}")))["status"])


def test_a_task_changes_soon_after_the_agent_has_seen_it(changing: Episode) -> None:
    request = first_withdrawn(changing)
    changing.step("nonsense")
    assert "withdrawn" not in events(changing)
    assert status_of(changing, request.id) == "requested"
    for _ in range(request.changes_after // 20 + 1):
        changing.step("nonsense")
    assert status_of(changing, request.id) == "cancelled"


@pytest.mark.parametrize("puts_back", [False, True])
def test_who_overwrites_a_withdrawal_fails_this_request_unless_it_is_put_back(
    changing: Episode, puts_back: bool
) -> None:
    request = first_withdrawn(changing)
    task = next(task for task in worklist(changing) if task["id"] == request.id)
    while "withdrawn" not in events(changing):
        changing.step("nonsense")
    test = [{"op": "test", "path": "/status", "value": "requested"}]
    assert not changing.step(Patch(f"/Task/{request.id}", test)).observation.startswith("HTTP 2")
    changing.step(Put(f"/Task/{request.id}", {**task, "status": "in-progress"}))
    if puts_back:
        changing.step(Put(f"/Task/{request.id}", {**task, "status": "cancelled"}))
    changing.step(Finish([]))
    assert (request.id in failed(changing)) is not puts_back


def test_who_begins_before_the_change_is_not_disturbed(changing: Episode) -> None:
    play(changing)
    assert not failed(changing)
    changed = {id for id, (_, check) in results(changing).items() if check.actual == "withdrawn"}
    drawn = {request.id for request in params_of(changing).requests if request.withdrawn}
    assert changed and changed < drawn
