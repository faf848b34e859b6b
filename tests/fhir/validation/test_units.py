"""The grammar of UCUM."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym.fhir.definitions import value_set
from fhir_gym.fhir.validation.terminology import is_unit


@pytest.mark.parametrize(
    "code",
    [
        "mg/dL",
        "10*3/uL",
        "10*-6",
        "mm[Hg]",
        "/min",
        "{beats}/min",
        "mL/min/{1.73_m2}",
        "(mg.m)/s",
        "%{x}",
        "[degF]",
        "cd",
        "min",
        "kat",
        "meq/L",
        "{2 or 3 times}/d",
        "2.mg",
    ],
)
def test_units(code: str) -> None:
    assert is_unit(code)


@pytest.mark.parametrize(
    "code",
    [
        "",
        "mgs",
        "mcg",
        "degF",
        "mEq/L",
        "mg ",
        " mg",
        "µg",
        "/",
        "m//s",
        "mg/",
        "(m",
        "m)",
        "{",
        "{a}{b",
        "kmin",
        "x" * 300,
    ],
)
def test_what_is_no_unit(code: str) -> None:
    assert not is_unit(code)


def test_all_units_of_hl7s_value_sets_are_units() -> None:
    sets = ["ucum-bodylength", "ucum-bodytemp", "ucum-bodyweight", "ucum-vitals-common", "age-units", "units-of-time"]
    listed = [value_set(f"http://hl7.org/fhir/ValueSet/{name}") or {} for name in sets]
    codes = {code for codes_of in listed for code in codes_of.get("http://unitsofmeasure.org", ())}
    assert len(codes) > 5
    assert [code for code in codes if not is_unit(code)] == []


@given(st.text("mgk[]{}()./*-1 %", max_size=12))
def test_any_text_is_judged(code: str) -> None:
    assert is_unit(code) in (True, False)
