"""Quantities, numbers and positions. Values are compared exactly; their precision does not imply an interval."""

from __future__ import annotations

from math import cos, radians

from fhir_gym.fhir.index import IndexField
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.predicates import ORDERED, AllOf, Condition, RowCondition, any_of, marks
from fhir_gym.fhir.search.query import split, split_prefix, unescape

_COMPARE = {"": "=", "eq": "=", "ne": "<>", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_APPROXIMATELY = 0.1
_VALUE = (("@.value", ()),)


def quantity_condition(field: IndexField, values: list[str]) -> Condition:
    """Return the condition on quantities: ``value``, ``value|system|code`` or ``value||code``."""
    return _any([_quantity(field, value) for value in values])


def number_condition(field: IndexField, values: list[str]) -> Condition:
    """Return the condition on plain numbers."""
    return _any([_number(field, unescape(value), value) for value in values])


def _any(parts: list[RowCondition]) -> Condition:
    return any_of(parts)


def _quantity(field: IndexField, text: str) -> RowCondition:
    if text.startswith("||"):
        raise FhirError(400, 'HAPI-1940: Invalid date/time/quantity format: "|"')
    pieces = [unescape(piece) for piece in split(text, "|")]
    rows = _number(field, pieces[0], "|".join([*pieces, "", ""][:3]))
    where, values = rows.where, rows.values
    if len(pieces) > 1 and pieces[1]:
        where, values = f"{where} AND @.system = ?", (*values, pieces[1])
    if len(pieces) > 2 and pieces[2]:
        where, values = f"{where} AND @.code = ?", (*values, pieces[2])
    return RowCondition("quantity", where, values, rows.rank, rows.order, ORDERED)


def _number(field: IndexField, text: str, whole: str) -> RowCondition:
    prefix, digits = split_prefix(text)
    if prefix in ("sa", "eb"):
        raise FhirError(400, f'HAPI-1235: Unable to handle quantity prefix "{prefix}" for value: {whole}')
    try:
        value = float(digits.strip())
    except ValueError:
        raise FhirError(400, f'HAPI-1940: Invalid date/time/quantity format: "{text}"') from None
    if value in (float("inf"), float("-inf")) or "_" in digits:
        raise FhirError(400, f'HAPI-1940: Invalid date/time/quantity format: "{text}"')
    pids = f"@.pid {marks(field.pids)}"
    if prefix == "ap":
        spread = abs(value) * _APPROXIMATELY
        where = f"{pids} AND @.value >= ? AND @.value <= ?"
        return RowCondition(
            "quantity", where, (*field.pids, value - spread, value + spread), rank=45, order=_VALUE, precedence=ORDERED
        )
    rank = 35 if prefix in ("", "eq") else 55
    where = f"{pids} AND @.value {_COMPARE[prefix]} ?"
    return RowCondition("quantity", where, (*field.pids, value), rank=rank, order=_VALUE, precedence=ORDERED)


_KILOMETRES = {"": 1.0, "km": 1.0, "m": 0.001, "mi": 1.609344, "[mi_us]": 1.609347, "[mi_i]": 1.609344}
_DEFAULT_DISTANCE = 1.0
_KILOMETRES_A_DEGREE = 111.195


def near_condition(fields: tuple[IndexField, ...], values: list[str]) -> Condition:
    """Return the condition on latitude and longitude: ``latitude|longitude|distance|unit``."""
    return any_of([_box(fields, value) for value in values])


def _box(fields: tuple[IndexField, ...], value: str) -> Condition:
    pieces = split(value, "|")
    try:
        latitude, longitude = float(pieces[0]), float(pieces[1])
        distance = float(pieces[2]) if len(pieces) > 2 and pieces[2] else _DEFAULT_DISTANCE
        unit = _KILOMETRES[pieces[3] if len(pieces) > 3 else ""]
        if not (abs(latitude) <= 90 and abs(longitude) <= 180 and 0 <= distance < 1e6):
            raise ValueError
    except (ValueError, IndexError, KeyError):
        raise FhirError(
            400,
            f"HAPI-1230: Invalid position format '{value}'.  Required format is 'latitude|longitude' or "
            "'latitude|longitude|distance' or 'latitude|longitude|distance|units'",
        ) from None
    height = distance * unit / _KILOMETRES_A_DEGREE
    width = min(height / max(cos(radians(latitude)), 1e-9), 360.0)
    ends = ((latitude - height, latitude + height), (longitude - width, longitude + width))
    return AllOf(tuple(_between(field, low, high) for field, (low, high) in zip(fields, ends, strict=True)))


def _between(field: IndexField, low: float, high: float) -> RowCondition:
    where = f"@.pid {marks(field.pids)} AND @.value >= ? AND @.value <= ?"
    return RowCondition("quantity", where, (*field.pids, low, high), rank=45)
