from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from fhir_gym.agents import LocalAgent
from fhir_gym.agents.context_window import shorten
from fhir_gym.agents.transformer import Transformer
from fhir_gym.errors import ArgumentError, InfraError, TrainingError
from fhir_gym.fhir import World
from fhir_gym.rollouts import run, write_rollouts
from fhir_gym.training import Evaluation, RunFolder, read_run
from fhir_gym.training import sft as recipe
from fhir_gym.training.examples import batches, make_example
from fhir_gym.training.sft import SftConfig, train_sft
from fhir_gym.training.tuner import Tuner, release_memory
from tests.agents.tiny import FORGETFUL, save

ENV_ID = "FHIRAgent/Appointment-v0"

pytestmark = pytest.mark.filterwarnings("ignore")  # the training libraries emit warnings that differ between versions


class Killed(BaseException):
    pass


def config(model: str, **fields: Any) -> SftConfig:
    given: dict[str, Any] = {
        "model": model,
        "device": "cpu",
        "tasks": ("09b", "02a"),
        "train": "0-2",
        "test": "1000",
        "steps": 4,
        "batch_size": 2,
        "learning_rate": 0.01,
        "max_new_tokens": 4,
        "max_steps": 2,
        "max_tokens": 20_000,
        "checkpoint_every": 2,
        "evaluate_start": False,
    }
    return SftConfig(**(given | fields))


def rows(folder: Path) -> list[dict[str, Any]]:
    """The metrics without CPU times."""
    return [{key: value for key, value in row.items() if key != "cpu_seconds"} for row in read_run(folder).rows]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_freed_memory_between_used_blocks_returns_to_the_system() -> None:
    def pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    blocks = [b"x" * 100_000 for _ in range(2_000)]
    filled, blocks = pages(), blocks[::16]
    release_memory()
    assert filled - pages() > 100_000_000 // 4096, len(blocks)


def test_an_example_has_the_tokens_that_the_local_agent_reads_and_writes(tiny: str, hospital: World) -> None:
    model = Transformer(tiny, device="cpu")
    agent = LocalAgent(model, max_new_tokens=6, temperature=1.0)
    (rollout,) = run(ENV_ID, agent, tasks="01", variations=0, world=hospital, max_steps=3)
    ids: list[int] = []
    written = 0
    for turn in rollout.turns:
        assert turn.reply is not None
        read: Any = turn.reply.extra["prompt_ids"]
        wrote: Any = turn.reply.extra["completion_ids"]
        ids, written = [*ids, *read, *wrote], written + len(wrote)
    example = make_example(rollout, model)
    learnt = model.decode([example.ids[at] for at in example.learnt])
    answers = [str(message["content"]) + "<|im_end|>" for message in rollout.messages if message["role"] == "assistant"]
    assert learnt == "".join(answers)
    assert model.decode(example.ids).startswith(model.decode(ids[: example.learnt[0]]))


def test_the_system_prompt_can_be_replaced(tiny: str, hospital: World) -> None:
    model = Transformer(tiny, device="cpu")
    (rollout,) = run(ENV_ID, "gold", tasks="09b", variations=0, world=hospital)
    texts = [model.decode(make_example(rollout, model, system=system).ids) for system in (None, "", "Be brief.")]
    assert [text.count("<|im_start|>system") for text in texts] == [1, 0, 1]
    assert "Be brief." in texts[2] and texts[1] in texts[0]


def test_observations_are_shortened_as_for_the_agent(tiny: str, hospital: World) -> None:
    model = Transformer(tiny, device="cpu")
    (rollout,) = run(ENV_ID, "gold", tasks="02a", variations=0, world=hospital)
    long = rollout.turns[0].observation
    text = model.decode(make_example(rollout, model, observation_chars=600).ids)
    assert len(long) > 600 and shorten(long, 600) in text and long not in text
    assert long in model.decode(make_example(rollout, model).ids)
    agent = LocalAgent(model, max_new_tokens=6, temperature=1.0, observation_chars=20)
    (own,) = run(ENV_ID, agent, tasks="01", variations=0, world=hospital, max_steps=3)
    assert make_example(own, model, observation_chars=20) == make_example(own, model), "what the agent read stays"


def test_a_template_that_changes_earlier_messages_is_refused(tmp_path: Path, hospital: World) -> None:
    model = Transformer(save(tmp_path, FORGETFUL), device="cpu")
    (rollout,) = run(ENV_ID, "gold", tasks="09b", variations=0, world=hospital)
    with pytest.raises(TrainingError, match="changes earlier messages"):
        make_example(rollout, model)


