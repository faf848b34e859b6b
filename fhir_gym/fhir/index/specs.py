"""The index tables, and the indexed paths of each resource type with their ids.

Index rows belong to a *path* and not to a parameter: `code` and `combo-code` of an Observation share the rows of
``Observation.code``; `subject` and `patient` share the rows of ``Observation.subject``. Paths used by the same
parameters share one path id. So a search reads one or two path ids, and a resource has few rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from fhir_gym.fhir.definitions import SearchParameter, search_parameters
from fhir_gym.fhir.fhirpath.search_paths import SearchPath, compile_below, compile_expression
from fhir_gym.fhir.index.values import WRITERS

SCHEMA = """
CREATE TABLE {db}.token(
    pid INTEGER NOT NULL, value TEXT NOT NULL, owner INTEGER NOT NULL, rid INTEGER NOT NULL, n INTEGER NOT NULL,
    system TEXT NOT NULL, at INTEGER, PRIMARY KEY (pid, value, owner, rid, n)
) WITHOUT ROWID;
CREATE INDEX {db}.token_rid ON token(rid, pid, value);

CREATE TABLE {db}.string(
    pid INTEGER NOT NULL, norm TEXT NOT NULL, rid INTEGER NOT NULL, exact TEXT NOT NULL,
    PRIMARY KEY (pid, norm, rid, exact)
) WITHOUT ROWID;
CREATE INDEX {db}.string_rid ON string(rid, pid, norm);

CREATE TABLE {db}.date(
    pid INTEGER NOT NULL, owner INTEGER NOT NULL, low INTEGER NOT NULL, rid INTEGER NOT NULL, high INTEGER NOT NULL,
    low_day INTEGER NOT NULL, high_day INTEGER NOT NULL, PRIMARY KEY (pid, owner, low, rid, high, low_day, high_day)
) WITHOUT ROWID;
CREATE INDEX {db}.date_rid ON date(rid, pid, low, high);

CREATE TABLE {db}.quantity(
    pid INTEGER NOT NULL, value REAL NOT NULL, rid INTEGER NOT NULL, code TEXT NOT NULL, system TEXT NOT NULL,
    PRIMARY KEY (pid, value, rid, code, system)
) WITHOUT ROWID;
CREATE INDEX {db}.quantity_rid ON quantity(rid, pid, value);

CREATE TABLE {db}.reference(
    pid INTEGER NOT NULL, target_id TEXT NOT NULL, target_type TEXT NOT NULL, rid INTEGER NOT NULL,
    PRIMARY KEY (pid, target_id, target_type, rid)
) WITHOUT ROWID;
CREATE INDEX {db}.reference_rid ON reference(rid, pid);

CREATE TABLE {db}.uri(
    pid INTEGER NOT NULL, value TEXT NOT NULL, rid INTEGER NOT NULL, PRIMARY KEY (pid, value, rid)
) WITHOUT ROWID;
CREATE INDEX {db}.uri_rid ON uri(rid, pid, value);
"""
"""Statements that create all index tables and their indexes; ``{db}`` is the schema's name.

The rows of a table are ordered by search value. Each table also has an index by `rid` (the number of the resource), to
check whether a resource has a row and to delete rows. `pid` is the path id. `owner` is the key of the resource's
compartment (its patient, group, device …), so that the rows of one patient with one code are adjacent.

`token.system` and `quantity.system` are ``""`` if the value has no system. If a value has several systems, `token.n`
numbers its rows. `token.at` is the start of the resource's date `IndexSpec.when`, if the date is an instant or a day.
`string.norm` is the normalised text and `string.exact` the original (``""`` for display texts of tokens, which only
`:text` finds). Dates are milliseconds since the epoch; days are numbers yyyymmdd of the date as written.
"""

_COLUMNS = {"token": 7, "string": 4, "date": 7, "quantity": 5, "reference": 4, "uri": 3}

TABLES: tuple[str, ...] = tuple(_COLUMNS)
"""Names of the index tables."""

RID_COLUMN: Mapping[str, int] = MappingProxyType(
    {"token": 3, "string": 2, "date": 3, "quantity": 2, "reference": 3, "uri": 2}
)
"""Position of the column `rid` in each table. The first column of every table is `pid`."""

INSERT: Mapping[str, str] = MappingProxyType(
    {table: f"INSERT INTO {{db}}.{table} VALUES ({','.join('?' * n)})" for table, n in _COLUMNS.items()}
)
"""INSERT statement of each table; ``{db}`` is the schema's name."""


TABLE_OF: Mapping[str, str] = MappingProxyType(
    {
        "token": "token",
        "string": "string",
        "date": "date",
        "number": "quantity",
        "quantity": "quantity",
        "reference": "reference",
        "uri": "uri",
    }
)
"""Index table of each parameter type; a composite uses the tables of its components."""

_IN_RESOURCE_TABLE = frozenset({"_id", "_lastUpdated", "_source"})
_PARTS = ("composite", "special")
_WHEN = ("date", "authoredon", "authored", "recorded-date", "created", "period", "start", "issued")
_IDS_PER_PARAMETER = 12  # keeps all path ids below 2 ** 15, which SQLite stores in two bytes


