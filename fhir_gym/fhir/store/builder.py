"""Build a world file. The file appears only when it is complete."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from fhir_gym.errors import WorldError
from fhir_gym.fhir import index, serialization
from fhir_gym.fhir.clock import instant, milliseconds, moment_of
from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.store.schema import (
    APPLICATION_ID,
    FORMAT,
    MAIN,
    MANIFEST,
    MOST_BODY_BYTES,
    PAGE_BYTES,
    index_statements,
    table_statements,
)
from fhir_gym.fhir.store.update_times import last_update
from fhir_gym.processes import is_running
from fhir_gym.types import Resource

YEARS = range(1900, 2900)
"""Years in which a world's present may lie. The limits keep dates around the present valid too."""

_MAX_ID = 10**15 + 10**12  # new ids follow the world's highest id of at most 15 digits


def _printable(name: str) -> str:
    if not name.isprintable() or len(name) > 1000:
        raise ValueError("a world's name is one line of text")
    return name


def _in_range(now: datetime) -> datetime:
    if now.year not in YEARS:
        raise ValueError(f"a world's present must be in the years {YEARS[0]} to {YEARS[-1]}")
    return now


def _resource_type(name: str) -> str:
    if name not in RESOURCE_TYPE_SET:
        raise ValueError(f"{name!r} is not a resource type of FHIR R4")
    return name


class ContentHash:
    """The hash of a world's content, which identifies the world.

    Args:
        now: The world's present.
        resources: Type, id and body of resources to add immediately, in creation order.
    """

    def __init__(self, now: datetime, resources: Iterable[tuple[str, str, bytes]] = ()) -> None:
        self._digest = hashlib.sha256(now.astimezone(UTC).isoformat(timespec="milliseconds").encode())
        for resource_type, id, body in resources:
            self.add(resource_type, id, body)

    def add(self, resource_type: str, id: str, body: bytes) -> None:
        """Add the next resource."""
        self._digest.update(b"\0%s/%s\0%s" % (resource_type.encode(), id.encode(), body))

    def __str__(self) -> str:
        return self._digest.hexdigest()


