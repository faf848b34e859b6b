"""Attribute a failed episode to one error.

The questions below are asked in order; the first question that is answered with no determines the error.

1. Does the answer have the required form? No: ``format``.
2. Is the number right? No: the agent used a wrong window (``window boundary``), used only part of the right window
   (``incomplete inclusion``), reported another result (``incorrect value retrieved``), miscalculated with the right
   results (``arithmetic``), or claimed that there is no result (``missing retrieval``). If the results that the agent
   saw do not explain the number, the error is ``hallucinated value``. `answer_sources` ranks the explanations.
3. Did the agent retrieve the results that determine the number? No: ``missing retrieval``, or the error that explains
   the wrong search.
4. Is the decision right? No: another person's range explains the decision (``context-insensitive range``), the value is
   close to a limit (``boundary misclassification``), or there is no such explanation (``wrong action``).
5. If sex and age matter, did the agent look up the patient? No: ``missing retrieval``.
6. Any other failure is a ``wrong action``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from fhir_gym.tasks import Diagnosis, FinishedEpisode, Verdict
from fhir_gym.tasks.packs.action_reasoning.answer_sources import Records, explain_answer, selection, windows
from fhir_gym.tasks.packs.action_reasoning.params import ReasoningParams
from fhir_gym.tasks.packs.action_reasoning.ranges import ReferenceRange, as_written
from fhir_gym.tasks.packs.action_reasoning.series import lab_chart
from fhir_gym.tasks.packs.action_reasoning.steps import FLAG, STEP_OF, VALUE, Account, Fault, steps, told
from fhir_gym.tasks.packs.medagentbench.internist_task import NO_RESULT
from fhir_gym.types import Json

_EDGE = timedelta(hours=1)
"""An agent that uses a slightly smaller window misses results that are this close to the start of the window."""


def diagnose(p: ReasoningParams, end: FinishedEpisode, verdict: Verdict) -> Diagnosis:
    """Return the steps of an episode and the one error that explains a failure.

    Args:
        p: Parameters of the variation.
        end: End state of the episode.
        verdict: Verdict of the episode; it is not modified.
    """
    account = Account.of(p, end, verdict, lab_chart(end.world))
    diagnosis = None if verdict.success else fault(account)
    return Diagnosis(
        steps=tuple(steps(account, diagnosis)),
        error=diagnosis and diagnosis.label,
        step=diagnosis and STEP_OF[diagnosis.label],
    )


def fault(account: Account) -> Fault:
    """Return the error that explains a failed episode."""
    questions: tuple[Callable[[Account], Fault | None], ...] = (_form, _number, _look_up, _decision, _patient)
    return next((answer for ask in questions if (answer := ask(account)) is not None), _action(account))


def _form(account: Account) -> Fault | None:
    form = account.form
    return None if form.passed else Fault("format", form.expected, form.actual)


def _number(account: Account) -> Fault | None:
    if account.passed(VALUE):
        return None
    records, answer = account.records, account.answer
    expected, said = account.checks[VALUE].expected, account.checks[VALUE].actual
    if answer == NO_RESULT:
        return _none(account, expected)
    source = explain_answer(records, answer)
    if source is not None:
        return Fault(source.label, expected, f"{said}: {source.words}")
    values = [result.value for result in records.window]
    if account.plan.family == "aggregation" and records.complete and min(values) <= answer <= max(values):
        return Fault("arithmetic", expected, f"{said}: all results were there, nothing wrong gives it")
    return Fault("hallucinated value", expected, f"{said}: nothing that was shown gives it")


def _none(account: Account, expected: Json) -> Fault:
    """Return the error that explains an answer of -1 although a result counts."""
    records = account.records
    if account.asked and not records.truncated:
        if account.unseen and records.dated:
            return Fault("window boundary", expected, f"{NO_RESULT}: the search was for another span of time")
        for words, readings in windows(records):
            if not readings and _lies_at_an_edge(records):
                return Fault("window boundary", expected, f"{NO_RESULT}: nothing lies in {words}")
    return Fault("missing retrieval", expected, f"{NO_RESULT}: {account.verdict.evidence.note}")


def _lies_at_an_edge(records: Records) -> bool:
    """Return whether a slightly smaller window would contain no result."""
    start = records.start
    return all(
        result.taken == records.as_of or (start is not None and result.taken - start <= _EDGE)
        for result in records.window
    )


def _look_up(account: Account) -> Fault | None:
    """Return the error of an agent that answered the right number without reading the records; None if it read them."""
    records, evidence = account.records, account.verdict.evidence
    if account.params.deciding:
        if not account.unseen:
            return None
        if account.plan.family == "aggregation" and not records.were_shown(records.window) and records.shown:
            label, words = selection(records, records.shown)
            if label != "incorrect value retrieved":
                return Fault(label, evidence.note, words)
    elif evidence.sufficient:
        return None
    elif account.asked and records.dated:
        return Fault("window boundary", evidence.note, "the search was for another span of time")
    return Fault("missing retrieval", "all that decides was looked up", evidence.note)


def _decision(account: Account) -> Fault | None:
    if account.passed(FLAG) or not account.action_failures:
        return None  # if the action is right and only the report is wrong, the range is not the error
    row, flag = account.row, account.flag
    if row is None:
        return None
    expected = f"{account.checks[FLAG].expected}, by the range of {told(row)}"
    takers = [other for other in account.other_rows if account.decides(other) == flag]
    if takers:
        return Fault("context-insensitive range", expected, f"{flag}, as by the range of {told(takers[0])}")
    if _is_near(account, row):
        return Fault("boundary misclassification", expected, f"{flag}, with {account.ground.value:g} at the limit")
    return None


def _is_near(account: Account, row: ReferenceRange) -> bool:
    """Return whether the value is close to a limit: at most the width of the borderline band away."""
    value = account.ground.value
    return value is not None and any(
        abs(as_written(value) - as_written(limit)) <= as_written(row.borderline) for limit in (row.low, row.high)
    )


def _patient(account: Account) -> Fault | None:
    evidence = account.verdict.evidence
    if evidence.sufficient or not account.passed(FLAG):
        return None
    return Fault("missing retrieval", "all that decides was looked up", evidence.note)


def _action(account: Account) -> Fault:
    """Return the error of a wrong action, or of a wrong decision that no range or limit explains."""
    if not account.passed(FLAG):
        check = account.checks[FLAG]
        return Fault("wrong action", f"order due: {check.expected}", f"order due: {check.actual}")
    failures = account.action_failures
    return Fault(
        "wrong action",
        {check.name: check.expected for check in failures},
        {check.name: check.actual for check in failures},
    )
