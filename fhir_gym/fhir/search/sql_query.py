"""Compile the conditions and the order of a search to one SQL query.

All index rows of a resource are in one schema: `main` (the world) or `overlay` (the session's writes). As long as the
overlay has no rows of the searched types, a search reads only `main`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fhir_gym.fhir.definitions import RESOURCE_TYPES, SearchParameter, search_parameters
from fhir_gym.fhir.index import IndexField
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.predicates import (
    BY_REFERENCE,
    NO_ORDER,
    AllOf,
    AnyOf,
    Condition,
    RowCondition,
    Scope,
    Sql,
    check,
    failed_search,
    marks,
)
from fhir_gym.fhir.urls import Pairs

_COMPARTMENT_GAIN = 15


@dataclass(frozen=True, slots=True)
class SortKey:
    """One sort key.

    Attributes:
        text: SQL expression, with ``{rid}`` and ``{db}`` as placeholders for the resource and the schema.
        values: Values of the expression's ``?`` placeholders.
        descending: Whether the order is descending.
        field: The index field whose row the query joins; None if a resource may have several rows of the field.
        column: The column of that row.
    """

    text: str
    values: tuple[Any, ...] = ()
    descending: bool = False
    field: IndexField | None = None
    column: str = ""


def simplify(scope: Scope, conditions: Iterable[Condition]) -> list[Condition]:
    """Flatten conjunctions, and merge the condition on the compartment into conditions on tables with such a column."""
    flat = list(_flat(conditions))
    if scope.spec.compartment is None:
        return [_narrow(c, (0,)) if isinstance(c, RowCondition) and c.in_compartment else c for c in flat]
    about = next((c for c in flat if isinstance(c, RowCondition) and c.compartments), None)
    if about is None or not any(isinstance(c, RowCondition) and c.in_compartment for c in flat):
        return flat
    return [
        _narrow(c, about.compartments) if isinstance(c, RowCondition) and c.in_compartment else c
        for c in flat
        if c is not about
    ]


def _flat(conditions: Iterable[Condition]) -> Iterable[Condition]:
    for condition in conditions:
        if isinstance(condition, AllOf):
            yield from _flat(condition.parts)
        else:
            yield condition


def _narrow(rows: RowCondition, compartments: tuple[int, ...]) -> RowCondition:
    gain = 0 if compartments == (0,) else _COMPARTMENT_GAIN
    where = f"@.owner {marks(compartments)} AND {rows.where}"
    return RowCondition(
        rows.table,
        where,
        (*compartments, *rows.values),
        rank=rows.rank - gain,
        pids=rows.pids,
        unique=rows.unique,
        hint=rows.hint,
    )


@dataclass(slots=True)
class _Branch:
    """The search in one schema.

    The rows of the driving condition have the alias ``t``; `unique` says whether a resource has at most one such row.
    """

    driver: RowCondition
    source: str
    checks: tuple[Condition, ...]
    unique: bool


def _branch(scope: Scope, conditions: Sequence[Condition], db: str) -> _Branch:
    drivers = [c for c in conditions if isinstance(c, RowCondition)]
    driver = min(drivers, key=lambda c: c.rank, default=None)
    if driver is None:
        driver = RowCondition("resource", "@.type = ? AND @.deleted = 0", (scope.resource_type,), unique=True)
    checks = tuple(c for c in conditions if c is not driver)
    return _Branch(driver, f"{db}.{driver.table} t", checks, driver.unique or driver.table == "resource")


def _where(scope: Scope, branch: _Branch, db: str, joined: Mapping[tuple[str, tuple[int, ...]], str]) -> Sql:
    """Return the conditions of a branch; a condition on a joined row uses the row's alias."""
    parts = [branch.driver.where.replace("@", "t").replace("{db}", db)]
    values = [*branch.driver.values]
    for condition in branch.checks:
        text, more = check(condition, db, "t.rid")
        if isinstance(condition, RowCondition):
            if alias := joined.get((condition.table, condition.pids)):
                text, more = condition.where.replace("@", alias), condition.values
            elif condition.hint and _is_when(scope, branch, condition.table, condition.pids):
                text, more = _with_hint(condition.hint, text, more)
        parts.append(text)
        values += more
    return " AND ".join(parts) + _hidden(scope, db, "t"), tuple(values)


