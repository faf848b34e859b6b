"""URI parameters."""

from __future__ import annotations

from fhir_gym.fhir.index import IndexField
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.query import unescape
from fhir_gym.fhir.search.sql.predicates import Condition, RowCondition, any_of, marks

_AFTER = chr(0x10FFFF)
_MOST_SLASHES = 100


def uri_condition(field: IndexField, modifier: str | None, values: list[str]) -> Condition:
    """Return the condition on URI rows: equal to the value, below it (`:below`), or above it (`:above`)."""
    parts = tuple(_one(field, modifier, unescape(value)) for value in values)
    return any_of(parts)


def _one(field: IndexField, modifier: str | None, text: str) -> RowCondition:
    pids = f"@.pid {marks(field.pids)}"
    if modifier == "below":
        return RowCondition(
            "uri", f"{pids} AND @.value >= ? AND @.value < ?", (*field.pids, text, text + _AFTER), rank=35
        )
    if modifier == "above":
        if text.count("/") > _MOST_SLASHES:
            raise FhirError(400, f"A url with more than {_MOST_SLASHES} slashes is not supported with :above")
        above = tuple(text[:end] for end in range(len(text) + 1) if end == len(text) or text[end] == "/")
        return RowCondition("uri", f"{pids} AND @.value {marks(above)}", (*field.pids, *above), rank=25)
    return RowCondition("uri", f"{pids} AND @.value = ?", (*field.pids, text), rank=20)
