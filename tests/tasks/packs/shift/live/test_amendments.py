"""Policies that are amended during a shift."""

from __future__ import annotations

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
from fhir_gym.tasks.packs.shift.outcomes import WITHDRAWN
from fhir_gym.tasks.packs.shift.p2_order_sets.kind import OrderSets
from fhir_gym.tasks.packs.shift.p2_order_sets.rules import OrderSetRequest
from tests.tasks.packs.shift.live.playing import failed, params_of, results, shift_of, task_of
from tests.tasks.packs.shift.playing import follow

KIND = "P2"
START = datetime.fromisoformat("2023-11-13T10:15:00+00:00")


class _Desk(GoldDesk):
    """Remembers the moment whose policies it followed for each request."""

    def __init__(self, p: LiveParams) -> None:
        super().__init__(p, {KIND: live_kinds()[KIND]})
        self.followed: dict[str, datetime] = {}

    def moment(self) -> datetime:
        """Return the moment at which policies must be in force for the request at hand."""
        return super()._policy_time

    @property
    @override
    def _policy_time(self) -> datetime:
        self.followed[self._at_hand[-1].id] = self.moment()
        return self.followed[self._at_hand[-1].id]


class _ReadsOnce(_Desk):
    """Reads the policies at the start, and never looks at dates."""

    @override
    def moment(self) -> datetime:
        return self._now


class _LooksAhead(_Desk):
    """Takes policies for valid that come into force in the next hour."""

    @override
    def moment(self) -> datetime:
        return super().moment() + timedelta(hours=1)


def worked(episode: Episode, task: str) -> tuple[datetime, datetime]:
    """Return when the agent set a Task to in-progress, and when it closed it."""
    assert episode.simulation is not None
    sent = (request for request in episode.simulation.timeline if not request.event)
    times = [
        request.at
        for request in sent
        if task_of(request.logged.action) == task and request.logged.response.status == 200
    ]
    return times[0], times[-1]


def decided_by_amendments(episode: Episode, desk: _Desk) -> set[str]:
    """Return the ids of the Tasks for which no policies that were in force during the work lead to the agent's result.

    The patients' records stay as they are, so nothing but policies changes what is right.
    """
    kind, params = live_kinds()[KIND], params_of(episode)
    scene, now = params.scene[KIND], parse_instant(params.now)

    def end(request: OrderSetRequest, moment: datetime) -> tuple[str, str] | None:
        return kind.right_end(request, scene.model_copy(update={"library": scene.library.after(moment - now)}))

    found: set[str] = set()
    for id, followed in desk.followed.items():
        request, check = results(episode)[id]
        if len(request.request.patients) == 1 and check.actual.get("outcome") != WITHDRAWN:
            start, closed = worked(episode, id)
            moments = [start, *(moment for moment in scene.library.coming(now) if start < moment <= closed)]
            if end(request.request, followed) not in [end(request.request, moment) for moment in moments]:
                found.add(id)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("variation", range(4))
def test_who_follows_policies_of_another_time_fails_the_requests_that_they_decide(
    hospital: World, monkeypatch: pytest.MonkeyPatch, variation: int
) -> None:
    monkeypatch.setattr(OrderSets, "status_updates", {})
    with shift_of([KIND], hospital, monkeypatch, "amended", variation, minutes=90, events=2, asking=0) as episode:
        decided: dict[type[_Desk], set[str]] = {}
        for agent in (_Desk, _ReadsOnce, _LooksAhead):
            episode.start()
            desk = agent(params_of(episode))
            follow(episode, desk.play(), lambda action: [action])
            decided[agent] = decided_by_amendments(episode, desk)
            assert failed(episode) == decided[agent]
        assert not decided[_Desk] and decided[_ReadsOnce] and decided[_LooksAhead]


RIGHT, WRONG = (Judgement(success, not success, None, None) for success in (True, False))


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
    libraries = [scene.library for key, scene in params.scene.items() if live_kinds()[key].has_policies]
    moments = [moment for library in libraries for moment in library.coming(start) if moment < start + length]
    assert len({*moments}) == 5
    assert all(0.2 * length <= moment - start <= 0.8 * length for moment in moments)
