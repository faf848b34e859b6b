from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("peft", reason="peft is not installed: pip install '.[train]'")

from fhir_gym.agents import Transformer
from fhir_gym.rollouts import run
from fhir_gym.training.config import TaskName
from fhir_gym.training.diagnostics import TrainingEpisode
from fhir_gym.training.grpo import TokenSequence, groups, recipe
from fhir_gym.training.grpo.config import GrpoConfig
from fhir_gym.training.grpo.recipe import train_grpo
from fhir_gym.training.policy_rollouts import make_agent, no_progress
from fhir_gym.training.run_folder import RunFolder, read_run
from fhir_gym.training.sft import SftConfig, train_sft
from fhir_gym.training.token_tree import TokenTree
from fhir_gym.training.tuner import Tuner
from tests.training.grpo_run import make_config, play_with_rewards_by_tokens

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "write_report", lambda folders: None)


def group(seed: int, size: int = 5) -> tuple[list[TokenSequence], list[float]]:
    """Sequences that share beginnings of different lengths, and advantages that add up to 0."""
    draw = random.Random(seed)
    completions = [[7, 8, *(draw.choice([9, 10]) for _ in range(draw.randrange(2, 9)))] for _ in range(size)]
    sequences = [
        TokenSequence([3, 4, 5, 6], completion, [int(place % 4 != 2) for place in range(len(completion))])
        for completion in completions
    ]
    rewards = np.array([draw.random() for _ in range(size)])
    return sequences, list(map(float, rewards - rewards.mean()))


def test_evaluations_have_the_context_window_of_training(tiny: str) -> None:
    model = Transformer(tiny, device="cpu")
    assert model.context_tokens is not None and model.context_tokens > 700

    def window(**settings: Any) -> Any:
        return make_agent(make_config(tiny, max_tokens=700, **settings), model).settings["context_tokens"]

    assert window(shape="groups") == window(shape="rollout_func") == 700
    assert window(shape="environment_factory") == model.context_tokens


@pytest.mark.parametrize("seed", range(4))
def test_a_tree_has_the_gradient_of_its_separate_sequences(tiny: str, seed: int) -> None:
    torch = import_module("torch")
    tuner = Tuner(make_config(tiny, shape="groups"), steps=1)
    sequences, advantages = group(seed)
    tree = TokenTree.of(sequences, advantages)
    assert len(tree.ids) < tree.tokens and tree.written == sum(sum(sequence.mask) for sequence in sequences)
    weights = list(tuner._network.parameters())
    tree_gradient = torch.autograd.grad(tuner._tree_loss(tree, 0.7, 0.0, []), weights, allow_unused=True)
    loss: Any = 0.0
    for sequence, advantage in zip(sequences, advantages, strict=True):
        ids = torch.tensor([sequence.prompt_ids + sequence.completion_ids])
        logits = tuner._network(input_ids=ids).logits[0] / 0.7
        chosen = torch.log_softmax(logits, -1)[:-1].gather(-1, ids[0, 1:, None])[:, 0]
        mask = torch.tensor([0] * (len(sequence.prompt_ids) - 1) + sequence.mask)
        loss = loss - advantage * (chosen * mask).sum()
    gradient = torch.autograd.grad(loss, weights, allow_unused=True)
    largest = max(float(part.abs().max()) for part in gradient)
    assert largest > 1e-3
    for ours, theirs in zip(tree_gradient, gradient, strict=True):
        assert torch.allclose(ours, theirs, atol=largest * 1e-4)


def test_a_large_group_is_split_into_small_trees_with_the_same_gradient(tiny: str) -> None:
    torch = import_module("torch")
    tuner = Tuner(make_config(tiny, shape="groups"), steps=1)
    sequences, advantages = group(3)
    whole = TokenTree.of(sequences, advantages)
    parts = TokenTree.split(sequences, advantages, len(whole.ids) - 1)
    assert len(parts) > 1 and max(len(part.ids) for part in parts) < len(whole.ids)
    assert len(TokenTree.split(sequences, advantages, 1)) == len(sequences)
    assert (sum(part.written for part in parts), sum(part.tokens for part in parts)) == (whole.written, whole.tokens)
    weights = list(tuner._network.parameters())
    expected = torch.autograd.grad(tuner._tree_loss(whole, 1.0, 0.0, []), weights, allow_unused=True)
    loss = sum(tuner._tree_loss(part, 1.0, 0.0, []) for part in parts)
    largest = max(float(part.abs().max()) for part in expected)
    for ours, theirs in zip(torch.autograd.grad(loss, weights, allow_unused=True), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=largest * 1e-4)


