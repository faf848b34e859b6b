"""Wishes for appointments, the rules that choose a slot, and the judgement of bookings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from fhir_gym.tasks.authoring import at, instant, parse_instant, patient_resource
from fhir_gym.tasks.grading import differences, same_moment
from fhir_gym.tasks.packs.shift.clinic import OCCUPIED, ClinicScene, ClinicSlot, Practitioner, overlap, slot_resource
from fhir_gym.tasks.packs.shift.kind import Ask, Judgement, Request
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NO_FREE_TIME, NO_SUCH_PATIENT, SEVERAL_PATIENTS
from fhir_gym.tasks.packs.shift.writes import EpisodeLog, Write
from fhir_gym.types import Json, Resource

COMING = ("booked", "pending")
"""Statuses with which a coming appointment makes another one needless."""
_NOON = 12
_FIRST_HOUR, _LAST_HOUR = 8, 16
_SHORTEST = 30


class BookingAsk(Ask):
    """A wish for an appointment.

    Attributes:
        patient: The patient's name and date of birth.
        service: Display of the service.
        language: Code of a language that the practitioner must speak, or an empty text.
        gender: Sex of the practitioner, or an empty text.
        weekdays: Weekdays that suit the patient (Monday is 0); empty if all do.
        part: ``morning``, ``afternoon`` or an empty text.
        first_day: The first day that suits the patient, or an empty text.
        minutes: Minimum length in minutes; 0 for any length.
    """

    patient: Named
    service: str
    language: str = ""
    gender: str = ""
    weekdays: tuple[int, ...] = ()
    part: str = ""
    first_day: str = ""
    minutes: int = 0

    def suits(self, start: str, minutes: int) -> bool:
        """Whether a time suits the patient."""
        moment = parse_instant(start)
        return (
            (not self.weekdays or moment.weekday() in self.weekdays)
            and (not self.part or (moment.hour < _NOON) == (self.part == "morning"))
            and start[:10] >= self.first_day
            and minutes >= self.minutes
        )

    def wants(self, practitioner: Practitioner) -> bool:
        """Whether a practitioner is one whom the patient wants."""
        return (
            practitioner.service.display == self.service
            and self.gender in ("", practitioner.person.gender)
            and (not self.language or self.language in practitioner.languages)
        )


class BookingRequest(Request):
    """A request for an appointment.

    Attributes:
        ask: What the request says.
        patients: Ids of the patients with this name and date of birth.
    """

    ask: BookingAsk
    patients: tuple[str, ...]


@dataclass(slots=True)
class Calendar:
    """The slots and appointments of a place at one moment.

    Attributes:
        scene: The place.
        now: Current time, an instant.
        status: Status of each slot by its id.
        visits: For each appointment by its id: the patient, the slots and the status.
    """

    scene: ClinicScene
    now: str
    status: dict[str, str]
    visits: dict[str, tuple[str, tuple[ClinicSlot, ...], str]]

    @classmethod
    def at_start(cls, scene: ClinicScene, now: str) -> Calendar:
        """Return the calendar at the start of the episode."""
        status = {slot.id: slot.status for slot in scene.slots}
        return cls(scene, now, status, {one.id: (one.patient, (one.slot,), one.status) for one in scene.visits})

    def book(self, patient: str, slot: ClinicSlot) -> None:
        """Add an appointment of a patient in a slot."""
        self.visits[f"new in {slot.id}"] = patient, (slot,), "booked"

    def coming(self, ask: BookingAsk, patient: str) -> list[str]:
        """Return the ids of the patient's coming appointments for the requested service."""
        doctors = self.scene.by_schedule()
        return [
            id
            for id, (whose, slots, status) in self.visits.items()
            if whose == patient
            and status in COMING
            and any(one.start > self.now and doctors[one.schedule].service.display == ask.service for one in slots)
        ]

    def best(self, ask: BookingAsk, patient: str) -> ClinicSlot | None:
        """Return the slot that the rules choose; None if no slot fits."""
        doctors = self.scene.by_schedule()
        occupied = [slot for _, slots, status in self.visits.values() if status in OCCUPIED for slot in slots]
        taken = {slot.id for slot in occupied}
        own = self.occupied_times(patient)
        fitting = [
            slot
            for slot in self.scene.slots
            if self.status[slot.id] == "free"
            and slot.id not in taken
            and slot.start > self.now
            and ask.suits(slot.start, slot.minutes)
            and ask.wants(doctors[slot.schedule])
            and not any(overlap(slot, other) for other in own)
        ]
        return min(fitting, key=lambda one: (one.start, doctors[one.schedule].person.family, one.id), default=None)

    def occupied_times(self, patient: str) -> list[ClinicSlot]:
        """Return the slots of the appointments that occupy a patient's time."""
        return [
            slot
            for whose, slots, status in self.visits.values()
            if whose == patient and status in OCCUPIED
            for slot in slots
        ]


