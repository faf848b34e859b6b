from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from math import isnan
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not installed: pip install '.[train]'")

from fhir_gym.agents import LocalAgent, Transformer
from fhir_gym.agents.transformer import Prompt, Sample
from fhir_gym.errors import ArgumentError, FhirGymError, MissingExtraError, UnknownNameError
from fhir_gym.fhir import World
from fhir_gym.integrations.trl import FHIRToolEnv, OpenConfigs, PolicyRollouts, log_episodes, training_rows
from fhir_gym.tasks import get_task
from fhir_gym.training.curriculum import EpisodeChoice
from fhir_gym.training.grpo import RowShape, make_row
from fhir_gym.training.grpo.episodes import read_prompt
from tests.integrations.gold import GoldEpisode, all_tasks, one_task_of_each_pack
from tests.training.grpo_tools import END, make_trainer

# The training libraries emit many warnings that differ between versions.
pytestmark = pytest.mark.filterwarnings("ignore")
ENV_ID = "FHIRAgent/Appointment-v0"
GROUP = 2
Worlds = Callable[[str], World]


@pytest.fixture
def configs() -> Iterator[OpenConfigs]:
    with OpenConfigs() as found:
        yield found


def dataset(episodes: Sequence[GoldEpisode], shape: RowShape) -> Any:
    rows = [make_row(EpisodeChoice(*episode), shape) for episode in episodes]
    return import_module("datasets").Dataset.from_list(rows)


