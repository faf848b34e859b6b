from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from fhir_gym import Episode
from fhir_gym.actions import Finish, Get, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.i2_trends.kind import Trends
from fhir_gym.tasks.packs.shift.i2_trends.rules import (
    MEASURES,
    Measure,
    Rule,
    TrendContent,
    TrendRequest,
    agrees,
    counted,
    exact_answer,
    rounded,
)
from fhir_gym.tasks.packs.shift.laboratory import TESTS
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import DONE, NO_RESULT, NO_SUCH_PATIENT, SEVERAL_PATIENTS
from tests.tasks.packs.shift.playing import (
    after_lookups,
    failed,
    finish,
    ids_called,
    names_of_checks,
    opened,
    opened_where,
    params_of,
    play,
    read_all,
)


def requests_of(episode: Episode) -> tuple[TrendRequest, ...]:
    return params_of(episode).requests


@pytest.mark.parametrize(
    ("key", "variation"), [("I2-1", 0), ("I2-2", 0), pytest.param("I2-2", 1_000, marks=pytest.mark.slow)]
)
def test_the_reference_solution_is_right(hospital: World, key: str, variation: int) -> None:
    with opened(hospital, key, variation) as episode:
        step = play(episode)
        assert (step.reward, failed(step)) == (1.0, [])
        assert step.info["step"] <= episode.step_limit


@pytest.mark.parametrize("outcome", [DONE, "0", "7.4", *Trends.codes])
def test_an_outcome_without_work_is_worth_nothing(hospital: World, outcome: str) -> None:
    with opened(hospital, "I2-1") as episode:
        assert episode.step(finish([outcome] * len(requests_of(episode)))).reward == 0


def test_right_values_without_lookups_are_worth_nothing(hospital: World) -> None:
    with opened(hospital, "I2-1") as episode:
        assert episode.step(finish([one.outcome for one in requests_of(episode)])).reward == 0


@pytest.mark.parametrize("measure", MEASURES)
def test_a_value_needs_only_the_results_that_decide(hospital: World, measure: Measure) -> None:
    """Of a mean, all; otherwise the highest, the first and the last, or those above the limit."""

    def asks_for_it(request: TrendRequest) -> bool:
        return request.ask.measure == measure and request.outcome[-1].isdigit() and request.outcome != "0"

    with opened_where(hospital, "I2-2", lambda params: any(map(asks_for_it, params.requests))) as episode:
        requests = requests_of(episode)
        place = [*map(asks_for_it, requests)].index(True)
        (check,) = names_of_checks(number == place for number, _ in enumerate(requests))
        ask, patient = requests[place].ask, requests[place].patients[0]
        found = counted(ask, [one for one in params_of(episode).scene.results if one.patient == patient])
        values = {one.id: TESTS[ask.test].converted(one.code, Decimal(one.value)) for one in found}
        deciding = {
            "mean": [*values],
            "highest": [max(values, key=values.__getitem__)],
            "change": [found[0].id, found[-1].id],
            "above": [id for id, value in values.items() if value > Decimal(ask.limit or "0")],
        }[measure]
        for left_out in (0, 1):
            episode.start()
            episode.step(Get(f"/Patient/{patient}"))
            episode.step(Get(f"/Observation?_id={','.join(['none', *deciding[left_out:]])}&_count=200"))
            step = episode.step(finish([one.outcome for one in requests]))
            assert (check in failed(step)) == bool(left_out)


def only_results(change: Callable[[str], str]) -> Callable[[str], str]:
    """Change only the searches for results."""
    return lambda url: change(url) if url.startswith("/Observation") else url


