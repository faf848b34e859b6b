from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sb3_contrib", reason="Stable-Baselines3 is not installed: pip install '.[sb3]'")

from fhir_gym.errors import TrainingError
from fhir_gym.training import sb3_run
from fhir_gym.training.config import make_config
from fhir_gym.training.curriculum import EpisodeChoice
from fhir_gym.training.menu import Templates
from fhir_gym.training.run_folder import Checkpoint, read_run
from fhir_gym.training.sb3 import Sb3Config, given_templates, gold_templates, mirrored_choices, train_sb3
from fhir_gym.training.sb3_run import load_curricula, save_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore")
PACK = "FHIRAgent/Appointment-v0"
SMALL: dict[str, Any] = {
    "env_ids": (PACK,),
    "tasks": ("01", "02a"),
    "train": "0-19",
    "test": "1000-1002",
    "template_variations": "0-9",
    "steps": 256,
    "environments": 4,
    "rollout_steps": 32,
    "batch_size": 64,
    "evaluate_every": 0,
    "checkpoint_every": 128,
}


def small(**changes: Any) -> Sb3Config:
    return make_config(Sb3Config, SMALL | changes)


def test_training_raises_the_success_on_test_variations(tmp_path: Path) -> None:
    tasks = ("02b", "03", "05")
    train_sb3(small(tasks=tasks, template_variations="0-29", steps=2_048, learning_rate=3e-3), tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert run.evaluation_names() == ["ceiling", "random", "test", "mirrored"]
    last = {name: run.evaluations(name)[-1][1].success for name in run.evaluation_names()}
    assert last["random"] < 0.6 < last["test"] <= last["ceiling"]
    assert (tmp_path / "run" / "report.md").exists()


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_unmasked_algorithms_run(tmp_path: Path, algorithm: str) -> None:
    config = small(algorithm=algorithm)
    _interrupt(config, tmp_path)
    train_sb3(config, tmp_path)
    assert read_run(tmp_path).evaluations()[-1][0] == 256


@pytest.mark.slow
@pytest.mark.usefixtures("without_plots")
def test_environments_run_in_processes(tmp_path: Path) -> None:
    train_sb3(small(processes=True, environments=2), tmp_path)
    assert read_run(tmp_path).evaluations()[-1][0] == 256


@pytest.mark.usefixtures("without_plots")
def test_the_curve_starts_with_the_untrained_policy(tmp_path: Path) -> None:
    train_sb3(small(evaluate_every=128), tmp_path)
    assert [step for step, _ in read_run(tmp_path).evaluations()] == [0, 128, 256]


@pytest.mark.usefixtures("without_plots")
def test_held_out_tasks_and_phrasings_are_only_evaluated(tmp_path: Path) -> None:
    train_sb3(small(tasks=("01", "02a", "02b"), held_out=("02b",), held_out_phrasing=0), tmp_path)
    run = read_run(tmp_path)
    assert {task.task for task in run.evaluations("held_out")[-1][1].tasks} == {"02b"}
    assert {task.task for task in run.evaluations("phrasing")[-1][1].tasks} == {"01", "02a"}
    sources = Templates.load(tmp_path / "templates.json").sources
    assert {source.task for source in sources} == {"01", "02a"}
    assert 0 not in {source.phrasing for source in sources}
    curriculum = small(tasks=("01", "02b"), held_out=("02b",), held_out_phrasing=0).make_curriculum()
    drawn = [curriculum.draw() for _ in range(50)]
    assert {choice.task for choice in drawn} == {"01"}
    assert 0 not in {choice.phrasing for choice in drawn}
    assert None not in {choice.phrasing for choice in drawn}


def test_the_brief_phrasing_can_be_held_out() -> None:
    config = small(tasks=("01",), held_out_phrasing="brief")
    assert {choice.phrasing for choice in config.test_choices(config.train_tasks(), "brief")} == {"brief"}
    curriculum = config.make_curriculum()
    assert {curriculum.draw().phrasing for _ in range(50)} == {0, 1, 2}


@pytest.mark.parametrize("held_out", [{"held_out": ("02a",)}, {"held_out_phrasing": 0}])
def test_templates_of_held_out_tasks_and_phrasings_are_refused(tmp_path: Path, held_out: dict[str, Any]) -> None:
    path = tmp_path / "templates.json"
    gold_templates(small()).save(path)
    assert given_templates(small(templates=str(path))).sources
    with pytest.raises(TrainingError, match="holds out this task or phrasing"):
        train_sb3(small(templates=str(path), **held_out), tmp_path / "run")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    train_sb3(small(), folder)
    return folder


@pytest.mark.usefixtures("without_plots")
def test_equal_seeds_give_equal_runs(finished: Path, tmp_path: Path) -> None:
    train_sb3(small(), tmp_path)
    rows = [[_without_cpu(row) for row in read_run(folder).rows] for folder in (finished, tmp_path)]
    assert rows[0] == rows[1]


@pytest.mark.usefixtures("without_plots")
def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    script = (
        "from fhir_gym.training.config import make_config\n"
        "from fhir_gym.training.sb3 import Sb3Config, train_sb3\n"
        f"config = make_config(Sb3Config, {SMALL | {'steps': 512}!r})\n"
        f"train_sb3(config, {str(tmp_path / 'run')!r}, progress=lambda done, *_: print(done, flush=True))\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) >= 256:
                os.kill(child.pid, signal.SIGKILL)
                break
    before = read_run(tmp_path / "run")
    train_sb3(small(steps=512), tmp_path / "run")
    after = read_run(tmp_path / "run")
    assert before.metrics()
    steps = [row["step"] for row in after.metrics()]
    assert steps == [128, 256, 384, 512]
    assert [step for step, _ in after.evaluations()] == [512]
    assert after.evaluation_names().count("random") == 1


class _Evil:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize("algorithm", ["maskable_ppo", "dqn"])
def test_a_checkpoint_cannot_run_code(tmp_path: Path, algorithm: str) -> None:
    evil = pickle.dumps(_Evil(tmp_path / "evil"))
    run = tmp_path / "run"
    _interrupt(small(algorithm=algorithm), run)
    for checkpoint in (run / "checkpoints").iterdir():
        assert pickle.loads(evil) is None and (tmp_path / "evil").is_dir()
        (tmp_path / "evil").rmdir()
        for name in ("state.pkl", "replay.pkl", "replay.pkl.gz", "torch.pt"):
            (checkpoint / name).write_bytes(evil)
        with zipfile.ZipFile(checkpoint / "model.zip") as file:
            parts = {name: file.read(name) for name in file.namelist()}
        data = json.loads(parts["data"])
        code = {":type:": "evil", ":serialized:": base64.b64encode(evil).decode()}
        parts["data"] = json.dumps(dict.fromkeys(data, code)).encode()
        with zipfile.ZipFile(checkpoint / "model.zip", "w") as file:
            for name, content in parts.items():
                file.writestr(name, content)
    train_sb3(small(algorithm=algorithm), run)
    assert read_run(run).evaluation_names()[-1] == "mirrored"
    assert not (tmp_path / "evil").exists()


@pytest.mark.usefixtures("without_plots")
def test_a_checkpoint_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    config, run = small(algorithm="dqn"), tmp_path / "run"
    _interrupt(config, run)
    (path,) = (run / "checkpoints").iterdir()
    vec = sb3_run._make_vec_env(config, Templates.load(run / "templates.json"), None)
    model = sb3_run._make_model(config, vec, Checkpoint(128, path))
    again = tmp_path / "again"
    again.mkdir()
    save_checkpoint(again, model, load_curricula(path))
    vec.close()
    assert json.loads((again / "sb3.json").read_text()) == json.loads((path / "sb3.json").read_text())
    for name in ("replay.npz", "model.zip"):
        with zipfile.ZipFile(again / name) as new, zipfile.ZipFile(path / name) as old:
            arrays = [entry for entry in old.namelist() if entry.endswith((".npy", ".pth"))]
            assert arrays and all(new.read(entry) == old.read(entry) for entry in arrays)
    for file in ("sb3.json", "model.zip", "replay.npz"):
        content = (path / file).read_bytes()
        (path / file).write_bytes(pickle.dumps(_Evil(tmp_path / "evil")))
        with pytest.raises(TrainingError, match=r"the checkpoint .* is unusable"):
            train_sb3(config, run)
        (path / file).write_bytes(content)
    assert not (tmp_path / "evil").exists()


def _interrupt(config: Sb3Config, run: Path) -> None:
    """Train up to a checkpoint."""

    def stop(done: int, *_: object) -> None:
        if done >= 192:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_sb3(config, run, progress=stop)


def test_a_finished_run_is_left_as_it_is(finished: Path) -> None:
    content = (finished / "metrics.jsonl").read_bytes()
    train_sb3(small(), finished)
    assert (finished / "metrics.jsonl").read_bytes() == content
    with pytest.raises(TrainingError, match="steps is 256 there and 512 here"):
        train_sb3(small(steps=512), finished)


def test_mirrored_episodes_are_evaluated_in_their_own_pack() -> None:
    choices = mirrored_choices([EpisodeChoice(PACK, "01", 1000)])
    assert choices == [EpisodeChoice("FHIRAgent/AppointmentMirrored-v0", "01", 1000)]


def _without_cpu(row: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in row.items() if name != "cpu_seconds"}, sort_keys=True)
