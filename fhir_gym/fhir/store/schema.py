"""The tables of a world file and of the overlay above it.

Both schemas have the table `resource` and the index tables of `fhir_gym.fhir.index`. Only the overlay has the table
`version` with replaced versions and the view `log` with all versions.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from fhir_gym.fhir import index, serialization
from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET
from fhir_gym.types import Resource

APPLICATION_ID = 0x46475931
"""SQLite's application id of a world file ("FGY1")."""

FORMAT = 2
"""Version of the file layout; a world of another format is refused."""

PAGE_BYTES = 16_384
"""Page size of a world file. Resources have about 1 KB, and smaller pages would waste more space on them."""

MOST_BODY_BYTES = 16 * 1024 * 1024
"""Maximum size of one resource in a world file."""

MANIFEST = "CREATE TABLE main.manifest(body TEXT NOT NULL)"
"""The table with the manifest; an overlay does not have this table."""

MAIN = "main"
OVERLAY = "overlay"

_RESOURCE = """
CREATE TABLE {db}.resource(
    rid INTEGER PRIMARY KEY,
    type TEXT NOT NULL,
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    method TEXT NOT NULL,
    body BLOB NOT NULL{seq}
);
CREATE UNIQUE INDEX {db}.resource_id ON resource(type, id);
"""

_WHOLE_TYPES = """
CREATE INDEX {db}.resource_type ON resource(type);
CREATE INDEX {db}.resource_updated ON resource(type, updated);
"""
"""Indexes for reading a whole type. Only a world has them: an overlay is small, and each index slows writes down."""

_LOG = """
CREATE TABLE overlay.version(
    seq INTEGER PRIMARY KEY,
    rid INTEGER NOT NULL,
    type TEXT NOT NULL,
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    method TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX overlay.version_rid ON version(rid);
CREATE VIEW overlay.log AS
SELECT rid, type, id, version, updated, deleted, method, body, seq FROM resource UNION ALL
SELECT rid, type, id, version, updated, deleted, method, body, seq FROM version;
"""
"""All versions that a session wrote, current or replaced, numbered by `seq`."""


class ResourceRow(NamedTuple):
    """A stored version of a resource; the fields are in the order of the columns.

    Attributes:
        rid: Number of the resource in creation order; all its versions have the same number.
        id: Logical id.
        version: Version number.
        updated: Milliseconds since the epoch.
        deleted: 1 if this version is a deletion.
        method: HTTP method that made this version.
        body: Compact JSON with `meta`; empty for a deletion.
    """

    rid: int
    type: str
    id: str
    version: int
    updated: int
    deleted: int
    method: str
    body: bytes


def stored(body: bytes) -> Resource:
    """Parse a stored resource.

    Raises:
        sqlite3.DatabaseError: The JSON is not a resource: the file is damaged in a way that SQLite does not detect.
    """
    try:
        resource: Resource = serialization.loads(body)
    except ValueError as error:
        raise sqlite3.DatabaseError(f"a stored resource is not JSON: {error}") from error
    if not isinstance(resource, dict) or resource.get("resourceType") not in RESOURCE_TYPE_SET:
        raise sqlite3.DatabaseError("a stored resource has no type")
    return resource


def _statements(script: str, db: str) -> list[str]:
    script = script.replace("{db}", db).replace("{seq}", ",\n    seq INTEGER NOT NULL" if db == OVERLAY else "")
    return [s.strip() for s in script.split(";") if s.strip()]


def table_statements(db: str) -> list[str]:
    """Return the CREATE TABLE statements of a schema, without indexes, because a bulk load creates these last."""
    return [s for s in _statements(_RESOURCE + index.SCHEMA, db) if s.upper().startswith("CREATE TABLE")]


def index_statements(db: str) -> list[str]:
    """Return the CREATE INDEX statements of a schema."""
    script = _RESOURCE + (_WHOLE_TYPES if db == MAIN else "") + index.SCHEMA
    return [s for s in _statements(script, db) if not s.upper().startswith("CREATE TABLE")]


def overlay_script() -> str:
    """Return the statements that create an overlay."""
    return ";\n".join([*table_statements(OVERLAY), *index_statements(OVERLAY), *_statements(_LOG, OVERLAY)]) + ";"
