"""Check the grading of tasks without a model.

Right policies must succeed, wrong policies must fail, and every check of a task must be necessary.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

from fhir_gym.actions import Finish
from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir import World
from fhir_gym.soundness.added_elements import reversals
from fhir_gym.soundness.answer_variants import consists_of_ids
from fhir_gym.soundness.equivalents import equivalents
from fhir_gym.soundness.flawed_policies import (
    always_create,
    constant_answers,
    flawed_policies,
    live_policies,
    other_variation,
)
from fhir_gym.soundness.near_misses import looks_at_news, near_misses
from fhir_gym.soundness.policy_groups import Group
from fhir_gym.soundness.policy_runner import Policy, PolicyRun, PolicyRunner, script
from fhir_gym.soundness.recording import GoldRecording
from fhir_gym.soundness.report import SoundnessReport, TaskReport
from fhir_gym.soundness.verdict_checker import VerdictChecker
from fhir_gym.soundness.workers import run_jobs
from fhir_gym.tasks.core.dates import instant
from fhir_gym.tasks.core.registry import get_pack, pack_ids, task_keys, task_set
from fhir_gym.tasks.core.selection import available_tasks
from fhir_gym.tasks.core.splits import VARIATIONS, require_variation
from fhir_gym.tasks.core.task import Task

MOST_ACTIONS = 1_000
"""Maximum number of actions that the sampled policies of one group send in one variation."""
_FEWEST = 8
"""Minimum number of policies of a group that are played in one variation."""
T = TypeVar("T")


def sampled(policies: Iterable[Policy], steps: int, seed: str) -> Iterator[Policy]:
    """Yield the policies of each group, or a random sample of them if they would send too many actions together.

    A sample contains policies of as many kinds as possible: for example, wrong values of all elements. Samples differ
    between seeds, so that many variations together try everything.

    Args:
        policies: Policies of any groups.
        steps: Number of actions of a policy.
        seed: The sample depends on this text and on the names of the policies.
    """
    most = max(_FEWEST, MOST_ACTIONS // max(1, steps))
    groups: dict[Group, list[Policy]] = {}
    for policy in policies:
        groups.setdefault(policy.group, []).append(policy)
    for group, members in groups.items():
        rng = random.Random(f"{seed} {group}")
        for policy in _sample(members, [flawed_policy.name for flawed_policy in members], most, rng):
            answers = _sample(policy.answers, [name for name, _ in policy.answers], most, rng)
            yield replace(policy, answers=tuple(answers))


def _sample(items: Sequence[T], names: Sequence[str], most: int, rng: random.Random) -> list[T]:
    """Choose at most `most` items, in turn from each kind. The kind is the name before `` = ``. Keep the order."""
    if len(items) <= most:
        return list(items)
    kinds: dict[str, list[int]] = {}
    for place in rng.sample(range(len(items)), len(items)):
        kinds.setdefault(names[place].partition(" = ")[0], []).append(place)
    in_turn = sorted(
        (turn, number, place) for number, kind in enumerate(kinds.values()) for turn, place in enumerate(kind)
    )
    return [items[place] for place in sorted(place for _, _, place in in_turn[:most])]


_CHUNK = 20
"""Number of variations in one job of a worker process."""

_MANY = 50
"""If the world has fewer records of a type, those that changed last may be all of them."""

Progress = Callable[[str, int, int], None]
"""Progress callback. Arguments: the task's name, the number of finished variations, and the total number."""


def check(
    world: World,
    env_ids: Iterable[str] | None = None,
    *,
    tasks: Iterable[str] | None = None,
    variations: int | Sequence[int] = 10,
    workers: int = 0,
    progress: Progress | None = None,
) -> SoundnessReport:
    """Check tasks on a world.

    Args:
        world: The world.
        env_ids: Env ids of the packs; None for all packs.
        tasks: Keys of tasks; None for all tasks of each pack.
        variations: A number of variations, counted from 0, or a sequence of variation numbers.
        workers: Number of worker processes; 0 to check in this process.
        progress: Progress callback.

    Raises:
        UnknownNameError: There is no such pack or task.
    """
    chosen = _chosen(list(env_ids or pack_ids()), None if tasks is None else list(tasks))
    kept = available(world, chosen, named=tasks is not None)
    return check_tasks(world, kept, variations=variations, workers=workers, progress=progress)


def by_world(
    env_ids: Iterable[str] | None = None, *, tasks: Iterable[str] | None = None, world: str | None = None
) -> Mapping[str, Sequence[Task[Any]]]:
    """Group tasks by the name of the world that they are checked on.

    Args:
        env_ids: Env ids of the packs; None for all packs.
        tasks: Keys of tasks; None for all tasks of each pack.
        world: Name of one world for all tasks; None for the default world of each pack.

    Raises:
        UnknownNameError: There is no such pack or task.
    """
    tasks_by_world: dict[str, list[Task[Any]]] = {}
    for task in _chosen(list(env_ids or pack_ids()), None if tasks is None else list(tasks)):
        tasks_by_world.setdefault(world or get_pack(task.pack).world, []).append(task)
    return tasks_by_world


def available(world: World, chosen: Sequence[Task[Any]], *, named: bool) -> list[Task[Any]]:
    """Select the tasks that a world supports.

    Args:
        world: The world.
        chosen: The tasks.
        named: Whether a user named these tasks. If so, all of them must be available.

    Raises:
        TaskError: The world supports no task of a pack, or a named task is unavailable.
    """
    packs_of: dict[str, list[str]] = {}
    for task in chosen:
        packs_of.setdefault(task.pack, []).append(task.key)
    kept = {
        (pack, key)
        for pack, keys in packs_of.items()
        for key in available_tasks(pack, task_set(pack), keys, world, 0, named=named)
    }
    return [task for task in chosen if (task.pack, task.key) in kept]


