"""Compile the parameters of a query to conditions, by parameter name and type."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from fhir_gym.fhir.definitions import search_parameters
from fhir_gym.fhir.hash_order import names_in_hash_order
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.conditions.chains import chain_condition, composite_condition, has_condition
from fhir_gym.fhir.search.conditions.dates import (
    check_range,
    date_condition,
    dates_of_target,
    parse_bounds,
    updated_condition,
)
from fhir_gym.fhir.search.conditions.filters import filter_condition
from fhir_gym.fhir.search.conditions.numbers import near_condition, number_condition, quantity_condition
from fhir_gym.fhir.search.conditions.references import reference_condition
from fhir_gym.fhir.search.conditions.strings import string_condition, uri_condition
from fhir_gym.fhir.search.conditions.tokens import token_condition
from fhir_gym.fhir.search.predicates import (
    MAX_VALUES,
    NOTHING,
    AllOf,
    Condition,
    Not,
    RowCondition,
    Scope,
    marks,
    unknown_parameter,
)
from fhir_gym.fhir.search.query import ParameterName, parse_name, split, unescape

_NO_ID = re.compile(r"[^/]+/|.+://[^/]*/[^/]*")
"""Texts that HAPI reads as a type without an id: ``Patient/`` and ``http://example.org/x``."""
MAX_PARAMETERS = 100
MAX_ALL_VALUES = 2000
FULLTEXT = frozenset({"_text", "_content"})


def no_fulltext(name: str) -> FhirError:
    """Return the error for a parameter of `FULLTEXT`."""
    text = f"HAPI-1192: Fulltext search is not enabled on this service, can not process parameter: {name}"
    return FhirError(400, text)


def compile_query(scope: Scope, pairs: Iterable[tuple[str, str]]) -> list[Condition]:
    """Return the conditions of a query, ordered by the first use of each name.

    Raises:
        FhirError: A name is unknown, or a value is invalid.
    """
    by_name: dict[str, list[str]] = {}
    parameters = alternatives = 0
    for name, value in pairs:
        by_name.setdefault(name, []).append(value)
        parameters += 1
        alternatives += value.count(",") + 1
    if parameters > MAX_PARAMETERS:
        raise FhirError(400, f"A search with more than {MAX_PARAMETERS} parameters is not supported by this server")
    if alternatives > MAX_ALL_VALUES:
        raise FhirError(400, f"A search with more than {MAX_ALL_VALUES} values is not supported by this server")
    modified = False
    for name in by_name:
        if not _is_known(scope, name):
            raise _first_unknown(scope)
        modified = modified or ":" in name
    try:
        if modified:
            _check_ranges(scope, by_name)
        conditions = [compile_parameter(scope, name, values) for name, values in by_name.items()]
    except FhirError as error:
        raise _first_error(scope, by_name) or error from None
    return [condition for condition in conditions if condition is not None]


def _check_ranges(scope: Scope, by_name: Mapping[str, list[str]]) -> None:
    """Check the date parameters that a query has with several modifiers: their values must form one range.

    `:missing` counts as a value without a comparator.
    """
    parameters = search_parameters(scope.resource_type)
    values: dict[str, list[str]] = {}
    for name in sorted(names_in_hash_order(by_name), key=lambda name: ":" in name):
        base, modifier, chain = parse_name(name)
        if chain is None and base in parameters and parameters[base].type == "date" and base != "_lastUpdated":
            nonempty = [value for value in by_name[name] if _alternatives(value)]
            values.setdefault(base, []).extend([""] * len(nonempty) if modifier == "missing" else nonempty)
    for nonempty in values.values():
        if len(nonempty) > 1:
            check_range([parse_bounds([value])[0].prefix if value else "" for value in nonempty])


_TURNS = {"_security": -4, "_profile": -3, "_source": -2, "_has": -1, "_id": 1, "_tag": 2}
"""The places of the parameters that HAPI compiles before and after the type's own parameters, which have place 0."""

_READ_FIRST = tuple(f"HAPI-{code}:" for code in (1882, 1883, 1922, 1923, 1924, 1925, 1930, 1940, 1941, 1947))
"""Errors of values that HAPI reads before it compiles any parameter."""


def _first_error(scope: Scope, by_name: Mapping[str, list[str]]) -> FhirError | None:
    """Return the error that HAPI reports for an invalid query.

    HAPI first reads the dates and numbers of parameters without a chain. Then it compiles the parameters in the order
    of `_TURNS`, those with the same place in alphabetical order.
    """
    errors = []
    for name in sorted(by_name, key=lambda name: (_TURNS.get(base := parse_name(name).base, 0), base, name)):
        try:
            _check_ranges(scope, {name: by_name[name]})
            compile_parameter(scope, name, by_name[name])
        except FhirError as error:
            if error.code == "too-costly":
                return error
            plain = parse_name(name).chain is None and not name.startswith("_has")
            if plain and error.diagnostics.startswith(_READ_FIRST):
                return error
            errors.append(error)
    return errors[0] if errors else None


def _is_known(scope: Scope, name: str) -> bool:
    base = parse_name(name).base
    return base.startswith("_") or base in search_parameters(scope.resource_type)


def _first_unknown(scope: Scope) -> FhirError:
    name = next(name for name in names_in_hash_order(scope.names) if not _is_known(scope, name))
    return unknown_parameter(scope.resource_type, parse_name(name).base or name)


