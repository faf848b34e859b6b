"""Environments, groups and datasets for the RL loop of tinker-cookbook. Needs the extra ``tinker``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from fhir_gym.errors import missing_extra, pip_install

with missing_extra(f"the integration with tinker-cookbook needs: {pip_install('tinker')}"):
    from tinker_cookbook.renderers import Message, Renderer, get_text_content
    from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
    from tinker_cookbook.rl.types import STOP_METRIC_PREFIX, Env, EnvGroupBuilder, RLDataset, StopReason

from fhir_gym.tasks import DEFAULT_SPLIT
from fhir_gym.text_episode import TextEpisode, episode_metrics

__all__ = ["FHIRDataset", "FHIRGroupBuilder", "FHIRMessageEnv"]


class FHIRMessageEnv(MessageEnv):
    """One episode by messages. A failure of the FHIR server raises; the rollout strategy retries or skips the group."""

    def __init__(self, row: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self._row, self._settings = row, settings

    @override
    async def initial_observation(self) -> list[Message]:
        self._episode = await asyncio.to_thread(TextEpisode, self._row, self._settings)
        self._messages: list[Message] = [*await asyncio.to_thread(self._episode.start)]
        return [*self._messages]

    @override
    async def step(self, message: Message) -> MessageStepResult:
        step = await asyncio.to_thread(self._episode.step, get_text_content(message))
        self._messages += [message, {"role": "user", "content": step.observation}]
        if not step.done:
            return MessageStepResult(0.0, False, [*self._messages])
        self._episode.close()
        reason = StopReason.MAX_TURNS if step.truncated else StopReason.COMPLETED
        metrics = episode_metrics(step) | {f"{STOP_METRIC_PREFIX}{reason}": 1.0}
        return MessageStepResult(step.reward, True, [*self._messages], metrics)


@dataclass(frozen=True)
class FHIRGroupBuilder(EnvGroupBuilder):
    """The episodes of a group, which start from the same state.

    Attributes:
        row: A row of `fhir_gym.rows`.
        renderer: The renderer of the model.
        group_size: Number of episodes.
        settings: Fields of `EpisodeConfig`; the default split is ``train``.
    """

    row: Mapping[str, Any]
    renderer: Renderer
    group_size: int = 8
    settings: Mapping[str, Any] = field(default_factory=dict)

    @override
    async def make_envs(self) -> Sequence[Env]:
        settings = {"split": DEFAULT_SPLIT, **self.settings}
        envs = (FHIRMessageEnv(self.row, settings) for _ in range(self.group_size))
        # A reply that cannot be parsed or does not fit ends the episode like one that does nothing.
        return [
            EnvFromMessageEnv(self.renderer, env, failed_parse_reward=0.0, context_overflow_reward=0.0) for env in envs
        ]

    @override
    def logging_tags(self) -> list[str]:
        return [self.row["env_id"], self.row["task"]]


class FHIRDataset(RLDataset):
    """The rows in order, as groups; a function or class decorated with ``chz`` returns it to the training loop.

    Args:
        rows: Rows of `fhir_gym.rows`.
        batch_size: Number of groups in a batch.
        group: The other arguments of `FHIRGroupBuilder`.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], batch_size: int, **group: Any) -> None:
        self._builders = [FHIRGroupBuilder(row, **group) for row in rows]
        self._batch_size = batch_size

    @override
    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return self._builders[index * self._batch_size : (index + 1) * self._batch_size]

    @override
    def __len__(self) -> int:
        return -(-len(self._builders) // self._batch_size)
