"""An episode as its diagnosis sees it: what was answered, what the agent was shown, and how it went step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import unquote_plus

from fhir_gym.tasks.action_reasoning.cases import CaseParams, GroundTruth, Plan
from fhir_gym.tasks.action_reasoning.deriving import due
from fhir_gym.tasks.action_reasoning.ranges import Range, find_range, others
from fhir_gym.tasks.action_reasoning.series import Chart
from fhir_gym.tasks.action_reasoning.sources import Records
from fhir_gym.tasks.checks import Check
from fhir_gym.tasks.clock import parse_instant
from fhir_gym.tasks.diagnosis import ErrorLabel
from fhir_gym.tasks.endstate import EndState, LoggedRequest
from fhir_gym.tasks.evidence import shown
from fhir_gym.tasks.grading import ANSWER_FORM, EVIDENCE
from fhir_gym.tasks.verdict import Verdict
from fhir_gym.types import Json, Resource

__all__ = ["FLAG", "STEP_OF", "VALUE", "Account", "Fault", "steps"]

VALUE = "answered value"
"""Name of the check of the answer's first item."""
FLAG = "answered whether an order is due"
"""Name of the check of its second."""

STEP_OF: Mapping[ErrorLabel, str] = MappingProxyType(
    {
        "format": "format",
        "missing retrieval": "retrieval",
        "incorrect value retrieved": "value",
        "hallucinated value": "value",
        "window boundary": "window",
        "incomplete inclusion": "inclusion",
        "arithmetic": "arithmetic",
        "context-insensitive range": "range",
        "boundary misclassification": "boundary",
        "wrong action": "action",
    }
)
"""The step each error is made in."""


class Fault(NamedTuple):
    """An error with what should have been, and what was.

    Attributes:
        label: The error.
        expected: What should have been.
        actual: What was.
    """

    label: ErrorLabel
    expected: Json
    actual: Json


@dataclass(frozen=True)
class Account:
    """All that a diagnosis rests on.

    Attributes:
        case: The task.
        plan: How it was made.
        end: How the episode ended.
        verdict: The judgement.
        records: The results in question, and which of them the agent was shown.
    """

    params: CaseParams
    plan: Plan
    end: EndState
    verdict: Verdict
    records: Records

    @classmethod
    def of(cls, params: CaseParams, plan: Plan, end: EndState, verdict: Verdict, chart: Chart) -> Account:
        """The account of an episode on a world."""
        series = chart.one(params.case.eval_MRN, plan.lab)
        own = {one.id for one in (*series.counted, *series.void, *series.superseded, *series.others)}
        observations = {
            reference.partition("/")[2]: resource
            for reference, resource in shown(end.requests).items()
            if reference.startswith("Observation/")
        }
        strangers = {
            _in_words(resource, params.case.eval_MRN): tuple(_numbers(resource))
            for id, resource in observations.items()
            if id not in own
        }
        records = Records(plan, parse_instant(params.now), series, frozenset(observations), strangers)
        return cls(params, plan, end, verdict, records)

    @property
    def ground(self) -> GroundTruth:
        """What is right."""
        return self.params.case.ground_truth

    @cached_property
    def checks(self) -> dict[str, Check]:
        """The verdict's checks by name."""
        return {check.name: check for check in self.verdict.checks}

    @property
    def form(self) -> Check:
        """The check of the answer's form."""
        return self.checks[ANSWER_FORM]

    @property
    def answer(self) -> float:
        """The number that was answered; of a well-formed answer only."""
        number: float = (self.end.answer or [])[0]
        return number

    @property
    def flag(self) -> bool:
        """What was answered about the order; of a well-formed answer only."""
        return bool((self.end.answer or [])[1])

    def passed(self, name: str) -> bool:
        """Whether a check passed, or is not made."""
        return name not in self.checks or self.checks[name].passed

    @cached_property
    def unseen(self) -> tuple[str, ...]:
        """Ids of deciding Observations the agent was not shown."""
        return tuple(id for id in self.params.deciding if id not in self.records.seen)

    @property
    def looked_up_patient(self) -> bool:
        """Whether the agent was shown the Patient, where it matters."""
        return f"Patient/{self.params.case.eval_MRN}" not in self.verdict.evidence.missing

    @cached_property
    def asked(self) -> bool:
        """Whether the agent asked for this patient's results of this test, whatever it found."""
        return bool(self.records.shown or self.records.uncounted) or any(self._asks(one) for one in self.end.requests)

    @cached_property
    def asked_for_span(self) -> bool:
        """Whether it asked for those of a span of time."""
        return any(self._asks(one) and "date=" in _query(one) for one in self.end.requests)

    @cached_property
    def action_failures(self) -> tuple[Check, ...]:
        """Checks that failed of what was stored or done."""
        other = (VALUE, FLAG, ANSWER_FORM, EVIDENCE)
        return tuple(check for check in self.verdict.failed if check.name not in other)

    @cached_property
    def row(self) -> Range | None:
        """The range that holds for the patient, with the limits of the task."""
        ground = self.ground
        found = find_range(self.plan.lab, ground.patient_gender, ground.patient_age)
        if found is None:
            return None
        found = found.shifted(self.plan.shift) if self.plan.shift else found
        low, high = ground.threshold_low, ground.threshold_high
        return replace(found, low=found.low if low is None else low, high=found.high if high is None else high)

    @cached_property
    def other_rows(self) -> tuple[Range, ...]:
        """The ranges of others: first the other sex at this age, then this sex at the next ages, then all else."""
        row, age = self.row, self.ground.patient_age
        if row is None or age is None:
            return ()
        rest = [one.shifted(self.plan.shift) if self.plan.shift else one for one in others(row)]
        return tuple(
            sorted(rest, key=lambda one: (not one.holds_for(one.sex, age), abs(one.first_age - row.first_age)))
        )

    def decides(self, row: Range) -> bool:
        """Whether a range asks for the order, given the right value."""
        return self.ground.value is not None and due(row, self.ground.value, self.plan.direction)

    def _asks(self, one: LoggedRequest) -> bool:
        words = _query(one)
        wanted = ("Observation", self.params.case.eval_MRN, self.plan.lab)
        return one.response.status < 300 and all(word in words for word in wanted)


