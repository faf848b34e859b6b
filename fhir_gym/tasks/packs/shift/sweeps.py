"""The judgement of sweeps: requests about many records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fhir_gym.tasks.packs.shift.kind import Judgement
from fhir_gym.types import Json

_MOST_SHOWN = 12
"""Number of problems that a judgement shows."""


@dataclass(frozen=True, slots=True)
class RecordVerdict:
    """The verdict on one record of a sweep, together with the records that change with it.

    Attributes:
        record: Reference to the record.
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
    due = sum(one.due for one in records)
    right = sum(one.due and one.problem is None for one in records)
    lost = sum(one.harmed for one in records) + (answer != outcome)
    problems: list[Json] = [{one.record: one.problem} for one in records if one.problem is not None]
    return Judgement(
        right=not problems and answer == outcome,
        harmed=any(one.harmed for one in records),
        expected=f"{outcome}, {due} of {due} records",
        found=[f"{answer or 'no outcome'}, {right} of {due} records", *problems[:_MOST_SHOWN]],
        claimed=claimed,
        by_record=max(-1.0, (right - lost) / due),
    )