def test_a_part_whose_episodes_have_the_mean_reward_teaches_nothing(tiny: str) -> None:
    """Regression: such a part of a split group has no token to learn."""
    sequences, _ = group(1, size=4)
    parts = [TokenTree.of(sequences[:2], [0.0, 0.0]), TokenTree.of(sequences[2:], [1.0, -1.0])]
    alone, both = (Tuner(make_config(tiny, shape="groups", lora_rank=4), steps=1) for _ in range(2))
    figures = both.policy_step(parts, 1.0)
    assert figures["grad_norm"] > 0
    as_many_written = replace(parts[1], writers=[parts[0].written, *parts[1].writers[1:]])
    assert alone.policy_step([as_many_written], 1.0) == figures


def test_beta_draws_the_policy_back_to_the_start_model(tiny: str) -> None:
    torch = import_module("torch")
    tuner = Tuner(make_config(tiny, shape="groups", lora_rank=4, learning_rate=1e-2, warmup=0), steps=100)
    sequences, advantages = group(2)
    for _ in range(5):
        tuner.policy_step([TokenTree.of(sequences, advantages)], 0.7)
    tree = TokenTree.of(sequences, advantages)
    weights = [weight for weight in tuner._network.parameters() if weight.requires_grad]
    ours = torch.autograd.grad(tuner._tree_loss(tree, 0.7, 0.3, []), weights)
    loss: Any = 0.0
    for sequence, advantage in zip(sequences, advantages, strict=True):
        ids = torch.tensor([sequence.prompt_ids + sequence.completion_ids])
        mask = torch.tensor([0] * (len(sequence.prompt_ids) - 1) + sequence.mask)

        def chosen(ids: Any = ids) -> Any:
            logits = tuner._network(input_ids=ids).logits[0] / 0.7
            return torch.log_softmax(logits, -1)[:-1].gather(-1, ids[0, 1:, None])[:, 0]

        with torch.no_grad(), tuner._network.disable_adapter():
            start = chosen()
        ratio = start - (policy := chosen())
        loss = loss + ((0.3 * (ratio.exp() - ratio - 1) - advantage * policy) * mask).sum()
    theirs = torch.autograd.grad(loss, weights)
    largest = max(float(part.abs().max()) for part in theirs)
    assert all(torch.allclose(*parts, atol=largest * 1e-4) for parts in zip(ours, theirs, strict=True))
    without_variance = TokenTree.of(sequences, [0.0] * len(sequences))
    far, *_, near = (tuner.policy_step([without_variance], 0.7, 1.0)["kl"] for _ in range(20))
    assert far > 1e-3 and near < far / 4


@pytest.mark.parametrize(("successes", "taught"), [((0, 0), True), ((1, 1), False), ((None, None), False)])
def test_beta_teaches_groups_that_fail_as_a_whole(
    tiny: str, tmp_path: Path, successes: Sequence[int | None], taught: bool
) -> None:
    episodes = [
        TrainingEpisode(
            TaskName("pack", "01"),
            0,
            reward=success,
            success=None if success is None else bool(success),
            stop_reason="finished",
        )
        for success in successes
    ]
    for beta in (0.0, 0.1):
        config = make_config(tiny, shape="groups", lora_rank=4, beta=beta)
        with RunFolder(tmp_path / str(beta), recipe="grpo", config=config) as folder:
            assert groups.GroupRun(config, folder, no_progress)._is_taught(episodes) == (taught and beta > 0)


def test_what_all_members_wrote_is_not_learnt() -> None:
    sequences, advantages = group(1)
    tree = TokenTree.of(sequences, advantages)
    ids = [tree.ids[node] for node in tree.learnt()]
    assert ids and 7 not in ids and 8 not in ids


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ((0.9, 0.9, 0.5, 1.0), (-1, -1, -1, 3)),  # a near miss is a failure beside a success
        ((0.9, 0.5, 0.5, 0.5), (3, -1, -1, -1)),  # without a success, the rewards count
        ((0.9, 0.9), (0, 0)),
        ((1.0, 1.0), (0, 0)),
    ],
)
def test_success_alone_counts_in_a_group_that_has_one(rewards: Sequence[float], expected: Sequence[float]) -> None:
    (gold,) = run("FHIRAgent/Appointment-v0", "gold", tasks="02a", variations=0)
    group = [gold.model_copy(update={"reward": reward, "success": reward == 1}) for reward in rewards]
    scale = 3**-0.5 if len(rewards) == 4 else 1
    assert groups._advantages(group) == pytest.approx([value * scale for value in expected], rel=1e-2)


