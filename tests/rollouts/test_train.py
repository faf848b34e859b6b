"""TRL trains on the output of `fhir-gym dataset`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not installed: pip install '.[train]'")
pytest.importorskip("openai")

from fhir_gym.agents import ChatAgent, LocalAgent
from fhir_gym.cli._app import app
from fhir_gym.fhir import World
from fhir_gym.rollouts import export, run, write_hub_folder, write_rollouts
from fhir_gym.rollouts.dataset import FORMATS, Format, load
from fhir_gym.testing import ChatServer, GoldOverChat

ENV_ID = "FHIRAgent/Appointment-v0"
TASKS = ("01", "02a")
trl: Any = import_module("trl")
MARKED = str(Path(trl.__file__).parent / "chat_templates" / "qwen2_5_training.jinja")
"""A chat template that marks the tokens of the model's turns; its special tokens are those of the tiny model."""

# The training libraries emit many warnings that differ between versions.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def files(hospital: World, tmp_path_factory: pytest.TempPathFactory) -> dict[Format, Path]:
    """A dataset in each format, which the command line makes from chat rollouts."""
    folder = tmp_path_factory.mktemp("sft")
    jobs = [(ENV_ID, key, number) for key in TASKS for number in range(2)]
    with ChatServer(GoldOverChat(hospital, jobs)) as server:
        for protocol in ("text", "tools"):
            agent = ChatAgent("scripted", base_url=server.base_url, protocol=protocol)
            running = run(ENV_ID, agent, tasks=TASKS, variations="0-1", world=hospital)
            assert write_rollouts(folder / f"{protocol}.jsonl", running) == len(jobs)
    found = {format: folder / f"{format}-train.jsonl" for format in FORMATS}
    for format, path in found.items():
        source = folder / ("tools.jsonl" if format == "tools" else "text.jsonl")
        app(["dataset", str(source), "--format", format, "--out", str(path)], standalone_mode=False)
    return found


def trainer(model: str, path: Path, format: Format, folder: Path, **settings: Any) -> Any:
    config = trl.SFTConfig(
        output_dir=str(folder),
        max_length=None,
        max_steps=4,
        per_device_train_batch_size=2,
        learning_rate=0.05,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        **settings,
    )
    return trl.SFTTrainer(model=model, args=config, train_dataset=load(path, format))


def marked(format: Format) -> dict[str, Any]:
    return {} if format == "completion" else {"assistant_only_loss": True, "chat_template_path": MARKED}


def said(row: dict[str, Any], format: Format) -> Iterator[str]:
    """Yield the model's turns as the chat template formats them."""
    for message in row["completion" if format == "completion" else "messages"]:
        if message["role"] == "assistant":
            for call in message.get("tool_calls", []):
                yield f'"name": "{call["function"]["name"]}"'
            yield message["content"]


@pytest.mark.parametrize("format", FORMATS)
def test_the_loss_counts_the_models_tokens_and_falls(
    tiny: str, files: dict[Format, Path], tmp_path: Path, format: Format
) -> None:
    training = trainer(tiny, files[format], format, tmp_path, **marked(format))
    tokenizer = training.processing_class
    rows = list(load(files[format], format))
    assert len(training.train_dataset) == len(rows)
    for prepared, row in zip(training.train_dataset, rows, strict=True):
        labels = training.data_collator([prepared])["labels"][0].tolist()
        learnt = tokenizer.decode([label for label in labels if label != -100])
        turns = learnt.split("<|im_end|>")[:-1]
        assert all(text in learnt for text in said(row, format))
        assert len(turns) == sum(m["role"] == "assistant" for m in row.get("messages", row.get("completion")))
        if format != "tools":
            assert [turn.strip() for turn in turns] == [text.strip() for text in said(row, format)]
        assert "HTTP 20" not in learnt and "null" not in learnt
    read = tokenizer.decode([id for prepared in training.train_dataset for id in prepared["input_ids"]])
    assert "HTTP 20" in read and "FINISH" in read
    training.train()
    losses = [entry["loss"] for entry in training.state.log_history if "loss" in entry]
    assert len(losses) == 4 and all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < 0.95 * losses[0]


def test_a_trained_model_is_a_local_agent(
    tiny: str, files: dict[Format, Path], tmp_path: Path, hospital: World
) -> None:
    training = trainer(tiny, files["tools"], "tools", tmp_path, **marked("tools"))
    before = LocalAgent(tiny, device="cpu", max_new_tokens=4)
    training.train()
    training.save_model()
    agent = LocalAgent(str(tmp_path), device="cpu", protocol="tools", max_new_tokens=4)
    assert agent._model.fingerprint() != before._model.fingerprint()
    (rollout,) = run(ENV_ID, agent, tasks="01", variations=0, world=hospital, max_steps=2)
    assert rollout.graded and rollout.steps == 2


def test_a_template_without_marks_is_refused(tiny: str, files: dict[Format, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="generation"):
        trainer(tiny, files["messages"], "messages", tmp_path, assistant_only_loss=True)


@pytest.mark.parametrize("format", FORMATS)
def test_a_hub_folder_is_loaded_with_exact_rows(
    format: Format, hospital: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    splits = [
        [*run(ENV_ID, "gold", tasks=TASKS, variations=variations, world=hospital)] for variations in ("0-2", "1000")
    ]
    write_hub_folder([*splits[0], *splits[1]], tmp_path / "out", format)
    found = import_module("datasets").load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    for name, rollouts in zip(("train", "test"), splits, strict=True):
        assert [*found[name]] == [*export(rollouts, format)]
