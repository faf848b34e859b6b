"""Token parameters: codes, identifiers, booleans; also `_tag` and `_security`."""

from __future__ import annotations

from fhir_gym.fhir.definitions import bound_value_set, children, is_complete, search_parameters, value_set
from fhir_gym.fhir.fhirpath.search_paths import SearchPath
from fhir_gym.fhir.index import IndexField
from fhir_gym.fhir.index.values import normalise
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.conditions.strings import prefix_condition
from fhir_gym.fhir.search.query import split, unescape
from fhir_gym.fhir.search.sql.predicates import NOTHING, PLAIN, Condition, Not, RowCondition, Scope, any_of, marks
from fhir_gym.fhir.terminology import known_value_set


def token_condition(scope: Scope, name: str, field: IndexField, modifier: str | None, values: list[str]) -> Condition:
    """Return the condition on token rows.

    As in HAPI, unknown modifiers are ignored.
    """
    if name in ("_tag", "_security") and modifier != "not":
        modifier = None
    if modifier == "of-type":
        raise FhirError(405, "HAPI-2012: The :of-type modifier is not enabled on this server")
    if modifier in ("in", "not-in"):
        found = _in_value_set(field, unescape(values[0]))
        return Not(found) if modifier == "not-in" else found
    if modifier == "text":
        parts = [prefix_condition(field.pids, normalise(unescape(v)), table="string") for v in values]
        return any_of(parts)
    if modifier in ("above", "below"):
        return _hierarchy(scope, name, field, values)
    found = _any(name, field, values)
    return Not(found) if modifier == "not" else found


def _any(name: str, field: IndexField, values: list[str]) -> Condition:
    plain: list[str] = []
    pairs: list[tuple[str, str]] = []
    systems: list[str] = []
    for value in values:
        system, *rest = map(unescape, split(value.lstrip(), "|"))
        if not rest:
            plain.append(system)
        elif len(rest) > 1:
            continue  # no token has this form
        elif name in ("_tag", "_security") and not rest[0]:
            raise FhirError(
                400, f"HAPI-1218: Missing {name} parameter (must supply a value/code and not just a system): {value}"
            )
        elif name in ("_tag", "_security") and not system:
            plain.append(rest[0])
        elif rest[0]:
            pairs.append((rest[0], system))
        else:
            systems.append(system)
    return _rows(field, tuple(plain), pairs, tuple(systems)) if plain or pairs or systems else NOTHING


def _rows(
    field: IndexField, plain: tuple[str, ...], pairs: list[tuple[str, str]], systems: tuple[str, ...]
) -> RowCondition:
    """Return the condition that a row has one of the codes, one of the (code, system) pairs, or one of the systems.

    SQLite may use the index by code. The ``+`` stops SQLite from planning each alternative separately (0.1 s for 15 or
    more alternatives) and from merging alternatives (SQLite 3.40 would lose rows).
    """
    codes = tuple(dict.fromkeys([*plain, *(code for code, _ in pairs)]))
    tests = ["+@.value = ? AND +@.system = ?"] * len(pairs)
    values = [one for pair in pairs for one in pair]
    if plain:  # if several rows have the same value, the first row is enough
        tests.append(f"+@.value {marks(plain)} AND @.n = 0")
        values += plain
    if systems:
        tests.append(f"+@.system {marks(systems)}")
        values += systems
    where = f"@.pid {marks(field.pids)}"
    if systems:
        codes = ()
    else:
        where = f"{where} AND @.value {marks(codes)}"
    either = " OR ".join(f"({test})" for test in tests)
    rank = (60 if systems else 22 if len(plain) > 1 else 20) + (len(tests) > 1)
    where, given = f"{where} AND ({either})", (*field.pids, *codes, *values)
    unique = len(codes) == len(field.pids) == len(tests) == 1
    return RowCondition("token", where, given, rank, precedence=PLAIN, in_compartment=not systems, unique=unique)


def _hierarchy(scope: Scope, name: str, field: IndexField, values: list[str]) -> Condition:
    """Return the condition of `:above` and `:below`. As in HAPI, the binding gives the system of a code."""
    parts: list[Condition] = []
    expression = search_parameters(scope.resource_type)[name].expression
    for value in values:
        pieces = split(value, "|")
        if len(pieces) > 1 and pieces[0]:
            return NOTHING
        if "where(" in expression or " as " in expression or ".exists()" in expression:
            element = expression.split(".")[0]
            raise FhirError(400, f"HAPI-1700: Unknown child name in element {element} of {name}")
        code = unescape(pieces[-1])
        systems = _binding_systems(scope, field, code)
        if systems is None:
            raise FhirError(
                400,
                f"HAPI-1240: Invalid token specified for parameter {name} - No code specified: (missing)|{pieces[-1]}",
            )
        if systems:
            where = f"@.pid {marks(field.pids)} AND @.value = ? AND @.system {marks(systems)}"
            parts.append(
                RowCondition(
                    "token", where, (*field.pids, code, *systems), rank=20, precedence=PLAIN, in_compartment=True
                )
            )
    return any_of(parts) if parts else NOTHING


def _binding_systems(scope: Scope, field: IndexField, code: str) -> tuple[str, ...] | None:
    """Return the code systems with which the element's value sets list a code; None if no value set lists the code.

    Code systems with unknown codes are omitted.
    """
    listing: set[str] = set()
    for path in field.paths:
        if path.system:
            listing.add(path.system)
            continue
        url = bound_value_set(_definition(scope.resource_type, path))
        codes = value_set(url) if url else None
        listing.update(system for system, listed in (codes or {}).items() if code in listed)
    return tuple(sorted(filter(is_complete, listing))) if listing else None


def _definition(resource_type: str, path: SearchPath) -> str:
    """Return the path under which FHIR defines the element (``Coverage.class.type``)."""
    content = defined = resource_type
    for step in path.steps:
        element = children(content)[step.key]
        content, defined = element.content, element.path
    return defined


def _in_value_set(field: IndexField, url: str) -> Condition:
    parts: list[Condition] = []
    for system, codes in known_value_set(url).items():
        where = f"@.pid {marks(field.pids)} AND @.value {marks(codes)} AND @.system = ?"
        parts.append(
            RowCondition("token", where, (*field.pids, *codes, system), rank=22, precedence=PLAIN, in_compartment=True)
        )
    return any_of(parts)
