from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

from fhir_gym.errors import ExperimentError, FhirGymError
from fhir_gym.experiments import ExperimentConfig, Manifest, require_manifest
from fhir_gym.experiments.folder import ExperimentFolder
from fhir_gym.fhir import World
from fhir_gym.tasks import get_task
from fhir_gym.tasks.core.variation import variation_cache

ENV_ID = "FHIRAgent/Appointment-v0"


def manifest(world: World, *names: str, **choice: Any) -> Manifest:
    base: dict[str, Any] = {"base_url": "http://user:pw@here:8000/v1", "tasks": ("01",), "env_ids": (ENV_ID,)}
    experiment = choice.pop("experiment", "experiment-2")
    return Manifest.of(ExperimentConfig(experiment, "m", names or ("baseline",), **base | choice), {ENV_ID: world})


def test_a_manifest_says_what_is_needed_to_repeat_the_experiment(hospital: World, tmp_path: Path) -> None:
    made = manifest(
        hospital,
        "spec",
        "memory",
        evaluator_model="judge",
        training_base_url="http://there/v1",
        settings={"temperature": 0, "timeout": 5},
    )
    made.save(tmp_path)
    data = json.loads((tmp_path / "manifest.json").read_text("utf-8"))
    assert require_manifest(tmp_path) == made
    assert (data["manifest_version"], data["experiment"], data["seed"]) == (1, "experiment-2", 0)
    assert data["model"] == {"model": "m", "hosts": ["here"]}
    assert data["training"]["models"]["evaluator"] == {"model": "judge", "hosts": ["there"]}
    assert data["training"]["models"]["reflector"] == {"model": "m", "hosts": ["there"]}
    assert data["settings"] == {"temperature": 0}  # a timeout does not change results
    assert data["worlds"] == {ENV_ID: {"name": "hospital-small", "hash": hospital.manifest.content_hash}}
    assert data["test"] | {"hash": ""} == {
        "tasks": {ENV_ID: ["01"]},
        "variations": [1000, 1001, 1002],
        "phrasing": 0,
        "episodes": 3,
        "hash": "",
    }
    assert data["specification"]["hash"] and data["configurations"]["memory"]["memory"] == "plain"
    assert "pw" not in json.dumps(data)


def test_hashes_cover_the_episodes(hospital: World) -> None:
    hash_of_01, same, other = (manifest(hospital, tasks=(key,)).test.hash for key in ("01", "01", "02a"))
    assert hash_of_01 == same != other


def test_hashes_cover_the_paraphrases(hospital: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = manifest(hospital, experiment="experiment-3-v2")
    assert (
        first.test.phrasing == "paraphrase"
        and first.test.hash != manifest(hospital, experiment="experiment-3").test.hash
    )
    task = get_task(ENV_ID, "01")
    changed = tmp_path / "paraphrases.toml"
    content = json.dumps([f"{text} Thank you." for text in task.paraphrases.test])
    changed.write_text(f"[01]\ntrain = {json.dumps(task.paraphrases.train)}\ntest = {content}\n", "utf-8")
    monkeypatch.setattr(task, "paraphrase_file", changed)
    variation_cache.clear()
    second = manifest(hospital, experiment="experiment-3-v2")
    variation_cache.clear()
    assert [text.split(" ")[0] for text in first.differences(second)] == ["test.hash"]


def test_configurations_and_hosts_may_be_added(hospital: World, tmp_path: Path) -> None:
    first = manifest(hospital, "baseline")
    second = manifest(hospital, "memory", base_url="http://elsewhere/v1")
    assert first.differences(second) == []
    with ExperimentFolder(tmp_path, first):
        (tmp_path / "rollouts").mkdir()
    with ExperimentFolder(tmp_path, second) as folder:
        assert list(folder.manifest.configurations) == ["baseline", "memory"]
        assert folder.manifest.model.hosts == ("here", "elsewhere")
        assert folder.manifest.training == second.training
    with ExperimentFolder(tmp_path, first) as folder:
        assert folder.manifest.training == second.training


def test_a_manifest_without_results_is_replaced(hospital: World, tmp_path: Path) -> None:
    for seed in (0, 1):
        with ExperimentFolder(tmp_path, manifest(hospital, seed=seed)) as folder:
            assert folder.manifest.seed == seed


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"repeats": 1}, "repeats is 3 there and 1 here"),
        ({"model": "other"}, 'model.model is "m" there and "other" here'),
        ({"tasks": ("02a",)}, "test.hash is"),
        ({"settings": {"temperature": 1}}, "settings.temperature is null there and 1 here"),
    ],
)
def test_another_experiment_is_refused(hospital: World, tmp_path: Path, choice: dict[str, Any], message: str) -> None:
    with ExperimentFolder(tmp_path, manifest(hospital)):
        (tmp_path / "rollouts").mkdir()
    before = (tmp_path / "manifest.json").read_bytes()
    config = {"experiment": "experiment-2", "model": "m", "configurations": ("baseline",), "tasks": ("01",)} | choice
    other = Manifest.of(ExperimentConfig(base_url="http://here/v1", env_ids=(ENV_ID,), **config), {ENV_ID: hospital})
    with pytest.raises(ExperimentError, match=message) as caught:
        ExperimentFolder(tmp_path, other)
    assert "\n" not in str(caught.value) and "another folder" in str(caught.value)
    assert (tmp_path / "manifest.json").read_bytes() == before and not (tmp_path / ".lock").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "not the manifest of an experiment"),
        ('{"manifest_version": 2, "from": "the future"}', "has manifest version 2; this fhir_gym reads version 1"),
        ('{"manifest_version": 1}', "not the manifest of an experiment: package_version: Field required"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_unreadable_manifests(hospital: World, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(content, "utf-8")
    for call in (lambda: ExperimentFolder(tmp_path, manifest(hospital)), lambda: require_manifest(tmp_path)):
        with pytest.raises(FhirGymError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert (tmp_path / "manifest.json").read_text("utf-8") == content


def test_folders_of_something_else_are_refused(hospital: World, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="holds no experiment"):
        require_manifest(tmp_path / "missing")
    (tmp_path / "thesis.txt").write_text("…", "utf-8")
    with pytest.raises(ExperimentError, match="contains other files than an experiment"):
        ExperimentFolder(tmp_path, manifest(hospital))
    with pytest.raises(ExperimentError, match="is not a folder"):
        ExperimentFolder(tmp_path / "thesis.txt", manifest(hospital))
    new = tmp_path / "new"
    in_use = pytest.raises(ExperimentError, match=f"in use by process {os.getpid()}")
    with ExperimentFolder(new, manifest(hospital)), in_use:
        ExperimentFolder(new, manifest(hospital))
