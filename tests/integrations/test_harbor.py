"""Exported tasks in Harbor's own trials: its agents oracle and nop, an agent that forges rewards, a dead server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("harbor")

from harbor.models.dataset.manifest import DatasetManifest
from harbor.models.task.task import Task
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.publisher.packager import Packager
from harbor.trial.trial import Trial

from fhir_gym import read_rollouts
from fhir_gym.fhir import World
from fhir_gym.integrations.harbor import write_dataset, write_task_folders
from fhir_gym.rollouts import plan
from tests.integrations import harbor_processes
from tests.integrations.gold import GoldEpisode, one_task_of_each_pack

ENVIRONMENT = f"{harbor_processes.__name__}:ProcessEnvironment"
FORGING = f"{harbor_processes.__name__}:ForgingAgent"
SEARCH = GoldEpisode("FHIRAgent/Appointment-v0", "02a", 1_000)


def exported(gold: GoldEpisode, world: World, out: Path) -> Path:
    episodes = plan(gold.env_id, tasks=gold.task, variations=gold.variation, world=world)
    (folder,) = write_task_folders(episodes, out / "tasks")
    return folder


def run(folder: Path, out: Path, agent: AgentConfig, **kwargs: Any) -> tuple[TrialResult, Path]:
    """Run a trial; return its result and its folder."""
    config = TrialConfig(
        task=TaskConfig(path=folder),
        trials_dir=out / "trials",
        agent=agent,
        environment=EnvironmentConfig(import_path=ENVIRONMENT, kwargs=kwargs),
    )

    async def go() -> TrialResult:
        return await (await Trial.create(config)).run()

    return asyncio.run(go()), out / "trials" / config.trial_name


def reward_of(result: TrialResult) -> float | None:
    return None if result.verifier_result is None else (result.verifier_result.rewards or {}).get("reward")


@pytest.mark.parametrize("gold", one_task_of_each_pack(), ids=str)
def test_oracle_succeeds_and_nop_fails(own_world: Callable[[str], World], gold: GoldEpisode, tmp_path: Path) -> None:
    folder = exported(gold, own_world(gold.env_id), tmp_path)
    task = Task(folder)  # Harbor's own checks of a folder
    assert (task.name, [server.name for server in task.config.environment.mcp_servers]) == (
        f"fhir-gym/{folder.name}",
        ["fhir"],
    )
    result, trial = run(folder, tmp_path, AgentConfig(name="oracle"))
    assert (reward_of(result), result.exception_info) == (1.0, None), (trial / "trial.log").read_text()
    told = json.loads((trial / "verifier" / "verdict.json").read_text())
    assert (told["stop_reason"], told["truncated"]) == ("finished", False)
    assert told["explanation"].startswith("Success")
    assert "Success" in (trial / "verifier" / "test-stdout.txt").read_text()  # Harbor's log of the verifier
    (rollout,) = read_rollouts(trial / "artifacts" / "tmp" / "fhir-gym-verdict" / "rollout.jsonl")
    assert (rollout.env_id, rollout.task.key, rollout.task.variation, rollout.success) == (*gold, True)

    result, trial = run(folder, tmp_path, AgentConfig(name="nop"))
    assert (reward_of(result), result.exception_info) == (0.0, None), (trial / "trial.log").read_text()
    told = json.loads((trial / "verifier" / "verdict.json").read_text())
    assert (told["stop_reason"], told["truncated"], told["steps"]) == ("unfinished", True, 0)


def test_the_published_dataset_has_the_digests_of_harbor(hospital: World, tmp_path: Path) -> None:
    folder = exported(SEARCH, hospital, tmp_path)
    write_dataset(folder.parent)
    manifest = DatasetManifest.from_toml((folder.parent / "dataset.toml").read_text("utf-8"))
    assert manifest.dataset.name == "fhir-gym/tasks"
    (task,) = manifest.tasks
    assert (task.short_name, task.digest) == (folder.name, f"sha256:{Packager.compute_content_hash(folder)[0]}")


def test_an_agent_cannot_forge_its_reward(hospital: World, tmp_path: Path) -> None:
    result, trial = run(exported(SEARCH, hospital, tmp_path), tmp_path, AgentConfig(import_path=FORGING))
    assert (reward_of(result), result.exception_info) == (0.0, None), (trial / "trial.log").read_text()


def test_a_dead_server_is_an_exception_and_no_reward_of_zero(hospital: World, tmp_path: Path) -> None:
    folder = exported(SEARCH, hospital, tmp_path)
    result, _ = run(folder, tmp_path, AgentConfig(name="oracle"), server_dies=True)
    assert result.verifier_result is None
    assert result.exception_info is not None
    assert result.exception_info.exception_type == "RewardFileNotFoundError"
