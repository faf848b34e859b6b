"""Divide an episode into steps for its diagnosis, from the answer and from the results that the agent saw."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import unquote_plus

from fhir_gym.tasks import Check, FinishedEpisode, LoggedRequest, Verdict
from fhir_gym.tasks.authoring import instant, parse_instant
from fhir_gym.tasks.core.grader import ANSWER_FORM, EVIDENCE
from fhir_gym.tasks.grading import answer_flag, answer_number
from fhir_gym.tasks.grading.end_state import read_by_verdicts, returned_resources
from fhir_gym.tasks.packs.action_reasoning.answer_sources import Records
from fhir_gym.tasks.packs.action_reasoning.cases import CaseSpec, ErrorLabel, GroundTruth
from fhir_gym.tasks.packs.action_reasoning.derivation import is_order_due
from fhir_gym.tasks.packs.action_reasoning.params import ReasoningParams
from fhir_gym.tasks.packs.action_reasoning.ranges import LABS, ReferenceRange, find_range, others
from fhir_gym.tasks.packs.action_reasoning.series import LabHistory
from fhir_gym.types import Json, Resource

_NEXT = re.compile(rb'"relation"\s*:\s*"next"')

VALUE = "answered value"
"""Name of the check that compares the first item of the answer."""
FLAG = "answered whether an order is due"
"""Name of the check that compares the second item of the answer."""

STEP_OF: Mapping[str, str] = MappingProxyType(
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
"""The step that each error makes fail."""


class Fault(NamedTuple):
    """An error with the expected and the actual outcome."""

    label: ErrorLabel
    expected: Json
    actual: Json


@dataclass(frozen=True)
class Account:
    """The data on which a diagnosis is based."""

    params: ReasoningParams
    end: FinishedEpisode
    verdict: Verdict
    records: Records

    @classmethod
    def of(cls, params: ReasoningParams, end: FinishedEpisode, verdict: Verdict, chart: LabHistory) -> Account:
        """Build the account of an episode."""
        series = chart.one(params.case.eval_MRN, params.plan.lab)
        own = {result.id for result in (*series.counted, *series.void, *series.superseded, *series.others)}
        seen = returned_resources(end.requests)
        observations = {
            id: returned_resource
            for name, returned_resource in seen.items()
            if (id := name.removeprefix("Observation/")) != name
        }
        strangers = _strangers([observation for id, observation in observations.items() if id not in own])
        records = Records(
            plan=params.plan,
            now=parse_instant(params.now),
            series=series,
            seen=frozenset(id for id, observation in observations.items() if "valueQuantity" in observation),
            strangers=strangers,
            truncated=_is_truncated(end.requests),
            dated=any("date=" in _query(request) for request in end.requests),
        )
        return cls(params, end, verdict, records)

    @property
    def plan(self) -> CaseSpec:
        """Specification of the case."""
        return self.params.plan

    @property
    def ground(self) -> GroundTruth:
        """The correct values."""
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
        """The answered number; meaningful only if the answer is well-formed."""
        return answer_number((self.end.answer or [])[0]) or 0.0

    @property
    def flag(self) -> bool:
        """Whether the agent answered that an order is due; meaningful only if the answer is well-formed."""
        return answer_flag((self.end.answer or [])[1]) is True

    def passed(self, name: str) -> bool:
        """Return whether a check passed; a check that the verdict lacks counts as passed."""
        return name not in self.checks or self.checks[name].passed

    @cached_property
    def unseen(self) -> tuple[str, ...]:
        """Ids of the Observations that determine the answer but that the agent did not see."""
        return tuple(id for id in self.params.deciding if id not in self.records.seen)

    @cached_property
    def asked(self) -> bool:
        """Whether the agent searched for the patient's results of the test."""
        return bool(self.records.shown) or any(self._asks(request) for request in self.end.requests)

    @cached_property
    def action_failures(self) -> tuple[Check, ...]:
        """Failed checks other than those of the answer and the evidence."""
        other = (VALUE, FLAG, ANSWER_FORM, EVIDENCE)
        return tuple(check for check in self.verdict.failed if check.name not in other)

    @cached_property
    def row(self) -> ReferenceRange | None:
        """The patient's reference range, with the limits that the task states."""
        ground = self.ground
        reference_range = find_range(self.plan.lab, ground.patient_gender, ground.patient_age)
        if reference_range is None:
            return None
        reference_range = reference_range.shifted(self.plan.shift) if self.plan.shift else reference_range
        low, high = ground.threshold_low, ground.threshold_high
        # An external case may state only one limit.
        return replace(reference_range, low=-math.inf if low is None else low, high=math.inf if high is None else high)

    @cached_property
    def other_rows(self) -> tuple[ReferenceRange, ...]:
        """The ranges of other people: first the other sex at the patient's age, then the nearest ages."""
        row, age = self.row, self.ground.patient_age
        if row is None or age is None:
            return ()
        rest = [
            reference_range.shifted(self.plan.shift) if self.plan.shift else reference_range
            for reference_range in others(row)
        ]
        return tuple(
            sorted(
                rest,
                key=lambda reference_range: (
                    not reference_range.holds_for(reference_range.sex, age),
                    abs(reference_range.first_age - row.first_age),
                ),
            )
        )

    def decides(self, row: ReferenceRange) -> bool:
        """Return whether an order is due according to a range, given the right value."""
        return self.ground.value is not None and is_order_due(row, self.ground.value, self.plan.direction)

    def _asks(self, request: LoggedRequest) -> bool:
        words = _query(request)
        search = ("Observation", self.params.case.eval_MRN, self.plan.lab)
        looked = any(done.looks and done.status < 300 for done in request.response.done)
        return looked and all(word in words for word in search)


