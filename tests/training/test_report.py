from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.errors import TrainingError
from fhir_gym.evaluation import wilson
from fhir_gym.training import Evaluation, Outcome, RunFolder, TrainingConfig, report
from fhir_gym.training.report import write_report

ENV_ID = "FHIRAgent/Appointment-v0"


def evaluation(successes: int, repeats: int = 1) -> Evaluation:
    """Twenty episodes of two tasks."""
    return Evaluation.from_outcomes(
        Outcome(ENV_ID, ("01", "02a")[n % 2], 1000 + n // (2 * repeats), n < successes, {"steps": 2.0, "reward": 0.5})
        for n in range(20)
    )


def run(path: Path, successes: tuple[int, ...], recipe: str = "toy", **fields: Any) -> Path:
    with RunFolder(path, recipe=recipe, config=TrainingConfig(tasks=("01", "02a"), **fields)) as folder:
        folder.log_evaluation(0, evaluation(1), "random")
        for step, count in enumerate(successes):
            folder.log(step, {"tokens": 100.0})
            folder.log_evaluation(step, evaluation(count))
        folder.log_evaluation(len(successes), evaluation(10, repeats=2), "train")
    return path


def test_a_run_gets_a_report(tmp_path: Path) -> None:
    path = write_report([run(tmp_path / "a", (2, 10, 18))])
    text = path.read_text()
    assert path == tmp_path / "a" / "report.md"
    assert "| toy | test | 90.0% | 69.9 to 97.2 | 20 | 2 of 2 | 0.0% | 2.0 |" in text
    assert "| toy | random | 5.0% |" in text and "| 01 | 9 of 10 |" in text and "300 tokens" in text
    assert "| toy | train, step 3 | 2 | 60.0% | 40.0% | 80.0% |" in text
    data = json.loads((tmp_path / "a" / "report.json").read_text())
    assert [test["success"] for test in data["variants"][0]["evaluations"]["test"]] == [0.1, 0.5, 0.9]
    assert [(row["compared_with"], row["difference"]) for row in data["differences"]] == [("toy, step 0", 0.8)]


def test_runs_that_differ_in_their_seed_are_pooled_and_others_are_compared(tmp_path: Path) -> None:
    folders = [run(tmp_path / f"s{seed}", (2, 10 + seed), seed=seed, threads=seed + 1) for seed in range(2)]
    folders.append(run(tmp_path / "dense", (4, 20), reward="dense"))
    text = write_report(folders, tmp_path / "report").read_text()
    assert "| toy reward=sparse, seed 1 | test | 55.0% |" in text
    # Ten variations gain nothing, one gains in one seed of two, and nine gain in both.
    assert "| toy reward=dense | toy reward=sparse | 20 | +47.5 | 24.1 to 70.9 | <0.001 |" in text.replace("\\", "")
    assert "| toy reward=sparse, 2 seeds | test | 52.5% |" in text and "| 40 |" in text
    assert "| toy reward=dense | test | 100.0% |" in text
    assert "test, step" not in text  # two seeds are not two attempts
    assert not (tmp_path / "s0" / "report.md").exists()


def test_seeds_on_the_same_variations_do_not_make_the_interval_narrower() -> None:
    one = evaluation(8)
    seeds = Evaluation.pooled([one] * 3)
    assert (one.success, one.episodes) == (seeds.success, seeds.episodes / 3)
    (low, high), (pooled_low, pooled_high) = one.interval, seeds.interval
    assert pooled_high - pooled_low > high - low
    assert Evaluation.pooled([evaluation(8), evaluation(16)]).interval != wilson(24, 40)
    assert evaluation(8).interval == wilson(8, 20) and Evaluation.from_outcomes([]).interval == (0, 1)


def test_a_folder_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    folder = run(tmp_path / "a b", (2, 10))
    text = write_report([folder, tmp_path / "a b" / ".." / "a b"]).read_text()
    assert "| toy | test | 50.0% | 29.9 to 70.1 | 20 |" in text and "seeds" not in text


def test_episodes_without_a_verdict_are_shown_and_are_no_failures(tmp_path: Path) -> None:
    with RunFolder(tmp_path, recipe="toy", config=TrainingConfig(tasks=("01",))) as folder:
        folder.log_evaluation(1, Evaluation.from_outcomes([], not_graded=3))
        assert "| toy | test |  | 0.0 to 100.0 | 0 + 3 not graded |" in write_report([tmp_path]).read_text()
        folder.log_evaluation(2, Evaluation.from_outcomes([Outcome(ENV_ID, "01", 1000, True)], not_graded=2))
    text = write_report([tmp_path]).read_text()
    assert "| toy | test | 100.0% | 20.7 to 100.0 | 1 + 2 not graded |" in text


def test_the_plots_are_small_and_the_same_every_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folders = [run(tmp_path / name, (2, 10, 18), seed=seed) for seed, name in enumerate("ab")]
    found = []
    for _ in range(2):
        write_report(folders)
        found.append([(tmp_path / "a" / name).read_bytes() for name in ("curves.png", "tasks.png")])
    assert found[0] == found[1] and all(plot.startswith(b"\x89PNG") and len(plot) < 60_000 for plot in found[0])
    assert "![curves](curves.png)" in (tmp_path / "a" / "report.md").read_text()


def test_different_recipes_are_drawn_against_their_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(report, "draw_curves", lambda curves, lines, path, unit: drawn.append((unit, curves)))
    folders = [run(tmp_path / "a", (2, 10)), run(tmp_path / "b", (4, 20), recipe="other")]
    for folder, minutes in zip(folders, (3, 5), strict=True):
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        lines = [json.dumps(row | {"cpu_seconds": 60 * minutes * row["step"]}) for row in rows]
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    write_report(folders)
    write_report(folders[1:])
    [(unit, curves), (unit_of_one, curves_of_one)] = drawn
    assert (unit, unit_of_one) == ("CPU minutes", "training steps")
    places = {name: [at for at, _ in pooled] for name, (pooled, _) in curves.items()}
    assert places == {"toy": [0, 3], "other": [0, 5]}
    assert [at for at, _ in curves_of_one["other"][0]] == [0, 1]


def test_without_matplotlib_the_report_says_how_to_get_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = write_report([run(tmp_path / "a", (2,))]).read_text()
    assert "plots need matplotlib: pip install '.[train]'" in text and "curves.png" not in text


def test_a_report_needs_runs(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="at least one run folder"):
        write_report([])
    with pytest.raises(TrainingError, match="holds no training run"):
        write_report([tmp_path])
