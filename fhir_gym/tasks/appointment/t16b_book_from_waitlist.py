"""Task 16b: from the waitlist into a slot."""

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
    accepted,
    answered,
    find_practitioner,
    new_booking,
    new_opening,
    participants_check,
    place_checks,
    reason,
)
from fhir_gym.tasks.appointment.clinic import Opening, slot, slot_checks
from fhir_gym.tasks.appointment.openings import DOCTOR, Diary
from fhir_gym.tasks.appointment.waitlist import (
    WAITING,
    Waiting,
    WaitlistParams,
    waitlist_cast,
    waitlist_setup,
    waitlist_words,
    waitlisted,
)
from fhir_gym.tasks.bundles import entries, reference
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.clock import at, instant, parse_instant
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.outcomes import updated
from fhir_gym.tasks.people import Person
from fhir_gym.tasks.task import Fhir, Gold, Task, Touch
from fhir_gym.types import Json, Resource

__all__ = ["TASKS", "BookFromWaitlist", "BookFromWaitlistParams"]

_MINUTES = 30


class BookFromWaitlistParams(WaitlistParams):
    """Values of task 16b.

    Attributes:
        entry: The patient's entry.
        target: The doctor's free slot in the requested period.
        decoys: Slots that are taken, outside the period, or the other practitioner's.
    """

    entry: Waiting
    target: Opening
    decoys: tuple[Opening, ...]


