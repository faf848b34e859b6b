"""Audit tasks: derive each answer again from the world, then reject the task or keep it with a confidence score."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from fhir_gym.art_curation.confidence import REVIEW_BELOW, Signal, confidence, signals
from fhir_gym.art_curation.examination import Examination, ExaminationError, disagreements, examine, moment, plan_faults
from fhir_gym.art_curation.exported import Extract, extract
from fhir_gym.art_curation.prompt_audit import facts_missing, rules_missing, untruths, wording
from fhir_gym.errors import FhirGymError, TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks.core.dates import instant
from fhir_gym.tasks.packs.action_reasoning.cases import CaseSpec, ReasoningCase
from fhir_gym.tasks.packs.action_reasoning.external_cases import inferred
from fhir_gym.tasks.packs.action_reasoning.ranges import LABS
from fhir_gym.types import Json

Kind = Literal["plan", "disagrees", "ambiguous", "text", "duplicate"]
"""Reasons for rejecting a task.

`plan`: the specification is invalid. `disagrees`: the world gives another answer. `ambiguous`: the rules in the prompt
do not determine the answer. `text`: the prompt lacks a fact or states a false fact. `duplicate`: an earlier task asks
the same question.
"""


@dataclass(frozen=True, slots=True)
class Reason:
    """One problem of a task."""

    kind: Kind
    text: str


@dataclass(frozen=True)
class Audited:
    """A kept task.

    Attributes:
        case: The task.
        plan: Specification of the task; inferred from the text if the task is an external case.
        found: Result of deriving the answer again.
        signals: Warning signs that a reviewer should check.
        confidence: Confidence from 0 to 1 that the task is sound.
    """

    case: ReasoningCase
    plan: CaseSpec
    found: Examination
    signals: tuple[Signal, ...]
    confidence: float

    @property
    def doubtful(self) -> bool:
        """Whether a person should review the task."""
        return self.confidence <= REVIEW_BELOW

    @property
    def stratum(self) -> str:
        """Sampling stratum: the kind of task with its laboratory test or, for conditional tasks, its category."""
        return f"{self.plan.family} {self.case.ground_truth.value_category or self.plan.lab}"


@dataclass(frozen=True)
class Dropped:
    """A rejected task and its problems."""

    case: ReasoningCase
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class AuditReport:
    """Kept and rejected tasks, each in input order."""

    kept: tuple[Audited, ...]
    dropped: tuple[Dropped, ...]

    @property
    def cases(self) -> tuple[ReasoningCase, ...]:
        """The kept tasks."""
        return tuple(one.case for one in self.kept)

    @property
    def doubtful(self) -> tuple[Audited, ...]:
        """The kept tasks that a person should review."""
        return tuple(one for one in self.kept if one.doubtful)

    def reasons(self) -> dict[str, int]:
        """Return the number of rejected tasks for each reason; a task with several reasons counts for each."""
        counts = Counter(kind for one in self.dropped for kind in {reason.kind for reason in one.reasons})
        return dict(sorted(counts.items()))

    def signals(self) -> dict[str, int]:
        """Return the number of kept tasks for each signal, most frequent signal first."""
        counts = Counter(signal.name for one in self.kept for signal in one.signals)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def plain(self) -> dict[str, Json]:
        """Return the report as JSON data."""
        return {
            "tasks": len(self.kept) + len(self.dropped),
            "kept": len(self.kept),
            "doubtful": len(self.doubtful),
            "reasons": self.reasons(),
            "signals": self.signals(),
            "dropped": [
                {"id": one.case.id, "reasons": [{"kind": r.kind, "text": r.text} for r in one.reasons]}
                for one in self.dropped
            ],
            "confidence": {one.case.id: one.confidence for one in self.kept},
        }


def audit_cases(cases: Sequence[ReasoningCase], source: World | Path, *, now: datetime | None = None) -> AuditReport:
    """Check tasks against their world.

    The audit derives every answer again, in plain Python and decimal arithmetic, from exported resources. It shares no
    code with the search, mining and derivation that made the tasks.

    Args:
        cases: The tasks. For external cases, the audit checks the answer against the limits that the case itself
            states; it does not check the wording.
        source: The world, or a folder that contains the world's resources as NDJSON.
        now: Current time; required if `source` is a folder, ignored if it is a world.

    Raises:
        FhirGymError: `source` is a folder and `now` is missing.
        WorldError: The source is not readable.
    """
    if isinstance(source, World):
        now = source.now
    if now is None:
        raise FhirGymError("the argument now is required: an export does not contain the current time")
    labs = {case.plan.lab for case in cases if case.plan} if all(case.plan for case in cases) else set(LABS)
    found = extract(source, labs, {case.eval_MRN for case in cases}, now=now)
    seen = _Seen()
    kept: list[Audited] = []
    dropped: list[Dropped] = []
    for case in cases:
        result = _audited(case, found, seen)
        if isinstance(result, Audited):
            kept.append(result)
            seen.add(case, result.plan)
        else:
            dropped.append(Dropped(case, result))
    return AuditReport(tuple(kept), tuple(dropped))


def for_review(report: AuditReport, *, sample: int = 60, seed: int = 0) -> tuple[tuple[Audited, str], ...]:
    """Select the tasks for human review: all doubtful tasks and a sample of the others.

    Args:
        report: The audit.
        sample: Number of sampled tasks, spread evenly over the strata.
        seed: Seed for choosing the sample.

    Returns:
        Tasks in the report's order, each with the reason for its review: ``doubtful`` or ``sample``.
    """
    strata: dict[str, list[Audited]] = defaultdict(list)
    for one in report.kept:
        if not one.doubtful:
            strata[one.stratum].append(one)
    for name, members in strata.items():
        random.Random(f"{seed}/{name}").shuffle(members)
    left = [strata[name] for name in sorted(strata)]
    chosen: set[str] = set()
    while len(chosen) < sample and (left := [members for members in left if members]):
        for members in left[: sample - len(chosen)]:
            chosen.add(members.pop().case.id)
    picked = ((one, "doubtful" if one.doubtful else "sample") for one in report.kept)
    return tuple((one, why) for one, why in picked if why == "doubtful" or one.case.id in chosen)


def _audited(case: ReasoningCase, extract: Extract, seen: _Seen) -> Audited | tuple[Reason, ...]:
    own = case.plan is not None
    try:
        plan = case.plan or inferred(case, instant(extract.now))
    except TaskError as error:
        return (Reason("plan", str(error)),)
    faults = tuple(Reason("plan", text) for text in plan_faults(plan, extract.now, own=own))
    if faults:
        return faults
    try:
        found = examine(case, plan, extract)
    except ExaminationError as error:
        return (Reason("disagrees", str(error)),)
    reworded, changed = wording(case, plan, found, extract.now) if own else (False, [])
    reasons = (*_reasons(case, plan, found, extract), *(Reason("text", text) for text in changed))
    reasons += tuple(seen.reasons(case, plan))
    if reasons:
        return reasons
    raised = signals(plan, found, extract.now, reworded=reworded, own=own)
    return Audited(case, plan, found, raised, confidence(raised))


def _reasons(case: ReasoningCase, plan: CaseSpec, found: Examination, extract: Extract) -> Iterator[Reason]:
    for text in disagreements(case, found):
        yield Reason("disagrees", text)
    for text in found.doubts:
        yield Reason("ambiguous", text)
    for text in facts_missing(case, plan, extract.now):
        yield Reason("text", text)
    for text in rules_missing(case, plan, found):
        yield Reason("ambiguous", text)
    for text in untruths(case, plan, found, extract):
        yield Reason("text", text)


class _Seen:
    """The questions of the tasks kept so far."""

    def __init__(self) -> None:
        self._asked: dict[tuple[object, ...], str] = {}

    def add(self, case: ReasoningCase, plan: CaseSpec) -> None:
        """Remember the questions of a task."""
        for key in self._keys(case, plan):
            self._asked[key] = case.id

    def reasons(self, case: ReasoningCase, plan: CaseSpec) -> Iterator[Reason]:
        """Yield each reason why a task is a duplicate."""
        for key in self._keys(case, plan):
            if key in self._asked:
                yield Reason("duplicate", f"{self._asked[key]} has the same {key[0]}")

    @staticmethod
    def _keys(case: ReasoningCase, plan: CaseSpec) -> Iterator[tuple[object, ...]]:
        yield "id", case.id
        yield "text", " ".join(f"{case.instruction} {case.context}".casefold().split())
        yield "question", plan.family, plan.lab, case.eval_MRN, moment(plan.as_of), plan.window_hours
