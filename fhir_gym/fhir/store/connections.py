"""A pool of connections to a world file, each with an overlay, and with the checks of resources when first read."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote
from weakref import finalize

import orjson

from fhir_gym.errors import WorldError
from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET
from fhir_gym.fhir.store.schema import MOST_BODY_BYTES, ResourceRow, overlay_script
from fhir_gym.printable import one_line

_MMAP_BYTES = 1 << 40  # SQLite maps at most the size of the file
_MOST_BYTES = 64 * 1024 * 1024  # maximum size of a row: a file that claims a larger row is damaged
_OVERLAY_SCRIPT = overlay_script()
_IDLE = 8
"""Number of idle connections to keep. A trainer has only a few threads, each with one open episode at a time."""


def connect(path: Path, *, mapped: bool = True) -> sqlite3.Connection:
    """Open a world file read-only; the connection may be used by one thread at a time.

    Args:
        path: The world file.
        mapped: Whether to map the file into memory. Searches are faster with it, but after reading a large world from
            end to end, the process would hold the whole file.
    """
    db = sqlite3.connect(
        f"file:{quote(str(path))}?mode=ro&immutable=1",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
    )
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
    try:
        db.execute("PRAGMA trusted_schema=OFF")  # the file may be untrusted
        # No cell_size_check: this check reads each cell of a mapped page on every visit, which doubles the time of a
        # search in a large world. `World.verify` checks all pages once.
        db.execute(f"PRAGMA mmap_size={_MMAP_BYTES if mapped else 0}")
        db.execute("PRAGMA cache_size=-256")
        db.execute("PRAGMA temp_store=MEMORY")
    except sqlite3.Error:  # a damaged file
        db.close()
        raise
    return db


def unreadable(path: Path, error: Exception, *, state: str = "cannot be read") -> WorldError:
    """Return an error with SQLite's message, joined to one line because the message may quote the file's content."""
    return WorldError(f"the world {path} {state}: {one_line(str(error), 300)}")


class ConnectionPool:
    """A pool of connections to one world file, each with an empty overlay.

    Creating the overlay's tables and preparing statements takes longer than loading most start states, so a released
    connection is reused.

    Args:
        path: The world file.
        resources: The number of resources in the world file.
    """

    def __init__(self, path: Path, resources: int) -> None:
        self.path = path
        self.checks = RowChecks(resources)
        self._idle: list[sqlite3.Connection] = []
        self._most = _IDLE
        self._process = os.getpid()
        finalize(self, _close_all, self._idle)

    def acquire(self) -> sqlite3.Connection:
        """Return a connection with an empty overlay."""
        if self._process != os.getpid():  # after a fork, because a connection belongs to the process that opened it
            self._process = os.getpid()
            _close_all(self._idle)
        try:
            return self._idle.pop()  # `pop` is atomic, so threads can share the pool
        except IndexError:
            return self._new()

    def release(self, db: sqlite3.Connection) -> None:
        """Take back a connection. The pool reuses the connection if all writes on it can be rolled back."""
        if len(self._idle) < self._most and _undone(db):
            self._idle.append(db)
        else:
            db.close()

    def close(self) -> None:
        """Close the idle connections; connections released later are closed too."""
        self._most = 0
        _close_all(self._idle)

    def _new(self) -> sqlite3.Connection:
        db = connect(self.path)
        try:
            db.execute("ATTACH ':memory:' AS overlay")
            db.executescript(_OVERLAY_SCRIPT)
        except sqlite3.Error:
            db.close()
            raise
        return db


def _undone(db: sqlite3.Connection) -> bool:
    try:
        db.execute("ROLLBACK")
    except sqlite3.Error:  # no transaction is open: SQLite ended it after an error, so later writes may be committed
        return False
    return True


def _close_all(idle: list[sqlite3.Connection]) -> None:
    while idle:
        idle.pop().close()


_TIMES = range(-62_135_596_800_000, 253_402_300_800_000)
"""The times in the years 1 to 9999, in milliseconds since the epoch."""


class RowChecks:
    """Checks each row of a world once in a process.

    Args:
        resources: The number of resources in the world; the resources are numbered from 1.
    """

    def __init__(self, resources: int) -> None:
        self.resources = resources
        self._sound = bytearray(resources + 1)

    def unchecked(self, rids: Iterable[int]) -> list[int]:
        """Return the given resources that are in the world and not yet checked."""
        sound = self._sound
        return [rid for rid in rids if rid < len(sound) and not sound[rid]]

    def check(self, row: ResourceRow) -> ResourceRow:
        """Return a row of the world after checking it.

        Raises:
            sqlite3.DatabaseError: The row's JSON contradicts its other columns.
        """
        if not self._sound[row.rid]:
            if problem := _problem(row):
                raise sqlite3.DatabaseError(f"{str(row.type)[:64]!r}/{str(row.id)[:64]!r}: {problem}")
            self._sound[row.rid] = 1
        return row


def _problem(row: ResourceRow) -> str | None:
    if not isinstance(row.body, bytes) or len(row.body) > MOST_BODY_BYTES:
        return f"its content is not JSON of up to {MOST_BODY_BYTES:,} bytes"
    try:
        resource = orjson.loads(row.body)
    except ValueError as error:
        return f"its content is not JSON: {error}"
    if not isinstance(resource, dict) or row.type not in RESOURCE_TYPE_SET:
        return "its content is not a resource"
    meta = resource.get("meta")
    if not isinstance(meta, dict):
        return "its content has no meta"
    said = resource.get("resourceType"), resource.get("id"), meta.get("versionId")
    if said != (row.type, row.id, str(row.version)):
        return "its content is a different resource"
    lists = all(isinstance(meta[name], list) for name in ("profile", "security", "tag") if name in meta)
    if not lists or not isinstance(resource.get("text", {}), dict):
        return "its content is not a resource"
    whole = all(type(value) is int for value in (row.version, row.updated, row.deleted))
    if not whole or row.updated not in _TIMES or row.deleted or not isinstance(row.method, str):
        return "its row has values of the wrong type"
    return None
