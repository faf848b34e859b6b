"""In each group, the share of responses that equal the recorded responses is at least the group's floor.

`python -m tests.conformance.recorded --write-floors` raises the floors.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from fhir_gym.fhir.adapters.http import create_app
from tests.conformance.recorded import EDGE, FIRST, compare, empty_world, floors_file, record
from tests.worlds.serving import served

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
def table(recording: str) -> dict[str, dict[str, float]]:
    return compare(recording)


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


def test_a_running_server_can_be_compared_and_recorded(tmp_path: Path) -> None:
    with empty_world(tmp_path) as world, served(create_app(world)) as url:
        assert compare(EDGE, base=url, group="xml")["groups"]["body"] > 0.9
    other = tmp_path / "other"
    other.mkdir()
    with empty_world(other) as world, served(create_app(world)) as url:
        record(FIRST, url, tmp_path / "new.jsonl.gz", "read")
    with gzip.open(tmp_path / "new.jsonl.gz", "rt") as lines:
        answers = [answer for line in lines for answer in json.loads(line)["answers"]]
    assert [answer["status"] for answer in answers].count(200) > 10
