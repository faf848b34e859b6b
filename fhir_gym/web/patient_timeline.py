"""Collect a patient's timeline from a session: dated records, and sparklines of each measurement over time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

from fhir_gym.fhir import FhirSession
from fhir_gym.fhir.definitions import search_parameters
from fhir_gym.types import Json, Resource, as_object, objects_in
from fhir_gym.web.element_text import element_text
from fhir_gym.web.measurements import ADULT, GeneralRange, explained, general_range

_MOST_OBSERVATIONS = 5_000
_MOST_EVENTS = 500
"""Maximum number of records of one type in a timeline."""
_DATES = (
    "period",
    "start",
    "effectiveDateTime",
    "effectivePeriod",
    "performedDateTime",
    "performedPeriod",
    "occurrenceDateTime",
    "occurrencePeriod",
    "onsetDateTime",
    "onsetPeriod",
    "authoredOn",
    "recordedDate",
    "date",
    "issued",
    "created",
    "sent",
)
"""Elements that say when something happened; the first one that a record has is used."""
_TITLES = (
    "code",
    "type",
    "medicationCodeableConcept",
    "medicationReference",
    "vaccineCode",
    "appointmentType",
    "description",
    "class",
    "category",
)
"""Elements that say what a record is about; the first one that a record has is used."""


@dataclass(frozen=True, slots=True)
class Event:
    """A dated record of a patient.

    Attributes:
        date: The date or date and time, as the record has it.
        resource_type: The type of the record.
        id: The id of the record.
        title: What the record is about.
        codes: The codes of the title; an empty text for records without one.
        status: The status; an empty text for records without one.
        records: For an encounter, the number of other records of each type that belong to it.
    """

    date: str
    resource_type: str
    id: str
    title: str
    codes: str
    status: str
    records: Mapping[str, int] = field(default_factory=dict)

    @property
    def year(self) -> str:
        """The year of the date."""
        return self.date[:4]


@dataclass(frozen=True, slots=True)
class Series:
    """The values of one measurement over time.

    Attributes:
        name: Name of the measurement.
        meaning: What the name stands for, with codes; an empty text if the record does not say more.
        category: Category of the observations (``Laboratory``).
        query: Search that returns the observations.
        count: Number of values.
        unit: Unit of the values.
        latest: The latest value with its unit.
        latest_date: Date of the latest value.
        reference_range: Text of the latest reference range; an empty text without a range.
        is_general: Whether the range is the general one of adults, because no record states a range.
        flag: ``below range`` or ``above range`` if the latest value is outside of the range, otherwise an empty text.
        summary: All of the sparkline in words.
        chart: The sparkline; None for measurements without numbers.
    """

    name: str
    meaning: str
    category: str
    query: str
    count: int
    unit: str
    latest: str
    latest_date: str
    reference_range: str
    is_general: bool
    flag: str
    summary: str
    chart: Sparkline | None


@dataclass(frozen=True, slots=True)
class PatientTimeline:
    """The timeline of a patient.

    Attributes:
        events: The dated records, the newest first.
        series: The measurements by category and name.
        left_out: For each type with more records than a timeline shows, the number of records that are left out.
    """

    events: tuple[Event, ...]
    series: tuple[Series, ...]
    left_out: Mapping[str, int]


@dataclass(slots=True)
class _Measurement:
    """Observations of the same measurement with the same unit."""

    name: str
    meaning: str
    category: str
    query: str
    unit: str
    points: list[tuple[datetime, float]] = field(default_factory=list)
    texts: list[tuple[str, str]] = field(default_factory=list)
    limits: Json = None
    general: GeneralRange | None = None


def patient_timeline(session: FhirSession, patient: str, types: Iterable[str]) -> PatientTimeline:
    """Return the timeline of a patient.

    Args:
        session: A session on the patient's world.
        patient: Id of the patient.
        types: The resource types to search.
    """
    left_out: dict[str, int] = {}
    by_kind: dict[str, list[Resource]] = {}
    for kind in types:
        if kind == "Patient" or "patient" not in search_parameters(kind):
            continue
        most = _MOST_OBSERVATIONS if kind == "Observation" else _MOST_EVENTS
        by_kind[kind], total = _newest(session, kind, patient, most)
        if total > len(by_kind[kind]):
            left_out[kind] = total - len(by_kind[kind])
    observations = by_kind.pop("Observation", [])
    visits = _records_of_encounters(
        [*observations, *(resource for several in by_kind.values() for resource in several)]
    )
    events = [event for several in by_kind.values() for resource in several if (event := _event(resource, visits))]
    events.sort(key=lambda event: (moment(event.date), event.resource_type, event.id), reverse=True)
    born = moment((session.read("Patient", patient) or {}).get("birthDate"))
    return PatientTimeline(tuple(events), tuple(_series(observations, patient, born)), left_out)


def moment(text: Json) -> datetime | None:
    """Return a FHIR date or dateTime as a time; None for other values. Missing parts are the earliest possible."""
    if not isinstance(text, str):
        return None
    if len(text) in (4, 7):
        text += "-01-01"[: 10 - len(text)] if len(text) == 4 else "-01"
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _newest(session: FhirSession, kind: str, patient: str, most: int) -> tuple[list[Resource], int]:
    """Return a patient's newest records of a type, and the number of all of them."""
    order = next((f"&_sort=-{name}" for name in ("date", "authored") if name in search_parameters(kind)), "")
    bundle = session.get(f"/{kind}?patient={quote(patient, safe='')}{order}&_count={most}&_offset=0&_total=accurate")
    entries = bundle.get("entry", []) if isinstance(bundle, dict) else []
    resources = [entry["resource"] for entry in entries if "resource" in entry]
    return resources, int(bundle.get("total", len(resources)))


