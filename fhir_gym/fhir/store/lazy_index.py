"""Track loaded resources that have no index rows yet.

A start state has resources of many types, and an episode searches only a few types by a few parameters. So the index
rows of a path are written when a query first reads that path.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from functools import cache
from typing import TypeAlias

from fhir_gym.fhir import serialization
from fhir_gym.fhir.index import RID_COLUMN, IndexRows, index_rows_of, index_spec
from fhir_gym.fhir.store.schema import ResourceRow
from fhir_gym.types import Resource

_FEW = 100
"""Batches of up to this size are merged with the next one, if no query has needed their rows yet."""

LoadedResource: TypeAlias = tuple[ResourceRow, Resource | bytes]
"""A stored version and the resource, parsed or as JSON text."""


@cache
def _paths(resource_type: str) -> frozenset[int]:
    return frozenset(pid for _, _, pid in index_spec(resource_type).indexed)


class Batch:
    """Resources of one type that were loaded together. Copies of `Unindexed` share a batch.

    Args:
        resources: Pairs of row id and resource. A resource may be JSON text, which is parsed when needed.
        known: The pickled index rows computed so far, by path id. The batch adds those that it computes.
    """

    __slots__ = ("_computed", "_removed", "_resources", "_rids", "_type", "known")

    def __init__(
        self,
        resource_type: str,
        resources: Sequence[tuple[int, Resource | bytes]],
        bodies: dict[int, bytes] | None = None,
    ) -> None:
        self._type, self._resources, self.known = resource_type, resources, bodies
        self._rids = frozenset(rid for rid, _ in resources)
        self._removed: frozenset[int] = frozenset()
        self._computed: dict[int, IndexRows] = {}

    def __len__(self) -> int:
        return len(self._resources) - len(self._removed)

    def index_rows(self, pids: frozenset[int]) -> IndexRows:
        """Return the index rows of these paths by table. They are computed once, also if a rollback removes them."""
        if unknown := pids.difference(self._computed):
            self._compute(unknown)
        index_rows: IndexRows = {}
        for pid in sorted(pids):
            for table, rows in self._computed[pid].items():
                index_rows.setdefault(table, []).extend(rows)
        if self._removed:
            for table, rows in index_rows.items():
                index_rows[table] = [row for row in rows if row[RID_COLUMN[table]] not in self._removed]
        return index_rows

    def _compute(self, pids: frozenset[int]) -> None:
        bodies = {} if self.known is None else self.known
        if unknown := pids.difference(bodies):
            by_path: dict[int, IndexRows] = {pid: {} for pid in unknown}
            parsed = (
                (rid, serialization.loads(resource) if isinstance(resource, bytes) else resource)
                for rid, resource in self._resources
            )
            for table, rows in index_rows_of(self._type, parsed, unknown).items():
                for row in rows:
                    by_path[row[0]].setdefault(table, []).append(row)
            self._computed |= by_path
            if self.known is not None:
                bodies.update((pid, pickle.dumps(rows, pickle.HIGHEST_PROTOCOL)) for pid, rows in by_path.items())
        self._computed |= {pid: pickle.loads(bodies[pid]) for pid in pids - unknown}

    def resources(self) -> Iterator[tuple[int, Resource | bytes]]:
        """Yield the rids and resources, without those that were removed."""
        return (resource for resource in self._resources if resource[0] not in self._removed)

    def without(self, rid: int) -> Batch:
        """Return the batch without one resource."""
        if rid not in self._rids:
            return self
        remaining = copy(self)
        remaining._removed = self._removed | {rid}
        return remaining


class Unindexed:
    """The rows that are missing from an overlay's index tables.

    Attributes:
        missing: By type, the batches and the ids of the paths whose rows are missing.
    """

    __slots__ = ("missing",)

    def __init__(self, missing: dict[str, tuple[tuple[Batch, frozenset[int]], ...]] | None = None) -> None:
        self.missing = missing or {}

    def add(self, versions: Iterable[LoadedResource]) -> None:
        """Mark all index rows of these versions as missing."""
        by_type: dict[str, list[tuple[int, Resource | bytes]]] = {}
        for row, resource in versions:
            by_type.setdefault(row.type, []).append((row.rid, resource))
        for resource_type, resources in by_type.items():
            *others, last = self.missing.get(resource_type, (None,))
            if last is not None and len(last[0]) <= _FEW and last[1] == _paths(resource_type):
                self.missing[resource_type] = tuple(others)
                resources = [*last[0].resources(), *resources]
            self.add_batch(resource_type, Batch(resource_type, resources))

    def add_batch(self, resource_type: str, batch: Batch) -> None:
        """Mark all index rows of a batch as missing."""
        self.missing[resource_type] = (*self.missing.get(resource_type, ()), (batch, _paths(resource_type)))

    def remember(self, index_rows: Mapping[str, dict[int, bytes]], counts: Mapping[str, int]) -> None:
        """Let a batch that contains all resources of its type add its index rows to `index_rows`.

        Args:
            index_rows: A mapping by type and path id.
            counts: Number of resources by type.
        """
        for resource_type, batches in self.missing.items():
            batch = batches[0][0]
            if len(batch) == counts[resource_type]:
                batch.known = index_rows[resource_type]

    def __len__(self) -> int:
        return sum(len(batch) for batches in self.missing.values() for batch, _ in batches)

    def paths(self) -> Set[int]:
        """Return the ids of the paths with missing rows."""
        return {pid for batches in self.missing.values() for _, missing in batches for pid in missing}

    def rows(self, pids: Set[int]) -> IndexRows:
        """Return the missing rows of these paths."""
        rows_by_table: IndexRows = {}
        for batches in self.missing.values():
            for batch, missing in batches:
                if requested := missing & pids:
                    for table, rows in batch.index_rows(requested).items():
                        rows_by_table.setdefault(table, []).extend(rows)
        return rows_by_table

    def written(self, pids: Set[int]) -> None:
        """Mark the rows of these paths as written."""
        left = {
            resource_type: tuple((batch, missing - pids) for batch, missing in batches if missing - pids)
            for resource_type, batches in self.missing.items()
        }
        self.missing = {resource_type: batches for resource_type, batches in left.items() if batches}

    def forget(self, resource_type: str, rid: int) -> None:
        """Forget a version that was replaced."""
        if resource_type in self.missing:
            batches = ((batch.without(rid), missing) for batch, missing in self.missing.pop(resource_type))
            if left := tuple((batch, missing) for batch, missing in batches if len(batch)):
                self.missing[resource_type] = left

    def copy(self) -> Unindexed:
        """Return a copy for a savepoint."""
        return Unindexed(self.missing.copy())
