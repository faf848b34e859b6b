"""The store of one session: a world file and an overlay with the session's writes, in one SQLite connection.

Schema `main` is the world: read-only, memory-mapped, and shared by all sessions and processes. Schema `overlay` is in
memory. It has the current version of each resource that the session wrote, with its index rows, and the log of all
versions. An overlay row hides the world's row of the same `rid`. Savepoints undo writes, so the cost of a reset depends
on the number of writes and not on the size of the world.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any, NamedTuple

from fhir_gym.fhir import index, serialization
from fhir_gym.fhir.limits import PORTION, WorkBudget
from fhir_gym.fhir.store.connections import ConnectionPool
from fhir_gym.fhir.store.lazy_index import Batch, LoadedResource, Unindexed
from fhir_gym.fhir.store.schema import OVERLAY, ResourceRow
from fhir_gym.types import Resource

COLUMNS = "rid, type, id, version, updated, deleted, method, body"
_PAGE = 4096  # size of an overlay's page in bytes
_CHUNK = 500  # number of rows that one statement reads; below SQLite's limit on bound values

_MANY = 15_000
"""From this number of resources without index rows on, `put_all` writes these rows, to save memory."""

_TOGETHER = 16
"""Number of rows that one statement inserts."""
_INSERT = {
    "resource": "INSERT INTO overlay.resource VALUES (?,?,?,?,?,?,?,?,?)",
    "version": "INSERT INTO overlay.version VALUES (?,?,?,?,?,?,?,?,?)",
    **{  # OR IGNORE, because rows that were written before an interruption may be written again
        table: index.INSERT[table].replace("{db}", OVERLAY).replace("INSERT", "INSERT OR IGNORE", 1)
        for table in index.TABLES
    },
}
_INSERT_TOGETHER = {
    table: statement + statement[statement.rindex(" (") :].replace(" ", ",") * (_TOGETHER - 1)
    for table, statement in _INSERT.items()
}
_KEEP = f"INSERT INTO overlay.version(seq, {COLUMNS}) SELECT seq, {COLUMNS} FROM overlay.resource WHERE rid = ?"
_REMOVE = tuple(f"DELETE FROM overlay.{table} WHERE rid = ?" for table in ("resource", *index.TABLES))
_LATEST = f"SELECT {COLUMNS}, seq FROM overlay.version WHERE rid = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
_FIND = {db: f"SELECT {COLUMNS} FROM {db}.resource WHERE type = ? AND id = ?" for db in ("main", "overlay")}
_ANY = "SELECT 1 FROM main.resource WHERE type = ? LIMIT 1"
_KNOWN = """
SELECT r.type, r.id, r.rid, min(CAST(r.version AS INTEGER), 999999999)
FROM json_each(?) t CROSS JOIN json_each(t.value) i
CROSS JOIN {db}.resource r ON r.type = t.key AND r.id = i.value
"""
NOT_REPLACED = " AND rid NOT IN (SELECT rid FROM overlay.resource)"
_CLOSED = sqlite3.connect(":memory:", check_same_thread=False)
_CLOSED.close()


class _EntryQueries(dict[tuple[bool, str, int], str]):
    """Queries of `Store.entries`. A key consists of the argument `whole`, the schema, and the number of resources."""

    def __missing__(self, key: tuple[bool, str, int]) -> str:
        whole, db, count = key
        head = """'{"fullUrl":' || json_quote(? || '/' || type || '/' || id) || ',"resource":'"""
        columns = f"CAST({head} || body AS BLOB), NULL" if whole else f"CAST({head} AS BLOB), body"
        text = self[key] = f"SELECT rid, {columns}, deleted FROM {db}.resource WHERE rid IN ({marks(count)})"
        return text


_ENTRIES = _EntryQueries()


class _Spending:
    """Charges a store's statements to a budget. Every request needs this, and a class is faster than a generator."""

    __slots__ = ("_budget", "_store")

    def __init__(self, store: Store, budget: WorkBudget) -> None:
        self._store, self._budget = store, budget

    def __enter__(self) -> None:
        self._store.charge(self._budget)

    def __exit__(self, *_: object) -> None:
        self._store.charge(None)


