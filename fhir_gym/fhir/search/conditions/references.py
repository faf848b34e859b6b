"""Reference parameters without chains."""

from __future__ import annotations

from fhir_gym.fhir.definitions import RESOURCE_TYPES
from fhir_gym.fhir.index import IndexField
from fhir_gym.fhir.index.values import compartment_key
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.query import unescape
from fhir_gym.fhir.search.sql.compile import CREATED
from fhir_gym.fhir.search.sql.predicates import BY_REFERENCE, NOTHING, Condition, RowCondition, Scope, any_of, marks

LOWER_TYPES = frozenset(t.lower() for t in RESOURCE_TYPES)
_KNOWN_MODIFIERS = (
    ":contains", ":exact", ":in", ":iterate", ":missing", ":not-in", ":of-type", ":recurse", ":text",
)  # fmt: skip


def unknown_type(name: str) -> FhirError:
    """Return the error for an unknown target type."""
    return FhirError(400, f'HAPI-1250: Invalid/unsupported resource type: "{name}"')


def target_type(scope: Scope, modifier: str | None, *, chained: bool = False) -> str | None:
    """Return the target type in a modifier; None if there is no modifier."""
    if modifier is None or modifier.lower() in LOWER_TYPES:
        return modifier  # HAPI accepts a type in the wrong case, but nothing matches it
    if chained or f":{modifier}" in _KNOWN_MODIFIERS:
        raise unknown_type(modifier)
    raise FhirError(
        400,
        f'HAPI-2498: Unsupported search modifier(s): "[:{modifier}]" for resource type "{scope.resource_type}". '
        f"Valid search modifiers are: [{', '.join(_KNOWN_MODIFIERS)}]",
    )


def reference_condition(scope: Scope, field: IndexField, modifier: str | None, values: list[str]) -> Condition:
    """Return the condition on reference rows: ``Type/id``, ``id`` or a canonical URL."""
    type_ = target_type(scope, modifier)
    many = len(values) > 1
    return any_of([_one(scope, field, type_, unescape(value), many=many) for value in values])


def _one(scope: Scope, field: IndexField, type_: str | None, text: str, *, many: bool) -> Condition:
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
