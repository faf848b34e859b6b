"""Read the laboratory results of a world's patients, and decide which results count."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

import orjson

from fhir_gym.arguments import require_name
from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import parse_instant
from fhir_gym.tasks.core.dates import full_years
from fhir_gym.tasks.packs.action_reasoning.ranges import LABS, LabDefinition
from fhir_gym.types import Json, Resource

_VOID = ("cancelled", "entered-in-error")
_BATCH = 8
"""Number of patients per search; larger batches need more memory, and smaller batches need more time."""
_CHARTS = 4
"""Number of worlds whose results are cached."""

_TAKEN = attrgetter("taken")


class LabResult(NamedTuple):
    """One result; its times are in UTC, except `text`, which is the stored time of the specimen."""

    id: str
    taken: datetime
    issued: datetime
    value: float
    unit: str
    text: str
    status: str


@dataclass(frozen=True, slots=True)
class Series:
    """All results of one patient and test.

    Attributes:
        patient: Id of the patient.
        lab: Name of the test.
        counted: Results that count, one for each instant, oldest first.
        void: Results that have a value but were withdrawn (cancelled or entered in error), oldest first.
        superseded: Results that another result of the same instant replaces (see `settle`), oldest first.
        others: Results that do not count only because of their unit or a comparator such as "<", oldest first.
        ambiguous: Ids of results with the same instant and issue time but different values.
        undated: Ids of results without an instant.
        listed: Ids of all results, including those without a value, in creation order.
    """

    patient: str
    lab: str
    counted: tuple[LabResult, ...] = ()
    void: tuple[LabResult, ...] = ()
    superseded: tuple[LabResult, ...] = ()
    others: tuple[LabResult, ...] = ()
    ambiguous: frozenset[str] = frozenset()
    undated: frozenset[str] = frozenset()
    listed: tuple[str, ...] = ()

    @property
    def foreign(self) -> frozenset[str]:
        """Ids of the results in `others`."""
        return frozenset(result.id for result in self.others)

    def upto(self, as_of: datetime) -> tuple[LabResult, ...]:
        """Return the results that count and were taken at or before a time."""
        return self.counted[: bisect_right(self.counted, as_of, key=_TAKEN)]

    def window(self, as_of: datetime, hours: float) -> tuple[LabResult, ...]:
        """Return the results that count in the `hours` before a time; both ends of the window belong to it."""
        return between(self.counted, as_of - timedelta(hours=hours), as_of)

    def latest(self, as_of: datetime) -> LabResult | None:
        """Return the latest result that counts and was taken at or before a time."""
        last = bisect_right(self.counted, as_of, key=_TAKEN)
        return self.counted[last - 1] if last else None

    def objection(self, start: datetime | None, end: datetime, now: datetime) -> str | None:
        """Return why it is ambiguous which results of a time span count; None if it is not.

        Args:
            start: Start of the span, inclusive; None if the span starts with the record.
            end: End of the span, inclusive.
            now: Current time of the world.
        """
        if self.undated:
            return "a result without an instant"
        if between(self.others, start, end):
            return "a result in another unit"
        if end < now and any(result.issued > end for result in between(self.counted, start, end)):
            return "a result that was issued after the time of the question"
        if self.ambiguous and any(result.id in self.ambiguous for result in between(self.counted, start, end)):
            return "two values with the same instant and issue time"
        return None


def between(readings: tuple[LabResult, ...], start: datetime | None, end: datetime) -> tuple[LabResult, ...]:
    """Return the part of chronologically sorted results within a time span; both ends belong to the span."""
    first = bisect_left(readings, start, key=_TAKEN) if start is not None else 0
    return readings[first : bisect_right(readings, end, key=_TAKEN)]


@dataclass(frozen=True, slots=True)
class PatientSummary:
    """Demographics of a patient; an unknown name or sex is an empty string, an incomplete birth date None."""

    id: str
    name: str
    sex: str
    birth_date: date | None


class LabHistory:
    """The laboratory results of a world; the results of a test are read on first use."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.now = world.now
        self._people = {load.id: load for load in map(_person, map(orjson.loads, world.resources("Patient")))}
        self._series: dict[str, Mapping[str, Series]] = {}
        self._moments: dict[str, datetime] = {}
        self._lock = threading.Lock()

    @property
    def patients(self) -> tuple[str, ...]:
        """Ids of all patients, in creation order."""
        return tuple(self._people)

    def person(self, patient: str) -> PatientSummary:
        """Return the demographics of a patient.

        Raises:
            TaskError: The patient does not exist.
        """
        if patient not in self._people:
            raise TaskError(f"the world {self.world.name} has no patient {patient}")
        return self._people[patient]

    def age(self, patient: str) -> int | None:
        """Return the age in full years at the world's current time; None if the date of birth is unknown."""
        born, today = self.person(patient).birth_date, self.now.astimezone(UTC).date()
        return None if born is None else full_years(born, today)

    def series(self, lab: str) -> Mapping[str, Series]:
        """Return the results of a test by patient id, in creation order of the patients who have results.

        Raises:
            UnknownNameError: The test does not exist.
        """
        require_name("lab", lab, LABS)
        with self._lock:
            if lab not in self._series:
                self._series[lab] = MappingProxyType(dict(self._read(LABS[lab])))
            return self._series[lab]

    def one(self, patient: str, lab: str) -> Series:
        """Return the results of one patient and test; the series is empty if the patient has no results."""
        return self.series(lab).get(patient) or Series(self.person(patient).id, lab)

    def _read(self, lab: LabDefinition) -> Iterator[tuple[str, Series]]:
        patients = self.patients
        for first in range(0, len(patients), _BATCH):
            batch = patients[first : first + _BATCH]
            by_patient: dict[str, list[Resource]] = {patient: [] for patient in batch}
            for observation in self.world.search("Observation", code=lab.name, patient=",".join(batch)):
                owner = str(observation.get("subject", {}).get("reference", "")).removeprefix("Patient/")
                if owner in by_patient:
                    by_patient[owner].append(observation)
            for patient, resources in by_patient.items():
                if resources:
                    yield patient, self._sorted(patient, lab, resources)

    def _sorted(self, patient: str, lab: LabDefinition, resources: list[Resource]) -> Series:
        """Classify the results of one patient."""
        valid: list[LabResult] = []
        void: list[LabResult] = []
        undated: list[str] = []
        foreign: set[str] = set()
        for resource in resources:
            if "valueQuantity" not in resource or "value" not in resource["valueQuantity"]:
                continue
            withdrawn = resource.get("status") in _VOID
            reading = self._reading(resource)
            if reading is None:
                undated += [] if withdrawn else [str(resource["id"])]
                continue
            (void if withdrawn else valid).append(reading)
            if not _is_in(resource["valueQuantity"], lab):
                foreign.add(reading.id)
        counting, superseded, ambiguous = settle(valid)
        return Series(
            patient,
            lab.name,
            counted=tuple(result for result in counting if result.id not in foreign),
            void=tuple(sorted(void, key=_TAKEN)),
            superseded=tuple(superseded),
            others=tuple(result for result in counting if result.id in foreign),
            ambiguous=frozenset(ambiguous),
            undated=frozenset(undated),
            listed=tuple(str(resource["id"]) for resource in resources),
        )

    def _reading(self, resource: Resource) -> LabResult | None:
        """Parse a result that has a value; return None if its time is not an instant."""
        text = resource.get("effectiveDateTime", "")
        if "T" not in text:
            return None
        quantity = resource["valueQuantity"]
        return LabResult(
            id=resource["id"],
            taken=self._moment(text),
            issued=self._moment(str(resource.get("issued", text))),
            value=float(quantity["value"]),
            unit=str(quantity.get("unit") or quantity.get("code") or ""),
            text=text,
            status=resource.get("status", ""),
        )

    def _moment(self, text: str) -> datetime:
        """Parse an instant and convert it to UTC; equal texts share one object to save memory."""
        if text not in self._moments:
            self._moments[text] = parse_instant(text).astimezone(UTC)
        return self._moments[text]