def _with_hint(hint: tuple[Sql, Sql], text: str, values: tuple[Any, ...]) -> Sql:
    """Return a check that reads the date rows only if the date in the token row does not decide the result."""
    (sure, sure_values), (possible, possible_values) = hint
    whole = f"(({sure}) OR (({possible} OR @.at IS NULL) AND {text}))".replace("@", "t")
    return whole, (*sure_values, *possible_values, *values)


def _is_when(scope: Scope, branch: _Branch, table: str, pids: tuple[int, ...]) -> bool:
    """Return whether the token rows of the driving condition also contain this date."""
    when = scope.spec.when
    return branch.driver.table == "token" and when is not None and (table, pids) == (when.table, when.pids)


def _rids(scope: Scope, conditions: Sequence[Condition], db: str) -> Sql:
    """Return the query for the matching rids in one schema, without repeats."""
    branch = _branch(scope, conditions, db)
    where, values = _where(scope, branch, db, {})
    return f"SELECT {'' if branch.unique else 'DISTINCT '}t.rid AS rid FROM {branch.source} WHERE {where}", values


def impossible(conditions: Sequence[Condition]) -> bool:
    """Return whether no resource can match."""
    return any(isinstance(c, AnyOf) and not c.parts for c in conditions)


def rids_query(scope: Scope, conditions: Sequence[Condition], keys: Sequence[SortKey] = ()) -> Sql:
    """Return the query for the ordered matches. The caller must append two values: limit and offset.

    The first column is the rid. Resources with equal values are in creation order. Resources without a value come last
    in both directions.
    """
    schemas = scope.schemas()
    build = _keyed if keys else _plain
    selects = [build(scope, conditions, keys, db) for db in schemas]
    union = " UNION ALL ".join(text for text, _ in selects)
    if len(schemas) > 1:
        union = f"SELECT * FROM ({union})"
    order = [f"k{n}{' DESC' if key.descending else ''}" for n, key in enumerate(keys)]
    values = tuple(v for _, select_values in selects for v in select_values)
    return f"{union} ORDER BY {', '.join([*order, 'rid'])} LIMIT ? OFFSET ?", values


def _plain(scope: Scope, conditions: Sequence[Condition], keys: Sequence[SortKey], db: str) -> Sql:
    return _rids(scope, conditions, db)


def _keyed(scope: Scope, conditions: Sequence[Condition], keys: Sequence[SortKey], db: str) -> Sql:
    """Return the query for the matching rids in one schema, with their sort values."""
    branch = _branch(scope, conditions, db)
    if not branch.unique:
        text, values = _rids(scope, conditions, db)
        columns = "".join(f", {_last(key, _render(key, db, 'd.rid'))} AS k{n}" for n, key in enumerate(keys))
        key_values = tuple(v for key in keys for v in key.values)
        return f"SELECT d.rid AS rid{columns} FROM ({text}) d", (*key_values, *values)
    joined: dict[tuple[str, tuple[int, ...]], str] = {}
    source, columns = branch.source, ""
    column_values: list[Any] = []
    join_values: list[Any] = []
    for n, key in enumerate(keys):
        field = key.field
        if field and (field.table, field.pids) == (branch.driver.table, branch.driver.pids):
            columns += f", t.{key.column} AS k{n}"
        elif field and _is_when(scope, branch, field.table, field.pids):
            seek = _render(key, db, "t.rid")
            columns += f", {_last(key, f'coalesce(t.at, {seek})')} AS k{n}"
            column_values += key.values
        elif field:
            alias = joined[field.table, field.pids] = f"j{n}"
            columns += f", {_last(key, f'{alias}.{key.column}')} AS k{n}"
            source += (
                f" LEFT JOIN {db}.{field.table} {alias} INDEXED BY {field.table}_rid "
                f"ON {alias}.rid = t.rid AND {alias}.pid {marks(field.pids)}"
            )
            join_values += field.pids
        else:
            columns += f", {_last(key, _render(key, db, 't.rid'))} AS k{n}"
            column_values += key.values
    where, values = _where(scope, branch, db, joined)
    return f"SELECT t.rid AS rid{columns} FROM {source} WHERE {where}", (*column_values, *join_values, *values)


def _last(key: SortKey, text: str) -> str:
    """Sort missing values last: as NULL if descending, as a blob if ascending (faster than NULLS LAST)."""
    return text if key.descending else f"coalesce({text}, x'')"


