"""Sampling with kept keys and values gives the same texts as sampling without them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from fhir_gym.agents import LocalAgent, prefix_reuse
from fhir_gym.agents.prefix_reuse import PrefixReuse, can_reuse
from fhir_gym.agents.transformer import Prompt, Transformer
from fhir_gym.fhir import World
from fhir_gym.rollouts import run

ENV_ID = "FHIRAgent/Appointment-v0"


def transformer(folder: str, constant: bool) -> Transformer:
    loaded = Transformer(folder, device="cpu")
    return Transformer.around(loaded._model, loaded.tokenizer, constant=constant)


def tokens_read(monkeypatch: pytest.MonkeyPatch, model: Transformer) -> list[int]:
    """Count the tokens of each forward pass."""
    counts: list[int] = []
    forward = model._model.forward

    def counted(*given: Any, **named: Any) -> Any:
        counts.append(named["input_ids"].numel())
        return forward(*given, **named)

    monkeypatch.setattr(model._model, "forward", counted)
    return counts


def test_episodes_are_the_same_with_and_without_reuse(tiny: str, hospital: World) -> None:
    lines = []
    for constant in (False, True):
        agent = LocalAgent(transformer(tiny, constant), temperature=1.0, max_new_tokens=8, logprobs=True, batch_size=4)
        done = run(ENV_ID, agent, tasks=["01", "02a"], variations="0-1", repeats=2, world=hospital, max_steps=3)
        rollouts = sorted(done, key=lambda rollout: (rollout.task.key, rollout.task.variation, rollout.repeat))
        lines.append([[turn.reply for turn in rollout.turns] for rollout in rollouts])
    for plain, reused in zip(*lines, strict=True):
        for expected, other in zip(plain, reused, strict=True):
            assert expected is not None and other is not None
            assert expected.extra["completion_ids"] == other.extra["completion_ids"]
            assert expected.extra["logprobs"] == pytest.approx(other.extra["logprobs"], abs=1e-3)


def test_each_token_is_read_once(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer(tiny, True)
    counts = tokens_read(monkeypatch, model)
    ids = model.encode("GET /Patient?family=Lee")
    (first,) = model.sample([Prompt(ids, model.generator(1))], max_tokens=4)
    assert counts == [len(ids), 1, 1, 1]
    counts.clear()
    longer = [*ids, *first.ids, *model.encode("HTTP 200")]
    model.sample([Prompt(longer, model.generator(1)), Prompt(longer, model.generator(2))], max_tokens=1)
    assert counts == [len(longer) - len(ids) - 3, 1]  # the repeat of a prompt reads only its last token


def test_the_kept_sequences_are_bounded(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer(tiny, True)
    monkeypatch.setattr(prefix_reuse, "_MAX_BYTES", 1)
    for text in ("GET /Patient", "FINISH"):
        model.sample([Prompt(model.encode(text), model.generator(1))], max_tokens=2)
    assert isinstance(model._reuse, PrefixReuse) and len(model._reuse._kept) == 1


def test_only_ordinary_attention_can_be_reused(tiny: str, tmp_path: Path) -> None:
    transformers: Any = import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    assert can_reuse(model)
    model.config.layer_types = ["full_attention", "sliding_attention"]
    assert not can_reuse(model)
