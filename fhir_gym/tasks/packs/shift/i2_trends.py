"""Tasks I2-1 and I2-2: questions about laboratory results."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, ClassVar, Literal, get_args

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator, instant, parse_instant
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.packs.shift.charts import RESULT_UPDATES
from fhir_gym.tasks.packs.shift.kind import (
    Knowledge,
    RequestContent,
    RequestSampler,
    ShiftSize,
    Solution,
    StatusUpdates,
)
from fhir_gym.tasks.packs.shift.laboratory import (
    PERIOD,
    TESTS,
    VALID,
    LabResult,
    LabScene,
    draw_laboratory,
    parse_result,
    reported_value,
    result_resource,
)
from fhir_gym.tasks.packs.shift.lookups import Named, search_all
from fhir_gym.tasks.packs.shift.outcomes import DONE, NO_RESULT, NO_SUCH_PATIENT, SEVERAL_PATIENTS
from fhir_gym.tasks.packs.shift.patients import PATIENT_RULE, PatientRequest, ids_of, names_for, target_among
from fhir_gym.tasks.packs.shift.questions import QuestionJudge, QuestionKind, number_in
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.types import Resource

Measure = Literal["mean", "highest", "change", "above"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
Rule = Literal["window", "status", "repeats", "unit", "rounding"]
"""The rules; a function that is told to ignore a rule does not apply it."""

_PER_GROUP = 6
"""Number of requests of a live shift for which there is another group of patients."""
_ROUNDED = 2
"""Mean number of questions for which a value is sought that would be wrong if converted results were rounded."""
_FRAMES, _WINDOWS = 8, 40
"""Number of questions that are drawn for a patient, and of windows that are drawn for each question."""
_LENGTHS = (90, 120, 150, 180)
"""Lengths of windows in days."""
_FLOAT_ERROR = Decimal("1e-9")
_EDGE = Decimal("0.1")
"""Minimum distance of a result from an edge of rounding, in units of the last decimal place."""


class TrendContent(RequestContent):
    """A question about the results of one test.

    Attributes:
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
    """Return the results of a patient that count, by the time of the specimen."""
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
    """Return the answer to a question without rounding; None if there is no result."""
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
    """Whether a question has an answer for which the window and at least one of the other rules make a difference."""
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


class TrendSampler(RequestSampler[LabScene, TrendRequest]):
    """Draws a patient, then questions and windows until one has an outcome."""

    def __init__(self, rng: random.Random, now: datetime, scene: LabScene, outcomes: Sequence[str]) -> None:
        super().__init__(rng, now, scene, outcomes)
        self._charts: dict[tuple[str, str], list[LabResult]] = {}
        for result in scene.results:
            self._charts.setdefault((result.patient, result.code), []).append(result)
        self._names = {
            outcome: [(name, ids_of(name, scene.people)) for name in names_for(rng, scene.people, outcome)]
            for outcome in dict.fromkeys(outcomes)
        }

    @override
    def draw(self, outcome: str, *, depends: bool) -> TrendRequest | None:
        rng, names = self.rng, self._names[outcome]
        rounds = outcome == DONE and rng.random() < _ROUNDED / len(self.outcomes)
        drawn = (self._draw(name, ids, outcome, rounds=rounds) for name, ids in rng.sample(names, len(names)))
        return next(filter(None, drawn), None)

    def _draw(self, name: Named, ids: tuple[str, ...], outcome: str, *, rounds: bool) -> TrendRequest | None:
        """Draw a question about the patients with a name.

        Args:
            name: The name.
            ids: Ids of the patients.
            outcome: The outcome; ``done`` stands for any value.
            rounds: Whether the value should be wrong if converted results were rounded.
        """
        rng, people = self.rng, self.scene.people
        used = [request.ask.test for request in self.chosen if request.ask.patient == name]
        tests = [test for test in self.scene.tests if test not in used]
        first = rng.choice(("mean", "change") if rounds else MEASURES)
        for number in range(_FRAMES if tests else 0):
            rule: Rule | None = "rounding" if rounds and number < _FRAMES // 2 else None
            test, measure = rng.choice(tests), first if number < _FRAMES // 2 else rng.choice(MEASURES)
            limit, days = rng.choice(TESTS[test].limits), rng.choice(_LENGTHS)
            frame = {"test": test, "measure": measure, "limit": limit if measure == "above" else ""}
            codes = TESTS[test].codes if ids else ()
            results = [result for code in codes for result in self._charts.get((ids[0], code), ())]
            for _ in range(_WINDOWS):
                start = self.now.date() - timedelta(days=rng.randrange(days, PERIOD))
                window = {"first_day": start.isoformat(), "last_day": (start + timedelta(days=days)).isoformat()}
                ask = TrendContent(patient=name, **frame, **window)
                drawn = self._outcome(ask, results, outcome, rule) if len(ids) == 1 else outcome
                if drawn:
                    return TrendRequest(ask=ask, outcome=drawn, patients=ids, **target_among(ids, people))
        return None

    def _outcome(self, ask: TrendContent, results: Sequence[LabResult], intended: str, rule: Rule | None) -> str:
        """Return the outcome of a question if it is the intended one and the rules matter; otherwise an empty text."""
        is_value = intended == DONE
        if is_value and not (
            (rule is None or matters(ask, results, rule)) and qualifies(ask, results, self.scene.values)
        ):
            return ""
        value = exact_answer(ask, results)
        if is_value or value is not None:
            return rounded(ask, value) if is_value and value is not None else ""
        others = (exact_answer(ask, results, "status"), exact_answer(ask, results, "window"))
        return intended if any(number is not None for number in others) else ""


