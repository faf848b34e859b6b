"""Read laboratory results and patients from exported JSON in plain Python.

This module shares no code with search, mining or grading, so it does not repeat their mistakes.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from fhir_gym.errors import WorldError
from fhir_gym.fhir import World
from fhir_gym.types import as_list, as_object, objects_in

_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)\Z")
_PATIENT = re.compile(r"(?:.*/)?Patient/([A-Za-z0-9.-]{1,64})(?:/_history/.*)?\Z")


@dataclass(frozen=True, slots=True)
class ExportedResult:
    """One Observation of a laboratory test.

    Attributes:
        id: Id of the Observation.
        order: Position among all Observations of the export.
        status: Status; empty if missing.
        text: ``effectiveDateTime`` as stored; empty if missing.
        taken: `text` as an instant; None if `text` is a date or empty.
        issued: Time when the result was issued; `taken` if that time is missing.
        value: Value as stored; None if missing.
        exact: Whether the value is stored without a comparator such as "<".
        unit: Unit; empty if missing.
    """

    id: str
    order: int
    status: str
    text: str
    taken: datetime | None
    issued: datetime | None
    value: Decimal | None
    exact: bool
    unit: str


@dataclass(frozen=True, slots=True)
class ExportedPatient:
    """One Patient.

    Attributes:
        numbers: The id and the values of all identifiers.
        name: Current full name; empty if missing.
        gender: Gender; None if missing.
        birth: Birth date as stored; None if missing.
    """

    id: str
    numbers: tuple[str, ...]
    name: str
    gender: str | None
    birth: str | None

    def age(self, today: date) -> int | None:
        """Return the age in full years on a day; None if the full birth date is unknown."""
        try:
            born = date.fromisoformat(self.birth or "")
        except ValueError:
            return None
        return today.year - born.year - ((today.month, today.day) < (born.month, born.day))

    def days_to_birthday(self, today: date) -> int | None:
        """Return the number of days between a day and the nearest birthday before or after it."""
        try:
            born = date.fromisoformat(self.birth or "")
        except ValueError:
            return None
        # An error of one day in leap years does not matter: callers only ask whether a birthday is near.
        apart = abs(born.replace(year=2000).timetuple().tm_yday - today.replace(year=2000).timetuple().tm_yday)
        return min(apart, 366 - apart)


@dataclass(frozen=True)
class Extract:
    """The patients and results of an export that an audit needs.

    Attributes:
        now: Current time.
        people: Patients by id, in export order.
        rows: Results by test and patient, in export order.
        holders: Patient ids by record number.
    """

    now: datetime
    people: Mapping[str, ExportedPatient]
    rows: Mapping[tuple[str, str], tuple[ExportedResult, ...]]
    holders: Mapping[str, tuple[str, ...]] = field(repr=False, default_factory=dict)

    def of(self, lab: str, patient: str) -> tuple[ExportedResult, ...]:
        """Return the results of a test and a patient."""
        return self.rows.get((lab, patient), ())


def extract(source: World | Path, labs: Collection[str], numbers: Collection[str], *, now: datetime) -> Extract:
    """Read all patients, and the results of some tests for some patients.

    Args:
        source: A world, or a folder that contains NDJSON files, also in subfolders.
        labs: Names of the tests to read.
        numbers: Record numbers of the patients for whom to read results.
        now: Current time.

    Raises:
        WorldError: A file is not readable, or a line is not a resource.
    """
    people = {
        resource.id: resource for resource in map(_individual, _resources(source, "Patient", re.compile(rb'"Patient"')))
    }
    holders: dict[str, list[str]] = defaultdict(list)
    for person in people.values():
        for number in person.numbers:
            holders[number].append(person.id)
    patient_ids = {id for number in numbers for id in holders.get(number, ())}
    rows: dict[tuple[str, str], list[ExportedResult]] = defaultdict(list)
    if labs and patient_ids:
        named = re.compile(b'"(?:' + b"|".join(re.escape(lab.encode()) for lab in sorted(labs)) + b')"')
        for order, resource in enumerate(_resources(source, "Observation", named)):
            patient = _patient(resource.get("subject"))
            if patient in patient_ids:
                for lab in dict.fromkeys(_codes(resource)):
                    if lab in labs:
                        rows[lab, patient].append(_row(resource, order))
    return Extract(now, people, {key: tuple(results) for key, results in rows.items()}, {
        number: tuple(ids) for number, ids in holders.items()
    })  # fmt: skip


def _resources(source: World | Path, kind: str, named: re.Pattern[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the resources of a type; lines that do not match `named` are skipped without parsing."""
    lines = source.resources(kind) if isinstance(source, World) else _lines(source)
    for line in lines:
        if named.search(line):
            resource = json.loads(line, parse_float=Decimal)
            if isinstance(resource, dict) and resource.get("resourceType") == kind:
                yield resource


def _lines(folder: Path) -> Iterator[bytes]:
    files = sorted(folder.rglob("*.ndjson"))
    if not files:
        raise WorldError(f"{folder} has no .ndjson files")
    for path in files:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    try:
                        json.loads(line)
                    except ValueError as error:
                        raise WorldError(f"{path}:{number}: not JSON: {error}") from error
                    yield line


def _codes(resource: Mapping[str, Any]) -> Iterable[str]:
    codings = as_object(resource.get("code")).get("coding")
    return [str(coding["code"]) for coding in as_list(codings) if "code" in coding]


def _patient(subject: Any) -> str:
    match = _PATIENT.match(str(as_object(subject).get("reference") or ""))
    return match[1] if match else ""


def _row(resource: Mapping[str, Any], order: int) -> ExportedResult:
    quantity = as_object(resource.get("valueQuantity"))
    text = str(resource.get("effectiveDateTime") or "")
    taken = _moment(text)
    value = quantity.get("value")
    return ExportedResult(
        id=str(resource["id"]),
        order=order,
        status=str(resource.get("status") or ""),
        text=text,
        taken=taken,
        issued=_moment(str(resource.get("issued") or "")) or taken,
        value=None if value is None or isinstance(value, bool) else Decimal(str(value)),
        exact="comparator" not in quantity,
        unit=str(quantity.get("unit") or quantity.get("code") or ""),
    )


def _individual(resource: Mapping[str, Any]) -> ExportedPatient:
    values = [as_object(identifier).get("value") for identifier in as_list(resource.get("identifier"))]
    id = str(resource["id"])
    gender, birth = resource.get("gender"), resource.get("birthDate")
    return ExportedPatient(
        id=id,
        numbers=tuple(dict.fromkeys([id, *(str(identifier) for identifier in values if identifier)])),
        name=_name(resource.get("name")),
        gender=None if gender is None else str(gender),
        birth=None if birth is None else str(birth),
    )


def _name(names: Any) -> str:
    used = [name for name in objects_in(names) if name.get("use") != "old"]
    if not used:
        return ""
    return " ".join([*map(str, used[0].get("given") or []), str(used[0].get("family") or "")]).strip()


def _moment(text: str) -> datetime | None:
    if not _INSTANT.match(text):
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
