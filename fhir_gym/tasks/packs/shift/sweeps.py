"""Sweeps: requests about many records, and their judgement."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from typing_extensions import override

from fhir_gym.tasks.packs.shift.kind import Judgement, R, RequestJudge, RequestKind, S
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO
from fhir_gym.types import Json

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


def judge_sweep(
    records: Sequence[RecordVerdict], *, outcome: str, answer: str, claimed: frozenset[str] = frozenset()
) -> Judgement:
    """Return the judgement of a sweep that asks for changes: the share of records right minus the share harmed.

    Args:
        records: The verdicts; at least one is due.
        outcome: The right outcome. Another one counts like one harmed record.
        answer: The outcome that the agent reported.
        claimed: See `Judgement`.
    """
    due = sum(record.due for record in records)
    right = sum(record.due and record.problem is None for record in records)
    lost = sum(record.harmed for record in records) + (answer != outcome)
    problems: list[Json] = [{record.record: record.problem} for record in records if record.problem is not None]
    return Judgement(
        right=not problems and answer == outcome,
        harmed=any(record.harmed for record in records),
        expected=f"{outcome}, {due} of {due} records",
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
            return judge_sweep(verdicts, outcome=DONE, answer=answer, claimed=claimed)
        harmed = any(verdict.harmed for verdict in verdicts)
        return self.declined(number, answer == NOTHING_TO_DO and looked(), claimed, harmed=harmed)
