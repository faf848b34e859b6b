"""Templates: what they are learnt from, and their file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fhir_gym
from fhir_gym.errors import TrainingError
from fhir_gym.rollouts import Rollout
from fhir_gym.training.menu import Templates, learn_templates

from .conftest import APPOINTMENT, KEYS


def test_the_file_keeps_everything(templates: Templates, tmp_path: Path) -> None:
    path = tmp_path / "templates.json"
    templates.save(path)
    again = Templates.load(path)
    assert [template.dump() for template in again.templates] == [template.dump() for template in templates.templates]
    assert (again.sources, again.dictionaries) == (templates.sources, templates.dictionaries)
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_the_file_names_its_rollouts(templates: Templates) -> None:
    assert {(source.env_id, source.task) for source in templates.sources} == {(APPOINTMENT, key) for key in KEYS}
    assert {source.variation for source in templates.sources} == set(range(16))


def test_test_variations_are_refused(templates: Templates, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="test variations are never trained on"):
        learn_templates(fhir_gym.run(APPOINTMENT, "gold", tasks="02a", variations=1000))
    path = tmp_path / "templates.json"
    templates.save(path)
    content = json.loads(path.read_text())
    content["sources"][0]["variation"] = 1000
    path.write_text(json.dumps(content))
    with pytest.raises(TrainingError, match="variation 1000"):
        Templates.load(path)


@pytest.mark.parametrize("content", ["", "{}", '{"format_version": 99}', "[1]"])
def test_other_files_are_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(TrainingError, match="is not a template file"):
        Templates.load(path)
    with pytest.raises(TrainingError, match="cannot read the templates"):
        Templates.load(tmp_path / "missing.json")


def test_another_format_version_is_refused(templates: Templates, tmp_path: Path) -> None:
    path = tmp_path / "templates.json"
    templates.save(path)
    path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(TrainingError, match="template format 2"):
        Templates.load(path)


def test_one_rollout_is_too_few(rollouts: list[Rollout]) -> None:
    with pytest.raises(TrainingError, match=r"too few successful rollouts \(1\)"):
        learn_templates(rollouts[:1])


def test_failed_rollouts_are_ignored(rollouts: list[Rollout]) -> None:
    failed = rollouts[0].model_copy(update={"success": False})
    with pytest.raises(TrainingError, match="no successful rollouts"):
        learn_templates([failed])
