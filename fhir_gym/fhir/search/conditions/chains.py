"""Searches through references (chains and `_has`), and composite parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET, search_parameters
from fhir_gym.fhir.index import IndexField
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.conditions.dates import date_condition
from fhir_gym.fhir.search.conditions.numbers import quantity_condition
from fhir_gym.fhir.search.conditions.references import LOWER_TYPES, target_type
from fhir_gym.fhir.search.conditions.strings import string_condition
from fhir_gym.fhir.search.conditions.tokens import token_condition
from fhir_gym.fhir.search.predicates import (
    NO_ORDER,
    NOTHING,
    ORDERED,
    AllOf,
    AnyOf,
    Condition,
    Not,
    RowCondition,
    Scope,
    any_of,
    marks,
)
from fhir_gym.fhir.search.query import ParameterName, parse_name, split, unescape
from fhir_gym.fhir.search.sql_query import chained_order, ids_query, set_query

Compile = Callable[[Scope, str, list[str]], Condition | None]
"""A function that compiles a parameter from its full name and all its values; None if all values are empty."""


def chain_condition(
    scope: Scope, name: ParameterName, values: list[str], compile_: Compile, *, whole: str
) -> Condition | None:
    """Return the condition on the target of a reference.

    `compile_` compiles a parameter of the target. `whole` is the parameter's full name in the query, for messages.
    """
    assert name.chain is not None
    parameter = search_parameters(scope.resource_type)[name.base]
    if parameter.type != "reference":
        if scope.chain:
            raise FhirError(400, f"HAPI-1242: Invalid parameter chain: {scope.chain}")
        raise FhirError(
            400,
            f'HAPI-1935: Invalid search parameter "{name.base}.{name.chain}". Parameter contains a chain '
            f"(.{name.chain}) and chains are not supported for this parameter (chaining is only allowed on "
            "reference parameters)",
        )
    field = scope.field(name.base)
    if not name.chain:
        return NOTHING
    target = target_type(scope, name.modifier, chained=True)
    inner = parse_name(name.chain)
    types = (target,) if target else parameter.targets
    types_allowed = parameter.targets if field.target is None else (field.target,)
    if inner.base == "_id" and not inner.chain and not target:
        return NOTHING  # HAPI finds a target by its id only if the chain names the target's type
    fitting = [t for t in types if inner.base == "_has" or inner.base in search_parameters(t)]
    if not fitting:
        raise FhirError(400, f"HAPI-1243: Invalid parameter chain: {scope.chain or whole}")
    parts: list[Condition] = []
    for type_ in fitting:
        below = scope.below(type_, whole)
        condition = compile_(below, name.chain, values)
        if condition is None:
            return None
        if type_ not in types_allowed or not scope.store.holds(type_):
            continue  # an invalid value is an error for this type too
        text, ids = ids_query(below, [condition])
        where = f"@.pid {marks(field.pids)} AND @.target_type = ? AND @.target_id IN ({text})"
        order = chained_order(below, condition) if sum(t in types_allowed for t in fitting) == 1 else ()
        parts.append(
            RowCondition("reference", where, (*field.pids, type_, *ids), rank=15, order=order, precedence=ORDERED)
        )
    return any_of(parts)


def has_condition(scope: Scope, name: str, values: list[str], compile_: Compile) -> Condition:
    """Return the condition on resources that refer to the match: ``_has:Observation:patient:code``."""
    pieces = name.removeprefix("_has").split(":", 3)
    if len(pieces) < 4 or pieces[0] or not all(pieces[1:]):
        shown = name.removeprefix("_has") or name
        raise FhirError(400, f"HAPI-1942: Invalid _has parameter syntax: {shown}")
    _, type_, link, rest = pieces
    if type_ not in RESOURCE_TYPE_SET:
        if type_.lower() in LOWER_TYPES:
            raise _unknown(type_, rest)
        raise FhirError(400, f"HAPI-1208: Invalid resource type: {type_}")
    parameters = search_parameters(type_)
    if not rest.startswith("_has:"):
        inner = parse_name(rest)
        if inner.base not in parameters or (inner.modifier and not inner.chain):
            raise _unknown(type_, rest)
    if link not in parameters:
        raise _unknown(type_, link)
    if parameters[link].type != "reference":
        return NOTHING
    below = scope.below(type_)
    field = below.field(link)
    if field.target not in (None, scope.resource_type):
        return NOTHING
    condition = compile_(below, rest, values)
    where = f"s.pid {marks(field.pids)} AND s.target_type = ?"
    text, set_values = set_query(
        below, [condition] if condition else [], "s.target_id", "reference", where, *field.pids, scope.resource_type
    )
    where = f"@.type = ? AND @.deleted = 0 AND @.id IN ({text})"
    return RowCondition("resource", where, (scope.resource_type, *set_values), rank=18)


def _unknown(type_: str, rest: str) -> FhirError:
    return FhirError(400, f"HAPI-1209: Unknown parameter name: {type_}:{rest}")


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
            conditions = [_part(scope, name, f, p) for f, p in zip(fields, pieces, strict=False)]
            parts.append(AllOf(tuple(conditions)))
    whole: Condition = parts[0] if len(parts) == 1 else AnyOf(tuple(parts))
    if modifier == "not":
        return Not(whole)
    return whole if len(parts) == 1 else AllOf((*_first_codes(scope, name, fields[0], values), whole))


def _first_codes(scope: Scope, name: str, field: IndexField, values: list[str]) -> Iterator[Condition]:
    """Yield an extra condition that is fast to search: the first part is one of the codes in the alternatives."""
    codes = [pieces[0] for value in values if all(pieces := split(value, "$")) and len(pieces) > 1]
    if field.kind == "token" and codes:
        condition = token_condition(scope, name, field, None, codes)
        if isinstance(condition, RowCondition):
            yield condition._replace(precedence=NO_ORDER)  # this condition does not affect the order of the matches


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
