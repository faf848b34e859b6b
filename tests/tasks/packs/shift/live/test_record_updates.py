"""Updates of records by colleagues while the agent works on a request."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from typing_extensions import override

from benchmarks.shift_live_agents import AGENTS
from fhir_gym import Episode
from fhir_gym.actions import Action
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.live.plan import LiveParams
from fhir_gym.tasks.packs.shift.t20_live import LiveLevel3
from tests.tasks.packs.shift.live.playing import (
    Change,
    failed,
    handle_one_at_a_time,
    now_of,
    params_of,
    play,
    results,
    sent_for,
    shift_of,
    task_of,
)
from tests.tasks.packs.shift.playing import follow

_EARLY = "looks a request up when its work begins, and not again"
KINDS = ("I1", "I2", "I4", "P2", "Q4")


class _LateUpdates(LiveLevel3):
    """A shift in which records are updated long after the usual work."""

    @override
    def sample(self, rng: random.Random, world: World) -> LiveParams:
        drawn = super().sample(rng, world)
        later = (
            request.model_copy(update={"record_update": request.record_update.model_copy(update={"after": 1_000})})
            if request.record_update
            else request
            for request in drawn.requests
        )
        return drawn.model_copy(update={"requests": tuple(later)})


@pytest.fixture(params=[(LiveLevel3, kind) for kind in KINDS], ids=KINDS)
def updated(hospital: World, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Episode]:
    """A shift with requests of one kind; colleagues update records about most of them."""
    task, kind = request.param
    dials = {"minutes": 60, "load": 2, "asking": 0}
    with shift_of([kind], hospital, monkeypatch, "updates", 1, task, **dials) as episode:
        episode.start()
        yield episode


def updates(episode: Episode) -> dict[str, datetime]:
    """Return the times of the updates by Task id."""
    times = {request.logged.action.url: request.at for request in sent_for(episode, "record updated")}
    drawn = {request.id: request.record_update.url for request in params_of(episode).requests if request.record_update}
    return {id: times[url] for id, url in drawn.items() if url in times}


def play_agent(episode: Episode, agent: str, change: Change = lambda action: [action]) -> None:
    follow(episode, AGENTS[agent][0](params_of(episode)), change)


def test_who_reads_the_records_before_the_decision_succeeds(updated: Episode) -> None:
    play(updated)
    assert updates(updated) and not failed(updated)


@pytest.mark.slow
def test_who_reads_the_records_only_at_the_beginning_fails(updated: Episode, hospital: World) -> None:
    """Not in every variation: often an update comes so late that the agent may ignore it."""
    wrong: set[str] = set()
    for variation in range(4):
        if wrong:
            break
        with Episode(updated.config, task=updated.task.key, variation=variation, world=hospital) as episode:
            episode.start()
            play_agent(episode, _EARLY)
            wrong |= failed(episode) & updates(episode).keys()
    assert wrong


@pytest.mark.slow
@pytest.mark.parametrize("updated", [(_LateUpdates, kind) for kind in KINDS], ids=KINDS, indirect=True)
@pytest.mark.parametrize(("seconds", "passes"), [(-1, True), (100, True), (130, False)])
def test_an_update_may_be_ignored_for_two_minutes(
    updated: Episode, monkeypatch: pytest.MonkeyPatch, seconds: int, passes: bool
) -> None:
    handle_one_at_a_time(monkeypatch)
    current = ""
    chosen = next(
        request.id for request in params_of(updated).requests if request.record_update and not request.withdrawn
    )

    def wait(action: Action) -> list[Action]:
        """Delay the first write for the request until the update has an age; reads and Tasks do not count."""
        nonlocal current
        if task_of(action) and '"in-progress"' in str(action.body):
            current = task_of(action)
        elif current == chosen and action.kind != "GET" and seconds >= 0:
            current = ""
            while not (at := updates(updated).get(chosen)) or now_of(updated) < at + timedelta(seconds=seconds):
                updated.step("nonsense")
        return [action]

    play_agent(updated, _EARLY, wait)
    found: dict[str, Any] = results(updated)[chosen][1].actual
    assert ("judged" not in found) is passes, found
