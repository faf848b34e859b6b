"""Upload a world to a FHIR server, in an order that a server with referential integrity accepts."""

from __future__ import annotations

import json
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b, sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fhir_gym.errors import WorldError
from fhir_gym.fhir import Credentials, World, serialization
from fhir_gym.fhir.adapters.server_lock import ServerLock
from fhir_gym.fhir.store.schema import ResourceRow
from fhir_gym.types import Json
from fhir_gym.worlds.batches import BatchClient, Record, batches
from fhir_gym.worlds.cache import cache_dir
from fhir_gym.worlds.comparing import compare_with, first_difference
from fhir_gym.worlds.loading import Progress

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


_SHOWN = 5


@dataclass(frozen=True)
class UploadReport:
    """The result of an upload.

    Attributes:
        world: Name of the world.
        server: Base URL of the server.
        resources: Number of resources in the world; the server has all of them, with equal content.
        held: Number of resources that the server had before, from an interrupted upload for example.
        requests: Number of HTTP requests, including those of the comparison at the end.
    """

    world: str
    server: str
    resources: int
    held: int
    requests: int


def upload(
    world: World,
    url: str,
    *,
    add: bool = False,
    credentials: Credentials | None = None,
    progress: Progress | None = None,
) -> UploadReport:
    """Upload the resources of a world to a FHIR server, under the world's ids, and compare them afterwards.

    Resources are sent in an order that a server with referential integrity accepts. After an error or a crash, the same
    call resumes: it reads from the server what has arrived and sends the rest.

    Args:
        world: The world.
        url: Base URL of the server, such as `http://localhost:8080/fhir`.
        add: Whether the server may have other resources of the world's types. They stay, except that resources with
            the same type and id are replaced.
        credentials: Headers and certificate authority; None if the server needs no credentials.
        progress: Called with the number of processed resources and the total. If the server has resources of the
            world's types, all resources are first read, then sent, then compared; otherwise they are sent and compared.

    Raises:
        WorldError: The server is not an R4 server, has other resources, refuses a resource, fails for more than half a
            minute, or has different content after the upload.
        InfraError: An environment, a run or another upload on this machine uses the server.
    """
    client = BatchClient(url, credentials=credentials)
    try:
        with ServerLock(client.base):
            journal = upload_journal(world, client.base, client.name)
            return _Upload(client, world, journal, progress).run(add)
    finally:
        client.close()


class _Upload:
    """One run of an upload.

    Args:
        client: Client of the server.
        journal: The record of earlier runs.
        progress: Called with the number of processed resources and the total.
    """

    def __init__(self, client: BatchClient, world: World, journal: UploadJournal, progress: Progress | None) -> None:
        self._client, self._world, self._journal = client, world, journal
        self._progress = progress
        self._total = world.manifest.total
        self._held = bytearray(self._total + 1)  # 1 for a resource that the server has with equal content

    def run(self, add: bool) -> UploadReport:
        """Upload and compare."""
        names = list(self._world.manifest.counts)
        self._client.check_types(names)
        totals = self._client.totals(names)
        plan = UploadPlan(self._world)
        others = self._survey(plan, totals) if any(totals.values()) else []
        if others and not add:
            self._forget_if_unused()
            raise WorldError(
                f"{self._client.base} has other resources of the world's types: {'; '.join(others[:_SHOWN])}. To keep "
                "them and add the world, pass --add (add=True in Python)"
            )
        held = sum(self._held)
        try:
            self._send(plan)
        except WorldError:
            self._forget_if_unused()
            raise
        comparison = compare_with(self._client, self._world, extra=not add, most=_SHOWN, progress=self._progress)
        if not comparison.equal:
            first = comparison.differences[0]
            told = ", ".join(f"{number:,} {kind}" for kind, number in comparison.counts.items() if number)
            raise WorldError(
                f"after the upload, {self._client.base} differs from the world {self._world.name}: {told}, such as "
                f"{first.resource}{' at ' + first.path if first.path else ''}; see `fhir-gym worlds compare`"
            )
        self._journal.remove()
        return UploadReport(self._world.name, self._client.base, self._total, held, self._client.requests)

    def _survey(self, plan: UploadPlan, totals: Mapping[str, int]) -> list[str]:
        """Note which resources the server has, and return descriptions of those that this upload did not write."""
        present, different = Counter[str](), list[str]()
        for group in batches(self._world, range(1, self._total + 1)):
            some = [(rid, record) for rid, record in group if totals[record.type]]
            answers = self._client.read_all([record for _, record in some])
            for (rid, record), stored in zip(some, answers, strict=True):
                if stored is None:
                    continue
                present[record.type] += 1
                path = first_difference(self._client, record, stored)
                if path is None:
                    self._held[rid] = 1
                elif plan.positions[rid] >= self._journal.sent:
                    different.append(f"{record.url} differs at {path}")
            if self._progress:
                self._progress(group[-1][0], self._total)
        others = [f"{totals[name] - present[name]:,} of {name}" for name in totals if totals[name] > present[name]]
        more = [f"and {len(different) - 1:,} more that differ"] if len(different) > 1 else []
        return [*others[: _SHOWN - 2], *different[:1], *more]

    def _send(self, plan: UploadPlan) -> None:
        """Send the resources that the server does not have."""
        sent = sum(self._held)
        for step in plan.steps:
            position = step.start
            for group in batches(self._world, step.rids):
                position += len(group)
                some = [record for rid, record in group if not self._held[rid]]
                if not some:
                    continue
                self._journal.note(position)
                self._client.put_all([plan.without_cycles(record) for record in some] if step.partial else some)
                sent += 0 if step.partial else len(some)
                if self._progress:
                    self._progress(sent, self._total)

    def _forget_if_unused(self) -> None:
        """Delete the journal of an upload that has sent nothing."""
        if not self._journal.sent:
            self._journal.remove()


class UploadJournal:
    """The record of the upload of one world to one server.

    Args:
        path: The file.
        head: The first line, which identifies the upload.

    Attributes:
        sent: Number of resources, in the order of the plan, that may have been sent.
    """

    def __init__(self, path: Path, head: dict[str, str]) -> None:
        self._path = path
        try:
            self.sent = self._read(head)
        except (OSError, ValueError, TypeError) as error:
            raise self._unusable(error) from error

    def note(self, sent: int) -> None:
        """Note that the resources before this position of the plan are about to be sent."""
        if sent > self.sent:
            self._write({"sent": sent})
            self.sent = sent

    def remove(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)

    def _read(self, head: dict[str, str]) -> int:
        text = self._path.read_bytes() if self._path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]  # drop an incomplete last line
        if whole != text:
            os.truncate(self._path, len(whole))
        lines = [json.loads(line) for line in whole.splitlines()]
        if not lines:
            self._write(head)
        elif lines[0] != head:
            raise ValueError("it belongs to another upload; delete it")
        return max((int(line["sent"]) for line in lines[1:]), default=0)

    def _write(self, line: dict[str, str] | dict[str, int]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> WorldError:
        reason = error.strerror if isinstance(error, OSError) else error
        return WorldError(f"cannot use the journal {self._path}: {reason or error}")


def upload_journal(world: World, server: str, name: str) -> UploadJournal:
    """Open the journal of an upload; the caller holds the server's lock.

    Args:
        world: The world.
        server: Base URL of the server.
        name: The server's name in file names.
    """
    content = world.manifest.content_hash
    key = sha256(f"{server} {content}".encode()).hexdigest()[:16]
    path = cache_dir() / "uploads" / f"{name}-{key}.jsonl"
    return UploadJournal(path, {"server": server, "content_hash": content})
