"""Train a memory: an agent plays training episodes, and two models turn its runs into reflections."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from fhir_gym import worlds
from fhir_gym.agents import Agent, AsyncConversation, ConcurrentAgent, EpisodeContext, Reply, Usage, require_agent
from fhir_gym.agents.memory import Deduplicator, Embedder, Memory, Provenance, Reflection
from fhir_gym.agents.tool_sources import ToolSource
from fhir_gym.agents.tool_sources.specification import SpecificationTools
from fhir_gym.concurrency import run_coroutine
from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import InfraError, TrainingError
from fhir_gym.fhir import World
from fhir_gym.reflexion.config import MemoryTrainingConfig, TrainingEpisode
from fhir_gym.reflexion.leak_filter import MAX_SITUATION, InstanceData, LeakFilter
from fhir_gym.reflexion.reviewing import Review, Reviewer, lessons_text
from fhir_gym.reflexion.training_folder import ROLES, TrainingFolder, require_budget
from fhir_gym.rollouts import (
    Budget,
    BudgetTracker,
    EpisodeSpec,
    Prices,
    Rollout,
    RunPlan,
    parse_numbers,
    plan,
    run_plan,
)
from fhir_gym.rollouts.rollout_files import RolloutWriter
from fhir_gym.tasks import Variation, find_task, get_pack, task_set
from fhir_gym.types import Json, Phrasing

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_PEOPLE = ("Patient", "Practitioner", "RelatedPerson")
_SMALLEST = 10
"""Smaller whole numbers are too common in lessons to be particular to an episode."""
_GUARDED: dict[tuple[str, str, str], InstanceData] = {}
"""Results for packs, by variations and hash of the world: an experiment trains several memories."""


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    """A variation with the values in its prompt.

    Attributes:
        values: The values in its prompt.
        request: The prompt without the present time and without the task's fixed instructions.
    """

    variation: Variation
    values: Mapping[str, str]
    request: str

    @classmethod
    def of(cls, env_id: str, key: str, number: int, phrasing: Phrasing | None, world: World) -> EpisodeFacts:
        """Return the facts of a variation."""
        task = task_set(env_id)[key]
        variation = task.variation(number, world, phrasing)
        request = variation.prompt.replace(task.answer_instructions, "")
        request = re.sub(r"\APresent: [^\n]*\n+", "", request).strip()
        return cls(variation, task.prompt_values(variation.params, world), request)

    def names_and_ids(self, rollout: Rollout | None = None) -> InstanceData:
        """Return the names and ids of the variation and of everything that the agent of an episode read or wrote."""
        data = InstanceData()
        data.add_variation(self.variation, self.values)
        if rollout is not None:
            data.add_rollout(rollout)
            for text in _texts(_outcome(rollout)):
                data.add_value(text)
        return data

    def numbers(self, rollout: Rollout | None = None) -> frozenset[str]:
        """Return the numbers in the prompt's values, in the answer and in the expected results."""
        texts = [*self.values.values(), *(_texts(_outcome(rollout)) if rollout is not None else ())]
        numbers = {number for text in texts for number in _NUMBER.findall(text)}
        return frozenset(number for number in numbers if "." in number or int(number) >= _SMALLEST)


def people_of(world: World) -> InstanceData:
    """Return the names and ids of the people of a world. Prompts may contain them."""
    data = InstanceData()
    for resource_type in _PEOPLE:
        data.add_resource(world.search(resource_type))
    return data


def guarded_data(env_ids: Iterable[str], numbers: str, worlds: Mapping[str, World]) -> InstanceData:
    """Return the names and ids of the test variations of all tasks of packs.

    Clinical terms do not belong to them: both splits draw the same terms, and lessons need them.

    Args:
        env_ids: The packs.
        numbers: The test variations, such as ``"1000-1019"``.
        worlds: The world of each pack.
    """
    data = InstanceData()
    for env_id in env_ids:
        world = worlds[env_id]
        key = (env_id, numbers, world.manifest.content_hash)
        if key not in _GUARDED:
            _GUARDED[key] = _data_of_pack(env_id, numbers, world)
        data.update(_GUARDED[key])
    return data


def _data_of_pack(env_id: str, numbers: str, world: World) -> InstanceData:
    data = InstanceData()
    for task in task_set(env_id).values():
        for number in parse_numbers(numbers):
            variation = task.variation(number, world)
            data.add_variation(variation, task.prompt_values(variation.params, world), terms=False)
    return data


def public_texts(env_ids: Iterable[str]) -> Iterator[str]:
    """Yield the fixed parts of the prompts of all tasks of packs."""
    for env_id in env_ids:
        for task in task_set(env_id).values():
            yield from (*task.wordings, task.brief or "", task.answer_instructions)