def steps(account: Account, fault: Fault | None) -> Iterator[Check]:
    """How an episode went step by step.

    Args:
        account: The episode.
        fault: What the failure is put down to; its step did not pass. Steps that cannot be judged for it are left out.
    """
    culprit = STEP_OF[fault.label] if fault else None
    for name, passed, expected, actual in _judged(account, culprit):
        if fault is not None and name == culprit:
            yield Check(name=name, passed=False, expected=fault.expected, actual=fault.actual)
        else:
            yield Check(name=name, passed=passed, expected=expected, actual=actual)


def _judged(account: Account, culprit: str | None) -> Iterator[tuple[str, bool, Json, Json]]:
    """The steps that can be judged: name, whether it passed, what was expected and found."""
    evidence, form = account.verdict.evidence, account.form
    yield "format", form.passed, form.expected, form.actual
    yield "retrieval", evidence.sufficient, "all that decides was looked up", evidence.note
    if form.passed:
        yield from _of_value(account, culprit)
        if account.passed(VALUE) and account.plan.family == "conditional":
            yield from _of_decision(account, culprit)
    failures = account.action_failures
    yield "action", not failures, "what is due is done and nothing else", [check.name for check in failures]


def _of_value(account: Account, culprit: str | None) -> Iterator[tuple[str, bool, Json, Json]]:
    """The steps to the value, up to the one that went wrong."""
    if not account.passed(VALUE) and culprit == "retrieval":
        return
    average = account.plan.family == "aggregation"
    value, answer = account.checks[VALUE].expected, account.checks[VALUE].actual
    taken = [one.text for one in account.records.window]
    told: dict[str, tuple[Json, Json]] = {
        "value": ("a result of the patient and the test", answer),
        "window": (taken if average else taken[-1:], answer),
        "inclusion": (f"all {len(taken)} results", answer),
        "arithmetic": (value, answer),
    }
    for name in told:
        if name in ("inclusion", "arithmetic") and not average and name != culprit:
            continue
        yield name, True, *told[name]
        if name == culprit:
            return


def _of_decision(account: Account, culprit: str | None) -> Iterator[tuple[str, bool, Json, Json]]:
    """The steps from the value to the decision, up to the one that went wrong."""
    if not account.passed(FLAG) and culprit == "action":
        return
    row = account.row
    limits = f"{row.people}: {row.limits}" if row else None
    yield "range", True, limits, limits
    if culprit != "range":
        due = account.checks[FLAG].expected
        yield "boundary", True, due, account.flag


def _query(one: LoggedRequest) -> str:
    """Path, query and form of a request as they read."""
    request = one.request
    form = request.body.decode(errors="replace") if request.path.rstrip("/").endswith("/_search") else ""
    return unquote_plus(f"{request.path}?{request.query}&{form}")


def _in_words(resource: Resource, mrn: str) -> str:
    """A result of another test or patient, as a diagnosis names it."""
    subject = str((resource.get("subject") or {}).get("reference", ""))
    whose = "the patient's" if subject.rpartition("/")[2] == mrn else f"{subject}'s"
    return f"{whose} Observation/{resource.get('id')}"


def _numbers(resource: Resource) -> Iterator[float]:
    """The numbers that a result shows."""
    for holder in (resource, *(resource.get("component") or [])):
        value = (holder.get("valueQuantity") or {}).get("value")
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield value
