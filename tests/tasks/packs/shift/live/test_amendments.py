"""Policies that are amended during a shift."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import pytest
from typing_extensions import override

from fhir_gym import Episode, get_task
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import parse_instant
from fhir_gym.tasks.packs.shift.kind import Judgement
from fhir_gym.tasks.packs.shift.live.gold import GoldDesk
from fhir_gym.tasks.packs.shift.live.kinds import live_kinds
from fhir_gym.tasks.packs.shift.live.plan import LiveParams
from fhir_gym.tasks.packs.shift.live.results import Work
from tests.tasks.packs.shift.live.playing import failed, params_of, results, shift_of
from tests.tasks.packs.shift.playing import follow

KIND = "P2"
START = datetime.fromisoformat("2023-11-13T10:15:00+00:00")


@pytest.fixture
def amended(hospital: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Episode]:
    """A shift with order sets alone, whose policies are often amended."""
    with shift_of([KIND], hospital, monkeypatch, "amended", 1, minutes=90, events=2, asking=0) as episode:
        yield episode


class _ReadsOnce(GoldDesk):
    """Reads the policies at the start, and never looks at dates."""

    @property
    @override
    def _policy_time(self) -> datetime:
        return self._now


class _LooksAhead(GoldDesk):
    """Takes policies for valid that come into force in the next hour."""

    @property
    @override
    def _policy_time(self) -> datetime:
        return super()._policy_time + timedelta(hours=1)


def play(episode: Episode, agent: type[GoldDesk]) -> None:
    episode.start()
    follow(episode, agent(params_of(episode), {KIND: live_kinds()[KIND]}).play(), lambda action: [action])


def decisions(episode: Episode) -> dict[str, tuple[object, ...]]:
    """Return the outcome of each request, and what was ordered for its patients."""
    assert episode.simulation is not None
    sent = [one.logged.action.body or "" for one in episode.simulation.timeline if not one.event]
    orders = [one for one in sent if '"intent":"order"' in one and '"subject"' in one]
    return {
        id: (
            check.actual["outcome"],
            [one for one in orders if any(f'"Patient/{patient}"' in one for patient in request.request.patients)],
        )
        for id, (request, check) in results(episode).items()
        if check.actual != "withdrawn"
    }


def spans(episode: Episode, task: str, moments: Sequence[datetime]) -> bool:
    """Whether a moment is in the middle of the work on a request."""
    assert episode.simulation is not None
    times = [
        one.at
        for one in episode.simulation.timeline
        if not one.event and one.logged.action.kind == "PUT" and one.logged.action.url.endswith(task)
    ]
    return any(times[0] < moment <= times[-1] for moment in moments)


@pytest.mark.slow
def test_who_follows_policies_of_another_time_fails_the_touched_requests_alone(amended: Episode) -> None:
    play(amended, GoldDesk)
    assert not failed(amended)
    right, params = decisions(amended), params_of(amended)
    moments = params.scene[KIND].library.coming(parse_instant(params.now))
    for agent in (_ReadsOnce, _LooksAhead):
        play(amended, agent)
        wrong = decisions(amended)
        touched = {id for id in right.keys() & wrong.keys() if right[id] != wrong[id]}
        surely = {id for id in touched if not spans(amended, id, moments)}
        assert surely and surely <= failed(amended) <= touched


RIGHT, WRONG = (Judgement(one, not one, None, None) for one in (True, False))


@pytest.mark.parametrize(
    ("minutes", "before", "after", "right"),
    [
        (-1, RIGHT, WRONG, False),
        (0, RIGHT, WRONG, False),
        (1, RIGHT, WRONG, True),
        (1, WRONG, RIGHT, True),
        (5, WRONG, RIGHT, True),
        (6, WRONG, RIGHT, False),
        (6, RIGHT, WRONG, True),
    ],
)
def test_in_the_middle_of_the_work_earlier_and_later_policies_are_right(
    minutes: int, before: Judgement, after: Judgement, right: bool
) -> None:
    work = Work(START, START + timedelta(minutes=5))
    assert work.judgement(START + timedelta(minutes=minutes), before, after).right == right


def test_amendments_come_into_force_in_the_middle_of_the_shift(hospital: World) -> None:
    params = get_task("FHIRAgent/Shift-v0", "day-3").variation(0, hospital).params
    assert isinstance(params, LiveParams)
    start, length = parse_instant(params.now), parse_instant(params.until) - parse_instant(params.now)
    libraries = [one.library for key, one in params.scene.items() if live_kinds()[key].has_policies]
    moments = [one for library in libraries for one in library.coming(start) if one < start + length]
    assert len({*moments}) == 5
    assert all(0.2 * length <= moment - start <= 0.8 * length for moment in moments)