class Savepoint(NamedTuple):
    """A state to which `Store.rollback_to` returns: the savepoint's number, and the store's state in Python."""

    serial: int
    next_rid: int
    seq: int
    types: Counter[str]
    unindexed: Unindexed


class Snapshot(NamedTuple):
    """The resources that a session loaded, if it wrote nothing else. Other sessions on the world can load them too.

    All sessions that load it share its rows and bodies. The garbage collector does not visit them, because they are
    tuples of texts, bytes and numbers.

    Attributes:
        resources: The rows of the table `resource`.
        versions: The rows of the table `version`.
        bodies: The row ids and bodies of the resources by type.
        next_rid: The rid of the next new resource.
        seq: The number of the last write.
        types: The number of writes by type.
        next_id: The number of the next id that the server assigns.
        index_rows: The pickled index rows computed so far, by type and path id.
    """

    resources: tuple[tuple[Any, ...], ...]
    versions: tuple[tuple[Any, ...], ...]
    bodies: Mapping[str, tuple[tuple[int, bytes], ...]]
    next_rid: int
    seq: int
    types: Counter[str]
    next_id: int
    index_rows: dict[str, dict[int, bytes]]

    @property
    def size(self) -> int:
        """The memory that the bodies and the index rows take, in bytes."""
        bodies = sum(len(body) for pairs in self.bodies.values() for _, body in pairs)
        return bodies + sum(len(rows) for by_path in self.index_rows.values() for rows in by_path.values())


