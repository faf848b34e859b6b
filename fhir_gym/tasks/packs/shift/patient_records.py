"""Reading records: the records of each patient, and what elements say."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fhir_gym.tasks.authoring import codings, instant, parse_instant
from fhir_gym.tasks.grading import parse_reference
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog, patients_of
from fhir_gym.types import Json, Resource, as_object

_KNOWN = 4_096
"""Size limit of the cache of references."""


@dataclass(frozen=True, slots=True)
class Chart:
    """The records of a patient at one moment.

    Attributes:
        records: The other records.
    """

    patient: Resource
    records: tuple[Resource, ...]

    def of(self, resource_type: str) -> Iterator[Resource]:
        """Yield the records of a type."""
        return (record for record in self.records if record.get("resourceType") == resource_type)

    def with_records_at(self, log: EpisodeLog, records: Iterable[str], write: int) -> Chart:
        """Return the chart with more records, such as ``Task/1``, as they were before a write."""
        states = (log.before(record, write) for record in records)
        return Chart(self.patient, (*self.records, *(state for state in states if state is not None)))


@dataclass(frozen=True, slots=True)
class Entry:
    """A record that counts if it breaks no rule.

    Attributes:
        broken: The rules that the record breaks.
        codes: Codes of a condition.
        moment: When a result was taken or a consent was given (instant).
        flag: Whether a result is above the limit, or a consent denies.
    """

    record: str
    broken: frozenset[str]
    codes: tuple[str, ...] = ()
    moment: str = ""
    flag: bool = False

    def counts(self, ignoring: str) -> bool:
        """Whether the record counts for an agent that ignores one of the rules."""
        return not self.broken or self.broken == {ignoring}


def charts_of(patients: Sequence[Resource], records: Iterable[Resource], base_url: str = "") -> dict[str, Chart]:
    """Return the charts of patients by reference (``Patient/1``).

    Args:
        patients: The Patients.
        records: Records of these and of other patients.
        base_url: Base URL of the server.
    """
    by_patient: dict[str, list[Resource]] = {f"Patient/{patient['id']}": [] for patient in patients}
    for record in records:
        for patient in patients_of(record, base_url) & by_patient.keys():
            by_patient[patient].append(record)
    people = {f"Patient/{patient['id']}": patient for patient in patients}
    return {name: Chart(people[name], tuple(own)) for name, own in by_patient.items()}


def chart_at(log: EpisodeLog, chart: Chart, write: int) -> Chart:
    """Return a chart as it was before a write, with the records that other people than the agent have created.

    Args:
        log: All writes.
        chart: The chart at the start of the episode.
        write: Number of the write; see `EpisodeLog.before`.
    """
    records = {name_of(record): record for record in (chart.patient, *chart.records)}
    created = [record_write.record for record_write in log.created_by_others.get(name_of(chart.patient), ())]
    written = [*(record for record in records if log.writes_on(record)), *created]
    if not written:
        return chart
    person, *others = (records | {record: log.before(record, write) for record in written}).values()
    return Chart(person or {}, tuple(resource for resource in others if resource is not None))


def created_for(log: EpisodeLog, resource_type: str, patients: Collection[str]) -> dict[str, str]:
    """Return the records that the agent created for some patients, each with its patient."""
    created: dict[str, str] = {}
    for write in log.writes_of_agent:
        if write.resource_type == resource_type and write.after is not None and write.record in log.created:
            named = sorted(patient for patient in patients_of(write.after, log.end.base_url) if patient in patients)
            if patient := next(iter(named), created.get(write.record, "")):
                created[write.record] = patient
    return created


def other_values(record: Resource, **expected: str) -> Iterator[str]:
    """Yield the elements of a record that have other values than expected, with their values."""
    return (f"{name} {record.get(name)}" for name, value in expected.items() if record.get(name) != value)


def broken(rules: Mapping[str, bool]) -> frozenset[str]:
    """Return the names of the rules that are false."""
    return frozenset(name for name, kept in rules.items() if not kept)


def name_of(record: Resource) -> str:
    """Return the reference to a record."""
    return f"{record.get('resourceType')}/{record.get('id')}"


def moment_of(value: Json) -> str:
    """Return a date or dateTime as an instant; an empty text for another value."""
    try:
        return instant(parse_instant(str(value)))
    except (ValueError, OverflowError):
        return ""


def target_of(value: Json, base_url: str = "") -> str:
    """Return the target of a Reference (``Patient/1``); empty for another value."""
    text = as_object(value).get("reference")
    return _parsed(text, base_url) if isinstance(text, str) else ""


@lru_cache(_KNOWN)
def _parsed(reference: str, base_url: str) -> str:
    parts = parse_reference(reference, base_url)
    return "/".join(parts) if parts else ""


def coded_in(concepts: Json) -> list[tuple[Json, Json]]:
    """Return system and code of each coding in a CodeableConcept or a list of CodeableConcepts."""
    return [(coding.get("system"), coding.get("code")) for coding in codings(concepts)]
