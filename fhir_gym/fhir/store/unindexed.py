"""Track loaded resources that have no index rows yet.

A start state has resources of many types, and an episode searches only a few types by a few parameters. So the index
rows of a path are written when a query first reads that path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from functools import cache
from typing import TypeAlias

from fhir_gym.fhir.index import IndexRows, index_rows_of, index_spec
from fhir_gym.fhir.store.schema import ResourceRow
from fhir_gym.types import Resource

LoadedResource: TypeAlias = tuple[ResourceRow, Resource]
"""A stored version and the parsed resource."""

_Batch: TypeAlias = tuple[Sequence[tuple[int, Resource]], frozenset[int]]
"""Resources of one type with their rids, and the ids of the paths with missing rows."""


@cache
def _paths(resource_type: str) -> frozenset[int]:
    return frozenset(pid for _, _, pid in index_spec(resource_type).indexed)


class Unindexed:
    """The rows that are missing from an overlay's index tables.

    Attributes:
        missing: Batches by type. Batches never change, so copies of this object share them.
    """

    __slots__ = ("missing",)

    def __init__(self, missing: dict[str, tuple[_Batch, ...]] | None = None) -> None:
        self.missing = missing or {}

    def add(self, versions: Iterable[LoadedResource]) -> None:
        """Mark all index rows of these versions as missing."""
        by_type: dict[str, list[tuple[int, Resource]]] = {}
        for row, resource in versions:
            by_type.setdefault(row.type, []).append((row.rid, resource))
        for resource_type, resources in by_type.items():
            self.missing[resource_type] = (*self.missing.get(resource_type, ()), (resources, _paths(resource_type)))

    def paths(self) -> Set[int]:
        """Return the ids of the paths with missing rows."""
        return {pid for batches in self.missing.values() for _, missing in batches for pid in missing}

    def rows(self, pids: Set[int]) -> IndexRows:
        """Return the missing rows of these paths."""
        found: IndexRows = {}
        for resource_type, batches in self.missing.items():
            for resources, missing in batches:
                if wanted := missing & pids:
                    for table, rows in index_rows_of(resource_type, resources, wanted).items():
                        found.setdefault(table, []).extend(rows)
        return found

    def written(self, pids: Set[int]) -> None:
        """Mark the rows of these paths as written."""
        left = {
            resource_type: tuple((resources, missing - pids) for resources, missing in batches if missing - pids)
            for resource_type, batches in self.missing.items()
        }
        self.missing = {resource_type: batches for resource_type, batches in left.items() if batches}

    def forget(self, row: ResourceRow) -> None:
        """Forget a version that was replaced."""
        if row.type in self.missing:
            self.missing[row.type] = tuple(
                ([one for one in resources if one[0] != row.rid], missing)
                for resources, missing in self.missing[row.type]
            )

    def copy(self) -> Unindexed:
        """Return a copy for a savepoint."""
        return Unindexed(self.missing.copy())
