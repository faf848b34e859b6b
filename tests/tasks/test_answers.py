from __future__ import annotations

from typing import Any

import pytest

from fhir_gym.tasks.answers import Ids, answer_id

BASE = "http://localhost:8080/fhir"


@pytest.mark.parametrize(
    "value", ["12", 12, " 12 ", "Patient/12", "/Patient/12", "Patient/12/_history/1", f"{BASE}/Patient/12"]
)
def test_ids_in_all_spellings(value: Any) -> None:
    assert answer_id(value, "Patient", BASE) == "12"


@pytest.mark.parametrize(
    "value", ["Slot/12", "http://elsewhere/Patient/12", "patient 12", "", None, True, 1.5, ["12"], {"id": "12"}]
)
def test_what_is_no_id(value: Any) -> None:
    assert answer_id(value, "Patient", BASE) is None


@pytest.mark.parametrize(
    ("answer", "fine"),
    [
        (["1", "2"], True),
        (["Appointment/1", 2], True),
        (["1"], False),
        (["1", "2", "3"], False),
        ([], False),
        (None, False),
    ],
)
def test_form_of_several_ids(answer: list[Any] | None, fine: bool) -> None:
    assert (Ids(("Appointment", "Slot")).problem(answer, BASE) is None) is fine


def test_empty_answers_only_where_they_are_allowed() -> None:
    assert Ids(("Slot",), or_empty=True).problem([], BASE) is None
    assert Ids(("Slot",)).problem([], BASE)
    assert Ids(("Slot",), or_empty=True).problem([None], BASE)
    assert "or []" in Ids(("Slot",), or_empty=True).words


def test_references_to_another_type_are_a_wrong_form() -> None:
    assert Ids(("Appointment", "Slot")).problem(["Slot/2", "Appointment/1"], BASE)
