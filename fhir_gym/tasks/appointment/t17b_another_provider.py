"""Task 17b: move an appointment to another provider."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from fhir_gym.actions import Action, Finish, Get, Put
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Ids as IdsAnswer
from fhir_gym.tasks.appointment.bookings import (
    NEW_REMARKS,
    Booking,
    accepted,
    answered,
    booked,
    new_booking,
    participants_check,
    place_checks,
)
from fhir_gym.tasks.appointment.clinic import Opening, moved_opening, slot, slot_checks
from fhir_gym.tasks.appointment.openings import AT_PLACE, NEXT_WEEKDAY, Diary, Place, clinic_resources, new_clinic
from fhir_gym.tasks.bundles import entries, reference
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.clock import WEEKDAYS, at, next_weekday
from fhir_gym.tasks.compare import differences
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person, new_person, other_given, patient, relative_with
from fhir_gym.tasks.task import Fhir, Gold, Task, Touch
from fhir_gym.types import Json, Resource

__all__ = ["TASKS", "AnotherProvider", "AnotherProviderParams"]

_MINUTES = 60
_HOURS = range(8, 17)
_PROVIDERS = 3


class AnotherProviderParams(Params):
    """Values of task 17b.

    Attributes:
        patient: Whose appointment.
        other: Another patient.
        places: The clinic, and its annex.
        diaries: The schedules of the provider who declined, of the one who is free, of one who is not, and of one at
            the annex.
        weekday: Day of the appointment, Monday being 0.
        booking: The appointment to move.
        others: Other appointments.
        target: The slot to move it to.
        decoys: Other slots.
    """

    patient: Person
    other: Person
    places: tuple[Place, Place]
    diaries: tuple[Diary, ...]
    weekday: int
    booking: Booking
    others: tuple[Booking, ...]
    target: Opening
    decoys: tuple[Opening, ...]

    @property
    def new_provider(self) -> Person:
        """Who is free at that time."""
        return self.diaries[1].provider


class AnotherProvider(Task[AnotherProviderParams]):
    """Move an appointment that a provider declined to another provider at the same time.

    Starting state: the patient's proposed appointment, which its practitioner declined, and its busy slot; one other
        provider of the clinic with a free slot at that time.
    Decoys: a free slot at that time of the provider who declined, and of one at another place whose name starts with
        the clinic's; a provider of the clinic whose slots at that time are taken; free slots of the new provider at
        another hour, the days before and after, a week later and a week earlier; the patient's proposed and booked
        appointments on other days, and a cancelled one on that day; another patient's at that time.
    Checks: one appointment booked in that slot with its times, the patient and the new provider, both accepted: the
        old one, else unchanged, or a new one, the old one being cancelled and else unchanged; the old slot free, the
        new one busy, both else unchanged; the answer names the appointment that is booked now and its slot.
    Light: an appointment was changed or created, and both slots were updated.
    Differs from FHIR-AgentEval: that the old slot becomes free and the appointment booked is told; so is where to
        look for another provider; to cancel and make anew is accepted, but the old one may not stay proposed; so
        creating is not prohibited; "next" is defined.
    """

    key = "17b"
    title = "Reschedule with another provider"
    category = "Scheduling & Appointments"
    difficulty = 3
    kind = "action"
    required_tools = (
        ("search", "search", "update", "update", "update"),
        ("search", "search", "search", "update", "update", "update"),
        ("search", "search", "search", "read", "update", "update", "update"),
        ("search", "search", "read", "update", "search", "update", "update"),
        ("search", "read", "search", "read", "update", "update", "update"),
        ("search", "search", "search", "read", "update", "read", "update", "update"),
        ("search", "search", "create", "update", "update", "update"),
    )
    required_resources = ("Slot", "Appointment")
    prohibited_tools = ("delete",)
    prompts = (
        "The provider of {patient} (Patient/{id}) has declined the appointment next {weekday} at {hour}:00. Move it to "
        "another provider of {clinic} (Location/{place}) who is free at that time.",
        "Patient/{id}, {patient}, is to be seen next {weekday} at {hour}:00, but the practitioner declined. Reschedule "
        "the appointment, at the same time, with another provider who has a free slot at Location/{place}, {clinic}.",
        "Find another provider at {clinic} (Location/{place}) for the proposed appointment of {patient} (Patient/{id}) "
        "next {weekday}, {hour}:00, and move it there without changing the time.",
    )
    ending = (
        f"{NEXT_WEEKDAY}{AT_PLACE}Use the free slot of that place that starts at that time and whose schedule has "
        "another practitioner as actor. In the end one appointment has status booked, refers to this slot alone, has "
        "the slot's start and end, and has the patient and the new practitioner, and nobody else, as participants with "
        "status accepted: either change the proposed appointment itself, or set its status to cancelled and create a "
        "new one. Set the status of the new slot to busy and the status of the slot the appointment was in before to "
        "free. Leave everything else as it is and delete nothing. Finish with "
        'FINISH(["<appointment id>", "<slot id>"]): the appointment that is booked now, and its slot.'
    )
    answer = IdsAnswer(("Appointment", "Slot"))
    gold_steps = 7
    harmless: ClassVar[Mapping[str, Mapping[str, Json]]] = {"Appointment": {"comment": "Another provider steps in"}}

    def sample(self, rng: random.Random, world: World) -> AnotherProviderParams:
        """Draw people, the clinic, and times."""
        ids = Ids(rng, world, 50)
        person = new_person(rng, world, ids.new())
        other = relative_with(rng, person, ids.new(), given=other_given(rng, person))
        places, diaries = new_clinic(rng, world, ids, _PROVIDERS)
        declined, free, taken, annex = diaries
        weekday = rng.randrange(7)
        day = next_weekday(world.now, weekday)
        hour, other_hour, last_hour = rng.sample(_HOURS, 3)

        def booking(who: Person, diary: Diary, days: int, hour: int, status: str) -> Booking:
            start = at(day + timedelta(days=days), hour)
            return new_booking(rng, ids, who, diary, start, _MINUTES, status)

        moving = booking(person, declined, 0, hour, "proposed")
        target = moved_opening(moving.opening, ids.new(), schedule=free.id, status="free")
        return AnotherProviderParams(
            patient=person,
            other=other,
            places=places,
            diaries=diaries,
            weekday=weekday,
            booking=moving,
            others=(
                booking(person, declined, 7, hour, "proposed"),
                booking(person, declined, rng.choice((1, 2, 3)), hour, "booked"),
                booking(person, taken, 0, last_hour, "cancelled"),
                booking(other, taken, 0, hour, "proposed"),
            ),
            target=target,
            decoys=(
                moved_opening(target, ids.new(), schedule=declined.id),
                moved_opening(target, ids.new(), schedule=annex.id),
                moved_opening(target, ids.new(), schedule=taken.id, status="busy-unavailable"),
                moved_opening(target, ids.new(), schedule=taken.id, start=at(day, other_hour)),
                moved_opening(target, ids.new(), start=at(day, other_hour)),
                *(moved_opening(target, ids.new(), start=at(day + timedelta(days=n), hour)) for n in (-7, -1, 1, 7)),
            ),
        )

    def setup(self, p: AnotherProviderParams, world: World) -> list[Resource]:
        """People, places, schedules, slots, appointments."""
        bookings = (p.booking, *p.others)
        return [
            patient(p.patient),
            patient(p.other),
            *clinic_resources(p.places, p.diaries, world),
            *map(slot, (p.target, *p.decoys, *(one.opening for one in bookings))),
            *map(_on_file, bookings),
        ]

    def words(self, p: AnotherProviderParams, world: World) -> dict[str, str]:
        """The patient, the clinic, and the time."""
        return {
            "patient": p.patient.name,
            "id": p.patient.id,
            "clinic": p.places[0].name,
            "place": p.places[0].id,
            "weekday": WEEKDAYS[p.weekday],
            "hour": p.target.start[11:13],
        }

    def gold(self, p: AnotherProviderParams, fhir: Fhir) -> Gold:
        """Find the appointment, a slot of someone else, the old slot; move; take the new slot, free the old one."""
        when = p.booking.opening.start
        query = {"patient": p.patient.id, "date": when, "status": "proposed"}
        found = next(entries((yield Get("/Appointment", query))))
        query = {"schedule.actor": f"Location/{p.places[0].id}", "start": when, "status": "free"}
        near = list(entries((yield Get("/Slot", {**query, "_include": "Slot:schedule"}))))
        providers = {f"Schedule/{one['id']}": _provider(one) for one in near if one["resourceType"] == "Schedule"}
        slots = ((one, providers[one["schedule"]["reference"]]) for one in near if one["resourceType"] == "Slot")
        here = {one["actor"]["reference"] for one in found["participant"]}
        free, provider = next((one, provider) for one, provider in slots if provider not in here)
        left = yield Get(f"/{found['slot'][0]['reference']}")
        yield Put(f"/Appointment/{found['id']}", _moved(found, f"Patient/{p.patient.id}", free, provider))
        yield Put(f"/Slot/{free['id']}", {**free, "status": "busy"})
        yield Put(f"/Slot/{left['id']}", {**left, "status": "free"})
        yield Finish([found["id"], free["id"]])

    def near_misses(self, p: AnotherProviderParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Another slot, or another appointment, moved consistently; a new appointment beside the old one."""
        for opening in p.decoys:
            yield f"moves it to Slot/{opening.id}", self._moving(p, p.booking, opening)
        for one in p.others:
            yield f"moves the {one.status} one at {one.opening.start}", self._moving(p, one, p.target)
        move, *slots, _ = self._moving(p, p.booking, p.target)
        make, off, *_, finish = self._anew(p)
        old = _on_file(p.booking)
        yield "makes a new one, the old one stays proposed", [make, *slots, finish]
        noshow = Put(off.url, {**old, "status": "noshow"})
        yield "makes a new one, the old one is a no-show", [make, noshow, *slots, finish]
        changed = Put(off.url, {**old, "status": "cancelled", "description": "Something else"})
        yield "makes a new one, the old one is cancelled and changed", [make, changed, *slots, finish]
        yield "moves it and makes a new one too", [make, move, *slots, finish]
        yield "makes a new one, and answers the old one", [make, off, *slots, Finish([p.booking.id, p.target.id])]
        yield "cancels only", [off, *slots, Finish([p.booking.id, p.target.id])]

    def equivalents(self, p: AnotherProviderParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Cancel and make anew."""
        yield "cancels it and makes a new one", self._anew(p)
        make, off, *rest = self._anew(p)
        yield "makes a new one, then cancels it", [off, make, *rest]

    def touches(self, p: AnotherProviderParams) -> tuple[Touch, ...]:
        """The appointment, perhaps a new one, both slots."""
        slots = (Touch("updated", "Slot", one.id) for one in (p.booking.opening, p.target))
        return (Touch("updated", "Appointment", p.booking.id), Touch("created", "Appointment"), *slots)

    def rests_on(self, p: AnotherProviderParams) -> tuple[str, ...]:
        """The appointment and both slots."""
        return (f"Appointment/{p.booking.id}", f"Slot/{p.booking.opening.id}", f"Slot/{p.target.id}")

    def checks(self, p: AnotherProviderParams, end: EndState) -> Iterator[Check]:
        """The appointment that stands now, the old one, the slots, the answer."""
        made = end.created("Appointment")
        before, after = end.updated("Appointment", p.booking.id) or ({}, {})
        stands = made[0] if made else after
        names = [f"Appointment/{one['id']}" for one in (*made, after) if one]
        yield Check(
            name="appointment moved or made",
            passed=bool(stands),
            expected=f"Appointment/{p.booking.id} or a new one",
            actual=names,
            level="exists",
        )
        yield equal("appointment status", stands.get("status"), "booked")
        both = accepted(f"Patient/{p.patient.id}", f"Practitioner/{p.new_provider.id}")
        yield participants_check(end, stands, both)
        yield from place_checks(end, stands, p.target)
        stayed = ("status",) if made else ("status", "participant", "slot", "start", "end")
        may_add = ("cancelationReason", *NEW_REMARKS) if made else NEW_REMARKS
        rest = differences(before, after, changing=stayed, may_add=may_add, base_url=end.base_url)
        right = bool(after) and not rest
        yield Check(name="rest of the old appointment unchanged", passed=right, expected={}, actual=rest)
        status = after.get("status")
        over = bool(after) and (not made or status == "cancelled")
        wanted = "cancelled" if made else "as it is"
        yield Check(name="old appointment does not stand too", passed=over, expected=wanted, actual=status)
        yield from slot_checks(end, p.booking.opening, "free", called="old slot")
        yield from slot_checks(end, p.target, "busy", called="new slot")
        yield answered(end, Appointment=stands.get("id", "the id of the booked appointment"), Slot=p.target.id)

    def _moving(self, p: AnotherProviderParams, booking: Booking, to: Opening) -> list[Action]:
        """All that moves an appointment, and the answer."""
        provider = next(diary.provider.id for diary in p.diaries if diary.id == to.schedule)
        who = f"Patient/{booking.patient}"
        left = booking.opening
        return [
            Put(f"/Appointment/{booking.id}", _moved(_on_file(booking), who, slot(to), f"Practitioner/{provider}")),
            Put(f"/Slot/{to.id}", {**slot(to), "status": "busy"}),
            Put(f"/Slot/{left.id}", {**slot(left), "status": "free"}),
            Finish([booking.id, to.id]),
        ]

    def _anew(self, p: AnotherProviderParams) -> list[Action]:
        """All that puts a new appointment in the place of the old one, and the answer."""
        old, to, left = _on_file(p.booking), slot(p.target), slot(p.booking.opening)
        made = _moved(old, f"Patient/{p.patient.id}", to, f"Practitioner/{p.new_provider.id}")
        off = {**old, "status": "cancelled", "cancelationReason": {"text": "Provider declined"}}
        return [
            Put("/Appointment/mine", {**made, "id": "mine"}),
            Put(f"/Appointment/{p.booking.id}", off),
            Put(f"/Slot/{to['id']}", {**to, "status": "busy"}),
            Put(f"/Slot/{left['id']}", {**left, "status": "free"}),
            Finish(["mine", to["id"]]),
        ]


def _on_file(booking: Booking) -> Resource:
    """An appointment; the practitioner declined it if it is proposed."""
    answer = "declined" if booking.status == "proposed" else "accepted"
    whole = booked(booking)
    return {**whole, "participant": [whole["participant"][0], {**whole["participant"][1], "status": answer}]}


def _provider(schedule: Resource) -> str:
    """The practitioner whose schedule it is."""
    actors = [str(one["reference"]) for one in schedule["actor"]]
    return next(one for one in actors if one.startswith("Practitioner/"))


def _moved(appointment: Resource, patient: str, free: Resource, provider: str) -> Resource:
    """An appointment in the slot of another provider."""
    return {
        **appointment,
        "status": "booked",
        "slot": [reference("Slot", free["id"])],
        "start": free["start"],
        "end": free["end"],
        "participant": accepted(patient, provider),
    }


TASKS = (AnotherProvider,)
