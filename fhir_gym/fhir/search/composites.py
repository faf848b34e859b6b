"""Composite parameters: two values joined by ``$``; HAPI asks only that both hold somewhere in the resource."""

from __future__ import annotations

from fhir_gym.fhir.index import Field
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.conditions import NOTHING, AllOf, AnyOf, Condition, Not
from fhir_gym.fhir.search.dates import date_condition
from fhir_gym.fhir.search.names import split, unescape
from fhir_gym.fhir.search.numbers import quantity_condition
from fhir_gym.fhir.search.references import reference_condition
from fhir_gym.fhir.search.scope import Scope
from fhir_gym.fhir.search.strings import string_condition
from fhir_gym.fhir.search.tokens import token_condition

__all__ = ["composite_condition"]


def composite_condition(
    scope: Scope, name: str, fields: tuple[Field, ...], modifier: str | None, values: list[str]
) -> Condition:
    """A condition on both parts of a composite; alternatives are joined by commas."""
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
    return Not(whole) if modifier == "not" else whole


def _part(scope: Scope, name: str, field: Field, value: str) -> Condition:
    match field.kind:
        case "token":
            return token_condition(scope, name, field, None, [value])
        case "quantity":
            return quantity_condition(field, [value])
        case "date":
            return date_condition(field, [unescape(value)])
        case "reference":
            return reference_condition(scope, field, None, [value])
        case _:
            return string_condition(name, field, None, [value])
