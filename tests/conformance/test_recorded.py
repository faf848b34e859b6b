"""In each group, the share of responses that equal the recorded responses is at least the group's floor.

`python -m tests.conformance.recorded SHARED --write-floors` raises the floors.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance.recorded import EDGE, FIRST, compare, floors_file

pytestmark = pytest.mark.slow

# Minimum of the mean of the groups' shares.
PROMISED = {
    FIRST: {"status": 0.998, "result": 0.997, "order": 0.992, "body": 0.974, "headers": 0.99},
    EDGE: {"status": 0.985, "result": 0.98, "order": 0.975, "body": 0.95, "headers": 0.96},
}


@pytest.fixture(scope="module", params=[FIRST, EDGE])
def recording(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def table(shared_dir: Path, recording: str) -> dict[str, dict[str, float]]:
    return compare(shared_dir, recording)


def test_no_group_falls_below_its_floor(table: dict[str, dict[str, float]], recording: str) -> None:
    floors = json.loads(floors_file(recording).read_text())
    assert set(floors) == set(table) - {"groups"}
    fallen = [
        f"{group} {column}: {table[group][column]:.4f} < {floor}"
        for group, row in floors.items()
        for column, floor in row.items()
        if table[group][column] < floor
    ]
    assert not fallen


def test_the_mean_keeps_the_promise(table: dict[str, dict[str, float]], recording: str) -> None:
    promised, reached = PROMISED[recording], table["groups"]
    assert {column: reached[column] for column in promised if reached[column] < promised[column]} == {}
    if recording == FIRST:
        assert {group: row["result"] for group, row in table.items() if row["result"] < 0.85} == {}
