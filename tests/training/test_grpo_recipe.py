from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not installed: pip install '.[train]'")

from fhir_gym.agents import LocalAgent, Transformer
from fhir_gym.episode import Episode
from fhir_gym.errors import ArgumentError, InfraError, TrainingError
from fhir_gym.fhir import World
from fhir_gym.rollouts import run
from fhir_gym.training.config import load_config
from fhir_gym.training.config import make_config as from_fields
from fhir_gym.training.grpo import groups, recipe
from fhir_gym.training.grpo.config import GrpoConfig, trl_arguments
from fhir_gym.training.grpo.policy import PolicyRollouts
from fhir_gym.training.grpo.recipe import train_grpo
from fhir_gym.training.run_folder import read_run
from tests.training.grpo_run import make_config, play_with_rewards_by_tokens, rewards_by_tokens
from tests.training.grpo_tools import ENV_ID, load_tiny

CONFIGS = Path(__file__).parents[2] / "examples/configs"

# The training libraries emit many warnings that differ between versions.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def without_plots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one test draws the report, which takes seconds."""
    if request.function is not test_the_metrics_of_a_step:
        monkeypatch.setattr(recipe, "write_report", lambda folders: None)


def rows(out: Path) -> list[dict[str, Any]]:
    """The metrics of a run without the times."""
    times = {"cpu_seconds", "seconds", "environment_share"}
    return [{key: value for key, value in row.items() if key not in times} for row in read_run(out).rows]


def fingerprint(out: Path) -> str:
    return Transformer(str(out / "model"), device="cpu").fingerprint()


def state(out: Path) -> dict[str, Any]:
    last = max((out / "checkpoints").glob("[0-9]*"))
    found: dict[str, Any] = json.loads((last / "grpo.json").read_text("utf-8"))
    return found


