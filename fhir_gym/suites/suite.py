"""A suite (a named list of episodes with their settings), and its content in open worlds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Unpack

from fhir_gym import worlds
from fhir_gym.episode_config import EpisodeConfig, EpisodeSettings
from fhir_gym.errors import ArgumentError
from fhir_gym.fhir import World
from fhir_gym.rollouts import EpisodeSpec, RunPlan, TaskRecord
from fhir_gym.tasks import Grading, find_task, get_pack
from fhir_gym.types import Phrasing


class SuiteEpisode(NamedTuple):
    """One episode of a suite.

    Attributes:
        env_id: Env id of the pack.
        task: Key of the task.
        variation: Number of the variation.
        phrasing: Index of the prompt wording, or ``brief``.
    """

    env_id: str
    task: str
    variation: int
    phrasing: Phrasing


@dataclass(frozen=True, slots=True)
class Suite:
    """A named list of episodes, on which agents are compared.

    The end of the name is the suite's version (``core-v1``). A changed list gets a new version.

    Attributes:
        name: The name, with its version.
        about: What the suite contains, as a short phrase.
        episodes: The episodes in order; no variation occurs twice.
        grading: What counts as success.
        world: A world for all packs, or its name or path; None for each pack's default world.
        task_file: A benchmark's own task file; its tasks replace the tasks of the pack.
        funcs_file: The function list that belongs to the task file.

    Raises:
        ArgumentError: There are no episodes, or a variation occurs twice.
    """

    name: str
    about: str
    episodes: tuple[SuiteEpisode, ...]
    grading: Grading = "state"
    world: World | str | Path | None = None
    task_file: str | Path | None = None
    funcs_file: str | Path | None = None

    def __post_init__(self) -> None:
        """Refuse an empty suite and repeated variations."""
        if not self.episodes:
            raise ArgumentError(f"suite {self.name} has no episodes")
        seen: set[tuple[str, str, int]] = set()
        for episode in self.episodes:
            if episode[:3] in seen:
                raise ArgumentError(f"suite {self.name} has variation {episode.variation} of task {episode.task} twice")
            seen.add(episode[:3])

    @property
    def env_ids(self) -> tuple[str, ...]:
        """The packs of the suite, in order."""
        return tuple(dict.fromkeys(episode.env_id for episode in self.episodes))

    def config(self, env_id: str) -> EpisodeConfig:
        """Return the settings of a pack's episodes."""
        return EpisodeConfig(
            env_id, world=self.world, grading=self.grading, task_file=self.task_file, funcs_file=self.funcs_file
        )

    def plan(self, env_id: str, repeats: int = 1, seed: int = 0, **settings: Unpack[EpisodeSettings]) -> RunPlan:
        """Return the plan of a pack's episodes.

        Args:
            env_id: Env id of the pack.
            repeats: Number of runs of each episode.
            seed: Seed of the runs.
            settings: Fields of the settings to replace.

        Raises:
            ArgumentError: The suite has no episodes of the pack.
        """
        own = [episode for episode in self.episodes if episode.env_id == env_id]
        if not own:
            raise ArgumentError(f"suite {self.name} has no episodes of {env_id}, but of {', '.join(self.env_ids)}")
        specs = tuple(
            EpisodeSpec(episode.task, episode.variation, repeat) for episode in own for repeat in range(repeats)
        )
        phrasings = {(episode.task, episode.variation): episode.phrasing for episode in own}
        return RunPlan(replace(self.config(env_id), **settings), specs, seed, named=True, phrasings=phrasings)


def balanced(
    env_id: str, tasks: Iterable[str], variations: Iterable[int], phrasings: int = 1
) -> Iterator[SuiteEpisode]:
    """Yield the same variations of several tasks; the episodes use the phrasings in turn.

    Args:
        env_id: Env id of the pack.
        tasks: Keys of the tasks.
        variations: Numbers of the variations.
        phrasings: Number of phrasings to use, from phrasing 0.
    """
    numbers = tuple(variations)
    for place, task in enumerate(tasks):
        for number in numbers:
            yield SuiteEpisode(env_id, task, number, (place + number) % phrasings)


@dataclass(frozen=True, slots=True)
class SuiteContent:
    """A suite with its open worlds and the content of its episodes.

    Attributes:
        worlds: The world of each pack, by env id.
        tasks: The content of each episode, by env id, task and variation.
        hash: Hash of the list of episodes, of their content, of the worlds, and of the rules. Results of different
            hashes are not comparable.
    """

    suite: Suite
    worlds: Mapping[str, World]
    tasks: Mapping[tuple[str, str, int], TaskRecord]
    hash: str

    def plans(self, repeats: int = 1, seed: int = 0) -> tuple[RunPlan, ...]:
        """Return one plan for each pack.

        Args:
            repeats: Number of runs of each episode.
            seed: Seed of the runs.
        """
        return tuple(self.suite.plan(env_id, repeats, seed, world=self.worlds[env_id]) for env_id in self.suite.env_ids)


@contextmanager
def open_suite(suite: Suite, progress: Callable[[int, int], None] | None = None) -> Iterator[SuiteContent]:
    """Open the worlds of a suite and draw its episodes; the worlds are closed at the end of the `with` block.

    Args:
        suite: The suite.
        progress: Called with the number of finished steps and their total while a world is built.

    Raises:
        WorldError: A world cannot be opened.
        TaskError: A world does not support a task.
        UnknownNameError: A pack or task does not exist.
    """
    with ExitStack() as stack:
        opened: dict[str, World] = {}
        by_env: dict[str, World] = {}
        for env_id in suite.env_ids:
            source = suite.world or get_pack(env_id).world
            if isinstance(source, World):
                by_env[env_id] = source
                continue
            if str(source) not in opened:
                opened[str(source)] = stack.enter_context(worlds.load(source, progress=progress))
            by_env[env_id] = opened[str(source)]
        tasks = {episode[:3]: _record(suite, episode, by_env[episode.env_id]) for episode in suite.episodes}
        yield SuiteContent(suite, by_env, tasks, _hash(suite, by_env, tasks))


def _record(suite: Suite, episode: SuiteEpisode, world: World) -> TaskRecord:
    config = suite.config(episode.env_id)
    task = find_task(config.task_set(), episode.task)
    config.require_support([task.key])
    return TaskRecord.of(task.variation(episode.variation, world, episode.phrasing), task)


def _hash(suite: Suite, by_env: Mapping[str, World], tasks: Mapping[tuple[str, str, int], TaskRecord]) -> str:
    packs = [
        [env_id, by_env[env_id].manifest.content_hash, suite.config(env_id).step_limit] for env_id in suite.env_ids
    ]
    episodes = [[*episode, tasks[episode[:3]].hash] for episode in suite.episodes]
    text = json.dumps([suite.grading, packs, episodes], ensure_ascii=False)
    return blake2b(text.encode(), digest_size=16).hexdigest()