class Manifest(BaseModel):
    """The name, origin and content of a world.

    Attributes:
        name: The world's name.
        seed: The generator's seed; None for imported data.
        now: The world's present, at which the clock of every session starts.
        counts: The number of resources of each type, sorted by type.
        content_hash: SHA-256 over type, id and body of every resource in creation order, and `now`.
        next_id: The first id that the server may assign.
        format: The version of the file format.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, AfterValidator(_printable)]
    seed: int | None
    now: Annotated[AwareDatetime, AfterValidator(_in_range)]
    counts: dict[Annotated[str, AfterValidator(_resource_type)], Annotated[int, Field(ge=0, le=_MAX_ID)]]
    content_hash: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    next_id: Annotated[int, Field(ge=1, le=_MAX_ID)]
    format: int

    @property
    def total(self) -> int:
        """The number of resources."""
        return sum(self.counts.values())


_FIRST_ID = 1000  # HAPI's id sequence starts here
_BATCH = 2000


class UnusableResourceError(WorldError):
    """A resource that cannot be stored in a world."""


def check_present(now: datetime) -> None:
    """Check a world's present.

    Raises:
        WorldError: The time has no time zone, or its year is out of range.
    """
    if now.tzinfo is None:
        raise WorldError(f"a world's `now` needs a time zone, not {now.isoformat()}")
    if now.year not in YEARS:
        raise WorldError(f"a world's `now` must be in the years {YEARS[0]} to {YEARS[-1]}, not {now.isoformat()}")


class WorldBuilder:
    """Writes resources into a new world file.

    A context manager. On a clean exit, the file appears at `path` in one step. After an exception, a full disk or a
    kill, there is no file at `path`. Rows are first written to a scratch file and then copied in key order, so that the
    time of a bulk load is linear in the number of rows.

    Args:
        path: The path of the new world.
        name: The world's name.
        seed: The generator's seed; None for imported data.
        now: The world's present, with a time zone.
    """

    def __init__(self, path: Path, *, name: str, seed: int | None, now: datetime) -> None:
        check_present(now)
        if not name.isprintable():
            raise WorldError(f"a world cannot be named {name!r}: a name is one line of text")
        self.path = path
        self._name, self._seed, self._now = name, seed, now.astimezone(UTC)
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._scratch = self._temporary.with_suffix(".scratch")
        self._content = ContentHash(self._now)
        self._counts: Counter[str] = Counter()
        self._rid = 0
        self._highest_id = 0
        self._pending: dict[str, list[tuple[object, ...]]] = {}
        self._manifest: Manifest | None = None

    @property
    def manifest(self) -> Manifest:
        """The finished world's manifest; available after a clean exit."""
        if self._manifest is None:
            raise WorldError(f"the world {self._name!r} is not finished")
        return self._manifest

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._remove()
            self._remove_leftovers()
            self._db = sqlite3.connect(self._temporary, isolation_level=None)
            self._db.execute(f"PRAGMA main.page_size={PAGE_BYTES}")
            self._db.execute("ATTACH ? AS scratch", (str(self._scratch),))
            for db in (MAIN, "scratch"):
                self._db.execute(f"PRAGMA {db}.journal_mode=OFF")
                self._db.execute(f"PRAGMA {db}.synchronous=OFF")
            self._db.execute("BEGIN")
            for statement in table_statements(MAIN):
                self._db.execute(statement)
            for table in index.TABLES:
                self._db.execute(f"CREATE TABLE scratch.{table} AS SELECT * FROM main.{table} WHERE 0")
        except (OSError, sqlite3.Error) as error:
            self._abandon()
            raise WorldError(f"cannot write a world to {self.path}: {error}") from error
        return self

    def add(self, resource: Resource) -> Resource:
        """Add one resource.

        Args:
            resource: The resource, with `resourceType` and `id`. A missing `meta.versionId` becomes 1; a missing
                `meta.lastUpdated` becomes a time in the world's past (`last_update`).

        Returns:
            The resource as stored.

        Raises:
            UnusableResourceError: The resource cannot be stored.
            WorldError: The disk is full. A duplicate raises only when the builder finishes the world.
        """
        kind, ident = resource.get("resourceType"), resource.get("id")
        try:
            stored = serialization.normalise(resource)
        except FhirError as error:
            raise UnusableResourceError(f"{kind}/{ident}: {error.diagnostics}") from error
        if not isinstance(ident, str) or not ident:
            raise UnusableResourceError(f"a {kind} without an id cannot be stored")
        kind = str(stored["resourceType"])
        version, updated = self._stamp(stored)
        body = serialization.dumps(stored)
        if len(body) > MOST_BODY_BYTES:
            raise UnusableResourceError(
                f"{kind}/{ident}: it has {len(body):,} bytes, more than the limit of {MOST_BODY_BYTES:,}"
            )
        self._rid += 1
        rid = self._rid
        try:
            self._queue("resource", (rid, kind, ident, version, updated, 0, "PUT", body))
            for table, rows in index.index_rows(stored, rid).items():
                for row in rows:
                    self._queue(table, row)
        except sqlite3.Error as error:
            raise WorldError(f"cannot write a world to {self.path}: {error}") from error
        self._content.add(kind, ident, body)
        self._counts[kind] += 1
        if ident.isascii() and ident.isdigit() and len(ident) <= 15:
            self._highest_id = max(self._highest_id, int(ident))
        return stored

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abandon()
            return
        try:
            self._finish()
        except sqlite3.IntegrityError as failure:
            twins = self._duplicates()
            self._abandon()
            raise WorldError(f"two resources share a type and an id: {twins}") from failure
        except (OSError, sqlite3.Error) as failure:
            self._abandon()
            raise WorldError(f"cannot write a world to {self.path}: {failure}") from failure

    def _stamp(self, resource: Resource) -> tuple[int, int]:
        """Fill in meta.versionId and meta.lastUpdated; return the version and the time in milliseconds."""
        meta = resource.setdefault("meta", {})
        version = str(meta.get("versionId", ""))
        number = int(version) if version.isascii() and version.isdigit() and 0 < len(version) < 10 else 1
        updated = moment_of(meta.get("lastUpdated")) or last_update(resource, self._now)
        resource["meta"] = {
            **{k: v for k, v in meta.items() if k in ("id", "extension")},
            "versionId": str(number),
            "lastUpdated": instant(updated),
            **{k: v for k, v in meta.items() if k not in ("id", "extension", "versionId", "lastUpdated")},
        }
        ordered = {k: resource[k] for k in ("resourceType", "id", "meta")}
        rest = {k: v for k, v in resource.items() if k not in ordered}
        resource.clear()
        resource.update(ordered | rest)
        return number, milliseconds(updated)

    def _queue(self, table: str, row: tuple[object, ...]) -> None:
        pending = self._pending.setdefault(table, [])
        pending.append(row)
        if len(pending) >= _BATCH:
            self._flush(table)

    def _flush(self, table: str) -> None:
        rows = self._pending.get(table)
        if rows:
            insert = _RESOURCE_INSERT if table == "resource" else index.INSERT[table].replace("{db}", "scratch")
            self._db.executemany(insert, rows)
            rows.clear()

    def _finish(self) -> None:
        for table in list(self._pending):
            self._flush(table)
        for table in index.TABLES:
            columns = self._db.execute(f"PRAGMA main.table_info({table})").fetchall()
            keys = [c[1] for c in sorted((c for c in columns if c[5]), key=lambda c: int(c[5]))]
            order = f" ORDER BY {', '.join(keys)}" if keys else ""
            self._db.execute(f"INSERT OR IGNORE INTO main.{table} SELECT * FROM scratch.{table}{order}")
            self._db.execute(f"DROP TABLE scratch.{table}")
        for statement in index_statements(MAIN):
            self._db.execute(statement)
        manifest = Manifest(
            name=self._name,
            seed=self._seed,
            now=self._now,
            counts=dict(sorted(self._counts.items())),
            content_hash=str(self._content),
            next_id=max(_FIRST_ID + self._rid, self._highest_id + 1),
            format=FORMAT,
        )
        self._db.execute(MANIFEST)
        self._db.execute("INSERT INTO main.manifest VALUES (?)", (manifest.model_dump_json(),))
        self._db.execute("COMMIT")
        self._db.execute(f"PRAGMA main.application_id={APPLICATION_ID}")
        self._db.execute(f"PRAGMA main.user_version={FORMAT}")
        self._db.execute("PRAGMA main.analysis_limit=1000")
        self._db.execute("ANALYZE main")
        self._db.execute("VACUUM main")  # saves a tenth of the size: trees filled in order have free space
        self._db.close()
        with self._temporary.open("rb+") as file:
            os.fsync(file.fileno())
        self._temporary.replace(self.path)
        self._scratch.unlink(missing_ok=True)
        self._manifest = manifest

    def _duplicates(self) -> str:
        rows = self._db.execute("SELECT type, id FROM main.resource GROUP BY type, id HAVING count(*) > 1 LIMIT 5")
        return ", ".join(f"{kind}/{ident}" for kind, ident in rows)

    def _abandon(self) -> None:
        if db := getattr(self, "_db", None):
            db.close()
        self._remove()

    def _remove_leftovers(self) -> None:
        """Delete temporary files of builders that were killed."""
        for left in self.path.parent.glob(f".{escape(self.path.name)}.*"):
            *_, process, ending = left.name.split(".")
            if ending in ("partial", "scratch") and process.isdecimal() and not is_running(int(process)):
                left.unlink(missing_ok=True)

    def _remove(self) -> None:
        for file in (self._temporary, self._scratch):
            with suppress(NotADirectoryError):  # the folder is a file, so there is nothing to remove
                file.unlink(missing_ok=True)


_RESOURCE_INSERT = "INSERT INTO main.resource VALUES (?,?,?,?,?,?,?,?)"