def _records_of_encounters(resources: Iterable[Resource]) -> dict[str, Counter[str]]:
    """Return, for the reference of each encounter, the number of records of each type that belong to it."""
    counts: dict[str, Counter[str]] = {}
    for resource in resources:
        reference = _at(resource, "encounter", "reference")
        if isinstance(reference, str):
            counts.setdefault(reference, Counter())[str(resource.get("resourceType"))] += 1
    return counts


def _event(resource: Resource, visits: Mapping[str, Counter[str]]) -> Event | None:
    date = next((text for name in _DATES if (text := _start(resource.get(name)))), None)
    if date is None:
        return None
    kind, id = str(resource.get("resourceType")), str(resource.get("id"))
    about = next((name for name in _TITLES if element_text(resource.get(name))), "")
    title = element_text(resource.get(about))
    status = element_text(resource.get("status") or resource.get("clinicalStatus"))
    records = visits.get(f"Encounter/{id}", Counter()) if kind == "Encounter" else Counter[str]()
    return Event(date, kind, id, title, _codes(resource.get(about), title), status, dict(sorted(records.items())))


def _codes(value: Json, title: str) -> str:
    """Return the codes of a CodeableConcept, or of the first one of a list."""
    return explained(_at(value, 0) if isinstance(value, list) else value, title)


def _start(value: Json) -> str | None:
    """Return a date, or the start of a period."""
    text = value.get("start") or value.get("end") if isinstance(value, dict) else value
    return text if isinstance(text, str) and moment(text) else None


def _series(observations: list[Resource], patient: str, born: datetime | None) -> Iterator[Series]:
    measurements: dict[tuple[str, str], _Measurement] = {}
    for observation in reversed(observations):  # the oldest first
        for name, part in _parts(observation):
            _add(measurements, observation, name, part, patient, born)
    for measurement in sorted(
        measurements.values(), key=lambda measurement: (measurement.category, measurement.name, measurement.unit)
    ):
        yield _finished(measurement)


def _parts(observation: Resource) -> Iterator[tuple[str, Resource]]:
    """Yield the name of each value of an observation and the element that has it: the observation, or a component."""
    name = element_text(observation.get("code")) or "without a code"
    components = observation.get("component")
    with_own_value = any(key.startswith("value") for key in observation)
    if with_own_value or not isinstance(components, list):
        yield name, observation
    for component in objects_in(components):
        yield f"{name}: {element_text(component.get('code'))}", component


def _add(
    measurements: dict[tuple[str, str], _Measurement],
    observation: Resource,
    name: str,
    part: Resource,
    patient: str,
    born: datetime | None,
) -> None:
    date = next((text for key in _DATES if (text := _start(observation.get(key)))), None)
    time = moment(date)
    if date is None or time is None:
        return
    quantity = part.get("valueQuantity")
    unit = element_text(_at(quantity, "unit") or _at(quantity, "code"))
    value = next((inner for key, inner in part.items() if key.startswith("value")), None)
    code = _at(observation, "code", "coding", 0, "code")
    query = f"Observation?patient={quote(patient, safe='')}"
    query += f"&code={quote(code, safe='', errors='replace')}" if isinstance(code, str) else ""
    category = element_text(observation.get("category"))
    meaning = explained(part.get("code"), element_text(part.get("code")))
    measurement = measurements.setdefault((name, unit), _Measurement(name, meaning, category, query, unit))
    number = _number(_at(quantity, "value"))
    if number is not None:
        measurement.points.append((time, number))
    measurement.texts.append((date, element_text(value) or "no value"))
    measurement.limits = _at(part, "referenceRange", 0) or measurement.limits
    is_adult = born is not None and (time.year - ADULT, time.month, time.day) >= (born.year, born.month, born.day)
    measurement.general = general_range(part.get("code"), quantity) if is_adult else None