class TrendJudge(QuestionJudge[LabScene, TrendRequest]):
    """Judges answers; they count only if the agent has read the results on which they rest."""

    @override
    def check(self, request: TrendRequest, answer: str) -> tuple[bool, bool]:
        ask, seen = request.ask, self.log.seen
        results = [result for result in self.scene.results if result.patient == request.patients[0]]
        value = exact_answer(ask, results)
        if value is None:
            would_count = results_that_would_count(request, self.scene)
            return answer == NO_RESULT, all(map(self.log.lookups_of, would_count))
        read = ("valueQuantity" in seen.get(f"Observation/{result.id}", {}) for result in _deciding(ask, results))
        return agrees(ask, value, answer), all(read)


class Trends(QuestionKind[LabScene, TrendRequest]):
    """Answer questions about the laboratory results of patients."""

    key = "I2"
    title = "Questions about laboratory results"
    codes = (NO_SUCH_PATIENT, SEVERAL_PATIENTS, NO_RESULT)
    value = "7.4"
    sampler_type = TrendSampler
    judge_type = TrendJudge
    status_updates: ClassVar[StatusUpdates] = {"results": ("status", RESULT_UPDATES)}
    resource_types = ("Patient", "Observation")
    questions: ClassVar[Mapping[str, tuple[str, str, str]]] = {
        "mean": (
            "What was the mean {test} of {who}, born {born}, from {first} to {last}?",
            "Please work out the average {test} of {who} (date of birth {born}) between {first} and {last}.",
            "{who}, {born}: mean {test}, {first} to {last}.",
        ),
        "highest": (
            "What was the highest {test} of {who}, born {born}, from {first} to {last}?",
            "Please look up the maximum {test} of {who} (date of birth {born}) between {first} and {last}.",
            "{who}, {born}: highest {test}, {first} to {last}.",
        ),
        "change": (
            "By how much did the {test} of {who}, born {born}, change from {first} to {last}?",
            "Please work out the change in {test} of {who} (date of birth {born}) between {first} and {last}.",
            "{who}, {born}: change in {test}, {first} to {last}.",
        ),
        "above": (
            "How many {test} values of {who}, born {born}, were above {limit} from {first} to {last}?",
            "Please count the {test} values above {limit} of {who} (date of birth {born}) between {first} and {last}.",
            "{who}, {born}: number of {test} values above {limit}, {first} to {last}.",
        ),
    }
    rules = (
        f"{PATIENT_RULE}\n"
        "- Each question is about one laboratory test of one patient. Results are Observations; a test has two LOINC "
        "codes, one for each unit:\n{tests}\n"
        "- A result counts if its status is final, amended or corrected, and if the specimen was taken "
        "(effectiveDateTime, UTC) from the first to the last day of the question, both included. It does not matter "
        "when the result was issued.\n"
        "- Results of the patient and the test (either code) with the same effectiveDateTime are reports of one "
        "specimen: of those that count, use only the one issued last.\n"
        "- Convert the values to the unit of the answer and do not round them. The mean is the sum of the values "
        "divided by their number. The change is the value of the last specimen minus that of the first; it is negative "
        "if the value fell. A value is above a limit if it is greater than the limit. Round only the final result, to "
        "the decimals of the answer; a number of results is a whole number.\n"
        f'- If no result counts (for a change: fewer than two), the outcome is "{NO_RESULT}". Otherwise it is the '
        "number alone, without the unit."
    )

    @override
    def draw_scene(self, rng: random.Random, world: World, ids: IdAllocator, size: ShiftSize) -> LabScene:
        if size.level == 1:
            return draw_laboratory(rng, world, ids, people=(9,), twins=2, tests=2, counts=(0, 3, 10, 16))
        if size.level == 2:
            return draw_laboratory(rng, world, ids, people=(8, 9), twins=4, tests=3, counts=(0, 4, 14, 24))
        people = size.groups((9,), _PER_GROUP)
        return draw_laboratory(rng, world, ids, people=people, twins=2, tests=3, counts=(0, 3, 44, 52), values=(12, 30))

    @override
    def rule_values(self, scene: LabScene) -> Mapping[str, str]:
        return {"tests": "\n".join(map(_about, scene.tests))}

    @override
    def text_values(self, ask: TrendContent) -> Mapping[str, Any]:
        limit = f"{ask.limit} {TESTS[ask.test].main.unit}"
        return {"test": ask.test, "limit": limit, "first": ask.first_day, "last": ask.last_day}

    @override
    def solve_for(self, patient: Resource, ask: TrendContent, knowledge: Knowledge) -> Solution:
        results: list[LabResult] = []
        for code in TESTS[ask.test].codes:
            query = {"patient": f"Patient/{patient['id']}", "code": code, "_count": "200"}
            results += map(parse_result, (yield from search_all("/Observation", query)))
        value = exact_answer(ask, results)
        return NO_RESULT if value is None else rounded(ask, value)

    @override
    def missing_records(self, request: TrendRequest, scene: LabScene) -> Iterator[Resource]:
        if request.outcome == NO_RESULT:
            yield from results_that_would_count(request, scene)

    @override
    def right_end(self, request: TrendRequest, scene: LabScene) -> tuple[str, str] | None:
        results = [result for result in scene.results if result.patient == request.patients[0]]
        value = exact_answer(request.ask, results)
        if value is None:
            return NO_RESULT, ""
        return (rounded(request.ask, value), "") if is_clear(request.ask, value, results) else None


