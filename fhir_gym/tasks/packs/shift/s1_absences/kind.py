"""Tasks S1-1 and S1-2: practitioners who are away."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

from typing_extensions import override

from fhir_gym.actions import Put
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator, reference
from fhir_gym.tasks.packs.shift.calendar import Calendar
from fhir_gym.tasks.packs.shift.clinic import ClinicSlot, draw_clinic
from fhir_gym.tasks.packs.shift.kind import Knowledge, RequestSampler, ShiftSize, Solution
from fhir_gym.tasks.packs.shift.lookups import search_all
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.place_records import PlaceRecords, look_up_place
from fhir_gym.tasks.packs.shift.s1_absences.rules import (
    EARLIER_REQUESTS_IGNORED,
    MISTAKES,
    MOVABLE,
    AbsenceCalendar,
    AbsenceContent,
    AbsenceJudge,
    AbsenceRequest,
    supposed_records,
)
from fhir_gym.tasks.packs.shift.s1_absences.scene import CLOSED, WAITING, AbsenceScene, draw_absences
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.tasks.packs.shift.sweeps import SweepKind
from fhir_gym.types import Json, Resource

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
_SEVERAL = 3
"""From this number of requests on, an absence changes fewer records."""


def _absences(scene: AbsenceScene) -> Iterator[AbsenceRequest]:
    """Yield every absence that starts and ends on a coming working day."""
    coming = sorted({slot.start[:10] for slot in scene.slots if slot.start[:10] > scene.now[:10]})
    for practitioner in scene.staff:
        for first in coming:
            for last in _last_days(first, coming[-1]):
                person = practitioner.person
                ask = AbsenceContent(given=person.given, family=person.family, first=first, last=last)
                yield AbsenceRequest(
                    ask=ask, outcome="", schedule=practitioner.schedule, target=f"Practitioner/{person.id}"
                )


def _last_days(first: str, latest: str) -> Iterator[str]:
    for days in range(_LONGEST):
        last = date.fromisoformat(first) + timedelta(days=days)
        if last.weekday() < _SATURDAY and last.isoformat() <= latest:
            yield last.isoformat()


def _compete(request: AbsenceRequest, other: AbsenceRequest, scene: AbsenceScene) -> bool:
    """Whether two absences are of the same service and have a day in common."""
    days = max(request.ask.first, other.ask.first) <= min(request.ask.last, other.ask.last)
    return days and scene.service_of(request.schedule) == scene.service_of(other.schedule)


_Work = tuple[Mapping[str, list[str]], Mapping[str, list[str]]]


def _days_with_work(calendar: Calendar) -> _Work:
    """Return the days of the appointments that could have to move and of the free slots, by schedule."""
    moving: defaultdict[str, list[str]] = defaultdict(list)
    free: defaultdict[str, list[str]] = defaultdict(list)
    for visit in calendar.visits.values():
        if visit.status in MOVABLE:
            for slot in visit.slots:
                moving[slot.schedule].append(slot.start)
    for slot in calendar.scene.slots:
        if calendar.status[slot.id] == "free":
            free[slot.schedule].append(slot.start)
    return moving, free


def _near_misses(scene: AbsenceScene, request: AbsenceRequest) -> int:
    """Return the number of appointments on the days of an absence that look as if they had to move."""
    doctors, away = scene.by_schedule(), scene.by_schedule()[request.schedule].person
    there = [visit for visit in scene.visits if request.ask.covers(visit.slot.start)]
    same_family = [visit for visit in there if doctors[visit.slot.schedule].person.family == away.family]
    return sum(visit.slot.schedule != request.schedule or visit.status not in MOVABLE for visit in same_family)


class AbsenceSampler(RequestSampler[AbsenceScene, AbsenceRequest]):
    """Chooses absences one after the other; many of them compete with an earlier absence for slots."""

    def __init__(self, rng: random.Random, now: datetime, scene: AbsenceScene, outcomes: Sequence[str]) -> None:
        super().__init__(rng, now, scene, outcomes)
        self._calendar, self._possible = Calendar.at_start(scene), [*_absences(scene)]
        self._new_slots: list[ClinicSlot] = []

    @override
    def draw(self, outcome: str, *, depends: bool) -> AbsenceRequest | None:
        rng, new_slots = self.rng, self._new_slots
        away = {request.schedule for request in self.chosen}
        left = [other for other in rng.sample(self._possible, len(self._possible)) if other.schedule not in away]
        left = [request for request in left if not any(request.is_away(slot) for slot in new_slots)]
        mistakes = rng.sample(MISTAKES, _MISTAKES)
        if new_slots:
            mistakes[0] = EARLIER_REQUESTS_IGNORED
        request = None
        work = _days_with_work(self._calendar)
        if outcome == DONE and new_slots and rng.random() < _COMPETING:
            competing = [
                other for other in left if any(_compete(other, earlier, self.scene) for earlier in self.chosen)
            ]
            request = self._draw(competing, outcome, mistakes, work)
        return request or self._draw(left, outcome, mistakes, work)

    @override
    def apply(self, request: AbsenceRequest) -> None:
        self._new_slots += filter(None, AbsenceCalendar(self._calendar, self.scene, request).clear().values())

    def _draw(
        self, requests: Sequence[AbsenceRequest], outcome: str, mistakes: Sequence[str], work: _Work
    ) -> AbsenceRequest | None:
        """Draw a practitioner among those with a possible absence, then one of these absences; None if there is none.

        Of several absences, it is the first one that all mistakes change, or the one that most of them change.
        """
        by_target: defaultdict[str, list[AbsenceRequest]] = defaultdict(list)
        for request in requests:
            by_target[request.target].append(request.model_copy(update={"outcome": outcome}))
        qualifying = tuple(
            name for name in sorted(by_target) if any(self._is_possible(request, work) for request in by_target[name])
        )
        if not qualifying:
            return None
        drawn = by_target[self.rng.choice(qualifying)]
        possible = [request for request in drawn if self._is_possible(request, work)]
        best, most = possible[0], -1
        for request in possible[:_MOST_TRIED]:
            changed = self._changed_by(mistakes, request)
            if changed > most:
                best, most = request, changed
            if changed == len(mistakes):
                break
        return best.model_copy(update={"qualifying": qualifying})

    def _is_possible(self, request: AbsenceRequest, work: _Work) -> bool:
        """Whether an absence has its outcome, the right size, and near misses."""
        due, closing = (sum(map(request.ask.covers, days[request.schedule])) for days in work)
        if request.outcome == NOTHING_TO_DO:
            return not due and not closing
        low, high = (bound // self.outcomes.count(DONE) for bound in self.scene.writes)
        least = 2 * due + closing
        if least > high or 3 * due < low or _near_misses(self.scene, request) < _FEWEST_NEAR_MISSES:
            return False
        moved = sum(slot is not None for slot in self._clear(request).values())
        return 2 * moved >= due and low <= least + moved <= high

    def _clear(self, request: AbsenceRequest, mistake: str = "") -> dict[str, ClinicSlot | None]:
        """Return the new slots of the appointments for an agent that makes a mistake."""
        seen = Calendar.at_start(self.scene) if mistake == EARLIER_REQUESTS_IGNORED else self._calendar.copy()
        return AbsenceCalendar(seen, self.scene, request).clear(mistake)

    def _changed_by(self, mistakes: Sequence[str], request: AbsenceRequest) -> int:
        """Return the number of mistakes that change the new slots of the appointments."""
        if request.outcome == NOTHING_TO_DO:
            return len(mistakes)
        slots = self._clear(request)
        return sum(self._clear(request, mistake) != slots for mistake in mistakes)


class Absences(SweepKind[AbsenceScene, AbsenceRequest]):
    """Move the appointments of practitioners who are away."""

    key = "S1"
    title = "Absences of practitioners"
    sampler_type = AbsenceSampler
    judge_type = AbsenceJudge
    minutes = 42
    resource_types = ("Practitioner", "Schedule", "Slot", "Appointment")
    rules = (
        "- All requests are about {place} (a Location). An appointment is at {place} if {place} is one of its "
        "participants, a schedule if {place} is one of its actors. The service of a schedule is its specialty. Days "
        "are days in UTC; an absence includes its first and its last day.\n"
        "- Each appointment of the absent practitioner at {place} that has the status booked or pending and starts on "
        "a day of the absence must move. Handle them in the order of their priorities, from 1 to 9, and those with "
        "priority 0 or without a priority last; among those with the same priority, the one that starts first comes "
        "first.\n"
        "- An appointment moves to a free slot (status free) of another practitioner, in a schedule at {place} for the "
        "same service as the absent practitioner's schedule at {place}. The slot starts on the day of the "
        "appointment (at whatever time) or {limit}, lasts at least as long as the appointment, and does not "
        "overlap another appointment of the patient, at any place, with status booked, pending or arrived. Among "
        "several, take the one that starts first; if several start at that time, the one of the practitioner whose "
        "family name comes first in the alphabet; then the one with the lower id. Appointments that have moved count "
        "at their new time, and their new slots are taken; those that have yet to move count at their old time.\n"
        "- To move an appointment, change the same Appointment: slot refers to the new slot only, start and end are "
        "those of the new slot, and the participant.actor that refers to the absent practitioner refers to the new "
        "one. Leave the rest as it is, also the status of the participant. Set the new slot to busy.\n"
        "- If there is no such slot, the appointment goes to the waiting list: set its status to waitlist, and leave "
        "the rest as it is, also its slot, start and end.\n"
        "- Whether the appointment moves or goes to the waiting list, set its old slot to busy-unavailable. Also set "
        "every free slot of the absent practitioner at {place} that starts on a day of the absence to "
        "busy-unavailable. Leave the rest of each slot as it is.\n"
        f'- The outcome is "{DONE}"; if there is neither an appointment that must move nor a free slot to set, it is '
        f'"{NOTHING_TO_DO}".'
    )

    @override
    def draw_scene(self, rng: random.Random, world: World, ids: IdAllocator, size: ShiftSize) -> AbsenceScene:
        if size.level == 1:
            shape: dict[str, Any] = {"people": (8,), "practitioners": 5, "days": 6, "per_day": 6}
            writes, namesakes = (12, 24 - 2 * size.requests), 1
        else:
            low, high = (15, 32) if size.requests < _SEVERAL else (12, 21)
            shape = {"people": (8, 9), "practitioners": 8, "days": 8, "per_day": 7}
            writes, namesakes = (low * size.requests, high * size.requests), 3
        clinic = draw_clinic(rng, world, ids, twins=1, services=2, **shape)
        return draw_absences(rng, world, ids, clinic, days=shape["days"], namesakes=namesakes, writes=writes)

    @override
    def rule_values(self, scene: AbsenceScene) -> Mapping[str, str]:
        limit = "on the next calendar day" if scene.limit == 1 else f"on one of the next {scene.limit} calendar days"
        return {"place": scene.name, "limit": limit, "days": str(scene.limit)}

    @override
    def text(self, ask: AbsenceContent, wording: int) -> str:
        who, days = f"Dr. {ask.given} {ask.family}", f"from {ask.first} to {ask.last}"
        if ask.first == ask.last:
            days = f"on {ask.first}"
        return (
            f"{who} is away {days}. Please see to the appointments.",
            f"Please clear the calendar of {who}, who will be absent {days}.",
            f"Absence: {who}, {days}.",
        )[wording]

    @override
    def solve(self, ask: AbsenceContent, knowledge: Knowledge) -> Solution:
        rule_values, looked_up, now = knowledge.rule_values, knowledge.looked_up, knowledge.now
        if not looked_up:
            looked_up["place"] = yield from look_up_place(rule_values["place"])
        place: PlaceRecords = looked_up["place"]
        doctor = next(each for each in place.practitioners if (each.person.given, each.person.family) == ask.name)
        away = f"Practitioner/{doctor.person.id}"
        query = {"actor": away, "location": place.place, "date": f"ge{ask.first}", "_count": "200"}
        appointments = yield from search_all("/Appointment", query)
        offered = [each.schedule for each in place.practitioners if each.service.code == doctor.service.code]
        query = {"schedule": ",".join(f"Schedule/{schedule}" for schedule in offered), "start": f"ge{ask.first}"}
        slots = yield from search_all("/Slot", {**query, "_count": "200"})
        moving = [each for each in appointments if each["status"] in MOVABLE and ask.covers(each["start"])]
        mine = [each for each in slots if each["schedule"]["reference"] == f"Schedule/{doctor.schedule}"]
        closing = [each for each in mine if each["status"] == "free" and ask.covers(each["start"])]
        if not moving and not closing:
            return NOTHING_TO_DO
        patients = ",".join(sorted({f"Patient/{place.visit(each).patient}" for each in moving}))
        query = {"patient": patients, "date": f"ge{ask.first}", "_count": "200"}
        others = (yield from search_all("/Appointment", query)) if moving else []
        records = {record["id"]: record for record in (*slots, *moving, *others)}
        visits = {each["id"]: each for each in (*moving, *others)}
        limits = {"limit": int(rule_values["days"]), "writes": (0, 0)}
        priorities = {each["id"]: each["priority"] for each in moving if "priority" in each}
        scene = AbsenceScene(
            **dict(place.scene(now, slots, visits.values())),
            other_place="",
            other_name="",
            elsewhere=(),
            priorities=priorities,
            **limits,
        )
        request = AbsenceRequest(ask=ask, outcome=DONE, schedule=doctor.schedule)
        for id, new in AbsenceCalendar(Calendar.at_start(scene), scene, request).clear().items():
            old = records[id]
            changed = {**old, "status": WAITING}
            if new is not None:
                yield Put(f"/Slot/{new.id}", {**records[new.id], "status": "busy"})
                changed = _moved(old, records[new.id], away, scene.by_schedule()[new.schedule].person.id)
            yield Put(f"/Appointment/{id}", changed)
            closing.append(records[old["slot"][0]["reference"].removeprefix("Slot/")])
        for slot in closing:
            yield Put(f"/Slot/{slot['id']}", {**slot, "status": CLOSED})
        return DONE

    @override
    def counterfactuals(self, request: AbsenceRequest, scene: AbsenceScene) -> list[Resource]:
        return [*supposed_records(request, scene)] if request.outcome == NOTHING_TO_DO else []


def _moved(old: Resource, slot: Resource, away: str, doctor: str) -> Resource:
    participants: list[Json] = [
        {**participant, "actor": reference("Practitioner", doctor)}
        if participant["actor"]["reference"] == away
        else participant
        for participant in old["participant"]
    ]
    times = {"start": slot["start"], "end": slot["end"], "slot": [reference("Slot", slot["id"])]}
    return {**old, **times, "participant": participants}


class AbsencesLevel1(StaticShift, requests=Absences(), level=1):
    """Clear the calendars of one or two practitioners who are away.

    Starting state: a place with five practitioners of two services, of whom two may share a family name, and about two
        weeks of slots with many appointments of nine patients. Some practitioners also work at another place. Some
        days of each practitioner are cleared already.
    Decoys: appointments of the practitioner that are cancelled, missed or on the waiting list, at the other place or on
        other days; appointments of the namesake; slots that are too short, too late, not free, for another service, at
        the other place or at the time of another appointment of the patient.
    Checks: each appointment with its old and new slot, and each free slot of the practitioner, is judged by itself,
        wherever the agent has put the appointments before it. The score is the share of them that are right minus the
        share that are wrongly changed. Nothing else changed.
    Light: none of the checks.
    """


class AbsencesLevel2(StaticShift, requests=Absences(), level=2):
    """Clear the calendars of two or three practitioners who are away, mostly of the same service.

    Starting state: as at level 1, with eight practitioners, up to three pairs of namesakes, and 18 patients.
    Decoys: as at level 1, and slots that earlier absences take or close.
    Checks: as at level 1.
    Light: none of the checks.
    """


TASKS = (AbsencesLevel1, AbsencesLevel2)