def _outcome(rollout: Rollout) -> Json:
    verdict = rollout.verdict
    return [verdict.answer, [[check.expected, check.actual] for check in verdict.checks]] if verdict else []


def _texts(value: Json) -> list[str]:
    """Return the texts and numbers in a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [text for element in value for text in _texts(element)]
    if isinstance(value, bool) or value is None:
        return []
    return [str(value)]


class VariationName(NamedTuple):
    """The pack, the task and the variation of an episode."""

    env_id: str
    task: str
    variation: int


def with_lessons(agent: Agent | ConcurrentAgent, lessons: Mapping[VariationName, str]) -> Agent | ConcurrentAgent:
    """Return an agent whose prompts end with lessons."""
    return _ConcurrentReader(agent, lessons) if isinstance(agent, ConcurrentAgent) else _Reader(agent, lessons)


class _Lessons:
    """The parts that both kinds of agents share."""

    def __init__(self, agent: Agent | ConcurrentAgent, lessons: Mapping[VariationName, str]) -> None:
        self.name = agent.name
        plain = json.dumps(sorted(lessons.items()), ensure_ascii=True)
        digest = blake2b(plain.encode(), digest_size=8).hexdigest()
        self.settings: Mapping[str, Json] = {**agent.settings, "lessons": digest}
        self._lessons = lessons

    def add(self, text: str, context: EpisodeContext) -> str:
        """Return a text with the lessons of an episode at its end."""
        lessons = self._lessons.get(VariationName(context.env_id, context.task, context.variation))
        return f"{text}\n\n{lessons}" if lessons else text


class _ConcurrentReader(_Lessons):
    def __init__(self, agent: ConcurrentAgent, lessons: Mapping[VariationName, str]) -> None:
        super().__init__(agent, lessons)
        self._agent = agent

    def converse(self, observation: str, context: EpisodeContext) -> AsyncConversation:
        read = replace(context, prompt=self.add(context.prompt, context))
        return self._agent.converse(self.add(observation, context), read)

    async def aclose(self) -> None:
        await self._agent.aclose()


class _Reader(_Lessons):
    def __init__(self, agent: Agent, lessons: Mapping[VariationName, str]) -> None:
        super().__init__(agent, lessons)
        self._agent = agent
        self._first: str | None = None

    def reset(self, observation: str, context: EpisodeContext) -> None:
        self._first = self.add(observation, context)
        self._agent.reset(self._first, replace(context, prompt=self.add(context.prompt, context)))

    def act(self, observation: str) -> str | Reply:
        first, self._first = self._first, None
        return self._agent.act(first or observation)


Progress = Callable[[int, int, str], None]
"""Show the progress: steps done, all steps, a short text."""


def no_progress(done: int, total: int, text: str) -> None:
    """Show nothing."""


def train_memory(
    config: MemoryTrainingConfig,
    out: str | Path,
    *,
    episodes: Iterable[tuple[str, str, int, Phrasing | None]] | None = None,
    agent: Agent | ConcurrentAgent | None = None,
    progress: Progress = no_progress,
    budget: BudgetTracker | None = None,
    prices: Mapping[str, Prices | None] | None = None,
) -> Memory:
    """Train a memory and write it to a file.

    In each trial, the agent plays the variations in which it has not succeeded yet. An evaluator model then criticises
    each run, and a reflector model writes reflections about it. In the next trial, the agent reads the reflections of
    its earlier trials of the variation. At the end, all reflections are merged.

    The folder ``OUT.training`` keeps finished episodes and all replies of the evaluator and the reflector. After an
    interruption at any point, the same call continues. A complete memory file is returned without any request.

    Args:
        config: The settings.
        out: The memory file.
        episodes: Env id, task, variation and phrasing of each training episode; None for the episodes of the config.
        agent: The agent; None for a `ChatAgent` with the config's model.
        progress: Called after each episode and each review.
        budget: The budget of a larger project, which has counted what the training spent before.
        prices: Prices of each role's model in that budget; None for the prices of the budget.

    Raises:
        ArgumentError: A variation is not a training variation.
        TrainingError: The file belongs to a training with other settings.
        TrainingBudgetError: The budget is spent. The work so far is kept.
        InfraError: A model's endpoint failed. The work so far is kept.
        EndpointError: A model's endpoint is misconfigured.
    """
    chosen = config.episodes() if episodes is None else _checked(episodes)
    tools = SpecificationTools() if config.specification else None
    actor = require_agent(agent) if agent is not None else config.make_agent()
    embedder = config.make_embedder()
    identity = config.identity() | {
        "player": {"name": actor.name, "settings": dict(actor.settings)},
        "episodes": [[episode.env_id, episode.task, episode.variation, episode.phrasing] for episode in chosen],
    }
    with TrainingFolder(Path(out), identity) as folder, ExitStack() as stack:
        finished = folder.finished()
        if finished is not None:
            return finished
        embedder.record()  # fails at once if the embedder cannot be used
        env_ids = tuple(dict.fromkeys(episode.env_id for episode in chosen))
        opened = {env_id: stack.enter_context(worlds.load(get_pack(env_id).world)) for env_id in env_ids}
        tracker = BudgetTracker(Budget(tokens=config.tokens), budget, sum(folder.usage().values(), Usage()))
        budgets = {role: BudgetTracker(Budget(prices=(prices or {}).get(role)), tracker) for role in ROLES}
        training = _Training(config, folder, tracker, budgets, actor, chosen, opened, tools, progress)
        memory = training.run(embedder)
        memory.save(out)
        return memory


def _checked(episodes: Iterable[tuple[str, str, int, Phrasing | None]]) -> list[TrainingEpisode]:
    """Return the training episodes without duplicates.

    Raises:
        ArgumentError: A variation is not a training variation.
        TrainingError: There is no episode, or a variation has two phrasings.
        UnknownNameError: A task does not exist.
    """
    episodes_by_name: dict[VariationName, TrainingEpisode] = {}
    for env_id, task, variation, phrasing in episodes:
        find_task(task_set(env_id), task)
        EpisodeConfig(env_id, split="train").require_variations([variation])
        episode = TrainingEpisode(env_id=env_id, task=task, variation=variation, phrasing=phrasing)
        if episodes_by_name.setdefault(_name(episode), episode) != episode:
            raise TrainingError(f"variation {variation} of task {task} is given with two phrasings")
    if not episodes_by_name:
        raise TrainingError("there are no training episodes")
    return list(episodes_by_name.values())


def _name(episode: TrainingEpisode) -> VariationName:
    return VariationName(episode.env_id, episode.task, episode.variation)


@dataclass
class _Training:
    """A memory training in progress."""

    config: MemoryTrainingConfig
    folder: TrainingFolder
    tracker: BudgetTracker
    budgets: Mapping[str, BudgetTracker]
    agent: Agent | ConcurrentAgent
    episodes: Sequence[TrainingEpisode]
    worlds: Mapping[str, World]
    tools: ToolSource | None
    progress: Progress
    counts: Counter[str] = field(default_factory=Counter)
    _lessons: dict[VariationName, list[Reflection]] = field(default_factory=dict)
    _people: dict[str, InstanceData] = field(default_factory=dict)
    _done: int = 0

    def run(self, embedder: Embedder) -> Memory:
        """Play, review and reflect all trials."""
        config = self.config
        facts = {
            _name(episode): EpisodeFacts.of(*_name(episode), episode.phrasing, self.worlds[episode.env_id])
            for episode in self.episodes
        }
        self._people = {env_id: people_of(world) for env_id, world in self.worlds.items()}
        guarded = guarded_data(self.worlds, config.guard, self.worlds)
        leak_filter = LeakFilter(guarded, public_texts(self.worlds))
        reviewer = Reviewer(config, self.folder.journal(), self.budgets, self.tools)
        left = list(self.episodes)
        for trial in range(1, config.trials + 1):
            if not left:
                break
            rollouts = self._play(trial, left)
            reviews = run_coroutine(reviewer.review_all(rollouts, self._on_review(trial, len(rollouts))))
            for episode, rollout, review in zip(left, rollouts, reviews, strict=True):
                reflections = self._reflections(episode, trial, rollout, review, facts[_name(episode)], leak_filter)
                self._lessons.setdefault(_name(episode), []).extend(reflections)
            left = [episode for episode, rollout in zip(left, rollouts, strict=True) if not rollout.success]
        # In the order of the episodes, so that the reflections of a task stand together.
        written = [reflection for episode in self.episodes for reflection in self._lessons.get(_name(episode), ())]
        return self._memory(written, embedder)

    def _facts(self, episode: TrainingEpisode) -> EpisodeFacts:
        return EpisodeFacts.of(
            episode.env_id, episode.task, episode.variation, episode.phrasing, self.worlds[episode.env_id]
        )

    def _play(self, trial: int, episodes: Sequence[TrainingEpisode]) -> list[Rollout]:
        """Return the rollouts of a trial in the order of the episodes."""
        lessons = {name: lessons_text(reflections) for name, reflections in self._lessons.items() if reflections}
        agent = with_lessons(self.agent, lessons) if trial > 1 else self.agent
        path = self.folder.rollout_file(trial)
        self._done = 0
        with RolloutWriter(path) as writer:
            for env_id, world in self.worlds.items():
                ours = [episode for episode in episodes if episode.env_id == env_id]
                if not ours:
                    continue
                running = run_plan(
                    self._plan(trial, env_id, ours, world),
                    agent,
                    concurrency=self.config.concurrency,
                    budget=self.budgets["agent"],
                    resume=path,
                )
                for rollout in running:
                    writer.write(rollout)
                    self._done += 1
                    self.progress(self._done, len(episodes), f"trial {trial}: {rollout.task.title}")
        return self._in_order(trial, episodes)

    def _plan(self, trial: int, env_id: str, episodes: Sequence[TrainingEpisode], world: World) -> RunPlan:
        keys = list(dict.fromkeys(episode.task for episode in episodes))
        episodes_plan = plan(env_id, tasks=keys, variations=0, world=world, max_steps=self.config.max_steps)
        phrasings = {
            (episode.task, episode.variation): episode.phrasing for episode in episodes if episode.phrasing is not None
        }
        specs = tuple(EpisodeSpec(episode.task, episode.variation, trial - 1) for episode in episodes)
        return RunPlan(episodes_plan.config, specs, self.config.seed, named=True, phrasings=phrasings)

    def _in_order(self, trial: int, episodes: Sequence[TrainingEpisode]) -> list[Rollout]:
        rollouts_by_name: dict[VariationName, Rollout] = {}
        for rollout in self.folder.rollouts(trial):
            name = VariationName(rollout.env_id, rollout.task.key, rollout.task.variation)
            if name not in rollouts_by_name or not rollouts_by_name[name].graded:
                rollouts_by_name[name] = rollout
        missing = [episode for episode in episodes if _name(episode) not in rollouts_by_name]
        failed = [
            episode
            for episode in episodes
            if _name(episode) in rollouts_by_name and not rollouts_by_name[_name(episode)].graded
        ]
        if failed:
            error = rollouts_by_name[_name(failed[0])].error
            raise InfraError(
                f"{len(failed)} training episodes have no verdict, the first one because of: {error}. "
                "The others are kept: run the training again to continue"
            )
        if missing:
            require_budget(self.tracker)
            raise TrainingError(f"{len(missing)} training episodes were not played")
        return [rollouts_by_name[_name(episode)] for episode in episodes]

    def _on_review(self, trial: int, total: int) -> Callable[[int], None]:
        return lambda done: self.progress(done, total, f"trial {trial}: reviews")

    def _reflections(
        self,
        episode: TrainingEpisode,
        trial: int,
        rollout: Rollout,
        review: Review,
        facts: EpisodeFacts,
        leak_filter: LeakFilter,
    ) -> list[Reflection]:
        """Return the filtered reflections of one run."""
        self.counts.update(runs=1, successes=int(bool(rollout.success)))
        self.counts.update(["unreadable critiques"] if review.critique is None else [])
        if review.lessons is None:
            self.counts.update(["unreadable reflections"])
            return []
        self.counts.update(f"dropped: {reason}" for reason in review.lessons.dropped)
        own, numbers = facts.names_and_ids(rollout), facts.numbers(rollout)
        own.update(self._people[episode.env_id])
        source = Provenance(
            env_id=episode.env_id,
            task=episode.task,
            variation=episode.variation,
            phrasing=rollout.task.phrasing,
            trial=trial,
            success=bool(rollout.success),
        )
        situation = leak_filter.apply(facts.request, own, numbers, MAX_SITUATION)
        reflections: list[Reflection] = []
        for lesson in review.lessons.lessons:
            filtered = leak_filter.apply(lesson.text, own, numbers)
            refusal = filtered.refusal
            if lesson.resource_type is None and situation.refusal:
                refusal = refusal or f"situation: {situation.refusal}"
            if refusal:
                self.counts.update([f"dropped: {refusal}"])
                continue
            self.counts.update(placeholders=filtered.replaced)
            common = {"text": filtered.text, "source": source}
            if lesson.resource_type is None:
                reflections.append(Reflection(kind="macro", situation=situation.text, **common))
            else:
                reflections.append(
                    Reflection(kind="micro", resource_type=lesson.resource_type, operation=lesson.operation, **common)
                )
        return reflections

    def _memory(self, written: Sequence[Reflection], embedder: Embedder) -> Memory:
        kept = Deduplicator(embedder, self.config.similarity).merge(written)
        counts: dict[str, Json] = {"written": len(written), **{key: self.counts[key] for key in sorted(self.counts)}}
        return Memory(
            kept,
            embedder,
            models={role: self.config.role(role).model for role in ("agent", "evaluator", "reflector")},
            specification=str(self.tools.settings["hash"]) if self.tools else None,
            training={"settings": self.folder.identity, "counts": counts},
        )
