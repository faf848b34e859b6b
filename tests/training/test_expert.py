from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from fhir_gym.agents import EpisodeContext, GoldAgent
from fhir_gym.agents.transformer import Transformer
from fhir_gym.errors import InfraError, TrainingError
from fhir_gym.rollouts import read_rollouts
from fhir_gym.training import RunFolder, read_run
from fhir_gym.training import expert as recipe
from fhir_gym.training.expert import ExpertConfig, train_expert
from fhir_gym.training.tuner import Tuner

pytestmark = pytest.mark.filterwarnings("ignore")  # the training libraries emit warnings that differ between versions


class Killed(BaseException):
    pass


class HalfGold(GoldAgent):
    """Solves about half of the episodes, and gives up in the others."""

    name = "half-gold"
    episodes = 0

    def reset(self, observation: str, context: EpisodeContext) -> None:
        type(self).episodes += 1
        self._gives_up = context.seed % 2 == 0
        super().reset(observation, context)

    def act(self, observation: str) -> Any:
        return 'FINISH(["no"])' if self._gives_up else super().act(observation)


@pytest.fixture(autouse=True)
def half_gold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another agent make the attempts, because the tiny model never succeeds."""
    monkeypatch.setattr(recipe, "make_agent", lambda *_: HalfGold())
    monkeypatch.setattr(HalfGold, "episodes", 0)


def config(model: str, **fields: Any) -> ExpertConfig:
    given: dict[str, Any] = {
        "model": model,
        "device": "cpu",
        "tasks": ("09b", "09d"),
        "train": "0-9",
        "test": "1000",
        "rounds": 2,
        "prompts": 6,
        "samples": 2,
        "epochs": 1.0,
        "batch_size": 2,
        "max_new_tokens": 4,
        "max_steps": 2,
        "max_tokens": 20_000,
        "checkpoint_updates": 2,
        "learning_rate": 0.01,
        "evaluate_start": False,
    }
    return ExpertConfig(**(given | fields))


def rows(folder: Path) -> list[dict[str, Any]]:
    """The metrics without CPU times."""
    return [{key: value for key, value in row.items() if key != "cpu_seconds"} for row in read_run(folder).rows]


def test_a_round_trains_on_the_successes_of_its_attempts(tiny: str, folder: Path) -> None:
    train_expert(config(tiny, curriculum="success"), folder)
    record = read_run(folder)
    attempts, updates = record.metrics()[0::2], record.metrics()[1::2]
    assert [row["attempts"] for row in attempts] == [12, 12] and HalfGold.episodes == 24
    assert 0 < attempts[0]["kept"] <= 6 and attempts[0]["examples"] == attempts[0]["kept"]
    assert attempts[0]["kept"] < attempts[1]["examples"] <= attempts[0]["kept"] + attempts[1]["kept"]
    assert [row["updates"] for row in updates] == [-(-row["examples"] // 2) for row in attempts]
    assert [step for step, _ in record.evaluations()] == [1, 2] == [step for step, _ in record.evaluations("train")]
    for number, row in enumerate(attempts):
        kept = list(read_rollouts(folder / "rollouts" / f"kept-{number:03d}.jsonl"))
        assert all(rollout.success and rollout.task.split == "train" for rollout in kept)
        assert len({(rollout.task.key, rollout.task.variation) for rollout in kept}) == len(kept) == row["kept"]
    assert "| k |" in (folder / "report.md").read_text() and not (folder / "models").exists()
    assert Transformer(str(folder / "model"), device="cpu").fingerprint() != Transformer(tiny).fingerprint()


@pytest.fixture(scope="module")
def whole(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The folder of an uninterrupted run, and the number of its episodes."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "make_agent", lambda *_: HalfGold())
        patch.setattr(recipe, "write_report", lambda folders: None)
        patch.setattr(HalfGold, "episodes", 0)
        train_expert(config(tiny), folder)
        return folder, HalfGold.episodes


@pytest.mark.parametrize("place", ["attempt", "update", "evaluation", "export", "checkpoint"])
@pytest.mark.usefixtures("without_plots")
def test_a_killed_run_ends_like_an_uninterrupted_one(
    tiny: str, folder: Path, whole: tuple[Path, int], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    settings, (uninterrupted, episodes) = config(tiny), whole
    owner: type = {"attempt": HalfGold, "update": Tuner, "export": Tuner}.get(place, RunFolder)
    name = {"attempt": "act", "update": "step", "evaluation": "log_evaluation", "export": "export"}.get(
        place, "save_checkpoint"
    )
    before, calls = getattr(owner, name), 0

    def killed(self: Any, *given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == {"attempt": 20, "update": 5, "evaluation": 3, "export": 2, "checkpoint": 3}[place]:
            raise Killed
        return before(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(Killed):
            train_expert(settings, folder)
    train_expert(settings, folder)
    assert rows(folder) == rows(uninterrupted)
    assert HalfGold.episodes <= episodes + 1  # at most the interrupted episode runs again
    models = [Transformer(str(path / "model"), device="cpu").fingerprint() for path in (folder, uninterrupted)]
    assert models[0] == models[1]


@pytest.mark.usefixtures("without_plots")
def test_successes_are_limited_per_task_and_hard_variations_come_first(tiny: str, folder: Path) -> None:
    train_expert(config(tiny, rounds=1, samples=4, kept_per_variation=2, kept_per_task=1), folder)
    kept = list(read_rollouts(folder / "rollouts" / "kept-000.jsonl"))
    assert sorted(rollout.task.key for rollout in kept) == ["09b", "09d"]
    (path,) = (folder / "rollouts").glob("attempts-*")
    rates: dict[tuple[str, int], list[bool]] = {}
    for rollout in read_rollouts(path):
        rates.setdefault((rollout.task.key, rollout.task.variation), []).append(bool(rollout.success))
    for rollout in kept:
        own = rates[rollout.task.key, rollout.task.variation]
        solved = [rate for (task, _), rate in rates.items() if task == rollout.task.key and any(rate)]
        assert sum(own) == min(sum(successes) for successes in solved)


def test_a_round_without_success_is_explained(tiny: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HalfGold, "act", lambda self, observation: "FINISH([])")
    with pytest.raises(TrainingError, match="no success in round 1: start from a model that solves some episodes"):
        train_expert(config(tiny, tasks=("09b",)), folder)


def test_a_round_without_verdicts_is_an_error(tiny: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise InfraError("out of memory")

    monkeypatch.setattr(HalfGold, "act", fail)
    with pytest.raises(InfraError, match="no episode has a verdict: out of memory"):
        train_expert(config(tiny), folder)
    assert rows(folder) == []
