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
    return next(one for one in p.requests if one.withdrawn and one.changes_at_look == 1 and one.arrives <= p.now)


def status_of(episode: Episode, task: str) -> str:
    return str(answer_of(episode.step(Get(f"/Task/{task}")))["status"])


def test_a_task_changes_soon_after_the_agent_has_seen_it(changing: Episode) -> None:
    one = first_withdrawn(changing)
    changing.step("nonsense")
    assert "withdrawn" not in events(changing)
    assert status_of(changing, one.id) == "requested"
    for _ in range(one.changes_after // 20 + 1):
        changing.step("nonsense")
    assert status_of(changing, one.id) == "cancelled"


@pytest.mark.parametrize("puts_back", [False, True])
def test_who_overwrites_a_withdrawal_fails_this_request_unless_it_is_put_back(
    changing: Episode, puts_back: bool
) -> None:
    one = first_withdrawn(changing)
    task = next(task for task in worklist(changing) if task["id"] == one.id)
    while "withdrawn" not in events(changing):
        changing.step("nonsense")
    test = [{"op": "test", "path": "/status", "value": "requested"}]
    assert not changing.step(Patch(f"/Task/{one.id}", test)).observation.startswith("HTTP 2")
    changing.step(Put(f"/Task/{one.id}", {**task, "status": "in-progress"}))
    if puts_back:
        changing.step(Put(f"/Task/{one.id}", {**task, "status": "cancelled"}))
    changing.step(Finish([]))
    assert (one.id in failed(changing)) is not puts_back


def test_who_begins_before_the_change_is_not_disturbed(changing: Episode) -> None:
    play(changing)
    assert not failed(changing)
    changed = {id for id, (_, check) in results(changing).items() if check.actual == "withdrawn"}
    drawn = {one.id for one in params_of(changing).requests if one.withdrawn}
    assert changed and changed < drawn
