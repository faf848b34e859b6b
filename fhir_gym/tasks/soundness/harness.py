"""Prove tasks sound without a model: what must succeed does, what must fail does, and every check is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fhir_gym.actions import Finish
from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.grading import NOTHING_ELSE, PROHIBITED
from fhir_gym.tasks.registry import get_task, packs, task_keys
from fhir_gym.tasks.soundness.arena import Arena, Policy, Run, script
from fhir_gym.tasks.soundness.constants import always_create, constant_answers, other_variation
from fhir_gym.tasks.soundness.equivalents import equivalents
from fhir_gym.tasks.soundness.hasty import hasty_searches
from fhir_gym.tasks.soundness.near_misses import near_misses
from fhir_gym.tasks.soundness.recording import Recording
from fhir_gym.tasks.soundness.report import Failure, SoundnessReport, Tally, TaskReport
from fhir_gym.tasks.task import Task

__all__ = ["Progress", "check", "check_task"]

_WRITE_TOOLS = frozenset({"create", "update", "patch", "delete"})

Progress = Callable[[str, int, int], None]
"""Called with what is being tried, how many variations are done, and of how many."""


def check(
    world: World,
    env_ids: Iterable[str] | None = None,
    *,
    tasks: Iterable[str] | None = None,
    variations: int | Sequence[int] = 10,
    progress: Progress | None = None,
) -> SoundnessReport:
    """Try tasks on a world.

    Args:
        world: The world.
        env_ids: Packs; all of them if None.
        tasks: Keys of tasks; all of each pack if None.
        variations: Which variations, or how many from 0.
        progress: Told how far it is.

    Raises:
        UnknownNameError: There is no such pack or task.
    """
    numbers = range(variations) if isinstance(variations, int) else variations
    wanted = None if tasks is None else list(tasks)
    chosen = _chosen(list(env_ids or packs()), wanted)
    total = len(chosen) * len(numbers)
    reports = []
    for index, task in enumerate(chosen):

        def told(done: int, task: Task[Any] = task, index: int = index) -> None:
            if progress is not None:
                progress(f"{task.pack} {task.key}", index * len(numbers) + done, total)

        reports.append(check_task(task, world, numbers, told))
    return SoundnessReport(world.manifest.name, tuple(reports))


def _chosen(env_ids: list[str], wanted: list[str] | None) -> list[Task[Any]]:
    known = {env: task_keys(env) for env in env_ids}
    unknown = [key for key in wanted or [] if not any(key in keys for keys in known.values())]
    if unknown:
        raise UnknownNameError("task", unknown[0], dict.fromkeys(key for keys in known.values() for key in keys))
    return [get_task(env, key) for env, keys in known.items() for key in (wanted or keys) if key in keys]


def check_task(
    task: Task[Any], world: World, variations: Sequence[int], progress: Callable[[int], None] | None = None
) -> TaskReport:
    """Try one task.

    Args:
        task: The task; it must be registered.
        world: The world.
        variations: Which variations.
        progress: Told how many are done.
    """
    judge = _Judge(task)
    residents = _residents(task, world, variations)
    for done, number in enumerate(variations, 1):
        other = variations[done % len(variations)] if len(variations) > 1 else number + 1
        _try_variation(task, world, number, other, judge, residents)
        if progress is not None:
            progress(done)
    return judge.report


def _residents(task: Task[Any], world: World, variations: Sequence[int]) -> dict[str, str]:
    """A resource that the world itself holds, by type, for the types the task deals with."""
    kinds = {one["resourceType"] for number in variations[:1] for one in task.variation(number, world).setup}
    return {kind: ids[0] for kind in sorted(kinds) if (ids := world.ids(kind))}


def _try_variation(
    task: Task[Any], world: World, number: int, other: int, judge: _Judge, residents: Mapping[str, str]
) -> None:
    stranger = _recorded(task, world, other)
    with Arena(task, task.variation(number, world), world) as arena:
        run = arena.gold()
        judge.gold(number, run)
        if not run.verdict.success:
            return
        gold = Recording.of(run, arena.variation.setup, residents)
        for policy in _policies(task, arena, gold, stranger, run.end.base_url):
            for one in arena.run(policy):
                judge.policy(number, policy, one)


def _recorded(task: Task[Any], world: World, number: int) -> Recording:
    with Arena(task, task.variation(number, world), world) as arena:
        return Recording.of(arena.gold(), arena.variation.setup)


def _policies(task: Task[Any], arena: Arena, gold: Recording, stranger: Recording, base_url: str) -> Iterator[Policy]:
    params = arena.variation.params
    yield from equivalents(task, gold, base_url)
    yield from constant_answers(arena.variation.prompt)
    yield from always_create(task, gold)
    yield from other_variation(stranger, stranger.answer != gold.answer)
    yield from near_misses(task, gold, task.must_look(params))
    yield from hasty_searches(task, params, gold)
    whole = [*gold.actions, Finish(gold.answer)]
    for name, actions in task.near_misses(params, whole):
        yield Policy("by hand", name, script(actions))
    for name, actions in task.equivalents(params, whole):
        yield Policy("equivalent", name, script(actions))


class _Judge:
    """Judges the verdicts, and fills a task's report."""

    def __init__(self, task: Task[Any]) -> None:
        self._task = task
        self.report = TaskReport(task.pack, task.key)

    def gold(self, number: int, run: Run) -> None:
        """The reference solution must succeed, lightly too, in the steps it claims, and pass only for its own doing."""
        report, verdict = self.report, run.verdict
        report.variations += 1
        report.gold_steps = max(report.gold_steps, len(run.actions))
        for check in verdict.checks:
            if check.name not in report.checks and not self._is_redundant(check.name):
                report.checks.append(check.name)
        policy = Policy("gold", "gold", script(()))
        self.policy(number, policy, run)
        if verdict.light is False:
            self._fail(number, policy, run, "the light validation refuses it")
        if len(run.actions) > self._task.gold_steps:
            self._fail(number, policy, run, f"it takes {len(run.actions)} steps, not {self._task.gold_steps}")
        if len(verdict.idle) == len(verdict.checks):
            self._fail(number, policy, run, "an idle agent passes every check")

    def policy(self, number: int, policy: Policy, run: Run) -> None:
        """Compare a verdict with what the policy deserves."""
        tally = self.report.tallies.setdefault(policy.group, Tally())
        tally.runs += 1
        tally.passed += run.verdict.success
        if policy.passes is not None and run.verdict.success != policy.passes:
            self._fail(number, policy, run, "accepted" if run.verdict.success else "refused")
        if policy.group in ("idle", "constant answer"):
            if run.verdict.light:
                self._fail(number, policy, run, "the light validation accepts it")
            if policy.group == "idle" and run.verdict.reward("dense") > 0:
                self._fail(number, policy, run, "it has a dense reward")
        if policy.passes is False:
            self._cover(run)

    def _is_redundant(self, name: str) -> bool:
        """Whether nothing can fail this check alone.

        Where no tool may write, whatever writes has used a prohibited one; where every tool may be used, none is one.
        """
        prohibited = set(self._task.prohibited_tools)
        return (name == NOTHING_ELSE and prohibited >= _WRITE_TOOLS) or (name == PROHIBITED and not prohibited)

    def _cover(self, run: Run) -> None:
        """Note the checks that alone stood between a wrong episode and success, or light success."""
        failed = run.verdict.failed
        lightly = [check for check in failed if check.level == "exists"]
        for few in (failed, lightly):
            if len(few) == 1 and few[0].name not in self.report.covered:
                self.report.covered.append(few[0].name)

    def _fail(self, number: int, policy: Policy, run: Run, problem: str) -> None:
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
