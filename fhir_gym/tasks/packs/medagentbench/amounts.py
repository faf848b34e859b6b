"""Compare the amounts, times and rates of orders across units."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import TypeVar

from fhir_gym.types import Json, Resource

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
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, dict) else {}


def only(items: Json) -> Resource:
    """Return the only object of a list; an empty object if the list has more or fewer items."""
    return items[0] if isinstance(items, list) and len(items) == 1 and isinstance(items[0], dict) else {}


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
