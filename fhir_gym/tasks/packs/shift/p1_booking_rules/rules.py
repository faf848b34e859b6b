"""Bookings that policies limit, and their judgement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import NamedTuple, Self

from typing_extensions import override

from fhir_gym.tasks.authoring import WEEKDAYS, parse_instant
from fhir_gym.tasks.packs.shift.calendar import USUAL_MINUTES, Calendar, slots_that_would_fit
from fhir_gym.tasks.packs.shift.clinic import OCCUPIED, ClinicScene, ClinicSlot
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NO_FREE_TIME, NOT_ALLOWED
from fhir_gym.tasks.packs.shift.policies import Library, policy_resources
from fhir_gym.tasks.packs.shift.policy_texts import Rule, Subject
from fhir_gym.tasks.packs.shift.q1_bookings import BookingContent, BookingJudge, coming
from fhir_gym.types import Resource

FULFILLED, MISSED = "fulfilled", "noshow"
_FIRST_DAY, _LAST_DAY, _WEEKDAYS, _NEW, _KNOWN, _WEEK, _MISSED = (
    *("first-day", "last-day", "weekdays", "new-patients", "known-patients"),
    *("week", "missed"),
)
BOOKING = Subject(
    "booking",
    "Booking of appointments",
    (
        Rule(
            _FIRST_DAY,
            "The day of an appointment is at least {value} after the day on which it is booked.",
            ("1 day", "2 days", "3 days", "4 days"),
        ),
        Rule(
            _LAST_DAY,
            "The day of an appointment is at most {value} days after the day on which it is booked.",
            ("5", "6", "7", "8", "9"),
        ),
        Rule(
            _WEEKDAYS,
            "New patients are seen on {value} only.",
            (
                "Mondays and Tuesdays",
                "Mondays and Thursdays",
                "Tuesdays and Wednesdays",
                "Tuesdays and Fridays",
                "Wednesdays and Fridays",
                "Thursdays and Fridays",
            ),
        ),
        Rule(_NEW, "The slot of a new patient lasts at least {value} minutes.", ("30", "45", "60")),
        Rule(_KNOWN, "The slot of a patient who is not new lasts at most {value} minutes.", ("20", "30", "45")),
        Rule(_WEEK, "A patient has no more than {value} in a week.", ("1 appointment", "2 appointments")),
        Rule(
            _MISSED,
            "A patient is not booked by the desk after missing {value}.",
            ("1 appointment or more", "2 or more appointments", "3 or more appointments"),
        ),
    ),
)
"""The subject of policies that limit bookings."""
_LONGEST = 24 * 60


class PolicyClinicScene(ClinicScene):
    """The records of a place, and the policies of the hospital."""

    library: Library

    @override
    def resources(self) -> list[Resource]:
        return [*super().resources(), *policy_resources(self.library, (BOOKING,))]


class Attendance(NamedTuple):
    """The parts of an appointment that matter for the policies.

    Attributes:
        start: Start (instant).
        same_service: Whether the appointment is for the requested service.
    """

    start: str
    status: str
    same_service: bool


@dataclass(frozen=True, slots=True)
class PolicyLimits:
    """The limits of the policies for a new appointment of a patient.

    Attributes:
        first_day: The first possible day.
        last_day: The last possible day.
        weekdays: The possible weekdays; Monday is 0.
        least: Minimum length of the slot in minutes.
        most: Maximum length of the slot in minutes.
        full_weeks: The Mondays of the weeks in which no further appointment is possible.
        points: The names of the points of the policies that matter for the patient.
    """

    first_day: date
    last_day: date
    weekdays: frozenset[int]
    least: int
    most: int
    full_weeks: frozenset[date]
    points: frozenset[str]

    @classmethod
    def of(cls, values: Mapping[str, str], today: date, appointments: Sequence[Attendance]) -> Self | None:
        """Return the limits for a patient; None if the desk must not book for the patient."""
        number = {name: int(value.split()[0]) for name, value in values.items() if name != _WEEKDAYS}
        if sum(appointment.status == MISSED for appointment in appointments) >= number[_MISSED]:
            return None
        new = not any(appointment.same_service and appointment.status == FULFILLED for appointment in appointments)
        days = {number for number, day in enumerate(WEEKDAYS) if f"{day}s" in values[_WEEKDAYS].split()}
        weeks = Counter(
            _monday(appointment.start) for appointment in appointments if appointment.status in (*OCCUPIED, FULFILLED)
        )
        return cls(
            first_day=today + timedelta(days=number[_FIRST_DAY]),
            last_day=today + timedelta(days=number[_LAST_DAY]),
            weekdays=frozenset(days if new else range(7)),
            least=number[_NEW] if new else 0,
            most=_LONGEST if new else number[_KNOWN],
            full_weeks=frozenset(week for week, count in weeks.items() if count >= number[_WEEK]),
            points=frozenset(values) - ({_KNOWN} if new else {_WEEKDAYS, _NEW}),
        )

    def suits(self, start: str, minutes: int) -> bool:
        """Whether a time is within the limits."""
        day = date.fromisoformat(start[:10])
        return (
            self.first_day <= day <= self.last_day
            and self.least <= minutes <= self.most
            and day.weekday() in self.weekdays
            and _monday(start) not in self.full_weeks
        )


def _monday(start: str) -> date:
    day = date.fromisoformat(start[:10])
    return day - timedelta(days=day.weekday())


@dataclass(frozen=True, slots=True)
class _WishesAndLimits:
    ask: BookingContent
    limits: PolicyLimits

    def suits(self, start: str, minutes: int) -> bool:
        return self.limits.suits(start, minutes) and self.ask.suits(start, minutes)


def service_code(scene: ClinicScene, service: str) -> str:
    """Return the code of a service."""
    return next(
        practitioner.service.code for practitioner in scene.practitioners if practitioner.service.display == service
    )


def values_for(ask: BookingContent, scene: ClinicScene, library: Library) -> dict[str, str]:
    """Return what the policies say about a requested service."""
    return library.values(BOOKING.code, service_code(scene, ask.service), parse_instant(scene.now))


def limits_for(values: Mapping[str, str], ask: BookingContent, patient: str, calendar: Calendar) -> PolicyLimits | None:
    """Return the limits for an appointment of a patient; None if the desk must not book for the patient."""
    schedules = calendar.scene.schedules_for(ask.service)
    appointments = [
        Attendance(slot.start, status, slot.schedule in schedules)
        for whose, slots, status in calendar.visits.values()
        if whose == patient
        for slot in slots[:1]
    ]
    return PolicyLimits.of(values, date.fromisoformat(calendar.scene.now[:10]), appointments)


def decide(
    ask: BookingContent, patient: str, calendar: Calendar, limits: PolicyLimits | None, *, is_booked: bool
) -> tuple[str, ClinicSlot | None]:
    """Return the outcome of a request, and the slot that the rules choose if it is done."""
    if is_booked:
        return ALREADY_DONE, None
    if limits is None:
        return NOT_ALLOWED, None
    slot = calendar.first_free(patient, _WishesAndLimits(ask, limits), ask.wants)
    return (NO_FREE_TIME, None) if slot is None else (DONE, slot)


def slots_within_limits(ask: BookingContent, patient: str, scene: PolicyClinicScene) -> Iterator[Resource]:
    """Yield, for each practitioner whom the patient wants, a slot that does not exist and would suit."""
    limits = limits_for(values_for(ask, scene, scene.library), ask, patient, Calendar.at_start(scene))
    if limits is None:
        return
    minutes = max(limits.least, min(USUAL_MINUTES, limits.most))
    both = _WishesAndLimits(ask, limits)
    yield from slots_that_would_fit(scene, patient, both, minutes, ask.wants, until=limits.last_day)


class PolicyBookingJudge(BookingJudge[PolicyClinicScene]):
    """Judges bookings that policies limit."""

    @override
    def best(self, number: int, calendar: Calendar) -> ClinicSlot | None:
        request = self.requests[number]
        if len(request.patients) != 1:
            return None
        ask, patient = request.ask, request.patients[0]
        limits = limits_for(values_for(ask, self.scene, self.scene.library), ask, patient, calendar)
        return decide(ask, patient, calendar, limits, is_booked=bool(coming(calendar, ask, patient)))[1]

    @override
    def is_rightly_declined_for_patient(self, number: int) -> bool:
        request, answer = self.requests[number], self.answers[number]
        ask, patient = request.ask, request.patients[0]
        booked = coming(self.start, ask, patient)
        if booked:
            return answer == ALREADY_DONE and any(self.log.has_seen([f"Appointment/{id}"]) for id in booked)
        values = values_for(ask, self.scene, self.scene.library)
        limits = limits_for(values, ask, patient, self.start)
        if not self._has_read(ask.service, limits.points if limits else {_MISSED}):
            return False
        if limits is None:
            return answer == NOT_ALLOWED and self._has_seen_missed(patient, int(values[_MISSED].split()[0]))
        slots = [*slots_within_limits(ask, patient, self.scene)]
        if not slots:  # after an amendment, the wishes may lie outside the limits, so there is nothing to look for
            return answer == NO_FREE_TIME and self.best(number, self.planned(number)) is None
        return answer == NO_FREE_TIME and self.looked_for_slots(number, slots, lambda slot: self.best(number, slot))

    def _has_read(self, service: str, points: Collection[str]) -> bool:
        """Whether the agent has read the documents that settle some points for a service."""
        department, now = service_code(self.scene, service), parse_instant(self.scene.now)
        return self.log.has_seen(self.scene.library.documents_for(BOOKING.code, department, now, points))

    def _has_seen_missed(self, patient: str, count: int) -> bool:
        """Whether the agent has seen at least `count` missed appointments of a patient."""
        missed = (visit.id for visit in self.scene.visits if visit.patient == patient and visit.status == MISSED)
        return sum(self.log.has_seen([f"Appointment/{id}"]) for id in missed) >= count
