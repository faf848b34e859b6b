"""In each group, the share of responses that equal the recorded responses is at least the group's floor.

`python -m tests.conformance.recorded SHARED --write-floors` raises the floors.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance.recorded import FLOORS, compare

pytestmark = pytest.mark.slow

# Minimum of the mean of the groups' shares.
PROMISED = {"status": 0.985, "result": 0.98, "order": 0.92, "body": 0.88, "headers": 0.97}


@pytest.fixture(scope="module")
def table(shared_dir: Path) -> dict[str, dict[str, float]]:
    return compare(shared_dir)


def test_no_group_falls_below_its_floor(table: dict[str, dict[str, float]]) -> None:
    floors = json.loads(FLOORS.read_text())
    assert set(floors) == set(table) - {"groups"}
    fallen = [
        f"{group} {column}: {table[group][column]:.4f} < {floor}"
        for group, row in floors.items()
        for column, floor in row.items()
        if table[group][column] < floor
    ]
    assert not fallen


def test_the_mean_keeps_the_promise(table: dict[str, dict[str, float]]) -> None:
    assert {column: table["groups"][column] for column in PROMISED if table["groups"][column] < PROMISED[column]} == {}
    assert {group: row["result"] for group, row in table.items() if row["result"] < 0.85} == {}
