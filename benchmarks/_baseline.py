"""Baseline for the server benchmarks: one read and two searches that use only hand-written SQL and orjson."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

import orjson

from fhir_gym.fhir.index import index_spec

__all__ = ["Baseline"]

_BASE = "http://localhost:8080/fhir"
_READ = "SELECT body FROM resource WHERE type = ? AND id = ?"
_SEARCH = """
SELECT r.id, r.body FROM reference p
JOIN token c ON c.rid = p.rid
JOIN resource r ON r.rid = p.rid
WHERE p.pid = ? AND p.target_type = 'Patient' AND p.target_id = ? AND c.pid = ? AND c.value = ? AND r.deleted = 0
ORDER BY r.rid LIMIT ?
"""
_SEARCH_SORTED = """
SELECT r.id, r.body FROM reference p
JOIN token c ON c.rid = p.rid
JOIN date d ON d.rid = p.rid
JOIN resource r ON r.rid = p.rid
WHERE p.pid = ? AND p.target_type = 'Patient' AND p.target_id = ? AND c.pid = ? AND c.value = ? AND r.deleted = 0
AND d.pid = ? AND d.high >= ?
ORDER BY d.low DESC, r.rid LIMIT ?
"""


class Baseline:
    """Queries on a world file.

    Args:
        path: The world file.
    """

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True, isolation_level=None)
        self._db.execute(f"PRAGMA mmap_size={1 << 40}")
        fields = index_spec("Observation").fields
        self._patient, self._code, self._date = (fields[name].pids[0] for name in ("patient", "code", "date"))

    def read(self, resource_type: str, id: str) -> str:
        """Look up, parse and serialise one resource."""
        (body,) = self._db.execute(_READ, (resource_type, id)).fetchone()
        return orjson.dumps(orjson.loads(body)).decode()

    def search(self, patient: str, code: str, count: int) -> str:
        """Find a patient's Observations with one code."""
        values = (self._patient, patient, self._code, code, count)
        return _bundle(self._db.execute(_SEARCH, values).fetchall())

    def search_sorted(self, patient: str, code: str, since: int, count: int) -> str:
        """Find a patient's Observations with one code since a time (milliseconds since the epoch), newest first."""
        values = (self._patient, patient, self._code, code, self._date, since, count)
        return _bundle(self._db.execute(_SEARCH_SORTED, values).fetchall())

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def _bundle(rows: list[tuple[str, bytes]]) -> str:
    entries = [
        {"fullUrl": f"{_BASE}/Observation/{id}", "resource": orjson.loads(body), "search": {"mode": "match"}}
        for id, body in rows
    ]
    return orjson.dumps(
        {"resourceType": "Bundle", "type": "searchset", "total": len(entries), "entry": entries}
    ).decode()
