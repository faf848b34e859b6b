"""String parameters; by default, the normalised text must start with the value."""

from __future__ import annotations

from fhir_gym.fhir.index import IndexField
from fhir_gym.fhir.index.values import normalise
from fhir_gym.fhir.search.query import unescape
from fhir_gym.fhir.search.sql.predicates import ORDERED, PLAIN, Condition, RowCondition, any_of, failed_search, marks

MAX_STRING = 768
_AFTER = chr(0x10FFFF)
_NORM = (("@.norm", ()),)


def string_condition(name: str, field: IndexField, modifier: str | None, values: list[str]) -> Condition:
    """Return the condition on string rows; as in HAPI, modifiers other than `exact` and `contains` are ignored."""
    parts = [_one(name, field, modifier, unescape(value)) for value in values]
    return any_of(parts)


def _one(name: str, field: IndexField, modifier: str | None, text: str) -> RowCondition:
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
