"""Token parameters: codes, identifiers (also `:of-type`), booleans; also `_tag` and `_security`."""

from __future__ import annotations

from functools import cache

from fhir_gym.fhir.definitions import bound_value_set, children, is_complete, search_parameters, value_set
from fhir_gym.fhir.fhirpath.search_paths import SearchPath
from fhir_gym.fhir.index import IndexField
from fhir_gym.fhir.index.values import normalise
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.conditions.strings import prefix_condition
from fhir_gym.fhir.search.predicates import (
    NOTHING,
    PLAIN,
    Condition,
    Not,
    RowCondition,
    Scope,
    any_of,
    failed_search,
    marks,
)
from fhir_gym.fhir.search.query import split, unescape
from fhir_gym.fhir.terminology import known_value_set

_TAGS = frozenset({"_tag", "_security"})


def token_condition(scope: Scope, name: str, field: IndexField, modifier: str | None, values: list[str]) -> Condition:
    """Return the condition on token rows.

    As in HAPI, unknown modifiers are ignored.
    """
    if name in _TAGS:
        condition = _tags(name, field, values, whole=modifier == "text")
        return Not(condition) if modifier == "not" else condition
    if modifier == "of-type":
        return of_type_condition(scope, field, values)
    if modifier in ("in", "not-in"):
        condition = _in_value_set(field, unescape(split(values[0].lstrip(), "|")[-1]))
        return Not(condition) if modifier == "not-in" else condition
    if modifier == "text":
        parts = [prefix_condition(field.pids, normalise(unescape(v)), table="string") for v in values]
        return any_of(parts)
    if modifier in ("above", "below"):
        return _hierarchy(scope, name, field, values)
    condition = _any(field, values)
    return Not(condition) if modifier == "not" else condition


def _tags(name: str, field: IndexField, values: list[str], *, whole: bool) -> Condition:
    """Return the condition of `_tag` and `_security`: ``|code`` means any system, and a system alone is ignored.

    If `whole`, which is true with `:text`, a value is a code even if it contains ``|``.

    Raises:
        FhirError: There is a system without a code before the first code.
    """
    texts = []
    for value in values:
        system, *rest = [value] if whole else split(value.lstrip(), "|")
        code = rest[0] if rest else system
        if code:
            texts.append(code if not rest or not system else value)
        elif not texts:
            raise FhirError(
                400, f"HAPI-1218: Missing {name} parameter (must supply a value/code and not just a system): {value}"
            )
    return _any(field, [value.replace("|", "\\|") for value in texts] if whole else texts)


def _any(field: IndexField, values: list[str]) -> Condition:
    plain: list[str] = []
    pairs: list[tuple[str, str]] = []
    systems: list[str] = []
    for value in values:
        system, *rest = map(unescape, split(value.lstrip(), "|"))
        if not rest:
            plain.append(system)
        elif len(rest) > 1:
            continue  # no token has this form
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
    values = [column_value for pair in pairs for column_value in pair]
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
    where, parameters = f"{where} AND ({either})", (*field.pids, *codes, *values)
    unique = len(codes) == len(field.pids) == len(tests) == 1
    return RowCondition("token", where, parameters, rank, precedence=PLAIN, in_compartment=not systems, unique=unique)


def _hierarchy(scope: Scope, name: str, field: IndexField, values: list[str]) -> Condition:
    """Return the condition of `:above` and `:below`: equality, in a code system whose codes are all known.

    As in HAPI, the binding gives the code's system, if its value set lists the code. Nothing matches a value with a
    system.
    """
    parts: list[Condition] = []
    for value in values:
        system, *rest = map(unescape, split(value.lstrip(), "|"))
        code = rest[0] if rest else system
        if not rest:
            system = _binding_system(scope, name, field, code)
        if not (code and system):
            missing, shown = ("code", f"(missing)|{code}") if code else ("system", f"{system or '(missing)'}|(missing)")
            raise FhirError(
                400,
                f"HAPI-{1240 if code else 1239}: Invalid token specified for parameter {name} - "
                f"No {missing} specified: {shown}",
            )
        if not rest and is_complete(system):
            where, parameters = (
                f"@.pid {marks(field.pids)} AND @.value = ? AND @.system = ?",
                (*field.pids, code, system),
            )
            parts.append(RowCondition("token", where, parameters, rank=20, precedence=PLAIN, in_compartment=True))
    return any_of(parts)


