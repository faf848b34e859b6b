"""Check drug orders: their amounts, times and rates across units, and their free texts.

A free text may repeat the order, but must not contradict or extend it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import isclose
from typing import TypeVar

from fhir_gym.tasks.authoring import codings, concept_texts
from fhir_gym.tasks.grading import plain
from fhir_gym.tasks.packs.medagentbench.routes import Route
from fhir_gym.types import Json, Resource, as_object

T = TypeVar("T")

_EXACT = 1e-6
_ROUNDED = 0.005
"""Relative tolerance of a rate, because agents round rates (1 g/h is about 16.7 mg/min)."""

AMOUNTS: Mapping[str, tuple[str, float]] = {
    **dict.fromkeys(("g", "gram", "grams", "gm"), ("g", 1.0)),
    **dict.fromkeys(("mg", "milligram", "milligrams"), ("g", 1e-3)),
    **dict.fromkeys(("ug", "mcg", "\u00b5g", "\u03bcg", "microgram", "micrograms"), ("g", 1e-6)),
    **dict.fromkeys(("meq", "milliequivalent", "milliequivalents"), ("mEq", 1.0)),
    **dict.fromkeys(("eq", "equivalent", "equivalents"), ("mEq", 1e3)),
    **dict.fromkeys(("unit", "units", "u", "iu", "[iu]", "[usp'u]", "international units"), ("units", 1.0)),
    **dict.fromkeys(("mmhg", "mm[hg]", "mm hg"), ("mmHg", 1.0)),
}
"""Base unit of each unit of amount, and the factor that converts to the base unit."""
_HOURS: Mapping[str, float] = {
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 1.0),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 1 / 60),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1 / 3600),
    **dict.fromkeys(("d", "day", "days"), 24.0),
}


def child_object(holder: Json, name: str) -> Resource:
    """Return an element if it is an object; otherwise an empty object."""
    return as_object(as_object(holder).get(name))


def is_number(actual: Json, expected: float, tolerance: float = _EXACT) -> bool:
    """Return whether a JSON value is a number that differs from the expected number by at most the tolerance."""
    number = isinstance(actual, int | float) and not isinstance(actual, bool)
    return bool(number and abs(actual - expected) <= tolerance)


def is_amount(quantity: Json, value: float, unit: str, tolerance: float = _EXACT) -> bool:
    """Return whether a Quantity equals an amount; the Quantity may have another unit."""
    expected = AMOUNTS[unit.casefold()]
    return any(
        kind == expected[0] and is_number(number * factor / expected[1], value, tolerance)
        for number, (kind, factor) in _read(quantity, AMOUNTS)
    )


def hours_of(quantity: Json) -> float | None:
    """Convert a Quantity of time to hours; return None if its unit is not a unit of time."""
    return next((number * factor for number, factor in _read(quantity, _HOURS)), None)


def is_amount_over(said: Json, value: float, unit: str, hours: float) -> bool:
    """Return whether a rate or a duration fits an amount that is given within some hours.

    Args:
        said: The duration (a Quantity of time) or the rate (a Quantity of amount per time, or a Ratio).
        value: The amount.
        unit: Unit of the amount.
        hours: Number of hours.
    """
    if isinstance(said, dict) and ("numerator" in said or "denominator" in said):
        over, under = child_object(said, "numerator"), hours_of(child_object(said, "denominator"))
        amounts = [(number, amount) for number, amount in _read(over, AMOUNTS)]
        return bool(under) and any(_is_rate(n * f / float(under or 1), k, value, unit, hours) for n, (k, f) in amounts)
    time = hours_of(said)
    if time is not None:
        return isclose(time, hours, rel_tol=_EXACT)
    return any(_is_rate(number * factor, kind, value, unit, hours) for number, (kind, factor) in _read(said, _BY_TIME))


def _is_rate(an_hour: float, kind: str, value: float, unit: str, hours: float) -> bool:
    expected, factor = AMOUNTS[unit.casefold()]
    return kind == expected and isclose(an_hour, value * factor / hours, rel_tol=_ROUNDED)


_BY_TIME: Mapping[str, tuple[str, float]] = {
    f"{amount}{by}{time}": (kind, factor / hours)
    for amount, (kind, factor) in AMOUNTS.items()
    for time, hours in _HOURS.items()
    for by in ("/", " / ", " per ")
}


def _read(quantity: Json, units: Mapping[str, T]) -> list[tuple[float, T]]:
    """Return the value of a Quantity and the meaning of its unit; empty if unit and code contradict or are unknown."""
    if not isinstance(quantity, dict) or "comparator" in quantity:
        return []
    number = quantity.get("value")
    if not isinstance(number, int | float) or isinstance(number, bool):
        return []
    said = [units.get(str(quantity[name]).strip().casefold()) for name in ("unit", "code") if name in quantity]
    first = said[0] if said else None
    return [(number, first)] if first is not None and all(other == first for other in said) else []


_NUMBERS = {"one": "1", "two": "2", "three": "3", "four": "4", "five": "5"}
_TIME = r"(?:h|hrs?|hours?|min|mins|minutes?)"
_MASS = r"(?:g|gm|grams?|mg|milligrams?|mcg|ug|micrograms?|meq|milliequivalents?|iu|units?|u)"
_FIGURE = r"(?<![\d.])\d{1,9}(?:\.\d{1,30})?"
"""Pattern of a number; because of the look-behind, the time to match a long row of digits grows only linearly."""
_CONCENTRATION = re.compile(rf"[<>=\u2264\u2265]{{0,3}}\s?{_FIGURE}\s?(?:mg|mmol|meq|g|ug|mcg)\s?/\s?(?:dl|l)\b")
_RATE = re.compile(rf"({_FIGURE})[\s-]*({_MASS})\s?(?:/|per)\s?({_TIME})\b")
_AMOUNT = re.compile(rf"({_FIGURE})[\s-]*({_MASS})\b(?!\s?/)")
_SPAN = re.compile(rf"({_FIGURE})[\s-]*({_TIME})\b")
_ONCE = re.compile(r"\b(?:x\s?1|1\s?x|1[\s-]?(?:time|dose)s?|(?:dose|times?) 1)\b")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_NEUTRAL = frozenset(
    _WORD.findall(
        "a active administer administered an and as at bag be by capsule capsules deficiency dose dosing due during "
        "each food for from full give given glass hypokalaemia hypokalemia hypomagnesaemia hypomagnesemia immediate "
        "immediately in infuse infused into is it level low mild moderate now of on once only order over patient per "
        "present protocol rate release repletion replace replacement route rule severe single slow slowly solution "
        "stat supplement supplementation tablet tablets take taken the this time to today total treat treatment via "
        "water with"
    )
)
"""Words that instructions may contain because they add nothing to an order."""
_AGAIN = re.compile(
    r"\b(?:every|daily|nightly|hourly|weekly|twice|thrice|bid|tid|qid|q\s?\d+\s?h?|repeat(?:ed|ing)?)\b"
)


@dataclass(frozen=True, slots=True)
class OrderedDose:
    """The requested content of a drug order.

    Attributes:
        drug: Words that name the drug.
        tolerance: Maximum difference between an accepted dose and `value`.
        hours: Duration of an infusion in hours; None if the prompt states no duration.
    """

    drug: Collection[str]
    route: Route
    value: float
    unit: str
    tolerance: float = 1e-6
    hours: float | None = None


def contradictions(order: Resource, ordered: OrderedDose) -> list[Json]:
    """Return the texts of an order that contradict or extend the requested content."""
    notes = [*_notes(order.get("note"))]
    instructions = [
        text
        for dosage_instruction in order.get("dosageInstruction") or []
        for text in _instructions(dosage_instruction)
    ]
    return [
        *(text for text in instructions if not _repeats(text, ordered)),
        *(text for text in notes if not _is_remark(text, ordered)),
    ]


def names_drug(concept: Json, system: str, code: str, words: Collection[str]) -> bool:
    """Return whether every label of a concept names a drug.

    A label that only repeats the code is accepted too. A coding of another system must have a display.
    """
    named = all(
        _tokens(label) & {*words} or plain(label).casefold() == code.casefold() for label in concept_texts(concept)
    )
    return named and all(coding.get("system") == system or "display" in coding for coding in codings(concept))


def _notes(notes: Json) -> Iterator[str]:
    for note in notes if isinstance(notes, list) else [notes]:
        if isinstance(note, dict) and isinstance(note.get("text"), str):
            yield note["text"]


def _instructions(dosage: Json) -> Iterator[str]:
    if not isinstance(dosage, dict):
        return
    yield from (dosage[name] for name in ("text", "patientInstruction") if isinstance(dosage.get(name), str))
    for name in ("additionalInstruction", "method"):
        yield from concept_texts(dosage.get(name) or [])


def _repeats(text: str, ordered: OrderedDose) -> bool:
    """Return whether a text contains only neutral words and the amounts, times and rates of the order."""
    rest, right = _without_amounts(text, ordered)
    words = _NEUTRAL | {*ordered.drug} | ordered.route.says | ordered.route.more
    return right and {*_WORD.findall(_ONCE.sub(" ", rest))} <= words


def _is_remark(text: str, ordered: OrderedDose) -> bool:
    """Return whether a text mentions neither another dose nor a repetition."""
    lowered = _lowered(text)
    doses = _AMOUNT.findall(_RATE.sub(" ", _CONCENTRATION.sub(" ", lowered)))
    return not _AGAIN.search(lowered) and all(_is_dose(number, unit, ordered) for number, unit in doses)


def _without_amounts(text: str, ordered: OrderedDose) -> tuple[str, bool]:
    """Remove the amounts, times and rates from a text; also return whether all of them agree with the order."""
    rest = _CONCENTRATION.sub(" ", _lowered(text))
    right = []
    for number, unit, time in _RATE.findall(rest):
        quantity = {"value": float(number), "unit": f"{unit}/{time}"}
        right.append(ordered.hours is not None and is_amount_over(quantity, ordered.value, ordered.unit, ordered.hours))
    rest = _RATE.sub(" ", rest)
    right += [_is_dose(number, unit, ordered) for number, unit in _AMOUNT.findall(rest)]
    rest = _AMOUNT.sub(" ", rest)
    for number, unit in _SPAN.findall(rest):
        quantity = {"value": float(number), "unit": unit}
        right.append(ordered.hours is not None and is_amount_over(quantity, ordered.value, ordered.unit, ordered.hours))
    return _SPAN.sub(" ", rest), all(right)


def _is_dose(number: str, unit: str, ordered: OrderedDose) -> bool:
    return unit in AMOUNTS and is_amount(
        {"value": float(number), "unit": unit}, ordered.value, ordered.unit, ordered.tolerance
    )


def _lowered(text: str) -> str:
    lowered = plain(text).casefold().replace("p.o.", "po").replace("i.v.", "iv")
    return re.sub(r"\b(?:" + "|".join(_NUMBERS) + r")\b", lambda match: _NUMBERS[match[0]], lowered)


def _tokens(label: str) -> set[str]:
    return {*_WORD.findall(plain(label).casefold())}
