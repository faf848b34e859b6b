"""Values that slots find in prompts."""

from __future__ import annotations

import pytest

from fhir_gym.training.menu.prompt import Prompt
from fhir_gym.training.menu.templates import Slot

TEXT = """Present: 2023-11-13T10:15:00Z, a Monday; all times are UTC.

Book Ana Peña (given name Ana, family name Peña, Patient/S12) with Dr. Nikolai García's team next Monday at 14:00,
or in the 43 days starting on 2023-11-19. Phone +1 355 555 0132, code 271737000."""


@pytest.mark.parametrize(
    ("slot", "value"),
    [
        (Slot("reference", ("Patient", 0, "id")), "S12"),
        (Slot("reference", ("Patient", 0, "ref")), "Patient/S12"),
        (Slot("reference", ("Location", 0, "ref")), None),
        (Slot("number", (0,)), 43),
        (Slot("number", (9,)), None),
        (Slot("date", ("date", 0, (), 0, None), "ge"), "ge2023-11-19"),
        (Slot("date", ("date", 0, (0,), 0, None)), "2024-01-01"),
        (Slot("date", ("weekday", 0, (), 0, 0)), "2023-11-20T14:00:00Z"),
        (Slot("date", ("now", 0, (), 0, "now")), "2023-11-13T10:15:00Z"),
        (Slot("text", ("word", "family\\ name\\ ", "")), "Peña"),
        (Slot("text", ("word", r"Dr\.\ \S+?\ ", "")), "García"),
        (Slot("text", ("span", "Phone\\ ", ",")), "+1 355 555 0132"),
        (Slot("word_value", ("code",)), "B"),
    ],
)
def test_values(slot: Slot, value: object) -> None:
    assert Prompt(TEXT).value(slot, {"code": {"team": "B", "nobody": "A"}}) == value


@pytest.mark.parametrize("value", ["S12", "Patient/S12", 43, "2023-11-19", "2023-11-20T14:00:00Z", "Peña", "271737000"])
def test_every_explanation_gives_the_value(value: str | int) -> None:
    prompt = Prompt(TEXT)
    slots = list(prompt.explain(value))
    assert slots
    assert {prompt.value(slot, {}) for slot in slots} == {value}


def test_the_action_format_is_no_part_of_the_prompt() -> None:
    known = Prompt(f"{TEXT}\n\nThe FHIR R4 server's base URL is http://x/fhir. You have 15 actions. GET /Account/9")
    assert known.text == TEXT
    assert "Account" not in known.references


@pytest.mark.parametrize("present", ["2023-13-45T10:15:00Z", "9999-12-31T10:15:00Z", "\u0662023-11-13T10:15:00Z"])
def test_a_day_that_does_not_exist_is_no_value(present: str) -> None:
    prompt = Prompt(f"Present: {present}.\n\nCome next Monday after next or in 43 days.")
    assert prompt.value(Slot("date", ("weekday", 0, (), 0, None)), {}) is None
    assert prompt.value(Slot("date", ("now", 0, (0,), 0, None)), {}) is None
    assert list(prompt.explain("2023-11-13")) == []


def test_the_present_time_needs_a_present() -> None:
    assert Prompt("Come on 2023-11-19.").value(Slot("date", ("date", 0, (), 0, "now")), {}) is None
