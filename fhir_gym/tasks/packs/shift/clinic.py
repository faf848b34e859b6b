"""A place with practitioners, their schedules and slots, patients and their appointments."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import cached_property
from itertools import pairwise

from typing_extensions import override

from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import (
    SNOMED,
    Concept,
    IdAllocator,
    Person,
    at,
    instant,
    new_person,
    parse_instant,
    patient_resource,
    practitioner_resource,
    reference,
)
from fhir_gym.tasks.packs.shift.kind import ShiftScene
from fhir_gym.tasks.packs.shift.patients import draw_patients
from fhir_gym.types import Resource

SERVICES = (
    Concept(system=SNOMED, code="394814009", display="General practice"),
    Concept(system=SNOMED, code="394579002", display="Cardiology"),
    Concept(system=SNOMED, code="394582007", display="Dermatology"),
    Concept(system=SNOMED, code="394583002", display="Endocrinology"),
    Concept(system=SNOMED, code="394591006", display="Neurology"),
    Concept(system=SNOMED, code="394585009", display="Obstetrics and gynecology"),
)
LANGUAGES = {"es": "Spanish", "fr": "French", "de": "German", "pt": "Portuguese", "vi": "Vietnamese", "ar": "Arabic"}
"""Languages, besides English, that practitioners may speak."""
OCCUPIED = ("booked", "pending", "arrived")
"""Statuses of appointments that occupy their time."""

_NAMES = ("Ashford", "Birchwood", "Copperfield", "Dunmore", "Elmhurst", "Fairview", "Glenwood", "Hillcrest")
_KINDS = ("Care Center", "Clinic", "Health Center", "Medical Center")
_LENGTHS = (20, 30, 45, 60)
_TAKEN = ("busy", "busy-unavailable", "busy-tentative", "entered-in-error")
_OPEN, _CLOSED = 8 * 60, 17 * 60
_STEP = 15
_TRIES = 100
_PAST_DAYS = 4
_ENDED = ("cancelled", "noshow", "entered-in-error")


class Practitioner(Params):
    """A practitioner with one schedule.

    Attributes:
        service: The specialty of the schedule.
        languages: Codes of the languages, besides English, that the practitioner speaks.
    """

    person: Person
    schedule: str
    service: Concept
    languages: tuple[str, ...]


class ClinicSlot(Params):
    """One slot.

    Attributes:
        start: Start (instant).
        minutes: Length in minutes.
    """

    id: str
    schedule: str
    start: str
    minutes: int
    status: str

    @property
    def end(self) -> str:
        """End (instant)."""
        return instant(parse_instant(self.start) + timedelta(minutes=self.minutes))


class Visit(Params):
    """One appointment in a slot.

    Attributes:
        patient: Id of the patient.
    """

    id: str
    patient: str
    slot: ClinicSlot
    status: str


class ClinicScene(ShiftScene):
    """The records of a place.

    Attributes:
        place: Id of the Location.
        people: The patients. Some of them share name and date of birth with another patient.
        slots: All slots, in no particular order.
    """

    now: str
    place: str
    name: str
    practitioners: tuple[Practitioner, ...]
    people: tuple[Person, ...]
    slots: tuple[ClinicSlot, ...]
    visits: tuple[Visit, ...]

    def order(self, slot: ClinicSlot) -> tuple[str, str, str]:
        """Return the key that puts slots in the order of the rules: start, family name of the practitioner, id."""
        return slot.start, self._families[slot.schedule], slot.id

    @cached_property
    def _families(self) -> dict[str, str]:
        return {practitioner.schedule: practitioner.person.family for practitioner in self.practitioners}

    @cached_property
    def slots_in_order(self) -> tuple[ClinicSlot, ...]:
        """The slots in the order of the rules."""
        return tuple(sorted(self.slots, key=self.order))

    @cached_property
    def coming_slots(self) -> dict[str, list[ClinicSlot]]:
        """The slots that start after the current time, by schedule, in the order of the rules."""
        slots: dict[str, list[ClinicSlot]] = {practitioner.schedule: [] for practitioner in self.practitioners}
        for slot in self.slots_in_order:
            if slot.start > self.now:
                slots[slot.schedule].append(slot)
        return slots

    def by_schedule(self) -> dict[str, Practitioner]:
        """Return the practitioners by the ids of their schedules."""
        return {practitioner.schedule: practitioner for practitioner in self.practitioners}

    def schedules_for(self, service: str) -> frozenset[str]:
        """Return the ids of the schedules for the service with a display."""
        return frozenset(
            practitioner.schedule for practitioner in self.practitioners if practitioner.service.display == service
        )

    @override
    def resources(self) -> list[Resource]:
        doctors = self.by_schedule()
        resources: list[Resource] = [location_resource(self.place, self.name), *map(patient_resource, self.people)]
        for practitioner in self.practitioners:
            resources += [_practitioner(practitioner), schedule_resource(practitioner, self.place, self.now)]
        resources += [slot_resource(slot) for slot in self.slots]
        resources += [
            appointment_resource(visit, doctors[visit.slot.schedule].person.id, self.place) for visit in self.visits
        ]
        return resources


def draw_clinic(
    rng: random.Random,
    world: World,
    ids: IdAllocator,
    *,
    people: Sequence[int],
    twins: int,
    practitioners: int,
    services: int,
    days: int,
    per_day: int,
) -> ClinicScene:
    """Draw a place whose practitioners, patients and slots all come from the same random process."""
    offered = rng.sample(SERVICES, services)
    staff: list[Practitioner] = []
    for number in range(practitioners):
        person = _new_practitioner(rng, world, ids.new("Practitioner"), [practitioner.person for practitioner in staff])
        spoken = tuple(rng.sample(sorted(LANGUAGES), rng.choice((0, 1, 1, 2))))
        service = offered[number % services]
        staff.append(Practitioner(person=person, schedule=ids.new("Schedule"), service=service, languages=spoken))
    everyone = draw_patients(rng, world, ids, people, twins)
    slots = [
        slot for practitioner in staff for slot in draw_slots(rng, world, ids, practitioner.schedule, days, per_day)
    ]
    visits = _visits(rng, ids, everyone, slots, instant(world.now))
    occupied = {visit.slot.id for visit in visits if visit.status in OCCUPIED}
    slots = [slot.model_copy(update={"status": "busy"}) if slot.id in occupied else slot for slot in slots]
    final = {slot.id: slot for slot in slots}
    return ClinicScene(
        now=instant(world.now),
        place=ids.new("Location"),
        name=draw_place_name(rng),
        practitioners=tuple(staff),
        people=tuple(everyone),
        slots=tuple(slots),
        visits=tuple(visit.model_copy(update={"slot": final[visit.slot.id]}) for visit in visits),
    )


def draw_place_name(rng: random.Random) -> str:
    """Draw the name of a place."""
    return f"{rng.choice(_NAMES)} {rng.choice(_KINDS)}"


def _new_practitioner(rng: random.Random, world: World, id: str, others: Sequence[Person]) -> Person:
    """Draw a practitioner whose name differs from those of the others, and whose place in the alphabet is clear."""
    for _ in range(_TRIES):
        person = new_person(rng, world, id, resource_type="Practitioner")
        if all(
            (person.given, person.family) != (other.given, other.family)
            and has_clear_order(person.family, other.family)
            for other in others
        ):
            return person
    raise TaskError(f"no practitioner with a new name after {_TRIES} attempts")


def has_clear_order(name: str, other: str) -> bool:
    """Whether two names are in the same order by code points and by letters without case, accents and punctuation."""
    plain, other_plain = _letters(name), _letters(other)
    return (name < other, name > other) == (plain < other_plain, plain > other_plain)


def _letters(name: str) -> str:
    decomposed = unicodedata.normalize("NFKD", name.casefold().replace("ø", "o"))  # ø has no decomposition
    return "".join(letter for letter in decomposed if letter.isalpha())


def draw_slots(
    rng: random.Random, world: World, ids: IdAllocator, schedule: str, days: int, per_day: int
) -> Iterable[ClinicSlot]:
    """Draw the slots of a schedule; they do not overlap."""
    today = world.now.date()
    working = [day for day in (today + timedelta(days=n) for n in range(-_PAST_DAYS, 3 * days)) if day.weekday() < 5]
    first = sum(day < today for day in working)
    for day in working[: first + days]:
        places = sorted(rng.sample(range(_OPEN, _CLOSED, _STEP), per_day + 1))
        for start, following in pairwise(places):
            fitting = [minutes for minutes in _LENGTHS if minutes <= following - start]
            if fitting:
                yield ClinicSlot(
                    id=ids.new("Slot"),
                    schedule=schedule,
                    start=instant(at(day, start // 60, start % 60)),
                    minutes=rng.choice(fitting),
                    status="free" if rng.random() < 0.55 else rng.choice(_TAKEN),
                )


def _visits(
    rng: random.Random, ids: IdAllocator, people: Sequence[Person], slots: Sequence[ClinicSlot], now: str
) -> list[Visit]:
    """Draw up to three appointments for each patient, in slots that do not overlap; some are cancelled."""
    visits: list[Visit] = []
    left = rng.sample(slots, len(slots))
    for person in people:
        mine: list[ClinicSlot] = []
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            slot = next((slot for slot in left if not any(overlap(slot, other) for other in mine)), None)
            if slot is None:
                break
            left.remove(slot)
            mine.append(slot)
            status = plausible_status(rng.choice(("booked", "booked", "booked", "pending", *_ENDED)), slot.start, now)
            visits.append(Visit(id=ids.new("Appointment"), patient=person.id, slot=slot, status=status))
    return visits


def plausible_status(status: str, start: str, now: str) -> str:
    """Return a status that an appointment with this start can have: nobody has missed a future one yet."""
    return "cancelled" if status == "noshow" and start > now else status


def overlap(slot: ClinicSlot, other: ClinicSlot) -> bool:
    """Whether two slots have some time in common."""
    if slot.start[:10] != other.start[:10]:  # no slot lasts into the next day
        return False
    return slot.start < other.end and other.start < slot.end


def _practitioner(practitioner: Practitioner) -> Resource:
    names = {"en": "English"} | {code: LANGUAGES[code] for code in practitioner.languages}
    spoken = [
        {"coding": [{"system": "urn:ietf:bcp:47", "code": code, "display": name}]} for code, name in names.items()
    ]
    return {**practitioner_resource(practitioner.person), "communication": spoken}


def location_resource(id: str, name: str) -> Resource:
    """Build the Location of a place."""
    return {"resourceType": "Location", "id": id, "status": "active", "name": name}


def schedule_resource(practitioner: Practitioner, place: str, now: str) -> Resource:
    """Build the Schedule of a practitioner at a place."""
    days = {"start": -182, "end": 365}
    horizon = {name: instant(parse_instant(now) + timedelta(days=ahead)) for name, ahead in days.items()}
    return {
        "resourceType": "Schedule",
        "id": practitioner.schedule,
        "active": True,
        "specialty": [practitioner.service.concept],
        "actor": [reference("Practitioner", practitioner.person.id), reference("Location", place)],
        "planningHorizon": horizon,
    }


def slot_resource(slot: ClinicSlot) -> Resource:
    """Build the Slot of a slot."""
    return {
        "resourceType": "Slot",
        "id": slot.id,
        "schedule": reference("Schedule", slot.schedule),
        "status": slot.status,
        "start": slot.start,
        "end": slot.end,
    }


def supposed_slot(slot: ClinicSlot) -> Resource:
    """Build the Slot of a slot that does not exist. Equal slots have equal ids, other slots have others."""
    start = slot.start[:16].replace(":", "")
    return slot_resource(slot.model_copy(update={"id": f"free-{slot.schedule}-{start}-{slot.minutes}"}))


def appointment_resource(visit: Visit, practitioner: str, place: str) -> Resource:
    """Build the Appointment of a visit."""
    return {
        "resourceType": "Appointment",
        "id": visit.id,
        "status": visit.status,
        "start": visit.slot.start,
        "end": visit.slot.end,
        "slot": [reference("Slot", visit.slot.id)],
        "participant": [
            {"actor": reference("Patient", visit.patient), "status": "accepted"},
            {"actor": reference("Practitioner", practitioner), "status": "accepted"},
            {"actor": reference("Location", place), "status": "accepted"},
        ],
    }