def steps(account: Account, fault: Fault | None) -> Iterator[Check]:
    """Yield the result of each step of an episode.

    Args:
        account: The episode.
        fault: The error of a failed episode; None if the episode succeeded. The step of the error fails; later steps
            are omitted if the error makes it impossible to judge them.
    """
    culprit = STEP_OF[fault.label] if fault else None
    for name, passed, expected, actual in _judged(account, culprit):
        if fault is not None and name == culprit:
            yield Check(name=name, passed=False, expected=fault.expected, actual=fault.actual)
        else:
            yield Check(name=name, passed=passed, expected=expected, actual=actual)


def _judged(account: Account, culprit: str | None) -> Iterator[tuple[str, bool, Json, Json]]:
    """Yield the name, success, expected and actual outcome of each step that can be judged."""
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
    """Yield the steps that lead to the value, up to and including the failed step."""
    if not account.passed(VALUE) and culprit == "retrieval":
        return
    records, check = account.records, account.checks[VALUE]
    average = account.plan.family == "aggregation"
    needed = records.window if average else records.window[-1:]
    read = sum(result.id in records.seen for result in needed)
    elements: dict[str, tuple[Json, Json]] = {
        "value": ("a value on file of this patient and test", check.actual),
        "window": (_span(records), f"{len(records.shown)} results read, {read} of the {len(needed)} that decide"),
        "inclusion": (f"{len(needed)} results", f"{read} read"),
        "arithmetic": (check.expected, check.actual),
    }
    for name in elements:
        if average or name in ("value", "window", culprit):
            yield name, True, *elements[name]
        if name == culprit:
            return


def _span(records: Records) -> str:
    """Return the time span of the question in words."""
    end = instant(records.as_of)
    return f"up to {end}" if records.start is None else f"{instant(records.start)} to {end}"


def _of_decision(account: Account, culprit: str | None) -> Iterator[tuple[str, bool, Json, Json]]:
    """Yield the steps from the value to the decision, up to and including the failed step."""
    if not account.passed(FLAG) and culprit == "action":
        return
    row = account.row
    limits = told(row) if row else None
    yield "range", True, limits, limits
    if culprit != "range":
        due = account.checks[FLAG].expected
        yield "boundary", True, due, account.flag


def told(row: ReferenceRange) -> str:
    """Return a range in words; a range of an external case may have only one limit."""
    digits = LABS[row.lab].digits
    if math.isinf(row.high):
        limits = f"from {row.low:.{digits}f} {row.unit}"
    elif math.isinf(row.low):
        limits = f"up to {row.high:.{digits}f} {row.unit}"
    else:
        limits = row.limits
    return f"{row.people}: {limits}"


def _query(logged_request: LoggedRequest) -> str:
    """Return the decoded path and query of a request and, if it is a search by POST, its form."""
    request = logged_request.request
    searched = request.method == "POST" and any(done.kind == "search" for done in logged_request.response.done)
    form = request.body.decode(errors="replace") if searched else ""
    return unquote_plus(f"{request.path}?{request.query}&{form}")


def _is_truncated(requests: Sequence[LoggedRequest]) -> bool:
    """Return whether the last request that returned Observations had further pages."""
    for by_verdict in reversed(read_by_verdicts(requests)):
        if any(name.startswith("Observation/") for name in returned_resources([by_verdict])):
            return _NEXT.search(by_verdict.response.content) is not None
    return False


def _strangers(resources: Sequence[Resource]) -> dict[str, tuple[float, ...]]:
    """Return the numbers in some Observations, grouped by a description of the test and the patient."""
    values_by_patient: dict[str, tuple[float, ...]] = {}
    for resource in resources:
        patient = str((resource.get("subject") or {}).get("reference", "nobody"))
        codings = (resource.get("code") or {}).get("coding") or [{}]
        words = f"the {codings[0].get('code')} results of {patient}"
        values_by_patient[words] = (*values_by_patient.get(words, ()), *_numbers(resource))
    return values_by_patient | {
        "all that was retrieved of others": tuple(chain.from_iterable(values_by_patient.values()))
    }


def _numbers(resource: Resource) -> Iterator[float]:
    """Yield the values of an Observation and of its components."""
    for holder in (resource, *(resource.get("component") or [])):
        value = (holder.get("valueQuantity") or {}).get("value")
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield value