def check_tasks(
    world: World,
    chosen: Sequence[Task[Any]],
    *,
    variations: int | Sequence[int] = 10,
    workers: int = 0,
    progress: Progress | None = None,
) -> SoundnessReport:
    """Like `check`, for a given list of tasks."""
    numbers = tuple(range(variations) if isinstance(variations, int) else variations)
    for number in numbers:
        require_variation(number)
    total, done = len(chosen) * len(numbers), 0
    reports = {(task.pack, task.key): TaskReport(task.pack, task.key, task.kind) for task in chosen}
    jobs = [(task, numbers[start : start + _CHUNK]) for task in chosen for start in range(0, len(numbers), _CHUNK)]
    for part in run_jobs(_check_part, world, jobs, dict.fromkeys(task.pack for task in chosen), workers):
        reports[part.env, part.task].add(part)
        done += part.variations
        if progress is not None:
            progress(f"{part.env} {part.task}", done, total)
    whole = tuple(env for env in dict.fromkeys(task.pack for task in chosen) if _is_whole(env, chosen))
    return SoundnessReport(world.manifest.name, tuple(reports.values()), whole)


def _is_whole(env: str, chosen: Iterable[Task[Any]]) -> bool:
    return [task.key for task in chosen if task.pack == env] == list(task_keys(env))


def _check_part(world: World, task: Task[Any], numbers: Sequence[int]) -> TaskReport:
    return check_task(task, world, numbers)


def _chosen(env_ids: list[str], keys: list[str] | None) -> list[Task[Any]]:
    tasks_by_env = {env: task_set(env) for env in env_ids}
    if keys is None:
        return [task for tasks in tasks_by_env.values() for task in tasks.values()]
    for key in keys:
        if not any(key in tasks for tasks in tasks_by_env.values()):
            raise UnknownNameError("task", key, dict.fromkeys(key for tasks in tasks_by_env.values() for key in tasks))
    return [tasks[key] for tasks in tasks_by_env.values() for key in dict.fromkeys(keys) if key in tasks]


def check_task(task: Task[Any], world: World, variations: Sequence[int]) -> TaskReport:
    """Check one task."""
    checker = VerdictChecker(task)
    residents = _residents(task, world, variations)
    recordings: dict[int, GoldRecording] = {}
    for done, number in enumerate(variations, 1):
        other = variations[done % len(variations)] if len(variations) > 1 else (number + 1) % len(VARIATIONS)
        if other not in recordings:
            recordings[other] = _recorded(task, world, other)
        recordings[number] = _try_variation(task, world, number, recordings[other], checker, residents)
    return checker.report


def _residents(task: Task[Any], world: World, variations: Sequence[int]) -> dict[str, str]:
    """The id of one resource of the world for each resource type that the task seeds.

    If the task seeds nothing, the types are Patient and those that the task requires.
    """
    kinds = {resource["resourceType"] for number in variations[:1] for resource in task.variation(number, world).setup}
    kinds = kinds or {*task.required_resources, "Patient"}
    return {kind: ids[0] for kind in sorted(kinds) if (ids := world.ids(kind))}


def _try_variation(
    task: Task[Any],
    world: World,
    number: int,
    stranger: GoldRecording,
    checker: VerdictChecker,
    residents: Mapping[str, str],
) -> GoldRecording:
    begun = time.process_time()
    with PolicyRunner(task, task.variation(number, world), world) as runner:
        checker.report.setup_ms.append((time.process_time() - begun) * 1e3)
        run = runner.gold()
        checker.gold(number, run)
        gold = GoldRecording.of(run, runner.variation.setup, residents)
        if run.verdict.success:
            for policy in _policies(task, runner, run, gold, stranger):
                for policy_run in runner.run(policy):
                    checker.policy(number, policy, policy_run)
    return gold


def _recorded(task: Task[Any], world: World, number: int) -> GoldRecording:
    with PolicyRunner(task, task.variation(number, world), world) as runner:
        return GoldRecording.of(runner.gold(), runner.variation.setup)


def _policies(
    task: Task[Any], runner: PolicyRunner, run: PolicyRun, gold: GoldRecording, stranger: GoldRecording
) -> Iterator[Policy]:
    params = runner.variation.params
    yield from equivalents(task, gold, run.end.base_url, instant(runner.world.now))
    yield from constant_answers(runner.variation.prompt, number_asked=not consists_of_ids(task.answer))
    yield from always_create(task, gold)
    yield from other_variation(task, gold, stranger)
    requires_evidence = task.requires_evidence(params)
    missing = task.counterfactual(params, runner.world) if requires_evidence else []
    types = sorted({record["resourceType"] for record in missing})
    if types and all(runner.world.manifest.counts.get(name, 0) >= _MANY for name in types):
        yield from looks_at_news(gold, types, runner.world.now)
    changed = chain(
        near_misses(task, gold, requires_evidence),
        reversals(task, gold, runner.world.now),
        flawed_policies(task, params, gold),
        live_policies(task, params, run, gold) if task.is_live else (),
    )
    yield from sampled(changed, len(gold.steps), f"{task.pack} {task.key} {runner.variation.number}")
    whole = [*gold.actions, Finish(gold.answer)]
    for name, actions in task.near_misses(params, whole):
        yield Policy("by hand", name, script(actions))
    for name, actions in task.equivalents(params, whole):
        yield Policy("equivalent", name, script(actions))
