"""Check a world's resources when they are first read, because the file may come from an untrusted source."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import orjson

from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET
from fhir_gym.fhir.store.schema import MOST_BODY_BYTES, ResourceRow

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
