"""Check the grading of tasks without a model.

Right policies must succeed, wrong policies must fail, and every check of a task must be necessary.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

from fhir_gym.actions import Action, Finish
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
from fhir_gym.soundness.policy_groups import Expected, Group
from fhir_gym.soundness.policy_runner import WRITES, Policy, PolicyRun, PolicyRunner, script
from fhir_gym.soundness.recording import GoldRecording
from fhir_gym.soundness.report import Failure, SoundnessReport, Tally, TaskReport
from fhir_gym.soundness.workers import run_jobs
from fhir_gym.tasks.core.dates import instant
from fhir_gym.tasks.core.grader import EVIDENCE, NOTHING_ELSE, PROHIBITED
from fhir_gym.tasks.core.registry import get_pack, pack_ids, task_keys, task_set
from fhir_gym.tasks.core.selection import available_tasks
from fhir_gym.tasks.core.splits import VARIATIONS, require_variation
from fhir_gym.tasks.core.task import Task
from fhir_gym.tasks.grading import LetteredAnswer
from fhir_gym.tasks.grading.comparison import same_record
from fhir_gym.types import Json, Resource

_WRITE_TOOLS = frozenset({"create", "update", "patch", "delete"})
_NUMBER = re.compile(r"\d+ ")
_CONSTANT = frozenset({"idle", "constant answer", "guessed number"})


class VerdictChecker:
    """Compares verdicts with expected results and fills a task's report."""

    def __init__(self, task: Task[Any]) -> None:
        self._task = task
        self._has_letters = isinstance(task.answer, LetteredAnswer)
        self._gold: tuple[list[tuple[Action, Json]], Json] = ([], None)
        self._left_by_gold: Mapping[str, Resource | None] = {}
        self._events_of_gold: list[tuple[str, str]] = []
        self._writes_of_gold: list[tuple[str, str, str]] = []
        self.report = TaskReport(task.pack, task.key, task.kind)

    def gold(self, number: int, run: PolicyRun) -> None:
        """Check that the reference solution passes full and light validation within its declared number of steps."""
        report, verdict = self.report, run.verdict
        report.variations += 1
        report.gold_steps = max(report.gold_steps, len(run.actions))
        answer = json.dumps(verdict.answer)
        report.answers[answer] = report.answers.get(answer, 0) + 1
        # Outcomes by letter are often the same.
        if EVIDENCE not in {check.name for check in verdict.checks} and not self._has_letters:
            report.sufficient[answer] = report.sufficient.get(answer, 0) + 1
        self._gold, self._left_by_gold, self._events_of_gold = _deeds(run), _left(run), _events(run)
        self._writes_of_gold = _accepted_writes(run)
        for check in verdict.checks:
            name = self._unnumbered(check.name)
            if name not in report.checks and not self._is_redundant(name):
                report.checks.append(name)
        policy = Policy("gold", "gold", script(()))
        self.policy(number, policy, run)
        if verdict.light is False:
            self._fail(number, policy, run, "light validation rejects it")
        if len(run.actions) > self._task.gold_steps:
            self._fail(
                number,
                policy,
                run,
                f"it takes {len(run.actions)} actions, more than gold_steps ({self._task.gold_steps})",
            )
        if len(verdict.idle) == len(verdict.checks):
            self._fail(number, policy, run, "an idle agent passes every check")

    def policy(self, number: int, policy: Policy, run: PolicyRun) -> None:
        """Compare the verdict of an episode with the policy's expected result."""
        success, expected = run.verdict.success, policy.expected
        is_golds = self._is_golds(expected, run)
        tally = self.report.tallies.setdefault(policy.group, Tally())
        tally.runs += 1
        tally.passed += success
        tally.rightly += success and is_golds
        tally.lightly += run.verdict.light is True
        if expected == "pass" and not success:
            self._fail(number, policy, run, "refused")
        if success and expected not in ("pass", "may pass") and not is_golds:
            self._fail(number, policy, run, "accepted")
        if policy.group in _CONSTANT:
            self._constant(number, policy, run)
        if not success and not is_golds and expected not in ("pass", "may pass"):
            self._cover(run)

    def _is_golds(self, expected: Expected, run: PolicyRun) -> bool:
        """Whether an episode that should fail did the same as the reference solution, or left the same records.

        If other people acted differently or in another order because of it, something else may have been right.
        """
        if expected == "fail unless refused":
            return self._task.is_live and _accepted_writes(run) == self._writes_of_gold
        if expected not in ("fail unless gold's", "fail unless replaced"):
            return False
        if _events(run) != self._events_of_gold:
            return True
        if expected == "fail unless gold's" and _deeds(run) == self._gold:
            return True
        # In a live task, some actions of the reference solution may be useless, because a request is withdrawn.
        may_replace = expected == "fail unless replaced" or self._task.is_live
        return may_replace and run.end.answer == self._gold[1] and _same_records(_left(run), self._left_by_gold)

    def _constant(self, number: int, policy: Policy, run: PolicyRun) -> None:
        if run.verdict.success:
            self.report.constants[run.name] = self.report.constants.get(run.name, 0) + 1
            if self._task.kind == "action" and policy.expected == "may pass":
                self._fail(number, policy, run, "accepted, although the task requires a write")
        elif run.verdict.light:
            self._fail(number, policy, run, "light validation accepts it")
        if policy.group == "idle" and run.verdict.reward("dense") > 0:
            self._fail(number, policy, run, "it gets a dense reward above 0")

    def _is_redundant(self, name: str) -> bool:
        """Whether this check can never fail alone.

        If all write tools are prohibited, each extra write also fails the check for prohibited tools. If no tool is
        prohibited, the check for prohibited tools cannot fail.
        """
        prohibited = set(self._task.prohibited_tools)
        return (name == NOTHING_ELSE and prohibited >= _WRITE_TOOLS) or (name == PROHIBITED and not prohibited)

    def _cover(self, run: PolicyRun) -> None:
        """Record a check that failed alone, among all checks or among the checks of light validation."""
        failed = run.verdict.failed
        lightly = [check for check in failed if check.level == "exists"]
        for few in (failed, lightly):
            names = [self._unnumbered(check.name) for check in few]
            if len(names) == 1 and names[0] not in self.report.covered:
                self.report.covered.append(names[0])

    def _unnumbered(self, name: str) -> str:
        """Return the name of a check; in live tasks, where the requests of each variation differ, without numbers."""
        return _NUMBER.sub("", name) if self._task.is_live else name

    def _fail(self, number: int, policy: Policy, run: PolicyRun, problem: str) -> None:
        self.report.failures.append(
            Failure(
                self._task.pack,
                self._task.key,
                number,
                policy.group,
                run.name,
                problem,
                policy.grading,
                tuple(action.text() for action in run.actions),
                run.verdict.explanation,
            )
        )


