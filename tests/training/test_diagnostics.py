from __future__ import annotations

from typing import Any

from fhir_gym.episode import Episode
from fhir_gym.fhir import World
from fhir_gym.rollouts import run
from fhir_gym.training.config import TaskName
from fhir_gym.training.diagnostics import TrainingEpisode, batch_metrics, has_variance

ENV_ID = "FHIRAgent/Appointment-v0"
FIRST, SECOND = TaskName(ENV_ID, "01"), TaskName(ENV_ID, "02a")


def episode(name: TaskName, reward: float | None, stop: str = "finished", **more: Any) -> TrainingEpisode:
    success = None if reward is None else reward == 1.0
    return TrainingEpisode(
        name, 0, reward, success, stop, **{"steps": 2, "invalid_actions": 1, "tokens_written": 10} | more
    )


def test_metrics_overall_and_by_task() -> None:
    groups = [
        [episode(FIRST, 1.0), episode(FIRST, 0.5, "step_limit")],
        [episode(FIRST, 0.5), episode(FIRST, 0.5, tokens_written=30)],
        [episode(SECOND, 0.0), episode(SECOND, None, "infra_error", steps=9, invalid_actions=9)],
    ]
    metrics = batch_metrics(groups)
    assert {name: value for name, value in metrics.items() if not name.startswith("task/")} == {
        "episodes": 6,
        "not_graded": 1,
        "success": 0.2,
        "reward": 0.5,
        "groups_without_variance": 0.5,
        "steps": 2.0,
        "invalid_rate": 0.5,
        "tokens_written": 14.0,
        "stop/finished": 0.666667,
        "stop/step_limit": 0.166667,
        "stop/infra_error": 0.166667,
    }
    by_task = {name.removeprefix("task/Appointment-v0/"): value for name, value in metrics.items() if "task/" in name}
    assert by_task == {
        "01/success": 0.25,
        "01/reward": 0.625,
        "01/groups_without_variance": 0.5,
        "02a/success": 0.0,
        "02a/reward": 0.0,
    }


def test_a_batch_of_failures_has_no_success_rate() -> None:
    metrics = batch_metrics([[episode(FIRST, None, "infra_error")] * 2])
    assert metrics == {"episodes": 2, "not_graded": 2, "stop/infra_error": 1.0}


def test_failures_are_no_variance() -> None:
    assert not has_variance([episode(FIRST, None), episode(FIRST, 0.0), episode(FIRST, 0.0)])
    assert has_variance([episode(FIRST, 0.25), episode(FIRST, 0.0)])


def test_episodes_of_rollouts_and_of_infos_agree(hospital: World) -> None:
    (rollout,) = run(ENV_ID, "random", tasks="01", variations=0, world=hospital, max_steps=3, seed=5)
    with Episode(ENV_ID, task="01", variation=0, world=hospital, max_steps=3) as replay:
        replay.start()
        steps = [replay.step(turn.action) for turn in rollout.turns]
    played, replayed = TrainingEpisode.of(rollout), TrainingEpisode.of_info(ENV_ID, steps[-1].reward, steps[-1].info)
    assert played == replayed
    assert played.graded and played.steps == len(steps)
