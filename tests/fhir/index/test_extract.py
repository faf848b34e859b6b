"""The index rows of resources equal the expected rows and the results of an independent FHIRPath engine."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.fhir.definitions import search_parameters
from fhir_gym.fhir.index import index_rows, index_spec, references
from fhir_gym.fhir.index.values import compartment_key, normalise

OBSERVATION: dict[str, Any] = {
    "resourceType": "Observation",
    "id": "x",
    "status": "final",
    "code": {"coding": [{"system": "a", "code": "1"}, {"system": "b", "code": "1", "display": "Éins"}], "text": "one"},
    "subject": {"reference": "Patient/p/_history/3"},
    "performer": [{"reference": "Practitioner/d"}, {"reference": "#d"}, {"reference": "http://x/Practitioner/d"}, {}],
    "effectiveDateTime": "2023-01-02T03:04:05.678+01:00",
    "valueQuantity": {"value": 1.5, "code": "mg", "system": "u"},
}


def _rows(resource: dict[str, Any], parameter: str) -> list[tuple[Any, ...]]:
    field = index_spec(resource["resourceType"]).fields[parameter]
    return [row for row in index_rows(resource, 7)[field.table] if row[0] in field.pids]


def test_tokens() -> None:
    owner = compartment_key("Patient", "p")
    at = 1672625045678
    (pid,) = index_spec("Observation").fields["code"].pids
    assert _rows(OBSERVATION, "code") == [(pid, "1", owner, 7, 0, "a", at), (pid, "1", owner, 7, 1, "b", at)]
    assert [r[1:] for r in index_rows(OBSERVATION, 7)["string"] if r[0] == pid] == [("EINS", 7, ""), ("ONE", 7, "")]
    assert [r[5] for r in _rows(OBSERVATION, "status")] == ["http://hl7.org/fhir/observation-status"]


def test_references() -> None:
    assert [r[1:] for r in _rows(OBSERVATION, "subject")] == [("p", "Patient", 7)]
    assert [r[1:] for r in _rows(OBSERVATION, "performer")] == [("d", "Practitioner", 7)]
    assert references(OBSERVATION) == [
        ("Observation.subject", "Patient/p/_history/3"),
        ("Observation.performer", "Practitioner/d"),
        ("Observation.performer", "#d"),
        ("Observation.performer", "http://x/Practitioner/d"),
    ]


def test_dates_and_quantities() -> None:
    assert [r[2:] for r in _rows(OBSERVATION, "date")] == [(1672625045678, 7, 1672625045678, 20230102, 20230102)]
    assert [r[1:] for r in _rows(OBSERVATION, "value-quantity")] == [(1.5, 7, "mg", "u")]
    period = {**OBSERVATION, "effectivePeriod": {"start": "2023"}}
    del period["effectiveDateTime"]
    assert [r[5:] for r in _rows(period, "date")] == [(20230101, 99991231)]
    assert {r[6] for r in _rows(period, "code")} == {None}, "a period is no moment"


@pytest.mark.parametrize(
    ("more", "expected"),
    [({}, ["false"]), ({"deceasedBoolean": False}, ["false"]), ({"deceasedBoolean": True}, ["true"]),
     ({"deceasedDateTime": "2020"}, ["true"])],
)  # fmt: skip
def test_deceased_is_always_indexed(more: dict[str, Any], expected: list[str]) -> None:
    assert [r[1] for r in _rows({"resourceType": "Patient", "id": "p", **more}, "deceased")] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("García", "GARCIA"),
        ("Łukasz", "ŁUKASZ"),
        ("weiß", "WEIß"),
        ("O'Brien-x", "O'BRIEN-X"),
        ("İx", "IX"),
        ("李", "李"),
    ],
)
def test_normalise(text: str, expected: str) -> None:
    assert normalise(text) == expected


def test_values_of_a_wrong_shape_give_no_rows() -> None:
    odd: dict[str, Any] = {
        "resourceType": "Observation",
        "code": "text",
        "status": 5,
        "subject": "Patient/p",
        "effectiveDateTime": {"x": 1},
        "valueQuantity": {"value": "1"},
        "component": [None, 3, {"code": []}],
    }
    assert not any(index_rows(odd, 1).values())


def _expected(value: Any) -> set[str]:
    """Return the expected index texts of a value that the independent engine found."""
    if isinstance(value, dict):
        if "coding" in value:
            return {c["code"] for c in value["coding"] if "code" in c}
        if "family" in value or "given" in value:
            return {str(value["family"])} if "family" in value else set()
        for key in ("code", "value", "reference", "start"):
            if key in value and isinstance(value[key], str):
                return {value[key].split("/")[-1] if key == "reference" else value[key]}
        return set()
    return {str(value).lower()} if isinstance(value, bool) else {str(value)}


def test_tokens_and_references_agree_with_fhirpathpy(shared_dir: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from fhirpathpy import compile as compile_other
    resources = json.loads((shared_dir / "conformance" / "data.json").read_text())
    compiled: dict[str, Any] = {}
    compared = 0
    for resource in resources:
        rows = index_rows(resource, 1)
        for name, parameter in search_parameters(resource["resourceType"]).items():
            field = index_spec(resource["resourceType"]).fields.get(name)
            if parameter.type not in ("token", "reference") or field is None or "resolve()" in parameter.expression:
                continue
            if " != " in parameter.expression:
                continue
            if parameter.expression not in compiled:
                compiled[parameter.expression] = compile_other(parameter.expression)
            wanted = {t for v in compiled[parameter.expression](resource) for t in _expected(v)}
            found = {row[1] for row in rows[field.table] if row[0] in field.pids}
            assert wanted <= found, (resource["id"], name)
            if " as " not in parameter.expression:  # the independent engine returns nothing for `as` on a list
                assert bool(wanted) == bool(found), (resource["id"], name)
            compared += bool(wanted)
    assert compared > 1000