def compile_parameter(scope: Scope, name: str, values: list[str]) -> Condition | None:
    """Return the condition of one parameter.

    Returns:
        The condition; None if all values are empty.
    """
    if name.startswith("_has"):
        return AllOf(tuple(has_condition(scope, name, [value], compile_parameter) for value in values))
    parsed = parse_name(name)
    parameters = search_parameters(scope.resource_type)
    if parsed.base not in parameters:
        return _special(scope, parsed, values)
    if parsed.chain is not None:
        parts = [chain_condition(scope, parsed, [v], compile_parameter, whole=name) for v in values]
        return _all([part for part in parts if part is not None])
    if parsed.base == "_source":
        raise FhirError(400, "HAPI-1216: The _source parameter is disabled on this server")
    if parsed.modifier == "missing" and parsed.base != "_id":
        if parsed.base.startswith("_"):
            return None
        return _all([_missing(scope, parsed.base, value) for value in values])
    alternatives = [(value, pieces) for value in values if (pieces := _alternatives(value))]
    if not alternatives:
        return None
    kind = "date" if parsed.base == "_lastUpdated" else parameters[parsed.base].type
    if kind == "date":
        nonempty = [value for value, _ in alternatives]
        if parsed.base == "_lastUpdated":
            return updated_condition(scope.resource_type, nonempty)
        if scope.depth:
            return _all([dates_of_target(scope.field(parsed.base), options) for _, options in alternatives])
        return date_condition(scope.field(parsed.base), nonempty)
    return _all([_typed(scope, parsed, kind, options) for _, options in alternatives])


def _alternatives(value: str) -> list[str]:
    pieces = [piece for piece in split(value, ",") if piece and piece != "|"]
    if len(pieces) > MAX_VALUES:
        raise FhirError(400, f"More than {MAX_VALUES} values of one parameter are not supported by this server")
    return pieces


def _all(parts: list[Condition]) -> Condition | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else AllOf(tuple(parts))


def _typed(scope: Scope, name: ParameterName, kind: str, values: list[str]) -> Condition:
    if name.base == "_id":
        return _ids(scope, name.modifier, values)
    if kind == "composite":
        return composite_condition(scope, name.base, scope.spec.composites[name.base], name.modifier, values)
    if kind == "special":
        return near_condition(scope.spec.composites[name.base], values)
    field = scope.field(name.base)
    match kind:
        case "token":
            return token_condition(scope, name.base, field, name.modifier, values)
        case "string":
            return string_condition(name.base, field, name.modifier, values)
        case "quantity":
            return quantity_condition(field, values)
        case "number":
            return number_condition(field, values)
        case "uri":
            # profiles are labels in HAPI, which have no hierarchy
            modifier = None if (name.base, name.modifier) == ("_profile", "above") else name.modifier
            return uri_condition(field, modifier, values)
        case _:
            return reference_condition(scope, field, name.modifier, values)


def _ids(scope: Scope, modifier: str | None, values: list[str]) -> Condition:
    ids = []
    for value in values:
        text = unescape(value).removeprefix("|")
        if _NO_ID.fullmatch(text):
            raise FhirError(400, "HAPI-1101: Parameter value missing in request")
        kind, slash, id = text.rpartition("/")
        if not slash or kind == scope.resource_type:
            ids.append(id)
    if not ids:
        return NOTHING
    parameters = (scope.resource_type, *ids)
    where = f"@.type = ? AND @.id {marks(tuple(ids))} AND @.deleted = 0"
    if modifier != "not":
        return RowCondition("resource", where, parameters, rank=0)
    # HAPI finds nothing if none of the ids exists
    exists = " OR ".join(
        f"EXISTS (SELECT 1 FROM {schema}.resource y WHERE {where.replace('@', 'y')})" for schema in scope.schemas()
    )
    others = f"@.type = ? AND @.id NOT IN ({','.join('?' * len(ids))}) AND @.deleted = 0 AND ({exists})"
    return RowCondition("resource", others, (*parameters, *parameters * len(scope.schemas())), rank=95)


def _missing(scope: Scope, name: str, value: str) -> Condition:
    if name in scope.spec.composites or search_parameters(scope.resource_type)[name].type == "special":
        return NOTHING  # such parameters have no rows of their own
    field = scope.field(name)
    where, values = f"@.pid {marks(field.pids)}", field.pids
    extra: tuple[str, ...] = ()
    if field.target:
        where, extra = f"{where} AND @.target_type = ?", (field.target,)
    if field.table == "string":
        where = f"{where} AND @.exact <> ''"
    condition = RowCondition(field.table, where, (*values, *extra), rank=90)
    return Not(condition) if value == "true" else condition


def _special(scope: Scope, name: ParameterName, values: list[str]) -> Condition | None:
    """Return the condition for a name such as `_filter`, for which the type has no search parameter."""
    if name.base in FULLTEXT:
        raise no_fulltext(name.base)
    if name.base == "_language":
        raise unknown_parameter(scope.resource_type, name.base, code=1223)
    if name.base == "_list" and any(values):
        return NOTHING
    if name.base == "_filter":
        return _all([filter_condition(scope, value, compile_parameter) for value in values])
    if not name.base.startswith("_"):
        raise unknown_parameter(scope.resource_type, name.base)
    return None
