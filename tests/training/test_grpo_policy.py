from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not installed: pip install '.[train]'")

from fhir_gym.agents import LocalAgent
from fhir_gym.episode import Episode
from fhir_gym.errors import ArgumentError, InfraError, TrainingError
from fhir_gym.fhir import World
from fhir_gym.rollouts import Rollout, run
from fhir_gym.training.curriculum import EpisodeChoice, other_phrasings
from fhir_gym.training.grpo.episodes import EpisodeRows, OpenConfigs, make_row
from fhir_gym.training.grpo.policy import PolicyRollouts
from fhir_gym.training.token_tree import TokenSequence
from tests.agents.tiny import FORGETFUL, save
from tests.training.grpo_tools import (
    END,
    ENV_ID,
    NAMES,
    capture,
    make_curriculum,
    make_trainer,
    said_texts,
    script,
    weights,
)

# The training libraries emit many warnings that differ between versions.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def configs(hospital: World) -> Iterator[OpenConfigs]:
    with OpenConfigs(world=hospital, reward="dense", max_steps=3) as found:
        yield found


def policy(configs: OpenConfigs, seed: int = 0, **settings: Any) -> PolicyRollouts:
    given: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 8, "observation_chars": 500} | settings
    return PolicyRollouts(configs, partial(LocalAgent, **given), seed)


def trainer_of(tiny: str, out: Path, rollouts: PolicyRollouts, rows: EpisodeRows, **settings: Any) -> Any:
    steps = settings.get("max_steps", 1)
    return make_trainer(
        tiny, out, rows.dataset(2 * steps), rollout_func=rollouts, reward_funcs=rollouts.rewards, **settings
    )


def replayed_reward(rollout: Rollout, config: Any) -> float:
    """The reward of the same texts in a new episode."""
    with Episode(config, task=rollout.task.key, variation=rollout.task.variation) as episode:
        episode.start()
        reward = 0.0
        for turn in rollout.turns:
            if turn.reply is None or turn.reply.kind == "action":
                reward = episode.step(turn.action).reward
            else:
                reward = episode.step("").reward
        return reward if episode._verdict is not None else episode.truncate().reward


SCRIPTS = [
    [f"GET /Patient?_count=1{END}", f"FINISH([]){END}"],
    ["GET /Pat", f"FINISH([1, 2]){END}"],  # the first reply is cut off
    [f"Hm.{END}", f"GET /Slot?_count=2{END}", f"GET /Slot?_count=3{END}"],  # ends at the step limit
    [f"FINISH([]){END}"],
]


def test_the_masks_cover_exactly_what_the_model_said(
    tiny: str, configs: OpenConfigs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, SCRIPTS)
    rollouts = policy(configs)
    trainer = trainer_of(tiny, tmp_path, rollouts, EpisodeRows(make_curriculum()))
    batches = capture(trainer, monkeypatch)
    trainer.train()
    (batch,) = batches
    assert said_texts(batch, trainer.processing_class) == ["".join(texts) for texts in SCRIPTS]
    reasons = [rollout.stop_reason for rollout in rollouts.rollouts]
    assert reasons == ["finished", "finished", "step_limit", "finished"]
    for rollout, ids, mask in zip(rollouts.rollouts, batch["completion_ids"], batch["completion_mask"], strict=True):
        assert rollout.opening is not None
        read = trainer.processing_class.decode(ids[mask.bool()])
        for turn in rollout.turns[:-1]:
            assert f"<|im_start|>user\n{turn.read}{END}\n<|im_start|>assistant\n" in read
    assert "cut off" in trainer.processing_class.decode(batch["completion_ids"][1])


