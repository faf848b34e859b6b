from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.fhir.definitions import RESOURCE_TYPES
from fhir_gym.fhir.interactions.capability import capability_statement
from fhir_gym.fhir.validation import validate

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "conformance" / "recorded.jsonl.gz"
BASE = "http://127.0.0.1:8080/fhir"
NOW = "2026-11-21T22:00:13.250+00:00"


def test_it_is_a_valid_resource_about_every_type() -> None:
    statement = capability_statement(BASE, NOW)
    assert validate(statement).errors == []
    assert [r["type"] for r in statement["rest"][0]["resource"]] == list(RESOURCE_TYPES)
    assert statement["date"] == "2026-11-21T22:00:13Z"
    assert statement["implementation"]["url"] == BASE


def test_it_is_the_same_each_time() -> None:
    assert capability_statement(BASE, NOW) == capability_statement(BASE, NOW)
    assert capability_statement(BASE, NOW)["id"] != capability_statement("http://other/fhir", NOW)["id"]


def _recorded() -> dict[str, Any]:
    with gzip.open(RECORDED, "rt", encoding="utf-8") as lines:
        for case in map(json.loads, lines):
            if case["steps"][0]["url"] == "/metadata":
                found: dict[str, Any] = case["answers"][0]["json"]
                return found
    raise AssertionError("no /metadata among the recorded answers")


@pytest.mark.skipif(not RECORDED.exists(), reason="no recorded answers beside the repository")
def test_search_parameters_and_includes_are_the_recorded_servers() -> None:
    reference, own = _recorded(), capability_statement(BASE, NOW)
    for key in ("name", "status", "date", "publisher", "kind", "software", "implementation", "fhirVersion"):
        assert own[key] == reference[key]
    special = ("_has", "_list", "_filter")  # these have no SearchParameter
    for ours, theirs in zip(own["rest"][0]["resource"], reference["rest"][0]["resource"], strict=True):
        for key in ("type", "profile", "versioning", "searchInclude", "searchRevInclude", "conditionalDelete"):
            assert ours[key] == theirs[key]
        parameters = {p["name"]: (p["definition"], p["type"]) for p in ours["searchParam"]}
        listed = [p for p in theirs["searchParam"] if p["name"] not in special]
        assert parameters == {p["name"]: (p["definition"], p["type"]) for p in listed}
