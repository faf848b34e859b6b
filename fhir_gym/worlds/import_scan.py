"""First pass of an import: count and check the records and collect their dates, before anything is written."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from hashlib import blake2b

from fhir_gym.errors import WorldError
from fhir_gym.fhir import serialization
from fhir_gym.fhir.clock import moment_of
from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.store.builder import YEARS
from fhir_gym.fhir.store.update_times import clinical_dates
from fhir_gym.printable import one_line
from fhir_gym.types import Json, Resource
from fhir_gym.worlds.files import SourceRecord
from fhir_gym.worlds.hospital import NOW

MOST_PROBLEMS = 20
"""Maximum number of problems listed in an error; further problems are only counted."""

_QUARTER = timedelta(minutes=15)
_ID = re.compile(r"[A-Za-z0-9\-.]{1,64}")


class RefusedError(WorldError):
    """Some resources are invalid, so nothing was imported."""


class ImportScan:
    """Counts, ids, dates and problems of the scanned records.

    Args:
        thorough: Whether to also run the server's parser. An import does this only after it has found a problem, so
            that the error lists all problems. Otherwise the parser runs when the records are written.
    """

    def __init__(self, *, thorough: bool = False) -> None:
        self._thorough = thorough
        self._untold = 0
        self.counts: Counter[str] = Counter()
        self.doubles = 0
        self.problems: list[str] = []
        self.known: dict[str, bytes] = {}
        self.newest: tuple[datetime, str] | None = None
        self.updated: datetime | None = None

    @property
    def total(self) -> int:
        """Number of resources."""
        return sum(self.counts.values())

    def add(self, record: SourceRecord) -> None:
        """Scan one record."""
        problem = record.problem or _unusable(record.value) or (_refusal(record.value) if self._thorough else None)
        if problem:
            self.add_problem(record.place, problem)
            return
        resource: Resource = record.value
        identity = f"{resource['resourceType']}/{resource['id']}"
        # Hashes are compared only within this process, for which repr is stable enough. 8 bytes keep memory low.
        content = blake2b(repr(resource).encode(), digest_size=8).digest()
        before = self.known.setdefault(identity, content)
        if before is not content:
            if before == content:
                self.doubles += 1
            else:
                self.add_problem(record.place, f"a second {identity} with different content")
            return
        self.counts[resource["resourceType"]] += 1
        self._date(resource, identity)

    def add_problem(self, place: str, problem: str) -> None:
        """Record a problem; if there are already `MOST_PROBLEMS`, only count it."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(one_line(f"{place}: {problem}"))
        else:
            self._untold += 1

    def raise_problems(self) -> None:
        """Raise RefusedError if there is any problem."""
        if self.problems:
            number = len(self.problems) + self._untold
            rest = [f"and {self._untold:,} more"] if self._untold else []
            told = "1 problem" if number == 1 else f"{number:,} problems"
            raise RefusedError(f"nothing was imported, {told}:\n  " + "\n  ".join([*self.problems, *rest]))

    def _date(self, resource: Resource, identity: str) -> None:
        meta = resource.get("meta")
        updated = moment_of(meta.get("lastUpdated")) if isinstance(meta, dict) else None
        if updated and updated.year in YEARS and (self.updated is None or updated > self.updated):
            self.updated = updated
        for element, moment in clinical_dates(resource):
            possible = moment.year in YEARS and (updated is None or moment <= updated)
            if possible and (self.newest is None or moment > self.newest[0]):
                self.newest = moment, f"{identity} {element}"


def _unusable(value: Json) -> str | None:
    if not isinstance(value, dict):
        return "not a JSON object"
    kind = value.get("resourceType")
    if not isinstance(kind, str) or kind not in RESOURCE_TYPE_SET:
        return f"not an R4 resource: resourceType is {_short(kind)}"
    if not isinstance(value.get("id"), str) or not value["id"]:
        return f"{kind} without an id"
    if not _ID.fullmatch(value["id"]):
        return f"{kind} with the invalid id {_short(value['id'])}: use 1 to 64 letters, digits, '-' and '.'"
    return None


def _short(value: Json) -> str:
    return one_line(repr(value), 80)


def _refusal(resource: Resource) -> str | None:
    try:
        serialization.normalise(resource)
    except FhirError as error:
        return f"{resource['resourceType']}/{resource['id']}: {error.diagnostics}"
    return None


def infer_now(scan: ImportScan) -> tuple[datetime, str]:
    """Infer the current time of an imported world from its data.

    The result is the first quarter of an hour after the newest clinical date, so that all events are in the past.
    A date after its resource's `meta.lastUpdated` is regarded as planned and ignored.

    Returns:
        The instant in UTC and a short explanation.
    """
    if scan.newest:
        newest, source = scan.newest
        return _next_quarter(newest), f"the next quarter of an hour after the newest record ({source})"
    if scan.updated:
        return _next_quarter(scan.updated), "the next quarter of an hour after the newest meta.lastUpdated"
    return NOW, "the default, because the data has no dates"


def _next_quarter(moment: datetime) -> datetime:
    day = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day + ((moment - day) // _QUARTER + 1) * _QUARTER