def _about(name: str) -> str:
    test = TESTS[name]
    main, other = test.main, test.other
    added = f", plus {test.offset}" if test.offset else ""
    return (
        f"  - {name}: {main.code} in {main.unit}, and {other.code} in {other.unit}; the value in {main.unit} is "
        f"{test.factor} times the value in {other.unit}{added}; answer in {main.unit}, with {test.digits} "
        f"decimal{'s' if test.digits > 1 else ''}"
    )


class TrendsLevel1(StaticShift, requests=Trends(), level=1):
    """Answer four or five questions about laboratory results.

    Starting state: eleven patients with similar names; two of them share name and date of birth with another patient.
        Each patient has up to 16 specimens for each of two tests from the last 300 days. The results are in two units
        under two codes, and have all statuses; some specimens are reported again with another value or unit. The
        questions are chosen at random among those for which the window and at least one other rule make a difference.
    Decoys: void and preliminary results, earlier reports of a specimen, results just outside the window, a test with a
        similar name, and the same tests of patients with similar names.
    Checks: the value differs from the exact one by no more than rounding, and the agent has read the results that
        decide: all that count for a mean, those above the limit, the highest, or the first and the last. A declined
        question needs its outcome, and lookups that would have shown the opposite. Nothing is changed.
    Light: none of the checks.
    """


class TrendsLevel2(StaticShift, requests=Trends(), level=2):
    """Answer ten to fourteen questions about laboratory results.

    Starting state: as at level 1, with 21 patients, three tests and up to 24 specimens for each.
    Decoys: as at level 1.
    Checks: as at level 1.
    Light: none of the checks.
    """


TASKS = (TrendsLevel1, TrendsLevel2)
