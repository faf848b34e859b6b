"""Run the probe: collect scenes, train the learners and compare them with fair guesses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fhir_gym.fhir import World
from fhir_gym.soundness.probe.features import Background
from fhir_gym.soundness.probe.models import (
    Table,
    build_table,
    count_records,
    hits,
    predict_answers,
    require_sklearn,
    rule_hits,
    scores,
    single_features,
)
from fhir_gym.soundness.probe.report import LEARNERS, BlindReport, ProbeReport, RankerReport, TaskProbe
from fhir_gym.soundness.probe.scenes import Scene, scenes_of
from fhir_gym.soundness.task_check import Progress
from fhir_gym.soundness.workers import run_jobs
from fhir_gym.tasks.core.registry import get_task, task_keys
from fhir_gym.tasks.core.splits import TEST_START, require_variation
from fhir_gym.tasks.core.task import Task

RARE = 1e-3
"""Maximum probability that fair guesses exceed the bound by chance."""


def max_lucky_hits(chances: Iterable[float], rare: float = RARE) -> int:
    """Return the number of hits that fair guesses exceed with a probability of at most `rare`.

    The number of hits follows a Poisson binomial distribution, because each trial has its own probability.

    Args:
        chances: Probability of a hit in each trial.
        rare: Maximum probability of exceeding the returned number.
    """
    distribution = np.ones(1)
    for chance in chances:
        distribution = np.append(distribution * (1 - chance), 0.0) + np.append(0.0, distribution * chance)
    return int(np.searchsorted(np.cumsum(distribution), 1 - rare))


_MOST_ABOVE_FAIR = 1.3
_MOST_ABOVE_MAJORITY = 1.1
_LEAST_USUAL = 0.1
"""Minimum share of the most frequent answer to count as the usual answer.

If there is a usual answer, a second learner predicts whether the answer is the usual one.
"""
_FEWEST = 20
"""Minimum number of scenes with a target in each split. If there are fewer, no learner searches for the target."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How many variations the probe uses, and how strict it is.

    Attributes:
        train: Number of training variations; they are numbered from 0.
        test: Number of test variations; they are numbered from the start of the test split.
        strict: Whether absolute limits apply too. The learner that is trained on all candidates may find the target
            at most 1.3 times as often as a fair guess. Predicted answers may be right at most 1.1 times as often as
            the most frequent answer. These limits need many test variations.
    """

    train: int = 200
    test: int = 300
    strict: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers of variations that a split does not have."""
        require_variation(self.numbers[self.train - 1], "train")
        require_variation(self.numbers[-1], "test")

    @property
    def numbers(self) -> list[int]:
        """Numbers of the variations."""
        return [*range(self.train), *range(TEST_START, TEST_START + self.test)]


QUICK, SLOW = Effort(), Effort(train=400, test=1_000, strict=True)


