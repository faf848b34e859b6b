"""Let the model in training play episodes for TRL's ``rollout_func``, and keep the exact tokens of each episode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from fhir_gym.agents import LocalAgent, Transformer
from fhir_gym.concurrency import run_coroutine
from fhir_gym.rollouts import EpisodeSpec, Rollout, RunPlan
from fhir_gym.rollouts.budget import BudgetTracker
from fhir_gym.rollouts.episode_runner import attempt_episode
from fhir_gym.training.curriculum import EpisodeChoice
from fhir_gym.training.diagnostics import TrainingEpisode
from fhir_gym.training.grpo.episodes import OpenConfigs, read_prompt
from fhir_gym.training.token_tree import TokenSequence


class PolicyRollouts:
    """A ``rollout_func`` of TRL that lets the model in training play a batch of episodes.

    The model plays as a `LocalAgent` does in an evaluation: the same prompts, the same shortened observations, and the
    same treatment of replies that are cut off. An episode ends with ``FINISH``, at the step limit, or when the context
    window is full; the last two are graded too. Use it with rows of `make_row`, and with `rewards` as reward function.

    Args:
        configs: Settings and worlds of the episodes.
        make_agent: Makes the agent from the model. Its temperature must be TRL's ``temperature``.
        seed: Seed of the sampled tokens. The tokens also depend on the training step and the place in the batch.

    Attributes:
        rollouts: The records of the latest batch.
    """

    def __init__(self, configs: OpenConfigs, make_agent: Callable[[Transformer], LocalAgent], seed: int = 0) -> None:
        self._configs, self._make_agent, self._seed = configs, make_agent, seed
        self.rollouts: list[Rollout] = []

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Play the episodes that the prompts name and return their tokens, masks and rewards."""
        choices = [read_prompt(prompt) for prompt in prompts]
        agent = self._make_agent(policy_transformer(trainer))
        seed = step_seed(self._seed, trainer.state.global_step)
        self.rollouts = run_coroutine(play_choices(self._configs, agent, choices, seed=seed))
        padding = int(trainer.processing_class.pad_token_id)
        sequences = [TokenSequence.of(rollout, padding) for rollout in self.rollouts]
        return {
            "prompt_ids": [sequence.prompt_ids for sequence in sequences],
            "completion_ids": [sequence.completion_ids for sequence in sequences],
            "env_mask": [sequence.mask for sequence in sequences],
            "logprobs": None,
            "episode": [TrainingEpisode.of(rollout) for rollout in self.rollouts],
        }

    @staticmethod
    def rewards(episode: list[TrainingEpisode], **_: Any) -> list[float | None]:
        """Return the rewards of the latest batch; None after an infrastructure failure, so that TRL excludes it."""
        return [training_episode.reward for training_episode in episode]


async def play_choices(
    configs: OpenConfigs, agent: LocalAgent, choices: Sequence[EpisodeChoice], *, seed: int, first: int = 0
) -> list[Rollout]:
    """Let an agent play episodes, concurrently on the embedded server and one by one on a running server.

    Args:
        configs: Settings and worlds of the episodes.
        agent: The agent; it is closed afterwards.
        choices: The episodes. Equal ones are told apart by their place.
        seed: Seed of the sampled tokens, which also depend on the place of an episode.
        first: The place of the first episode.
    """
    tracker = BudgetTracker()
    runs = []
    for place, choice in enumerate(choices, start=first):
        config, world = configs.of(choice)
        spec = EpisodeSpec(choice.task, choice.variation, place)
        runs.append((config, attempt_episode(RunPlan(config, (spec,), seed=seed), spec, agent, world, tracker)))
    try:
        if any(config.fhir_server is not None for config, _ in runs):
            return [(await run).rollout for _, run in runs]
        return [attempt.rollout for attempt in await asyncio.gather(*(run for _, run in runs))]
    finally:
        await agent.aclose()


def step_seed(seed: int, step: int) -> int:
    """Return the seed of the episodes of a training step."""
    return seed * 1_000_003 + step


def policy_transformer(trainer: Any) -> Transformer:
    """Return the model of a TRL trainer for a `LocalAgent`, until its weights change."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    precision = trainer.accelerator.autocast
    return Transformer.around(model, trainer.processing_class, name="policy", precision=precision, constant=True)