@pytest.mark.parametrize("shape", ["rollout_func", "groups"])
def test_a_killed_run_resumes_and_ends_like_an_uninterrupted_one(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    monkeypatch.setattr(PolicyRollouts, "rewards", staticmethod(rewards_by_tokens))
    monkeypatch.setattr(groups, "play_choices", play_with_rewards_by_tokens)
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    command = [sys.executable, "-m", "tests.training.grpo_run", tiny, str(killed), "2", shape]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [row["step"] for row in read_run(killed).metrics()] == [1, 2, 3]
    assert not (killed / "model").exists()
    shown: list[int] = []
    train_grpo(make_config(tiny, shape=shape), killed, progress=lambda step, *_: shown.append(step))
    assert min(shown) == 3, "the run goes on from its last checkpoint"
    train_grpo(make_config(tiny, shape=shape), whole)
    assert rows(killed) == rows(whole)
    assert [row["step"] for row in read_run(killed).metrics()] == [1, 2, 3, 4, 5]
    assert [step for step, _ in read_run(killed).evaluations()] == [0, 3, 5]
    assert state(killed) == state(whole)
    assert fingerprint(killed) == fingerprint(whole) != Transformer(tiny, device="cpu").fingerprint()
    before = (killed / "metrics.jsonl").read_bytes()
    train_grpo(make_config(tiny, shape=shape), killed)
    assert (killed / "metrics.jsonl").read_bytes() == before, "a complete run does nothing"


def test_adapters_resume_and_are_merged(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PolicyRollouts, "rewards", staticmethod(rewards_by_tokens))
    settings: dict[str, Any] = {"lora_rank": 4, "dtype": "bfloat16", "steps": 2, "checkpoint_every": 1}
    config = make_config(tiny, evaluate_start=False, evaluate_every=0, **settings)

    def stop(done: int, _: int, text: str) -> None:
        if done == 2 and "reward" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_grpo(config, tmp_path / "run", progress=stop)
    assert [row["step"] for row in read_run(tmp_path / "run").metrics()] == [1, 2]
    train_grpo(config, tmp_path / "run")
    assert [row["step"] for row in read_run(tmp_path / "run").metrics()] == [1, 2]
    assert not list((tmp_path / "run" / "model").glob("adapter*"))
    assert fingerprint(tmp_path / "run") != Transformer(tiny, device="cpu", dtype="bfloat16").fingerprint()


def test_the_metrics_of_a_step(tiny: str, tmp_path: Path) -> None:
    config = make_config(tiny, steps=1, evaluate_start=False, tasks=("02a",), curriculum="uniform")
    train_grpo(config, tmp_path / "run")
    (metrics,) = read_run(tmp_path / "run").metrics()
    expected = {"success", "reward", "groups_without_variance", "invalid_rate", "steps", "tokens_written", "tokens"}
    assert metrics.keys() >= expected | {"loss", "grad_norm", "entropy", "stop/step_limit", "episodes", "not_graded"}
    assert metrics["task/Appointment-v0/02a/success"] == metrics["success"]
    ((_, sampled),) = read_run(tmp_path / "run").evaluations("train")
    assert sampled.episodes == 4 and {attempts.episodes for attempts in sampled.attempts} <= {2, 4}
    assert 0 < metrics["tokens"] == 4 * metrics["tokens_written"]
    assert "02a" in (tmp_path / "run" / "report.md").read_text("utf-8")


def test_training_stops_when_every_episode_fails(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Episode) -> str:
        raise InfraError("the server is down")

    monkeypatch.setattr(Episode, "start", fail)
    with pytest.raises(InfraError, match="no episode of the last 3 batches has a reward: the server is down"):
        train_grpo(make_config(tiny, evaluate_start=False, evaluate_every=0), tmp_path / "run")


def test_a_batch_without_rewards_does_not_change_the_weights(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PolicyRollouts, "rewards", staticmethod(rewards_by_tokens))
    count, start = iter(range(100)), Episode.start

    def fail_in_the_second_batch(self: Episode) -> str:
        if 4 <= next(count) < 8:
            raise InfraError("the server is down")
        return start(self)

    def weights(number: int) -> bytes:
        return (tmp_path / "run" / "checkpoints" / f"{number:06d}-step-{number + 1}" / "model.safetensors").read_bytes()

    monkeypatch.setattr(Episode, "start", fail_in_the_second_batch)
    config = make_config(tiny, steps=2, checkpoint_every=1, evaluate_start=False, test="1000", tasks=("01",))
    train_grpo(config, tmp_path / "run")
    assert weights(0) == weights(1) != (Path(tiny) / "model.safetensors").read_bytes()
    last = read_run(tmp_path / "run").metrics()[-1]
    assert (last["not_graded"], last["stop/infra_error"]) == (4, 1.0) and "reward" not in last


def test_both_shapes_train_and_show_the_model_the_same_tools(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hospital: World
) -> None:
    model, tokenizer = load_tiny(tiny, "qwen3.jinja")
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shown: list[str] = []
    made = recipe._TrlRun._make_trainer

    def make(self: Any, configs: Any) -> Any:
        trainer = made(self, configs)
        tokenize = trainer._tokenize_prompts

        def recorded(prompts: Any) -> Any:
            found = tokenize(prompts)
            shown.append(trainer.processing_class.decode(found[0][0]))
            return found

        monkeypatch.setattr(trainer, "_tokenize_prompts", recorded)
        return trainer

    monkeypatch.setattr(recipe._TrlRun, "_make_trainer", make)
    settings: dict[str, Any] = {"steps": 1, "evaluate_start": False, "tasks": ("02a",), "train": "3"}
    settings |= {"max_tokens": 8_000, "batch_size": 2, "max_steps": 1}
    for shape in ("environment_factory", "rollout_func"):
        config = make_config(str(folder), shape=shape, protocol="tools", **settings)
        train_grpo(config, tmp_path / shape)
        assert read_run(tmp_path / shape).metrics()[0]["episodes"] == 2
    agent = LocalAgent(str(folder), device="cpu", protocol="tools", max_new_tokens=4)
    (rollout,) = run(ENV_ID, agent, tasks="02a", variations=3, world=hospital, max_steps=1)
    assert rollout.opening is not None
    (prompt,) = shown
    assert prompt == agent._model.render(rollout.opening.messages, tools=True)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"batch_size": 6, "group_size": 4}, "batch_size 6 must be a multiple of group_size 4"),
        ({"batch_size": 8, "micro_batch": 3}, "batch_size 8 must be a multiple of micro_batch 3"),
        ({"trl": {"num_generations": 4}}, "trl must not contain 'num_generations'"),
        ({"trl": {"num_iterations": 2}}, "trl must not contain 'num_iterations'"),
        ({"train": "0-1000"}, "test variations"),
        ({"group_sizes": 4}, "did you mean 'group_size'"),
        ({"shape": "tools"}, "shape"),
        ({"shape": "groups", "beta": 0.1}, "beta needs lora_rank with shape 'groups'"),
        ({"phrasing": 1, "held_out_phrasing": 1}, "held_out_phrasing needs phrasing"),
    ],
)
def test_wrong_configs_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        from_fields(GrpoConfig, {"model": "m"} | fields)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("grpo_qwen3_*.toml")), ids=lambda path: path.stem)
def test_trl_accepts_the_configs_for_gpus(path: Path, tmp_path: Path) -> None:
    config = load_config(path, GrpoConfig)
    arguments = import_module("trl").GRPOConfig(
        **trl_arguments(config, tmp_path, cpu=True) | {"bf16": False}, **config.trl
    )
    assert arguments.use_vllm and arguments.num_generations == config.group_size


def test_wrong_arguments_of_trl_are_refused(tiny: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"TRL refuses the config: .*'loss_typ'"):
        train_grpo(make_config(tiny, trl={"loss_typ": "grpo"}), tmp_path / "run")


def test_held_out_tasks_and_phrasings_are_not_drawn() -> None:
    config = GrpoConfig(model="m", tasks=("01", "02a", "05"), held_out=("05",), held_out_phrasing=1)
    curriculum = config.make_curriculum()
    drawn = {curriculum.draw() for _ in range(200)}
    assert {choice.task for choice in drawn} == {"01", "02a"}
    assert {choice.phrasing for choice in drawn} == {0, 2}


def test_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TrainingError, match="one process"):
        train_grpo(GrpoConfig(model="m"), tmp_path / "run")
