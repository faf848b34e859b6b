"""Queries on reference rows: the targets of resources, and the resources that refer to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from fhir_gym.fhir.store.schema import ResourceRow
from fhir_gym.fhir.store.store import NOT_REPLACED, Store, marks

_REFERRER = """
WITH RECURSIVE paths(pid) AS (
    SELECT min(pid) FROM {db}.reference
    UNION ALL
    SELECT (SELECT min(pid) FROM {db}.reference WHERE pid > paths.pid) FROM paths WHERE pid IS NOT NULL
)
SELECT min((
    SELECT min(r.rid) FROM {db}.reference r
    WHERE r.pid = paths.pid AND r.target_id = ? AND r.target_type = ? AND r.rid <> ? {current}
)) FROM paths
"""
# One lookup for each path in use, because the table is ordered by path. For a join, SQLite would first read the whole
# table into a Bloom filter.
_REFERRERS = (
    _REFERRER.format(db="overlay", current=""),
    _REFERRER.format(db="main", current="AND NOT EXISTS (SELECT 1 FROM overlay.resource o WHERE o.rid = r.rid)"),
)


def targets(store: Store, resource_type: str, rids: Sequence[int], pids: Sequence[int]) -> Iterable[tuple[str, str]]:
    """Follow the references of these resources at these paths, and return the type and id of each target once."""
    if not pids:
        return ()
    where = f"rid IN ({marks(len(rids))}) AND pid IN ({marks(len(pids))})"
    query, values = f"SELECT target_type, target_id FROM {{}}.reference WHERE {where}", (*rids, *pids)
    if not store.changed(resource_type):
        return dict.fromkeys(store.select(query.format("main"), values))
    references = chain(
        store.select(query.format("main") + NOT_REPLACED, values), store.select(query.format("overlay"), values)
    )
    return dict.fromkeys(references)


def referring(
    store: Store, sources: Iterable[str], pids: Sequence[int], resource_type: str, rids: Sequence[int]
) -> Iterator[tuple[str, int]]:
    """Yield type and rid of the resources that refer to any of the given resources.

    `sources` are the types of the referring resources; the overlay is read only if it contains resources of these
    types.
    """
    if not pids:
        return
    ids = tuple(row.id for row in store.rows(rids))
    where = f"l.pid IN ({marks(len(pids))}) AND l.target_id IN ({marks(len(ids))}) AND l.target_type = ?"
    for db in ("overlay", "main") if any(map(store.changed, sources)) else ("main",):
        hidden = "" if db == "overlay" else " AND l.rid NOT IN (SELECT rid FROM overlay.resource)"
        query = (
            f"SELECT DISTINCT r.type, r.rid FROM {db}.reference l CROSS JOIN {db}.resource r ON r.rid = l.rid "
            f"WHERE {where}{hidden}"
        )
        yield from store.select(query, (*pids, *ids, resource_type))


def first_referrer(store: Store, row: ResourceRow) -> ResourceRow | None:
    """Return the first other resource whose current version refers to this one."""
    store.index_all()
    referrers = [store.db.execute(query, (row.id, row.type, row.rid)).fetchone()[0] for query in _REFERRERS]
    rid = min((rid for rid in referrers if rid is not None), default=None)
    return None if rid is None else store.row(rid)