def _render(key: SortKey, db: str, rid: str) -> str:
    return key.text.replace("{rid}", rid).replace("{db}", db)


def in_compartment_order(
    scope: Scope, conditions: Sequence[Condition], keys: Sequence[SortKey]
) -> list[Condition] | None:
    """Return conditions that read the date rows of one compartment in the requested order.

    This applies to a search for one patient (or group, device …) ordered by a date. Return None for other searches.
    Resources without a date are missing from the result.
    """
    if len(conditions) != 1 or len(keys) != 1:
        return None
    about, field = conditions[0], keys[0].field
    if not (isinstance(about, RowCondition) and len(about.compartments) == 1 and field and field.table == "date"):
        return None
    where = f"@.owner = ? AND @.pid {marks(field.pids)}"
    return [RowCondition("date", where, (*about.compartments, *field.pids), pids=field.pids, unique=True)]


def count_query(scope: Scope, conditions: Sequence[Condition]) -> Sql:
    """Return the query for the number of matches."""
    branches = [_rids(scope, conditions, db) for db in scope.schemas()]
    text = " UNION ALL ".join(text for text, _ in branches)
    return f"SELECT count(*) FROM ({text})", tuple(v for _, values in branches for v in values)


def set_query(
    scope: Scope, conditions: Iterable[Condition], columns: str, source: str, where: str, *values: Any
) -> Sql:
    """Return a query, for use after ``IN``, that selects `source` rows (alias ``s``) of a nested search's matches."""
    narrowed = simplify(scope, conditions)
    if impossible(narrowed):
        return "SELECT NULL WHERE 0", ()
    texts, parameters = [], []
    for db in scope.schemas():
        if narrowed:
            text, inner = _rids(scope, narrowed, db)
            texts.append(f"SELECT {columns} FROM {db}.{source} s WHERE s.rid IN ({text}) AND {where}")
            parameters += [*inner, *values]
        else:
            texts.append(f"SELECT {columns} FROM {db}.{source} s WHERE {where}{_hidden(scope, db, 's')}")
            parameters += values
    return " UNION ALL ".join(texts), tuple(parameters)


def _hidden(scope: Scope, db: str, alias: str) -> str:
    """Return the condition that excludes the world's rows for resources in the overlay."""
    if db == "main" and scope.store.changed(scope.resource_type):
        return f" AND NOT EXISTS (SELECT 1 FROM overlay.resource m WHERE m.rid = {alias}.rid)"
    return ""


def ids_query(scope: Scope, conditions: Iterable[Condition]) -> Sql:
    """Return a query, for use after ``IN``, that selects the ids of a nested search's matches."""
    return set_query(scope, conditions, "s.id", "resource", "s.type = ? AND s.deleted = 0", scope.resource_type)


# order of the matches

MAX_KEYS = 16

_VALUE = {
    "token": "s.system || char(1) || s.value",
    "string": "s.norm",
    "date": "s.low",
    "number": "s.value",
    "quantity": "s.value",
    "reference": "s.target_type || '/' || s.target_id",
    "uri": "s.value",
}


def default_keys(scope: Scope, conditions: Iterable[Condition], pairs: Pairs) -> list[SortKey]:
    """Return the sort keys that HAPI uses if the query has no `_sort`.

    One condition decides the order: the first reference, else the first one-sided date, string, quantity or chain, else
    the first token, else a two-sided date. Matches are sorted by their smallest value that fulfils this condition, then
    by creation. A string parameter with an empty value does not filter the matches, but it sorts them.
    """
    rows = [r for r in _rows(conditions) if r.precedence < NO_ORDER]
    fields = scope.spec.fields
    blank = next((fields[n] for n, v in pairs if not v and n in fields and fields[n].kind == "string"), None)
    if blank and all(r.precedence > BY_REFERENCE for r in rows):
        return [_of_rows(blank, descending=False)]
    if not rows:
        return []
    first = min(rows, key=lambda r: r.precedence)
    if not first.order:
        return []
    index = f"s INDEXED BY {first.table}_rid WHERE s.rid = {{rid}}"
    where = first.where.replace("@", "s")
    return [
        SortKey(
            f"(SELECT min({text.replace('@', 's')}) FROM {{db}}.{first.table} {index} AND {where})",
            values + first.values,
        )
        for text, values in first.order
    ]


