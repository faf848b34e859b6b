"""Upload a world to a FHIR server."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fhir_gym.errors import WorldError
from fhir_gym.fhir import Credentials, World
from fhir_gym.fhir.adapters.server_lock import ServerLock
from fhir_gym.worlds.batches import BatchClient, batches
from fhir_gym.worlds.cache import cache_dir
from fhir_gym.worlds.comparing import compare_with, first_difference
from fhir_gym.worlds.loading import Progress
from fhir_gym.worlds.upload_plan import UploadPlan

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
