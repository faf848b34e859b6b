"""Open a world file from an untrusted source: header, tables and manifest must be as this package writes them.

A file may contain only the tables and indexes that this package defines, so no view, trigger, virtual table or computed
column of the file ever runs. The cost does not depend on the size of the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from itertools import chain, repeat
from pathlib import Path
from struct import unpack_from

from pydantic import ValidationError

from fhir_gym.errors import WorldError
from fhir_gym.fhir import index
from fhir_gym.fhir.store.connections import connect, unreadable
from fhir_gym.fhir.store.manifest import Manifest
from fhir_gym.fhir.store.schema import (
    APPLICATION_ID,
    FORMAT,
    MAIN,
    MANIFEST,
    PAGE_BYTES,
    index_statements,
    table_statements,
)

_MAGIC = b"SQLite format 3\0"
_ONLY_OURS = "worlds are made by `fhir-gym worlds build` or `import`"
_UTF8 = 1
_MAX_BYTES = 1 << 20  # maximum size of the manifest and of each definition
_MAX_STEPS = 100  # maximum cost of opening, in thousands of virtual-machine steps; a normal file needs 2
_STATISTICS = {
    "sqlite_stat1": "CREATE TABLE sqlite_stat1(tbl,idx,stat)",
    "sqlite_stat4": "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)",
}
"""Tables that ANALYZE may create; which of them exist depends on the version of SQLite that built the file."""
_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_PRAGMA})

Definition = tuple[str, str, str]
"""The definition of a table or index: its kind, its table, and its SQL with single spaces."""


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a world file.

    Raises:
        WorldError: The file is absent, unreadable, damaged, not a world, or of another format.
    """
    _check_header(path)
    try:
        with closing(_guarded(path)) as db:
            _check_schema(path, db)
            bodies = [body for (body,) in db.execute("SELECT body FROM manifest LIMIT 2")]
            if len(bodies) != 1 or not isinstance(bodies[0], str):
                raise WorldError(f"the world {path} is damaged: its manifest table does not contain exactly one text")
            manifest = Manifest.model_validate_json(bodies[0])
            _check_numbers(path, db, manifest.total)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # UnicodeDecodeError if SQLite's message quotes the file
        raise unreadable(path, error, state="is damaged") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise WorldError(f"the world {path} is damaged: its manifest is wrong: {place}: {first['msg']}") from error
    return manifest


def _check_header(path: Path) -> None:
    """Check the file header without SQLite."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # reading a pipe would wait for its writer
        raise WorldError(f"cannot open the world {path}: it is not a file")
    try:
        with path.open("rb") as file:
            header = file.read(100)
        size = path.stat().st_size
    except OSError as error:
        raise WorldError(f"cannot open the world {path}: {error.strerror or error}") from error
    if not header.startswith(_MAGIC) or len(header) < 100:
        raise WorldError(f"{path} is not a world file (not an SQLite file); {_ONLY_OURS}")
    page, journals, pages = unpack_from(">HH", header, 16) + unpack_from(">I", header, 28)
    encoding, layout, application = unpack_from(">II", header, 56) + unpack_from(">I", header, 68)
    if application != APPLICATION_ID:
        raise WorldError(f"{path} is an SQLite file but not a world; {_ONLY_OURS}")
    if layout != FORMAT:
        raise WorldError(f"{path} is a world of format {layout}; this version reads format {FORMAT}; build it again")
    page = 65536 if page == 1 else page
    if size != pages * page:
        raise WorldError(f"the world {path} is damaged: it has {size} bytes, but its header says {pages * page}")
    if (page, encoding, journals) != (PAGE_BYTES, _UTF8, 0x0101):
        raise WorldError(
            f"the world {path} was changed by another program: page size, text encoding or journal mode differ"
        )


def _guarded(path: Path) -> sqlite3.Connection:
    """Open a connection on which an untrusted file can neither run code nor take long."""
    db = connect(path)
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_BYTES)
    db.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, _MAX_BYTES)
    db.set_progress_handler(chain(repeat(0, _MAX_STEPS), repeat(1)).__next__, 1000)
    db.set_authorizer(_authorize)
    return db


def _authorize(action: int, first: str | None, second: str | None, schema: str | None, inner: str | None) -> int:
    return sqlite3.SQLITE_OK if action in _ALLOWED and inner is None else sqlite3.SQLITE_DENY


def _check_schema(path: Path, db: sqlite3.Connection) -> None:
    expected, seen, roots = dict(_expected()), set(), set()
    for kind, name, table, root, sql in db.execute("SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema"):
        problem = None
        if name not in expected:
            problem = f"it has the {kind} {name!r}, which worlds do not have"
        elif (kind, table, _spaced(sql)) != expected[name]:
            problem = f"its {kind} {name!r} has a different definition"
        elif name in seen or root in roots:
            problem = f"its {kind} {name!r} has the same name or place as another"
        if problem:
            raise WorldError(f"the world {path} was not made by this program: {problem}")
        seen.add(name)
        roots.add(root)
    if missing := sorted(expected.keys() - seen - _STATISTICS.keys()):
        kind = expected[missing[0]][0]
        raise WorldError(f"the world {path} was not made by this program: its {kind} {missing[0]!r} is missing")


@cache
def _expected() -> dict[str, Definition]:
    """Return the tables and indexes of a world file by name."""
    with closing(sqlite3.connect(":memory:")) as db:
        for statement in (*table_statements(MAIN), *index_statements(MAIN), MANIFEST):
            db.execute(statement)
        return dict(_statistics()) | {
            name: (kind, table, _spaced(sql))
            for kind, name, table, sql in db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema")
        }


def _statistics() -> Iterator[tuple[str, Definition]]:
    for name, sql in _STATISTICS.items():
        yield name, ("table", name, sql)


def _check_numbers(path: Path, db: sqlite3.Connection, total: int) -> None:
    """Check that resources are numbered from 1 and that all index rows refer to such numbers."""
    for table in ("resource", *index.TABLES):
        ends = db.execute(f"SELECT (SELECT min(rid) FROM {table}), (SELECT max(rid) FROM {table})").fetchone()
        if table == "resource":
            right = ends == ((1, total) if total else (None, None))
        else:
            right = ends == (None, None) or all(type(rid) is int and 1 <= rid <= total for rid in ends)
        if not right:
            raise WorldError(f"the world {path} is damaged: the table {table!r} does not match the {total} resources")


def _spaced(sql: object) -> str:
    return " ".join(sql.split()) if isinstance(sql, str) else ""