def _rows(conditions: Iterable[Condition]) -> Iterator[RowCondition]:
    for condition in conditions:
        if isinstance(condition, AllOf):
            yield from _rows(condition.parts)
        elif isinstance(condition, RowCondition):
            yield condition


def sort_keys(scope: Scope, sorts: Sequence[tuple[str, str]]) -> list[SortKey]:
    """Return the sort keys of a query's `_sort` parameters.

    HAPI accepts a ``-`` only in the first parameter; a later `_sort` keeps the direction of the parameter before it.
    """
    keys: list[SortKey] = []
    descending = False
    for number, (name, value) in enumerate(sorts):
        for piece in filter(None, value.split(",")):
            signed = number == 0 and name == "_sort"
            if signed or name != "_sort":
                descending = piece.startswith("-") if signed else name == "_sort:desc"
            keys += _keys(scope, piece[1:] if signed and descending else piece, descending)
    if len(keys) > MAX_KEYS:
        raise FhirError(400, f"Sorting by more than {MAX_KEYS} values is not supported by this server")
    return keys


def _keys(scope: Scope, text: str, descending: bool) -> list[SortKey]:
    type_, colon, rest = text.partition(":")
    name, _, chain = (rest if colon else text).partition(".")
    parameter = search_parameters(scope.resource_type).get(name)
    if parameter is None:
        raise _unknown(scope.resource_type, name)
    if chain:
        return [_chained(scope, parameter, type_ if colon else None, chain, descending)]
    if name == "_id":
        return [_of_resource("id", descending)]
    if name == "_lastUpdated":
        return [_of_resource("updated", descending)]
    fields = scope.spec.composites.get(name) or tuple(f for n, f in scope.spec.fields.items() if n == name)
    return [_of_rows(field, descending) for field in fields]


_TARGET = "SELECT r.rid FROM {} r WHERE r.type = @.target_type AND r.id = @.target_id"
CREATED = f"coalesce(({_TARGET.format('main.resource')}), ({_TARGET.format('overlay.resource')}))"
"""SQL expression for the creation order of a reference's target."""


def chained_order(scope: Scope, condition: Condition) -> tuple[Sql, ...]:
    """Return HAPI's sort columns for a chain: those of the target's condition, then the target's creation order."""
    if not isinstance(condition, RowCondition) or not condition.order:
        return ((CREATED, ()),)
    own, values = condition.order[0]
    schemas = scope.schemas()
    texts = []
    for db in schemas:
        hidden = " AND r.rid NOT IN (SELECT m.rid FROM overlay.resource m)" if db == "main" and len(schemas) > 1 else ""
        texts.append(
            f"SELECT {own.replace('@', 'o')} AS v FROM {db}.resource r CROSS JOIN {db}.{condition.table} o "
            f"INDEXED BY {condition.table}_rid ON o.rid = r.rid WHERE r.type = @.target_type AND r.id = @.target_id "
            f"AND {condition.where.replace('@', 'o').replace('{db}', db)}{hidden}"
        )
    key = f"(SELECT min(v) FROM ({' UNION ALL '.join(texts)}))"
    return ((key, (*values, *condition.values) * len(schemas)), (CREATED, ()))


def _of_resource(column: str, descending: bool) -> SortKey:
    return SortKey(f"(SELECT s.{column} FROM {{db}}.resource s WHERE s.rid = {{rid}})", (), descending)


def _of_rows(field: IndexField, descending: bool) -> SortKey:
    """Return the key that sorts by a resource's smallest value (ascending) or largest value (descending)."""
    pick = "max" if descending else "min"
    where = f"s.pid {marks(field.pids)}"
    values: tuple[int | str, ...] = field.pids
    if field.table == "string":
        where += " AND s.exact <> ''"
    if field.target and not field.single:
        where, values = f"{where} AND s.target_type = ?", (*values, field.target)
    source = f"{{db}}.{field.table} s INDEXED BY {field.table}_rid WHERE s.rid = {{rid}} AND {where}"
    text = f"(SELECT {pick}({_VALUE[field.kind]}) FROM {source})"
    if field.single:
        return SortKey(text, values, descending, field, _VALUE[field.kind].removeprefix("s."))
    return SortKey(text, values, descending)


