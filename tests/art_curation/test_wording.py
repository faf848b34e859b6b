from __future__ import annotations

import pytest

from fhir_gym.art_curation.wording import changes, hours_said, instants, senses

ORDER = "Review most recent magnesium value for elderly male patient S6227720. Order IV replacement if clinically low."
MEAN = "What is the average glucose (GLU, mg/dL) of patient S123 within the 24 hours up to 2023-11-12T08:00:00Z?"
DOSE = "Unless the last potassium of Ida Grau is at or above the lower limit of 3.5 mmol/L, order 40 mEq of it for S1."


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ORDER, "If the latest magnesium of S6227720, an elderly man, is below normal range, order IV replacement."),
        (ORDER, "Check the newest magnesium result of the elderly male patient S6227720; place an order for "
                "intravenous replacement where it is too low."),
        (MEAN, "Over the 24 h up to 2023-11-12T08:00:00Z, what was the mean glucose (GLU, mg/dL) of patient S123?"),
        (MEAN, "Average the glucose results (GLU, mg/dL) S123 had in the 24-hour span up to 2023-11-12T08:00:00Z."),
        (DOSE, "For S1, Ida Grau: order 40 mEq of potassium unless the most recent one is not below the lower limit of "
               "3.5 mmol/L."),
    ],
)  # fmt: skip
def test_same_facts(before: str, after: str) -> None:
    assert changes(before, after, names=["Ida Grau"]) == []


@pytest.mark.parametrize(
    ("before", "old", "new", "told"),
    [
        (ORDER, "S6227720", "S6227721", "S6227720"),
        (ORDER, "S6227720", "the patient", "S6227720"),
        (ORDER, "low", "high", "below"),
        (ORDER, "low", "abnormal", "below"),
        (ORDER, "most recent", "first", "latest"),
        (ORDER, "most recent", "average", "latest"),
        (ORDER, "male", "female", "male"),
        (ORDER, "elderly male", "male", "old"),
        (ORDER, "magnesium", "potassium", "magnesium"),
        (ORDER, "IV", "oral", "vein"),
        (ORDER, "if clinically", "of 2 g if clinically", "2 g"),
        (ORDER, "IV replacement", "two doses of IV replacement", "two"),
        (ORDER, "if clinically low", "if not clinically low", "not"),
        (ORDER, "patient S6227720", "patient Maria Lopez S6227720", "Maria"),
        (ORDER, "Order IV", "Within 24 hours order IV", "24 hour"),
        (MEAN, "24 hours", "36 hours", "24 hour"),
        (MEAN, "24 hours", "24 days", "24 hour"),
        (MEAN, "08:00", "09:00", "2023-11-12T08:00:00Z"),
        (MEAN, " up to 2023-11-12T08:00:00Z", " before now", "2023-11-12T08:00:00Z"),
        (MEAN, "mg/dL", "mmol/L", "mg/dL"),
        (MEAN, "GLU", "LAC", "GLU"),
        (MEAN, "average", "latest", "mean"),
        (MEAN, "average", "median", "mean"),
        (MEAN, "average", "highest average", "sum"),
        (DOSE, "40 mEq", "40 mg", "40 mEq"),
        (DOSE, "40 mEq", "20 mEq", "40 mEq"),
        (DOSE, "3.5", "3.0", "3.5"),
        (DOSE, "Unless", "If", "negates"),
        (DOSE, "Ida Grau", "Ada Grau", "Ida"),
        (DOSE, "the lower limit", "the upper limit", "above"),
    ],
)
def test_changed_facts(before: str, old: str, new: str, told: str) -> None:
    assert old in before
    found = changes(before, before.replace(old, new), names=["Ida Grau", "Maria Lopez"])
    assert any(told in change for change in found), found


def test_every_fact_left_out_is_missed() -> None:
    """Remove one word that carries a fact, for each such word."""
    for text, facts in (
        (ORDER, ("most recent", "magnesium", "elderly", "male", "S6227720", "IV", "low")),
        (MEAN, ("average", "glucose", "GLU", "mg/dL", "S123", "24", "hours", "2023-11-12T08:00:00Z")),
        (DOSE, ("Unless", "last", "potassium", "Ida", "Grau", "3.5", "mmol/L", "40", "mEq", "S1")),
    ):
        for fact in facts:
            assert changes(text, text.replace(fact, ""), names=["Ida Grau"]), fact


def test_phrases_stay_letter_by_letter() -> None:
    before = "Order a complete blood count if the latest hemoglobin of S1 is low."
    after = "If the latest hemoglobin of S1 is low, order a full blood count."
    assert changes(before, after) != [] or changes(before, after, phrases=["a complete blood count"]) != []
    assert "lost 'a complete blood count'" in changes(before, after, phrases=["a complete blood count"])
    assert changes(before, before, phrases=["an iron panel"]) == []


def test_parts_of_a_text() -> None:
    assert [str(number) for number in hours_said("in the 24-hour span, within 36 h, 2.5 hours; 3 days, 4 mg, 5")] == [
        "24",
        "36",
        "2.5",
    ]
    (moment,) = instants("up to 2023-11-12T08:00:00+01:00, a day like 2023-11-12")
    assert moment.isoformat() == "2023-11-12T07:00:00+00:00"
    assert senses("the last 24 hours") == set()
    assert senses("is at or above the lower limit") == {"below", "not"}
    assert senses("the average, if elevated") == {"mean", "above"}
