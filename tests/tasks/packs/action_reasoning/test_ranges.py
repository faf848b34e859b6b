"""The reference ranges: the rows are valid, the limits are exact, and exactly one row applies to each patient."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise

import pytest

from fhir_gym.errors import TaskError, UnknownNameError
from fhir_gym.tasks.packs.action_reasoning.ranges import (
    CATEGORIES,
    DEMOGRAPHIC,
    LABS,
    RANGES,
    ReferenceRange,
    as_written,
    find_range,
    markdown,
    others,
    range_of,
    table_text,
)
from fhir_gym.worlds.hospital.labs import LABS as OF_THE_WORLDS

_ROWS = [row for rows in RANGES.values() for row in rows]
_SHIFTS = (0.0, 0.05, 0.1, 0.2, -0.05, -0.1, -0.2)


def _name(row: ReferenceRange) -> str:
    return f"{row.lab} of {row.people}"


def _printable(row: ReferenceRange) -> list[float]:
    """All values, with the test's decimal places, from 0 to above the highest limit."""
    digits = LABS[row.lab].digits
    return [n / 10**digits for n in range(int(row.critically_high * 10**digits) + 3)]


def test_the_labs_of_the_paper_have_the_units_of_the_worlds() -> None:
    assert tuple(LABS) == ("CA", "CL", "CR", "PT", "TP", "GLU", "K", "MG", "NA", "HGB", "HCT")
    assert tuple(RANGES) == tuple(LABS)
    for lab in LABS.values():
        assert lab.unit == OF_THE_WORLDS[lab.name].unit[0]
        assert lab.digits == OF_THE_WORLDS[lab.name].digits
        assert {row.unit for row in RANGES[lab.name]} == {lab.unit}


@pytest.mark.parametrize("row", _ROWS, ids=_name)
@pytest.mark.parametrize("shift", _SHIFTS)
def test_every_row_has_values_in_all_seven_categories_in_order(row: ReferenceRange, shift: float) -> None:
    moved = row.shifted(shift)
    met = [moved.category(value) for value in _printable(moved)]
    turns = [met[0], *(after for before, after in pairwise(met) if after != before)]
    assert tuple(turns) == CATEGORIES
    sides = {"critically_low": "low", "low": "low", "high": "high", "critically_high": "high"}
    assert [moved.side(value) for value in _printable(moved)] == [sides.get(category, "inside") for category in met]


@pytest.mark.parametrize("row", _ROWS, ids=_name)
def test_limits_are_inside_and_critical_limits_are_critical(row: ReferenceRange) -> None:
    step = Decimal(1).scaleb(-LABS[row.lab].digits)
    assert row.category(row.low) == "borderline_low"
    assert row.category(row.high) == "borderline_high"
    assert row.category(float(as_written(row.low) - step)) == "low"
    assert row.category(float(as_written(row.high) + step)) == "high"
    assert row.category(row.critically_low) == "critically_low"
    assert row.category(row.critically_high) == "critically_high"
    assert row.category(float(as_written(row.critically_low) + step)) == "low"
    assert row.category(float(as_written(row.critically_high) - step)) == "high"
    assert row.category(float(as_written(row.low) + as_written(row.borderline))) == "borderline_low"
    assert row.category(float(as_written(row.high) - as_written(row.borderline))) == "borderline_high"
    assert row.source


def test_comparisons_are_by_written_digits() -> None:
    row = range_of("CA", None, None)
    assert 8.6 + 0.2 < 8.8  # floating-point error at the end of the borderline band
    assert row.category(8.8) == "borderline_low"
    assert row.category(8.81) == "normal"
    assert row.side(8.6) == "inside"
    assert row.side(8.5999) == "low"


def test_the_papers_example_is_borderline_low_and_not_low() -> None:
    row = range_of("MG", "male", 67)
    assert (row.low, row.high) == (1.7, 2.2)
    assert row.category(1.8) == "borderline_low"
    assert row.side(1.8) == "inside"
    potassium = range_of("K", "male", 80)
    assert (potassium.low, potassium.high, potassium.category(3.0)) == (3.5, 5.5, "low")


@pytest.mark.parametrize("lab", LABS)
@pytest.mark.parametrize("sex", ["female", "male"])
def test_everybody_from_some_age_on_has_exactly_one_row(lab: str, sex: str) -> None:
    first = min(row.first_age for row in RANGES[lab])
    assert first <= 2
    for age in range(first, 121):
        assert len([row for row in RANGES[lab] if row.holds_for(sex, age)]) == 1
        assert range_of(lab, sex, age) is find_range(lab, sex, age)
    for age in range(first):
        assert find_range(lab, sex, age) is None


def test_ranges_by_sex_and_age_need_both() -> None:
    for lab in DEMOGRAPHIC:
        assert find_range(lab, "other", 50) is None
        assert find_range(lab, "", 50) is None
        assert find_range(lab, "female", None) is None
        with pytest.raises(TaskError, match=f"no reference range of {lab}.*sex other and age 50"):
            range_of(lab, "other", 50)
    assert range_of("NA", "unknown", None).low == 136
    with pytest.raises(UnknownNameError, match="unknown lab 'MGG'; did you mean 'MG'"):
        range_of("MGG", None, None)


def test_sex_and_age_matter_where_they_are_said_to() -> None:
    for lab in DEMOGRAPHIC:
        assert range_of(lab, "female", 40).low != range_of(lab, "male", 40).low
        assert range_of(lab, "male", 8) != range_of(lab, "male", 40)
        assert len(others(range_of(lab, "male", 40))) == len(RANGES[lab]) - 1
    assert range_of("HGB", "male", 59).low == 13.7
    assert range_of("HGB", "male", 60).low == 13.2
    assert range_of("HGB", "male", 59) in others(range_of("HGB", "male", 60))
    assert others(range_of("K", "male", 60)) == ()


def test_people_in_words() -> None:
    assert range_of("HGB", "male", 30).people == "men aged 18 to 59"
    assert range_of("HGB", "female", 90).people == "women aged 18 or older"
    assert range_of("HGB", "female", 13).people == "girls aged 12 to 17"
    assert range_of("HGB", "male", 13).people == "boys aged 12 to 17"
    assert range_of("HGB", "male", 7).people == "children aged 6 to 11"
    assert range_of("K", None, None).people == "everybody"


def test_a_shift_moves_both_limits_by_a_share_rounded_half_up() -> None:
    row = range_of("K", None, None).shifted(0.1)
    assert (row.low, row.high) == (3.9, 6.1)  # rounded from exactly 3.85 and 6.05
    assert (row.critically_low, row.critically_high) == (3.1, 6.8)
    row = range_of("GLU", None, None).shifted(-0.05)
    assert (row.low, row.high) == (67, 94)
    assert row.borderline == range_of("GLU", None, None).borderline


def test_prompts_state_all_rows() -> None:
    assert table_text("K") == "Reference range of potassium: 3.5 to 5.5 mmol/L."
    assert table_text("K", 0.1) == "Reference range of potassium: 3.9 to 6.1 mmol/L."
    for lab in DEMOGRAPHIC:
        for shift in (0.0, 0.1):
            text = table_text(lab, shift)
            for row in RANGES[lab]:
                moved = row.shifted(shift)
                assert f"{row.people}: {moved.limits}" in text


def test_the_table_in_markdown_has_every_row() -> None:
    lines = markdown().splitlines()
    assert len(lines) == 2 + len(_ROWS)
    assert {line.count("|") for line in lines} == {9}
    for row, line in zip(_ROWS, lines[2:], strict=True):
        assert row.people in line
        assert row.source in line
