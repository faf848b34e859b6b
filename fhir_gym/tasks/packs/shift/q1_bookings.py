"""Tasks Q1-1 and Q1-2: requests for appointments."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, ClassVar, Generic

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator, instant
from fhir_gym.tasks.grading import same_moment
from fhir_gym.tasks.packs.shift.calendar import (
    EARLIER_REQUESTS_IGNORED,
    USUAL_MINUTES,
    C,
    Calendar,
    CalendarJudge,
    draw_mistake,
    slots_that_would_fit,
)
from fhir_gym.tasks.packs.shift.clinic import LANGUAGES, ClinicScene, ClinicSlot, Practitioner, draw_clinic
from fhir_gym.tasks.packs.shift.kind import Knowledge, RequestSampler, ShiftSize, Solution
from fhir_gym.tasks.packs.shift.lookups import Named, search_all
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NO_FREE_TIME, NO_SUCH_PATIENT, SEVERAL_PATIENTS
from fhir_gym.tasks.packs.shift.patient_records import other_values
from fhir_gym.tasks.packs.shift.patients import (
    PATIENT_RULE,
    PatientJudge,
    PatientKind,
    PatientRequest,
    ids_of,
    names_for,
    target_among,
)
from fhir_gym.tasks.packs.shift.place_records import PlaceRecords, look_up_place, take_slot
from fhir_gym.tasks.packs.shift.preferences import WISHES, TimePreferences, draw_time_wishes
from fhir_gym.tasks.packs.shift.static_task import StaticShift
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
        practitioner = self.scene.by_schedule()[slot.schedule].person.id
        yield from other_values(appointment, status="booked")
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


_TRIES = 60
"""Number of wishes that are drawn for each patient."""
_MOST_TRIED = 6
"""Number of patients for whom a request is sought that a mistake would change."""


class BookingSampler(RequestSampler[ClinicScene, BookingRequest]):
    """Draws the wishes of a patient until they have an outcome, which a mistake would often change."""

    def __init__(self, rng: random.Random, now: datetime, scene: ClinicScene, outcomes: Sequence[str]) -> None:
        super().__init__(rng, now, scene, outcomes)
        self._calendar = Calendar.at_start(scene)
        self._names = {outcome: names_for(rng, scene.people, outcome) for outcome in dict.fromkeys(outcomes)}

    @override
    def draw(self, outcome: str, *, depends: bool) -> BookingRequest | None:
        used = [request.ask.patient for request in self.chosen]
        left = [name for name in self._names[outcome] if name not in used]
        mistake = EARLIER_REQUESTS_IGNORED if depends else draw_mistake(self.rng, outcome)
        request = self._first(left if depends else left[:_MOST_TRIED], outcome, mistake)
        if request is None and mistake and not depends:
            request = self._first(left, outcome)
        return request

    @override
    def apply(self, request: BookingRequest) -> None:
        if request.outcome == DONE:
            self._calendar.book(request.patients[0], best_slot(self._calendar, request.ask, request.patients[0]))

    def _first(self, names: Sequence[Named], outcome: str, mistake: str = "") -> BookingRequest | None:
        return next(filter(None, (self._draw(name, outcome, mistake) for name in names)), None)

    def _draw(self, name: Named, outcome: str, mistake: str) -> BookingRequest | None:
        """Draw wishes of a patient until they have an outcome, which the mistake would change; None if they do not."""
        people = self.scene.people
        ids = ids_of(name, people)
        calendar = self._calendar.fixed()
        seen = calendar.as_seen_by(mistake, ids[0]).fixed() if mistake else None
        for _ in range(_TRIES):
            ask = self._draw_ask(name)
            if seen and best_slot(seen, ask, ids[0]) == best_slot(calendar, ask, ids[0]):
                continue
            if len(ids) != 1 or _outcome(ask, ids[0], calendar) == outcome:
                return BookingRequest(ask=ask, outcome=outcome, patients=ids, **target_among(ids, people))
        return None

    def _draw_ask(self, name: Named) -> BookingContent:
        rng = self.rng
        wishes = draw_wishes(rng, self.now.date())
        chosen = rng.sample(sorted(wishes), rng.choice((1, 2, 2, 3)))
        service = rng.choice(sorted({practitioner.service.display for practitioner in self.scene.practitioners}))
        return BookingContent(patient=name, service=service, **{wish: wishes[wish] for wish in chosen})


PLACE_RULE = (
    "- All requests are for {place} (a Location). A slot belongs to {place} if {place} is an actor of the slot's "
    "schedule. The service of a slot is the specialty of its schedule."
)
BOOKED_RULE = (
    "- If the patient already has a coming appointment (status booked or pending, it starts after the present) in a "
    f'slot of {{place}} for the service, do not book another one: the outcome is "{ALREADY_DONE}".'
)
TO_BOOK = (
    "- To book, create one Appointment with status booked that refers to the slot and has the slot's start and end; "
    "its participants are the patient and the practitioner, both with status accepted (the Location may be added in "
    "the same way). Set the status of the slot to busy, and leave the rest of the slot as it is."
)


class BookingKind(PatientKind[C, BookingRequest]):
    """A kind of requests for appointments."""

    depending = (DONE, NO_FREE_TIME)
    minutes = 6
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Appointment": ("status", "start", "end", "slot", "participant", "participant.actor", "participant.status")
    }

    @override
    def rule_values(self, scene: C) -> Mapping[str, str]:
        return {"place": scene.name}

    @override
    def text(self, ask: BookingContent, wording: int) -> str:
        who = ask.patient
        first = (
            f"{who.given} {who.family}, born {who.birth_date}, would like an appointment in {ask.service}.",
            f"Please find a time in {ask.service} for {who.given} {who.family} (date of birth {who.birth_date}).",
            f"{ask.service}: {who.given} {who.family}, {who.birth_date}, needs an appointment.",
        )[wording]
        return " ".join([first, *_wishes(ask)])


class Bookings(BookingKind[ClinicScene]):
    """Book appointments for patients who state their wishes."""

    key = "Q1"
    title = "Requests for appointments"
    sampler_type = BookingSampler
    judge_type = BookingJudge
    codes = (NO_SUCH_PATIENT, SEVERAL_PATIENTS, ALREADY_DONE, NO_FREE_TIME)
    resource_types = ("Patient", "Slot", "Schedule", "Appointment")
    rules = (
        f"{PLACE_RULE}\n"
        f"{PATIENT_RULE}\n"
        f"{BOOKED_RULE}\n"
        "- Otherwise use a free slot (status free) that starts after the present, is for the service, meets every "
        "wish, and does not overlap an appointment of the patient with status booked, pending or arrived. Among "
        "several, take the one that starts first; if several start at that time, the one of the practitioner whose "
        f"family name comes first in the alphabet; then the one with the lower id. {WISHES} If there is no such slot, "
        f'the outcome is "{NO_FREE_TIME}".\n'
        f"{TO_BOOK}"
    )

    @override
    def draw_scene(self, rng: random.Random, world: World, ids: IdAllocator, size: ShiftSize) -> ClinicScene:
        if size.level == 1:
            return draw_clinic(rng, world, ids, people=(12,), twins=3, practitioners=5, services=2, days=4, per_day=5)
        people = size.groups((13, 14), 14)
        return draw_clinic(rng, world, ids, people=people, twins=4, practitioners=9, services=3, days=7, per_day=6)

    @override
    def solve_for(self, patient: Resource, ask: BookingContent, knowledge: Knowledge) -> Solution:
        looked_up = knowledge.looked_up
        if not looked_up:
            looked_up["place"] = yield from look_up_place(knowledge.rule_values["place"])
        place: PlaceRecords = looked_up["place"]
        id, now = str(patient["id"]), knowledge.now
        mine = yield from search_all("/Appointment", {"patient": f"Patient/{id}", "_count": "200"})
        if coming(place.calendar(now, (), mine), ask, id):
            return ALREADY_DONE
        query = {"schedule.actor": place.place, "start": f"gt{instant(now)}", "status": "free", "_count": "200"}
        slot = yield from take_slot(query, lambda slots: best_slot(place.calendar(now, slots, mine), ask, id))
        if slot is None:
            return NO_FREE_TIME
        yield place.booking(slot, id)
        return DONE

    @override
    def missing_records(self, request: BookingRequest, scene: ClinicScene) -> Iterator[Resource]:
        return fitting_slots(request, scene)


def _outcome(ask: BookingContent, patient: str, calendar: Calendar) -> str:
    """Return the outcome of an ask; an empty text if nobody meets the wishes, or one of them makes no difference."""
    if not any(ask.wants(practitioner) for practitioner in calendar.scene.practitioners):
        return ""  # without a practitioner, there is no slot that the agent could have looked for
    if coming(calendar, ask, patient):
        return ALREADY_DONE
    best = best_slot(calendar, ask, patient)
    if best is None:
        return NO_FREE_TIME
    return DONE if all(best_slot(calendar, booking, patient) != best for booking in ask.without_one_wish()) else ""


class BookingsLevel1(StaticShift, requests=Bookings(), level=1):
    """Handle four or five requests for appointments.

    Starting state: a place with five practitioners of two services, who speak different languages, and about two weeks
        of slots of several lengths and statuses. There are fifteen patients with similar names; three of them share
        name and date of birth with another patient. Each patient has up to three appointments. The requests are chosen
        at random among those for which every wish makes a difference.
    Decoys: earlier slots that miss one wish, are not free or overlap an appointment of the patient.
    Checks: each request is judged against the calendar that the agent met when it wrote. A declined request needs its
        outcome, and lookups that would have shown the opposite. Nothing else changed.
    Light: none of the checks.
    """


class BookingsLevel2(StaticShift, requests=Bookings(), level=2):
    """Handle ten to fourteen requests for appointments that compete for slots.

    Starting state: as at level 1, with nine practitioners of three services, about 400 slots and 24 patients.
    Decoys: as at level 1, and slots that earlier requests take.
    Checks: as at level 1.
    Light: none of the checks.
    """


TASKS = (BookingsLevel1, BookingsLevel2)