def probe(
    world: World,
    chosen: Sequence[Task[Any]],
    effort: Effort = QUICK,
    *,
    workers: int = 0,
    progress: Progress | None = None,
) -> ProbeReport:
    """Probe tasks on a world.

    Args:
        world: The world.
        chosen: The tasks. Tasks with the same prompts are probed too, because one learner predicts all their answers.
        effort: Numbers of variations, and strictness.
        workers: Number of worker processes; 0 to run in this process.
        progress: Progress callback.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    require_sklearn()
    names = {(task.pack, task.key) for task in chosen}
    pools = _pools(chosen)
    reports: dict[tuple[str, str], TaskProbe] = {}
    jobs, packs = [(pool, effort) for pool in pools], dict.fromkeys(task.pack for task in chosen)
    for done, part in enumerate(run_jobs(probe_pool, world, jobs, packs, workers), 1):
        reports |= {(task.env, task.task): task for task in part if (task.env, task.task) in names}
        if progress is not None:
            progress(f"{part[0].env} {part[0].task}", done, len(pools))
    return ProbeReport(tuple(reports[task.pack, task.key] for task in chosen))


def _pools(chosen: Iterable[Task[Any]]) -> list[list[Task[Any]]]:
    """Group the tasks of a pack that have the same prompts."""
    pools: dict[tuple[Any, ...], list[Task[Any]]] = {}
    for task in chosen:
        if _prompts(task) not in pools:
            others = (get_task(task.pack, key) for key in task_keys(task.pack)) if task.pack else ()
            pools[_prompts(task)] = [other for other in others if _prompts(other) == _prompts(task)]
    return list(pools.values())


def _prompts(task: Task[Any]) -> tuple[Any, ...]:
    return task.pack, task.prompts, task.answer_instructions, task.level


def probe_pool(world: World, tasks: Sequence[Task[Any]], effort: Effort = QUICK) -> list[TaskProbe]:
    """Probe tasks that share their prompts. Targets are predicted for each task, answers for all tasks together."""
    scenes = {task.key: list(scenes_of(task, world, effort.numbers)) for task in tasks}
    blind = _blind(scenes, effort)
    return [
        TaskProbe(
            task.pack,
            task.key,
            any(scene.declared for scene in scenes[task.key]),
            _ranker(scenes[task.key], world, effort),
            blind,
            tuple(f"variation {scene.number}: {scene.mismatch}" for scene in scenes[task.key] if scene.mismatch),
        )
        for task in tasks
    ]


def _ranker(scenes: Sequence[Scene], world: World, effort: Effort) -> RankerReport | None:
    """Search for targets of each resource type and return the worst report; None if there are too few scenes."""
    reports = []
    for kind in dict.fromkeys(scene.target.partition("/")[0] for scene in scenes if scene.target):
        # A target that does not qualify is reported as a mismatch.
        aimed = [scene for scene in scenes if scene.target.startswith(f"{kind}/") and scene.target in scene.qualifying]
        learnt = sum(scene.number < TEST_START for scene in aimed)
        if min(learnt, len(aimed) - learnt) >= _FEWEST:
            table = build_table(aimed, kind, Background(world))
            reports.append(_ranked(kind, table.part(table.groups[:learnt]), table.part(table.groups[learnt:]), effort))
    return max(reports, key=lambda report: report.best - report.bound, default=None)


def _ranked(kind: str, train: Table, test: Table, effort: Effort) -> RankerReport:
    scored = scores(train, test)
    fair = [group.fair for group in test.groups]
    return RankerReport(
        kind,
        tried=len(test.groups),
        top=_share(hits(test, scored)),
        top_within=_share(hits(test, scores(train, test, within=True))),
        top_rule=_share(rule_hits(train, test)),
        top_of_all=_share(hits(test, scored, among_all=True)),
        fair=float(np.mean(fair)),
        qualifying=float(np.mean([len(group.qualifying) for group in test.groups])),
        bound=max_lucky_hits(fair, RARE / LEARNERS) / len(fair),
        ceiling=_MOST_ABOVE_FAIR * float(np.mean(fair)) if effort.strict else 1.0,
        telling=tuple(single_features(train.part([*train.groups, *test.groups]))),
    )


def _share(outcomes: Sequence[bool]) -> float:
    return sum(outcomes) / len(outcomes)


def _blind(scenes: Mapping[str, Sequence[Scene]], effort: Effort) -> BlindReport:
    """Predict the answer, and whether it is the usual one (such as "there is none"); return the worse report."""
    everyone = [scene for some in scenes.values() for scene in some]
    everyone.sort(key=lambda scene: scene.number >= TEST_START)
    learnt = sum(scene.number < TEST_START for scene in everyone)
    rows = count_records(everyone)
    questions = {"the answer": [scene.answer for scene in everyone]}
    usual, count = Counter(scene.said for scene in everyone).most_common(1)[0]
    if _LEAST_USUAL <= count / len(everyone) < 1:
        questions["the usual answer or another"] = [
            scene.said if scene.said == usual else f"not {usual}" for scene in everyone
        ]
    reports = []
    for question, answers in questions.items():
        guessed = predict_answers(rows[:learnt], answers[:learnt], rows[learnt:])
        shares = {answer: number / len(answers) for answer, number in Counter(answers).items()}
        shares.pop(f"not {usual}", None)  # the label "not …" is not an answer
        share = _share_of_whole_answers(scenes) if everyone[0].is_part else max(shares.values())
        reports.append(_compared(tuple(scenes), question, answers, guessed, share, effort))
    return max(reports, key=lambda report: (report.leaks, report.lopsided, report.right - report.bound))


def _share_of_whole_answers(scenes: Mapping[str, Sequence[Scene]]) -> float:
    """Return the share of the most frequent answer to a whole prompt with several requests."""
    answers: dict[tuple[str, int], list[str]] = {}
    for task, some in scenes.items():
        for scene in some:
            answers.setdefault((task, scene.number), []).append(scene.said)
    return Counter(map(tuple, answers.values())).most_common(1)[0][1] / len(answers)


def _compared(
    tasks: tuple[str, ...],
    question: str,
    answers: Sequence[str],
    guessed: Sequence[str],
    share_of_all: float,
    effort: Effort,
) -> BlindReport:
    right = answers[-len(guessed) :]
    majority, count = Counter(right).most_common(1)[0]
    share = count / len(right)
    allowed = min(1.0, _MOST_ABOVE_MAJORITY * share)
    bound = max_lucky_hits([share if effort.strict else allowed] * len(right)) / len(right)
    return BlindReport(
        tasks,
        question,
        tried=len(right),
        right=_share([answer == guess for answer, guess in zip(right, guessed, strict=True)]),
        majority=majority,
        share=share,
        share_of_all=share_of_all,
        classes=len(set(answers)),
        bound=max(bound, allowed) if effort.strict else bound,
    )
