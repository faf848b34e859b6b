"""Divide resources into batches by their references, so that they can be written or deleted in several requests."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from fhir_gym.fhir.interactions.references import find_references
from fhir_gym.types import Resource


def batches_by_reference(resources: Sequence[Resource], size: int) -> list[list[Resource]]:
    """Divide resources so that each one is in the same batch as those to which it refers, or in a later batch.

    Args:
        resources: The resources.
        size: Maximum size of a batch; only resources whose references form a larger cycle make a larger batch.
    """
    if len(resources) <= size:
        return [list(resources)] if resources else []
    found: list[list[Resource]] = [[]]
    for group in _groups({f"{one['resourceType']}/{one['id']}": one for one in resources}):
        if found[-1] and len(found[-1]) + len(group) > size:
            found.append([])
        found[-1] += group
    return found


def _groups(by_key: dict[str, Resource]) -> list[list[Resource]]:
    """Return the resources in the order of their references; those in a cycle share a group."""
    leader = {key: key for key in by_key}
    targets = {key: [found.value["reference"] for found in find_references(one)] for key, one in by_key.items()}
    while True:
        graph: dict[str, set[str]] = {one: set() for one in leader.values()}
        for key, referred in targets.items():
            graph[leader[key]] |= {leader[to] for to in referred if to in leader and leader[to] != leader[key]}
        try:
            order = [*TopologicalSorter(graph).static_order()]
            break
        except CycleError as error:
            cycle = set(error.args[1])
            first = min(cycle)
            leader = {key: first if one in cycle else one for key, one in leader.items()}
    groups: dict[str, list[Resource]] = {one: [] for one in order}
    for key, one in by_key.items():
        groups[leader[key]].append(one)
    return [*groups.values()]
