"""The list of the episodes of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Unpack

from fhir_gym.agents import Agent, ConcurrentAgent
from fhir_gym.arguments import require_whole
from fhir_gym.episode_config import EpisodeConfig, EpisodeSettings
from fhir_gym.errors import ArgumentError
from fhir_gym.fhir import World
from fhir_gym.rollouts.record import Rollout
from fhir_gym.rollouts.rollout_files import completed
from fhir_gym.tasks import available_tasks
from fhir_gym.types import PARAPHRASE, Json, Phrasing

_RANGE = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?\Z")

_MAX_RANGE = 1_000_000
"""Maximum length of a range of variations."""


class EpisodeSpec(NamedTuple):
    """The task, variation and repeat that identify an episode of a run."""

    task: str
    variation: int
    repeat: int


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The episodes of a run and their settings.

    Attributes:
        config: The settings of all episodes.
        episodes: The episodes in order.
        seed: Seed of the run; each episode's own seed is derived from it.
        named: Whether the user named the tasks. If so, the world must support all of them.
        phrasings: For a task and a variation, the phrasing; it replaces the config's phrasing.

    Raises:
        TaskError: A variation does not exist or is not in the config's split.
    """

    config: EpisodeConfig
    episodes: tuple[EpisodeSpec, ...]
    seed: int = 0
    named: bool = False
    phrasings: Mapping[tuple[str, int], Phrasing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse variations that the config does not admit."""
        self.config.require_variations(dict.fromkeys(episode.variation for episode in self.episodes))

    def config_of(self, task: str, variation: int) -> EpisodeConfig:
        """Return the settings of a variation's episodes."""
        return replace(self.config, phrasing=self.phrasings.get((task, variation), self.config.phrasing))

    def supported(self, world: World) -> RunPlan:
        """Return the plan with only those tasks that a world supports.

        Raises:
            TaskError: The world supports no task of the plan, or does not support a task that the user named.
        """
        if not self.episodes:
            return self
        keys = tuple(dict.fromkeys(episode.task for episode in self.episodes))
        env_id, variation = self.config.env_id, self.episodes[0].variation
        supported = available_tasks(env_id, self.config.task_set(), keys, world, variation, named=self.named)
        return replace(self, episodes=tuple(episode for episode in self.episodes if episode.task in supported))

    def includes(self, rollout: Rollout, agent: Agent | ConcurrentAgent, world: World) -> bool:
        """Whether a rollout is a result of this plan with an agent in a world; see `completed`."""
        config, task = self.config, rollout.task
        phrasing = self.config_of(task.key, task.variation).phrasing
        own = None if config.task_file else config.task_set().get(task.key)  # tasks of a file have no own limit
        return (
            rollout.env_id == config.env_id
            and rollout.seed == self.seed_of(EpisodeSpec(task.key, task.variation, rollout.repeat))
            and (rollout.grading, rollout.reward_rule) == (config.grading, config.reward)
            and rollout.observations == config.observations
            and rollout.max_steps == (config.step_limit if own is None else config.step_limit_of(own))
            and (own.wording_of(task.variation, phrasing) if own and phrasing == PARAPHRASE else phrasing)
            in (None, task.phrasing)
            and rollout.world.hash == world.manifest.content_hash
            and rollout.agent.name == agent.name
            and _as_recorded(rollout.agent.settings) == _as_recorded(agent.settings)
        )

    def unfinished(self, path: str | Path, agent: Agent | ConcurrentAgent, world: World) -> RunPlan:
        """Return the plan without the episodes that have a verdict in a rollout file; the file may be missing."""
        return self.without(completed(path, like=lambda rollout: self.includes(rollout, agent, world)))

    def without(self, done: Container[tuple[str, int, int]]) -> RunPlan:
        """Return the plan without the episodes in `done`, which are given as task, variation and repeat."""
        return replace(self, episodes=tuple(episode for episode in self.episodes if episode not in done))

    def seed_of(self, episode: EpisodeSpec) -> int:
        """Return the seed of an episode. The seed does not depend on workers or on other episodes."""
        text = f"{self.seed}\n{self.config.env_id}\n{episode.task}\n{episode.variation}\n{episode.repeat}"
        return int.from_bytes(blake2b(text.encode(), digest_size=6).digest(), "big")


def _as_recorded(settings: Mapping[str, Json]) -> Json:
    """Return an agent's settings as a rollout file stores them, that is, after a JSON round trip."""
    return json.loads(json.dumps(settings, default=str))


def parse_numbers(text: str) -> tuple[int, ...]:
    """Parse variation numbers such as ``"3"``, ``"0-9"`` or ``"0-4,1000-1004"``.

    Raises:
        ArgumentError: The text has another form.
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = _RANGE.match(part)
        if match is None:
            raise ArgumentError(f"variations {text!r} must be numbers such as 3, 0-9 or 0-4,1000-1004")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ArgumentError(f"variations {part.strip()!r}: the second number must be the larger one")
        if last - first > _MAX_RANGE:
            raise ArgumentError(f"variations {part.strip()!r} are more than {_MAX_RANGE:,}")
        numbers += range(first, last + 1)
    return tuple(dict.fromkeys(numbers))


def plan(
    env_id: str | EpisodeConfig,
    *,
    tasks: str | Sequence[str] | None = None,
    variations: int | str | Iterable[int] | None = None,
    repeats: int = 1,
    seed: int = 0,
    skip: Container[tuple[str, int, int]] = (),
    **settings: Unpack[EpisodeSettings],
) -> RunPlan:
    """Return the plan of the episodes of a `run` with the same arguments."""
    config = EpisodeConfig.of(env_id, settings, ("tasks", "variations"))
    keys = config.choose_tasks(tasks)
    config.require_support(keys)
    if variations is None:
        variations = config.variations[:10]
    elif isinstance(variations, str):
        variations = parse_numbers(variations)
    numbers = config.require_variations(variations if isinstance(variations, Iterable) else (variations,))
    require_whole("repeats", repeats, 1)
    require_whole("seed", seed)
    episodes = tuple(EpisodeSpec(key, k, repeat) for key in keys for k in numbers for repeat in range(repeats))
    return RunPlan(config, episodes, seed, named=tasks is not None or config.task_file is not None).without(skip)
