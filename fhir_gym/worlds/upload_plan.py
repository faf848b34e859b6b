"""The order in which a server that enforces references accepts the resources of a world."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from fhir_gym.fhir import World, serialization
from fhir_gym.fhir.store.schema import ResourceRow
from fhir_gym.types import Json
from fhir_gym.worlds.batches import Record

# Stored JSON is compact. Quotes inside its strings are escaped, so this matches only members named `reference`.
_REFERENCE = re.compile(rb'"reference":"([A-Z][A-Za-z]*/[A-Za-z0-9.-]+)["/]')

_ROWS = 500  # number of rows to read at once

_Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class UploadStep:
    """Resources that a server accepts after those of the earlier steps, in any order.

    Attributes:
        rids: Numbers of the resources in the world.
        start: Number of different resources in the earlier steps.
        partial: Whether to leave out the references to resources in cycles. The next step has these resources complete.
    """

    rids: _Numbers
    start: int
    partial: bool = False


class UploadPlan:
    """The steps of an upload. Each step refers only to resources of earlier steps, or to resources outside the world.

    Resources in cycles have two steps: first without the references between them, then complete.

    Attributes:
        steps: The steps in order.
        positions: For each number of a resource, the number of resources that are sent before it.
    """

    def __init__(self, world: World) -> None:
        graph = _Graph(world)
        layers, rest = graph.layers()
        core = graph.cyclic(rest)
        self.steps = list(_steps(layers, 0))
        self._core = frozenset[bytes]()
        if len(core):
            start = sum(map(len, layers))
            self.steps += [UploadStep(core, start, partial=True), UploadStep(core, start)]
            self._core = frozenset(_key(row.type, row.id) for row in _rows(world, core))
            last, _ = graph.layers(np.concatenate([*layers, core]))
            self.steps += _steps(last, start + len(core))
        self.positions = np.zeros(world.manifest.total + 1, np.int64)
        for step in self.steps:
            self.positions[step.rids] = np.arange(step.start, step.start + len(step.rids))

    def without_cycles(self, record: Record) -> Record:
        """Return a resource without its references to resources in cycles; a display keeps their place."""
        resource = serialization.loads(record.body)
        todo: list[Json] = [resource]
        while todo:
            node = todo.pop()
            if isinstance(node, list):
                todo.extend(node)
            elif isinstance(node, dict):
                target = node.get("reference")
                if isinstance(target, str) and _hash("/".join(target.split("/")[:2]).encode()) in self._core:
                    del node["reference"]
                    node.setdefault("display", target)
                todo.extend(node.values())
        return record._replace(body=serialization.dumps(resource))


class _Graph:
    """The references between the resources of a world, as arrays: 20 bytes for each resource and each reference."""

    def __init__(self, world: World) -> None:
        self._size = world.manifest.total + 1
        keys, sources, targets = array("Q", [0]), array("I"), array("Q")
        for row in world.scan():
            keys.append(int.from_bytes(_key(row.type, row.id)))
            for target in set(_REFERENCE.findall(row.body)):
                sources.append(row.rid)
                targets.append(int.from_bytes(_hash(target)))
        stored = np.frombuffer(keys, np.uint64)
        order = np.argsort(stored, kind="stable")
        referred = np.frombuffer(targets, np.uint64) if targets else np.zeros(0, np.uint64)
        at = order[np.minimum(np.searchsorted(stored, referred, sorter=order), len(stored) - 1)]
        held = stored[at] == referred
        self._sources = np.frombuffer(sources, np.uint32)[held] if sources else np.zeros(0, np.uint32)
        self._targets = at[held].astype(np.uint32)

    def layers(self, done: _Numbers | None = None) -> tuple[list[_Numbers], _Numbers]:
        """Return layers of resources that refer only to earlier layers, and the resources that are in none.

        Args:
            done: Resources that are there already; None if there are none.
        """
        here = np.zeros(self._size, np.bool_)
        here[0] = True
        if done is not None:
            here[done] = True
        return _peel(self._sources, self._targets, here)

    def cyclic(self, rest: _Numbers) -> _Numbers:
        """Return the resources in cycles, and those between two cycles, among the resources that are in no layer."""
        here = np.ones(self._size, np.bool_)
        here[rest] = False
        return _peel(self._targets, self._sources, here)[1]


def _peel(
    sources: NDArray[np.uint32], targets: NDArray[np.uint32], here: NDArray[np.bool_]
) -> tuple[list[_Numbers], _Numbers]:
    """Take away, again and again, the nodes whose targets are all taken away; `here` marks those that are at first."""
    open_ = ~here[targets] & ~here[sources]
    sources, targets = sources[open_], targets[open_]
    missing = np.bincount(sources, minlength=len(here))
    order = np.argsort(targets, kind="stable")
    sources, targets = sources[order], targets[order]
    layers = []
    layer = np.flatnonzero(~here & (missing == 0))
    while len(layer):
        layers.append(layer)
        here[layer] = True
        begins, ends = np.searchsorted(targets, layer), np.searchsorted(targets, layer, side="right")
        counts = ends - begins
        offsets = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        referring, times = np.unique(sources[np.repeat(begins, counts) + offsets], return_counts=True)
        missing[referring] -= times
        layer = referring[missing[referring] == 0].astype(np.int64)
    return layers, np.flatnonzero(~here)


def _steps(layers: list[_Numbers], start: int) -> Iterator[UploadStep]:
    for layer in layers:
        yield UploadStep(layer, start)
        start += len(layer)


def _rows(world: World, rids: _Numbers) -> Iterator[ResourceRow]:
    for start in range(0, len(rids), _ROWS):
        yield from world.rows(rids[start : start + _ROWS].tolist())


def _key(resource_type: str, id: str) -> bytes:
    return _digest(f"{resource_type}/{id}".encode())


@lru_cache(maxsize=4096)
def _hash(reference: bytes) -> bytes:
    return _digest(reference)


def _digest(reference: bytes) -> bytes:
    return blake2b(reference, digest_size=8).digest()
