"""Requests to cancel or move appointments or to record a missed one, and their judgement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from typing_extensions import override

from fhir_gym.tasks.authoring import Person
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.grading import differences, same_moment
from fhir_gym.tasks.packs.shift.calendar import USUAL_MINUTES, Calendar, CalendarJudge, slots_that_would_fit
from fhir_gym.tasks.packs.shift.clinic import (
    OCCUPIED,
    ClinicScene,
    ClinicSlot,
    Practitioner,
    Visit,
    appointment_resource,
)
from fhir_gym.tasks.packs.shift.kind import Judgement
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NO_FREE_TIME, NOT_ALLOWED, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.patients import PatientJudge, PatientRequest
from fhir_gym.tasks.packs.shift.preferences import TimePreferences
from fhir_gym.types import Json, Resource

ACTIVE = ("booked", "pending")
"""Statuses of appointments that a request can change."""
ENDED_AS = {"cancel": "cancelled", "missed": "noshow"}
"""The status that a request gives the appointment."""


class ChangeContent(TimePreferences):
    """The requested change. The wishes are for the new time of a moved appointment.

    Attributes:
        day: Day of the appointment.
        change: What to do with the appointment.
    """

    patient: Named
    given: str
    family: str
    day: str
    change: Literal["cancel", "move", "missed"]

    def is_with(self, practitioner: Person) -> bool:
        """Whether the request is about a practitioner."""
        return (self.given, self.family) == (practitioner.given, practitioner.family)


class ChangeRequest(PatientRequest):
    """A request to change an appointment.

    Attributes:
        visit: Id of the patient's only appointment with the practitioner on the day; empty if there is none.
    """

    ask: ChangeContent
    visit: str = ""


def outcome_of(ask: ChangeContent, visit: Visit | None, calendar: Calendar) -> str:
    """Return the outcome of a request in a calendar."""
    if visit is None:
        return NOTHING_TO_DO
    booked = calendar.visits.get(visit.id)
    status = booked.status if booked else ""
    if status not in ACTIVE:
        return ALREADY_DONE if status == ENDED_AS.get(ask.change) else NOTHING_TO_DO
    started = visit.slot.start <= calendar.scene.now
    if started != (ask.change == "missed"):
        return NOT_ALLOWED
    if ask.change == "move" and new_slot(ask, visit, calendar) is None:
        return NO_FREE_TIME
    return DONE


def new_slot(ask: ChangeContent, visit: Visit, calendar: Calendar) -> ClinicSlot | None:
    """Return the slot to which an appointment moves; None if no slot fits."""
    return calendar.first_free(visit.patient, _AsLong(ask, visit.slot.minutes), _same(visit), moving=visit.id)


@dataclass(frozen=True, slots=True)
class _AsLong:
    """Wishes, and the length of the present slot as the minimum."""

    ask: ChangeContent
    least: int

    def suits(self, start: str, minutes: int) -> bool:
        """Whether a time suits the patient."""
        return minutes >= self.least and self.ask.suits(start, minutes)


def _same(visit: Visit) -> Callable[[Practitioner], bool]:
    """Return the condition that a practitioner is the one of an appointment."""
    return lambda practitioner: practitioner.schedule == visit.slot.schedule


def missing_visit(request: ChangeRequest, scene: ClinicScene) -> Iterator[Resource]:
    """Yield the appointment that the request supposes, as it would be if it could be changed."""
    ask = request.ask
    practitioner = next(practitioner for practitioner in scene.practitioners if ask.is_with(practitioner.person))
    patient = request.patients[0]
    slots = [slot for slot in scene.slots if slot.schedule == practitioner.schedule]
    slot = seeded_random("visit", patient, ask).choice([slot for slot in slots if slot.start[:10] == ask.day] or slots)
    moved = slot.model_copy(update={"start": f"{ask.day}{slot.start[10:]}"})
    visit = Visit(id=f"supposed-{patient}-{ask.day}", patient=patient, slot=moved, status="booked")
    yield appointment_resource(visit, practitioner.person.id, scene.place)


def slots_for_move(request: ChangeRequest, scene: ClinicScene) -> Iterator[Resource]:
    """Yield a free slot that does not exist and would fit."""
    visit = next(visit for visit in scene.visits if visit.id == request.visit)
    limits = _AsLong(request.ask, visit.slot.minutes)
    minutes = max(request.ask.minutes, visit.slot.minutes, USUAL_MINUTES)
    yield from slots_that_would_fit(scene, visit.patient, limits, minutes, _same(visit), moving=visit.id)


class ChangeJudge(CalendarJudge[ClinicScene, ChangeRequest], PatientJudge[ClinicScene, ChangeRequest]):
    """Judges changes of appointments against the calendars that the agent met."""

    def _visit(self, request: ChangeRequest) -> Visit | None:
        return next((visit for visit in self.scene.visits if visit.id == request.visit), None)

    @override
    def claim(self, request: ChangeRequest) -> frozenset[str]:
        visit = self._visit(request)
        if visit is None or len(request.patients) != 1:
            return frozenset()
        written = [write.after for write in self.log.writes if write.record == f"Appointment/{visit.id}"]
        slots = {visit.slot.id, *(id for resource in written for id in self.slot_ids(resource))} & self.slots.keys()
        return frozenset({f"Appointment/{visit.id}"} | {f"Slot/{id}" for id in slots})

    @override
    def judge_one(self, number: int) -> Judgement:
        visit = self._visit(self.requests[number])
        if visit is not None and f"Appointment/{visit.id}" in self.log.changed:
            return super().judge_one(number)
        right, harmed = self.is_rightly_declined(number), self._slot_is_wrong(visit)
        return self.declined(number, right, self.claimed[number] & self.log.changed, harmed=harmed)

    @override
    def problems(self, number: int, left: Sequence[str]) -> tuple[Sequence[Json], Json]:
        ask, visit = self.requests[number].ask, self._visit(self.requests[number])
        assert visit is not None
        return [*self._problems(ask, visit, [self.met(number), self.planned(number)])], None

    def _problems(self, ask: ChangeContent, visit: Visit, calendars: list[Calendar]) -> Iterator[Json]:
        record = f"Appointment/{visit.id}"
        before, after = self.log.at_start(record) or {}, self.log.at_end(record) or {}
        possible = [calendar for calendar in calendars if outcome_of(ask, visit, calendar) == DONE]
        if not possible:
            yield f"changed Appointment/{visit.id}"
            return
        if ask.change == "move":
            right_slots = [slot for calendar in possible if (slot := new_slot(ask, visit, calendar)) is not None]
            slot = next((slot for slot in right_slots if self.slot_ids(after) == [slot.id]), None)
            if slot is None:
                yield f"moved to {', '.join(f'Slot/{id}' for id in self.slot_ids(after)) or 'no slot'}"
                return
            yield from self._wrong_move(before, after, visit, slot)
        else:
            if after.get("status") != ENDED_AS[ask.change]:
                yield f"status {after.get('status')}"
            over = ask.change == "cancel"
            may_add, may_go = (("cancelationReason",), ("slot",)) if over else ((), ())
            if rest := differences(before, after, changing=("status",), may_add=may_add, may_go=may_go):
                yield {"also changed": [*rest]}
        if self._slot_is_wrong(visit, freed=ask.change != "missed"):
            yield f"Slot/{visit.slot.id} is not as it should be"

    def _wrong_move(self, before: Resource, after: Resource, visit: Visit, slot: ClinicSlot) -> Iterator[Json]:
        """Yield the errors in a moved appointment."""
        for name, moment in (("start", slot.start), ("end", slot.end)):
            if not same_moment(after.get(name), moment):
                yield f"{name} {after.get(name)}"
        if rest := differences(before, after, changing=("start", "end", "slot", "minutesDuration")):
            yield {"also changed": [*rest]}
        if not self.slot_became(slot.id, "busy"):
            yield f"Slot/{slot.id} is not busy and otherwise unchanged"

    def _slot_is_wrong(self, visit: Visit | None, freed: bool = False) -> bool:
        """Whether the slot of an appointment is neither as at the start nor, if it was given up, free or given away."""
        if visit is None:
            return False
        if not freed:
            others = self._occupied_by_others(visit)
            return f"Slot/{visit.slot.id}" in self.log.changed and not others
        return not (self.slot_became(visit.slot.id, "free") or self._given_away(visit))

    def _given_away(self, visit: Visit) -> bool:
        return self.slot_became(visit.slot.id, "busy") and self._occupied_by_others(visit)

    def _occupied_by_others(self, visit: Visit) -> bool:
        """Whether another appointment occupies the slot at the end."""
        booked = self.before(len(self.log.writes)).visits
        others = (other for id, other in booked.items() if id != visit.id and other.status in OCCUPIED)
        return any(slot.id == visit.slot.id for other in others for slot in other.slots)

    @override
    def is_rightly_declined_for_patient(self, number: int) -> bool:
        request, answer = self.requests[number], self.answers[number]
        visit = self._visit(request)
        if visit is None:
            (supposed,) = missing_visit(request, self.scene)
            return answer == NOTHING_TO_DO and bool(self.log.lookups_of(supposed))
        right = {outcome_of(request.ask, visit, calendar) for calendar in (self.start, self.planned(number))}
        if answer == NO_FREE_TIME and request.ask.change == "move" and right <= {DONE, NO_FREE_TIME}:
            slots = slots_for_move(request, self.scene)
            return self.looked_for_slots(number, slots, lambda slot: new_slot(request.ask, visit, slot))
        return answer in right - {DONE} and self.log.has_seen([f"Appointment/{visit.id}"])
