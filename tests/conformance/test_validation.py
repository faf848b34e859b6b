"""Validation agrees with the recorded answers of a HAPI server; the floors are what is reached.

`python -m tests.conformance.validation` prints the table.
"""

from __future__ import annotations

import pytest

from tests.conformance.validation import compare

pytestmark = pytest.mark.slow

FLOORS = {"verdict": 1.0, "strict": 1.0, "expressions": 0.99, "texts": 0.99, "issues": 0.98}


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, float]]:
    return compare()


def test_no_share_falls_below_its_floor(table: dict[str, dict[str, float]]) -> None:
    reached = table["all"]
    assert reached["n"] == 911
    assert {column: reached[column] for column, floor in FLOORS.items() if reached[column] < floor} == {}


def test_nothing_invalid_is_stored_and_nothing_valid_refused(table: dict[str, dict[str, float]]) -> None:
    assert {group: row for group, row in table.items() if row["let_in"] or row["kept_out"]} == {}


def test_no_group_falls_behind(table: dict[str, dict[str, float]]) -> None:
    fallen = {group: row["verdict"] for group, row in table.items() if min(row["verdict"], row["strict"]) < 0.97}
    assert fallen == {}