def test_rewards_are_those_of_a_replay(
    tiny: str, configs: OpenConfigs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hospital: World
) -> None:
    rows = EpisodeRows(make_curriculum())
    choice = rows.choice(0)
    (gold,) = run(ENV_ID, "gold", tasks=choice.task, variations=choice.variation, world=hospital)
    script(monkeypatch, [[f"{turn.action}{END}" for turn in gold.turns], *SCRIPTS[1:]])
    rollouts = policy(configs)
    trainer = trainer_of(tiny, tmp_path, rollouts, rows)
    trainer.train()
    expected = []
    for rollout in rollouts.rollouts:
        config, _ = configs.of(EpisodeChoice(ENV_ID, rollout.task.key, rollout.task.variation, rollout.task.phrasing))
        expected.append(replayed_reward(rollout, config))
    assert expected[0] == 1.0 > max(expected[1:])
    assert [rollout.reward for rollout in rollouts.rollouts] == expected
    assert trainer.state.log_history[0]["reward"] == pytest.approx(sum(expected) / 4)


@pytest.mark.parametrize(("context_tokens", "said"), [(1_500, f"GET /Patient?_count=50{END}"), (600, "")])
def test_a_full_context_window_truncates_the_episode(
    tiny: str, configs: OpenConfigs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context_tokens: int, said: str
) -> None:
    script(monkeypatch, [[f"GET /Patient?_count=50{END}", f"FINISH([]){END}"]])
    rollouts = policy(configs, context_tokens=context_tokens)
    rows = EpisodeRows(make_curriculum(tasks=NAMES[1:2]))
    trainer = trainer_of(tiny, tmp_path, rollouts, rows)
    scored = capture(trainer, monkeypatch)
    trainer.train()
    assert {rollout.stop_reason for rollout in rollouts.rollouts} == {"context_limit"}
    assert {rollout.reward for rollout in rollouts.rollouts} == {0.0}
    assert set(said_texts(scored[0], trainer.processing_class)) == {said}


def test_group_members_share_task_variation_and_phrasing(
    tiny: str, configs: OpenConfigs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, [[f"FINISH([]){END}"]])
    curriculum = make_curriculum(3, phrasings=other_phrasings(NAMES, 0))
    rollouts = policy(configs)
    trainer = trainer_of(tiny, tmp_path, rollouts, EpisodeRows(curriculum), max_steps=3)
    scored = capture(trainer, monkeypatch)
    seen: list[Rollout] = []
    play = rollouts.__call__

    def recorded(*given: Any) -> dict[str, Any]:
        result = play(*given)
        seen.extend(rollouts.rollouts)
        return result

    trainer.rollout_func = recorded
    trainer.train()
    assert len(seen) == 12
    for first, second in zip(seen[::2], seen[1::2], strict=True):
        assert first.task == second.task and first.prompt == second.prompt
        assert first.seed != second.seed
    assert {rollout.task.phrasing for rollout in seen} <= {1, 2}
    for batch in scored:
        prompts = batch["prompt_ids"]
        assert (prompts[0] == prompts[1]).all() and (prompts[2] == prompts[3]).all()