UNREAD: dict[str, Callable[[str], str]] = {
    "no results": lambda url: "/metadata",
    "ids only": lambda url: f"{url}&_elements=id",
    "one result": lambda url: url.replace("_count=200", "_sort=-date&_count=1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("unread", UNREAD)
def test_a_value_needs_the_results_that_count(hospital: World, unread: str) -> None:
    with opened(hospital, "I2-1", 1) as episode:
        values = names_of_checks(one.outcome not in Trends.codes for one in requests_of(episode))
        assert after_lookups(episode, lambda url: url).reward == 1
        missing = failed(after_lookups(episode, only_results(UNREAD[unread])))
        assert values and set(values) <= set(missing)


@pytest.mark.slow
@pytest.mark.parametrize("read", [0, 1])
def test_no_result_needs_a_search_for_both_codes(hospital: World, read: int) -> None:
    unread = {test.codes[1 - read] for test in TESTS.values()}
    declined = 0
    for variation in range(4):
        with opened(hospital, "I2-1", variation) as episode:
            wrong = names_of_checks(one.outcome == NO_RESULT for one in requests_of(episode))
            step = after_lookups(episode, lambda url: "/metadata" if _code(url) in unread else url)
            assert set(wrong) <= set(failed(step))
            declined += len(wrong)
    assert declined


def _code(url: str) -> str:
    return dict(parse_qsl(urlsplit(url).query)).get("code", "")


# A solver written from the prompt: it reads whole charts and filters and computes with fractions.


def conversions(prompt: str) -> dict[str, tuple[str, str, Fraction, Fraction, int]]:
    """Read the table of tests in the prompt: codes, factor, addend and decimals by name."""
    line = re.compile(
        r"  - (\S+): (\S+) in \S+, and (\S+) in \S+; the value in \S+ is ([\d.]+) times the value in "
        r"[^\s;,]+(?:, plus ([\d.]+))?; answer in \S+, with (\d) decimals?"
    )
    found = line.findall(prompt)
    return {n: (a, b, Fraction(factor), Fraction(added or 0), int(d)) for n, a, b, factor, added, d in found}


MISTAKES = ("window", "status", "repeats", "unit", "name", "page")


def other_solution(episode: Episode, mistake: str = "") -> list[str]:
    """Solve all questions, with at most one mistake."""
    table = conversions(episode.variation.prompt)
    return [_solved(episode, one.ask, table[one.ask.test], mistake) for one in requests_of(episode)]


def _solved(episode: Episode, ask: TrendContent, test: tuple[str, str, Fraction, Fraction, int], mistake: str) -> str:
    called = ids_called(episode, ask.patient, exact=mistake != "name")
    if len(called) != 1 and not (mistake == "name" and called):
        return SEVERAL_PATIENTS if called else NO_SUCH_PATIENT
    count = 20 if mistake == "page" else 200
    chart = read_all(episode, f"/Observation?subject=Patient/{called[0]}&_count={count}")
    first, last, factor, added, digits = test
    specimens: dict[str, tuple[str, Fraction]] = {}
    for number, one in enumerate(sorted(chart, key=lambda one: (one["effectiveDateTime"], one["issued"]))):
        code, taken = one["code"]["coding"][0]["code"], one["effectiveDateTime"]
        value = Fraction(str(one["valueQuantity"]["value"]))
        if code not in (first, last):
            continue
        if mistake != "status" and one["status"] in ("preliminary", "entered-in-error", "cancelled"):
            continue
        if mistake != "window" and not ask.first_day <= taken[:10] <= ask.last_day:
            continue
        if code == last and mistake != "unit":
            value = factor * value + added
        specimens[f"{taken} {number}" if mistake == "repeats" else taken] = (taken, value)
    values = [specimens[one][1] for one in sorted(specimens)]
    if len(values) < 1 + (ask.measure == "change"):
        return NO_RESULT
    if ask.measure == "above":
        return str(sum(one > Fraction(ask.limit) for one in values))
    found = {"mean": sum(values) / len(values), "highest": max(values), "change": values[-1] - values[0]}[ask.measure]
    return f"{float(found):.{digits}f}"


@pytest.mark.parametrize("key", ["I2-1", pytest.param("I2-2", marks=pytest.mark.slow)])
def test_another_solver_is_right(hospital: World, key: str) -> None:
    for variation in (2, 3):
        with opened(hospital, key, variation) as episode:
            step = episode.step(finish(other_solution(episode)))
            assert failed(step) == []


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_fails_the_questions_that_it_touches(hospital: World, mistake: str) -> None:
    touched = 0
    for variation in (4, 5):
        with opened(hospital, "I2-2", variation) as episode:
            answers, requests = other_solution(episode, mistake), requests_of(episode)
            same = [_same(answer, one) for answer, one in zip(answers, requests, strict=True)]
            wrong = names_of_checks(not one for one in same)
            found = failed(episode.step(finish(answers)))
            # Who read the wrong chart, or only a part of it, also lacks evidence where the answer happens to be right.
            assert set(wrong) <= set(found) if mistake in ("name", "page") else wrong == found
            touched += len(wrong)
    assert touched > 1


def _same(answer: str, request: TrendRequest) -> bool:
    try:
        return Decimal(answer) == Decimal(request.outcome)
    except ArithmeticError:
        return answer == request.outcome


@pytest.mark.slow
def test_the_rules_make_a_difference(hospital: World) -> None:
    rules: tuple[Rule, ...] = ("status", "repeats", "unit")
    with opened(hospital, "I2-2", 6) as episode:
        scene = params_of(episode).scene
        values = [one for one in requests_of(episode) if one.outcome not in Trends.codes]
        for request in values:
            results = [one for one in scene.results if one.patient == request.patients[0]]
            ask = request.ask

            def without(rule: Rule, ask: TrendContent = ask, results: Any = results) -> str:
                value = exact_answer(ask, results, rule)
                return NO_RESULT if value is None else rounded(ask, value)

            assert without("window") != request.outcome
            assert any(without(rule) != request.outcome for rule in rules)
        assert values


def test_writes_fail_the_rest(hospital: World) -> None:
    with opened(hospital, "I2-1", 2) as episode:
        note = Post("/Basic", {"resourceType": "Basic", "code": {"text": "note"}})
        step = play(episode, lambda one: [note, one] if one.kind == "FINISH" else [one])
        assert failed(step) == ["nothing else changed"] and 0 < step.reward < 1
        result = params_of(episode).scene.results[0].id
        odd = Put(f"/Observation/{result}", {"resourceType": "Observation", "id": result, "valueQuantity": "?"})
        episode.start()
        step = play(episode, lambda one: [one] if one.kind != "FINISH" else [odd, one])
        assert failed(step) == ["nothing else changed"]
        episode.start()
        assert episode.step(Finish(["A: 7.4.1", "B: NaN", "C: 1e400", 7, None])).reward == 0


def ask(measure: str, test: str = "glucose") -> TrendContent:
    who = Named(given="Ana", family="Diaz", birth_date="1980-01-01")
    days = {"first_day": "2023-01-01", "last_day": "2023-03-01"}
    return TrendContent.model_validate({"patient": who, "test": test, "measure": measure, "limit": "140", **days})


@pytest.mark.parametrize(
    ("measure", "value", "answer", "right"),
    [
        ("mean", "140.26", "140.3", True),
        ("mean", "140.26", "140.26", True),
        ("mean", "140.26", "140.30 mg/dl", True),
        ("mean", "140.26", "140.3 mmol/l", False),
        ("mean", "140.26", "140.4", False),
        ("mean", "140.26", "140,3", False),
        ("mean", "140.26", "140.3 140.3", False),
        ("change", "-3.2", "-3.2", True),
        ("change", "-3.2", "\u22123.2", True),
        ("change", "-3.2", "3.2", False),
        ("change", "3.2", "+3.2", True),
        ("highest", "5", "5.00", True),
        ("highest", "5", "nan", False),
        ("highest", "5", "infinity", False),
        ("highest", "5", "1e1", False),
        ("above", "4", "4", True),
        ("above", "4", "4.0", True),
        ("above", "4", "4.3", False),
        ("above", "4", "4 results", True),
        ("above", "4", "", False),
    ],
)
def test_values_are_compared_as_numbers(measure: str, value: str, answer: str, right: bool) -> None:
    assert agrees(ask(measure), Decimal(value), answer) is right


def test_answers_are_rounded() -> None:
    assert rounded(ask("mean"), Decimal("140.25")) == "140.3"
    assert rounded(ask("change"), Decimal("-0.02")) == "0.0"
    assert rounded(ask("above"), Decimal(4)) == "4"
    assert TESTS["HbA1c"].converted("59261-8", Decimal(53)) == Decimal("6.9995")
