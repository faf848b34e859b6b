"""Minari reads back what the rollouts contain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from fhir_gym.agents import ScriptedAgent
from fhir_gym.errors import RecordError
from fhir_gym.fhir import World
from fhir_gym.integrations.minari import write_minari
from fhir_gym.rollouts import Rollout, Selection, run
from fhir_gym.tasks import pack_ids

minari: Any = pytest.importorskip("minari")
pytest.importorskip("pyarrow")

ENV_ID = "FHIRAgent/Appointment-v0"
PACKS = [pack_id for pack_id in pack_ids() if pack_id.startswith("FHIRAgent/")]
ALL = Selection(success_only=False, valid_only=False, dedupe=False)


def require_equal(episode: Any, rollout: Rollout) -> None:
    turns = rollout.turns
    assert episode.observations == [rollout.first_observation, *(turn.observation for turn in turns)]
    assert episode.actions == [turn.action for turn in turns]
    assert episode.rewards.tolist() == [0.0] * (len(turns) - 1) + [rollout.reward]
    ends = [False] * (len(turns) - 1) + [True]
    finished = rollout.stop_reason == "finished"
    assert episode.terminations.tolist() == [end and finished for end in ends]
    assert episode.truncations.tolist() == [end and not finished for end in ends]
    assert episode.infos["status"].tolist() == [0, *(turn.status for turn in turns)]


@pytest.mark.parametrize("env_id", PACKS)
def test_gold_episodes_of_all_tasks_are_read_back(env_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rollouts = [*run(env_id, "gold", variations="0", grading="evidence")]
    summary = write_minari(rollouts, tmp_path / "gold-v0")
    assert (summary.rollouts, summary.rows) == (len(rollouts), sum(rollout.steps for rollout in rollouts))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = minari.load_dataset("gold-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (summary.rollouts, summary.rows)
    for episode, rollout in zip(dataset.iterate_episodes(), rollouts, strict=True):
        require_equal(episode, rollout)
        assert all(text in dataset.observation_space for text in episode.observations)
        assert all(text in dataset.action_space for text in episode.actions)
    metadata = [*dataset.storage.get_episode_metadata(range(dataset.total_episodes))]
    assert [total_episode["task"] for total_episode in metadata] == [rollout.task.key for rollout in rollouts]
    assert all(total_episode["success"] for total_episode in metadata)
    env = dataset.recover_environment()
    assert env.unwrapped.config.grading == "evidence"
    assert env.reset(options=metadata[0]["options"])[0] == rollouts[0].first_observation
    env.close()


def test_truncated_failed_and_hostile_episodes_are_read_back(hospital: World, tmp_path: Path) -> None:
    agent = ScriptedAgent(["GET /Patient?_count=1", "<script>\x00\ud800\u202e \U0001f600"] * 2)
    rollouts = [*run(ENV_ID, agent, tasks="01", variations="0-1", world=hospital, max_steps=4)]
    assert {rollout.stop_reason for rollout in rollouts} == {"step_limit"}
    assert write_minari(rollouts, tmp_path / "odd-v1", selection=ALL, authors=["Ada", "Bo"]).rows == 8
    dataset = minari.MinariDataset(tmp_path / "odd-v1" / "data")
    assert dataset.storage.metadata["author"] == {"Ada", "Bo"}
    for episode, rollout in zip(dataset.iterate_episodes(), rollouts, strict=True):
        require_equal(episode, rollout)
    env = dataset.recover_environment()
    assert env.unwrapped.config.max_steps == 4
    env.close()


def test_the_recovered_environment_has_the_split_of_the_episodes(hospital: World, tmp_path: Path) -> None:
    for name, variations, split in (("test-v0", "1000", "test"), ("both-v0", "0,1000", None)):
        rollouts = [*run(ENV_ID, "gold", tasks="01", variations=variations, world=hospital)]
        write_minari(rollouts, tmp_path / name)
        dataset = minari.MinariDataset(tmp_path / name / "data")
        env = dataset.recover_environment()
        assert env.unwrapped.config.split == split
        options = [rollout["options"] for rollout in dataset.storage.get_episode_metadata(range(len(rollouts)))]
        assert [env.reset(options=option)[0] for option in options] == [
            rollout.first_observation for rollout in rollouts
        ]
        env.close()


def test_what_minari_cannot_hold_is_refused(hospital: World, tmp_path: Path) -> None:
    rollouts = [*run(ENV_ID, "gold", tasks="01", variations="0", world=hospital)]
    other = rollouts[0].model_copy(update={"env_id": "FHIRAgent/GeneticTesting-v0"})
    for wrong, name, message in (
        ([], "a-v0", "no rollout was selected"),
        ([*rollouts, other], "a-v0", "one environment, and the rollouts are of FHIRAgent/Appointment-v0, "),
        (rollouts, "a", "needs a name such as appointment-gold-v0, not a"),
    ):
        with pytest.raises(RecordError, match=message):
            write_minari(wrong, tmp_path / name, selection=ALL)
    assert not [*tmp_path.iterdir()]
    write_minari(rollouts, tmp_path / "a-v0")
    with pytest.raises(RecordError, match="is not an empty folder"):
        write_minari(rollouts, tmp_path / "a-v0")


def test_packs_that_gymnasium_does_not_know_have_no_environment(hospital: World, tmp_path: Path) -> None:
    (rollout,) = run(ENV_ID, "gold", tasks="01", variations="0", world=hospital)
    unknown = rollout.model_copy(update={"env_id": "Gone/Pack-v0"})
    assert "Gone/Pack-v0" not in gym.registry
    write_minari([unknown], tmp_path / "gone-v0")
    dataset = minari.MinariDataset(tmp_path / "gone-v0" / "data")
    assert dataset.spec.env_spec is None
    require_equal(dataset[0], rollout)
