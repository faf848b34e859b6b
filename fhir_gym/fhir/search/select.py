"""From the conditions of a search to one SQL query over the world and, where it was written to, the overlay.

All index rows of a resource are in one schema, so a resource can be judged within it. A search runs on `main` alone
as long as the overlay holds nothing of the types concerned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fhir_gym.fhir.search.conditions import AllOf, AnyOf, Condition, Rows, Sql, check, marks
from fhir_gym.fhir.search.scope import Scope

__all__ = ["Key", "count_query", "ids_query", "impossible", "rids_query", "set_query", "simplify"]

_OWNED_GAIN = 15


@dataclass(frozen=True, slots=True)
class Key:
    """A value to order by: an SQL expression with ``{rid}`` and ``{db}``, its values, and the direction."""

    text: str
    values: tuple[Any, ...] = ()
    descending: bool = False


def simplify(scope: Scope, conditions: Iterable[Condition]) -> list[Condition]:
    """Flatten conjunctions, and let the owner narrow the rows that carry it."""
    flat = list(_flat(conditions))
    if scope.plan.owner is None:
        return [_narrow(c, (0,)) if isinstance(c, Rows) and c.owned else c for c in flat]
    about = next((c for c in flat if isinstance(c, Rows) and c.owners), None)
    if about is None or not any(isinstance(c, Rows) and c.owned for c in flat):
        return flat
    return [_narrow(c, about.owners) if isinstance(c, Rows) and c.owned else c for c in flat if c is not about]


def _flat(conditions: Iterable[Condition]) -> Iterable[Condition]:
    for condition in conditions:
        if isinstance(condition, AllOf):
            yield from _flat(condition.parts)
        else:
            yield condition


def _narrow(rows: Rows, owners: tuple[int, ...]) -> Rows:
    gain = 0 if owners == (0,) else _OWNED_GAIN
    where = f"@.owner {marks(owners)} AND {rows.where}"
    return replace(rows, where=where, values=(*owners, *rows.values), rank=rows.rank - gain, owned=False)


def _branch(scope: Scope, conditions: Sequence[Condition], db: str) -> Sql:
    """The rids of one schema, each once."""
    drivers = [c for c in conditions if isinstance(c, Rows)]
    driver = min(drivers, key=lambda c: c.rank, default=None)
    if driver is None:
        source, where, values = "resource", "t.type = ? AND t.deleted = 0", (scope.resource_type,)
    else:
        source, where, values = driver.table, driver.where.replace("@", "t").replace("{db}", db), driver.values
    parts, given = [where], list(values)
    for condition in conditions:
        if condition is not driver:
            text, more = check(condition, db, "t.rid")
            parts.append(text)
            given += more
    if db == "main" and scope.changed(scope.resource_type):
        parts.append("NOT EXISTS (SELECT 1 FROM overlay.resource m WHERE m.rid = t.rid)")
    distinct = "" if source == "resource" else "DISTINCT "
    return f"SELECT {distinct}t.rid AS rid FROM {db}.{source} t WHERE {' AND '.join(parts)}", tuple(given)


def impossible(conditions: Sequence[Condition]) -> bool:
    """Whether nothing can match."""
    return any(isinstance(c, AnyOf) and not c.parts for c in conditions)


def rids_query(scope: Scope, conditions: Sequence[Condition], keys: Sequence[Key] = ()) -> Sql:
    """The matches in order; two more values are expected: limit and offset.

    Args:
        scope: The type searched.
        conditions: From `simplify`.
        keys: What to order by; creation order decides among equals. Missing values come last in both directions.
    """
    schemas = scope.schemas()
    texts, values = [], []
    columns = [f"k{n}" for n in range(len(keys))]
    for db in schemas:
        text, given = _branch(scope, conditions, db)
        if keys:
            found = [f"{_render(key, db)} AS {column}" for key, column in zip(keys, columns, strict=True)]
            text = f"SELECT d.rid AS rid, {', '.join(found)} FROM ({text}) d"
            values += [v for key in keys for v in key.values]
        texts.append(text)
        values += given
    order = [f"{c}{' DESC' if k.descending else ''} NULLS LAST" for c, k in zip(columns, keys, strict=True)]
    union = " UNION ALL ".join(texts)
    if len(schemas) > 1 or keys:
        union = f"SELECT rid FROM ({union})"
    return f"{union} ORDER BY {', '.join([*order, 'rid'])} LIMIT ? OFFSET ?", tuple(values)


def _render(key: Key, db: str) -> str:
    return key.text.replace("{rid}", "d.rid").replace("{db}", db)


def count_query(scope: Scope, conditions: Sequence[Condition]) -> Sql:
    """The number of matches."""
    branches = [_branch(scope, conditions, db) for db in scope.schemas()]
    text = " UNION ALL ".join(text for text, _ in branches)
    return f"SELECT count(*) FROM ({text})", tuple(v for _, values in branches for v in values)


def set_query(
    scope: Scope, conditions: Iterable[Condition], columns: str, source: str, where: str, *values: Any
) -> Sql:
    """Rows of `source` (alias ``s``) that belong to matches of a nested search; for use after ``IN``."""
    narrowed = simplify(scope, conditions)
    if impossible(narrowed):
        return "SELECT NULL WHERE 0", ()
    texts, given = [], []
    for db in scope.schemas():
        if narrowed:
            text, inner = _branch(scope, narrowed, db)
            texts.append(f"SELECT {columns} FROM {db}.{source} s WHERE s.rid IN ({text}) AND {where}")
            given += [*inner, *values]
        else:
            hidden = _hidden(scope, db)
            texts.append(f"SELECT {columns} FROM {db}.{source} s WHERE {where}{hidden}")
            given += values
    return " UNION ALL ".join(texts), tuple(given)


def _hidden(scope: Scope, db: str) -> str:
    if db == "main" and scope.changed(scope.resource_type):
        return " AND NOT EXISTS (SELECT 1 FROM overlay.resource m WHERE m.rid = s.rid)"
    return ""


def ids_query(scope: Scope, conditions: Iterable[Condition]) -> Sql:
    """The ids of the matches of a nested search; for use after ``IN``."""
    return set_query(scope, conditions, "s.id", "resource", "s.type = ? AND s.deleted = 0", scope.resource_type)