class Store:
    """The resources that one session sees.

    Not thread-safe.

    Args:
        connections: The pool from which the store takes its connection.
        first_rid: The first rid of resources that the session creates.
    """

    def __init__(self, connections: ConnectionPool, *, first_rid: int) -> None:
        self._connections = connections
        self.checks = connections.checks
        self.db = connections.acquire()
        self._next_rid = first_rid
        self._seq = 0
        self._types: Counter[str] = Counter()
        self._unindexed = Unindexed()
        self._serial = 0
        self._savepoints: list[int] = []
        self._budget: WorkBudget | None = None

    # reading

    def changed(self, resource_type: str) -> bool:
        """Return whether the overlay has rows of this type."""
        return resource_type in self._types

    def holds(self, resource_type: str) -> bool:
        """Return whether there are rows of this type."""
        return resource_type in self._types or self.db.execute(_ANY, (resource_type,)).fetchone() is not None

    def schemas(self) -> tuple[str, ...]:
        """Return the schemas that have rows. Rows of a later schema replace rows of an earlier schema."""
        return ("main", "overlay") if self._types else ("main",)

    def select(self, query: str, values: Sequence[Any]) -> sqlite3.Cursor:
        """Run a query on index rows. The path ids that the query reads must be among its values."""
        if self._unindexed.missing:
            self._index({value for value in values if isinstance(value, int)})
        return self.db.execute(query, values)

    def find(self, resource_type: str, id: str) -> ResourceRow | None:
        """Return the current version of a resource, deleted or not; None if it never existed."""
        row = None
        if resource_type in self._types:
            row = self.db.execute(_FIND["overlay"], (resource_type, id)).fetchone()
        if row:
            return ResourceRow._make(row)
        try:
            row = self.db.execute(_FIND["main"], (resource_type, id)).fetchone()
        except sqlite3.DataError as error:
            raise _too_large(error) from error
        return self.checks.check(ResourceRow._make(row)) if row else None

    def known(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[int, int]]:
        """Map the type and id of each resource that ever existed to its rid and its current version number."""
        ids: dict[str, list[str]] = {}
        for resource_type, id in keys:
            ids.setdefault(resource_type, []).append(id)
        ids_text = serialization.dumps(ids).decode()
        versions: dict[tuple[str, str], tuple[int, int]] = {}
        for db in self.schemas():
            query = _KNOWN.replace("{db}", db)
            versions.update(
                ((type_, id), (rid, version)) for type_, id, rid, version in self.db.execute(query, (ids_text,))
            )
        return versions

    def check(self, rids: Sequence[int]) -> None:
        """Check resources of the world before a query reads their content without parsing it.

        Raises:
            sqlite3.DatabaseError: The content of a resource contradicts its row.
        """
        for chunk in _chunks(self.checks.unchecked(rids)):
            query = f"SELECT {COLUMNS} FROM main.resource WHERE rid IN ({marks(len(chunk))})"
            try:
                with self._uncharged():  # a repeated request does not check again, but must cost the same
                    for row in self.db.execute(query, chunk):
                        self.checks.check(ResourceRow._make(row))
            except sqlite3.DataError as error:
                raise _too_large(error) from error

    def row(self, rid: int) -> ResourceRow:
        """Return the current version of one resource."""
        self.check((rid,))
        for db in ("overlay", "main"):
            row = self.db.execute(f"SELECT {COLUMNS} FROM {db}.resource WHERE rid = ?", (rid,)).fetchone()
            if row:
                return ResourceRow(*row)
        raise _missing(rid)

    def rows(self, rids: Sequence[int]) -> list[ResourceRow]:
        """Return the current versions of these resources, in the order given."""
        rows_by_rid: dict[int, ResourceRow] = {}
        for chunk in _chunks(rids):
            self.check(chunk)
            for db in self.schemas():
                query = f"SELECT {COLUMNS} FROM {db}.resource WHERE rid IN ({marks(len(chunk))})"
                rows_by_rid.update((row[0], ResourceRow(*row)) for row in self.db.execute(query, tuple(chunk)))
        try:
            return [rows_by_rid[rid] for rid in rids]
        except KeyError as error:
            raise _missing(error.args[0]) from error

    def sizes(self, rids: Sequence[int]) -> Iterator[int]:
        """Yield the sizes of these resources in bytes, in the order given."""
        sizes_by_rid: dict[int, int] = {}
        for chunk in _chunks(rids):
            for db in ("main", "overlay"):
                query = f"SELECT rid, length(body) FROM {db}.resource WHERE rid IN ({marks(len(chunk))})"
                sizes_by_rid.update(self.db.execute(query, tuple(chunk)))
        return (sizes_by_rid[rid] for rid in rids)

    def entries(
        self, rids: Sequence[int], base_url: str, *, whole: bool
    ) -> Iterator[tuple[int, bytes, bytes | None, int]]:
        """Yield the beginnings of Bundle entries, in any order.

        If several entries have the same rid, the last of these entries is current.

        Args:
            rids: The resources.
            base_url: The server's base URL, for `fullUrl`.
            whole: Whether to include the resource, as it is stored, in the entry's JSON.

        Yields:
            The rid; the entry's JSON, which ends before the resource, or after it if `whole`; the resource, or None if
            `whole`; and 1 if the resource is deleted, else 0.
        """
        for start in range(0, len(rids), _CHUNK):
            chunk = tuple(rids[start : start + _CHUNK])
            self.check(chunk)
            for db in self.schemas():
                yield from self.db.execute(_ENTRIES[whole, db, len(chunk)], (base_url, *chunk))

    def tagged(self, pids: Sequence[int]) -> list[ResourceRow]:
        """Return a selection of resources that together contain every token and URI with these path ids."""
        self.index_all()
        rids: set[int] = set()
        for db, current in (("main", NOT_REPLACED), ("overlay", "")):
            for table, value in (("token", "value, system"), ("uri", "value")):
                where = f"pid IN ({marks(len(pids))}) {current}"
                query = f"SELECT min(rid) FROM {db}.{table} WHERE {where} GROUP BY pid, {value}"
                rids.update(rid for (rid,) in self.db.execute(query, tuple(pids)))
        return self.rows(sorted(rids))

    # writing

    def put(
        self, resource_type: str, id: str, body: bytes, resource: Resource, *, method: str, version: int, updated: int
    ) -> int:
        """Store a new version and its index rows.

        Returns:
            The resource's rid; an existing resource, deleted or not, keeps its rid.
        """
        old = self.find(resource_type, id)
        rid = old.rid if old else self.new_rid()
        row = ResourceRow(rid, resource_type, id, version, updated, 0, method, body)
        self._log([row], old=[row] if old else [])
        for table, rows in index.index_rows(resource, rid).items():
            if rows:
                self._insert(table, rows)
        return rid

    def put_all(self, versions: Collection[LoadedResource]) -> None:
        """Store new versions of different resources.

        A version of an existing resource, deleted or not, must have the resource's rid; a new resource needs a rid from
        `new_rid`. The store writes the index rows when a query first reads them.
        """
        self._log([row for row, _ in versions], old=[row for row, _ in versions if row.version > 1])
        self._unindexed.add(versions)
        if len(self._unindexed) >= _MANY:
            self.index_all()

    def snapshot(self, next_id: int) -> Snapshot:
        """Return the writes so far, which must all be loads; `next_id` is the session's own counter."""
        current = tuple(self.db.execute(f"SELECT {COLUMNS}, seq FROM overlay.resource ORDER BY seq"))
        replaced = tuple(self.db.execute(f"SELECT seq, {COLUMNS} FROM overlay.version"))
        bodies: dict[str, list[tuple[int, bytes]]] = {}
        for rid, resource_type, _, _, _, _, _, body, _ in current:
            bodies.setdefault(resource_type, []).append((rid, body))
        index_rows: dict[str, dict[int, bytes]] = {name: {} for name in self._types}
        self._unindexed.remember(index_rows, {name: len(pairs) for name, pairs in bodies.items()})
        shared = {name: tuple(pairs) for name, pairs in bodies.items()}
        return Snapshot(current, replaced, shared, self._next_rid, self._seq, self._types.copy(), next_id, index_rows)

    def load_snapshot(self, snapshot: Snapshot) -> None:
        """Repeat the writes of another session on the same world.

        Raises:
            ValueError: This session has already written something.
        """
        if self._seq:
            raise ValueError("a snapshot needs a session without writes")
        self._insert("resource", snapshot.resources)
        self._insert("version", snapshot.versions)
        self._next_rid, self._seq, self._types = snapshot.next_rid, snapshot.seq, snapshot.types.copy()
        for resource_type, resources in snapshot.bodies.items():
            indexed = snapshot.index_rows[resource_type]
            self._unindexed.add_batch(resource_type, Batch(resource_type, resources, indexed))

    def index_all(self) -> None:
        """Write all missing index rows, for queries that do not name their path ids."""
        self._index(self._unindexed.paths())

    def _index(self, pids: Set[int]) -> None:
        """Write the missing index rows of these paths."""
        rows = self._unindexed.rows(pids)
        for table in rows:
            self._insert(table, rows[table])
        if rows:
            self._unindexed.written(pids)

    def amend(self, row: ResourceRow, body: bytes, resource: Resource) -> None:
        """Replace the JSON of the current version without a new version (`$meta-add`, `$meta-delete`)."""
        self.put(row.type, row.id, body, resource, method=row.method, version=row.version, updated=row.updated)

    def delete(self, row: ResourceRow, *, version: int, updated: int) -> None:
        """Store a version that marks the resource as deleted."""
        deletion = row._replace(version=version, updated=updated, deleted=1, method="DELETE", body=b"")
        self._log([deletion], old=[row])

    def new_rid(self) -> int:
        """Return the rid of the next new resource."""
        rid = self._next_rid
        self._next_rid += 1
        return rid

    def _log(self, rows: Sequence[ResourceRow], old: Iterable[ResourceRow]) -> None:
        """Write versions of different resources, without index rows.

        The new rows replace `old`, the current rows of existing resources.
        """
        self._replace(old)
        self._insert("resource", [(*row, seq) for seq, row in enumerate(rows, self._seq + 1)])
        self._seq += len(rows)
        self._types.update([row.type for row in rows])

    def _replace(self, old: Iterable[ResourceRow]) -> None:
        """Move the overlay's current rows of resources to the replaced versions, and delete their index rows."""
        present = "SELECT 1 FROM overlay.resource WHERE rid = ?"
        indexed_rows = [
            row for row in old if row.type in self._types and self.db.execute(present, (row.rid,)).fetchone()
        ]
        self._do_each(_KEEP, [(row.rid,) for row in indexed_rows])
        self._remove([(row.type, row.rid) for row in indexed_rows])

    def _remove(self, keys: Sequence[tuple[str, int]]) -> None:
        """Remove the overlay's current rows of resources, given by type and rid, with their index rows."""
        for resource_type, rid in keys:
            self._unindexed.forget(resource_type, rid)
        for statement in _REMOVE:
            self._do_each(statement, [(rid,) for _, rid in keys])

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        single = len(rows) - len(rows) % _TOGETHER
        several = [tuple(chain.from_iterable(rows[n : n + _TOGETHER])) for n in range(0, single, _TOGETHER)]
        with self._uncharged():
            if several:
                self.db.executemany(_INSERT_TOGETHER[table], several)
            if single < len(rows):
                self.db.executemany(_INSERT[table], rows[single:])

    def _do(self, statement: str, values: Sequence[Any] = ()) -> None:
        """Run a statement that the budget cannot interrupt, because an interruption would undo all savepoints."""
        with self._uncharged():
            self.db.execute(statement, values)

    def _do_each(self, statement: str, values: Sequence[Sequence[Any]]) -> None:
        """Run a statement for each row of values, like `_do`."""
        if values:
            with self._uncharged():
                self.db.executemany(statement, values)

    def _uncharged(self) -> AbstractContextManager[None]:
        return nullcontext() if self._budget is None else self.at_rate(0)

    @contextmanager
    def at_rate(self, rate: float) -> Iterator[None]:
        """Charge `rate` SQLite steps as one, because steps differ in duration. With rate 0, all steps are free."""
        if self._budget is None:
            yield
            return
        self.db.set_progress_handler(self._budget.tick if rate else None, max(1, round(PORTION * rate)))
        try:
            yield
        finally:
            self.db.set_progress_handler(self._budget.tick, PORTION)

    # undoing

    def savepoint(self) -> Savepoint:
        """Open a savepoint; `rollback_to` may return to it any number of times."""
        self._do(f"SAVEPOINT s{len(self._savepoints)}")  # names repeat, so that SQLite caches the statements
        self._serial += 1
        self._savepoints.append(self._serial)
        return Savepoint(self._serial, self._next_rid, self._seq, self._types.copy(), self._unindexed.copy())

    def rollback_to(self, savepoint: Savepoint) -> None:
        """Undo all writes since a savepoint and drop later savepoints; the savepoint itself stays.

        Raises:
            ValueError: The savepoint no longer exists.
        """
        place = self._place(savepoint)
        del self._savepoints[place + 1 :]
        self._next_rid, self._seq, self._types = savepoint.next_rid, savepoint.seq, savepoint.types.copy()
        self._unindexed = savepoint.unindexed.copy()
        self._do(f"ROLLBACK TO s{place}")

    def _place(self, savepoint: Savepoint) -> int:
        if savepoint.serial not in self._savepoints:
            raise ValueError("this checkpoint is gone: the session was rolled back to an earlier one")
        return self._savepoints.index(savepoint.serial)

    @contextmanager
    def returned_to(self, savepoint: Savepoint) -> Iterator[None]:
        """Return to a savepoint for the duration of a block; afterwards, undo the return.

        Index rows that were written since the savepoint stay, unless they belong to versions written since then. The
        cost depends on the number of these versions.

        Raises:
            ValueError: The savepoint no longer exists.
        """
        self._place(savepoint)
        here = self.savepoint()
        try:
            self._take_back(savepoint)
            yield
        finally:
            self.rollback_to(here)
            self._release()

    def _take_back(self, savepoint: Savepoint) -> None:
        """Undo all writes since a savepoint except for index rows; later savepoints stay."""
        written = self.db.execute("SELECT type, rid FROM overlay.resource WHERE seq > ?", (savepoint.seq,)).fetchall()
        before = [row for _, rid in written for row in self.db.execute(_LATEST, (rid, savepoint.seq)).fetchall()]
        self._remove(written)
        self._do("DELETE FROM overlay.version WHERE seq > ?", (savepoint.seq,))
        self._do_each("DELETE FROM overlay.version WHERE seq = ?", [row[-1:] for row in before])
        self._insert("resource", before)
        rows = [ResourceRow._make(row[:-1]) for row in before]
        self._unindexed.add([(row, row.body) for row in rows if not row.deleted])
        self._next_rid, self._seq, self._types = savepoint.next_rid, savepoint.seq, savepoint.types.copy()

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Undo all writes of the block if it raises an exception."""
        savepoint = self.savepoint()
        try:
            yield
        except BaseException:
            self.rollback_to(savepoint)
            raise
        finally:
            self._release()

    def _release(self) -> None:
        """Drop the latest savepoint and keep what was written since."""
        self._savepoints.pop()
        self._do(f"RELEASE s{len(self._savepoints)}")

    def seq(self) -> int:
        """Return the number of the last write."""
        return self._seq

    # limits

    def budget(self, budget: WorkBudget) -> AbstractContextManager[None]:
        """When the budget is spent, interrupt the read statement that runs in this block.

        The caller sees `sqlite3.OperationalError("interrupted")`. A statement takes the same number of steps on every
        machine. However, SQLite counts the steps of a prepared statement over all its runs, even in earlier sessions,
        and reports every ten thousand steps. So one run may cost one such unit more than another run. A nested block
        spends from the budget of the outer block.
        """
        return _Spending(self, budget) if self._budget is None else nullcontext()

    def charge(self, budget: WorkBudget | None) -> None:
        """Charge all further work to a budget; with None, further work is free."""
        self._budget = budget
        self.db.set_progress_handler(budget.tick if budget is not None else None, PORTION)

    def spend(self, steps: int) -> None:
        """Charge work outside of SQLite to the current budget, if any.

        Raises:
            FhirError: The budget is spent.
        """
        if self._budget is not None:
            self._budget.spend(steps)

    @property
    def exhausted(self) -> bool:
        """Whether the current budget is spent."""
        return self._budget is not None and not self._budget

    def overlay_bytes(self) -> int:
        """Return the memory that the overlay takes."""
        return _PAGE * int(self.db.execute("PRAGMA overlay.page_count").fetchone()[0])

    def close(self) -> None:
        """Release the connection and discard the overlay; a second call does nothing."""
        db, self.db = self.db, _CLOSED
        if db is not _CLOSED:
            self._connections.release(db)


def marks(count: int) -> str:
    """Return `count` ``?`` placeholders, separated by commas."""
    return ",".join("?" * count)


def _chunks(rids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (rids[start : start + _CHUNK] for start in range(0, len(rids), _CHUNK))


def _missing(rid: int) -> sqlite3.DatabaseError:
    return sqlite3.DatabaseError(f"its index names resource {rid}, which does not exist")


def _too_large(error: sqlite3.DataError) -> sqlite3.DatabaseError:
    """Return the error for a row larger than any we write: a damaged file. SQLite's own error blames the query."""
    return sqlite3.DatabaseError(f"a resource is too large: {error}")
