"""Compare the facts in a text with the facts in its rewording."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType

_INSTANT = re.compile(r"\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?)?")
_QUANTITY = re.compile(
    r"(?P<number>(?<![\w.,/-])[+-]?\d+(?:\.\d+)?)(?!-\d)(?:[-\s]?(?P<unit>%|°C|[A-Za-zµ]+(?:/[A-Za-z]+)?))?(?![\w])"
)
_TOKEN = re.compile(r"\w+(?:[-./:|]\w+)*")
_BEGINNING = re.compile(r"(?:^|[.!?:;]\s+|\n\s*|[\"'(\[]\s*)$")
_SIGN = re.compile(r"%|°C")
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")
_SPAN = re.compile(
    r"\b(?:(?:over|within|in|during|for|across|from)\s+)?(?:the\s+|its\s+)?"
    r"(?:(?:last|past|previous|preceding|prior|most recent|recent)\s+)?"
    r"(?=\d+(?:\.\d+)?[\s-]*(?:h|hours?|hrs?|days?|minutes?)\b)"
)
_FINE = (
    (re.compile(r"\b(?:at or above|not below|no lower than|not lower than) (?:the|its) lower limit\b"), "not low"),
    (re.compile(r"\b(?:at or below|not above|no higher than|not higher than) (?:the|its) upper limit\b"), "not high"),
)
"""Phrases that name one limit but mean the opposite side, with their meaning."""
_RANGE = re.compile(r"\b(?:normal|reference)\s+(?=ranges?\b|limits?\b|intervals?\b|values?\b)")


def _words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


_UNITS = MappingProxyType(
    {"h": "hour", "hr": "hour", "hrs": "hour", "hours": "hour", "days": "day", "minutes": "minute", "min": "minute"}
    | {"years": "year", "decimals": "decimal", "doses": "dose", "digits": "digit", "tablets": "tablet"}
)
"""Standard spelling of units by other spelling."""

_SYMBOLS = frozenset(
    ["%", "°C", "g", "kg", "mg", "mcg", "µg", "mL", "L", "mmol", "mEq", "s", "U", "IU", "unit", "units"]
)

_SPOKEN = _words_of(
    "zero two three four five six seven eight nine ten eleven twelve fifteen twenty thirty forty fifty sixty "
    "seventy eighty ninety hundred thousand half twice thrice double triple once quarter third"
)
"""Numbers in words; a rewording that adds such a number may have added a fact."""

_SENSES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "below": _words_of("low lower below under beneath deficient deficiency insufficient less hypo reduced"),
        "above": _words_of("high higher above over exceeds exceed exceeding elevated excessive greater more"),
        "outside": _words_of("outside abnormal beyond"),
        "inside": _words_of("inside within normal"),
        "latest": _words_of("latest newest recent last"),
        "earliest": _words_of("earliest oldest first initial"),
        "mean": _words_of("average averages averaged averaging mean"),
        "sum": _words_of("sum total median maximum minimum peak lowest highest largest smallest count"),
        "not": _words_of("not no none never without unless except neither nor don't doesn't isn't cannot"),
        "male": _words_of("male man men boy boys gentleman he him his mr"),
        "female": _words_of("female woman women girl girls lady she her hers mrs ms"),
        "old": _words_of("elderly senior geriatric aged older"),
        "young": _words_of("young child pediatric paediatric infant adolescent teenage younger"),
        "vein": _words_of("iv intravenous intravenously infusion infused"),
        "mouth": _words_of("oral orally po tablet tablets capsule"),
    }
)
"""Words that affect the answer, by meaning; a rewording may exchange words of the same meaning."""

_SUBJECTS = _words_of(
    "calcium chloride creatinine prothrombin protein glucose potassium magnesium sodium hemoglobin haemoglobin "
    "hematocrit haematocrit lactate phosphate insulin iron bicarbonate"
)
"""Names of substances; a rewording must keep them."""


def has(text: str, token: str) -> bool:
    """Return whether a text contains a code, name or unit as a separate word."""
    left = r"(?<![\w/])" if token[:1].isalnum() else ""
    right = r"(?![\w/])" if token[-1:].isalnum() else ""
    return re.search(left + re.escape(token) + right, text) is not None


def hours_said(text: str) -> list[Decimal]:
    """Return each number of hours that a text mentions."""
    return [Decimal(quantity.split()[0]) for quantity in _quantities(text) if quantity.endswith(" hour")]


def senses(text: str) -> set[str]:
    """Return the senses that occur in a text, such as ``below``, ``latest``, ``mean`` or ``female``."""
    words = _words(text).keys()
    return {sense for sense, sense_words in _SENSES.items() if words & sense_words}


def instants(text: str) -> list[datetime]:
    """Return the instants in a text; an instant without a time zone is read as UTC."""
    times = []
    for match in _INSTANT.finditer(text):
        if "T" in match[0]:
            moment = datetime.fromisoformat(match[0])
            times.append((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC))
    return times


def changes(before: str, after: str, *, names: Iterable[str] = (), phrases: Iterable[str] = ()) -> list[str]:
    """Return the facts that a rewording lost, changed or added.

    Numbers are compared together with their units. Codes, record numbers, names and instants are compared literally.
    Words that affect the answer ("low"/"high", "latest"/"first", "average", "not", "male"/"female") are compared by
    meaning.

    Args:
        before: The original text.
        after: The rewording.
        names: Names of people; a rewording must neither add nor omit one.
        phrases: Phrases that must be kept literally.
    """
    problems = _difference("quantity", _quantities(before), _quantities(after))
    problems += _difference("moment", _INSTANT.findall(before), _INSTANT.findall(after))
    problems += _difference("code", _codes(before), _codes(after))
    old_tokens, new_tokens = set(_tokens(before)), set(_tokens(after))
    name_tokens = {part for name in names for part in _tokens(name)}
    problems += [
        f"lost the name {old_token!r}"
        for old_token in sorted((_proper(before) | name_tokens & old_tokens) - new_tokens)
    ]
    problems += [
        f"made up the name {new_token!r}"
        for new_token in sorted((_proper(after) | name_tokens & new_tokens) - old_tokens)
    ]
    lower = after.lower()
    problems += [
        f"lost {phrase!r}" for phrase in phrases if phrase.lower() in before.lower() and phrase.lower() not in lower
    ]
    old, new = _words(before), _words(after)
    for sense, words in _SENSES.items():
        if (old.keys() & words != set()) != (new.keys() & words != set()):
            problems.append(f"{'lost' if old.keys() & words else 'made up'} the sense {sense!r}")
    if sum(old[word] for word in _SENSES["not"]) != sum(new[word] for word in _SENSES["not"]):
        problems.append("negates more or less than before")
    problems += _difference("substance", old.keys() & _SUBJECTS, new.keys() & _SUBJECTS)
    return problems + _difference("number in words", old.keys() & _SPOKEN, new.keys() & _SPOKEN)


def _difference(kind: str, before: Iterable[str], after: Iterable[str]) -> list[str]:
    old, new = set(before), set(after)
    lost = [f"lost the {kind} {detail!r}" for detail in sorted(old - new)]
    return lost + [f"made up the {kind} {detail!r}" for detail in sorted(new - old)]


def _quantities(text: str) -> Iterator[str]:
    """Yield each number in a text, with its unit in standard spelling."""
    for match in _QUANTITY.finditer(_INSTANT.sub(" ", text)):
        unit = match["unit"] or ""
        unit = _UNITS.get(unit.lower(), unit)
        is_unit = unit in _SYMBOLS or "/" in unit or unit in _UNITS.values()
        yield f"{Decimal(match['number']).normalize():f}{' ' + unit if is_unit else ''}"


def _codes(text: str) -> Iterator[str]:
    """Yield codes and units: tokens in capital letters, and tokens that contain a digit or slash."""
    plain = _QUANTITY.sub(" ", _INSTANT.sub(" ", text))
    for token in _tokens(plain):
        capitals = sum(letter.isupper() for letter in token)
        lone = capitals == len(token) and token not in ("A", "I", "IV")
        if lone or "/" in token or any(letter.isdigit() for letter in token):
            yield token
    yield from _SIGN.findall(text)


def _proper(text: str) -> set[str]:
    """Return the capitalised words that do not start a sentence."""
    return {
        match[0]
        for match in _TOKEN.finditer(text)
        if match[0][0].isupper()
        and match[0].isalpha()
        and match[0] not in ("I", "IV")
        and not _BEGINNING.search(text[: match.start()])
    }


def _tokens(text: str) -> list[str]:
    return [match[0] for match in _TOKEN.finditer(text)]


def _words(text: str) -> Counter[str]:
    """Count the words of a text, except words that only introduce a time window or a range."""
    text = text.lower()
    for pattern, meaning in _FINE:
        text = pattern.sub(meaning, text)
    return Counter(_WORD.findall(_RANGE.sub("", _SPAN.sub("", text))))
