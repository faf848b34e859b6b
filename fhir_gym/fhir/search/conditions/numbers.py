"""Quantity and number parameters. Values are compared exactly; their precision does not imply an interval."""

from __future__ import annotations

from fhir_gym.fhir.index import IndexField
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.query import split, split_prefix, unescape
from fhir_gym.fhir.search.sql.predicates import ORDERED, Condition, RowCondition, any_of, marks

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
