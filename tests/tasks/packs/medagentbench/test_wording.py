"""Routes, amounts, rates and free texts of drug orders, in equivalent forms."""

from __future__ import annotations

from typing import Any

import pytest

from fhir_gym.tasks.authoring.concepts import SNOMED
from fhir_gym.tasks.packs.medagentbench.routes import INTRAVENOUS, ORAL, SUBCUTANEOUS, Route, is_route
from fhir_gym.tasks.packs.medagentbench.wording import (
    OrderedDose,
    contradictions,
    is_amount,
    is_amount_over,
    names_drug,
)

V3 = "http://terminology.hl7.org/CodeSystem/v3-RouteOfAdministration"
NDC = "http://hl7.org/fhir/sid/ndc"
MAGNESIUM = OrderedDose(("magnesium", "sulfate"), INTRAVENOUS, 2, "g", hours=2)
POTASSIUM = OrderedDose(("potassium", "chloride"), ORAL, 40, "mEq", 0.1)


def coded(system: str, code: str, display: str | None = None, text: str | None = None) -> dict[str, Any]:
    coding = {"system": system, "code": code} | ({"display": display} if display else {})
    return {"coding": [coding]} | ({"text": text} if text else {})


@pytest.mark.parametrize(
    ("said", "route"),
    [
        ("IV", INTRAVENOUS),
        ({"text": "IV infusion"}, INTRAVENOUS),
        ({"text": "I.V."}, INTRAVENOUS),
        ({"text": "IV (intravenous)"}, INTRAVENOUS),
        (coded(SNOMED, "47625008", "Intravenous route (qualifier value)"), INTRAVENOUS),
        (coded(SNOMED, "47625008", "Intravenous route", "IV"), INTRAVENOUS),
        (coded(V3, "IV", "Infusion, intravenous"), INTRAVENOUS),
        (coded("http://terminology.hl7.org/CodeSystem/v2-0162", "IV"), INTRAVENOUS),
        (coded("urn:local", "77", "Intravenous"), INTRAVENOUS),
        (coded(SNOMED, "26643006", "Oral route (qualifier value)"), ORAL),
        (coded(V3, "PO", "Swallow, oral"), ORAL),
        ({"text": "PO (by mouth)"}, ORAL),
        ({"text": "per os"}, ORAL),
        (coded(V3, "SQ", "Injection, subcutaneous"), SUBCUTANEOUS),
        ({"text": "Sub-Q"}, SUBCUTANEOUS),
    ],
)
def test_routes(said: Any, route: Route) -> None:
    assert is_route(said, route)


@pytest.mark.parametrize(
    "said",
    [
        None,
        5,
        {},
        {"text": "oral"},
        {"text": "infusion"},
        {"text": "not intravenous"},
        {"text": "intravenous or oral"},
        {"text": "IV push"},
        coded(SNOMED, "26643006"),
        coded(SNOMED, "47625008", "Oral route"),
        coded(V3, "PO", text="IV"),
        coded("urn:local", "IV"),
    ],
)
def test_other_routes(said: Any) -> None:
    assert not is_route(said, INTRAVENOUS)


@pytest.mark.parametrize(
    ("said", "passed"),
    [
        ({"value": 2, "unit": "h"}, True),
        ({"value": 120, "unit": "minutes", "code": "min"}, True),
        ({"value": 1, "unit": "g/h"}, True),
        ({"value": 1000, "unit": "mg/hr"}, True),
        ({"value": 16.67, "unit": "mg/min"}, True),
        ({"value": 1, "unit": "grams per hour"}, True),
        ({"numerator": {"value": 2, "unit": "g"}, "denominator": {"value": 2, "unit": "h"}}, True),
        ({"numerator": {"value": 500, "unit": "mg"}, "denominator": {"value": 30, "unit": "min"}}, True),
        ({"value": 2, "unit": "g/h"}, False),
        ({"value": 1, "unit": "mEq/h"}, False),
        ({"value": 1, "unit": "mL/h"}, False),
        ({"value": 1, "unit": "g/h", "code": "mg/h"}, False),
        ({"value": 1, "unit": "g/h", "comparator": ">"}, False),
        ({"numerator": {"value": 2, "unit": "g"}, "denominator": {"value": 0, "unit": "h"}}, False),
        ({"numerator": {"value": 2, "unit": "g"}}, False),
        ("2 h", False),
    ],
)
def test_rates(said: Any, passed: bool) -> None:
    assert is_amount_over(said, 2, "g", 2) == passed


def test_amounts_of_potassium_and_insulin() -> None:
    assert is_amount({"value": 40, "unit": "mEq"}, 40, "mEq") and is_amount({"value": 6, "unit": "U"}, 6, "units")
    assert not is_amount({"value": 40, "unit": "mg"}, 40, "mEq") and not is_amount({"value": True, "unit": "g"}, 1, "g")


def order(text: str) -> dict[str, Any]:
    return {"dosageInstruction": [{"text": text}]}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2 g IV once over 2 hours", MAGNESIUM),
        ("Magnesium sulfate 2 g intravenously over two hours x 1 dose", MAGNESIUM),
        ("Infuse 2 grams (1 g/h) over 120 minutes for moderate hypomagnesemia (1.2 mg/dL), single dose.", MAGNESIUM),
        ("2000 mg IV, one-time dose, now", MAGNESIUM),
        ("Take 40 mEq by mouth once", POTASSIUM),
        ("Potassium chloride 40 mEq PO x1 now, with food", POTASSIUM),
    ],
)
def test_texts_that_repeat_the_order(text: str, told: OrderedDose) -> None:
    assert contradictions(order(text), told) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("10 g IV", MAGNESIUM),
        ("2 g IV over 4 hours", MAGNESIUM),
        ("2 g/h", MAGNESIUM),
        ("2 g IV every 6 hours", MAGNESIUM),
        ("2 g IV as needed", MAGNESIUM),
        ("Do not give", MAGNESIUM),
        ("2 g orally", MAGNESIUM),
        ("Calcium gluconate 2 g IV", MAGNESIUM),
        ("3 tablets", POTASSIUM),
        ("40 mEq twice a day", POTASSIUM),
        ("40 mEq over 2 hours", POTASSIUM),
        ("40 g by mouth", POTASSIUM),
    ],
)
def test_texts_with_additional_content(text: str, told: OrderedDose) -> None:
    assert contradictions(order(text), told) == [text]
    patient = {"dosageInstruction": [{"additionalInstruction": [{"text": text}]}]}
    assert contradictions(patient, told) == [text]


def test_a_note_gives_a_reason_and_no_other_dose() -> None:
    def notes(text: str) -> list[Any]:
        return contradictions({"note": [{"text": text}]}, MAGNESIUM)

    assert not notes("Magnesium was 1.2 mg/dL within the last 24 hours; 2 g ordered by the dosing rule.")
    assert notes("Give 10 g.") and notes("Repeat tomorrow.") and notes("2 g every 8 hours")


def test_the_names_of_a_drug() -> None:
    drug = {"coding": [{"system": NDC, "code": "1", "display": "Magnesium sulfate in water"}], "text": "IV magnesium"}
    assert names_drug(drug, NDC, "1", ["magnesium"]) and names_drug({"text": "1"}, NDC, "1", ["magnesium"])
    assert not names_drug({**drug, "text": "Warfarin"}, NDC, "1", ["magnesium"])
    other = {"system": "http://www.nlm.nih.gov/research/umls/rxnorm", "code": "11289"}
    assert not names_drug({"coding": [*drug["coding"], other]}, NDC, "1", ["magnesium"])
