"""Suites (named lists of episodes with settings), their content in open worlds, and the installed suites by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Unpack

from fhir_gym import worlds
from fhir_gym.arguments import require_name
from fhir_gym.episode_config import EpisodeConfig, EpisodeSettings
from fhir_gym.errors import ArgumentError, FhirGymError, PluginError
from fhir_gym.fhir import World
from fhir_gym.plugins import SUITES as GROUP
from fhir_gym.plugins import call_plugin, entry_points_of, load_plugin, plugin_error, warn_about
from fhir_gym.rollouts import EpisodeSpec, RunPlan, TaskRecord
from fhir_gym.tasks import SPLITS, Grading, find_task, get_pack, task_set
from fhir_gym.types import Phrasing


class SuiteEpisode(NamedTuple):
    """One episode of a suite.

    Attributes:
        env_id: Env id of the pack.
        task: Key of the task.
        variation: Number of the variation.
        phrasing: Index of the prompt wording, ``brief`` or ``paraphrase``.
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


_APPOINTMENT, _GENETIC = "FHIRAgent/Appointment-v0", "FHIRAgent/GeneticTesting-v0"
_MEDAGENTBENCH, _REASONING = "FHIRAgent/MedAgentBench-v0", "FHIRAgent/ActionReasoning-v0"
_SHIFT = "FHIRAgent/Shift-v0"

# A suite lists its tasks, so that a new task of a pack does not change an existing suite.
_TASKS: Mapping[str, str] = {
    _APPOINTMENT: "01 02a 02b 03 04a 04b 05 06a 06b 07 08a 08b 09a 09b 09c 09d 10a 10b 11a 11b 11c 11d 12a 12b 12c 12d "
    "13a 13b 14a 14b 15a 15b 15c 16a 16b 16c 17a 17b",
    _GENETIC: "20 21a 21b 21c 22",
    _MEDAGENTBENCH: "01 02 03 04 05 06 07 08 09 10",
    _REASONING: "01 02 03 04 05 06",
    _SHIFT: "Q1-1 Q2-1 Q3-1 Q4-1 P1-1 P2-1 P3-1 P4-1 S1-1 S2-1 S3-1 S4-1 I1-1 I2-1 I3-1 I4-1 "
    "Q1-2 Q2-2 Q3-2 Q4-2 P1-2 P2-2 P3-2 P4-2 S1-2 S2-2 S3-2 S4-2 I1-2 I2-2 I3-2 I4-2",
}
_SHORT_TASKS = (_APPOINTMENT, _GENETIC, _MEDAGENTBENCH, _REASONING)
"""The packs of the first versions."""
_SHIFT_LEVEL_1 = " ".join(_TASKS[_SHIFT].split()[:16])
_SHIFT_LIVE = "day-3 day-4"
_QUICK_APPOINTMENT = (
    "01 02a 03 04a 05 06a 06b 07 08a 08b 09a 09b 10a 10b 11a 11b 12a 12b 13a 13b 14a 14b 15a 15b 16a 16b 17a 17b"
)
"""One or two tasks of each number."""
_PHRASINGS: Mapping[str, int] = {_APPOINTMENT: 3, _GENETIC: 3, _MEDAGENTBENCH: 3, _REASONING: 4, _SHIFT: 3}
"""The number of phrasings that all tasks of a pack have."""
_TEST = SPLITS["test"].start

OFFICIAL = "medagentbench-official-v1"
_OFFICIAL_KEYS = tuple(f"task{kind}_{number}" for kind in range(1, 11) for number in range(1, 31))


def _quick(name: str, about: str, packs: Iterable[str]) -> Suite:
    counts = {_APPOINTMENT: 1, _GENETIC: 2, _MEDAGENTBENCH: 1, _REASONING: 2, _SHIFT: 1}
    tasks = {**_TASKS, _APPOINTMENT: _QUICK_APPOINTMENT, _SHIFT: _SHIFT_LEVEL_1}
    return _suite(name, about, {env_id: counts[env_id] for env_id in packs}, tasks)


def _suite(name: str, about: str, counts: Mapping[str, int], tasks: Mapping[str, str] = _TASKS) -> Suite:
    """Return a suite with the first test variations of each task; `counts` gives their number for each pack."""
    episodes: list[SuiteEpisode] = []
    for env_id, count in counts.items():
        numbers = range(_TEST, _TEST + count)
        episodes += balanced(env_id, tasks[env_id].split(), numbers, _PHRASINGS[env_id])
    return Suite(name, about, tuple(episodes))


