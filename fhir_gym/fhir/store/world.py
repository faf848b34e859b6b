"""A world: one immutable file of resources, shared by any number of sessions, threads and processes."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fhir_gym.errors import WorldError
from fhir_gym.fhir.store.connections import Connections, connect, unreadable
from fhir_gym.fhir.store.examination import Examination
from fhir_gym.fhir.store.manifest import ContentHash, Manifest
from fhir_gym.fhir.store.opening import read_manifest
from fhir_gym.fhir.store.schema import Row
from fhir_gym.types import Resource

if TYPE_CHECKING:
    from fhir_gym.fhir.session import Session

__all__ = ["World"]


class World:
    """An opened world file.

    Pickles as its path, so that worker processes open the same file. Reading through a world (`read`, `search`,
    `ids`) never sees what any session wrote.

    Args:
        path: The file.
        manifest: What it says of itself.

    Attributes:
        connections: What its sessions reach the file through.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.connections = Connections(path, manifest.total)
        self._local = threading.local()
        self._readers: list[Session] = []

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
        """The name it was built under."""
        return self.manifest.name

    @property
    def now(self) -> datetime:
        """The world's present; the clock of every session starts here."""
        return self.manifest.now

    def session(self, **settings: Any) -> Session:
        """A new session on this world; `settings` are those of `Session`."""
        from fhir_gym.fhir.session import Session  # sessions are built on worlds; the import here closes the circle

        return Session(self, **settings)

    def read(self, resource_type: str, id: str) -> Resource | None:
        """The resource as the world holds it, None if it holds none."""
        return self._reader.read(resource_type, id)

    def search(self, resource_type: str, **params: object) -> list[Resource]:
        """All matches of a search; a list as value repeats the parameter."""
        return self._reader.search(resource_type, **params)

    def ids(self, resource_type: str) -> list[str]:
        """Ids of a type in creation order."""
        with self._failures():
            rows = self._reader.store.db.execute(
                "SELECT id FROM main.resource WHERE type = ? ORDER BY rid LIMIT ?", (resource_type, self.manifest.total)
            )
            return [id for (id,) in rows]

    def holds(self, resource_type: str, id: str) -> bool:
        """Whether there is such a resource."""
        query = "SELECT 1 FROM main.resource WHERE type = ? AND id = ?"
        try:
            return self._reader.store.db.execute(query, (resource_type, id)).fetchone() is not None
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise unreadable(self.path, error) from error

    def sample(self, resource_type: str, most: int) -> list[tuple[str, int]]:
        """Id and time of last update, in milliseconds, of a few resources of a type; quick on a world of any size.

        Args:
            resource_type: The type.
            most: How many at most; they lie evenly spread in creation order, the first and the last among them.
        """
        rows: dict[int, tuple[str, int]] = {}
        query = "SELECT rid, id, updated FROM main.resource INDEXED BY resource_type WHERE type = ?"
        with self._failures():
            db = self._reader.store.db
            last = db.execute(f"{query} ORDER BY rid DESC LIMIT 1", (resource_type,)).fetchone()
            first = db.execute(f"{query} ORDER BY rid LIMIT 1", (resource_type,)).fetchone()
            for step in range(most if last else 0):
                rid = first[0] + (last[0] - first[0]) * step // max(1, most - 1)
                row = db.execute(f"{query} AND rid >= ? ORDER BY rid LIMIT 1", (resource_type, rid)).fetchone()
                rows[row[0]] = row[1:]
        return list(rows.values())

    def resources(self, resource_type: str | None = None) -> Iterator[bytes]:
        """The stored JSON of all resources, or of one type's, in creation order."""
        total = self.manifest.total
        where, values = ("WHERE type = ?", (resource_type, total)) if resource_type else ("", (total,))
        with self._failures(), closing(connect(self.path)) as db:
            for row in map(Row._make, db.execute(f"SELECT * FROM resource {where} ORDER BY rid LIMIT ?", values)):
                yield self.connections.examination.check(row).body

    def verify(self) -> None:
        """Read all of the file and compare it with what was built; takes a while on a large world.

        Raises:
            WorldError: It is damaged, also where a search would not notice.
        """
        with self._failures(), closing(connect(self.path)) as db:
            for (problem,) in db.execute("PRAGMA integrity_check(1)"):
                if problem != "ok":
                    raise WorldError(f"the world {self.path} is damaged: {problem.splitlines()[-1]}")
            found, counts = ContentHash(self.now), Counter[str]()
            examination = Examination(self.manifest.total)
            for row in map(Row._make, db.execute("SELECT * FROM resource ORDER BY rid")):
                examination.check(row)
                found.add(row.type, row.id, row.body)
                counts[row.type] += 1
            if str(found) != self.manifest.content_hash or counts != self.manifest.counts:
                raise WorldError(f"the world {self.path} is damaged: its resources are not those it was built from")

    def close(self) -> None:
        """Close this world's own readers and idle connections; open sessions keep theirs."""
        self.connections.close()
        while self._readers:
            self._readers.pop().close()
        self._local = threading.local()

    @property
    def _reader(self) -> Session:
        session: Session | None = getattr(self._local, "session", None)
        if session is None or self._local.process != os.getpid():  # after a fork, it is the other process's
            session = self._local.session = self.session()
            self._local.process = os.getpid()
            self._readers.append(session)
        return session

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise unreadable(self.path, error) from error

    def __enter__(self) -> Self:
        """For `with World.open(path) as world`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """Pickle by path."""
        return World.open, (str(self.path),)

    def __repr__(self) -> str:
        """Name, size, path."""
        return f"World({self.name!r}, {self.manifest.total} resources, {str(self.path)!r})"