def _deeds(run: PolicyRun) -> tuple[list[tuple[Action, Json]], Json]:
    """The writes, with their contents, and the answer of an episode."""
    writes = [action for action in run.actions if action.kind in WRITES]
    return [(replace(write, body=None), _content(write.body)) for write in writes], run.end.answer


def _content(body: str | None) -> Json:
    """The content of a body: two texts of the same JSON are equal."""
    try:
        return json.loads(body or "null")
    except ValueError:
        return body


def _left(run: PolicyRun) -> dict[str, Resource | None]:
    """The written records as the episode leaves them, by reference, without those that it leaves as they were."""
    return {
        f"{change.resource_type}/{change.id}": change.after
        for change in run.end.changes
        if change.before is None or change.after is None or not same_record(change.before, change.after)
    }


def _events(run: PolicyRun) -> list[tuple[str, str]]:
    """What other people did, in order: the names of the events and the URLs.

    Somebody who acts later than in the reference episode acts differently, too: other ids are assigned.
    """
    return [(request.event, request.logged.action.url) for request in run.end.timeline if request.event]


def _accepted_writes(run: PolicyRun) -> list[tuple[str, str, str]]:
    """The agent's writes that the server did not refuse, in order: the interaction, the type and the id."""
    done = (interaction for logged in run.end.requests for interaction in logged.response.done)
    return [
        (interaction.kind, interaction.resource_type, interaction.id)
        for interaction in done
        if not interaction.looks and interaction.status < 400
    ]


def _same_records(some: Mapping[str, Resource | None], others: Mapping[str, Resource | None]) -> bool:
    """Whether two episodes wrote the same records and leave them identical."""
    return some.keys() == others.keys() and all(
        resource is other or (resource is not None and other is not None and same_record(resource, other))
        for resource, other in ((some[name], others[name]) for name in some)
    )


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
