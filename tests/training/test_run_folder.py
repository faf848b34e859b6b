"""A training run survives a kill at any moment, and nothing is counted twice."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from fhir_gym.errors import TrainingError
from fhir_gym.training import Evaluation, Outcome, RunFolder, TrainingConfig, read_run

CONFIG = TrainingConfig(tasks=("01",))


class Killed(BaseException):
    pass


def opened(path: Path, config: TrainingConfig = CONFIG, recipe: str = "toy") -> RunFolder:
    return RunFolder(path, recipe=recipe, config=config)


def train(path: Path, steps: int, kill_at: tuple[int, str] | None = None) -> list[int]:
    """A toy recipe that adds up its steps, with a checkpoint every other step; return the steps it performed."""
    performed = []
    with opened(path) as folder:
        last = folder.latest_checkpoint()
        step, total = (0, 0) if last is None else json.loads((last.path / "state.json").read_text())
        while step < steps:
            step, total = step + 1, total + step + 1
            performed.append(step)
            folder.log(step, {"total": total})
            if kill_at == (step, "before"):
                raise Killed
            if step % 2 == 0:
                folder.save_checkpoint(step, partial(write, state=(step, total), kill_at=kill_at))
    return performed


def write(path: Path, state: tuple[int, int], kill_at: tuple[int, str] | None) -> None:
    (path / "part.bin").write_bytes(b"x")
    if kill_at == (state[0], "during"):
        raise Killed
    (path / "state.json").write_text(json.dumps(state))


def totals(path: Path) -> list[tuple[int, int]]:
    return [(row["step"], row["total"]) for row in read_run(path).metrics()]


EXPECTED = [(1, 1), (2, 3), (3, 6), (4, 10), (5, 15), (6, 21)]


@pytest.mark.parametrize("kill_at", [(1, "before"), (2, "during"), (3, "before"), (4, "during"), (5, "before")])
def test_a_killed_run_continues_from_its_last_checkpoint(tmp_path: Path, kill_at: tuple[int, str]) -> None:
    with pytest.raises(Killed):
        train(tmp_path, 6, kill_at)
    done = (kill_at[0] - 1) // 2 * 2
    assert train(tmp_path, 6) == list(range(done + 1, 7))
    assert totals(tmp_path) == EXPECTED


def test_leftovers_of_a_kill_are_removed(tmp_path: Path) -> None:
    train(tmp_path, 4)
    leftover = tmp_path / "checkpoints" / ".000009-step-6.part"
    leftover.mkdir()
    (leftover / "state.json").write_text("[6, 0]")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "total": 15}\n{"step": 6, "tot')
    assert totals(tmp_path)[-1] == (5, 15)  # a reader skips the torn line
    with opened(tmp_path) as folder:
        assert not leftover.exists()
        last = folder.latest_checkpoint()
        assert last is not None and last.step == 4
        assert len(folder.rows()) == 4
    assert train(tmp_path, 6) == [5, 6] and totals(tmp_path) == EXPECTED


def test_tensorboard_shows_nothing_twice(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tensorboard")
    for step in (1, 3, 5):  # the last run is not killed
        with suppress(Killed):
            train(tmp_path, 4, (step, "before"))
    module = import_module("tensorboard.backend.event_processing.event_accumulator")
    events = module.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/total")] == EXPECTED[:4]


def test_two_checkpoints_are_kept_and_the_same_step_may_be_saved_again(tmp_path: Path) -> None:
    train(tmp_path, 6)
    with opened(tmp_path) as folder:
        folder.log(6, {"total": 0})
        with pytest.raises(Killed):
            folder.save_checkpoint(6, lambda path: write(path, (6, 0), (6, "during")))
        last = folder.latest_checkpoint()
        assert last is not None and json.loads((last.path / "state.json").read_text()) == [6, 21]
        folder.save_checkpoint(6, lambda path: write(path, (6, 0), None))
        last = folder.latest_checkpoint()
        assert last is not None and json.loads((last.path / "state.json").read_text()) == [6, 0]
        assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    with opened(tmp_path) as folder:
        assert len(folder.rows()) == 7


def test_the_evaluations_are_kept_with_their_steps(tmp_path: Path) -> None:
    outcomes = [Outcome("pack", "01", 1000 + n, n > 0, {"steps": 2.0, "invalid_actions": n / 3}) for n in range(4)]
    evaluation = Evaluation.from_outcomes(outcomes, not_graded=1)
    with opened(tmp_path) as folder:
        folder.log_evaluation(0, Evaluation.from_outcomes(outcomes[:1]), "start")
        folder.log_evaluation(10, evaluation)
        folder.log(10, {"loss": 1.0})
        record = folder.record()
    assert record.evaluations() == [(10, evaluation)] and record.evaluation_names() == ["start", "test"]
    assert evaluation.success == 0.75 and evaluation.interval[0] < 0.75 < evaluation.interval[1]
    assert evaluation.tasks_at(0.6) == 1 and evaluation.metrics["invalid_rate"] == 0.25
    assert record.metrics()[0]["loss"] == 1.0 and record.recipe == "toy"


def test_cpu_seconds_add_up_over_processes(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        folder.save_checkpoint(1, lambda path: None)
        before = folder.cpu_seconds
    with opened(tmp_path) as folder:
        assert folder.cpu_seconds >= round(before, 3) - 0.01


@pytest.mark.parametrize(
    ("config", "recipe", "message"),
    [
        (TrainingConfig(tasks=("01", "05"), seed=2), "toy", "seed is 0 there and 2 here; tasks is"),
        (CONFIG, "other", "holds a run of recipe 'toy', not 'other'"),
    ],
)
def test_another_run_is_refused(tmp_path: Path, config: TrainingConfig, recipe: str, message: str) -> None:
    train(tmp_path, 2)
    with pytest.raises(TrainingError, match=message):
        opened(tmp_path, config, recipe)
    assert totals(tmp_path) == EXPECTED[:2]


def test_the_config_of_a_run_that_did_nothing_may_be_replaced(tmp_path: Path) -> None:
    """A run that ended at once, such as with an unknown model, does not make its folder useless."""
    opened(tmp_path).close()
    opened(tmp_path, TrainingConfig(tasks=("05",)), "other").close()
    record = read_run(tmp_path)
    assert (record.recipe, record.config["tasks"]) == ("other", ["05"])


def test_fields_that_do_not_change_results_may_differ(tmp_path: Path) -> None:
    train(tmp_path, 2)
    opened(tmp_path, TrainingConfig(tasks=("01",), threads=2)).close()


def test_another_version_of_the_package_is_told(tmp_path: Path) -> None:
    train(tmp_path, 2)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fhir_gym": "0.0.1"}))
    with pytest.warns(UserWarning, match=r"started with fhir_gym 0\.0\.1"):
        opened(tmp_path).close()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(TrainingError, match="other files than a training run"):
        opened(tmp_path)
    with pytest.raises(TrainingError, match="is not a folder"):
        opened(tmp_path / "notes.txt")
    with pytest.raises(TrainingError, match="holds no training run"):
        read_run(tmp_path)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    assert not (tmp_path / ".lock").exists()
    with opened(tmp_path), pytest.raises(TrainingError, match=f"in use by process {os.getpid()}"):
        opened(tmp_path)
    (tmp_path / ".lock").write_text(str(os.getppid()))  # the process of a killed run may have its id now
    opened(tmp_path).close()