class BookFromWaitlist(Task[BookFromWaitlistParams]):
    """Book a patient who is on the waitlist into a free slot of the requested period.

    Starting state: the patient's entry for the doctor, and one free slot of the doctor inside the requested period.
    Decoys: free slots of the doctor that end when the period starts, lie across its start or its end, start when it
        ends, or come later; taken ones inside it; a free one of a practitioner of swapped name inside it, for whom the
        patient waits too; a cancelled entry of the patient, an entry of another patient.
    Checks: that entry booked into that slot with its times, both participants accepted, else unchanged (the requested
        period may go); the slot busy and else unchanged; the answer names both.
    Light: the appointment and the slot were updated.
    Differs from FHIR-AgentEval: the slot must have been free, lie inside the requested period, and be the one the
        appointment refers to; participants in any order; the rest of both must stay.
    """

    key = "16b"
    title = "Move out of the waitlist"
    category = "Scheduling & Appointments"
    difficulty = 3
    kind = "action"
    required_tools = (
        ("search", "search", "read", "update", "update"),
        ("search", "search", "update", "update"),
        ("search", "read", "update", "update"),
        ("search", "read", "update", "read", "update"),
        ("search", "create", "search", "update", "update"),
    )
    required_resources = ("Appointment", "Slot")
    prohibited_tools = ("delete",)
    prompts = (
        "{patient} (Patient/{id}) is on the waitlist of Dr. {doctor}. Book the patient into a free slot of the doctor "
        "within the requested period, reusing the existing appointment.",
        "A slot of Dr. {doctor} has become free in the time that Patient/{id}, {patient}, waits for. Move the patient "
        "from the waitlist into it; change the existing appointment instead of making a new one.",
        "Find a free slot of Dr. {doctor} in the period that {patient} (Patient/{id}) asked for on the waitlist, and "
        "turn the waitlist entry into a booked appointment there.",
    )
    ending = (
        f"{DOCTOR}{WAITING}Take the patient's entry in which that practitioner takes part. A slot is within the "
        "requested period if it starts at or after the period's start and ends at or before its end. Set the "
        "appointment's status to booked, let it refer to the slot alone, give it the slot's start and end, and set the "
        "status of both participants to accepted; its requestedPeriod may stay as it is or be removed. Set the slot's "
        "status to busy. Leave everything else as it is, create and delete nothing. Finish with "
        'FINISH(["<appointment id>", "<slot id>"]).'
    )
    answer = IdsAnswer(("Appointment", "Slot"))
    gold_steps = 6
    harmless: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "Appointment": {"comment": "Moved from the waitlist", "minutesDuration": _MINUTES}
    }

    def sample(self, rng: random.Random, world: World) -> BookFromWaitlistParams:
        """Draw people, the period, and slots in and around it."""
        ids = Ids(rng, world, 40)
        person, other, diaries = waitlist_cast(rng, world, ids)
        days = rng.randrange(3, 11)
        first = world.now.date() + timedelta(days=rng.randrange(1, 8))
        begin = at(first, 9)
        end = begin + timedelta(days=days)

        def waiting(who: Person, diary: Diary, shift: int = 0, status: str = "waitlist") -> Waiting:
            return Waiting(
                id=ids.new(),
                patient=who.id,
                practitioner=diary.provider.id,
                start=instant(begin + timedelta(days=shift)),
                end=instant(end + timedelta(days=shift)),
                description=reason(rng),
                status=status,
            )

        def opening(days: int, minutes: int, status: str = "free", *, diary: Diary = diaries[0]) -> Opening:
            return new_opening(ids, diary, begin + timedelta(days=days, minutes=minutes), _MINUTES, status)

        # The edges of the period count too: its first and its last half hour.
        hours = [(day, half) for day in range(days) for half in range(0, 480, _MINUTES)]
        inside = rng.sample(hours[1:], 4)
        target = rng.choice(((0, 0), (days, -_MINUTES), inside[0], inside[0]))
        decoys = (
            opening(0, -_MINUTES),
            opening(0, -_MINUTES // 2),
            opening(days, -_MINUTES // 2),
            opening(days, 0),
            opening(days + rng.randrange(1, 9), rng.randrange(0, 480, _MINUTES)),
            opening(*inside[1], "busy"),
            opening(*inside[2], rng.choice(("busy-unavailable", "busy-tentative", "entered-in-error"))),
            opening(*inside[3], diary=diaries[1]),
        )
        return BookFromWaitlistParams(
            patient=person,
            other=other,
            diaries=diaries,
            waiting=(
                waiting(person, diaries[1], rng.randrange(1, 3)),
                waiting(person, diaries[0], -rng.randrange(1, 9), "cancelled"),
                waiting(other, diaries[0], rng.randrange(1, 9)),
            ),
            bookings=(
                new_booking(rng, ids, other, diaries[0], begin + timedelta(days=days, hours=3), _MINUTES),
                new_booking(rng, ids, person, diaries[1], end + timedelta(days=rng.randrange(1, 9)), _MINUTES),
            ),
            entry=waiting(person, diaries[0]),
            target=opening(*target),
            decoys=decoys,
        )

    def setup(self, p: BookFromWaitlistParams, world: World) -> list[Resource]:
        """People, schedules, the waitlist, slots."""
        return [*waitlist_setup(p, world), waitlisted(p.entry), *map(slot, (p.target, *p.decoys))]

    def words(self, p: BookFromWaitlistParams, world: World) -> dict[str, str]:
        """Names and the patient's id."""
        return waitlist_words(p)

    def gold(self, p: BookFromWaitlistParams, fhir: Fhir) -> Gold:
        """Find the doctor, the entry, and a free slot in its period; book; take the slot."""
        doctor_id = yield from find_practitioner(p.doctor)
        query = {"patient": p.patient.id, "practitioner": doctor_id, "status": "waitlist"}
        entry = next(entries((yield Get("/Appointment", query))))
        period = entry["requestedPeriod"][0]
        provider = ("schedule.actor", f"Practitioner/{doctor_id}")
        bounds = [("start", f"ge{period['start']}"), ("start", f"lt{period['end']}")]
        free = entries((yield Get("/Slot", [provider, ("status", "free"), *bounds])))
        found = next(one for one in free if parse_instant(one["end"]) <= parse_instant(period["end"]))
        yield Put(f"/Appointment/{entry['id']}", _into(entry, found))
        yield Put(f"/Slot/{found['id']}", {**found, "status": "busy"})
        yield Finish([entry["id"], found["id"]])

    def near_misses(self, p: BookFromWaitlistParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Another slot, or another entry, booked consistently; the period changed."""
        for opening in p.decoys:
            yield f"books Slot/{opening.id}", _booking(p.entry, slot(opening))
        for entry in p.waiting:
            yield f"books the {entry.status} entry {entry.id}", _booking(entry, slot(p.target))
        body = {**_into(waitlisted(p.entry), slot(p.target)), "requestedPeriod": [{"start": p.entry.start}]}
        (_, take, finish) = _booking(p.entry, slot(p.target))
        yield "changes the period", [Put(f"/Appointment/{p.entry.id}", body), take, finish]
        made = {name: value for name, value in body.items() if name not in ("id", "requestedPeriod")}
        off = {**waitlisted(p.entry), "status": "cancelled"}
        new = [Put("/Appointment/mine", {**made, "id": "mine"}), Put(f"/Appointment/{p.entry.id}", off), take]
        yield "makes a new one", [*new, Finish(["mine", p.target.id])]

    def equivalents(self, p: BookFromWaitlistParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """The period stays."""
        body = {**waitlisted(p.entry), **_into(waitlisted(p.entry), slot(p.target))}
        (_, take, finish) = _booking(p.entry, slot(p.target))
        yield "the period stays", [Put(f"/Appointment/{p.entry.id}", body), take, finish]

    def touches(self, p: BookFromWaitlistParams) -> tuple[Touch, ...]:
        """The appointment and the slot."""
        return (Touch("updated", "Appointment", p.entry.id), Touch("updated", "Slot", p.target.id))

    def rests_on(self, p: BookFromWaitlistParams) -> tuple[str, ...]:
        """The entry and the slot."""
        return (f"Appointment/{p.entry.id}", f"Slot/{p.target.id}")

    def checks(self, p: BookFromWaitlistParams, end: EndState) -> Iterator[Check]:
        """The appointment, the slot, the answer."""
        after = end.after_update("Appointment", p.entry.id)
        may_go = () if "requestedPeriod" in after else ("requestedPeriod",)
        yield from updated(
            end,
            "Appointment",
            p.entry.id,
            changing=("status", "participant", "slot", "start", "end", *may_go),
            may_add=NEW_REMARKS,
            called="appointment",
        )
        yield equal("appointment status", after.get("status"), "booked")
        both = accepted(f"Patient/{p.patient.id}", f"Practitioner/{p.doctor.id}")
        yield participants_check(end, after, both)
        yield from place_checks(end, after, p.target)
        yield from slot_checks(end, p.target, "busy")
        yield answered(end, Appointment=p.entry.id, Slot=p.target.id)


def _into(entry: Resource, free: Resource) -> Resource:
    """An entry of the waitlist, booked into a slot."""
    participants = [{**one, "status": "accepted"} for one in entry["participant"]]
    return {
        **{name: value for name, value in entry.items() if name != "requestedPeriod"},
        "status": "booked",
        "slot": [reference("Slot", free["id"])],
        "start": free["start"],
        "end": free["end"],
        "participant": participants,
    }


def _booking(entry: Waiting, free: Resource) -> list[Action]:
    """All that books an entry into a slot, and the answer."""
    return [
        Put(f"/Appointment/{entry.id}", _into(waitlisted(entry), free)),
        Put(f"/Slot/{free['id']}", {**free, "status": "busy"}),
        Finish([entry.id, free["id"]]),
    ]


TASKS = (BookFromWaitlist,)