def _finished(measurement: _Measurement) -> Series:
    low, high = _number(_at(measurement.limits, "low", "value")), _number(_at(measurement.limits, "high", "value"))
    reference_range = element_text(measurement.limits)
    if general := None if reference_range else measurement.general:
        low, high = general.low, general.high
        reference_range = f"{low:g} {measurement.unit} to {high:g} {measurement.unit}"
    date, latest = measurement.texts[-1]
    measurement.points.sort(key=lambda point: point[0])
    values = [value for _, value in measurement.points]
    # the latest value may be a text, or an observation without a value
    last = values[-1] if values and moment(date) == measurement.points[-1][0] else None
    flag = "" if last is None else _flag(last, low, high)
    first = measurement.texts[0][0][:10]
    summary = (
        f"{len(measurement.texts)} values from {first} to {date[:10]}"
        if len(measurement.texts) > 1
        else f"1 value on {first}"
    )
    if values:
        summary += f", lowest {min(values):g}, highest {max(values):g} {measurement.unit}".rstrip()
    return Series(
        name=measurement.name,
        meaning=measurement.meaning,
        category=measurement.category,
        query=measurement.query,
        count=len(measurement.texts),
        unit=measurement.unit,
        latest=latest,
        latest_date=date,
        reference_range=reference_range,
        is_general=general is not None,
        flag=flag,
        summary=summary,
        chart=sparkline(values, low, high) if values else None,
    )


def _flag(value: float, low: float | None, high: float | None) -> str:
    if low is not None and value < low:
        return "below range"
    return "above range" if high is not None and value > high else ""


def _number(value: Json) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _at(value: Json, *path: str | int) -> Json:
    """Return the element at a path; None if there is none, whatever the shape of the value."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and len(value) > step else None
        else:
            value = as_object(value).get(step)
    return value


WIDTH, HEIGHT = 220, 44
"""Size of a sparkline in CSS pixels."""
_MARGIN = 5
_MOST_DOTS = 60
"""Maximum number of values that get a dot each; a longer line gets one only at its end."""


@dataclass(frozen=True, slots=True)
class Dot:
    """The position of a value."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Sparkline:
    """The shapes of a sparkline.

    Attributes:
        line: The points of the line, as the attribute `points` of an SVG polyline.
        dots: The positions of the values that get a dot; the last one is the latest value.
        band_top: Upper edge of the reference range; None without a range.
        band_height: Height of the reference range.
    """

    line: str
    dots: tuple[Dot, ...]
    band_top: float | None
    band_height: float


def sparkline(values: Sequence[float], low: float | None = None, high: float | None = None) -> Sparkline:
    """Return the shapes of the values of one measurement, which are drawn at equal distances.

    Args:
        values: The values in the order of time; at least one.
        low: Lower limit of the reference range.
        high: Upper limit of the reference range.
    """
    shown = [*values, *(limit for limit in (low, high) if limit is not None)]
    bottom, half = min(shown), max(shown) / 2 - min(shown) / 2  # a whole difference may be too large for a float

    def x(place: int) -> float:
        share = place / (len(values) - 1) if len(values) > 1 else 0.5
        return round(_MARGIN + share * (WIDTH - 2 * _MARGIN), 1)

    def y(value: float) -> float:
        share = (value / 2 - bottom / 2) / half if half > 0 else 0.5
        return round(HEIGHT - _MARGIN - share * (HEIGHT - 2 * _MARGIN), 1)

    dots = tuple(Dot(x(place), y(value)) for place, value in enumerate(values))
    line = " ".join(f"{dot.x},{dot.y}" for dot in dots)
    band_top, band_height = None, 0.0
    if low is not None or high is not None:
        band_top = 0.0 if high is None else y(high)
        band_height = max(1.0, round((HEIGHT if low is None else y(low)) - band_top, 1))
    return Sparkline(line, dots if len(dots) <= _MOST_DOTS else dots[-1:], band_top, band_height)
