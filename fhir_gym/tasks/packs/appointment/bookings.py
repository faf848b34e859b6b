"""Draw and build appointments, choose the appointment of a prompt, and check new or moved appointments."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from fhir_gym.tasks import Check, FinishedEpisode, Params, equal
from fhir_gym.tasks.authoring import IdAllocator, Person, instant, reference
from fhir_gym.tasks.grading import same_moment
from fhir_gym.tasks.packs.appointment.clinic import SlotRecord
from fhir_gym.tasks.packs.appointment.slot_scenes import ProviderSchedule
from fhir_gym.types import Json, Resource

PARTICIPANTS = ("participant", "participant.actor", "participant.status")
"""Elements of an appointment's participants that the prompts ask for."""

NEW_REMARKS = ("comment", "patientInstruction")
"""Elements that an agent may add to an appointment that it changes."""

_REASONS = (
    *("Annual physical", "Blood pressure check", "Follow-up visit", "Joint pain", "Medication review"),
    *("Skin check", "Travel advice", "Vaccination", "Wound check"),
)


class _Timed(Protocol):
    @property
    def start(self) -> str: ...


R = TypeVar("R")
T = TypeVar("T", bound=_Timed)


class Booking(Params):
    """One appointment and its slot.

    Attributes:
        id: Id of the appointment.
        patient: Id of the patient.
        practitioner: Id of the practitioner.
        slot: The slot; its id is empty if the appointment has a time but no slot.
        status: Status of the appointment.
        description: Reason for the appointment; may be empty.
        practitioner_status: The practitioner's participation status.
    """

    id: str
    patient: str
    practitioner: str
    slot: SlotRecord
    status: str
    description: str = ""
    practitioner_status: str = "accepted"

    @property
    def start(self) -> str:
        """Start of the slot (instant)."""
        return self.slot.start

    @property
    def target(self) -> str:
        """Reference to the Appointment."""
        return f"Appointment/{self.id}"


def unique_match(records: Sequence[R], *conditions: Callable[[R], bool]) -> R | None:
    """Return the only record that meets all conditions, if every condition matters.

    Returns None if no record or several records meet all conditions, or if the other conditions identify the record
    even without one of them.
    """
    matches = _meeting(records, conditions)
    return matches[0] if len(matches) == 1 and all(_failing_one(records, conditions)) else None


def earliest_match(records: Sequence[T], *conditions: Callable[[T], bool]) -> T | None:
    """Return the earliest record that meets all conditions.

    Returns None if fewer than two records meet all conditions, or if the result stays the same without one of the
    conditions. All records must start at different times.
    """
    matches = _meeting(records, conditions)
    if len(matches) < 2:
        return None
    first = min(matches, key=lambda record: record.start)
    failing = _failing_one(records, conditions)
    return first if all(any(record.start < first.start for record in records) for records in failing) else None


def _meeting(records: Sequence[R], conditions: Iterable[Callable[[R], bool]]) -> Sequence[R]:
    for condition in conditions:
        records = [record for record in records if condition(record)]
    return records


def _failing_one(records: Sequence[R], conditions: Sequence[Callable[[R], bool]]) -> Iterator[Sequence[R]]:
    """Yield, for each condition, the records that fail only this condition."""
    for condition in conditions:
        others = _meeting(records, (other for other in conditions if other is not condition))
        yield [record for record in others if not condition(record)]


def draw_reason(rng: random.Random) -> str:
    """Draw the reason for an appointment."""
    return rng.choice(_REASONS)


def new_slot(
    ids: IdAllocator, schedule: ProviderSchedule, start: datetime, minutes: int, status: str = "free"
) -> SlotRecord:
    """Draw a new slot of a provider."""
    return SlotRecord(id=ids.new("Slot"), schedule=schedule.id, start=instant(start), minutes=minutes, status=status)


def new_booking(
    rng: random.Random,
    ids: IdAllocator,
    patient: Person,
    schedule: ProviderSchedule,
    start: datetime,
    minutes: int,
    status: str = "booked",
    *,
    in_slot: bool = True,
) -> Booking:
    """Draw an appointment of a patient with a provider, in a busy slot or without a slot."""
    return Booking(
        id=ids.new("Appointment"),
        patient=patient.id,
        practitioner=schedule.provider.id,
        slot=SlotRecord(
            id=ids.new("Slot") if in_slot else "",
            schedule=schedule.id,
            start=instant(start),
            minutes=minutes,
            status="busy",
        ),
        status=status,
        description=draw_reason(rng),
    )


def booking_resource(booking: Booking) -> Resource:
    """Build the Appointment of a booking; the patient has accepted it."""
    slot = booking.slot
    return {
        "resourceType": "Appointment",
        "id": booking.id,
        "status": booking.status,
        **({"description": booking.description} if booking.description else {}),
        "start": slot.start,
        "end": slot.end,
        **({"slot": [reference("Slot", slot.id)]} if slot.id else {}),
        "participant": [
            {"actor": reference("Patient", booking.patient), "status": "accepted"},
            {"actor": reference("Practitioner", booking.practitioner), "status": booking.practitioner_status},
        ],
    }


def accepted(*references: str) -> list[Resource]:
    """Build participants of an appointment who all have accepted it."""
    return [{"actor": {"reference": reference}, "status": "accepted"} for reference in references]


def participants_check(end: FinishedEpisode, appointment: Resource, participants: Iterable[Resource]) -> Check:
    """Check the participants of an appointment and their statuses; their order does not matter."""
    return equal(
        "participants", _participants(appointment.get("participant", []), end), _participants(participants, end)
    )


def _participants(items: Iterable[Json], end: FinishedEpisode) -> list[list[str | None]]:
    """Return the sorted references of participants (such as ``Patient/1``), each with the participant's status."""
    listed = ([end.refers(item.get("actor")), item.get("status")] for item in items if isinstance(item, dict))
    return sorted(listed, key=str)


def place_checks(end: FinishedEpisode, appointment: Resource, slot: SlotRecord) -> Iterator[Check]:
    """Yield checks that an appointment refers to a slot and has the slot's start and end."""
    slots = [end.refers(item) for item in appointment.get("slot", [])]
    yield equal("appointment slot", slots, [f"Slot/{slot.id}"])
    for bound, moment in (("start", slot.start), ("end", slot.end)):
        right = same_moment(appointment.get(bound), moment)
        yield Check(name=f"appointment {bound}", passed=right, expected=moment, actual=appointment.get(bound))


def answered(end: FinishedEpisode, **expected: str) -> Check:
    """Check that the answer contains these ids in this order; each keyword is a resource type."""
    return equal("answer", end.answer_ids(*expected), list(expected.values()))