def without_one_wish(ask: BookingAsk) -> Iterator[BookingAsk]:
    """Yield the ask without each of its wishes."""
    for name, field in BookingAsk.model_fields.items():
        if not field.is_required() and getattr(ask, name) != field.default:
            yield ask.model_copy(update={name: field.default})


def fitting_slots(request: BookingRequest, scene: ClinicScene) -> Iterator[Resource]:
    """Yield, for each practitioner whom the patient wants, a free slot that does not exist and would fit."""
    ask, (patient,) = request.ask, request.patients
    own = [one.slot for one in scene.visits if one.patient == patient and one.status in OCCUPIED]
    days = sorted({date.fromisoformat(slot.start[:10]) for slot in scene.slots})
    wanted = [one for one in scene.practitioners if ask.wants(one)]
    for number, practitioner in enumerate(wanted):
        for slot in _possible_slots(days[-1], max(ask.minutes, _SHORTEST), practitioner.schedule):
            if ask.suits(slot.start, slot.minutes) and not any(overlap(slot, other) for other in own):
                yield slot_resource(slot.model_copy(update={"id": f"free-{patient}-{number}"}))
                break


def _possible_slots(last: date, minutes: int, schedule: str) -> Iterator[ClinicSlot]:
    """Yield times in the week before a day, and in the week after it if a patient comes only then."""
    for ahead in (*range(-6, 1), *range(1, 8)):
        for hour in range(_FIRST_HOUR, _LAST_HOUR):
            start = instant(at(last + timedelta(days=ahead), hour, 30))
            yield ClinicSlot(id="", schedule=schedule, start=start, minutes=minutes, status="free")


def absent_patient(name: Named, scene: ClinicScene) -> Resource:
    """Return the record that a patient without a record would have."""
    other = next(one for one in scene.people if one.family == name.family)
    slug = "-".join((name.given, name.family, name.birth_date))
    return patient_resource(other.model_copy(update={**name.model_dump(), "id": re.sub("[^A-Za-z0-9-]", "-", slug)}))


