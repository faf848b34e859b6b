"""Different spellings of a CodeableConcept are recognised."""

from __future__ import annotations

from typing import Any

import pytest

from fhir_gym.tasks.authoring.concepts import (
    SNOMED,
    Concept,
    codes_of,
    codings,
    concept_checks,
    concept_texts,
    has_display,
)

FLU = Concept(system=SNOMED, code="6142004", display="Influenza")
LOCAL = {"system": "urn:local", "code": "F1", "display": "Flu"}
COLD = {"system": SNOMED, "code": "82272006", "display": "Common cold"}


@pytest.mark.parametrize(
    ("value", "failed"),
    [
        (FLU.concept, []),
        ([FLU.concept], []),
        ({"coding": [LOCAL, FLU.coding]}, []),
        ({"coding": [FLU.coding, FLU.coding]}, []),
        ({"coding": [{"system": SNOMED, "code": "6142004"}], "text": "INFLUENZA"}, []),
        ({"coding": [{"system": SNOMED, "code": "6142004"}], "text": "Cold"}, ["flu display"]),
        ({"coding": [{"system": SNOMED, "code": "6142004"}]}, ["flu display"]),
        ({"coding": [LOCAL], "text": "Influenza"}, ["flu code"]),
        ({"coding": [FLU.coding, COLD]}, ["flu code"]),
        ({"coding": [{"code": "6142004", "display": "Influenza"}]}, ["flu code"]),
        ({"coding": [COLD]}, ["flu code", "flu display"]),
        ({"text": "Influenza"}, ["flu code"]),
        ({}, ["flu code", "flu display"]),
        (None, ["flu code", "flu display"]),
    ],
)
def test_code_and_display(value: Any, failed: list[str]) -> None:
    assert [check.name for check in concept_checks("flu", value, FLU) if not check.passed] == failed


@pytest.mark.parametrize("value", [None, "flu", 3, [], ["flu"], {}, {"coding": ["flu"]}])
def test_an_invalid_concept_means_nothing(value: Any) -> None:
    assert codings(value) == []
    assert concept_texts(value) == []
    assert codes_of(value, SNOMED) == []
    assert not has_display(value, "flu")


def test_as_a_search_token() -> None:
    assert FLU.token == "http://snomed.info/sct|6142004"
