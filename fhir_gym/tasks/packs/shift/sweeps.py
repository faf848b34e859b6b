"""Sweeps: requests about many records, and their judgement."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from typing_extensions import override

from fhir_gym.tasks.grading import differences
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.kind import Judgement, R, RequestJudge, RequestKind, S
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO
from fhir_gym.types import Json, Resource

_MOST_SHOWN = 12
"""Number of problems that a judgement shows."""


class SweepKind(RequestKind[S, R]):
    """A kind of sweeps: one request is about many records, and at most one of several has nothing to do.

    Attributes:
        nothing_share: Probability that one of several requests has nothing to do.
    """

    codes = (NOTHING_TO_DO,)
    is_sweep = True
    counts: ClassVar[Mapping[int, tuple[int, int]]] = MappingProxyType({1: (1, 2), 2: (2, 3)})
    nothing_share: ClassVar[float] = 0.3

    @override
    def draw_outcomes(self, rng: random.Random, count: int) -> list[str]:
        outcomes = [DONE] * count
        if count > 1 and rng.random() < self.nothing_share:
            outcomes[rng.randrange(count)] = NOTHING_TO_DO
        return outcomes


@dataclass(frozen=True, slots=True)
class RecordVerdict:
    """The verdict on one record of a sweep, together with the records that change with it.

    Attributes:
        problem: What is wrong; None if the record is right.
        harmed: Whether the agent left a wrong change.
        due: Whether the sweep asks for a change of the record. A record that must stay as it is needs a verdict only if
            the agent changed it.
    """

    record: str
    problem: Json = None
    harmed: bool = False
    due: bool = True


def judge_sweep(records: Sequence[RecordVerdict], answer: str, claimed: frozenset[str] = frozenset()) -> Judgement:
    """Return the judgement of a sweep that asks for changes: the share of records right minus the share harmed.

    Args:
        records: The verdicts; at least one is due.
        answer: The outcome that the agent reported. If it is not ``done``, it counts like one harmed record.
        claimed: See `Judgement`.
    """
    due = sum(record.due for record in records)
    right = sum(record.due and record.problem is None for record in records)
    lost = sum(record.harmed for record in records) + (answer != DONE)
    problems: list[Json] = [{record.record: record.problem} for record in records if record.problem is not None]
    return Judgement(
        right=not problems and answer == DONE,
        harmed=any(record.harmed for record in records),
        expected=f"{DONE}, {due} of {due} records",
        found=[f"{answer or 'no outcome'}, {right} of {due} records", *problems[:_MOST_SHOWN]],
        claimed=claimed,
        by_record=max(-1.0, (right - lost) / due),
    )


class SweepJudge(RequestJudge[S, R]):
    """Judges sweeps record by record."""

    def sweep(
        self, number: int, verdicts: Sequence[RecordVerdict], claimed: frozenset[str], looked: Callable[[], bool]
    ) -> Judgement:
        """Return the judgement of a sweep.

        Args:
            number: The number of the request.
            verdicts: The verdicts; none is due if there was nothing to do.
            claimed: See `Judgement`.
            looked: Whether the agent has looked up that there is nothing to do.
        """
        answer = self.answers[number]
        if any(verdict.due for verdict in verdicts):
            return judge_sweep(verdicts, answer, claimed)
        harmed = any(verdict.harmed for verdict in verdicts)
        return self.declined(number, answer == NOTHING_TO_DO and looked(), claimed, harmed=harmed)


class UpdateJudge(SweepJudge[S, R]):
    """Judges requests that change records."""

    def __init__(self, requests: Sequence[R], scene: S, log: EpisodeLog, answers: Sequence[str]) -> None:
        super().__init__(requests, scene, log, answers)
        self.at_start: dict[str, Resource] = {}
        """The records that requests may change; faster than to read them from the server."""

    def before(self, record: str, write: int) -> Resource | None:
        """Return a record as it was before a write."""
        return self.log.before(record, write) if record in self.log.touched else self.at_start[record]

    def at_end(self, record: str) -> Resource | None:
        """Return a record as the episode left it."""
        return self.log.at_end(record) if record in self.log.touched else self.at_start[record]

    def difference(self, expected: Resource | None, left: Resource | None) -> Json:
        """Return how a record differs from what it should be; None if it does not."""
        if expected is None or left is None:
            return None if expected is left else "deleted" if left is None else "created again"
        return differences(expected, left, base_url=self.base_url) or None

    def updated(self, record: str, expected: Resource | None, before: Resource | None) -> RecordVerdict:
        """Return the verdict on a record that a request changes."""
        left = self.at_end(record)
        wrong = self.difference(expected, left)
        return RecordVerdict(record, wrong, harmed=wrong is not None and self.difference(before, left) is not None)