def test_batches_have_every_example_once_an_epoch(tiny: str, hospital: World) -> None:
    model = Transformer(tiny, device="cpu")
    rollouts = run(ENV_ID, "gold", tasks="09b", variations="0-4", world=hospital)
    examples = [make_example(rollout, model) for rollout in rollouts]
    drawn = [next(batches(examples, 5, seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2] and set(drawn[0]) == set(examples)


@pytest.mark.parametrize("rank", [0, 4])
def test_the_loss_covers_the_written_tokens_and_falls(tiny: str, hospital: World, rank: int) -> None:
    if rank:
        pytest.importorskip("peft")
    torch: Any = import_module("torch")
    tuner = Tuner(config(tiny, lora_rank=rank, learning_rate=0.05, warmup=0), steps=20)
    (rollout,) = run(ENV_ID, "gold", tasks="09b", variations=0, world=hospital)
    example = make_example(rollout, tuner.transformer)
    with torch.no_grad():
        logits = tuner.transformer._model(torch.tensor([example.ids])).logits[0].float()
    likely = torch.log_softmax(logits, dim=-1)
    expected = -sum(float(likely[at - 1, example.ids[at]]) for at in example.learnt) / len(example.learnt)
    losses = [tuner.step([example]) for _ in range(6)]
    assert losses[0] == pytest.approx(expected, rel=1e-3)
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.usefixtures("without_plots")
def test_a_killed_run_ends_like_an_uninterrupted_one(
    tiny: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole"
    settings = config(tiny, evaluate_every=2)
    train_sft(settings, whole)
    step = Tuner.step

    def killed(self: Tuner, batch: Any) -> float:
        if self.done == 3:
            raise Killed
        return step(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Tuner, "step", killed)
        with pytest.raises(Killed):
            train_sft(settings, folder)
    train_sft(settings, folder)
    assert rows(folder) == rows(whole) and len(rows(whole)) == 6
    models = [Transformer(str(path / "model"), device="cpu").fingerprint() for path in (folder, whole)]
    assert models[0] == models[1] != Transformer(tiny, device="cpu").fingerprint()
    train_sft(settings, folder)  # a complete run does nothing more
    assert rows(folder) == rows(whole)


@pytest.mark.usefixtures("without_plots")
def test_a_kill_in_an_evaluation_repeats_no_episode(
    tiny: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(tiny, steps=1, evaluate_start=True, test="1000-1001", concurrency=1)

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "log_evaluation", killed)
        with pytest.raises(Killed):
            train_sft(settings, folder)
    (path,) = (folder / "rollouts").iterdir()
    before = path.read_bytes()
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    train_sft(settings, tmp_path / "link")  # another name of the folder
    assert path.read_bytes() == before and before.count(b"\n") == 4
    assert [row["step"] for row in rows(folder) if "evaluation" in row] == [0, 1]


def test_rollout_files_give_the_examples(
    tiny: str, tmp_path: Path, hospital: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rollouts(tmp_path / "train.jsonl", run(ENV_ID, "gold", tasks=["09b", "05"], variations="3-4", world=hospital))
    write_rollouts(tmp_path / "test.jsonl", run(ENV_ID, "gold", tasks="09b", variations="1000", world=hospital))
    settings = config(tiny, rollouts=(str(tmp_path / "train.jsonl"),))
    chosen = [
        (training_rollout.task.key, training_rollout.task.variation)
        for training_rollout in recipe.training_rollouts(settings)
    ]
    assert chosen == [("09b", 3), ("09b", 4)]
    plain = recipe.training_rollouts(config(tiny, plain_letters=True))
    assert {json.dumps(rollout.agent.settings) for rollout in plain} == {'{"plain_letters": true}'}
    settings = config(tiny, rollouts=(str(tmp_path / "test.jsonl"),))
    with pytest.raises(ArgumentError, match="variation 1000 is not in split 'train'"):
        train_sft(settings, tmp_path / "run")
    with pytest.raises(TrainingError, match="no rollout of a training task is successful"):
        train_sft(config(tiny, max_tokens=5), tmp_path / "other")


def test_held_out_tasks_are_evaluated_apart(tiny: str, folder: Path) -> None:
    train_sft(config(tiny, steps=1, held_out=("05",)), folder)
    record = read_run(folder)
    assert record.evaluation_names() == ["test", "held_out"]
    (_, held_out), *_ = record.evaluations("held_out")
    assert [task.task for task in held_out.tasks] == ["05"] and isinstance(held_out, Evaluation)
    report = json.loads((folder / "report.json").read_text())
    assert report["variants"][0]["evaluations"]["held_out"][0]["episodes"] == 1


@pytest.mark.usefixtures("without_plots")
def test_an_audit_plays_changed_variations_at_the_end(tiny: str, folder: Path) -> None:
    train_sft(config(tiny, steps=2, evaluate_every=1, audit=True), folder)
    record = read_run(folder)
    assert [(name, step) for name in record.evaluation_names() for step, _ in record.evaluations(name)][-2:] == [
        ("mirrored", 2),
        ("blind", 2),
    ]
    (_, blind), *_ = record.evaluations("blind")
    assert {task.env_id for task in blind.tasks} == {"FHIRAgent/AppointmentBlind-v0"}


@pytest.mark.usefixtures("without_plots")
def test_packs_without_a_held_out_task_have_no_such_evaluation(tiny: str, folder: Path) -> None:
    train_sft(config(tiny, steps=1, tasks=("02a",), held_out="pack"), folder)
    assert read_run(folder).evaluation_names() == ["test"]


def test_an_evaluation_without_verdicts_is_an_error(tiny: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise InfraError("out of memory")

    monkeypatch.setattr(Transformer, "sample", fail)
    with pytest.raises(InfraError, match="no episode has a verdict: out of memory"):
        train_sft(config(tiny, evaluate_start=True), folder)
    assert rows(folder) == []


@pytest.mark.exhaustive  # the GRPO recipe, whose folder is the same, is killed in each run
def test_kill_9_and_the_same_command_again(tiny: str, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "sft.toml"
    settings = config(tiny, steps=24, checkpoint_every=5).model_dump(mode="json", exclude_none=True)
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()), "utf-8")
    command = [sys.executable, "-m", "fhir_gym", "train", "sft", "--config", str(path), "--out", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        while process.poll() is None and (not folder.exists() or len(read_rows(folder)) < 8):
            time.sleep(0.02)
        process.kill()
    assert process.returncode == -9
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "report written to" in done.stderr
    assert [row["step"] for row in read_rows(folder) if "evaluation" not in row] == list(range(1, 25))
    assert [row["step"] for row in read_rows(folder) if "evaluation" in row] == [24]


def read_rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]
