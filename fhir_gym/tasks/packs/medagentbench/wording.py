"""Check the free texts of a drug order: they may repeat the order, but must not contradict or extend it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fhir_gym.tasks.authoring import codings, concept_texts
from fhir_gym.tasks.grading import plain
from fhir_gym.tasks.packs.medagentbench.amounts import AMOUNTS, is_amount, is_amount_over
from fhir_gym.tasks.packs.medagentbench.routes import Route
from fhir_gym.types import Json, Resource

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