def settle(readings: list[LabResult]) -> tuple[list[LabResult], list[LabResult], list[str]]:
    """Return the result that counts at each instant, the results that it replaces, and the ids of ambiguous results.

    At each instant, the result issued last counts; among results issued at the same time, the result created first
    counts. The input must be in creation order.
    """
    counting: list[LabResult] = []
    superseded: list[LabResult] = []
    ambiguous: list[str] = []
    for _, group in groupby(sorted(readings, key=_TAKEN), key=_TAKEN):
        first, *rest = sorted(group, key=attrgetter("issued"), reverse=True)
        counting.append(first)
        superseded += rest
        rivals = [result for result in rest if result.issued == first.issued]
        if any((rival.value, rival.unit) != (first.value, first.unit) for rival in rivals):
            ambiguous += [first.id, *(rival.id for rival in rivals)]
    return counting, superseded, ambiguous


def _is_in(quantity: Json, lab: LabDefinition) -> bool:
    """Return whether a quantity has the test's unit and no comparator such as "<"."""
    return "comparator" not in quantity and lab.unit in (quantity.get("unit"), quantity.get("code"))


def _person(patient: Resource) -> PatientSummary:
    name: Json = next(iter(patient.get("name", [])), {})
    words = name.get("text") or " ".join((*name.get("given", []), name.get("family", ""))).strip()
    born = str(patient.get("birthDate", ""))
    return PatientSummary(
        id=patient["id"],
        name=words,
        sex=patient.get("gender", ""),
        birth_date=date.fromisoformat(born) if len(born) == len("2000-01-01") else None,
    )


_charts: dict[str, LabHistory] = {}
_charts_lock = threading.Lock()


def lab_chart(world: World) -> LabHistory:
    """Return the laboratory results of a world; they are cached for the last few worlds, by content."""
    key = world.manifest.content_hash
    with _charts_lock:
        history = _charts.pop(key, None) or LabHistory(world)
        history.world = world  # the world from which the results were read may be closed
        _charts[key] = history
        while len(_charts) > _CHARTS:
            del _charts[next(iter(_charts))]
        return history
