from __future__ import annotations

from pathlib import Path

import pytest

from fhir_gym.training import Evaluation, Outcome, RunFolder, TrainingConfig
from tests.cli.conftest import Cli


def test_a_wrong_config_is_one_line(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "sft.toml"
    path.write_text('model = "m"\nstep = 3')
    done = cli("train", "sft", "--config", path, "--out", tmp_path / "run")
    assert done.code == 2 and done.err.count("\n") == 1
    assert "sft.toml: unknown field 'step'; did you mean 'steps'? Fields: action_format" in done.err
    path.write_text('train = "990-1010"\nmodel = "m"')
    done = cli("train", "expert", "--config", path, "--out", tmp_path / "run")
    assert done.code == 2 and "test variations are never trained on" in done.err
    assert not (tmp_path / "run").exists()


def test_a_missing_package_names_the_pip_command(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    path = tmp_path / "sft.toml"
    path.write_text('model = "m"')
    done = cli("train", "sft", "--config", path, "--out", tmp_path / "run")
    assert done.code == 1 and "fine-tuning needs the package torch: pip install '.[local,train]'" in done.err


def test_an_interrupted_training_says_what_is_kept(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fhir_gym.training.sb3.train_sb3", interrupted)
    path, out = tmp_path / "sb3.toml", tmp_path / "run"
    path.write_text("steps = 1")
    done = cli("train", "sb3", "--config", path, "--out", out)
    assert done.code == 130
    assert done.err == f"interrupted: {out} keeps the checkpoints; the same command continues from the last of them\n"


def test_the_report_command_rewrites_the_report(cli: Cli, tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", recipe="toy", config=TrainingConfig()) as folder:
        folder.log_evaluation(1, Evaluation.from_outcomes([Outcome("pack", "01", 1000, True)]))
    done = cli("train", "report", tmp_path / "run")
    assert done.code == 0 and (tmp_path / "run" / "report.md").is_file()
    done = cli("train", "report", tmp_path)
    assert done.code == 1 and "holds no training run" in done.err