class BookingJudge:
    """Judges bookings against the calendars that the agent met.

    Args:
        requests: The requests.
        scene: The place.
        log: What the agent wrote and looked up.
    """

    def __init__(self, requests: Sequence[BookingRequest], scene: ClinicScene, log: EpisodeLog) -> None:
        self._requests, self._scene, self._log = requests, scene, log
        self._slots = {slot.id: slot for slot in scene.slots}
        self._now = instant(log.end.world.now)
        self._mine = [self._written_for(one) for one in requests]

    def _written_for(self, request: BookingRequest) -> list[Write]:
        """Return the writes of new appointments of the patients."""
        wanted, old = [f"Patient/{id}" for id in request.patients], {one.id for one in self._scene.visits}
        found = self._log.written("Appointment", lambda one: any(self._takes_part(one, patient) for patient in wanted))
        return [one for one in found if one.id not in old]

    def _takes_part(self, appointment: Resource, record: str) -> bool:
        actors = [one.get("actor") for one in appointment.get("participant", []) if isinstance(one, dict)]
        return self._log.refers_to(actors, record)

    def judge(self, answers: Sequence[str]) -> list[Judgement]:
        """Judge all requests."""
        return [self._judge(number, answer) for number, answer in enumerate(answers)]

    def _judge(self, number: int, answer: str) -> Judgement:
        request, writes = self._requests[number], self._mine[number]
        slots = {f"Slot/{id}" for one in writes for id in self._slot_ids(one.after) if id in self._slots}
        claimed = frozenset({one.record for one in writes} | slots)
        left = claimed & self._log.changed
        if not left:
            right = self._declined(number, answer)
            expected = request.outcome if right or answer != request.outcome else f"{answer}, after looking it up"
            return Judgement(right, False, expected, answer, claimed)
        wanted = [self._best(number, one) for one in (self._met(writes, slots), self._planned(number))]
        problems = self._problems(request, left, wanted)
        found: Json = [*problems, answer] if problems or answer != DONE else answer
        expected = next((f"{DONE}, in Slot/{one.id}" for one in wanted if one), request.outcome)
        return Judgement(not problems and answer == DONE, bool(problems), expected, found, claimed)

    def _problems(
        self, request: BookingRequest, left: frozenset[str], wanted: Sequence[ClinicSlot | None]
    ) -> list[Json]:
        """Describe what is wrong with the records that the agent left for a request."""
        appointments = [one for one in left if one.startswith("Appointment/")]
        if len(request.patients) != 1 or len(appointments) != 1:
            return [f"left {one}" for one in sorted(left)]
        made = self._log.end.after.read(*appointments[0].split("/"))
        assert made is not None
        slot = next((one for one in wanted if one and self._slot_ids(made) == [one.id]), None)
        if slot is None:
            return [f"booked {', '.join(f'Slot/{id}' for id in self._slot_ids(made)) or 'no slot'}"]
        problems = [f"left {one}" for one in sorted(left - {appointments[0], f"Slot/{slot.id}"})]
        problems += self._wrong_elements(made, request.patients[0], slot)
        before, after = (view.read("Slot", slot.id) or {} for view in (self._log.end.before, self._log.end.after))
        if after.get("status") != "busy" or differences(before, after, changing=("status",)):
            problems.append(f"Slot/{slot.id} is not busy and otherwise unchanged")
        return problems

    def _wrong_elements(self, made: Resource, patient: str, slot: ClinicSlot) -> Iterator[str]:
        """Yield what is wrong in a new appointment."""
        practitioner = self._scene.by_schedule()[slot.schedule].person.id
        if made.get("status") != "booked":
            yield f"status {made.get('status')}"
        for name, wanted in (("start", slot.start), ("end", slot.end)):
            if not same_moment(made.get(name), wanted):
                yield f"{name} {made.get(name)}"
        needed = {f"Patient/{patient}", f"Practitioner/{practitioner}"}
        listed = [(self._log.end.refers(one.get("actor")), one.get("status")) for one in made.get("participant", [])]
        others = [one for one in listed if one != (f"Location/{self._scene.place}", "accepted")]
        if sorted(others, key=str) != sorted([(one, "accepted") for one in needed], key=str):
            yield f"participants {listed}"

    def _slot_ids(self, appointment: Resource | None) -> list[str]:
        refers = [self._log.end.refers(one) for one in (appointment or {}).get("slot", [])]
        return [one.removeprefix("Slot/") for one in refers if one]

    def _met(self, writes: Sequence[Write], slots: Iterable[str]) -> Calendar:
        """Return the calendar before the first write for a request."""
        numbers = [one.number for one in writes] + [one.number for one in self._log.writes if one.record in slots]
        return self._calendar(min(numbers))

    def _planned(self, number: int) -> Calendar:
        """Return the calendar after the requests with earlier letters, as the agent has handled them."""
        calendar = Calendar.at_start(self._scene, self._now)
        for request, writes in zip(self._requests[:number], self._mine[:number], strict=True):
            for record in sorted({one.record for one in writes} & self._log.changed):
                made = self._log.end.after.read(*record.split("/"))
                for id in self._slot_ids(made):
                    if id in self._slots:
                        calendar.book(request.patients[0], self._slots[id])
        return calendar

    def _best(self, number: int, calendar: Calendar) -> ClinicSlot | None:
        request = self._requests[number]
        if len(request.patients) != 1 or calendar.coming(request.ask, request.patients[0]):
            return None
        return calendar.best(request.ask, request.patients[0])

    def _calendar(self, before: int) -> Calendar:
        """Return the calendar before a write."""
        calendar = Calendar.at_start(self._scene, self._now)
        for one in self._log.writes[:before]:
            if one.resource_type == "Slot" and one.id in calendar.status:
                calendar.status[one.id] = str((one.after or {}).get("status"))
            elif one.resource_type == "Appointment":
                calendar.visits.pop(one.id, None)
                if one.after:
                    calendar.visits[one.id] = self._visit(one.after)
        return calendar

    def _visit(self, appointment: Resource) -> tuple[str, tuple[ClinicSlot, ...], str]:
        """Return the patient, the slots and the status of an appointment; see `Calendar.visits`."""
        patients = (one.id for one in self._scene.people if self._takes_part(appointment, f"Patient/{one.id}"))
        slots = (self._slots[id] for id in self._slot_ids(appointment) if id in self._slots)
        return next(patients, ""), tuple(slots), str(appointment.get("status"))

    def _declined(self, number: int, answer: str) -> bool:
        """Whether a request was rightly declined, after the agent had looked."""
        request = self._requests[number]
        absent = [absent_patient(request.ask.patient, self._scene)] if not request.patients else []
        if absent:
            return answer == NO_SUCH_PATIENT and bool(self._log.lookups_of(absent[0]))
        if len(request.patients) > 1:
            return answer == SEVERAL_PATIENTS and self._log.has_seen([f"Patient/{id}" for id in request.patients])
        start = Calendar.at_start(self._scene, self._now)
        coming = start.coming(request.ask, request.patients[0])
        if coming:
            return answer == ALREADY_DONE and any(self._log.has_seen([f"Appointment/{id}"]) for id in coming)
        return answer == NO_FREE_TIME and self._looked_for_slots(number)

    def _looked_for_slots(self, number: int) -> bool:
        """Whether the agent looked at the slots of all practitioners when no slot fitted."""
        none_planned = self._best(number, self._planned(number)) is None
        for slot in fitting_slots(self._requests[number], self._scene):
            lookups = self._log.lookups_of(slot)
            if not lookups or not (
                none_planned
                or any(self._best(number, self._calendar(self._log.writes_before(one))) is None for one in lookups)
            ):
                return False
        return True
