"""Chooses absences, and sees to it that their rules matter."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta

from fhir_gym.tasks.packs.shift.calendar import Calendar
from fhir_gym.tasks.packs.shift.clinic import ClinicSlot
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.s1_absences.rules import (
    EARLIER_REQUESTS_IGNORED,
    MISTAKES,
    MOVABLE,
    AbsenceCalendar,
    AbsenceContent,
    AbsenceRequest,
    AbsenceScene,
)

_MISTAKES = 3
"""Number of mistakes that should change the result of a sweep."""
_LONGEST = 5
"""Longest absence in days."""
_SATURDAY = 5
_COMPETING = 0.7
"""Probability that an absence competes with an earlier one for slots, if there is such an absence."""
_FEWEST_NEAR_MISSES = 2
_MOST_TRIED = 10
"""Number of absences that are tried for one request with a choice of mistakes."""


def choose_absences(
    rng: random.Random, scene: AbsenceScene, outcomes: Sequence[str]
) -> tuple[AbsenceRequest, ...] | None:
    """Choose absences with these outcomes; None if the scene does not have them."""
    calendar = Calendar.at_start(scene)
    work = outcomes.count(DONE)
    low, high = (bound // work for bound in scene.writes)
    possible = [*_absences(scene)]
    found: list[AbsenceRequest] = []
    given: list[ClinicSlot] = []
    for outcome in outcomes:
        away = {one.schedule for one in found}
        left = [one for one in rng.sample(possible, len(possible)) if one.schedule not in away]
        left = [one for one in left if not any(_is_away(slot, one) for slot in given)]
        mistakes = rng.sample(MISTAKES, _MISTAKES)
        if given:
            mistakes[0] = EARLIER_REQUESTS_IGNORED
        chooser = _Chooser(rng, calendar, scene, outcome, (low, high), mistakes)
        request = None
        if outcome == DONE and given and rng.random() < _COMPETING:
            request = chooser.choose([one for one in left if any(_compete(one, other, scene) for other in found)])
        request = request or chooser.choose(left)
        if request is None:
            return None
        found.append(request)
        slots = AbsenceCalendar(calendar, scene, request).clear().values()
        given += [slot for slot in slots if slot]
    return tuple(found)


def _absences(scene: AbsenceScene) -> Iterator[AbsenceRequest]:
    """Yield every absence that starts and ends on a coming working day."""
    coming = sorted({one.start[:10] for one in scene.slots if one.start[:10] > scene.now[:10]})
    for one in scene.staff:
        for first in coming:
            for last in _last_days(first, coming[-1]):
                person = one.person
                ask = AbsenceContent(given=person.given, family=person.family, first=first, last=last)
                yield AbsenceRequest(ask=ask, outcome="", schedule=one.schedule, target=f"Practitioner/{person.id}")


def _last_days(first: str, latest: str) -> Iterator[str]:
    for days in range(_LONGEST):
        last = date.fromisoformat(first) + timedelta(days=days)
        if last.weekday() < _SATURDAY and last.isoformat() <= latest:
            yield last.isoformat()


def _is_away(slot: ClinicSlot, request: AbsenceRequest) -> bool:
    return slot.schedule == request.schedule and request.ask.covers(slot.start)


def _compete(one: AbsenceRequest, other: AbsenceRequest, scene: AbsenceScene) -> bool:
    """Whether two absences are of the same service and have a day in common."""
    days = max(one.ask.first, other.ask.first) <= min(one.ask.last, other.ask.last)
    return days and scene.service_of(one.schedule) == scene.service_of(other.schedule)


class _Chooser:
    """Chooses one absence.

    Args:
        rng: Random generator.
        calendar: The calendar after the earlier requests.
        scene: The places.
        outcome: The outcome.
        writes: Minimum and maximum number of records that the absence changes.
        mistakes: Mistakes that should change the result.
    """

    def __init__(
        self,
        rng: random.Random,
        calendar: Calendar,
        scene: AbsenceScene,
        outcome: str,
        writes: tuple[int, int],
        mistakes: Sequence[str],
    ) -> None:
        self._rng, self._calendar, self._scene = rng, calendar, scene
        self._outcome, self._writes, self._mistakes = outcome, writes, mistakes
        self._moving, self._free = _days_with_work(calendar)

    def choose(self, requests: Sequence[AbsenceRequest]) -> AbsenceRequest | None:
        """Choose a practitioner at random among those with a possible absence, then one of these absences.

        Returns None if there is no possible absence. Of several, it is the first one that all mistakes change, or the
        one that most of them change.

        Args:
            requests: The absences in random order.
        """
        by_target: defaultdict[str, list[AbsenceRequest]] = defaultdict(list)
        for one in requests:
            by_target[one.target].append(one.model_copy(update={"outcome": self._outcome}))
        qualifying = tuple(name for name in sorted(by_target) if any(map(self._is_possible, by_target[name])))
        if not qualifying:
            return None
        possible = [one for one in by_target[self._rng.choice(qualifying)] if self._is_possible(one)]
        best, most = possible[0], -1
        for one in possible[:_MOST_TRIED]:
            changed = self._changed_by_mistakes(one)
            if changed > most:
                best, most = one, changed
            if changed == len(self._mistakes):
                break
        return best.model_copy(update={"qualifying": qualifying})

    def _is_possible(self, request: AbsenceRequest) -> bool:
        """Whether an absence has the outcome, the right size, and near misses."""
        schedule, (low, high) = request.schedule, self._writes
        due, closing = (sum(map(request.ask.covers, days[schedule])) for days in (self._moving, self._free))
        if self._outcome == NOTHING_TO_DO:
            return not due and not closing
        least = 2 * due + closing
        if least > high or 3 * due < low or _near_misses(self._scene, request) < _FEWEST_NEAR_MISSES:
            return False
        moved = sum(slot is not None for slot in self._clear(request).values())
        return 2 * moved >= due and low <= least + moved <= high

    def _clear(self, request: AbsenceRequest) -> dict[str, ClinicSlot | None]:
        return AbsenceCalendar.copy_of(self._calendar, self._scene, request).clear()

    def _changed_by_mistakes(self, request: AbsenceRequest) -> int:
        if self._outcome == NOTHING_TO_DO:
            return len(self._mistakes)
        slots = self._clear(request)
        return sum(_changes(one, self._calendar, self._scene, request, slots) for one in self._mistakes)


def _days_with_work(calendar: Calendar) -> tuple[defaultdict[str, list[str]], defaultdict[str, list[str]]]:
    """Return the days of the appointments that could have to move and of the free slots, by schedule."""
    moving: defaultdict[str, list[str]] = defaultdict(list)
    free: defaultdict[str, list[str]] = defaultdict(list)
    for one in calendar.visits.values():
        if one.status in MOVABLE:
            for slot in one.slots:
                moving[slot.schedule].append(slot.start)
    for slot in calendar.scene.slots:
        if calendar.status[slot.id] == "free":
            free[slot.schedule].append(slot.start)
    return moving, free


def _changes(
    mistake: str,
    calendar: Calendar,
    scene: AbsenceScene,
    request: AbsenceRequest,
    slots: Mapping[str, ClinicSlot | None],
) -> bool:
    """Whether a mistake changes the new slots of the appointments."""
    seen = Calendar.at_start(scene) if mistake == EARLIER_REQUESTS_IGNORED else calendar
    return AbsenceCalendar.copy_of(seen, scene, request).clear(mistake) != slots


def _near_misses(scene: AbsenceScene, request: AbsenceRequest) -> int:
    """Return the number of appointments on the days of an absence that look as if they had to move."""
    doctors, away = scene.by_schedule(), scene.by_schedule()[request.schedule].person
    there = [one for one in scene.visits if request.ask.covers(one.slot.start)]
    same_family = [one for one in there if doctors[one.slot.schedule].person.family == away.family]
    return sum(one.slot.schedule != request.schedule or one.status not in MOVABLE for one in same_family)
