"""Checks of single-dose orders in different notations, and of amounts in equivalent units."""

from __future__ import annotations

from typing import Any

import pytest

from fhir_gym.tasks.packs.medagentbench.single_dose import single_dose_check
from fhir_gym.tasks.packs.medagentbench.wording import is_amount

_PRESENT, _LATER = "2023-11-13T10:15:00Z", "2023-11-14T10:15:00Z"
_DAILY = {"frequency": 1, "period": 1, "periodUnit": "d"}


def is_once(refills: Any = 0, **dosage: Any) -> bool:
    return single_dose_check("once", dosage, "timing", refills, now=_PRESENT).passed


@pytest.mark.parametrize(
    "timing",
    [
        None,
        {},
        {"event": [_PRESENT]},
        {"repeat": {"count": 1}},
        {"repeat": {"frequency": 1}},
        {"repeat": {**_DAILY, "count": 1}},
        {"repeat": {"duration": 2, "durationUnit": "h", "boundsPeriod": {"start": _PRESENT}}},
        {"code": {"text": "Once"}},
        {"code": {"text": "STAT, one time only"}},
    ],
)
def test_once(timing: Any) -> None:
    assert is_once(timing=timing) and is_once(timing=timing, asNeededBoolean=False)


@pytest.mark.parametrize(
    "timing",
    [
        "once",
        {"event": [_PRESENT, _LATER]},
        {"repeat": _DAILY},
        {"repeat": {"count": 3}},
        {"repeat": {"count": 1, "countMax": 4}},
        {"repeat": {"frequency": 2}},
        {"repeat": {"when": ["HS"]}},
        {"repeat": {"timeOfDay": ["08:00:00"]}},
        {"code": {"coding": [{"system": "http://terminology.hl7.org/CodeSystem/v3-GTSAbbreviation", "code": "BID"}]}},
        {"code": {"text": "Every 6 hours"}},
        {"code": {"text": "once daily"}},
        {"code": {"coding": [{"display": "q6h"}]}},
        {"code": {"text": "PRN"}},
    ],
)
def test_again_and_again(timing: Any) -> None:
    assert not is_once(timing=timing)


def test_as_needed_and_refills() -> None:
    assert not is_once(asNeededBoolean=True)
    assert not is_once(asNeededCodeableConcept={"text": "pain"})
    assert not is_once(refills=2)


@pytest.mark.parametrize(
    ("dose", "passed"),
    [
        ({"value": 2, "unit": "g"}, True),
        ({"value": 2000, "unit": "mg"}, True),
        ({"value": 2, "unit": "mg"}, False),
        ({"value": 2000, "unit": "g"}, False),
        ({"value": 2000, "unit": "mg", "code": "g"}, False),
        ({"value": 2, "unit": "g", "comparator": "<"}, False),
    ],
)
def test_amounts(dose: Any, passed: bool) -> None:
    assert is_amount(dose, 2, "g") == passed


@pytest.mark.parametrize(
    "timing", ["x", 5, True, ["a"], {"repeat": "x"}, {"repeat": [{"count": 1}]}, {"repeat": None}, {"event": "2023"}]
)
def test_an_invalid_timing_is_not_once(timing: Any) -> None:
    """The official grading judges orders as the agent sent them, so it must handle invalid timings."""
    assert not single_dose_check("once", {"timing": timing}, "timing", now=_PRESENT).passed
