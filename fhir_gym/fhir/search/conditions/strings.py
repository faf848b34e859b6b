"""Parameters of type string (by default, the normalised text must start with the value) and of type URI."""

from __future__ import annotations

from fhir_gym.fhir.index import IndexField
from fhir_gym.fhir.index.values import normalise
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.predicates import ORDERED, PLAIN, Condition, RowCondition, any_of, failed_search, marks
from fhir_gym.fhir.search.query import unescape

MAX_STRING = 768
_AFTER = chr(0x10FFFF)
_NORM = (("@.norm", ()),)


def string_condition(name: str, field: IndexField, modifier: str | None, values: list[str]) -> Condition:
    """Return the condition on string rows; as in HAPI, modifiers other than `exact` and `contains` are ignored."""
    parts = [_match_string(name, field, modifier, unescape(value)) for value in values]
    return any_of(parts)


def _match_string(name: str, field: IndexField, modifier: str | None, text: str) -> RowCondition:
    if len(text) > MAX_STRING:
        raise failed_search(
            f"HAPI-1260: Parameter[{name}] has length ({len(text)}) that is longer than maximum allowed "
            f"({MAX_STRING}): {text}"
        )
    pids = f"@.pid {marks(field.pids)}"
    norm = normalise(text)
    if modifier == "exact":
        where = f"{pids} AND @.norm = ? AND @.exact = ?"
        return RowCondition("string", where, (*field.pids, norm, text), rank=25, precedence=PLAIN)
    if modifier == "contains":
        return RowCondition(
            "string", f"{pids} AND @.norm LIKE ? ESCAPE '\\'", (*field.pids, f"%{like(norm)}%"), 65, _NORM, ORDERED
        )
    return prefix_condition(field.pids, norm)


def prefix_condition(pids: tuple[int, ...], norm: str, *, table: str = "string") -> RowCondition:
    """Return the condition that normalised text starts with `norm`; as in HAPI, ``_`` matches any character."""
    fixed = norm.partition("_")[0]
    where, values = f"@.pid {marks(pids)} AND @.norm >= ? AND @.norm < ?", (*pids, fixed, fixed + _AFTER)
    if "_" in norm:
        where, values = f"{where} AND @.norm LIKE ? ESCAPE '\\'", (*values, f"{like(norm)}%")
    return RowCondition(table, where, values, rank=30, order=_NORM, precedence=ORDERED)


def like(norm: str) -> str:
    """Escape the special characters of LIKE, except ``_``."""
    return norm.replace("\\", "\\\\").replace("%", "\\%")


_MOST_SLASHES = 100


def uri_condition(field: IndexField, modifier: str | None, values: list[str]) -> Condition:
    """Return the condition on URI rows: equal to the value, below it (`:below`), or above it (`:above`)."""
    parts = tuple(_match_uri(field, modifier, unescape(value)) for value in values)
    return any_of(parts)


def _match_uri(field: IndexField, modifier: str | None, text: str) -> RowCondition:
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
