from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.cli import main
from fhir_gym.errors import FhirGymError, MissingExtraError
from fhir_gym.training.grpo import GrpoConfig
from fhir_gym.training.memory_estimate import memory_estimate
from fhir_gym.training.sft import SftConfig
from fhir_gym.training.tuner import Tuner

pytestmark = pytest.mark.filterwarnings("ignore")  # the training libraries emit warnings that differ between versions


@pytest.mark.parametrize("rank", (0, 4))
def test_weights_and_adapters_are_those_of_the_model(tiny: str, rank: int) -> None:
    config = SftConfig(model=tiny, lora_rank=rank, device="cpu")
    network = Tuner(config, steps=1)._network
    trained = sum(weights.numel() for weights in network.parameters() if weights.requires_grad)
    others = sum(weights.numel() for weights in network.parameters() if not weights.requires_grad)
    estimate = memory_estimate(config)
    assert estimate["gradients and optimizer"] == 12 * trained
    assert (estimate["weights"], estimate.get("adapters")) == (
        4 * (others if rank else trained),
        4 * trained if rank else None,
    )


@pytest.mark.parametrize(
    ("change", "purpose"),
    [
        ({"dtype": "bfloat16"}, "weights"),
        ({"concurrency": 4}, "sampling"),
        ({"max_tokens": 512}, "update"),
        ({"micro_batch": 1}, "update"),
        ({"trl": {"gradient_checkpointing": True}}, "update"),
        ({"trl": {"use_vllm": True}}, "sampling"),
    ],
)
def test_what_saves_memory_lowers_the_estimate(tiny: str, change: dict[str, Any], purpose: str) -> None:
    settings = {"model": tiny, "lora_rank": 4, "shape": "rollout_func"}
    before, after = (memory_estimate(GrpoConfig.model_validate(settings | more)) for more in ({}, change))
    assert after[purpose] < before[purpose]


def test_a_dry_run_prints_what_a_run_needs_and_writes_nothing(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "grpo.toml"
    config.write_text(f'model = "{tiny}"\ntasks = ["02a"]\nshape = "groups"\nlora_rank = 4\n')
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["train", "grpo", "--config", str(config), "--out", str(tmp_path / "run"), "--dry-run"])
    shown = capsys.readouterr().out
    assert "Appointment-v0/02a" in shown and "memory: together" in shown
    assert not (tmp_path / "run").exists()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match="needs the package torch: pip install"):
        memory_estimate(SftConfig(model="m"))


def test_a_model_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for model, where in ((tmp_path, ""), (tmp_path / "model", " is not a folder here and")):
        with pytest.raises(FhirGymError, match=re.escape(f"model '{model}'{where} cannot be loaded: ")):
            memory_estimate(SftConfig(model=str(model)))
