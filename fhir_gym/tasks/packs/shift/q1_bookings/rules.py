"""Requests for appointments, and their judgement."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, Generic

from typing_extensions import override

from fhir_gym.tasks.grading import same_moment
from fhir_gym.tasks.packs.shift.calendar import USUAL_MINUTES, C, Calendar, CalendarJudge, slots_that_would_fit
from fhir_gym.tasks.packs.shift.clinic import LANGUAGES, ClinicScene, ClinicSlot, Practitioner
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NO_FREE_TIME
from fhir_gym.tasks.packs.shift.patients import PatientJudge, PatientRequest
from fhir_gym.tasks.packs.shift.preferences import TimePreferences, draw_time_wishes
from fhir_gym.types import Json, Resource

COMING = ("booked", "pending")
"""Statuses of coming appointments that will take place."""


class BookingContent(TimePreferences):
    """A wish for an appointment.

    Attributes:
        service: Display of the service.
        language: Code of a language that the practitioner must speak, or an empty text.
        gender: Sex of the practitioner, or an empty text.
    """

    patient: Named
    service: str
    language: str = ""
    gender: str = ""

    def wants(self, practitioner: Practitioner) -> bool:
        """Whether a practitioner is one whom the patient wants."""
        return (
            practitioner.service.display == self.service
            and self.gender in ("", practitioner.person.gender)
            and (not self.language or self.language in practitioner.languages)
        )


def draw_wishes(rng: random.Random, today: date) -> dict[str, Any]:
    """Draw a value for each wish."""
    return draw_time_wishes(rng, today) | {
        "language": rng.choice(sorted(LANGUAGES)),
        "gender": rng.choice(("female", "male")),
    }


def booking_text(ask: BookingContent, wording: int) -> str:
    """Return a wish for an appointment in a person's words; see `RequestKind.text`."""
    who = ask.patient
    first = (
        f"{who.given} {who.family}, born {who.birth_date}, would like an appointment in {ask.service}.",
        f"Please find a time in {ask.service} for {who.given} {who.family} (date of birth {who.birth_date}).",
        f"{ask.service}: {who.given} {who.family}, {who.birth_date}, needs an appointment.",
    )[wording]
    return " ".join([first, *_wishes(ask)])


def _wishes(ask: BookingContent) -> Iterator[str]:
    if ask.language:
        yield f"The practitioner must speak {LANGUAGES[ask.language]}."
    if ask.gender:
        yield f"The practitioner must be a {'woman' if ask.gender == 'female' else 'man'}."
    yield from ask.in_words()


class BookingRequest(PatientRequest):
    """A request for an appointment."""

    ask: BookingContent


def coming(calendar: Calendar, ask: BookingContent, patient: str) -> list[str]:
    """Return the ids of the patient's coming appointments for the requested service."""
    now, schedules = calendar.scene.now, calendar.scene.schedules_for(ask.service)
    return [
        id
        for id, (whose, slots, status) in calendar.visits.items()
        if whose == patient
        and status in COMING
        and any(slot.start > now and slot.schedule in schedules for slot in slots)
    ]


def best_slot(calendar: Calendar, ask: BookingContent, patient: str) -> ClinicSlot | None:
    """Return the slot that the rules choose; None if no slot fits."""
    return calendar.first_free(patient, ask, ask.wants)


def fitting_slots(request: BookingRequest, scene: ClinicScene) -> Iterator[Resource]:
    """Yield free slots that do not exist and would fit, one for each practitioner whom the patient wants."""
    ask = request.ask
    yield from slots_that_would_fit(scene, request.patients[0], ask, max(ask.minutes, USUAL_MINUTES), ask.wants)


class BookingJudge(CalendarJudge[C, BookingRequest], PatientJudge[C, BookingRequest], Generic[C]):
    """Judges bookings against the calendars that the agent met."""

    @override
    def claim(self, request: BookingRequest) -> frozenset[str]:
        old = {visit.id for visit in self.scene.visits}
        written = (write for id in request.patients for write in self.log.by_participant.get(f"Patient/{id}", ()))
        new = [write for write in written if write.id not in old]
        slots = {f"Slot/{id}" for write in new for id in self.slot_ids(write.after) if id in self.slots}
        return frozenset({write.record for write in new} | slots)

    @override
    def problems(self, number: int, left: Sequence[str]) -> tuple[Sequence[Json], Json]:
        slots = [self.best(number, calendar) for calendar in (self.met(number), self.planned(number))]
        expected = next((f"{DONE}, in Slot/{slot.id}" for slot in slots if slot), None)
        return self._problems(self.requests[number], left, slots), expected

    def _problems(
        self, request: BookingRequest, left: Sequence[str], right_slots: Sequence[ClinicSlot | None]
    ) -> list[Json]:
        """Describe the errors in the records that the agent left for a request."""
        appointments = [record for record in left if record.startswith("Appointment/")]
        if len(request.patients) != 1 or len(appointments) != 1:
            return [f"left {record}" for record in left]
        appointment = self.log.at_end(appointments[0])
        assert appointment is not None
        slot = next((slot for slot in right_slots if slot and self.slot_ids(appointment) == [slot.id]), None)
        if slot is None:
            return [f"booked {', '.join(f'Slot/{id}' for id in self.slot_ids(appointment)) or 'no slot'}"]
        problems = [f"left {record}" for record in left if record not in (appointments[0], f"Slot/{slot.id}")]
        problems += self._wrong_elements(appointment, request.patients[0], slot)
        if not self.slot_became(slot.id, "busy"):
            problems.append(f"Slot/{slot.id} is not busy and otherwise unchanged")
        return problems

    def _wrong_elements(self, appointment: Resource, patient: str, slot: ClinicSlot) -> Iterator[str]:
        """Yield the errors in a new appointment."""
        practitioner = self.scene.by_schedule()[slot.schedule].person.id
        if appointment.get("status") != "booked":
            yield f"status {appointment.get('status')}"
        for name, moment in (("start", slot.start), ("end", slot.end)):
            if not same_moment(appointment.get(name), moment):
                yield f"{name} {appointment.get(name)}"
        needed = {f"Patient/{patient}", f"Practitioner/{practitioner}"}
        listed = [
            (self.log.end.refers(participant.get("actor")), participant.get("status"))
            for participant in appointment.get("participant", [])
        ]
        others = [participant for participant in listed if participant != (f"Location/{self.scene.place}", "accepted")]
        if sorted(others, key=str) != sorted([(reference, "accepted") for reference in needed], key=str):
            yield f"participants {listed}"

    def best(self, number: int, calendar: Calendar) -> ClinicSlot | None:
        """Return the slot that the rules choose for a request; None if the request is declined."""
        request = self.requests[number]
        if len(request.patients) != 1 or coming(calendar, request.ask, request.patients[0]):
            return None
        return best_slot(calendar, request.ask, request.patients[0])

    @override
    def is_rightly_declined_for_patient(self, number: int) -> bool:
        request, answer = self.requests[number], self.answers[number]
        booked = coming(self.start, request.ask, request.patients[0])
        if booked:
            return answer == ALREADY_DONE and any(self.log.has_seen([f"Appointment/{id}"]) for id in booked)
        slots = fitting_slots(request, self.scene)
        return answer == NO_FREE_TIME and self.looked_for_slots(number, slots, lambda slot: self.best(number, slot))
