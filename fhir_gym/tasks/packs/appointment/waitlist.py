"""Draw, build and check waitlist entries: appointments that have no time, only the period that the patient requests."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from datetime import UTC, date

from fhir_gym.tasks import Check, Params, equal
from fhir_gym.tasks.authoring import IdAllocator, Person, parse_instant, reference
from fhir_gym.tasks.packs.appointment.bookings import draw_reason
from fhir_gym.types import Json, Resource

WAITLIST = "A waitlist entry is an Appointment with status waitlist. "
_DATE = len("2000-01-01")


class WaitlistEntry(Params):
    """One waitlist entry.

    Attributes:
        id: Id of the appointment.
        patient: Id of the patient.
        practitioner: Id of the practitioner.
        start: Start of the requested period, a date or an instant.
        end: End of the requested period.
        description: Reason for the appointment.
        status: Status of the appointment.
    """

    id: str
    patient: str
    practitioner: str
    start: str
    end: str
    description: str
    status: str = "waitlist"

    @property
    def target(self) -> str:
        """Reference to the Appointment."""
        return f"Appointment/{self.id}"


def new_waitlist_entry(
    rng: random.Random,
    ids: IdAllocator,
    patient: Person,
    doctor: Person,
    start: str,
    end: str,
    status: str = "waitlist",
) -> WaitlistEntry:
    """Draw a waitlist entry; `start` and `end` are dates or instants."""
    return WaitlistEntry(
        id=ids.new("Appointment"),
        patient=patient.id,
        practitioner=doctor.id,
        start=start,
        end=end,
        description=draw_reason(rng),
        status=status,
    )


def waiting_participants(patient_id: str, practitioner_id: str) -> list[Resource]:
    """Build the participants of an entry: the patient has accepted, but the practitioner has not answered yet."""
    return [
        {"actor": reference("Patient", patient_id), "status": "accepted"},
        {"actor": reference("Practitioner", practitioner_id), "status": "needs-action"},
    ]


def waitlist_resource(waiting: WaitlistEntry) -> Resource:
    """Build the Appointment of a waitlist entry."""
    return {
        "resourceType": "Appointment",
        "id": waiting.id,
        "status": waiting.status,
        "description": waiting.description,
        "participant": waiting_participants(waiting.patient, waiting.practitioner),
        "requestedPeriod": [{"start": waiting.start, "end": waiting.end}],
    }


def day_of(value: Json) -> str | None:
    """Return the UTC day of a date or of a dateTime with a time zone; return None for any other value."""
    if not isinstance(value, str):
        return None
    try:
        if len(value) == _DATE:
            return date.fromisoformat(value).isoformat()
        return parse_instant(value).astimezone(UTC).date().isoformat()
    except (ValueError, OverflowError):
        return None


def window_checks(periods: Json, first: str, last: Collection[str]) -> Iterator[Check]:
    """Yield checks of the start and end of the requested period.

    Args:
        periods: The value of ``Appointment.requestedPeriod``.
        first: The expected first day.
        last: The accepted last days.
    """
    windows = [period for period in periods if isinstance(period, dict)] if isinstance(periods, list) else []
    yield equal("start of the requested period", [day_of(window.get("start")) for window in windows], [first])
    ends = [day_of(window.get("end")) for window in windows]
    right = len(ends) == 1 and ends[0] in last
    yield Check(name="end of the requested period", passed=right, expected=sorted(last), actual=ends)
