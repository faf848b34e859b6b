"""The content of a suite: its worlds, its tasks, and the hash that identifies them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import blake2b

from fhir_gym import worlds
from fhir_gym.fhir import World
from fhir_gym.rollouts import RunPlan, TaskRecord
from fhir_gym.suites.suite import Suite, SuiteEpisode
from fhir_gym.tasks import find_task, get_pack


@dataclass(frozen=True, slots=True)
class SuiteContent:
    """A suite with its open worlds and the content of its episodes.

    Attributes:
        suite: The suite.
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
        tasks = {one[:3]: _record(suite, one, by_env[one.env_id]) for one in suite.episodes}
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
    episodes = [[*one, tasks[one[:3]].hash] for one in suite.episodes]
    text = json.dumps([suite.grading, packs, episodes], ensure_ascii=False)
    return blake2b(text.encode(), digest_size=16).hexdigest()
