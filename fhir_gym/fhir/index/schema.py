"""The index tables: their columns, keys and INSERT statements.

The rows of a table are ordered by search value. Each table also has an index by `rid` (the number of the resource), to
check whether a resource has a row and to delete rows. `pid` is the path id (see `fhir_gym.fhir.index.specs`). `owner`
is the key of the resource's compartment (its patient, group, device …), so that the rows of one patient with one code
are adjacent.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

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