_SHIPPED: Mapping[str, Callable[[], Suite]] = {
    "quick-v2": lambda: _quick("quick-v2", "a first impression of all packs", _TASKS),
    "quick-v1": lambda: _quick("quick-v1", "a first impression of four packs, without Shift", _SHORT_TASKS),
    "core-v2": lambda: _suite("core-v2", "all tasks but Shift's live ones, equally often", dict.fromkeys(_TASKS, 7)),
    "core-v1": lambda: _suite("core-v1", "all tasks of four packs, without Shift", dict.fromkeys(_SHORT_TASKS, 7)),
    "appointment-v1": lambda: _suite("appointment-v1", "the appointment tasks", {_APPOINTMENT: 10}),
    "genetic-testing-v1": lambda: _suite("genetic-testing-v1", "the genetic testing tasks", {_GENETIC: 40}),
    "medagentbench-v1": lambda: _suite("medagentbench-v1", "our tasks after MedAgentBench", {_MEDAGENTBENCH: 30}),
    "action-reasoning-v1": lambda: _suite("action-reasoning-v1", "the lab-reasoning tasks", {_REASONING: 50}),
    "shift-v1": lambda: _suite(
        "shift-v1", "the tasks of Shift", {_SHIFT: 5}, {_SHIFT: f"{_TASKS[_SHIFT]} {_SHIFT_LIVE}"}
    ),
}


def suite_names() -> tuple[str, ...]:
    """Return the names of all suites: first the suites of this package, then those of installed distributions."""
    own = (*_SHIPPED, OFFICIAL)
    return (*own, *(name for name in sorted(entry_points_of(GROUP)) if name not in own))


def get_suite(
    name: str,
    *,
    task_file: str | Path | None = None,
    funcs_file: str | Path | None = None,
    world: World | str | Path | None = None,
) -> Suite:
    """Return a suite by its name.

    Args:
        name: Name of the suite.
        task_file: MedAgentBench's own file with 300 tasks; only `OFFICIAL` needs it, because it is not part of this
            package.
        funcs_file: MedAgentBench's function list, which the prompts of `OFFICIAL` then contain; None for no list.
        world: A world with MedAgentBench's patients; only `OFFICIAL` needs it.

    Raises:
        UnknownNameError: There is no such suite.
        TaskError: The task file or the function list is unusable.
        PluginError: The suite of an installed distribution is broken.
        ArgumentError: A file or the world is missing or superfluous.

    Examples:
        >>> len(get_suite("quick-v1").episodes)
        60
    """
    arguments = {"task_file": task_file, "funcs_file": funcs_file, "world": world}
    require_name("suite", name, suite_names())
    if name == OFFICIAL:
        return _official(task_file, funcs_file, world)
    superfluous = [option for option, value in arguments.items() if value is not None]
    if superfluous:
        raise ArgumentError(f"suite {name} has its own tasks and worlds: leave {', '.join(superfluous)} out")
    if name in _SHIPPED:
        return _SHIPPED[name]()
    point = entry_points_of(GROUP)[name]
    loaded = load_plugin(point)
    suite = loaded if isinstance(loaded, Suite) or not callable(loaded) else call_plugin(point, loaded)
    if not isinstance(suite, Suite) or suite.name != name:
        raise plugin_error(point, f"is not a Suite with the name {name!r}")
    return suite


def known_suites() -> Iterator[Suite]:
    """Yield all suites that need no files; a broken suite of an installed distribution causes a warning."""
    for name in suite_names():
        try:
            if name != OFFICIAL:
                yield get_suite(name)
        except PluginError as error:
            warn_about(error)


def _official(task_file: str | Path | None, funcs_file: str | Path | None, world: World | str | Path | None) -> Suite:
    """Return the suite of MedAgentBench's own 300 tasks."""
    if task_file is None or world is None:
        missing = "task file (test_data_v2.json)" if task_file is None else "patients as a world"
        raise ArgumentError(f"suite {OFFICIAL} needs the benchmark's own {missing}; see docs/medagentbench.md")
    keys = tuple(task_set(_MEDAGENTBENCH, task_file, funcs_file))
    _require_official(keys, task_file)
    return Suite(
        OFFICIAL,
        "the 300 tasks of MedAgentBench's own task file",
        tuple(SuiteEpisode(_MEDAGENTBENCH, key, 0, 0) for key in keys),
        grading="official",
        world=world,
        task_file=task_file,
        funcs_file=funcs_file,
    )


def _require_official(keys: Iterable[str], task_file: str | Path) -> None:
    given_keys, official_keys = set(keys), set(_OFFICIAL_KEYS)
    if given_keys != official_keys:
        raise FhirGymError(
            f"{task_file} has {len(given_keys)} tasks, {len(given_keys & official_keys)} of the 300 tasks of suite "
            f"{OFFICIAL}: it needs the benchmark's test_data_v2.json"
        )
