from __future__ import annotations

from typing import Any

import pytest

from fhir_gym.web.element_text import MAX_TEXT, element_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "true"),
        (0, "0"),
        ("plain", "plain"),
        ({"family": "Lee", "given": ["Ann", "B."], "prefix": ["Dr."]}, "Dr. Ann B. Lee"),
        ({"text": "Ann Lee", "family": "L"}, "Ann Lee"),
        ({"coding": [{"code": "8867-4", "display": "Heart rate"}]}, "Heart rate"),
        ({"coding": [{"code": "8867-4"}], "text": "pulse"}, "pulse"),
        ({"system": "http://loinc.org", "code": "8867-4"}, "8867-4"),
        ({"value": 72, "unit": "beats/min", "code": "/min"}, "72 beats/min"),
        ({"comparator": "<", "value": 0, "code": "mg"}, "< 0 mg"),
        ({"system": "phone", "value": "+1 555"}, "+1 555"),
        ({"start": "2023-01-01", "end": "2023-02-01"}, "2023-01-01 to 2023-02-01"),
        ({"start": "2023-01-01"}, "from 2023-01-01"),
        ({"low": {"value": 1, "unit": "g"}, "high": {"value": 2, "unit": "g"}}, "1 g to 2 g"),
        ({"numerator": {"value": 1}, "denominator": {"value": 2}}, "1 / 2"),
        ({"line": ["1 Main St"], "city": "Reno", "state": "NV"}, "1 Main St, Reno, NV"),
        ({"reference": "Patient/1", "display": "Ann"}, "Ann (Patient/1)"),
        ({"url": "http://x.org/birth-sex", "valueCode": "F"}, "birth-sex: F"),
        ({"resourceType": "Patient", "id": "1"}, "Patient/1"),
        ({"odd": 1, "other": [2, 3], "third": {}, "fourth": 4}, "odd: 1, other: 2; 3, …"),
        ([{"family": "A"}, {"family": "B"}, {"family": "C"}, {"family": "D"}], "A; B; C and 1 more"),
    ],
)
def test_datatypes_are_recognised_by_their_children(value: Any, text: str) -> None:
    assert element_text(value) == text


@pytest.mark.parametrize(
    "value",
    [
        {"coding": 3, "text": {"coding": [[]]}},
        {"family": {"family": [None]}, "given": 7},
        {"value": {"value": {"value": {"value": {"value": {"value": 1}}}}}},
        {"start": [], "end": {}},
        {"low": "x"},
        {"url": 4, "value": []},
        [[[[[[["deep"]]]]]]],
        {"a": "x" * 100_000},
        "x" * 100_000,
        ["x" * 100_000] * 1000,
    ],
)
def test_malformed_elements_have_a_short_text(value: Any) -> None:
    assert len(element_text(value)) <= MAX_TEXT
