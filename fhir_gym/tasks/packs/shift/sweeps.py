"""The judgement of sweeps: requests about many records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from fhir_gym.tasks.grading import parse_reference
from fhir_gym.tasks.packs.shift.kind import Judgement
from fhir_gym.types import Json, Resource

_MOST_SHOWN = 12
"""Number of problems that a judgement shows."""
_KNOWN = 4_096
"""Size limit of the cache of references."""


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


def record_name(record: Resource) -> str:
    """Return the reference to a record (``Patient/1``)."""
    return f"{record.get('resourceType')}/{record.get('id')}"


def target_of(value: Json, base_url: str = "") -> str:
    """Return what a Reference points to (``Patient/1``); empty for another value."""
    text = value.get("reference") if isinstance(value, dict) else None
    return _parsed(text, base_url) if isinstance(text, str) else ""


@lru_cache(_KNOWN)
def _parsed(reference: str, base_url: str) -> str:
    found = parse_reference(reference, base_url)
    return "/".join(found) if found else ""
