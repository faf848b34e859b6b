"""Agents that do not look: what they score, and that the docs say so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.trivial_policies import POLICIES, constant, measure
from fhir_gym import worlds
from fhir_gym.fhir import World

PAGE = Path(__file__).parents[3] / "docs" / "medagentbench.md"
ROW = re.compile(r"^\| (.+?) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)
TABLE = {name: tuple(map(int, figures)) for name, *figures in ROW.findall(PAGE.read_text(encoding="utf-8"))}
PLAYED = {**POLICIES, "constant: `FINISH([90.0])`": constant(90.0)}


def test_the_table_has_every_policy() -> None:
    assert set(TABLE) == set(PLAYED)


def figures(row: dict[str, Any], grading: str) -> tuple[int, int]:
    return row[grading]["query"][0], row[grading]["action"][0]


def test_ours(hospital: World) -> None:
    for row in measure(hospital, PLAYED, variations=20):
        assert row["state"]["query"][1] == row["state"]["action"][1] == 100
        assert figures(row, "state") == TABLE[row["policy"]][4:] == (0, 0), row["policy"]


def test_the_official_tasks(shared_dir: Path, tmp_path: Path) -> None:
    data = shared_dir / "medagentbench"
    with worlds.import_ndjson(data, out=tmp_path / "official.sqlite") as world:
        rows = list(measure(world, PLAYED, task_file=data / "test_data_v2.json"))
    for row in rows:
        expected = TABLE[row["policy"]]
        assert figures(row, "official") == expected[:2], row["policy"]
        assert figures(row, "state") == expected[2:4], row["policy"]
        assert row["state"]["query"][0] == 0
        for kind in ("task5", "task9", "task10"):
            assert row["state"][kind][0] == 0, f"{row['policy']} in {kind}"


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_policies_only_read_the_prompt(name: str) -> None:
    texts = POLICIES[name]("Nothing to see here.")
    assert texts[-1].startswith("FINISH(")
