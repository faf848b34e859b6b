"""The modifier `:of-type`: identifiers by the type of the identifier and its value."""

from __future__ import annotations

from fhir_gym.fhir.definitions import children
from fhir_gym.fhir.fhirpath.search_paths import SearchPath
from fhir_gym.fhir.index import IndexField
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.query import split, unescape
from fhir_gym.fhir.search.sql.predicates import NOTHING, PLAIN, Condition, RowCondition, Scope, any_of, marks


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
        given = [unescape(part) for part in split(value.lstrip(), "|")]
        if len(given) < 2 or not given[0]:
            raise FhirError(400, "HAPI-2013: Invalid parameter value for :of-type query")
        if len(given) != 3 or not all(given):
            raise FhirError(400, "HAPI-2014: Invalid parameter value for :of-type query")
        parts += [_condition(scope, field, path, *given) for path in paths]
    return any_of(parts) if parts else NOTHING


def _condition(scope: Scope, field: IndexField, path: SearchPath, system: str, code: str, value: str) -> Condition:
    source, joins = "CAST(b.body AS TEXT)", ""
    content = scope.resource_type
    for number, step in enumerate(path.steps):
        element = children(content)[step.key]
        content = element.content
        found = f"json_extract({source}, '$.{step.key}')"
        joins += f", json_each({found if element.many else f'json_array({found})'}) i{number}"
        source = f"i{number}.value"
    where = (
        f"@.pid {marks(field.pids)} AND @.value = ? AND EXISTS (SELECT 1 FROM {{db}}.resource b{joins}, "
        f"json_each({source}, '$.type.coding') c WHERE b.rid = @.rid AND json_extract({source}, '$.value') = ? "
        "AND json_extract(c.value, '$.system') = ? AND json_extract(c.value, '$.code') = ?)"
    )
    return RowCondition(
        "token", where, (*field.pids, value, value, system, code), rank=20, precedence=PLAIN, in_compartment=True
    )
