"""Task 16b: book a patient who is on the waitlist into a free slot."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Get, Put
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, ExpectedChange, FinishedEpisode, Gold, SceneParams, equal
from fhir_gym.tasks.authoring import (
    NAME,
    IdAllocator,
    Person,
    draw_lookalikes,
    entries,
    find_practitioner,
    instant,
    parse_instant,
    update_checks,
)
from fhir_gym.tasks.packs.appointment.appointment_scene import (
    HALF_HOURS,
    WAITLIST,
    AppointmentScene,
    WaitlistEntry,
    half_hour,
    new_doctors,
    new_waitlist_entry,
    waitlist_resource,
)
from fhir_gym.tasks.packs.appointment.appointment_task import AppointmentTask, SlotMatch, in_slot, put_status
from fhir_gym.tasks.packs.appointment.bookings import (
    NEW_REMARKS,
    accepted,
    answered,
    new_slot,
    participants_check,
    place_checks,
    unique_match,
)
from fhir_gym.tasks.packs.appointment.clinic import SlotRecord, slot_checks, slot_resource
from fhir_gym.tasks.packs.appointment.slot_scenes import DOCTOR, ProviderSchedule
from fhir_gym.types import Json, Resource

_MINUTES = 30
_SLOT = timedelta(minutes=_MINUTES)
_DAYS = 15
_PATIENTS = 4
_AWAITED = 2
_FREE = 6
_TAKEN = ("busy", "busy", "busy", "busy-unavailable", "busy-tentative", "entered-in-error")
_OTHERS = 4


class BookFromWaitlistParams(SceneParams):
    """Parameters of task 16b.

    Attributes:
        scene: Patients, doctors, slots and the waitlist.
        entry: The patient's entry for the doctor.
        slot: The doctor's free slot in the requested period.
    """

    scene: AppointmentScene
    entry: WaitlistEntry
    slot: SlotRecord

    @property
    def patient(self) -> Person:
        """The patient."""
        return self.scene.patient(self.entry.patient)

    @property
    def doctor(self) -> Person:
        """The doctor."""
        return self.scene.schedule_of(self.entry.practitioner).provider


class BookFromWaitlist(AppointmentTask[BookFromWaitlistParams, SlotMatch[WaitlistEntry]]):
    """Book a patient who is on the waitlist into a free slot in the requested period.

    Starting state: four patients who wait for the same three doctors; the doctors share names with other doctors. Two
        of the three doctors have both free and taken slots. In the patient's requested period, the doctor has exactly
        one free slot.
    Decoys: the doctor has free slots that touch the requested period, overlap its start or its end, or lie completely
        before or after it. Inside the period, some of the doctor's slots are taken, and another doctor has a free slot.
        There are also cancelled waitlist entries of each patient for each of the three doctors.
    Checks: the entry is booked, refers to the slot and has the slot's start and end; both participants have accepted;
        the rest of the entry is unchanged, except that the requested period may be removed. The slot is busy and
        otherwise unchanged. The answer names the entry and the slot.
    Light: the appointment and the slot were updated.
    Differs from FHIR-AgentEval: the slot must have been free, lie inside the requested period, and be the slot that the
        appointment refers to. Participants may come in any order. The rest of both records must stay unchanged.
    """

    key = "16b"
    title = "Move out of the waitlist"
    required_tools = (
        ("search", "search", "read", "update", "update"),
        ("search", "search", "update", "update"),
        ("search", "read", "update", "update"),
        ("search", "read", "update", "read", "update"),
        ("search", "create", "search", "update", "update"),
    )
    prohibited_tools = ("delete",)
    prompts = (
        "{patient} (Patient/{id}) is on the waitlist of Dr. {doctor}. Please book the patient into a free slot of the "
        "doctor within the requested period, using the existing appointment.",
        "Dr. {doctor} now has a free slot in the period for which {patient} (Patient/{id}) is on the waitlist. Please "
        "move the patient into this slot by changing the existing appointment; do not make a new one.",
        "Please find a free slot with Dr. {doctor} in the period that {patient} (Patient/{id}) requested on the "
        "waitlist, and turn the waitlist entry into a booked appointment in this slot.",
    )
    brief = (
        "Please book the waitlist entry of {patient} (Patient/{id}) for Dr. {doctor} into the doctor's free slot that "
        "lies entirely in the requested period, with both accepted and the slot busy. Finish with "
        'FINISH(["<appointment id>", "<slot id>"]).'
    )
    answer_instructions = (
        f"{DOCTOR}{WAITLIST}Use the patient's entry in which this practitioner takes part. A slot is within the "
        "requested period if it starts at or after the period's start and ends at or before the period's end. Set the "
        "appointment's status to booked, make it refer to this slot only, give it the slot's start and end, and set "
        "the status of both participants to accepted; its requestedPeriod may stay as it is or be removed. Set the "
        "slot's status to busy. Leave everything else as it is; create and delete nothing. Finish with "
        'FINISH(["<appointment id>", "<slot id>"]).'
    )
    gold_steps = 6
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "Appointment": {"comment": "Moved from the waitlist", "minutesDuration": _MINUTES}
    }

    @override
    def draw_scene(self, rng: random.Random, world: World) -> AppointmentScene:
        # The requested period of each entry contains one free slot of the doctor.
        ids = IdAllocator(rng, world)
        people = draw_lookalikes(rng, world, partial(ids.new, "Patient"), _PATIENTS, by=NAME)
        schedules, others = new_doctors(rng, world, ids, _AWAITED)
        lines = [_line(rng, ids, world.now, schedule) for schedule in schedules]
        waiting = [
            new_waitlist_entry(rng, ids, person, schedule.provider, *_period(rng, line), status)
            for person in people
            for schedule, line in zip(schedules, lines, strict=True)
            for status in ("waitlist", *["cancelled"] * rng.choice((1, 1, 2)))
        ]
        further = rng.choice(others)
        waiting += [
            new_waitlist_entry(rng, ids, person, further, *_period(rng, rng.choice(lines))) for person in people
        ]
        slots = tuple(slot for line in lines for slot in line)
        return AppointmentScene(
            now=instant(world.now),
            people=people,
            schedules=schedules,
            bookings=(),
            waiting=tuple(waiting),
            slots=slots,
            others=others,
        )

    @override
    def candidates(self, scene: AppointmentScene) -> dict[str, list[SlotMatch[WaitlistEntry]]]:
        matches = (_match_of(scene, entry) for entry in scene.waiting)
        return {"": [match for match in matches if match is not None]}

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: AppointmentScene, chosen: SlotMatch[WaitlistEntry]
    ) -> BookFromWaitlistParams:
        return BookFromWaitlistParams(scene=scene, entry=chosen.record, slot=chosen.slot)

    @override
    def prompt_values(self, p: BookFromWaitlistParams, world: World) -> dict[str, str]:
        return {"patient": p.patient.name, "id": p.patient.id, "doctor": p.doctor.name}

    @override
    def gold(self, p: BookFromWaitlistParams) -> Gold:
        doctor_id = yield from find_practitioner(p.doctor)
        query = {"patient": p.patient.id, "practitioner": doctor_id, "status": "waitlist"}
        entry = next(entries((yield Get("/Appointment", query))))
        period = entry["requestedPeriod"][0]
        provider = ("schedule.actor", f"Practitioner/{doctor_id}")
        bounds = [("start", f"ge{period['start']}"), ("start", f"lt{period['end']}")]
        free = entries((yield Get("/Slot", [provider, ("status", "free"), *bounds])))
        chosen = next(slot for slot in free if parse_instant(slot["end"]) <= parse_instant(period["end"]))
        yield Put(f"/Appointment/{entry['id']}", _into(entry, chosen))
        yield put_status(chosen, "busy")
        yield Finish([entry["id"], chosen["id"]])

    @override
    def near_misses(self, p: BookFromWaitlistParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        others = [slot for slot in p.scene.slots if slot.id != p.slot.id]
        near = sorted(others, key=lambda slot: (slot.schedule != p.slot.schedule, _apart(slot, p.slot)))
        for slot in near[: 3 * _OTHERS]:
            yield f"books Slot/{slot.id}", _booking(p.entry, slot_resource(slot))
        mine = [entry for entry in p.scene.waiting if entry.patient == p.patient.id and entry.id != p.entry.id]
        strangers = [entry for entry in p.scene.waiting if entry.patient != p.patient.id][:_OTHERS]
        for entry in (*mine, *strangers):
            yield f"books the {entry.status} entry {entry.id}", _booking(entry, slot_resource(p.slot))
        body = {
            **_into(waitlist_resource(p.entry), slot_resource(p.slot)),
            "requestedPeriod": [{"start": p.entry.start}],
        }
        (_, take, finish) = _booking(p.entry, slot_resource(p.slot))
        yield "changes the period", [Put(f"/Appointment/{p.entry.id}", body), take, finish]
        new_body = {name: value for name, value in body.items() if name not in ("id", "requestedPeriod")}
        off = put_status(waitlist_resource(p.entry), "cancelled")
        new = [Put("/Appointment/mine", {**new_body, "id": "mine"}), off, take]
        yield "makes a new one", [*new, Finish(["mine", p.slot.id])]

    @override
    def equivalents(self, p: BookFromWaitlistParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        body = {**waitlist_resource(p.entry), **_into(waitlist_resource(p.entry), slot_resource(p.slot))}
        (_, take, finish) = _booking(p.entry, slot_resource(p.slot))
        yield "the period stays", [Put(f"/Appointment/{p.entry.id}", body), take, finish]

    @override
    def expected_changes(self, p: BookFromWaitlistParams) -> tuple[ExpectedChange, ...]:
        return (ExpectedChange("updated", "Appointment", p.entry.id), ExpectedChange("updated", "Slot", p.slot.id))

    @override
    def required_records(self, p: BookFromWaitlistParams) -> tuple[str, ...]:
        return (f"Appointment/{p.entry.id}", f"Slot/{p.slot.id}")

    @override
    def checks(self, p: BookFromWaitlistParams, end: FinishedEpisode) -> Iterator[Check]:
        after = end.after_update("Appointment", p.entry.id)
        yield from update_checks(
            end,
            "Appointment",
            p.entry.id,
            changing=("status", "participant", "slot", "start", "end"),
            may_add=NEW_REMARKS,
            may_go=("requestedPeriod",),
            called="appointment",
        )
        yield equal("appointment status", after.get("status"), "booked")
        both = accepted(f"Patient/{p.patient.id}", f"Practitioner/{p.doctor.id}")
        yield participants_check(end, after, both)
        yield from place_checks(end, after, p.slot)
        yield from slot_checks(end, p.slot, "busy")
        yield answered(end, Appointment=p.entry.id, Slot=p.slot.id)


def _line(rng: random.Random, ids: IdAllocator, now: datetime, schedule: ProviderSchedule) -> list[SlotRecord]:
    """Draw slots of a doctor, sorted by start: free slots with one or two taken slots between any two of them."""
    statuses = ["free"]
    for _ in range(_FREE - 1):
        statuses += [*rng.sample(_TAKEN, rng.choice((1, 2))), "free"]
    numbers = sorted(rng.sample(range(HALF_HOURS, _DAYS * HALF_HOURS), len(statuses)))
    return [
        new_slot(ids, schedule, half_hour(now, number), _MINUTES, status)
        for number, status in zip(numbers, statuses, strict=True)
    ]


def _period(rng: random.Random, line: list[SlotRecord]) -> tuple[str, str]:
    """Draw a period that contains one free slot, often at an edge; the neighbouring slots may overlap the period."""
    free = [n for n, slot in enumerate(line) if slot.status == "free"]
    n = rng.randrange(1, len(free) - 1)
    before, here, after = (parse_instant(line[free[i]].start) for i in (n - 1, n, n + 1))
    first, last = (parse_instant(line[i].start) for i in (free[n - 1] + 1, free[n + 1] - 1))
    start = rng.choice((before + _SLOT / 2, before + _SLOT, first, here))
    end = rng.choice((after + _SLOT / 2, after, last + _SLOT, here + _SLOT))
    return instant(start), instant(end)


def _match_of(scene: AppointmentScene, entry: WaitlistEntry) -> SlotMatch[WaitlistEntry] | None:
    """Return the entry and its slot if each is the only record that meets all conditions; otherwise None."""
    schedules = [schedule.id for schedule in scene.schedules if schedule.provider.id == entry.practitioner]
    only = unique_match(
        scene.waiting,
        lambda waitlist_entry: waitlist_entry.patient == entry.patient,
        lambda waitlist_entry: waitlist_entry.practitioner == entry.practitioner,
        lambda waitlist_entry: waitlist_entry.status == "waitlist",
    )
    if only != entry:
        return None
    slot = unique_match(
        scene.slots,
        lambda slot: slot.schedule in schedules,
        lambda slot: slot.status == "free",
        lambda slot: slot.start >= entry.start,
        lambda slot: slot.end <= entry.end,
    )
    return SlotMatch(entry, slot) if slot else None


def _apart(slot: SlotRecord, other: SlotRecord) -> timedelta:
    return abs(parse_instant(slot.start) - parse_instant(other.start))


def _into(entry: Resource, free: Resource) -> Resource:
    """Return the appointment of a waitlist entry after it is booked into a slot."""
    participants = [{**participant, "status": "accepted"} for participant in entry["participant"]]
    kept = {name: value for name, value in entry.items() if name != "requestedPeriod"}
    return {**in_slot({**kept, "status": "booked"}, free), "participant": participants}


def _booking(entry: WaitlistEntry, free: Resource) -> list[Action]:
    """Return the actions that book an entry into a slot, and the answer."""
    book = Put(f"/Appointment/{entry.id}", _into(waitlist_resource(entry), free))
    return [book, put_status(free, "busy"), Finish([entry.id, free["id"]])]


TASKS = (BookFromWaitlist,)
