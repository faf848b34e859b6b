"""The shipped suites: their episodes, their hashes, and wrong names."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.errors import FhirGymError, TaskError, UnknownNameError
from fhir_gym.registration import SHIPPED
from fhir_gym.suites import OFFICIAL, Suite, get_suite, known_suites, open_suite, suite_names
from fhir_gym.tasks import get_task, task_keys
from fhir_gym.tasks.core.splits import split_of

HASHES = Path(__file__).parent / "golden" / "hashes.json"
OWN = [name for name in suite_names() if name != OFFICIAL]


@pytest.mark.parametrize("name", OWN)
def test_a_suite_has_test_variations_only_and_treats_tasks_alike(name: str) -> None:
    suite = get_suite(name)
    assert {split_of(episode.variation) for episode in suite.episodes} == {"test"}
    assert len({episode[:3] for episode in suite.episodes}) == len(suite.episodes)
    for env_id in suite.env_ids:
        own = [episode for episode in suite.episodes if episode.env_id == env_id]
        counts = Counter(episode.task for episode in own)
        assert len(set(counts.values())) == 1, "each task has the same number of episodes"
        assert set(counts) <= set(task_keys(env_id))
        phrasings = Counter(episode.phrasing for episode in own)
        assert max(phrasings.values()) - min(phrasings.values()) <= len(counts)
        assert all(episode.phrasing in range(len(get_task(env_id, episode.task).prompts)) for episode in own)


def test_the_sizes_of_suites() -> None:
    sizes = {name: len(get_suite(name).episodes) for name in OWN}
    assert sizes == {
        "quick-v2": 76,
        "quick-v1": 60,
        "core-v2": 637,
        "core-v1": 413,
        "appointment-v1": 380,
        "genetic-testing-v1": 200,
        "medagentbench-v1": 300,
        "action-reasoning-v1": 300,
        "shift-v1": 170,
    }
    assert {episode.env_id for suite in known_suites() for episode in suite.episodes} == set(SHIPPED)


def test_the_second_versions_add_shift() -> None:
    assert set(get_suite("quick-v2").env_ids) == set(get_suite("core-v2").env_ids) == set(SHIPPED)
    for name in ("quick", "core"):
        first, second = get_suite(f"{name}-v1").episodes, get_suite(f"{name}-v2").episodes
        assert second[: len(first)] == first
        assert {episode.env_id for episode in second[len(first) :]} == {"FHIRAgent/Shift-v0"}
    tasks = {episode[:2] for episode in get_suite("core-v2").episodes}
    every = {(env_id, key) for env_id in SHIPPED for key in task_keys(env_id)}
    assert every - tasks == {("FHIRAgent/Shift-v0", "day-3"), ("FHIRAgent/Shift-v0", "day-4")}
    assert {episode.task for episode in get_suite("shift-v1").episodes} == set(task_keys("FHIRAgent/Shift-v0"))


@pytest.mark.parametrize(
    "name", ["quick-v1", *(pytest.param(name, marks=pytest.mark.slow) for name in OWN if name != "quick-v1")]
)
def test_hashes_are_those_of_the_version(name: str) -> None:
    """A failure means that the content has changed; FHIR_GYM_GOLDEN=1 writes the hashes of unreleased versions."""
    with open_suite(get_suite(name)) as content:
        found = content.hash
    known = json.loads(HASHES.read_text("utf-8")) if HASHES.exists() else {}
    if os.environ.get("FHIR_GYM_GOLDEN"):
        HASHES.write_text(json.dumps(known | {name: found}, indent=2, sort_keys=True) + "\n", "utf-8")
        return
    assert found == known[name], f"the content of {name} has changed: bump the version of the suite"


def test_unknown_names_are_refused() -> None:
    names: list[Any] = ["core", "core-v9", "", 7, ["core-v1"]]
    for name in names:
        with pytest.raises(UnknownNameError, match="core-v1"):
            get_suite(name)
    with pytest.raises(FhirGymError, match="leave task_file, world out"):
        get_suite("core-v1", task_file="x.json", world="empty")


def test_a_suite_needs_episodes_and_has_none_twice() -> None:
    episodes = get_suite("quick-v1").episodes[:2]
    with pytest.raises(FhirGymError, match="has no episodes"):
        Suite("none-v1", "nothing", ())
    with pytest.raises(FhirGymError, match="has variation 1000 of task 01 twice"):
        Suite("twice-v1", "twice", (*episodes, episodes[0]._replace(phrasing=2)))


def official_cases(numbers: int = 30) -> list[dict[str, Any]]:
    keys = [f"task{kind}_{number}" for kind in range(1, 11) for number in range(1, numbers + 1)]
    return [{"id": key, "instruction": "What?", "context": "", "eval_MRN": "S1", "sol": ["S1"]} for key in keys]


def test_the_official_suite_needs_the_official_file(tmp_path: Path) -> None:
    file = tmp_path / "tasks.json"
    with pytest.raises(FhirGymError, match=r"needs the benchmark's own task file \(test_data_v2.json\)"):
        get_suite(OFFICIAL)
    with pytest.raises(TaskError, match="cannot be read"):
        get_suite(OFFICIAL, task_file=file, world="empty")
    file.write_text(json.dumps(official_cases(10)))
    with pytest.raises(FhirGymError, match="has 100 tasks, 100 of the 300 tasks"):
        get_suite(OFFICIAL, task_file=file, world="empty")
    file.write_text(json.dumps(official_cases()))
    with pytest.raises(FhirGymError, match="patients as a world"):
        get_suite(OFFICIAL, task_file=file)
    suite = get_suite(OFFICIAL, task_file=file, world="empty")
    assert (len(suite.episodes), suite.grading) == (300, "official")
    assert {episode.variation for episode in suite.episodes} == {episode.phrasing for episode in suite.episodes} == {0}


def test_the_docs_have_the_hashes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "suites.md").read_text("utf-8")
    for name, found in json.loads(HASHES.read_text("utf-8")).items():
        assert f"| `{name}` | `{found}` |" in page
