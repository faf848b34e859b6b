from __future__ import annotations

from decimal import Decimal
from urllib.parse import parse_qsl, urlsplit

import pytest

from fhir_gym import Episode
from fhir_gym.actions import Get
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.i2_trends import MEASURES, Measure, TrendContent, TrendRequest, agrees, counted, rounded
from fhir_gym.tasks.packs.shift.laboratory import TESTS
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import NO_RESULT
from tests.tasks.packs.shift.playing import (
    after_lookups,
    failed,
    finish,
    names_of_checks,
    opened,
    opened_where,
    params_of,
)


def requests_of(episode: Episode) -> tuple[TrendRequest, ...]:
    return params_of(episode).requests


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
        results = counted(ask, [result for result in params_of(episode).scene.results if result.patient == patient])
        values = {result.id: TESTS[ask.test].converted(result.code, Decimal(result.value)) for result in results}
        deciding = {
            "mean": [*values],
            "highest": [max(values, key=values.__getitem__)],
            "change": [results[0].id, results[-1].id],
            "above": [id for id, value in values.items() if value > Decimal(ask.limit or "0")],
        }[measure]
        for left_out in (0, 1):
            episode.start()
            episode.step(Get(f"/Patient/{patient}"))
            episode.step(Get(f"/Observation?_id={','.join(['none', *deciding[left_out:]])}&_count=200"))
            step = episode.step(finish([request.outcome for request in requests]))
            assert (check in failed(step)) == bool(left_out)


@pytest.mark.slow
@pytest.mark.parametrize("read", [0, 1])
def test_no_result_needs_a_search_for_both_codes(hospital: World, read: int) -> None:
    unread = {test.codes[1 - read] for test in TESTS.values()}
    declined = 0
    for variation in range(4):
        with opened(hospital, "I2-1", variation) as episode:
            wrong = names_of_checks(request.outcome == NO_RESULT for request in requests_of(episode))
            step = after_lookups(episode, lambda url: "/metadata" if _code(url) in unread else url)
            assert set(wrong) <= set(failed(step))
            declined += len(wrong)
    assert declined


def _code(url: str) -> str:
    return dict(parse_qsl(urlsplit(url).query)).get("code", "")


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
