"""Conditions on one resource, and their SQL expressions.

A condition is about the index rows of one resource in one schema. A `RowCondition` can *drive* a query (the query reads
the condition's table by key) or *check* a resource that another condition found (the query looks up the `rid` in the
table). In its `where`, ``@`` stands for the table's alias and ``{db}`` for the schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from fhir_gym.fhir.definitions import search_parameters
from fhir_gym.fhir.index import IndexField, IndexSpec, index_spec
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.store import Store

BY_REFERENCE, ORDERED, PLAIN, RANGE, NO_ORDER = 1, 2, 3, 4, 9
"""Precedences of references; one-sided dates, strings, quantities and chains; tokens; two-sided dates; the rest."""

Sql = tuple[str, tuple[Any, ...]]
"""SQL text with ``?`` placeholders, and their values in order."""


class RowCondition(NamedTuple):
    """The condition that the resource has a matching row in an index table.

    Attributes:
        table: Index table, or ``resource``.
        where: SQL condition on the row.
        values: Values of the ``?`` placeholders in `where`.
        rank: Expected cost of the query if this condition drives it; the condition with the lowest rank drives.
        order: Columns by which HAPI orders the matches if this condition has precedence.
        precedence: The condition with the lowest precedence value orders the matches, as in HAPI.
        in_compartment: Whether the compartment (the patient) is the next column of the table's key, as in `token` and
            `date`.
        pids: Path ids of the rows, if `where` allows exactly the rows with these ids and no others.
        unique: Whether a resource has at most one such row.
        hint: For dates: two conditions on a token row's `at`; the first is sufficient and the second is necessary.
        compartments: Keys of the compartments, if the condition does nothing except select compartments.
    """

    table: str
    where: str
    values: tuple[Any, ...] = ()
    rank: int = 50
    order: tuple[Sql, ...] = ()
    precedence: int = NO_ORDER
    in_compartment: bool = False
    pids: tuple[int, ...] = ()
    unique: bool = False
    hint: tuple[Sql, Sql] | None = None
    compartments: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Not:
    """Negation."""

    inner: Condition


@dataclass(frozen=True, slots=True)
class AllOf:
    """Conjunction."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Disjunction."""

    parts: tuple[Condition, ...]


Condition: TypeAlias = RowCondition | Not | AllOf | AnyOf

NOTHING = AnyOf(())
"""The condition that no resource fulfils."""


def marks(values: tuple[Any, ...]) -> str:
    """Return ``= ?`` for one value, ``IN (?, …)`` for several."""
    return "= ?" if len(values) == 1 else f"IN ({','.join('?' * len(values))})"


def any_of(parts: Sequence[Condition]) -> Condition:
    """Return the disjunction. If all parts are about one table, return a `RowCondition`, which can drive a query."""
    parts = [part for part in parts if part != NOTHING] or [NOTHING]
    if len(parts) == 1:
        return parts[0]
    rows = [part for part in parts if isinstance(part, RowCondition)]
    if not rows or len(rows) < len(parts) or len({r.table for r in rows}) > 1:
        return AnyOf(tuple(parts))
    return RowCondition(
        rows[0].table,
        f"({' OR '.join(f'({r.where})' for r in rows)})",
        tuple(v for r in rows for v in r.values),
        rank=max(r.rank for r in rows) + 1,
        order=_common(tuple(r.order for r in rows)),
        precedence=rows[0].precedence,
        in_compartment=all(r.in_compartment for r in rows),
        compartments=tuple(c for r in rows for c in r.compartments) if all(r.compartments for r in rows) else (),
    )


def _common(orders: tuple[tuple[Sql, ...], ...]) -> tuple[Sql, ...]:
    """Return the order that all alternatives share; empty (creation order) if the alternatives differ."""
    return orders[0] if len(set(orders)) == 1 else ()


def check(condition: Condition, db: str, rid: str) -> Sql:
    """Return an SQL expression that is true if the resource `rid` of a schema fulfils the condition."""
    if isinstance(condition, RowCondition):
        index = "" if condition.table == "resource" else f" INDEXED BY {condition.table}_rid"
        where = condition.where.replace("@", "x").replace("{db}", db)
        return (
            f"EXISTS (SELECT 1 FROM {db}.{condition.table} x{index} WHERE x.rid = {rid} AND {where})",
            condition.values,
        )
    if isinstance(condition, Not):
        text, values = check(condition.inner, db, rid)
        return f"NOT {text}", values
    if not condition.parts:
        return ("1", ()) if isinstance(condition, AllOf) else ("0", ())
    checks = [check(part, db, rid) for part in condition.parts]
    word = " AND " if isinstance(condition, AllOf) else " OR "
    return f"({word.join(text for text, _ in checks)})", tuple(v for _, values in checks for v in values)


MAX_DEPTH = 6
"""Maximum length of a chain or of nested `_has`."""

_STEPS_OF_A_LINK = 300

MAX_VALUES = 300
"""Maximum number of values of one parameter: SQLite limits the depth of expressions to 1000."""


@dataclass(slots=True)
class Scope:
    """The resource type for which a condition is compiled.

    Attributes:
        resource_type: The type of the matches.
        store: The store that the query reads; it also counts the work of compiling.
        depth: The number of enclosing chains.
        chain: The name of the outermost chain, as in the query.
        names: All names in the query, with modifiers, for errors that list them.
        identifier_of_type: Whether `:of-type` is enabled.
    """

    resource_type: str
    store: Store
    depth: int = 0
    chain: str = ""
    names: tuple[str, ...] = ()
    identifier_of_type: bool = False

    @property
    def spec(self) -> IndexSpec:
        """The index specification of the type."""
        return index_spec(self.resource_type)

    def field(self, name: str) -> IndexField:
        """Return the index rows of a parameter."""
        return self.spec.fields[name]

    def below(self, resource_type: str, chain: str = "") -> Scope:
        """Return the scope of a chained search."""
        if self.depth >= MAX_DEPTH:
            raise FhirError(400, f"A chain of more than {MAX_DEPTH} links is not supported by this server")
        self.store.spend(_STEPS_OF_A_LINK)
        return replace(self, resource_type=resource_type, depth=self.depth + 1, chain=self.chain or chain)

    def schemas(self) -> tuple[str, ...]:
        """Return the schemas that have rows of the type."""
        return ("main", "overlay") if self.store.changed(self.resource_type) else ("main",)


def failed_search(diagnostics: str) -> FhirError:
    """The error for a problem that HAPI finds only during the search. HAPI cuts these messages at 500 characters."""
    return FhirError(400, diagnostics[:500])


def unknown_parameter(resource_type: str, name: str, *, code: int = 524) -> FhirError:
    """The error for a parameter that the type does not have."""
    names = ", ".join(sorted(search_parameters(resource_type)))
    return FhirError(
        400,
        f'HAPI-{code:04}: Unknown search parameter "{name}" for resource type "{resource_type}". '
        f"Valid search parameters for this search are: [{names}]",
    )