def test_groups_without_variance_are_drawn_again_and_teach_nothing(tiny: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"shape": "groups", "steps": 1, "evaluate_start": False, "evaluate_every": 0}
    train_grpo(make_config(tiny, refills=2, lora_rank=4, **settings), tmp_path / "run")
    (metrics,) = read_run(tmp_path / "run").metrics()
    assert (metrics["episodes"], metrics["groups_without_variance"]) == (12, 1.0), "all three draws of two groups"
    assert "loss" not in metrics
    before = Transformer(tiny, device="cpu").fingerprint()
    assert Transformer(str(tmp_path / "run" / "model"), device="cpu").fingerprint() == before


def test_the_metrics_of_a_step(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "play_choices", play_with_rewards_by_tokens)
    monkeypatch.setattr(groups, "MOST_NODES", 1_000_000)
    config = make_config(tiny, shape="groups", steps=2, evaluate_start=False, evaluate_every=0, lora_rank=4)
    train_grpo(config, tmp_path / "run")
    first, second = read_run(tmp_path / "run").metrics()
    assert first["groups_trained"] == 2 and first["tokens_trained"] < first["tokens_of_trained_episodes"]
    assert abs(first["kl"]) < 1e-6 < second["kl"]
    assert first["entropy"] > 0 and 0 <= first["environment_share"] < 1
    assert first.keys() >= {"loss", "grad_norm", "learning_rate", "invalid_rate", "tokens_written", "tokens"}


def test_the_model_reads_the_same_tokens_in_examples_evaluations_and_training(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wording, the form of observations and the missing action format are those of the config everywhere."""
    settings: dict[str, Any] = {
        "phrasing": "brief",
        "held_out_phrasing": 0,
        "observations": "compact",
        "action_format": False,
        "system": "",
        "tasks": ("02a",),
        "train": "3",
    }
    prompts: list[list[int]] = []
    learnt = Tuner.policy_step

    def record(self: Tuner, trees: list[TokenTree], *settings: float) -> dict[str, float]:
        prompts.extend(tree.ids for tree in trees)
        return learnt(self, trees, *settings)

    monkeypatch.setattr(groups, "play_choices", play_with_rewards_by_tokens)
    monkeypatch.setattr(Tuner, "policy_step", record)
    config = make_config(tiny, shape="groups", steps=1, **settings)
    train_grpo(config, tmp_path / "grpo")
    (gold,) = run("FHIRAgent/Appointment-v0", "gold", tasks="02a", variations=3, phrasing="brief")
    text = Tuner(config, steps=1).transformer.decode(prompts[0])
    assert text.startswith(f"<|im_start|>user\n{gold.prompt}<|im_end|>\n<|im_start|>assistant\n")
    names = [row["evaluation"] for row in read_run(tmp_path / "grpo").rows if "evaluation" in row]
    assert names == ["test", "phrasing", "test", "phrasing", "train"]
    examples: list[Any] = []
    step = Tuner.step

    def record_examples(self: Tuner, batch: list[Any]) -> float:
        examples.extend(batch)
        return step(self, batch)

    monkeypatch.setattr(Tuner, "step", record_examples)
    monkeypatch.setattr("fhir_gym.training.sft.write_report", lambda folders: None)
    common = {name: getattr(config, name) for name in ("model", "device", "test", "max_new_tokens", "max_steps")}
    train_sft(SftConfig(**common, **settings, steps=1, batch_size=1), tmp_path / "sft")
    assert text.startswith(Tuner(config, steps=1).transformer.decode(examples[0].ids[: examples[0].learnt[0]]))


def test_a_recipe_that_draws_no_wordings_needs_one() -> None:
    assert GrpoConfig(model="m", held_out_phrasing=1).phrasing is None
    with pytest.raises(ValueError, match="held_out_phrasing needs phrasing"):
        SftConfig(model="m", held_out_phrasing=1)
