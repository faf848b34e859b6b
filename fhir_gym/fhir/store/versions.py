"""Read the versions of resources: histories, and the changes since a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from typing_extensions import override

from fhir_gym.fhir.store.schema import ResourceRow
from fhir_gym.fhir.store.store import COLUMNS, Store

_STEPS_PER_VERSION = 100
_SCAN = 5  # number of SQLite steps of a table scan that take as long as one step of a search


class _Versions(Sequence[ResourceRow]):
    """Versions that are read one by one, because together they may be larger than memory.

    Args:
        keys: For each version, its number in the overlay's log (0 for the world's version) and its rid.
    """

    def __init__(self, store: Store, keys: list[tuple[int, int]]) -> None:
        self._store, self._keys = store, keys

    @override
    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, place: int) -> ResourceRow: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[ResourceRow]: ...

    @override
    def __getitem__(self, place: int | slice) -> ResourceRow | Sequence[ResourceRow]:
        if isinstance(place, slice):
            return _Versions(self._store, self._keys[place])
        seq, rid = self._keys[place]
        self._store.spend(_STEPS_PER_VERSION)
        if not seq:
            self._store.check((rid,))
            return _rows(self._store, f"SELECT {COLUMNS} FROM main.resource WHERE rid = ?", rid)[0]
        return _rows(self._store, f"SELECT {COLUMNS} FROM overlay.log WHERE rid = ? AND seq = ?", rid, seq)[0]


def versions(
    store: Store, rid: int, *, since: int | None = None, until: int | None = None, current: bool = False
) -> Sequence[ResourceRow]:
    """Return the versions of one resource, newest first.

    A version changed by `Store.amend` appears once, in its last form.

    Args:
        store: The store.
        rid: The resource.
        since: The earliest time of a version, in milliseconds since the epoch.
        until: The latest time of a version.
        current: Whether to include the version that was current at `since`.
    """
    both = (
        "SELECT version, seq, updated FROM overlay.log WHERE rid = ? UNION ALL "
        "SELECT version, 0, updated FROM main.resource WHERE rid = ? ORDER BY seq DESC"
    )
    newest: dict[int, tuple[int, int]] = {}
    for version, seq, updated in store.db.execute(both, (rid, rid)):
        newest.setdefault(version, (seq, updated))
    if since is not None and current:
        since = max((updated for _, updated in newest.values() if updated <= since), default=since)
    return _Versions(
        store,
        [
            (seq, rid)
            for seq, updated in newest.values()
            if (since is None or updated >= since) and (until is None or updated <= until)
        ],
    )


def history(
    store: Store,
    resource_type: str | None,
    *,
    limit: int,
    offset: int = 0,
    since: int | None = None,
    until: int | None = None,
) -> Sequence[ResourceRow]:
    """Return versions of a type, or of all types, newest first; times are in milliseconds since the epoch."""
    where, values = _filter(resource_type, since, until)
    both = (
        f"SELECT updated, seq, rid FROM overlay.log {where} UNION ALL "
        f"SELECT updated, 0 AS seq, rid FROM main.resource {where}"
    )
    order = "ORDER BY updated DESC, seq DESC, rid DESC"
    with store.at_rate(_SCAN):
        keys = store.db.execute(f"{both} {order} LIMIT ? OFFSET ?", (*values, *values, limit, offset)).fetchall()
    return _Versions(store, [(seq, rid) for _, seq, rid in keys])


def history_total(store: Store, resource_type: str | None) -> int:
    """Return the number of versions in the whole history of a type, or of all types."""
    where, values = _filter(resource_type, None, None)
    (written,) = store.db.execute(f"SELECT count(*) FROM overlay.log {where}", values).fetchone()
    if resource_type is None:
        return store.checks.resources + int(written)
    (loaded,) = store.db.execute(f"SELECT count(*) FROM main.resource {where}", values).fetchone()
    return int(written) + int(loaded)


def written_since(store: Store, seq: int) -> list[tuple[ResourceRow | None, list[ResourceRow]]]:
    """Return each resource written after the write number `seq`: its version at `seq`, and all versions since.

    Resources are in the order of their first write. The version at `seq` is None if the resource did not exist then.
    """
    written: dict[int, list[ResourceRow]] = {}
    for row in _rows(store, f"SELECT {COLUMNS} FROM overlay.log WHERE seq > ? ORDER BY seq", seq):
        written.setdefault(row.rid, []).append(row)
    return [(_before(store, rid, seq), rows) for rid, rows in written.items()]


def _before(store: Store, rid: int, seq: int) -> ResourceRow | None:
    store.check((rid,))
    earlier = f"SELECT {COLUMNS} FROM overlay.log WHERE rid = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
    rows = _rows(store, earlier, rid, seq) or _rows(store, f"SELECT {COLUMNS} FROM main.resource WHERE rid = ?", rid)
    return rows[0] if rows and not rows[0].deleted else None


def _rows(store: Store, query: str, *values: int) -> list[ResourceRow]:
    return [ResourceRow(*row) for row in store.db.execute(query, values)]


def _filter(resource_type: str | None, since: int | None, until: int | None) -> tuple[str, tuple[str | int, ...]]:
    tests = [("type = ?", resource_type), ("updated >= ?", since), ("updated <= ?", until)]
    asked = [(test, value) for test, value in tests if value is not None]
    where = "WHERE " + " AND ".join(test for test, _ in asked) if asked else ""
    return where, tuple(value for _, value in asked if value is not None)
