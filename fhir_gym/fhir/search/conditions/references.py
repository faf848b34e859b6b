"""Reference parameters without chains."""

from __future__ import annotations

from fhir_gym.fhir.definitions import RESOURCE_TYPES
from fhir_gym.fhir.hash_order import names_in_hash_order
from fhir_gym.fhir.index import IndexField
from fhir_gym.fhir.index.values import compartment_key
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.predicates import BY_REFERENCE, NOTHING, Condition, RowCondition, Scope, any_of, marks
from fhir_gym.fhir.search.query import unescape
from fhir_gym.fhir.search.sql_query import CREATED

_TYPES = {t.lower(): t for t in RESOURCE_TYPES}
LOWER_TYPES = frozenset(_TYPES)
_KNOWN_MODIFIERS = (
    ":contains", ":exact", ":in", ":iterate", ":missing", ":not-in", ":of-type", ":recurse", ":text",
)  # fmt: skip


def unknown_type(name: str) -> FhirError:
    """Return the error for an unknown target type."""
    return FhirError(400, f'HAPI-1250: Invalid/unsupported resource type: "{name}"')


def target_type(scope: Scope, modifier: str | None, *, chained: bool = False) -> str | None:
    """Return the target type in a modifier; None if there is no modifier."""
    if modifier is None:
        return None
    if modifier.lower() in _TYPES:  # the case of a type matters only without a chain: nothing matches a wrong case
        return _TYPES[modifier.lower()] if chained else modifier
    if chained or f":{modifier}" in _KNOWN_MODIFIERS:
        raise unknown_type(modifier)
    asked = dict.fromkeys(f":{name.rpartition(':')[2]}" for name in names_in_hash_order(scope.names) if ":" in name)
    unsupported = [name for name in asked if name not in _KNOWN_MODIFIERS] or [f":{modifier}"]
    raise FhirError(
        400,
        f'HAPI-2498: Unsupported search modifier(s): "[{", ".join(unsupported)}]" for resource type '
        f'"{scope.resource_type}". '
        f"Valid search modifiers are: [{', '.join(_KNOWN_MODIFIERS)}]",
    )


def reference_condition(scope: Scope, field: IndexField, modifier: str | None, values: list[str]) -> Condition:
    """Return the condition on reference rows: ``Type/id``, ``id`` or a canonical URL."""
    type_ = target_type(scope, modifier)
    texts = [unescape(value) for value in values]
    many = len(texts) > 1
    if many and type_ is None and not {t.rpartition("/")[2] for t in texts if "/" in t}.isdisjoint(texts):
        raise FhirError(412, "HAPI-1099: Non-unique ID specified, can not process request")
    return any_of([_reference(scope, field, type_, text, many=many) for text in texts])


def _reference(scope: Scope, field: IndexField, type_: str | None, text: str, *, many: bool) -> Condition:
    if "://" in text or text.startswith(("urn:", "#")):
        if any(p.type != "Reference" for p in field.paths):
            where = f"@.pid {marks(field.pids)} AND @.target_id = ? AND @.target_type = ''"
            return RowCondition("reference", where, (*field.pids, text), rank=10)
        return NOTHING
    parts = text.removeprefix("/").split("/")
    if len(parts) in (2, 4):
        if parts[0].lower() not in LOWER_TYPES:
            raise unknown_type(parts[0])
        if type_ not in (None, parts[0]):
            return NOTHING
        type_ = parts[0]
        text = parts[1]
        if not text:
            raise FhirError(400, "HAPI-1101: Parameter value missing in request")
    elif len(parts) > 1:
        return NOTHING
    if field.target:
        if type_ not in (None, field.target):
            return NOTHING
        type_ = field.target
    return _rows(scope, field, type_, text, many=many)


def _rows(scope: Scope, field: IndexField, type_: str | None, id: str, *, many: bool) -> RowCondition:
    where, values = f"@.pid {marks(field.pids)} AND @.target_id = ?", (*field.pids, id)
    if type_:
        where, values = f"{where} AND @.target_type = ?", (*values, type_)
    unique = type_ is not None and len(field.pids) == 1
    compartments: tuple[int, ...] = ()
    if field.pids == (scope.spec.compartment_pid,):
        compartments = tuple(compartment_key(t, id) for t in ((type_,) if type_ else scope.spec.compartment_types))
    order = ((CREATED, ()),) if many else ()
    return RowCondition(
        "reference",
        where,
        values,
        rank=10,
        order=order,
        precedence=BY_REFERENCE,
        unique=unique,
        compartments=compartments,
    )
