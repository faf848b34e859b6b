"""Periods of coverages and guarantors, and coverage classes."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym.tasks.packs.appointment.billing import (
    COVERAGE_CLASS,
    class_values,
    coverage_class,
    guarantees_on,
    period_includes,
)

TODAY = "2023-11-13"


@pytest.mark.parametrize(
    ("period", "counts"),
    [
        (None, True),
        ({}, True),
        ({"start": TODAY}, True),
        ({"end": TODAY}, True),
        ({"start": TODAY, "end": TODAY}, True),
        ({"start": "2023-11-14"}, False),
        ({"end": "2023-11-12"}, False),
        ({"start": "2022-01-01", "end": "2023-11-12"}, False),
        ({"start": "2023-11-14", "end": "2024-01-01"}, False),
        ({"start": "2022-01-01", "end": "2024-01-01"}, True),
    ],
)
def test_first_and_last_day_count(period: Any, counts: bool) -> None:
    assert period_includes(TODAY, period) is counts
    assert guarantees_on({"period": period} if period is not None else {}, TODAY) is counts


@given(st.integers(-500, 500), st.integers(-500, 500))
def test_periods_are_compared_as_days_are(start: int, end: int) -> None:
    today = date.fromisoformat(TODAY)
    first, last = (today + timedelta(days=days) for days in (start, end))
    assert period_includes(TODAY, {"start": first.isoformat(), "end": last.isoformat()}) == (first <= today <= last)


def test_a_guarantee_on_hold_is_not_in_force() -> None:
    assert not guarantees_on({"onHold": True}, TODAY)
    assert guarantees_on({"onHold": False}, TODAY)


def test_classes_are_read_in_any_order_and_by_any_coding() -> None:
    group, plan = coverage_class("group", "G1"), coverage_class("plan", "P1")
    local = {"system": "http://example.org/classes", "code": "group"}
    wordy = {"type": {"coding": [local, *plan["type"]["coding"]]}, "value": "P1", "name": "Gold"}
    expected = [["group", "G1"], ["plan", "P1"]]
    assert class_values({"class": [group, plan]}) == class_values({"class": [wordy, group]}) == expected


@pytest.mark.parametrize(
    "classes",
    [
        [],
        [coverage_class("group", "G1")],
        [coverage_class("group", "P1"), coverage_class("plan", "G1")],
        [coverage_class("group", "G1"), coverage_class("plan", "P1"), coverage_class("rxid", "7")],
        [coverage_class("group", "G1"), coverage_class("plan", "P1"), coverage_class("plan", "P2")],
        [coverage_class("group", "G1"), {"type": {"text": "plan"}, "value": "P1"}],
        [coverage_class("group", "G1"), {"type": {"coding": [{"code": "plan"}]}, "value": "P1"}],
        [{"type": {"coding": [{"system": COVERAGE_CLASS, "code": code} for code in ("group", "plan")]}, "value": "G1"}],
    ],
)
def test_other_classes_are_other_values(classes: list[Any]) -> None:
    assert class_values({"class": classes}) != [["group", "G1"], ["plan", "P1"]]
