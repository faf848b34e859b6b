"""Build the locations, schedules and slots of a clinic, and check slots."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import lru_cache

from fhir_gym.fhir import World
from fhir_gym.tasks import Check, FinishedEpisode, Params, equal
from fhir_gym.tasks.authoring import instant, parse_instant, reference, update_checks
from fhir_gym.types import Resource


class SlotRecord(Params):
    """One slot.

    Attributes:
        id: Id of the slot; empty if the record is only the time of an appointment that has no slot.
        schedule: Id of the schedule.
        start: Start of the slot (instant).
        minutes: Length in minutes.
    """

    id: str
    schedule: str
    start: str
    minutes: int
    status: str

    @property
    def target(self) -> str:
        """Reference to the slot."""
        return f"Slot/{self.id}"

    @property
    def end(self) -> str:
        """End of the slot (instant)."""
        return _end(self.start, self.minutes)


@lru_cache(maxsize=1_024)
def _end(start: str, minutes: int) -> str:
    return instant(parse_instant(start) + timedelta(minutes=minutes))


def location_resource(id: str, name: str, city: str, state: str) -> Resource:
    """Build an active Location."""
    return {
        "resourceType": "Location",
        "id": id,
        "status": "active",
        "name": name,
        "address": {"city": city, "state": state},
    }


def schedule_resource(id: str, world: World, *actors: dict[str, str]) -> Resource:
    """Build a general practice Schedule that lasts from half a year ago until a year from now."""
    horizon = {"start": instant(world.now - timedelta(days=182)), "end": instant(world.now + timedelta(days=365))}
    medicine = {"system": "http://snomed.info/sct", "code": "394814009", "display": "General practice"}
    return {
        "resourceType": "Schedule",
        "id": id,
        "active": True,
        "specialty": [{"coding": [medicine]}],
        "actor": list(actors),
        "planningHorizon": horizon,
    }


def slot_resource(slot: SlotRecord) -> Resource:
    """Build the Slot of a slot record."""
    return {
        "resourceType": "Slot",
        "id": slot.id,
        "schedule": reference("Schedule", slot.schedule),
        "status": slot.status,
        "start": slot.start,
        "end": slot.end,
        "comment": f"{slot.minutes} minutes",
    }


def slot_checks(end: FinishedEpisode, slot: SlotRecord, status: str, called: str = "slot") -> Iterator[Check]:
    """Yield checks that a slot has a new status and is otherwise unchanged.

    Args:
        end: End state of the episode.
        slot: The slot before the episode.
        status: The expected status.
        called: Name of the slot in the names of the checks.
    """
    yield from update_checks(end, "Slot", slot.id, changing=("status",), called=called)
    yield equal(f"{called} status", end.after_update("Slot", slot.id).get("status"), status)
