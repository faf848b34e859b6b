"""Read the records for the verdict as the benchmark does: one page of at most 5,000 records, in the server's order.

The unit, status and category of a result are ignored. This module raises an exception, which makes every answer wrong,
if a result has no value, or if its time has no time zone and is compared with a time that has a time zone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from fhir_gym.fhir.messages import Request, Response

NOW_TEXT = "2023-11-13T10:15:00+00:00"
NOW = datetime.fromisoformat(NOW_TEXT)
TODAY = NOW.date()
DAY_AGO = NOW - timedelta(hours=24)
YEAR_AGO = datetime.fromisoformat("2022-11-13T10:15:00+00:00")

COUNT = 5_000
"""The benchmark's page size."""


@dataclass(frozen=True, slots=True)
class LabReading:
    """A laboratory result.

    Attributes:
        taken: When the specimen was taken.
        text: `taken` as the server returned it.
        value: The value, whatever its unit.
    """

    id: str
    taken: datetime
    text: str
    value: Any


class OfficialRecords:
    """The records of a server before an episode.

    Args:
        handle: Function that sends a request to the server.
    """

    def __init__(self, handle: Callable[[Request], Response]) -> None:
        self._handle = handle

    def birth_date(self, mrn: str | None) -> date:
        """Return the birth date of the first patient that a search for the record number finds."""
        (first, *_) = self._entries("Patient", f"identifier={mrn}")
        return datetime.strptime(first["birthDate"], "%Y-%m-%d").date()

    def readings(self, mrn: str | None, code: str) -> list[LabReading]:
        """Return all results of a laboratory test, in the server's order."""
        return list(map(reading, self._entries("Observation", f"patient={mrn}&code={code}&_count={COUNT}")))

    def _entries(self, resource_type: str, query: str) -> list[dict[str, Any]]:
        response = self._handle(Request("GET", f"/{resource_type}", query))
        return [entry["resource"] for entry in json.loads(response.body).get("entry", [])]


def latest(readings: list[LabReading]) -> LabReading | None:
    """Return the result taken last; if several were taken at that time, return the first of them."""
    last: LabReading | None = None
    for reading in readings:
        if last is None or reading.taken > last.taken:
            last = reading
    return last


def reading(resource: dict[str, Any]) -> LabReading:
    """Parse the result in an Observation."""
    text = resource["effectiveDateTime"]
    return LabReading(resource["id"], datetime.fromisoformat(text), text, resource["valueQuantity"]["value"])
