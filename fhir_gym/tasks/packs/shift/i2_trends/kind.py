"""Tasks I2-1 and I2-2: questions about laboratory results."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, ClassVar, NamedTuple

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator
from fhir_gym.tasks.packs.shift.charts import RESULT_UPDATES
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.i2_trends.rules import (
    MEASURES,
    Measure,
    Rule,
    TrendContent,
    TrendRequest,
    exact_answer,
    is_clear,
    judge_question,
    matters,
    qualifies,
    results_that_would_count,
    rounded,
)
from fhir_gym.tasks.packs.shift.kind import Judgement, RequestKind, ShiftSize, Solution, StatusUpdates
from fhir_gym.tasks.packs.shift.laboratory import (
    PERIOD,
    TESTS,
    LabResult,
    LabScene,
    draw_laboratory,
    laboratory_resources,
    parse_result,
)
from fhir_gym.tasks.packs.shift.lookups import Named, patients_called, search_all
from fhir_gym.tasks.packs.shift.outcomes import DONE, NO_RESULT, NO_SUCH_PATIENT, SEVERAL_PATIENTS
from fhir_gym.tasks.packs.shift.patients import PATIENT_RULE, absent_patient, ids_of, names_for, target_among
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.types import Resource

_PER_GROUP = 6
"""Number of requests of a live shift for which there is another group of patients."""
_ROUNDED = 2
"""Mean number of questions for which a value is sought that would be wrong if converted results were rounded."""
_FRAMES, _WINDOWS = 8, 40
"""Number of questions that are drawn for a patient, and of windows that are drawn for each question."""
_LENGTHS = (90, 120, 150, 180)
"""Lengths of windows in days."""


class Trends(RequestKind[LabScene, TrendRequest]):
    """Answer questions about the laboratory results of patients."""

    key = "I2"
    title = "Questions about laboratory results"
    codes = (NO_SUCH_PATIENT, SEVERAL_PATIENTS, NO_RESULT)
    value = "7.4"
    minutes = 4
    status_updates: ClassVar[StatusUpdates] = {"results": ("status", RESULT_UPDATES)}
    resource_types = ("Patient", "Observation")
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
    def choose(
        self, rng: random.Random, world: World, scene: LabScene, outcomes: Sequence[str], dependent: int | None = None
    ) -> tuple[TrendRequest, ...] | None:
        requests: list[TrendRequest] = []
        charts = _charts(scene)
        names = {
            outcome: [(name, ids_of(name, scene.people)) for name in names_for(rng, scene.people, outcome)]
            for outcome in dict.fromkeys(outcomes)
        }
        for outcome in outcomes:
            used = [(request.ask.patient, request.ask.test) for request in requests]
            rounds = outcome == DONE and rng.random() < _ROUNDED / len(outcomes)
            request = _draw_request(rng, world.now.date(), scene, charts, names[outcome], used, outcome, rounds)
            if request is None:
                return None
            requests.append(request)
        return tuple(requests)

    @override
    def resources(self, scene: LabScene, world: World) -> list[Resource]:
        return laboratory_resources(scene)

    @override
    def rule_values(self, scene: LabScene) -> Mapping[str, str]:
        return {"tests": "\n".join(map(_about, scene.tests))}

    @override
    def text(self, ask: TrendContent, wording: int) -> str:
        who, born, test = f"{ask.patient.given} {ask.patient.family}", ask.patient.birth_date, ask.test
        limit, first, last = f"{ask.limit} {TESTS[test].main.unit}", ask.first_day, ask.last_day
        words: dict[Measure, tuple[str, str, str]] = {
            "mean": (
                f"What was the mean {test} of {who}, born {born}, from {first} to {last}?",
                f"Please work out the average {test} of {who} (date of birth {born}) between {first} and {last}.",
                f"{who}, {born}: mean {test}, {first} to {last}.",
            ),
            "highest": (
                f"What was the highest {test} of {who}, born {born}, from {first} to {last}?",
                f"Please look up the maximum {test} of {who} (date of birth {born}) between {first} and {last}.",
                f"{who}, {born}: highest {test}, {first} to {last}.",
            ),
            "change": (
                f"By how much did the {test} of {who}, born {born}, change from {first} to {last}?",
                f"Please work out the change in {test} of {who} (date of birth {born}) between {first} and {last}.",
                f"{who}, {born}: change in {test}, {first} to {last}.",
            ),
            "above": (
                f"How many {test} values of {who}, born {born}, were above {limit} from {first} to {last}?",
                f"Please count the {test} values above {limit} of {who} (date of birth {born}) between {first} and "
                f"{last}.",
                f"{who}, {born}: number of {test} values above {limit}, {first} to {last}.",
            ),
        }
        return words[ask.measure][wording]

    @override
    def solve(
        self, ask: TrendContent, rule_values: Mapping[str, str], now: datetime, looked_up: dict[str, Any]
    ) -> Solution:
        patients = yield from patients_called(ask.patient)
        if len(patients) != 1:
            return SEVERAL_PATIENTS if patients else NO_SUCH_PATIENT
        results: list[LabResult] = []
        for code in TESTS[ask.test].codes:
            query = {"patient": f"Patient/{patients[0]['id']}", "code": code, "_count": "200"}
            results += map(parse_result, (yield from search_all("/Observation", query)))
        value = exact_answer(ask, results)
        return NO_RESULT if value is None else rounded(ask, value)

    @override
    def counterfactuals(self, request: TrendRequest, scene: LabScene) -> list[Resource]:
        if not request.patients:
            return [absent_patient(request.ask.patient, scene.people)]
        return [*results_that_would_count(request, scene)] if request.outcome == NO_RESULT else []

    @override
    def right_end(self, request: TrendRequest, scene: LabScene) -> tuple[str, str] | None:
        results = [result for result in scene.results if result.patient == request.patients[0]]
        value = exact_answer(request.ask, results)
        if value is None:
            return NO_RESULT, ""
        return (rounded(request.ask, value), "") if is_clear(request.ask, value, results) else None

    @override
    def judge(
        self, requests: Sequence[TrendRequest], scene: LabScene, log: EpisodeLog, answers: Sequence[str]
    ) -> list[Judgement]:
        return [judge_question(request, scene, log, answer) for request, answer in zip(requests, answers, strict=True)]


class _Frame(NamedTuple):
    """What a question asks for, without the patient and the window."""

    test: str
    measure: Measure
    limit: str
    days: int


def _charts(scene: LabScene) -> dict[tuple[str, str], list[LabResult]]:
    """Return the results of each patient and LOINC code."""
    results: dict[tuple[str, str], list[LabResult]] = {}
    for result in scene.results:
        results.setdefault((result.patient, result.code), []).append(result)
    return results


def _draw_request(
    rng: random.Random,
    today: date,
    scene: LabScene,
    charts: Mapping[tuple[str, str], Sequence[LabResult]],
    names: Sequence[tuple[Named, tuple[str, ...]]],
    used: Collection[tuple[Named, str]],
    outcome: str,
    rounds: bool,
) -> TrendRequest | None:
    """Draw a patient, then questions and windows until one has an outcome; None if that does not happen.

    Args:
        rng: Random generator.
        today: The present day.
        scene: The patients.
        charts: The results of each patient and LOINC code.
        names: The names that may have the outcome, with the ids of the patients of that name.
        used: Names and tests of earlier questions.
        outcome: The outcome; ``done`` stands for any value.
        rounds: Whether the value should be wrong if converted results were rounded.
    """
    for name, ids in rng.sample(names, len(names)):
        tests = [test for test in scene.tests if (name, test) not in used]
        first = rng.choice(("mean", "change") if rounds else MEASURES)
        for number in range(_FRAMES if tests else 0):
            rule: Rule | None = "rounding" if rounds and number < _FRAMES // 2 else None
            test, measure = rng.choice(tests), first if number < _FRAMES // 2 else rng.choice(MEASURES)
            frame = _Frame(test, measure, rng.choice(TESTS[test].limits), rng.choice(_LENGTHS))
            results = [result for code in TESTS[test].codes for result in charts.get((ids[0], code), ())] if ids else []
            for _ in range(_WINDOWS):
                ask = _draw_ask(rng, today, frame, name)
                drawn = _outcome(ask, results, scene.values, outcome, rule) if len(ids) == 1 else outcome
                if drawn:
                    aimed = target_among(ids, scene.people)
                    return TrendRequest(ask=ask, outcome=drawn, patients=ids, **aimed)
    return None


def _draw_ask(rng: random.Random, today: date, frame: _Frame, name: Named) -> TrendContent:
    """Draw a window for a patient."""
    first = today - timedelta(days=rng.randrange(frame.days, PERIOD))
    return TrendContent(
        patient=name,
        test=frame.test,
        measure=frame.measure,
        first_day=first.isoformat(),
        last_day=(first + timedelta(days=frame.days)).isoformat(),
        limit=frame.limit if frame.measure == "above" else "",
    )


def _outcome(
    ask: TrendContent, results: Sequence[LabResult], values: tuple[int, int], intended: str, rule: Rule | None
) -> str:
    """Return the outcome of a question if it is the wanted one and the rules matter; otherwise an empty text."""
    if intended == DONE and not ((rule is None or matters(ask, results, rule)) and qualifies(ask, results, values)):
        return ""
    value = exact_answer(ask, results)
    if intended == DONE:
        return rounded(ask, value) if value is not None else ""
    if value is not None:
        return ""
    others = (exact_answer(ask, results, "status"), exact_answer(ask, results, "window"))
    return intended if any(number is not None for number in others) else ""


def _about(name: str) -> str:
    """Describe a test for prompts."""
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
