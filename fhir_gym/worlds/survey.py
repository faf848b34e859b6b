"""What an import finds out about its source before it writes anything."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from hashlib import blake2b

from fhir_gym.errors import WorldError
from fhir_gym.fhir.definitions import RESOURCE_TYPES
from fhir_gym.fhir.store.stamping import clinical_dates, moment_of
from fhir_gym.types import Json, Resource
from fhir_gym.worlds.files import Record
from fhir_gym.worlds.hospital import NOW

__all__ = ["MOST_PROBLEMS", "Survey", "present"]

MOST_PROBLEMS = 20
"""An import gives up after so many."""

_QUARTER = timedelta(minutes=15)
_TYPES = frozenset(RESOURCE_TYPES)


class Survey:
    """Counts, identities, dates and problems of the records seen."""

    def __init__(self) -> None:
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

    def see(self, record: Record) -> None:
        """Take in one record."""
        problem = record.problem or _unusable(record.value)
        if problem:
            self.complain(record.place, problem)
            return
        resource: Resource = record.value
        identity = f"{resource['resourceType']}/{resource['id']}"
        # Only told apart within this process, so that repr will do; eight bytes keep millions of resources small.
        content = blake2b(repr(resource).encode(), digest_size=8).digest()
        before = self.known.setdefault(identity, content)
        if before is not content:
            if before == content:
                self.doubles += 1
            else:
                self.complain(record.place, f"a second {identity} with other content")
            return
        self.counts[resource["resourceType"]] += 1
        self._date(resource, identity)

    def complain(self, place: str, problem: str) -> None:
        """Note a problem; after a score of them, refuse at once."""
        self.problems.append(f"{place}: {problem}")
        if len(self.problems) >= MOST_PROBLEMS:
            self.refuse()

    def refuse(self) -> None:
        """Raise if there was any problem."""
        if self.problems:
            more = " (there may be more)" if len(self.problems) >= MOST_PROBLEMS else ""
            raise WorldError(
                f"nothing was imported, {len(self.problems)} problems{more}:\n  " + "\n  ".join(self.problems)
            )

    def _date(self, resource: Resource, identity: str) -> None:
        meta = resource.get("meta")
        updated = moment_of(meta.get("lastUpdated")) if isinstance(meta, dict) else None
        if updated and (self.updated is None or updated > self.updated):
            self.updated = updated
        for element, moment in clinical_dates(resource):
            possible = updated is None or moment <= updated
            if possible and (self.newest is None or moment > self.newest[0]):
                self.newest = moment, f"{identity} {element}"


def _unusable(value: Json) -> str | None:
    if not isinstance(value, dict):
        return "not a JSON object"
    kind = value.get("resourceType")
    if not isinstance(kind, str) or kind not in _TYPES:
        return f"not an R4 resource: resourceType is {kind!r}"
    if not isinstance(value.get("id"), str) or not value["id"]:
        return f"a {kind} without an id"
    return None


def present(survey: Survey) -> tuple[datetime, str]:
    """The present of imported data, and where that comes from.

    The next full quarter of an hour after the newest thing that happened: so everything lies in the past. A date later
    than the resource's own `meta.lastUpdated` cannot have happened yet and does not count.

    Returns:
        The instant in UTC, and the reason in words.
    """
    if survey.newest:
        newest, source = survey.newest
        return _next_quarter(newest), f"the next quarter of an hour after the newest record ({source})"
    if survey.updated:
        return _next_quarter(survey.updated), "the next quarter of an hour after the newest meta.lastUpdated"
    return NOW, "the default, as the data has no dates"


def _next_quarter(moment: datetime) -> datetime:
    day = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day + ((moment - day) // _QUARTER + 1) * _QUARTER