@dataclass(frozen=True, slots=True)
class IndexField:
    """The index rows of a parameter, or of one component of a composite.

    Attributes:
        kind: The parameter type (``token`` …).
        pids: The path ids of its rows.
        target: The type that a reference must point to; None if the parameter does not restrict it.
    """

    kind: str
    pids: tuple[int, ...]
    target: str | None
    paths: tuple[SearchPath, ...]

    @property
    def single(self) -> bool:
        """Whether a resource has at most one row of this field."""
        if self.kind not in ("date", "number", "quantity", "uri") or len(self.pids) != 1:
            return False
        return not any(path.many or path.type == "Range" for path in self.paths)

    @property
    def table(self) -> str:
        """The index table of the rows."""
        return TABLE_OF[self.kind]


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """The index specification of one resource type.

    Attributes:
        fields: The field of each parameter, by name.
        composites: The fields of both components, by the composite's name.
        indexed: ``(kind, path, path id)`` of all rows.
        compartment: Path of the reference to the resource's compartment (patient, group, device …), or None.
        compartment_pid: Path id of that reference's rows; 0 if there is no such reference.
        compartment_types: Resource types of the compartment.
        when: The date that token rows also contain, so that a patient's rows of one code can be read in order of this
            date; None if the type has no date or allows several dates.
    """

    fields: Mapping[str, IndexField]
    composites: Mapping[str, tuple[IndexField, ...]]
    indexed: tuple[tuple[str, SearchPath, int], ...]
    compartment: SearchPath | None
    compartment_pid: int
    compartment_types: tuple[str, ...]
    when: IndexField | None


_Uses = dict[tuple[str, SearchPath], set[int]]


@cache
def index_spec(resource_type: str) -> IndexSpec:
    """Return the index specification of a resource type."""
    parameters = search_parameters(resource_type)
    paths: dict[int, tuple[str, tuple[SearchPath, ...], str | None]] = {}
    names: dict[str, tuple[int, ...]] = {}
    for parameter in parameters.values():
        names[parameter.name] = tuple(
            _use(paths, parameter.id * _IDS_PER_PARAMETER + n, kind, paths_of_part)
            for n, (kind, paths_of_part) in enumerate(_parts(parameter, resource_type, parameters))
        )
    uses: _Uses = {}
    for user, (kind, paths_of_kind, _) in paths.items():
        for path in paths_of_kind:
            uses.setdefault((kind, path), set()).add(user)
    pids = _numbers(uses)
    fields = {
        user: IndexField(kind, tuple(sorted({pids[kind, p] for p in path})), target, path)
        for user, (kind, path, target) in paths.items()
    }
    simple = {n: fields[users[0]] for n, users in names.items() if users and parameters[n].type not in _PARTS}
    compartment, pid, types = _compartment(simple, parameters)
    return IndexSpec(
        fields=MappingProxyType(simple),
        composites=MappingProxyType(
            {n: tuple(fields[u] for u in users) for n, users in names.items() if parameters[n].type in _PARTS}
        ),
        indexed=tuple((kind, path, pid) for (kind, path), pid in pids.items()),
        compartment=compartment,
        compartment_pid=pid,
        compartment_types=types,
        when=next((simple[n] for n in _WHEN if n in simple and simple[n].single), None),
    )


def _use(
    paths: dict[int, tuple[str, tuple[SearchPath, ...], str | None]],
    user: int,
    kind: str,
    search_paths: tuple[SearchPath, ...],
) -> int:
    target = next((p.target for p in search_paths if p.target), None)
    plain = tuple(replace(p, target=None) for p in search_paths if p.truth or (kind, p.type) in WRITERS)
    paths[user] = (kind, plain, target)
    return user


def _parts(
    parameter: SearchParameter, resource_type: str, parameters: Mapping[str, SearchParameter]
) -> Iterator[tuple[str, tuple[SearchPath, ...]]]:
    """Yield kind and paths of each part of a parameter; only a composite and `near` have several parts."""
    if parameter.name in _IN_RESOURCE_TABLE:
        return
    if parameter.type == "special":
        for name in ("latitude", "longitude"):
            yield "number", compile_expression(f"{parameter.expression}.{name}", resource_type)
        return
    paths = compile_expression(parameter.expression, resource_type)
    if parameter.type != "composite":
        yield parameter.type, paths
        return
    base = paths[-1]  # for "Observation | Observation.component" HAPI uses only the components
    for name, expression in parameter.components:
        kind = parameters[name].type if name in parameters else "token"
        if expression.startswith("%resource."):
            yield kind, compile_expression(expression.replace("%resource", resource_type), resource_type)
        else:
            yield kind, compile_below(expression, base)


def _numbers(uses: _Uses) -> dict[tuple[str, SearchPath], int]:
    """Return the path id of each kind and path; paths of one kind that the same parameters use share an id."""
    classes: dict[tuple[str, frozenset[int]], int] = {}
    taken: set[int] = set()
    numbers: dict[tuple[str, SearchPath], int] = {}
    for (kind, path), users in uses.items():
        key = kind, frozenset(users)
        if key not in classes:
            number = min(users)
            while number in taken:
                number += 1
            taken.add(number)
            classes[key] = number
        numbers[kind, path] = classes[key]
    return numbers


def _compartment(
    fields: Mapping[str, IndexField], parameters: Mapping[str, SearchParameter]
) -> tuple[SearchPath | None, int, tuple[str, ...]]:
    for name in ("patient", "subject"):
        field = fields.get(name)
        if field and len(field.paths) == 1 and field.paths[0].type == "Reference" and not field.paths[0].many:
            subject = parameters.get("subject")
            types = subject.targets if subject and fields["subject"].pids == field.pids else parameters[name].targets
            return field.paths[0], field.pids[0], types
    return None, 0, ()
