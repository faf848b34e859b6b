"""Token parameters: codes, identifiers, booleans; also `_tag` and `_security`."""

from __future__ import annotations

from fhir_gym.fhir.definitions import bound_value_set, children, is_complete, search_parameters, value_set
from fhir_gym.fhir.index import Field
from fhir_gym.fhir.index.paths import Path
from fhir_gym.fhir.index.values import normalise
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.conditions import NOTHING, PLAIN, Condition, Not, Rows, any_of, marks
from fhir_gym.fhir.search.names import split, unescape
from fhir_gym.fhir.search.scope import Scope
from fhir_gym.fhir.search.strings import prefix_condition
from fhir_gym.fhir.terminology import known_value_set

__all__ = ["token_condition"]


def token_condition(scope: Scope, name: str, field: Field, modifier: str | None, values: list[str]) -> Condition:
    """A condition on token rows.

    Args:
        scope: Where it is compiled.
        name: The parameter, for messages.
        field: What it looks at.
        modifier: ``not``, ``text``, ``above`` …; unknown ones are ignored, as HAPI ignores them.
        values: Alternatives as written.
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


def _any(name: str, field: Field, values: list[str]) -> Condition:
    """One of some codes, of codes with their systems, of systems: at most a condition each, however many there are."""
    plain: list[str] = []
    systems: list[str] = []
    pairs: list[tuple[str, str]] = []
    parts: list[Condition] = []
    for value in values:
        system, *rest = map(unescape, split(value.lstrip(), "|"))
        if not rest:
            plain.append(system)
        elif len(rest) > 1:
            parts.append(NOTHING)
        elif name in ("_tag", "_security") and not rest[0]:
            raise FhirError(
                400,
                f"HAPI-1218: Missing {name} parameter (must supply a value/code and not just a system): {value}",
            )
        elif name in ("_tag", "_security") and not system:
            plain.append(rest[0])
        elif rest[0]:
            pairs.append((rest[0], system))
        else:
            systems.append(system)
    if systems:
        # any code of a system; HAPI finds nothing for text that is no system but a code ("code|")
        where = f"@.pid {marks(field.pids)} AND @.system {marks(tuple(systems))}"
        parts.append(Rows("token", where, (*field.pids, *systems), rank=60, turn=PLAIN))
    if pairs:
        parts.append(_pairs(field, pairs))
    if plain:
        unique = len(plain) == 1 and len(field.pids) == 1
        # one row of several with the same value under other systems is enough
        where = f"@.pid {marks(field.pids)} AND @.value {marks(tuple(plain))} AND @.n = 0"
        rank = 20 if len(plain) == 1 else 22
        parts.insert(0, Rows("token", where, (*field.pids, *plain), rank, turn=PLAIN, owned=True, unique=unique))
    return any_of(parts)


def _pairs(field: Field, pairs: list[tuple[str, str]]) -> Condition:
    """Any of these codes, each of its system."""
    codes = tuple(dict.fromkeys(code for code, _ in pairs))
    where = f"@.pid {marks(field.pids)} AND @.value {marks(codes)}"
    if len(pairs) == 1:
        unique = len(field.pids) == 1
        where, values = f"{where} AND @.system = ?", (*field.pids, *pairs[0])
        return Rows("token", where, values, rank=20, turn=PLAIN, owned=True, unique=unique)
    # The + keeps SQLite from trying each alternative as a way into the index: from 15 on that takes it 0.1 s.
    either = " OR ".join(["(+@.value = ? AND +@.system = ?)"] * len(pairs))
    values = (*field.pids, *codes, *(one for pair in pairs for one in pair))
    return Rows("token", f"{where} AND ({either})", values, rank=21, turn=PLAIN, owned=True)


def _hierarchy(scope: Scope, name: str, field: Field, values: list[str]) -> Condition:
    """`:above` and `:below`: HAPI has no terminology here, and infers the system of a bare code from the binding."""
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
            parts.append(Rows("token", where, (*field.pids, code, *systems), rank=20, turn=PLAIN, owned=True))
    return any_of(parts) if parts else NOTHING


def _binding_systems(scope: Scope, field: Field, code: str) -> tuple[str, ...] | None:
    """Systems that the value sets bound to the element list the code under, of those known in full.

    None if no value set lists it: then its system cannot be told.
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


def _definition(resource_type: str, path: Path) -> str:
    """Where the element a path leads to is defined (``Coverage.class.type``)."""
    content = defined = resource_type
    for step in path.steps:
        element = children(content)[step.key]
        content, defined = element.content, element.path
    return defined


def _in_value_set(field: Field, url: str) -> Condition:
    parts: list[Condition] = []
    for system, codes in known_value_set(url).items():
        where = f"@.pid {marks(field.pids)} AND @.value {marks(codes)} AND @.system = ?"
        parts.append(Rows("token", where, (*field.pids, *codes, system), rank=22, turn=PLAIN, owned=True))
    return any_of(parts)