def tool_trainer(
    tiny: str,
    out: Path,
    configs: OpenConfigs,
    episodes: Sequence[GoldEpisode],
    monkeypatch: pytest.MonkeyPatch,
    worlds: Worlds,
) -> Any:
    """A trainer on tool calls, whose model follows the reference solutions and then writes a last text."""
    trainer = make_trainer(
        tiny,
        out,
        dataset(episodes, "environment_factory"),
        template="qwen3.jinja",
        environment_factory=partial(FHIRToolEnv, configs),
        reward_funcs=[log_episodes],
        per_device_train_batch_size=GROUP * len(episodes),
        max_tool_calling_iterations=80,
        max_completion_length=2_000_000,
    )
    live = [episode.policy(worlds(episode.env_id)) for episode in episodes for _ in range(GROUP)]

    def generate(prompt_ids: Sequence[Sequence[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        texts = []
        for policy, ids in zip(live, prompt_ids, strict=True):
            read = last_message(trainer, ids)
            observation = read.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")
            over = observation.startswith("The episode is over") or "The server failed" in observation
            texts.append(f"Done.{END}" if over else call(*policy.tool_call(observation)))
        live[:] = [policy for policy, text in zip(live, texts, strict=True) if "<tool_call>" in text]
        return [trainer.processing_class.encode(text) for text in texts], None

    monkeypatch.setattr(trainer, "_generate_single_turn", generate)
    return without_loss(trainer, monkeypatch)


def last_message(trainer: Any, ids: Sequence[int]) -> str:
    """The last message that the model reads before its turn."""
    text: str = trainer.processing_class.decode(ids)
    return text.rpartition(f"{END}\n<|im_start|>assistant\n")[0].rpartition("<|im_start|>user\n")[2]


def call(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>{END}"


def text_trainer(
    tiny: str,
    out: Path,
    configs: OpenConfigs,
    episodes: Sequence[GoldEpisode],
    monkeypatch: pytest.MonkeyPatch,
    worlds: Worlds,
) -> Any:
    """A trainer on text, whose model follows the reference solutions."""
    rollouts = PolicyRollouts(configs, partial(LocalAgent, temperature=1.0, context_tokens=1_000_000))
    trainer = make_trainer(
        tiny,
        out,
        dataset(episodes, "rollout_func"),
        rollout_func=rollouts,
        reward_funcs=[rollouts.rewards, log_episodes],
        per_device_train_batch_size=GROUP * len(episodes),
    )
    policies = iter([episode.policy(worlds(episode.env_id)) for episode in episodes for _ in range(GROUP)])
    by_seed: dict[int, Any] = {}

    def sample(self: Transformer, prompts: Sequence[Prompt], **_: Any) -> list[Sample]:
        samples = []
        for prompt in prompts:
            seed = prompt.generator.initial_seed()
            if seed not in by_seed:
                by_seed[seed] = next(policies)
            ids = self.encode(by_seed[seed](last_message(trainer, prompt.ids)) + END)
            samples.append(Sample(ids, [-0.5] * len(ids), True))
        return samples

    monkeypatch.setattr(Transformer, "sample", sample)
    return without_loss(trainer, monkeypatch)


def without_loss(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Spare the forward and backward passes, which take most of the time and are tested with the recipe."""
    zero = sum(weight.sum() for weight in trainer.model.parameters()) * 0.0
    monkeypatch.setattr(trainer, "_compute_loss", lambda *_: zero)
    return trainer


def rewards_of(trainer: Any) -> list[float]:
    """The rewards of the batch in the log of the trainer."""
    by_function = trainer._logs["rewards"]
    return next(list(values) for name, values in by_function.items() if name != "log_episodes")


TRAINERS = pytest.mark.parametrize("make", [tool_trainer, text_trainer])


@TRAINERS
def test_gold_succeeds_on_all_packs_in_the_loop_of_the_trainer(
    tiny: str, configs: OpenConfigs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_world: Worlds, make: Any
) -> None:
    episodes = one_task_of_each_pack()
    trainer = make(tiny, tmp_path, configs, episodes, monkeypatch, own_world)
    trainer.train()
    assert rewards_of(trainer) == [1.0] * GROUP * len(episodes)
    assert set(trainer._logs["extra"]["stop_reason"]) == {"finished"}
    assert trainer.state.log_history[0]["episode/success"] == 1.0


@TRAINERS
def test_a_failing_server_is_no_reward_of_zero(
    tiny: str,
    configs: OpenConfigs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own_world: Worlds,
    server_is_down: None,
    make: Any,
) -> None:
    trainer = make(tiny, tmp_path, configs, [GoldEpisode(ENV_ID, "02a")], monkeypatch, own_world)
    trainer.train()
    logs = trainer._logs
    assert all(isnan(value) for values in logs["rewards"].values() for value in values)
    assert list(logs["advantages"]) == [0.0] * GROUP
    assert set(logs["extra"]["stop_reason"]) == {"infra_error"}
    assert all("the FHIR server is down" in text for text in logs["extra"]["explanation"])
    assert trainer.state.log_history[0]["episode/not_graded"] == GROUP


@TRAINERS
def test_the_step_limit_is_told_apart_and_the_verdict_is_logged(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_world: Worlds, make: Any
) -> None:
    with OpenConfigs(max_steps=1) as configs:
        episodes = [GoldEpisode(ENV_ID, "02a"), GoldEpisode(ENV_ID, "01")]
        trainer = make(tiny, tmp_path, configs, episodes, monkeypatch, own_world)
        trainer.train()
    extra = trainer._logs["extra"]
    assert set(extra["stop_reason"]) == {"step_limit"}
    assert len(extra["explanation"]) == 2 * GROUP
    assert all("FINISH" in text for text in extra["explanation"]), extra["explanation"]


def test_an_episode_that_the_model_has_not_finished_is_logged(hospital: World) -> None:
    env, columns, metrics = FHIRToolEnv(world=hospital), dict[str, list[Any]](), dict[str, float]()
    env.reset(ENV_ID, "02a", 0)
    rewards = log_episodes(
        ["I cannot."], log_extra=columns.__setitem__, log_metric=metrics.__setitem__, environments=[env]
    )
    assert (rewards, columns["stop_reason"], metrics["episode/stop/unfinished"]) == ([None], ["unfinished"], 1.0)


def test_rows_name_task_variation_and_phrasing() -> None:
    rows = training_rows(ENV_ID, ["01", "02a"], variations=range(2), phrasings=[0, 1])
    assert [(row["task"], row["variation"], row["phrasing"]) for row in rows][:5] == [
        ("01", 0, 0),
        ("01", 0, 1),
        ("01", 1, 0),
        ("01", 1, 1),
        ("02a", 0, 0),
    ]
    assert len(rows) == 8
    drawn = training_rows(ENV_ID, "01", variations="3", shape="rollout_func")
    assert drawn[0] == make_row(EpisodeChoice(ENV_ID, "01", 3), "rollout_func")
    others = training_rows("FHIRAgent/GeneticTesting-v0", variations=[0])
    assert len(import_module("datasets").concatenate_datasets([rows, others])) == 8 + len(others)


def test_rows_of_the_brief_phrasing_start_episodes_with_it(hospital: World) -> None:
    rows = training_rows(ENV_ID, "01", variations=[0], phrasings=[0, "brief"])
    env = FHIRToolEnv(world=hospital)
    texts = [env.reset(**row) for row in rows]
    assert ["Please register a new patient:" in text for text in texts] == [False, True]
    (row,) = training_rows(ENV_ID, "01", variations=[0], phrasings=["brief"], shape="rollout_func")
    assert read_prompt(row["prompt"]) == EpisodeChoice(ENV_ID, "01", 0, "brief")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"variations": [999, 1000]}, ArgumentError),
        ({"variations": "0-1000"}, ArgumentError),
        ({"variations": "all"}, FhirGymError),
        ({"variations": [0.5]}, FhirGymError),
        ({"variations": [0], "phrasings": [99]}, ArgumentError),
        ({"variations": [0], "tasks": "1"}, UnknownNameError),
        ({"variations": [0], "shape": "tools"}, UnknownNameError),
    ],
)
def test_rows_of_test_variations_and_unknown_names_are_refused(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        training_rows(ENV_ID, **wrong)


def test_rows_without_the_package_datasets_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match="pip install datasets"):
        training_rows(ENV_ID, variations=0)


def is_long(episode: GoldEpisode) -> bool:
    """Whether the gold conversation has hundreds of thousands of tokens."""
    return (get_task(episode.env_id, episode.task).level or 1) > 1


@TRAINERS
@pytest.mark.parametrize(
    ("long", "every"),
    [
        pytest.param(False, 3, marks=pytest.mark.slow),
        pytest.param(False, 1, marks=pytest.mark.exhaustive),
        pytest.param(True, 1, marks=pytest.mark.exhaustive),
    ],
)
def test_gold_succeeds_on_all_tasks(
    tiny: str,
    configs: OpenConfigs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own_world: Worlds,
    make: Any,
    long: bool,
    every: int,
) -> None:
    episodes = [task for task in all_tasks() if is_long(task) == long][::every]
    trainer = make(tiny, tmp_path, configs, episodes, monkeypatch, own_world)
    trainer.train()
    assert rewards_of(trainer) == [1.0] * GROUP * len(episodes)
