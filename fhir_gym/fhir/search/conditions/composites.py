"""Composite parameters: two values joined by ``$``. As in HAPI, they may match in different elements of a resource."""

from __future__ import annotations

from collections.abc import Iterator

from fhir_gym.fhir.index import IndexField
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.conditions.dates import date_condition
from fhir_gym.fhir.search.conditions.numbers import quantity_condition
from fhir_gym.fhir.search.conditions.strings import string_condition
from fhir_gym.fhir.search.conditions.tokens import token_condition
from fhir_gym.fhir.search.query import split, unescape
from fhir_gym.fhir.search.sql.predicates import NO_ORDER, NOTHING, AllOf, AnyOf, Condition, Not, RowCondition, Scope

_KINDS = frozenset({"token", "quantity", "date", "string"})


def composite_condition(
    scope: Scope, name: str, fields: tuple[IndexField, ...], modifier: str | None, values: list[str]
) -> Condition:
    """Return the condition on both parts of a composite; commas separate alternatives."""
    kind = next((field.kind for field in fields if field.kind not in _KINDS), None)
    if kind:
        raise FhirError(400, f"HAPI-1204: Don't know how to handle composite parameter with type of {kind.upper()}")
    parts: list[Condition] = []
    for value in values:
        pieces = split(value, "$")
        if len(pieces) > 2:
            raise FhirError(
                400,
                "HAPI-1947: Invalid value for composite parameter (only one '$' is valid for this parameter, others "
                f"must be escaped). Value was: {value}",
            )
        if len(pieces) < 2 or not all(pieces):
            parts.append(NOTHING)
        else:
            found = [_part(scope, name, f, p) for f, p in zip(fields, pieces, strict=False)]
            parts.append(AllOf(tuple(found)))
    whole: Condition = parts[0] if len(parts) == 1 else AnyOf(tuple(parts))
    if modifier == "not":
        return Not(whole)
    return whole if len(parts) == 1 else AllOf((*_first_codes(scope, name, fields[0], values), whole))


def _first_codes(scope: Scope, name: str, field: IndexField, values: list[str]) -> Iterator[Condition]:
    """Yield an extra condition that is fast to search: the first part is one of the codes in the alternatives."""
    codes = [pieces[0] for value in values if all(pieces := split(value, "$")) and len(pieces) > 1]
    if field.kind == "token" and codes:
        found = token_condition(scope, name, field, None, codes)
        if isinstance(found, RowCondition):
            yield found._replace(precedence=NO_ORDER)  # this condition does not affect the order of the matches


def _part(scope: Scope, name: str, field: IndexField, value: str) -> Condition:
    match field.kind:
        case "token":
            return token_condition(scope, name, field, None, [value])
        case "quantity":
            return quantity_condition(field, [value])
        case "date":
            return date_condition(field, [unescape(value)])
        case _:
            return string_condition(name, field, None, [value])
