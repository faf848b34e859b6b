"""Instructions and contexts of the prompts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fhir_gym.tasks.packs.action_reasoning.cases import CaseSpec, Scenario
from fhir_gym.tasks.packs.action_reasoning.derivation import digits_of
from fhir_gym.tasks.packs.action_reasoning.generation import SCENARIOS
from fhir_gym.tasks.packs.action_reasoning.orders import ORDERS
from fhir_gym.tasks.packs.action_reasoning.phrasing import ENDINGS, LENGTHS, PROMPTS, context, instruction
from fhir_gym.tasks.packs.action_reasoning.ranges import LABS, RANGES
from fhir_gym.tasks.packs.action_reasoning.series import PatientSummary

NOW = "2023-11-13T10:15:00Z"
PERSON = PatientSummary("S1234567", "Ann Lee", "female", None)
AGE = 71
FAMILY = {scenario: family for family, scenarios in SCENARIOS.items() for scenario in scenarios}
OPTIONS = [
    (scenario, phrasing, length)
    for scenario, prompts in PROMPTS.items()
    for phrasing in range(len(prompts))
    for length in LENGTHS
]


def plan(scenario: Scenario, phrasing: int = 0, length: int = 0, **changes: Any) -> CaseSpec:
    family = FAMILY[scenario]
    lab = {"window": "GLU", "demographic": "HGB"}.get(scenario, "K")
    told: dict[str, Any] = {"direction": "low", "order": f"{lab} low"} if family == "conditional" else {}
    made = {
        "family": family,
        "scenario": scenario,
        "lab": lab,
        "unit": LABS[lab].unit,
        "as_of": NOW,
        "digits": digits_of(family, lab),
        "phrasing": phrasing,
        "length": length,
    }
    return CaseSpec(**{**made, **told, **changes})


def said(plan: CaseSpec, age: int | None = AGE) -> tuple[str, str]:
    order = ORDERS[plan.order] if plan.order else None
    return instruction(plan, PERSON, age, NOW, order), context(plan, PERSON, age, order)


def test_every_scenario_has_three_phrasings_or_more() -> None:
    assert set(PROMPTS) == set(FAMILY)
    assert all(len(set(prompts)) == len(prompts) >= 3 for prompts in PROMPTS.values())


@pytest.mark.parametrize(("scenario", "phrasing", "length"), OPTIONS)
def test_the_prompt_contains_everything_that_is_checked(scenario: Scenario, phrasing: int, length: int) -> None:
    asked = plan(scenario, phrasing, length)
    what, beside = said(asked)
    whole = f"{what} {beside} {ENDINGS[asked.family]}"
    assert "{" not in whole
    assert PERSON.id in what and LABS[asked.lab].title in what
    assert f"Lab code: {asked.lab} (" in beside and asked.unit in beside
    assert "FINISH([" in whole and "effectiveDateTime" in whole and "cancelled" in whole
    if asked.family == "conditional":
        assert asked.order and ORDERS[asked.order].content in beside
        assert ORDERS[asked.order].name in what
        assert all(row.limits in beside for row in RANGES[asked.lab])
    if asked.family == "aggregation":
        assert "half up to one decimal" in beside


@pytest.mark.parametrize(("scenario", "phrasing", "length"), OPTIONS)
def test_prompts_contain_windows_and_times(scenario: Scenario, phrasing: int, length: int) -> None:
    what, _ = said(plan(scenario, phrasing, length, window_hours=36))
    assert "within the last 36 hours" in what
    past = "2023-01-02T03:04:00Z"
    what, _ = said(plan(scenario, phrasing, length, window_hours=1.5, as_of=past))
    assert f"within the 1.5 hours up to {past}" in what
    what, _ = said(plan(scenario, phrasing, length, as_of=past))
    assert f"as of {past}" in what


def test_conditions_take_different_forms() -> None:
    for direction in ("low", "high", "outside"):
        texts = [said(plan("general", n, direction=direction))[0] for n in range(len(PROMPTS["general"]))]
        assert any("only if" in text for text in texts)
        assert any(text.startswith("Unless") for text in texts)
        assert any(re.search(r"\bif it is (low|high|outside)", text) for text in texts)
        assert not any(re.search(r"nless[^.]*\bnot\b", text) for text in texts)


def test_longer_contexts_contain_more_irrelevant_text() -> None:
    for scenario in PROMPTS:
        short, some, much = (said(plan(scenario, 0, length))[1] for length in LENGTHS)
        assert len(short) < len(some) < len(much)
        others = [code for code in LABS if f"Lab code: {code} (" in much and code != plan(scenario).lab]
        assert len(others) == 2
        for code in others:
            assert all(row.limits in much for row in RANGES[code])


@pytest.mark.parametrize("length", LENGTHS)
def test_prompts_do_not_give_sex_and_age_where_they_matter(length: int) -> None:
    for phrasing in range(len(PROMPTS["demographic"])):
        text = " ".join(said(plan("demographic", phrasing, length))).replace("women", "").replace("men", "")
        assert "71" not in text and "woman" not in text and "Ann" not in text
    told = [said(plan("general", phrasing, length))[0] for phrasing in range(len(PROMPTS["general"]))]
    assert any("71-year-old woman" in text for text in told)
    assert not any("71-year-old woman" in text for text in told if "(" not in text)


def test_an_unknown_age_is_not_mentioned() -> None:
    what, _ = said(plan("general"), age=None)
    assert "(woman)" in what


def test_a_moved_range_is_said_as_it_is_moved() -> None:
    _, beside = said(plan("general", shift=0.1))
    assert "3.9 to 6.1 mmol/L" in beside and "3.5" not in beside
