"""FHIRPath Patch: operations, paths and HAPI's messages."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fhir_gym.fhir.fhirpath.locations import PatchBudget, evaluate, parse_path, root
from fhir_gym.fhir.fhirpath.parser import PathError
from fhir_gym.fhir.interactions.patch import FhirPathPatch
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.types import Resource

PATIENT: Resource = {
    "resourceType": "Patient",
    "id": "A",
    "meta": {"versionId": "1"},
    "name": [{"use": "official", "family": "Doe", "given": ["Jane", "Q"]}, {"use": "maiden", "family": "Roe"}],
    "telecom": [{"value": "1"}, {"value": "2"}],
    "gender": "female",
    "birthDate": "1990-01-01",
    "deceasedBoolean": False,
}


def operation(kind: str | None, **parts: Any) -> dict[str, Any]:
    """Build one operation. The part `value` is (type suffix, value) or a list of parts."""
    listed: list[dict[str, Any]] = [{"name": "type", "valueCode": kind}] if kind else []
    for name, value in parts.items():
        if name == "value" and isinstance(value, tuple):
            listed.append({"name": "value", f"value{value[0]}": value[1]})
        elif name == "value":
            listed.append({"name": "value", "part": value})
        elif isinstance(value, int):
            listed.append({"name": name, "valueInteger": value})
        else:
            listed.append({"name": name, "valueString": value})
    return {"name": "operation", "part": listed}


def apply(*operations: dict[str, Any], resource: Resource = PATIENT) -> Resource:
    patch = FhirPathPatch({"resourceType": "Parameters", "parameter": list(operations)})
    return patch.apply(deepcopy(resource), f"{resource['resourceType']}/{resource['id']}")


def refused(*operations: dict[str, Any]) -> str:
    with pytest.raises(FhirError) as caught:
        apply(*operations)
    assert caught.value.status == 400
    return caught.value.diagnostics


def test_replace() -> None:
    assert apply(operation("replace", path="Patient.gender", value=("Code", "male")))["gender"] == "male"
    changed = apply(operation("replace", path="Patient.telecom[1].value", value=("String", "two")))
    assert changed["telecom"] == [{"value": "1"}, {"value": "two"}]
    changed = apply(
        operation("replace", path="Patient.telecom.where(value = '2')", value=("ContactPoint", {"value": "x"}))
    )
    assert changed["telecom"] == [{"value": "1"}, {"value": "x"}]


def test_replace_changes_the_type_of_a_choice() -> None:
    changed = apply(operation("replace", path="Patient.deceased", value=("DateTime", "2020-01-01")))
    assert changed["deceasedDateTime"] == "2020-01-01"
    assert "deceasedBoolean" not in changed


def test_add() -> None:
    assert apply(operation("add", path="Patient", name="active", value=("Boolean", True)))["active"] is True
    changed = apply(operation("add", path="Patient", name="telecom", value=("ContactPoint", {"value": "3"})))
    assert [t["value"] for t in changed["telecom"]] == ["1", "2", "3"]
    changed = apply(operation("add", path="Patient", name="birthDate", value=("Date", "1980-02-03")))
    assert changed["birthDate"] == "1980-02-03"
    changed = apply(operation("add", path="Patient", name="deceased", value=("DateTime", "2020")))
    assert changed["deceasedDateTime"] == "2020"
    assert "deceasedBoolean" not in changed


def test_add_builds_a_backbone_from_parts() -> None:
    contact = [{"name": "name", "valueHumanName": {"text": "a name"}}, {"name": "gender", "valueCode": "male"}]
    changed = apply(operation("add", path="Patient", name="contact", value=contact))
    assert changed["contact"] == [{"name": {"text": "a name"}, "gender": "male"}]


def test_delete() -> None:
    assert "gender" not in apply(operation("delete", path="Patient.gender"))
    changed = apply(operation("delete", path="Patient.telecom[0]"))
    assert changed["telecom"] == [{"value": "2"}]
    changed = apply(operation("delete", path="Patient.telecom[0]"), operation("delete", path="Patient.telecom"))
    assert "telecom" not in changed


@pytest.mark.parametrize("path", ["Patient.active", "Patient.nope", "Observation.status", "Patient.telecom[7]"])
def test_delete_of_nothing_changes_nothing(path: str) -> None:
    assert apply(operation("delete", path=path)) == PATIENT


def test_insert_and_move() -> None:
    changed = apply(operation("insert", path="Patient.telecom", index=1, value=("ContactPoint", {"value": "x"})))
    assert [t["value"] for t in changed["telecom"]] == ["1", "x", "2"]
    changed = apply(operation("insert", path="Patient.address", index=0, value=("Address", {"city": "x"})))
    assert changed["address"] == [{"city": "x"}]
    changed = apply(operation("move", path="Patient.telecom", source=1, destination=0))
    assert [t["value"] for t in changed["telecom"]] == ["2", "1"]


def test_nothing_to_do() -> None:
    assert apply() == PATIENT


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (
            operation("replace", path="Patient.active", value=("Boolean", True)),
            "HAPI-2761: No element matches the specified path: Patient.active",
        ),
        (operation("replace", path="Patient.gender"), "HAPI-1267: [ No valid replacement value for patch operation.]"),
        (
            operation("add", path="Patient", name="maritalStatus"),
            "HAPI-1267: [No content found at Patient.maritalStatus when adding]",
        ),
        (
            operation("delete", path="Patient.telecom"),
            "HAPI-1267: [Multiple elements found at Patient.telecom when deleting]",
        ),
        (
            operation("insert", path="Patient.telecom", index=7, value=("ContactPoint", {"value": "x"})),
            "HAPI-1267: [Invalid insert index 7 for path Patient.telecom - Only have 2 existing entries]",
        ),
        (
            operation("move", path="Patient.telecom", source=5, destination=0),
            "HAPI-1268: Invalid move source index 5 for path Patient.telecom - Only have 2 existing entries",
        ),
        (
            operation("add", path="Patient.name", name="given", value=("String", "x")),
            "HAPI-1267: [Multiple elements found at Patient.name when adding]",
        ),
        (
            operation("insert", path="Patient.gender", index=0, value=("Code", "male")),
            "HAPI-1267: [Patient.gender is not a list]",
        ),
        (
            operation("move", path="Patient.name.given", source=0, destination=0),
            "HAPI-1267: [Multiple elements found at Patient.name.given when moving]",
        ),
        (
            operation("replace", path="Patient", value=("String", "x")),
            "HAPI-1267: [The resource itself cannot be replaced: Patient]",
        ),
        (operation("bogus", path="Patient"), "HAPI-1267: [Unknown patch operation type: bogus]"),
        (operation(None, path="Patient"), "HAPI-1267: [Unknown patch operation type: ]"),
        ({"name": "x", "valueString": "y"}, "HAPI-1267: [Unknown patch parameter name: x]"),
        (operation("delete", path="Patient..gender("), "HAPI-2726:  Patient..gender( is not a valid fhir path"),
        (operation("delete"), "HAPI-2726:   is not a valid fhir path"),
        (
            operation("add", path="Patient", name="nope", value=("String", "x")),
            "HAPI-1267: [Unknown element nope at Patient]",
        ),
    ],
)
def test_invalid_operations(op: dict[str, Any], text: str) -> None:
    assert refused(op) == text


def test_a_bad_code_is_refused() -> None:
    text = refused(operation("replace", path="Patient.gender", value=("Code", "bogus")))
    assert "Unknown AdministrativeGender code 'bogus'" in text


def test_a_patch_is_parameters() -> None:
    with pytest.raises(FhirError) as caught:
        FhirPathPatch({"resourceType": "Patient"}).apply(deepcopy(PATIENT), "Patient/A")
    assert "not Patient" in caught.value.diagnostics


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("Patient.name.family", ["Doe", "Roe"]),
        ("name[0].given[1]", ["Q"]),
        ("Patient.name.where(use = 'maiden').family", ["Roe"]),
        ("Patient.name.where(use != 'maiden' and family = 'Doe').given.first()", ["Jane"]),
        ("Patient.name.where(use = 'x' or given.exists()).family", ["Doe"]),
        ("Patient.name.where(given.empty()).family", ["Roe"]),
        ("Patient.name.where(given).family.last()", ["Doe"]),
        ("Patient.name.given.where($this = 'Q')", ["Q"]),
        ("Patient.deceased", [False]),
        ("Patient.deceased.ofType(boolean)", [False]),
        ("Patient.deceased.as(dateTime)", []),
        ("Patient.birthDate.where($this = @1990-01-01)", ["1990-01-01"]),
        ("Patient.extension('http://x').value", []),
        ("Patient.gender.value", []),
        ("Observation.code", []),
    ],
)
def test_paths(path: str, values: list[Any]) -> None:
    assert [node.value for node in evaluate(parse_path(path).steps, root(deepcopy(PATIENT), PatchBudget()))] == values


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "Patient.",
        "Patient[",
        "Patient[x]",
        "Patient.name[2.5]",
        "a b",
        "where(",
        "a.where()",
        "a.where(b=)",
        "f()",
        "a.iif(b)",
        "'x'",
        "a." + "where(" * 30 + "b" + ")" * 30,
        "a" * 5000,
        "Patient.name.where(use = 'official)",
    ],
)
def test_invalid_paths_are_refused(path: str) -> None:
    with pytest.raises(PathError):
        parse_path(path)


@given(st.text(alphabet="Patient.name[0]()where= 'x'firstexistsand!$this@1.", max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_path_is_evaluated_or_refused(path: str) -> None:
    try:
        parsed = parse_path(path)
    except PathError:
        return
    evaluate(parsed.steps, root(deepcopy(PATIENT), PatchBudget()))


def test_cost_is_bounded() -> None:
    many = PATIENT | {"telecom": [{"value": str(n)} for n in range(5_000)]}
    with pytest.raises(FhirError) as caught:
        apply(*[operation("delete", path="Patient.telecom.where(value = 'x')")] * 900, resource=many)
    assert "too costly" in caught.value.diagnostics


WORDS = st.sampled_from(["operation", "type", "path", "name", "value", "index", "source", "destination", "x", ""])
VALUES = st.sampled_from(
    [
        {"valueCode": "add"},
        {"valueCode": "insert"},
        {"valueCode": "replace"},
        {"valueCode": "delete"},
        {"valueCode": "move"},
        {"valueString": "Patient"},
        {"valueString": "Patient.name"},
        {"valueString": "Patient.name[0].given"},
        {"valueString": "Patient.gender"},
        {"valueString": "name"},
        {"valueString": "deceased"},
        {"valueInteger": 0},
        {"valueInteger": -3},
        {"valueInteger": 10**12},
        {"valueHumanName": {"family": "x"}},
        {"part": [{"name": "family", "valueString": "x"}]},
        {"part": []},
        {},
    ]
)
PART = st.builds(lambda name, value: {"name": name, **value}, WORDS, VALUES)
PARAMETER = st.builds(lambda name, parts: {"name": name, "part": parts}, WORDS, st.lists(PART, max_size=6))


@given(st.lists(PARAMETER, max_size=3))
@settings(max_examples=60, deadline=None)
def test_nothing_but_fhir_errors(parameters: list[dict[str, Any]]) -> None:
    try:
        changed = apply(*parameters)
    except FhirError as error:
        assert 400 <= error.status < 500
    else:
        json.dumps(changed)
