"""Audit tasks: derive each answer again from the world, then reject the task or keep it with a confidence score."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Literal

from fhir_gym.art_curation.confidence import REVIEW_BELOW, Signal, confidence, signals
from fhir_gym.art_curation.examination import Examination, ExaminationError, disagreements, examine, moment, plan_faults
from fhir_gym.art_curation.exported import Extract, extract
from fhir_gym.art_curation.rederivation import places
from fhir_gym.art_curation.wording import changes, has, hours_said, instants, senses
from fhir_gym.errors import ArgumentError, TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks.core.dates import instant
from fhir_gym.tasks.packs.action_reasoning.cases import CaseSpec, ReasoningCase
from fhir_gym.tasks.packs.action_reasoning.external_cases import inferred
from fhir_gym.tasks.packs.action_reasoning.orders import ORDERS
from fhir_gym.tasks.packs.action_reasoning.phrasing import ENDINGS, context, instruction, rounding
from fhir_gym.tasks.packs.action_reasoning.ranges import LABS, RANGES, ReferenceRange
from fhir_gym.tasks.packs.action_reasoning.series import PatientSummary
from fhir_gym.types import Json

_TITLE = "Reference range(?:s)? of {title}: (.*?)\\.(?=\\s|$)"
_ROW = re.compile(
    r"(?:(?P<who>women|men|girls|boys|people|children) aged (?P<first>\d+) (?:to (?P<last>\d+)|or older): )?"
    r"(?P<low>\d+(?:\.\d+)?) to (?P<high>\d+(?:\.\d+)?) (?P<unit>[^\s;]+)"
)
_SEXES = {"women": "female", "girls": "female", "men": "male", "boys": "male"}
_DECIMALS = ("a whole number", "one decimal", "two decimals", "three decimals")
_RULES = {
    "limit": re.compile(r"equal to (?:a|the|its|either) limit\b", re.IGNORECASE),
    "edge": re.compile(r"\bboth ends\b|\bends included\b|\binclusive\b", re.IGNORECASE),
    "tie": re.compile(r"\bissued later counts\b", re.IGNORECASE),
    "void": re.compile(r"\bcancelled\b.*\bentered-in-error\b.*\bnot count\b", re.IGNORECASE | re.DOTALL),
    "later": re.compile(r"\bafter that moment do not count\b", re.IGNORECASE),
    "half": re.compile(r"\bhalf up\b", re.IGNORECASE),
}
"""Pattern that matches each rule in a prompt."""

_AGE = re.compile(r"\b(\d{1,3})[- ]years?[- ]old\b|\bage(?:d)? (\d{1,3})\b", re.IGNORECASE)
_ADULT = 18
_OLD = 60
"""Minimum age at which a prompt may call a patient elderly."""


def prompt(case: ReasoningCase, plan: CaseSpec) -> str:
    """Return the prompt of a task; if an external case asks for a mean, the prompt includes the rounding rule."""
    told = rounding(plan.digits) if case.plan is None and plan.family == "aggregation" else ""
    return "\n\n".join((case.context, told, case.instruction, ENDINGS[plan.family]))


def facts_missing(case: ReasoningCase, plan: CaseSpec, now: datetime) -> Iterator[str]:
    """Yield required facts that instruction and context lack, and stated facts that contradict the specification."""
    lab, text = LABS[plan.lab], f"{case.instruction}\n{case.context}"
    if not has(case.instruction, case.eval_MRN):
        yield f"the instruction does not name the patient {case.eval_MRN}"
    if case.plan is None:  # the prompt adds the facts that an external case omits
        return
    if not has(case.instruction.lower(), lab.title):
        yield f"the instruction does not name {lab.title}"
    if f"Lab code: {plan.lab}" not in text or not has(text, plan.lab):
        yield f"the text does not give the lab code {plan.lab}"
    if not has(text, plan.unit):
        yield f"the text does not give the unit {plan.unit}"
    yield from _time_missing(case, plan, now)
    if plan.family == "aggregation":
        if not senses(case.instruction) & {"mean"}:
            yield "the instruction does not ask for an average"
        if f"to {_DECIMALS[plan.digits]}" not in text:
            yield f"the text does not ask for {_DECIMALS[plan.digits]}"
    elif "latest" not in senses(case.instruction):
        yield "the instruction does not ask for the latest result"
    if plan.family == "conditional":
        yield from _order_missing(case, plan)
        yield from _table_faults(text, plan)


def rules_missing(case: ReasoningCase, plan: CaseSpec, examination: Examination) -> Iterator[str]:
    """Yield the rules on which the answer depends but which the prompt does not state."""
    text = prompt(case, plan)
    needed: dict[str, str] = {}
    if examination.value is not None and examination.value in (
        examination.limits.get("low"),
        examination.limits.get("high"),
    ):
        needed["limit"] = "the value is exactly a limit"
    reading = examination.reading
    ends = (reading.start, reading.end)
    if any(row.taken in ends for row in (*reading.counted, *reading.foreign)):
        needed["edge"] = "a result was taken exactly at an end of the window"
    if reading.replaced:
        needed["tie"] = "two results were taken at the same time"
    if any(row.value is not None for row in reading.void):
        needed["void"] = "there are withdrawn results"
    if reading.later:
        needed["later"] = "there are results after the reference time"
    if plan.family == "aggregation":
        needed["half"] = "the mean must be rounded"
    for name, why in needed.items():
        if not _RULES[name].search(text):
            yield f"{why}, but the text has no rule for it"


def untruths(case: ReasoningCase, plan: CaseSpec, examination: Examination, extract: Extract) -> Iterator[str]:
    """Yield false statements about the patient, and references to other patients."""
    age = examination.age
    for match in _AGE.finditer(case.instruction):
        if int(match[1] or match[2]) != age:
            yield f"the patient is {age} years old, but the text says {match[0]!r}"
    said = senses(case.instruction)
    for sex in ("male", "female"):
        if sex in said and examination.person.gender != sex:
            yield f"the patient is {examination.person.gender}, but the instruction says {sex}"
    if age is not None and age < _ADULT and re.search(r"\b(?:wo)?man\b", case.instruction):
        yield f"the patient is {age} years old, but the instruction calls the patient an adult"
    if "old" in said and (age is None or age < _OLD):
        yield f"the patient is {age} years old, but the instruction calls the patient elderly"
    text = f"{case.instruction}\n{case.context}"
    for word in dict.fromkeys(re.findall(r"\w+", text)):
        if word in extract.people and word != case.eval_MRN:
            yield f"the text names another patient: {word}"


def wording(case: ReasoningCase, plan: CaseSpec, examination: Examination, now: datetime) -> tuple[bool, list[str]]:
    """Return whether the instruction differs from its template, and the errors in the text.

    The context contains the rules and is never reworded.
    """
    who = examination.person
    person = PatientSummary(who.id, who.name, who.gender or "", birth_date=None)
    order = ORDERS[plan.order] if plan.order else None
    template = instruction(plan, person, examination.age, instant(now), order)
    faults = []
    if case.context != context(plan, person, examination.age, order):
        faults.append("the context differs from the specification")
    if case.instruction == template:
        return False, faults
    kept = [LABS[plan.lab].title, *([order.name] if order else [])]
    told = changes(template, case.instruction, names=[who.name], phrases=kept)
    return True, [*faults, *(f"compared with its template, the instruction {change}" for change in told)]


def _time_missing(case: ReasoningCase, plan: CaseSpec, now: datetime) -> Iterator[str]:
    """Yield the errors in how the instruction states the time window and the reference time."""
    said = set(hours_said(case.instruction))
    hours = set() if plan.window_hours is None else {Decimal(str(plan.window_hours))}
    if hours - said:
        yield f"the instruction does not say {plan.window_hours:g} hours"
    if said - hours:
        yield f"the instruction says {', '.join(map(str, sorted(said - hours)))} hours"
    moments, as_of = set(instants(case.instruction)), moment(plan.as_of)
    if moments - {as_of}:
        yield "the instruction names another reference time"
    if not moments and as_of != now:
        yield f"the instruction does not name the reference time {plan.as_of}"


def _order_missing(case: ReasoningCase, plan: CaseSpec) -> Iterator[str]:
    order = ORDERS[plan.order or ""]
    text = f"{case.instruction}\n{case.context}"
    if order.name.lower() not in case.instruction.lower():
        yield f"the instruction does not say {order.name}"
    for token in (order.code, order.system, order.resource_type):
        if not has(text, token):
            yield f"the text does not give {token}"
    dose = order.dose
    about = (order.priority,) if dose is None else (dose.route, f"{dose.value:g} {dose.unit}")
    for token in filter(None, about):
        if not has(case.context, token):
            yield f"the text does not give {token}"
    said = senses(case.instruction)
    side = {"low": "below", "high": "above", "outside": "outside"}[plan.direction or "outside"]
    if side not in said and not (side == "outside" and {"inside", "not"} <= said):
        yield f"the instruction does not say {plan.direction}"
    if {"below", "above", "outside"} & said - {side}:
        yield f"the instruction names a side of the range other than {plan.direction}"


def _table_faults(text: str, plan: CaseSpec) -> Iterator[str]:
    """Yield an error if the text does not contain the complete table of ranges exactly once."""
    tables = re.findall(_TITLE.format(title=re.escape(LABS[plan.lab].title)), text)
    if len(tables) != 1:
        yield f"the text has {len(tables)} tables of ranges of {plan.lab}"
        return
    said = {_row_said(match) for match in _ROW.finditer(tables[0])}
    right = {_row_of(row, plan) for row in RANGES[plan.lab]}
    if said != right or tables[0].count(";") != len(right) - 1:
        yield f"the table of ranges of {plan.lab} lacks or changes {len(right - said) or 1} of its {len(right)} rows"


def _row_said(match: re.Match[str]) -> tuple[object, ...]:
    first, last = match["first"], match["last"]
    return (
        _SEXES.get(match["who"] or ""),
        int(first or 0),
        None if last is None else int(last),
        Decimal(match["low"]),
        Decimal(match["high"]),
        match["unit"],
    )


def _row_of(row: ReferenceRange, plan: CaseSpec) -> tuple[object, ...]:
    share = 1 + Decimal(str(plan.shift))
    digits = LABS[plan.lab].digits
    limits = [places(Decimal(str(limit)) * share, digits) for limit in (row.low, row.high)]
    return (row.sex, row.first_age, row.last_age, *limits, row.unit)


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
        return tuple(audited.case for audited in self.kept)

    @property
    def doubtful(self) -> tuple[Audited, ...]:
        """The kept tasks that a person should review."""
        return tuple(audited for audited in self.kept if audited.doubtful)

    def reasons(self) -> dict[str, int]:
        """Return the number of rejected tasks for each reason; a task with several reasons counts for each."""
        counts = Counter(kind for dropped in self.dropped for kind in {reason.kind for reason in dropped.reasons})
        return dict(sorted(counts.items()))

    def signals(self) -> dict[str, int]:
        """Return the number of kept tasks for each signal, most frequent signal first."""
        counts = Counter(signal.name for audited in self.kept for signal in audited.signals)
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
                {"id": dropped.case.id, "reasons": [{"kind": r.kind, "text": r.text} for r in dropped.reasons]}
                for dropped in self.dropped
            ],
            "confidence": {audited.case.id: audited.confidence for audited in self.kept},
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
        ArgumentError: `source` is a folder and `now` is missing.
        WorldError: The source is not readable.
    """
    if isinstance(source, World):
        now = source.now
    if now is None:
        raise ArgumentError("the argument now is required: an export does not contain the current time")
    labs = {case.plan.lab for case in cases if case.plan} if all(case.plan for case in cases) else set(LABS)
    extracted = extract(source, labs, {case.eval_MRN for case in cases}, now=now)
    seen = _Seen()
    kept: list[Audited] = []
    dropped: list[Dropped] = []
    for case in cases:
        result = _audited(case, extracted, seen)
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
    for audited in report.kept:
        if not audited.doubtful:
            strata[audited.stratum].append(audited)
    for name, members in strata.items():
        random.Random(f"{seed}/{name}").shuffle(members)
    left = [strata[name] for name in sorted(strata)]
    chosen: set[str] = set()
    while len(chosen) < sample and (left := [members for members in left if members]):
        for members in left[: sample - len(chosen)]:
            chosen.add(members.pop().case.id)
    picked = ((audited, "doubtful" if audited.doubtful else "sample") for audited in report.kept)
    return tuple((audited, why) for audited, why in picked if why == "doubtful" or audited.case.id in chosen)


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
        examination = examine(case, plan, extract)
    except ExaminationError as error:
        return (Reason("disagrees", str(error)),)
    reworded, changed = wording(case, plan, examination, extract.now) if own else (False, [])
    reasons = (*_reasons(case, plan, examination, extract), *(Reason("text", text) for text in changed))
    reasons += tuple(seen.reasons(case, plan))
    if reasons:
        return reasons
    raised = signals(plan, examination, extract.now, reworded=reworded, own=own)
    return Audited(case, plan, examination, raised, confidence(raised))


def _reasons(case: ReasoningCase, plan: CaseSpec, examination: Examination, extract: Extract) -> Iterator[Reason]:
    for text in disagreements(case, examination):
        yield Reason("disagrees", text)
    for text in examination.doubts:
        yield Reason("ambiguous", text)
    for text in facts_missing(case, plan, extract.now):
        yield Reason("text", text)
    for text in rules_missing(case, plan, examination):
        yield Reason("ambiguous", text)
    for text in untruths(case, plan, examination, extract):
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
