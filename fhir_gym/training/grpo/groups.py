"""GRPO with our own update, which computes little: for small models and CPUs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev

from fhir_gym.agents import Transformer
from fhir_gym.concurrency import run_coroutine
from fhir_gym.rollouts import Rollout
from fhir_gym.training.diagnostics import TrainingEpisode, has_variance
from fhir_gym.training.grpo.episodes import OpenConfigs
from fhir_gym.training.grpo.policy import play_choices, step_seed
from fhir_gym.training.grpo.run import GrpoRun
from fhir_gym.training.policy_rollouts import make_agent
from fhir_gym.training.token_tree import MOST_NODES, TokenSequence, TokenTree
from fhir_gym.training.tuner import Tuner


class GroupRun(GrpoRun):
    """A run that samples with transformers and updates the weights from one tree of tokens a group."""

    def train(self) -> None:
        """Train from the last checkpoint to the end."""
        config, checkpoint = self._config, self._folder.latest_checkpoint()
        tuner = self._tuner = Tuner(config, steps=config.steps)
        if checkpoint is not None:
            tuner.load(checkpoint.path)
            self._curriculum.load_state_dict(self._restore(checkpoint.path)["curriculum"])
        elif config.evaluate_start:
            self._evaluate(0, tuner.trained_model("policy"))
        self._done = 0 if checkpoint is None else checkpoint.step
        with OpenConfigs(**config.settings()) as configs:
            while self._done < config.steps:
                self._step(configs)
        tuner.export(self._folder.path / "model")

    def _step(self, configs: OpenConfigs) -> None:
        """Sample groups, update the weights once, log, evaluate and save."""
        config, started = self._config, time.perf_counter()
        model = self._tuner.trained_model("policy")
        groups = self._sample(configs, model)
        sampling = time.perf_counter() - started
        self._done += 1
        episodes = [[TrainingEpisode.of(rollout) for rollout in group] for group in groups]
        update: dict[str, float] = {"entropy": _entropy(groups)}
        self._count([episode for group in episodes for episode in group])
        taught = [group for group, played in zip(groups, episodes, strict=True) if self._is_taught(played)]
        trees = [tree for group in taught for tree in _trees(group)]
        if trees:
            update |= self._tuner.policy_step(trees, config.temperature, config.beta)
            update |= {
                "groups_trained": len(taught),
                "tokens_trained": sum(len(tree.ids) for tree in trees),
                "tokens_of_trained_episodes": sum(tree.tokens for tree in trees),
            }
        seconds = time.perf_counter() - started
        update |= {"seconds": seconds, "environment_share": max(0.0, sampling - model.seconds) / seconds}
        self._log(self._done, episodes, {name: round(value, 8) for name, value in update.items()})
        if self._is_evaluated(self._done):
            self._evaluate(self._done, self._tuner.trained_model("policy"))
            self._log_sampled(self._done)
        if self._done % config.checkpoint_every == 0 or self._done >= config.steps:
            self._folder.save_checkpoint(self._done, self._save)

    def _sample(self, configs: OpenConfigs, model: Transformer) -> list[list[Rollout]]:
        """Play the groups of a step, and others in place of those without variance, which teach nothing."""
        config, groups = self._config, list[list[Rollout]]()
        missing = config.batch_size // config.group_size
        for _ in range(1 + config.refills):
            drawn = [self._curriculum.draw() for _ in range(missing)]
            choices = [choice for choice in drawn for _ in range(config.group_size)]
            agent = make_agent(config, model, config.temperature, protocol=self._protocol, logprobs=True)
            seed, first = step_seed(config.seed, self._done), len(groups) * config.group_size
            rollouts = run_coroutine(play_choices(configs, agent, choices, seed=seed, first=first))
            played = [rollouts[at : at + config.group_size] for at in range(0, len(rollouts), config.group_size)]
            missing -= sum(has_variance(map(TrainingEpisode.of, group)) for group in played)
            groups += played
            if missing == 0:
                break
        return groups

    def _is_taught(self, group: Sequence[TrainingEpisode]) -> bool:
        """Whether the update uses a group: its rewards differ, or `beta` draws a group that fails to the start model.

        A policy that fails in the same way in all episodes of a group would otherwise never learn from it again.
        """
        successes = [episode.success for episode in group if episode.success is not None]
        return has_variance(group) or bool(self._config.beta and successes and not any(successes))

    def _save(self, folder: Path) -> None:
        self._tuner.save(folder)
        self._store(folder, curriculum=self._curriculum.state_dict())


def _trees(group: Sequence[Rollout]) -> list[TokenTree]:
    """Return the tokens of a group's graded episodes with their advantages."""
    graded = [rollout for rollout in group if rollout.graded]
    sequences = [TokenSequence.of(rollout, padding=0) for rollout in graded]
    return TokenTree.split(sequences, _advantages(graded), MOST_NODES)


def _advantages(group: Sequence[Rollout]) -> list[float]:
    """Return the distance of each episode from the group's mean, in units of the group's standard deviation.

    If some episodes succeed, only success counts: with a dense reward, a near miss would otherwise be reinforced
    wherever most other episodes are worse.
    """
    rewards = [rollout.reward or 0.0 for rollout in group]
    successes = [float(bool(rollout.success)) for rollout in group]
    values = successes if len(set(successes)) > 1 else rewards
    mean, deviation = fmean(values), pstdev(values)
    return [(value - mean) / (deviation + 1e-4) for value in values]


def _entropy(groups: Sequence[Sequence[Rollout]]) -> float:
    """Return the mean of minus the log-probability of the sampled tokens, an estimate of the entropy in nats."""
    values = [
        value
        for group in groups
        for rollout in group
        for turn in rollout.turns
        if turn.reply is not None
        for value in turn.reply.extra["logprobs"]
    ]
    return -fmean(values) if values else 0.0
