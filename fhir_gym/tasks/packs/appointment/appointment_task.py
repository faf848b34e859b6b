"""Base classes and shared parts of the tasks that book, cancel and move appointments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from typing_extensions import override

from fhir_gym.actions import Action, Put
from fhir_gym.fhir import World
from fhir_gym.tasks import Candidate, Check, ExpectedChange, FinishedEpisode, SceneParams, SceneTask, equal
from fhir_gym.tasks.authoring import Person, reference, update_checks
from fhir_gym.tasks.grading import IdAnswer
from fhir_gym.tasks.packs.appointment.appointment_scene import AppointmentScene
from fhir_gym.tasks.packs.appointment.bookings import NEW_REMARKS, Booking
from fhir_gym.tasks.packs.appointment.clinic import SlotRecord, slot_checks
from fhir_gym.types import Resource

RELEASED_SLOT = {"Appointment.slot": ("cancelled",)}
CANCELLATION_REASON = {"Appointment": {"cancelationReason": {"text": "Patient called off"}}}
"""A harmless addition when an agent cancels an appointment."""

P = TypeVar("P", bound=SceneParams)
C = TypeVar("C", bound=Candidate)


class BookingParams(SceneParams):
    """Parameters of a task about a patient's appointment with a doctor.

    Attributes:
        scene: The records of the practice.
        booking: The appointment.
    """

    scene: AppointmentScene
    booking: Booking

    @property
    def patient(self) -> Person:
        """The patient."""
        return self.scene.patient(self.booking.patient)

    @property
    def doctor(self) -> Person:
        """The doctor."""
        return self.scene.schedule_of(self.booking.practitioner).provider


class MoveParams(BookingParams):
    """Parameters of a task that moves an appointment to another slot.

    Attributes:
        slot: The new slot.
    """

    slot: SlotRecord


R = TypeVar("R", bound=Candidate)


@dataclass(frozen=True, slots=True)
class SlotMatch(Generic[R]):
    """A booking or waitlist entry, and the only slot to which it can be moved.

    Attributes:
        record: The booking or waitlist entry.
    """

    record: R
    slot: SlotRecord

    @property
    def target(self) -> str:
        """Reference to the record."""
        return self.record.target


class AppointmentTask(SceneTask[P, AppointmentScene, C], Generic[P, C]):
    """A task that changes the appointments of a practice."""

    category = "Scheduling & Appointments"
    difficulty = 3
    kind = "action"
    required_resources: ClassVar[tuple[str, ...]] = ("Appointment", "Slot")
    prohibited_tools: ClassVar[tuple[str, ...]] = ("create", "delete")
    answer = IdAnswer(("Appointment", "Slot"))
    fewest = 3

    @override
    def scene_resources(self, scene: AppointmentScene, world: World) -> list[Resource]:
        return scene.resources(world)


M = TypeVar("M", bound=MoveParams)


class RescheduleTask(AppointmentTask[M, C], Generic[M, C]):
    """A task that moves an appointment to another slot."""

    @override
    def expected_changes(self, p: M) -> tuple[ExpectedChange, ...]:
        slots = (ExpectedChange("updated", "Slot", slot.id) for slot in (p.booking.slot, p.slot))
        return (ExpectedChange("updated", "Appointment", p.booking.id), *slots)

    @override
    def required_records(self, p: M) -> tuple[str, ...]:
        return (f"Appointment/{p.booking.id}", f"Slot/{p.booking.slot.id}", f"Slot/{p.slot.id}")

    def both_slot_checks(self, p: M, end: FinishedEpisode) -> Iterator[Check]:
        """Yield checks that the old slot is free, that the new slot is busy, and that both are otherwise unchanged."""
        yield from slot_checks(end, p.booking.slot, "free", called="old slot")
        yield from slot_checks(end, p.slot, "busy", called="new slot")


def put_status(resource: Resource, status: str) -> Action:
    """Build the update that changes the status of a resource."""
    return Put(f"/{resource['resourceType']}/{resource['id']}", {**resource, "status": status})


def in_slot(appointment: Resource, slot: Resource) -> Resource:
    """Return a copy of an appointment that refers to another slot and has its start and end."""
    return {**appointment, "slot": [reference("Slot", slot["id"])], "start": slot["start"], "end": slot["end"]}


def cancellation_checks(end: FinishedEpisode, id: str) -> Iterator[Check]:
    """Yield checks that an appointment was cancelled and is otherwise unchanged; it may lose its released slot."""
    yield from update_checks(
        end,
        "Appointment",
        id,
        changing=("status",),
        may_add=("cancelationReason", *NEW_REMARKS),
        may_go=("slot",),
        called="appointment",
    )
    yield equal("appointment status", end.after_update("Appointment", id).get("status"), "cancelled")
