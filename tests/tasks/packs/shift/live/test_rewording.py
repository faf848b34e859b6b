"""Requests whose description changes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from fhir_gym import Episode
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.live.gold import GoldDesk
from fhir_gym.tasks.packs.shift.live.kinds import live_kinds
from fhir_gym.tasks.packs.shift.live.plan import LiveParams
from fhir_gym.types import Resource
from tests.tasks.packs.shift.live.playing import (
    failed,
    handle_one_at_a_time,
    params_of,
    play,
    results,
    sent_for,
    shift_of,
    written_for,
)
from tests.tasks.packs.shift.playing import follow

KIND = "Q1"


@pytest.fixture
def changing(hospital: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Episode]:
    """A shift with appointments alone, most of which change their description."""
    handle_one_at_a_time(monkeypatch)
    with shift_of([KIND], hospital, monkeypatch, "reworded", 1, minutes=30, load=1.5, events=2, asking=0) as episode:
        episode.start()
        yield episode


def reworded(episode: Episode) -> set[str]:
    """Return the ids of the Tasks whose description has changed."""
    return {*written_for(episode, "reworded")}


def told(episode: Episode) -> set[str]:
    """Return the ids of the Tasks about which a message was sent."""
    bodies = [request.logged.action.body or "" for request in sent_for(episode, "message")]
    return {
        request.id for request in params_of(episode).requests if any(f'"Task/{request.id}"' in body for body in bodies)
    }


class _TrustsTheFirstDescription(GoldDesk):
    """Remembers the description of a Task from its arrival."""

    def __init__(self, p: LiveParams) -> None:
        super().__init__(p, {KIND: live_kinds()[KIND]})
        self._by_text |= {
            request.text: request.model_copy(update={"request": request.first})
            for request in p.requests
            if request.first
        }


def test_the_changed_description_counts(changing: Episode) -> None:
    follow(changing, _TrustsTheFirstDescription(params_of(changing)).play(), lambda action: [action])
    assert failed(changing) & reworded(changing) and failed(changing) <= reworded(changing) | told(changing)


@pytest.mark.slow
def test_a_description_does_not_change_after_the_work_has_begun(changing: Episode) -> None:
    requests = [request for request in params_of(changing).requests if request.reworded and not request.withdrawn]
    # A change at the first look comes before the agent's next action.
    later = [request for request in requests if request.changes_at_look != 1]
    waiting = [request for request in later if request.arrives <= params_of(changing).now]
    desk_request = min(waiting, key=lambda request: request.reworded)
    for is_late in (True, False):
        changing.start()
        play(changing, rank=partial(_rank, desk_request.id, is_late))
        assert (desk_request.id in reworded(changing)) == is_late
        assert "judged" not in str(results(changing)[desk_request.id][1].actual)


def _rank(chosen: str, is_last: bool, task: Resource) -> tuple[bool, str]:
    return (task["id"] == chosen) == is_last, task["restriction"]["period"]["end"]
