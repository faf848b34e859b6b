"""Questions about a patient's laboratory results, and their judgement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal, get_args

from fhir_gym.tasks.authoring import instant, parse_instant
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.kind import Judgement, RequestContent
from fhir_gym.tasks.packs.shift.laboratory import TESTS, VALID, LabResult, LabScene, reported_value, result_resource
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import NO_RESULT
from fhir_gym.tasks.packs.shift.patients import PatientRequest, patient_not_found
from fhir_gym.tasks.packs.shift.questions import judge_answer, number_in
from fhir_gym.types import Resource

Measure = Literal["mean", "highest", "change", "above"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
Rule = Literal["window", "status", "repeats", "unit", "rounding"]

_FLOAT_ERROR = Decimal("1e-9")
_EDGE = Decimal("0.1")
"""Minimum distance of a result from an edge of rounding, in units of the last decimal place."""


class TrendContent(RequestContent):
    """A question about the results of one test.

    Attributes:
        patient: The patient's name and date of birth.
        test: Name of the test; see `TESTS`.
        measure: What to compute.
        first_day: First day of the window.
        last_day: Last day of the window.
        limit: For ``above``: the limit in the main unit of the test.
    """

    patient: Named
    test: str
    measure: Measure
    first_day: str
    last_day: str
    limit: str = ""

    @property
    def digits(self) -> int:
        """Number of decimal places of the answer."""
        return 0 if self.measure == "above" else TESTS[self.test].digits


class TrendRequest(PatientRequest):
    """A question about the results of one test."""

    ask: TrendContent


def counted(ask: TrendContent, results: Sequence[LabResult], ignoring: Rule | None = None) -> list[LabResult]:
    """Return the results of a patient that count, by the time of the specimen.

    Args:
        ask: The question.
        results: All results of the patient.
        ignoring: A rule that is not applied.
    """
    codes = TESTS[ask.test].codes
    valid = [
        result
        for result in results
        if result.code in codes
        and (ignoring == "status" or result.status in VALID)
        and (ignoring == "window" or ask.first_day <= result.taken[:10] <= ask.last_day)
    ]
    valid.sort(key=lambda result: (result.taken, result.issued))
    return valid if ignoring == "repeats" else [*{result.taken: result for result in valid}.values()]


def exact_answer(ask: TrendContent, results: Sequence[LabResult], ignoring: Rule | None = None) -> Decimal | None:
    """Return the answer to a question without rounding; None if there is no result.

    Args:
        ask: The question.
        results: All results of the patient.
        ignoring: A rule that is not applied.
    """
    counting = counted(ask, results, ignoring)
    if len(counting) < (2 if ask.measure == "change" else 1):
        return None
    values = [_value(ask, result, ignoring) for result in counting]
    if ask.measure == "mean":
        return sum(values, Decimal(0)) / len(values)
    if ask.measure == "change":
        return values[-1] - values[0]
    return max(values) if ask.measure == "highest" else Decimal(sum(value > Decimal(ask.limit) for value in values))


def _value(ask: TrendContent, result: LabResult, ignoring: Rule | None = None) -> Decimal:
    """Return a value in the unit of the answer; it is not rounded."""
    value, test = Decimal(result.value), TESTS[ask.test]
    converted = value if ignoring == "unit" else test.converted(result.code, value)
    return converted.quantize(Decimal(1).scaleb(-test.digits)) if ignoring == "rounding" else converted


def rounded(ask: TrendContent, value: Decimal) -> str:
    """Return an answer with the number of decimal places that the rules ask for."""
    # Adding zero turns a negative zero into zero.
    return str(value.quantize(Decimal(1).scaleb(-ask.digits), ROUND_HALF_UP) + Decimal(0))


def agrees(ask: TrendContent, value: Decimal, answer: str) -> bool:
    """Whether an answer is a number that differs from the value by no more than rounding.

    Args:
        ask: The question.
        value: The exact value.
        answer: The reported outcome in lower case; the unit of the answer may follow the number.
    """
    number = number_in(answer, {"results" if ask.measure == "above" else TESTS[ask.test].main.unit.casefold()})
    if number is None:
        return False
    half = Decimal("0.5").scaleb(-ask.digits) if ask.digits else Decimal(0)
    return abs(number - value) <= half + _FLOAT_ERROR


def qualifies(ask: TrendContent, results: Sequence[LabResult], values: tuple[int, int]) -> bool:
    """Whether a question has an answer for which the window and at least one of the other rules make a difference.

    Args:
        ask: The question.
        results: All results of the patient.
        values: Minimum and maximum number of results on which the answer rests.
    """
    if not values[0] <= len(counted(ask, results)) <= values[1]:
        return False
    value = exact_answer(ask, results)
    if value is None or not is_clear(ask, value, results):
        return False

    others: tuple[Rule, ...] = ("status", "repeats", "unit")
    return matters(ask, results, "window") and any(matters(ask, results, mistake) for mistake in others)


def matters(ask: TrendContent, results: Sequence[LabResult], rule: Rule) -> bool:
    """Whether a question that has a value would get a wrong one without a rule."""
    value, other = exact_answer(ask, results), exact_answer(ask, results, rule)
    return value is not None and (other is None or not agrees(ask, value, rounded(ask, other)))


def is_clear(ask: TrendContent, value: Decimal, results: Sequence[LabResult]) -> bool:
    """Whether a careful agent cannot get another answer by rounding in another way."""
    counting = counted(ask, results)
    if ask.measure != "above":
        return abs(abs(value).scaleb(ask.digits) % 1 - Decimal("0.5")) >= _EDGE
    test, limit = TESTS[ask.test], Decimal(ask.limit)
    near = Decimal(1).scaleb(-test.digits)
    converted = (_value(ask, result) for result in counting if result.code == test.other.code)
    return 0 < value < len(counting) and all(abs(number - limit) > near for number in converted)


def results_that_would_count(request: TrendRequest, scene: LabScene) -> Iterator[Resource]:
    """Yield results that do not exist and would count, one for each code of the test, like those of other patients."""
    ask, patient = request.ask, request.patients[0]
    first, last = date.fromisoformat(ask.first_day), date.fromisoformat(ask.last_day)
    test = TESTS[ask.test]
    for analyte in (test.main, test.other):
        rng = seeded_random("result", patient, ask, analyte.code)
        alike = [
            result for result in scene.results if result.code == analyte.code and result.status in VALID
        ] or scene.results
        within = [result for result in alike if ask.first_day <= result.taken[:10] <= ask.last_day]
        model = rng.choice(within or alike)
        day = first + timedelta(days=rng.randint(0, (last - first).days))
        taken = parse_instant(model.taken if within else f"{day}{model.taken[10:]}")
        wait = parse_instant(model.issued) - parse_instant(model.taken)
        result = LabResult(
            id=f"counts-{patient}-{analyte.code}",
            patient=patient,
            code=analyte.code,
            status="final",
            taken=instant(taken),
            issued=instant(taken + wait),
            value=model.value if model.code == analyte.code else reported_value(test, analyte, test.low),
        )
        yield result_resource(result)


def _deciding(ask: TrendContent, results: Sequence[LabResult]) -> list[LabResult]:
    """Return the results that an agent must have read: searches can sort and compare values without showing others."""
    counting = counted(ask, results)
    if ask.measure == "change":
        return [counting[0], counting[-1]]
    if ask.measure == "highest":
        return [max(counting, key=lambda result: _value(ask, result))]
    return [result for result in counting if ask.measure == "mean" or _value(ask, result) > Decimal(ask.limit)]


def judge_question(request: TrendRequest, scene: LabScene, log: EpisodeLog, answer: str) -> Judgement:
    """Judge the answer to a question; it counts only if the agent has read what it rests on."""
    not_found = patient_not_found(request, scene.people, log, answer)
    if not_found is not None:
        return judge_answer(request, answer, same=answer == request.outcome, looked=not_found)
    ask = request.ask
    results = [result for result in scene.results if result.patient == request.patients[0]]
    value = exact_answer(ask, results)
    if value is None:
        looked = all(log.lookups_of(result) for result in results_that_would_count(request, scene))
        return judge_answer(request, answer, same=answer == NO_RESULT, looked=looked)
    read = all("valueQuantity" in log.seen.get(f"Observation/{result.id}", {}) for result in _deciding(ask, results))
    return judge_answer(request, answer, same=agrees(ask, value, answer), looked=read)
