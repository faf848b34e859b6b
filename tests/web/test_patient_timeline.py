"""A patient's timeline: dated records, and measurements over time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fhir_gym import worlds
from fhir_gym.fhir import Session
from fhir_gym.types import Resource
from fhir_gym.web.patient_timeline import PatientTimeline, moment, patient_timeline

SUBJECT = {"subject": {"reference": "Patient/p1"}}


def observation(id: str, date: str, **content: Any) -> Resource:
    found = {"resourceType": "Observation", "id": id, "status": "final", "code": {"text": "Potassium"}, **SUBJECT}
    return found | ({"effectiveDateTime": date} if date else {}) | content


def potassium(id: str, date: str, value: object, **content: Any) -> Resource:
    return observation(id, date, valueQuantity={"value": value, "unit": "mmol/L"}, **content)


@pytest.fixture
def session() -> Iterator[Session]:
    with worlds.load("empty") as world, world.session() as opened:
        opened.load([{"resourceType": "Patient", "id": "p1"}, {"resourceType": "Patient", "id": "p2"}])
        yield opened


def timeline(session: Session, *resources: Resource) -> PatientTimeline:
    session.load(resources)
    return patient_timeline(session, "p1", ["Condition", "Encounter", "Location", "Observation", "Patient"])


def test_values_of_a_measurement_are_one_series(session: Session) -> None:
    found = timeline(
        session,
        potassium("o2", "2023-03-01", 5.5, referenceRange=[{"low": {"value": 3.5}, "high": {"value": 5.1}}]),
        potassium("o1", "2022-01-01T10:00:00Z", 3.9),
        potassium("other", "2023-01-01", 9.9, subject={"reference": "Patient/p2"}),
    )
    [series] = found.series
    assert (series.name, series.count, series.latest, series.latest_date) == (
        "Potassium",
        2,
        "5.5 mmol/L",
        "2023-03-01",
    )
    assert series.flag == "above range"
    assert series.summary == "2 values from 2022-01-01 to 2023-03-01, lowest 3.9, highest 5.5 mmol/L"
    assert series.chart is not None and len(series.chart.dots) == 2


@pytest.mark.parametrize(("value", "flag"), [(3.4, "below range"), (3.5, ""), (5.1, ""), (5.2, "above range")])
def test_a_latest_value_outside_of_the_range_has_a_flag(session: Session, value: float, flag: str) -> None:
    limits = [{"low": {"value": 3.5}, "high": {"value": 5.1}}]
    [series] = timeline(session, potassium("o1", "2023-01-01", value, referenceRange=limits)).series
    assert series.flag == flag
    assert series.summary.startswith("1 value on 2023-01-01")


def test_a_stated_range_stays_when_the_latest_record_has_none(session: Session) -> None:
    limits = [{"low": {"value": 3.5}, "high": {"value": 5.1}}]
    records = (potassium("o1", "2022-01-01", 4, referenceRange=limits), potassium("o2", "2023-01-01", 6))
    [series] = timeline(session, *records).series
    assert (series.reference_range, series.flag, series.is_general) == ("3.5 to 5.1", "above range", False)


PULSE = {"code": {"coding": [{"system": "http://loinc.org", "code": "8867-4"}], "text": "Pulse"}}


@pytest.mark.parametrize(
    ("born", "content", "expected"),
    [
        ("1980-05-05", {}, ("60 /min to 100 /min", "above range", True)),
        ("2005-01-02", {}, ("", "", False)),
        ("2005-01-01", {}, ("60 /min to 100 /min", "above range", True)),
        (None, {}, ("", "", False)),
        ("1980", {"referenceRange": [{"low": {"value": 50}}]}, ("at least 50", "", False)),
        ("1980", {"code": {"coding": [{"system": "urn:mine", "code": "8867-4"}]}}, ("", "", False)),
        ("1980", {"valueQuantity": {"value": 2, "unit": "Hz", "code": "Hz"}}, ("", "", False)),
    ],
)
def test_vital_signs_of_adults_have_a_general_range(
    session: Session, born: str | None, content: Resource, expected: tuple[str, str, bool]
) -> None:
    session.load([{"resourceType": "Patient", "id": "p1"} | ({"birthDate": born} if born else {})])
    amount = {"value": 120, "unit": "/min", "code": "/min"}
    [series] = timeline(session, observation("o1", "2023-01-01", **PULSE | {"valueQuantity": amount} | content)).series
    assert (series.reference_range, series.flag, series.is_general) == expected
    assert series.chart is not None and (series.chart.band_top is not None) == bool(expected[0])


@pytest.mark.parametrize(
    ("codings", "meaning"),
    [
        ([("http://loinc.org", "2823-3", "Potassium in serum")], "Potassium in serum (LOINC 2823-3)"),
        ([("http://loinc.org", "2823-3", "Potassium")], "LOINC 2823-3"),
        ([("http://loinc.org", "K", "K")], "Potassium [Moles/volume] in Serum or Plasma (LOINC K)"),
        ([("urn:mine", "K", "")], "K"),
        ([("http://snomed.info/sct", "1", "Salt"), ("urn:mine", "s", "Salt")], "Salt (SNOMED CT 1, s)"),
        ([("urn:mine", "Potassium", "")], ""),
    ],
)
def test_a_name_is_explained_by_its_codes(session: Session, codings: list[tuple[str, ...]], meaning: str) -> None:
    code = [dict(zip(("system", "code", "display"), coding, strict=True)) for coding in codings]
    concept = {"text": "Potassium", "coding": [{key: text for key, text in one.items() if text} for one in code]}
    condition = {"resourceType": "Condition", "id": "c1", "onsetDateTime": "2023", "code": concept, **SUBJECT}
    found = timeline(session, potassium("o1", "2023-01-01", 4, code=concept), condition)
    assert (found.series[0].meaning, found.events[0].codes) == (meaning, meaning)


def test_values_with_different_units_and_components_are_different_series(session: Session) -> None:
    parts = [
        {"code": {"text": name}, "valueQuantity": {"value": value, "unit": "mmHg"}}
        for name, value in (("systolic", 120), ("diastolic", 80))
    ]
    found = timeline(
        session,
        potassium("o1", "2023-01-01", 4.0),
        observation("o2", "2023-01-02", valueQuantity={"value": 15.6, "unit": "mg/dL"}),
        observation("o3", "2023-01-03", code={"text": "BP"}, component=parts),
    )
    names = [(series.name, series.unit) for series in found.series]
    assert names == [
        ("BP: diastolic", "mmHg"),
        ("BP: systolic", "mmHg"),
        ("Potassium", "mg/dL"),
        ("Potassium", "mmol/L"),
    ]


def test_observations_without_a_number_have_no_chart(session: Session) -> None:
    found = timeline(
        session,
        observation("o1", "2023-01-01", valueString="haemolysed"),
        observation("o2", "2023-01-02", code={"text": "Nothing"}),
        observation("o3", "", code={"text": "Undated"}, valueString="x"),
    )
    assert [(series.name, series.latest, series.chart) for series in found.series] == [
        ("Nothing", "no value", None),
        ("Potassium", "haemolysed", None),
    ]


def test_the_newest_record_is_first_and_encounters_count_their_records(session: Session) -> None:
    found = timeline(
        session,
        {"resourceType": "Location", "id": "l1"},
        {"resourceType": "Encounter", "id": "e1", "status": "finished", "period": {"start": "2022-05-01"}, **SUBJECT},
        {"resourceType": "Condition", "id": "c1", "onsetDateTime": "2023-05", "code": {"text": "Gout"}, **SUBJECT},
        {"resourceType": "Condition", "id": "undated", "code": {"text": "Asthma"}, **SUBJECT},
        potassium("o1", "2022-05-01", 4, encounter={"reference": "Encounter/e1"}),
    )
    gout, visit = found.events
    assert (gout.title, gout.date, gout.year) == ("Gout", "2023-05", "2023")
    assert (visit.resource_type, visit.status, visit.records) == ("Encounter", "finished", {"Observation": 1})
    assert found.left_out == {}


def test_records_beyond_the_limit_are_counted(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fhir_gym.web.patient_timeline._MOST_OBSERVATIONS", 2)
    found = timeline(session, *(potassium(f"o{day}", f"2023-01-0{day}", day) for day in range(1, 6)))
    assert found.left_out == {"Observation": 3}
    assert found.series[0].latest == "5 mmol/L"


@pytest.mark.parametrize("junk", ["x", 5, None, [], {}, [None], {"coding": ["x"]}])
def test_elements_of_any_shape_are_shown(session: Session, junk: object) -> None:
    shapes = ({"code": junk}, {"category": junk}, {"valueQuantity": junk}, {"component": junk}, {"encounter": junk})
    for number, shape in enumerate((*shapes, {"referenceRange": junk}, {"effectiveDateTime": junk})):
        broken = potassium(f"o{number}", "2023-01-01", 4) | shape
        session.load([broken], normal=True)
    assert patient_timeline(session, "p1", ["Observation"]).series


def test_numbers_that_no_chart_can_show_are_left_out(session: Session) -> None:
    [series] = timeline(session, potassium("o1", "2023-01-01", 10**400), potassium("o2", "2023-01-02", 4)).series
    assert (series.count, series.chart and len(series.chart.dots)) == (2, 1)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2023", "2023-01-01"),
        ("2023-05", "2023-05-01"),
        ("2023-05-06T07:08:09.123+02:00", "2023-05-06"),
        ("yesterday", None),
        ("2023-13", None),
        (7, None),
        (None, None),
    ],
)
def test_moments(text: object, shown: str | None) -> None:
    found = moment(text)
    assert (found and f"{found:%Y-%m-%d}") == shown
