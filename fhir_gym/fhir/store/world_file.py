"""An opened world file: one immutable SQLite file that any number of sessions, threads and processes share."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from functools import cache
from itertools import chain, repeat
from pathlib import Path
from struct import unpack_from
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from pydantic import ValidationError

from fhir_gym.errors import WorldError
from fhir_gym.fhir import index
from fhir_gym.fhir.store.builder import ContentHash, Manifest
from fhir_gym.fhir.store.connections import ConnectionPool, RowChecks, connect, unreadable
from fhir_gym.fhir.store.schema import (
    APPLICATION_ID,
    FORMAT,
    MAIN,
    MANIFEST,
    PAGE_BYTES,
    ResourceRow,
    index_statements,
    stored,
    table_statements,
)
from fhir_gym.fhir.store.store import Store, marks
from fhir_gym.types import Resource


class _Closable(Protocol):
    def close(self) -> None: ...


_T = TypeVar("_T", bound=_Closable)


class PerThread(Generic[_T]):
    """One value for each thread of this process; a thread's value is made on first use."""

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._local = threading.local()
        self._made: list[_T] = []

    def get(self) -> _T:
        """Return this thread's value; a value inherited through a fork is replaced."""
        if getattr(self._local, "process", None) != os.getpid():
            self._local.value = self._make()
            self._local.process = os.getpid()
            self._made.append(self._local.value)
        value: _T = self._local.value
        return value

    def close(self) -> None:
        """Close the values of all threads."""
        while self._made:
            self._made.pop().close()
        self._local = threading.local()


class WorldFile:
    """The resources of a world file, without any session's writes.

    A pickled world is only its path, so worker processes open the same file.

    Args:
        manifest: The manifest stored in the file.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.connections = ConnectionPool(path, manifest.total)
        self._stores = PerThread(lambda: Store(self.connections, first_rid=manifest.total + 1))

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a world file.

        Raises:
            WorldError: The file is absent, unreadable, damaged, not a world, or of another format.
        """
        path = Path(path).resolve()
        return cls(path, read_manifest(path))

    @property
    def name(self) -> str:
        """The name from the manifest."""
        return self.manifest.name

    @property
    def now(self) -> datetime:
        """The world's present; the clock of every session starts here."""
        return self.manifest.now

    def read(self, resource_type: str, id: str) -> Resource | None:
        """Return a resource, or None if the world has no such resource."""
        with self._reading() as store:
            row = store.find(resource_type, id)
            return None if row is None else stored(row.body)

    def ids(self, resource_type: str) -> list[str]:
        """Return the ids of a type in creation order."""
        query = "SELECT id FROM main.resource WHERE type = ? ORDER BY rid LIMIT ?"
        with self._reading() as store:
            return [id for (id,) in store.db.execute(query, (resource_type, self.manifest.total))]

    def holds(self, resource_type: str, id: str) -> bool:
        """Return whether the world has this resource."""
        query = "SELECT 1 FROM main.resource WHERE type = ? AND id = ?"
        try:  # without `_reading`, which would double the time
            return self._stores.get().db.execute(query, (resource_type, id)).fetchone() is not None
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise unreadable(self.path, error) from error

    def sample(self, resource_type: str, most: int) -> list[tuple[str, int]]:
        """Return id and last update (in milliseconds) of a few resources; fast on a world of any size.

        Args:
            resource_type: The type.
            most: The maximum number. The sample is spread evenly over the creation order and contains the first and
                last resource.
        """
        rows: dict[int, tuple[str, int]] = {}
        query = "SELECT rid, id, updated FROM main.resource INDEXED BY resource_type WHERE type = ?"
        with self._reading() as store:
            last = store.db.execute(f"{query} ORDER BY rid DESC LIMIT 1", (resource_type,)).fetchone()
            first = store.db.execute(f"{query} ORDER BY rid LIMIT 1", (resource_type,)).fetchone()
            for step in range(most if last else 0):
                rid = first[0] + (last[0] - first[0]) * step // max(1, most - 1)
                row = store.db.execute(f"{query} AND rid >= ? ORDER BY rid LIMIT 1", (resource_type, rid)).fetchone()
                rows[row[0]] = row[1:]
        return list(rows.values())

    def resources(self, resource_type: str | None = None) -> Iterator[bytes]:
        """Yield the stored JSON of all resources, or of all resources of one type, in creation order."""
        return (row.body for row in self.scan(resource_type))

    def scan(self, resource_type: str | None = None) -> Iterator[ResourceRow]:
        """Yield the rows of all resources, or of all resources of one type, in creation order."""
        total = self.manifest.total
        where, values = ("WHERE type = ?", (resource_type, total)) if resource_type else ("", (total,))
        query = f"SELECT * FROM resource {where} ORDER BY rid LIMIT ?"
        with self._failures(), closing(connect(self.path, mapped=False)) as db:
            for row in map(ResourceRow._make, db.execute(query, values)):
                yield self.connections.checks.check(row)

    def rows(self, rids: Sequence[int]) -> list[ResourceRow]:
        """Return the rows with these numbers, from 1 to the number of resources, in the order given."""
        query = f"SELECT * FROM resource WHERE rid IN ({marks(len(rids))})"
        with self._failures(), closing(connect(self.path, mapped=False)) as db:
            rows_by_rid = {row[0]: self.connections.checks.check(ResourceRow(*row)) for row in db.execute(query, rids)}
            if missing := next((rid for rid in rids if rid not in rows_by_rid), None):
                raise sqlite3.DatabaseError(f"resource {missing} is missing")
            return [rows_by_rid[rid] for rid in rids]

    def verify(self) -> None:
        """Read the whole file and compare it with its manifest; slow on a large world.

        Raises:
            WorldError: The file is damaged, possibly in a place where no search notices it.
        """
        with self._failures(), closing(connect(self.path)) as db:
            for (problem,) in db.execute("PRAGMA integrity_check(1)"):
                if problem != "ok":
                    raise WorldError(f"the world {self.path} is damaged: {problem.splitlines()[-1]}")
            content_hash, counts = ContentHash(self.now), Counter[str]()
            checks = RowChecks(self.manifest.total)
            for row in map(ResourceRow._make, db.execute("SELECT * FROM resource ORDER BY rid")):
                checks.check(row)
                content_hash.add(row.type, row.id, row.body)
                counts[row.type] += 1
            if str(content_hash) != self.manifest.content_hash or counts != self.manifest.counts:
                raise WorldError(f"the world {self.path} is damaged: its resources have changed")

    def close(self) -> None:
        """Close this world's own readers and the idle connections; open sessions stay open."""
        self.connections.close()
        self._stores.close()

    @contextmanager
    def _reading(self) -> Iterator[Store]:
        with self._failures():
            yield self._stores.get()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise unreadable(self.path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return type(self).open, (str(self.path),)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.manifest.total} resources, {str(self.path)!r})"


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
