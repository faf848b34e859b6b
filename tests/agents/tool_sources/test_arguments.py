from __future__ import annotations

from typing import Any

import pytest

from fhir_gym.agents.tool_sources import check_arguments, decode_arguments, function_schema, unknown_tool

SCHEMA = function_schema(
    "getStructureDefinition",
    "Return the elements of a resource type.",
    {
        "resourceType": {"type": "string"},
        "depth": {"type": "integer"},
        "view": {"type": "string", "enum": ["short", "long"]},
    },
    ("resourceType",),
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"resourceType": "Patient"}', {"resourceType": "Patient"}),
        ({"resourceType": "Patient", "depth": None}, {"resourceType": "Patient"}),
        (
            {"resourceType": "Patient", "depth": 2, "view": "long"},
            {"resourceType": "Patient", "depth": 2, "view": "long"},
        ),
    ],
)
def test_valid_arguments(given: Any, expected: dict[str, Any]) -> None:
    assert check_arguments(SCHEMA, given) == expected


@pytest.mark.parametrize("given", [None, "", {}, "{}"])
def test_no_arguments_are_an_empty_object(given: object) -> None:
    assert decode_arguments(given) == {}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (None, "'resourceType' is missing"),
        ('{"resourceType": null}', "'resourceType' is missing"),
        ("Patient", "not valid JSON"),
        ('{"resourceType": "Pa', "not valid JSON"),
        ('["Patient"]', "must be a JSON object"),
        (7, "must be a JSON object"),
        ('{"resourcetype": "Patient"}', "did you mean 'resourceType'?"),
        ({"resourceType": "Patient", "\n<script>\n": 1}, "unknown argument"),
        ({"resourceType": ["Patient"]}, "'resourceType' must have the type string"),
        ({"resourceType": "Patient", "depth": True}, "'depth' must have the type integer"),
        ({"resourceType": "Patient", "depth": "2"}, "'depth' must have the type integer"),
        ({"resourceType": "Patient", "view": "x" * 999}, "'view' must be one of short, long"),
        ('{"resourceType": "' + "x" * 200_000 + '"}', "longer than 100,000 characters"),
        ('{"resourceType": ' + "[" * 5_000 + "]" * 5_000 + "}", "not valid"),
        ({"resourceType": "\ud800", "a\ud800": 1}, "unknown argument"),
        ('{"resourceType": "\ud800"}', "not valid JSON"),
    ],
)
def test_invalid_arguments_give_an_error_in_one_line(given: object, reason: str) -> None:
    result = check_arguments(SCHEMA, given)
    assert isinstance(result, str)
    assert result.startswith("Error: ") and reason in result
    assert "\n" not in result and len(result) < 500


def test_an_unknown_tool_is_named_with_the_most_similar_one() -> None:
    result = unknown_tool("getStructureDefinitions", ["listResources", "getStructureDefinition"])
    assert result.startswith("Error: unknown tool") and "did you mean 'getStructureDefinition'?" in result