def _chained(scope: Scope, parameter: SearchParameter, type_: str | None, chain: str, descending: bool) -> SortKey:
    """Return the key that sorts by a parameter of a reference's target."""
    if parameter.type != "reference":
        raise FhirError(
            400, f"HAPI-2289: Unable to sort on a chained parameter from '{parameter.name}' as it is no reference."
        )
    if type_ is None and len(parameter.targets) != 1:
        raise FhirError(
            400,
            f"HAPI-2287: Unable to sort on a chained parameter from '{parameter.name}' as this parameter has multiple "
            "target types. Please specify the target type.",
        )
    target = type_ or parameter.targets[0]
    if target not in RESOURCE_TYPES:
        raise FhirError(400, f'HAPI-1250: Invalid/unsupported resource type: "{target}"')
    below = scope.below(target)
    field = below.spec.fields.get(chain)
    if field is None:
        raise _unknown(target, chain)
    link = scope.field(parameter.name)
    pick = "max" if descending else "min"
    values: tuple[object, ...] = ()
    sources = []
    for db in below.schemas():
        hidden = (
            "NOT EXISTS (SELECT 1 FROM overlay.resource m WHERE m.rid = r.rid)" if len(below.schemas()) > 1 else "1"
        )
        sources.append(
            f"SELECT {_VALUE[field.kind]} AS v FROM {{db}}.reference l INDEXED BY reference_rid "
            f"CROSS JOIN {db}.resource r ON r.type = l.target_type AND r.id = l.target_id "
            f"CROSS JOIN {db}.{field.table} s INDEXED BY {field.table}_rid ON s.rid = r.rid "
            f"WHERE l.rid = {{rid}} AND l.pid {marks(link.pids)} AND l.target_type = ? AND s.pid {marks(field.pids)} "
            f"AND {hidden if db == 'main' else '1'}"
        )
        values += (*link.pids, target, *field.pids)
    return SortKey(f"(SELECT {pick}(v) FROM ({' UNION ALL '.join(sources)}))", values, descending)


def _unknown(resource_type: str, name: str) -> FhirError:
    names = ", ".join(sorted(search_parameters(resource_type)))
    return failed_search(
        f'HAPI-1194: Unknown _sort parameter value "{name}" for resource type "{resource_type}" (Note: sort parameters '
        f"values must use a valid Search Parameter). Valid values for this search are: [{names}]"
    )


_NESTED = "IN (SELECT "
MAX_NESTED = 4
"""Nesting depth that always fits the parser's stack; SQLite runs such queries faster if they stay nested."""
_TOKEN = re.compile(r"IN \(SELECT |[()?]|[^()?I]+|I")


@dataclass(slots=True)
class _Part:
    """The text between two parentheses."""

    text: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    query: bool = False


def unnested(query: Sql) -> Sql:
    """Move the nested queries (``IN (SELECT …)``) of a query into a WITH clause before the query.

    The nested queries do not refer to the outer query, so the result does not change.
    """
    text, values = query
    if text.count(_NESTED) <= MAX_NESTED or _depth(text) <= MAX_NESTED:
        return query
    rest = iter(values)
    moved: list[_Part] = []
    stack = [_Part()]
    for token in _TOKEN.findall(text):
        here = stack[-1]
        if token == _NESTED:
            stack.append(_Part(["SELECT "], query=True))
        elif token == "(":
            stack.append(_Part())
        elif token == ")":
            stack.pop()
            if here.query:
                stack[-1].text.append(f"IN (SELECT * FROM nested{len(moved)})")
                moved.append(here)
            else:
                stack[-1].text += ("(", *here.text, ")")
                stack[-1].values += here.values
        else:
            here.text.append(token)
            if token == "?":
                here.values.append(next(rest))
    (whole,) = stack
    clauses = ", ".join(f"nested{n} AS ({''.join(part.text)})" for n, part in enumerate(moved))
    return f"WITH {clauses} {''.join(whole.text)}", tuple(v for part in (*moved, whole) for v in part.values)


def _depth(text: str) -> int:
    """Return the nesting depth of a query."""
    deepest = depth = 0
    open_: list[bool] = []
    for token in re.findall(r"IN \(SELECT |[()]", text):
        if token == ")":
            depth -= open_.pop()
        else:
            open_.append(token == _NESTED)
            depth += open_[-1]
            deepest = max(deepest, depth)
    return deepest
