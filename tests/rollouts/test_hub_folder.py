from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.errors import RecordError
from fhir_gym.rollouts import FORMATS, Format, Rollout, Selection, export, write_hub_folder
from fhir_gym.rollouts.dataset import CARD

EVERYTHING = Selection(success_only=False, valid_only=False, dedupe=False)


def card_of(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the settings and the text of a dataset card."""
    _, settings, text = (folder / CARD).read_text("utf-8").split("---\n", 2)
    return {name: json.loads(value) for name, value in (line.split(": ", 1) for line in settings.splitlines())}, text


def on_test(rollout: Rollout) -> Rollout:
    return rollout.model_copy(update={"task": rollout.task.model_copy(update={"split": "test", "variation": 1000})})


@pytest.mark.parametrize("format", FORMATS)
def test_each_split_has_a_file_and_the_card_declares_the_columns(
    format: Format, gold: list[Rollout], tmp_path: Path
) -> None:
    rollouts = [*gold[:3], *map(on_test, gold[3:5])]
    summary = write_hub_folder(rollouts, tmp_path / "data set", format)
    settings, text = card_of(tmp_path / "data set")
    (config,) = settings["configs"]
    found = []
    for file in config["data_files"]:
        rows = [json.loads(line) for line in (tmp_path / "data set" / file["path"]).read_text("utf-8").splitlines()]
        assert {row["split"] for row in rows} == {file["split"]}
        found += rows
    assert found == [*export(rollouts, format)]
    assert (summary.rollouts, summary.rows) == (5, len(found))
    assert [column["name"] for column in settings["dataset_info"]["features"]] == list(found[0])
    assert "- Episodes: 5" in text and "FHIRAgent/Appointment-v0" in text


def test_a_folder_that_is_not_empty_is_refused(gold: list[Rollout], tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(RecordError, match="is not an empty folder; choose another folder"):
        write_hub_folder(gold[:1], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_nothing_is_left_if_no_rollout_is_selected_or_reading_fails(gold: list[Rollout], tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no rollout was selected"):
        write_hub_folder(gold[:1], tmp_path / "out", selection=Selection(tasks="none"))
    with pytest.raises(RecordError, match="broken"):
        write_hub_folder(map(_broken, gold), tmp_path / "out")
    assert not [*tmp_path.iterdir()]


def _broken(rollout: Rollout) -> Rollout:
    raise RecordError("the file is broken")


def test_hostile_names_are_escaped_in_the_card(gold: list[Rollout], tmp_path: Path) -> None:
    name = "<script>alert(1)</script>\n---\n# \x1b[31m\ud800"
    odd = gold[0].model_copy(update={"agent": gold[0].agent.model_copy(update={"name": name})})
    write_hub_folder([odd], tmp_path / "out", selection=EVERYTHING)
    text = card_of(tmp_path / "out")[1]
    assert "<script>" not in text and "\x1b" not in text
    assert sum(line.startswith("#") for line in text.splitlines()) == 1