def test_equal_seeds_give_the_same_first_batch(
    tiny: str, configs: OpenConfigs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for seed in (4, 4, 5):
        rollouts = policy(configs, seed=seed, max_new_tokens=4)
        trainer = trainer_of(tiny, tmp_path, rollouts, EpisodeRows(make_curriculum()), seed=seed)
        batches = capture(trainer, monkeypatch)
        trainer.train()
        found.append([batches[0][name].tolist() for name in ("prompt_ids", "completion_ids", "tool_mask")])
    assert found[0] == found[1] != found[2]


def failing(monkeypatch: pytest.MonkeyPatch, tasks: set[int]) -> None:
    """Let the server fail in the n-th episodes of a batch."""
    count = iter(range(100))
    start = Episode.start

    def failing_start(self: Episode) -> str:
        if next(count) in tasks:
            raise InfraError("the server is down")
        return start(self)

    monkeypatch.setattr(Episode, "start", failing_start)


def test_a_failing_server_yields_no_gradient(
    tiny: str, configs: OpenConfigs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, {0, 1, 2, 3})
    rollouts = policy(configs)
    trainer = trainer_of(tiny, tmp_path, rollouts, EpisodeRows(make_curriculum()))
    batches = capture(trainer, monkeypatch)
    before = weights(trainer.model)
    trainer.train()
    after = weights(trainer.model)
    assert all((before[name] == after[name]).all() for name in before)
    assert batches[0]["advantages"].tolist() == [0.0] * 4
    assert [rollout.stop_reason for rollout in rollouts.rollouts] == ["infra_error"] * 4


def test_one_failure_is_excluded_from_its_group(
    tiny: str, configs: OpenConfigs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, {2})
    create = f'POST /Patient\n{{"resourceType": "Patient"}}{END}'
    script(monkeypatch, [[f"FINISH([]){END}"], [create, f"FINISH([]){END}"], [f"FINISH([]){END}"]])
    rewards = iter([0.0, 1.0, 0.5])
    rollouts = policy(configs)
    monkeypatch.setattr("fhir_gym.tasks.Verdict.reward", lambda self, rule: next(rewards))
    trainer = trainer_of(tiny, tmp_path, rollouts, EpisodeRows(make_curriculum()), num_generations=4)
    batches = capture(trainer, monkeypatch)
    trainer.train()
    advantages = batches[0]["advantages"].tolist()
    own = {rollout.reward: advantage for rollout, advantage in zip(rollouts.rollouts, advantages, strict=True)}
    assert own[None] == 0.0
    assert own[0.5] == pytest.approx(0.0, abs=1e-3), "the baseline is the mean of the graded episodes"
    assert own[1.0] == pytest.approx(-own[0.0]) and own[1.0] > 0.9


def test_a_template_that_changes_messages_is_refused(
    hospital: World, tmp_path: Path, configs: OpenConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, [[f"hello{END}", f"hello again{END}", f"FINISH([]){END}"]])
    rollouts = policy(configs)
    trainer = trainer_of(save(tmp_path / "model", FORGETFUL), tmp_path, rollouts, EpisodeRows(make_curriculum()))
    with pytest.raises(TrainingError, match="changes earlier messages"):
        trainer.train()


def test_test_variations_are_refused(tiny: str, configs: OpenConfigs, tmp_path: Path) -> None:
    datasets: Any = import_module("datasets")
    dataset = datasets.Dataset.from_list([make_row(EpisodeChoice(ENV_ID, "01", 1_000))] * 2)
    rollouts = policy(configs)
    trainer = make_trainer(tiny, tmp_path, dataset, rollout_func=rollouts, reward_funcs=rollouts.rewards)
    with pytest.raises(ArgumentError, match="never trained on"):
        trainer.train()


def test_prompts_that_name_no_episode_are_refused(tiny: str, configs: OpenConfigs, tmp_path: Path) -> None:
    datasets: Any = import_module("datasets")
    rollouts = policy(configs)
    dataset = datasets.Dataset.from_list([{"prompt": "Book it."}] * 2)
    trainer = make_trainer(tiny, tmp_path, dataset, rollout_func=rollouts, reward_funcs=rollouts.rewards)
    with pytest.raises(TrainingError, match="EpisodeRows"):
        trainer.train()


def test_several_actions_of_one_reply_are_counted_once(hospital: World, tiny: str) -> None:
    (rollout,) = run(ENV_ID, "idle", tasks="01", variations=0, world=hospital)
    assert TokenSequence.of(rollout, 7) == TokenSequence([7], [7], [0])


def test_rows_are_drawn_once_and_in_order() -> None:
    rows = EpisodeRows(make_curriculum(1))
    dataset = rows.dataset(8)
    later = dataset[5]
    assert rows.curriculum.drawn == 6
    assert dataset[5] == later and rows.curriculum.drawn == 6
    state = rows.state_dict()
    expected = [dataset[number] for number in range(8)]
    again = EpisodeRows(make_curriculum(2))
    again.load_state_dict(state)
    assert [again.dataset(8)[number] for number in range(8)] == expected