def _binding_system(scope: Scope, name: str, field: IndexField, code: str) -> str:
    """Return the first code system with which the element's value set lists a code; empty if there is none.

    Raises:
        FhirError: The parameter's path is not a plain path.
    """
    for path in search_parameters(scope.resource_type)[name].expression.split(" | "):
        _check_plain(path)
    urls = {bound_value_set(_definition(scope.resource_type, path)) for path in field.paths} - {None}
    url = urls.pop() if len(urls) == 1 else None
    codes = value_set(url) if url else None
    return next((system for system, listed in (codes or {}).items() if code in listed), "")


def _check_plain(path: str) -> None:
    """Raise if a part of a path is not the name of an element: a function, a cast or a choice without its type."""
    first, *names = path.split(".")
    content = first.removeprefix("(")
    for name in names:
        hapi_names = _hapi_names(content)
        if name not in hapi_names:
            raise failed_search(
                f"HAPI-1700: Unknown child name '{name}' in element {content} - "
                f"Valid names are: [{', '.join(sorted(hapi_names))}]"
            )
        content = hapi_names[name]


@cache
def _hapi_names(content: str) -> dict[str, str]:
    """Return the names by which HAPI knows the elements below a path, with the path of each element's content."""
    names: dict[str, str] = {}
    for element in children(content).values():
        stem = element.choice or element.name
        names[element.name] = element.content
        if element.choice or stem.casefold().endswith("extension"):
            names[f"{stem}[x]"] = ""
        if element.type == "Reference":
            names[f"{stem}Resource"] = ""
    return names


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


def of_type_condition(scope: Scope, field: IndexField, values: list[str]) -> Condition:
    """Return the condition that an identifier has a type and a value, given as ``system|code|value``.

    The index has the values of identifiers, but not their types, which are read from the resources with such a value.

    Raises:
        FhirError: The server does not have the modifier enabled, or a value does not have three parts.
    """
    if not scope.identifier_of_type:
        raise FhirError(405, "HAPI-2012: The :of-type modifier is not enabled on this server")
    paths = [path for path in field.paths if path.type == "Identifier"]
    parts: list[Condition] = []
    for value in values:
        texts = [unescape(part) for part in split(value.lstrip(), "|")]
        if len(texts) < 2 or not texts[0]:
            raise FhirError(400, "HAPI-2013: Invalid parameter value for :of-type query")
        if len(texts) != 3 or not all(texts):
            raise FhirError(400, "HAPI-2014: Invalid parameter value for :of-type query")
        parts += [_condition(scope, field, path, *texts) for path in paths]
    return any_of(parts) if parts else NOTHING


def _condition(scope: Scope, field: IndexField, path: SearchPath, system: str, code: str, value: str) -> Condition:
    source, joins = "CAST(b.body AS TEXT)", ""
    content = scope.resource_type
    for number, step in enumerate(path.steps):
        element = children(content)[step.key]
        content = element.content
        column = f"json_extract({source}, '$.{step.key}')"
        joins += f", json_each({column if element.many else f'json_array({column})'}) i{number}"
        source = f"i{number}.value"
    where = (
        f"@.pid {marks(field.pids)} AND @.value = ? AND EXISTS (SELECT 1 FROM {{db}}.resource b{joins}, "
        f"json_each({source}, '$.type.coding') c WHERE b.rid = @.rid AND json_extract({source}, '$.value') = ? "
        "AND json_extract(c.value, '$.system') = ? AND json_extract(c.value, '$.code') = ?)"
    )
    return RowCondition(
        "token", where, (*field.pids, value, value, system, code), rank=20, precedence=PLAIN, in_compartment=True
    )
