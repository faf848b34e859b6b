from __future__ import annotations

import copy
from typing import Any

import pytest

from fhir_gym.fhir.serialization.subset import SUBSETTED, subset

PATIENT: dict[str, Any] = {
    "resourceType": "Patient",
    "id": "1",
    "meta": {"versionId": "1", "profile": ["p"], "tag": [{"code": "vip"}]},
    "text": {"status": "generated", "div": "<div>x</div>"},
    "extension": [{"url": "u", "valueCode": "c"}],
    "active": True,
    "name": [{"family": "A", "given": ["B"]}, {"given": ["C"]}],
    "birthDate": "1990",
    "_birthDate": {"id": "b"},
    "communication": [{"language": {"text": "x"}}],
}
OBSERVATION: dict[str, Any] = {
    "resourceType": "Observation",
    "id": "1",
    "meta": {"versionId": "1"},
    "status": "final",
    "category": [{"text": "lab"}],
    "code": {"coding": [{"code": "x"}], "text": "X"},
    "valueQuantity": {"value": 1, "unit": "g"},
    "component": [{"code": {"text": "c"}, "interpretation": [{"text": "i"}], "valueString": "v"}],
    "note": [{"text": "n"}],
}


def _part(resource: dict[str, Any], **options: Any) -> dict[str, Any]:
    before = copy.deepcopy(resource)
    shown = subset(resource, **{"elements": None, "summary": None, **options})
    assert resource == before
    return shown


@pytest.mark.parametrize(
    ("elements", "kept"),
    [
        (["name"], ["name"]),
        (["birthDate", "name"], ["name", "birthDate", "_birthDate"]),
        (["id"], []),
        (["nope"], []),
        (["name ", "active"], ["active"]),
        (["Patient.name"], ["name"]),
        (["*.active"], ["active"]),
        (["Observation.code", "name", ""], ["name"]),
    ],
)
def test_elements_keep_the_named_elements_and_meta(elements: list[str], kept: list[str]) -> None:
    shown = _part(PATIENT, elements=elements)
    assert list(shown) == ["resourceType", "id", "meta", *kept]
    assert shown["meta"] == {"versionId": "1", "profile": ["p"], "tag": [{"code": "vip"}, SUBSETTED]}


def test_elements_may_be_paths() -> None:
    assert _part(PATIENT, elements=["name.family"])["name"] == [{"family": "A"}]
    assert _part(PATIENT, elements=["name.family", "name"])["name"] == PATIENT["name"]
    assert _part(PATIENT, elements=["name", "name.family"])["name"] == PATIENT["name"]
    assert _part(PATIENT, elements=["Patient.name.given"])["name"] == [{"given": ["B"]}, {"given": ["C"]}]
    assert "active" not in _part(PATIENT, elements=["active.x"])


def test_a_choice_element_is_kept_by_its_stem_and_by_any_of_its_types() -> None:
    for name in ("value", "value[x]", "valueQuantity", "valueString"):
        assert _part(OBSERVATION, elements=[name])["valueQuantity"] == OBSERVATION["valueQuantity"]


@pytest.mark.parametrize("elements", [[], ["NAME"], ["Observation.code"], [""]])
def test_elements_about_nothing_here_change_nothing(elements: list[str]) -> None:
    assert _part(PATIENT, elements=elements) is PATIENT


@pytest.mark.parametrize("elements", [["*"], ["Patient"]])
def test_everything_by_name_is_everything_tagged(elements: list[str]) -> None:
    shown = _part(PATIENT, elements=elements)
    assert {k: v for k, v in shown.items() if k != "meta"} == {k: v for k, v in PATIENT.items() if k != "meta"}
    assert SUBSETTED in shown["meta"]["tag"]


def test_names_without_a_type_speak_of_the_searched_type() -> None:
    assert _part(OBSERVATION, elements=["status"], scope="Patient") is OBSERVATION
    assert "status" in _part(OBSERVATION, elements=["Observation.status"], scope="Patient")


def test_summary_true_keeps_summary_elements_at_every_level() -> None:
    shown = _part(OBSERVATION, summary="true")
    assert list(shown) == ["resourceType", "id", "meta", "status", "code", "valueQuantity", "component"]
    assert shown["component"] == [{"code": {"text": "c"}, "valueString": "v"}]
    assert list(_part(PATIENT, summary="true")) == [
        *("resourceType", "id", "meta", "active", "name", "birthDate", "_birthDate")
    ]


def test_summary_data_drops_the_narrative_and_text_keeps_it() -> None:
    assert set(PATIENT) - set(_part(PATIENT, summary="data")) == {"text"}
    assert list(_part(PATIENT, summary="text")) == ["resourceType", "id", "meta", "text"]
    assert list(_part(OBSERVATION, summary="text")) == ["resourceType", "id", "meta", "status", "code"]


@pytest.mark.parametrize("summary", [None, "false", "", "nope", "count"])
def test_other_summaries_show_everything(summary: str | None) -> None:
    assert _part(PATIENT, summary=summary) is PATIENT


def test_a_tag_is_not_repeated_and_a_missing_meta_is_made() -> None:
    twice = subset(_part(PATIENT, summary="data"), elements=None, summary="data")
    assert twice["meta"]["tag"].count(SUBSETTED) == 1
    bare = subset({"resourceType": "Patient", "id": "1", "active": True}, elements=["active"], summary=None)
    assert list(bare) == ["resourceType", "id", "meta", "active"]
