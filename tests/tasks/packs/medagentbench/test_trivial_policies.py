"""Agents that never read records get the scores that the docs state."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.trivial_policies import PACK, POLICIES, constant, measure
from fhir_gym import Episode, worlds
from fhir_gym.actions import Post
from fhir_gym.fhir import World

PAGE = Path(__file__).parents[4] / "docs" / "medagentbench.md"
ROW = re.compile(r"^\| (.+?)" + r" \| (\d+)" * 7 + r" \|$", re.MULTILINE)
TABLE = {name: tuple(map(int, figures)) for name, *figures in ROW.findall(PAGE.read_text(encoding="utf-8"))}
PLAYED = {**POLICIES, "constant: `FINISH([90.0])`": constant(90.0)}


def test_the_table_has_every_policy() -> None:
    assert set(TABLE) == set(PLAYED)


def figures(row: dict[str, Any], grading: str) -> tuple[int, int]:
    return row[grading]["query"][0], row[grading]["action"][0]


def test_ours(hospital: World) -> None:
    for row in measure(hospital, PLAYED, variations=8):
        assert row["state"]["query"][1] == row["state"]["action"][1] == 40
        assert figures(row, "state") == TABLE[row["policy"]][5:] == (0, 0), row["policy"]


@pytest.mark.slow
def test_the_official_tasks(shared_dir: Path, tmp_path: Path) -> None:
    data = shared_dir / "medagentbench"
    with worlds.import_files(data, out=tmp_path / "official.sqlite") as world:
        rows = list(measure(world, PLAYED, task_file=data / "test_data_v2.json"))
    for row in rows:
        expected = TABLE[row["policy"]]
        assert figures(row, "official") == expected[:2], row["policy"]
        assert figures(row, "state") == expected[2:4], row["policy"]
        assert row["state"]["as_reference"] == expected[4], row["policy"]
        assert row["state"]["query"][0] == 0
        assert row["state"]["action"][0] == row["state"]["as_reference"], "whoever succeeds has done all of the work"
        for kind in ("task5", "task9", "task10"):
            assert row["state"][kind][0] == 0, f"{row['policy']} in {kind}"


@pytest.mark.parametrize("key", ["task3_1", "task8_1"])
def test_a_copy_must_be_complete(key: str, small: World, task_file: Path) -> None:
    """If the prompt states the whole order, an agent that copies it succeeds; a copy that lacks an element fails."""
    unasked = {"priority"} if key == "task8_1" else set()  # only the function list mentions the priority
    with Episode(PACK, task=key, world=small, task_file=task_file, grading="state") as episode:

        def succeeds(order: dict[str, Any]) -> bool:
            episode.start()
            episode.step(Post(f"/{order['resourceType']}", order).text())
            return bool(episode.step("FINISH([])").info["success"])

        code = " The SNOMED code for orthopedic surgery referral is 306181000000106." if key == "task8_1" else ""
        write, *_ = POLICIES["always places the order of the prompt"](episode.prompt + code)
        order = json.loads(write.partition("\n")[2])
        assert succeeds(order)
        for name in order.keys() - {"resourceType"}:
            assert succeeds({k: v for k, v in order.items() if k != name}) is (name in unasked), name
        assert not succeeds({**order, "subject": {"reference": "Patient/S0000002"}})


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_policies_only_read_the_prompt(name: str) -> None:
    texts = POLICIES[name]("Nothing to see here.")
    assert texts[-1].startswith("FINISH(")
