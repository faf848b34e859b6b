"""Download all resources of a FHIR server."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from fhir_gym.arguments import require_name
from fhir_gym.errors import WorldError
from fhir_gym.fhir import serialization
from fhir_gym.fhir.definitions import RESOURCE_TYPES
from fhir_gym.printable import one_line
from fhir_gym.types import Json, Resource
from fhir_gym.worlds.bundles import rewrite_references
from fhir_gym.worlds.fhir_client import ExpiredError, FhirClient, LinkError, Page
from fhir_gym.worlds.files import SourceRecord, read_lines
from fhir_gym.worlds.import_scan import ImportScan
from fhir_gym.worlds.loading import Progress

_RESTARTS = 3  # maximum number of searches per type and run
_VAIN_PAGES = 10  # number of consecutive pages without a new resource after which paging is regarded as endless
_UNCOUNTED = 10_000_000  # maximum resources of a type if the server reports no total


class Download:
    """A download of a server's resources; it resumes an interrupted download from the same server.

    Args:
        client: Client of the server.
        folder: Folder of the download journal.
        types: Resource types; None for all types the server lists.
        page_size: Requested page size (`_count`).
        progress: Called with the number of fetched resources and the expected total.

    Raises:
        UnknownNameError: A resource type does not exist.
        WorldError: The server is unreachable or not an R4 server.
    """

    def __init__(
        self, client: FhirClient, folder: Path, types: Sequence[str] | None, page_size: int, progress: Progress | None
    ) -> None:
        for name in types or ():
            require_name("resource type", name, RESOURCE_TYPES)
        told = client.types()
        self.client, self.page_size, self.progress = client, page_size, progress
        self.types = sorted(set(told if types is None else types) & set(RESOURCE_TYPES))
        self.unknown = sorted(set(told) - set(RESOURCE_TYPES)) if types is None else []
        self.unverified: list[str] = []
        self._expected: dict[str, int | None] = {}
        self.journal = DownloadJournal(folder, client.base)

    def run(self) -> None:
        """Fetch all missing pages."""
        self._expected = {name: self._count(name) for name in self.types}
        for name, count in self._expected.items():
            if count != 0 or self.journal.state(name):
                self._fetch(name)

    def records(self) -> Iterator[SourceRecord]:
        """Yield the fetched resources by type, with absolute references to the server made relative."""
        relative = partial(_relative, self.client.base + "/")
        for name in self.types:
            if self.journal.state(name) and self.journal.file(name).exists():
                for record in read_lines(self.journal.file(name), f"{self.client.base}/{name}"):
                    rewrite_references(record.value, relative)
                    yield record

    def verify(self, scan: ImportScan) -> None:
        """Compare the number of fetched resources of each type with the server's current total.

        Raises:
            WorldError: Some totals differ; the next attempt fetches these types again.
        """
        wrong: dict[str, str] = {}
        for name in self.types:
            told = self._count(name)
            if told is None:
                self.unverified.append(name)
            elif told != scan.counts[name]:
                wrong[name] = f"{name}: fetched {scan.counts[name]:,}, the server has {told:,}"
        if wrong:
            self.journal.forget(wrong)
            problems = "\n  ".join(wrong.values())
            raise WorldError(
                f"the server {self.client.base} changed during the download, or its pages are incomplete; nothing was "
                f"imported. Run the import again to fetch these types again:\n  {problems}"
            )

    def notes(self) -> tuple[str, ...]:
        """Return notes for the import report."""
        notes = []
        if self.unknown:
            notes.append(one_line(f"skipped types that R4 does not define: {', '.join(self.unknown)}"))
        if self.unverified:
            notes.append(f"the server reports no totals to verify the counts of: {', '.join(self.unverified)}")
        return tuple(notes)

    def _count(self, resource_type: str) -> int | None:
        try:
            return self.client.count(resource_type)
        except ExpiredError as error:
            raise WorldError(f"{self.client.base} cannot be searched for {resource_type}: {error}") from error

    def _fetch(self, resource_type: str) -> None:
        first = self.client.first(resource_type, self.page_size)
        state = self.journal.state(resource_type) or self.journal.begin(resource_type, first)
        for _ in range(_RESTARTS):
            try:
                return self._go_on(state)
            except ExpiredError:
                reached = self.journal.state(resource_type)
                if reached is None or reached.next == first:
                    raise
                state = self.journal.begin(resource_type, first)
        raise WorldError(f"{self.client.base} forgot the search for {resource_type} {_RESTARTS} times")

    def _go_on(self, state: DownloadState) -> None:
        total = sum(count or 0 for count in self._expected.values())
        guard = _PaginationGuard(self._expected[state.type])
        while state.next is not None:
            try:
                page = self.client.page(state.next, state.type)
                guard.follow(state, page)
            except LinkError as error:  # resuming here would fail again
                self.journal.forget([state.type])
                raise LinkError(f"cannot import {state.type} of {self.client.base}: {error}") from error
            state = self.journal.add(state, page.resources, page.next)
            if self.progress:
                done = sum(progress.resources for name in self.types if (progress := self.journal.state(name)))
                self.progress(done, max(done, total))


class _PaginationGuard:
    """Detects endless paging within one resource type.

    Args:
        told: Total according to the server; None if the server reports no total.
    """

    def __init__(self, told: int | None) -> None:
        self._most = _UNCOUNTED if told is None else 2 * told + 1000  # resources may be added during the download
        self._pages: set[int] = set()
        self._resources: set[int] = set()
        self._vain = 0

    def follow(self, state: DownloadState, page: Page) -> None:
        """Check that the page after a state makes progress.

        Raises:
            LinkError: The pages repeat, bring nothing new, or exceed the total.
        """
        self._pages.add(hash(state.next))
        if page.next is not None and hash(page.next) in self._pages:
            raise LinkError(
                f"paging does not end: {one_line(page.next, 200)} is repeated after {len(self._pages)} pages"
            )
        before = len(self._resources)
        self._resources.update(hash(str(resource.get("id"))) for resource in page.resources)
        self._vain = self._vain + 1 if len(self._resources) == before else 0
        if page.next is not None and self._vain >= _VAIN_PAGES:
            raise LinkError(f"paging does not end: the last {_VAIN_PAGES} pages had no new resources")
        if state.resources + len(page.resources) > self._most:
            raise LinkError(f"paging does not end: the server sent more than {self._most:,} resources")


def _relative(own: str, target: str) -> str:
    return target.removeprefix(own)


@dataclass(frozen=True)
class DownloadState:
    """Progress of one resource type: the file's length and number of resources, and the next page's URL, if any."""

    type: str
    bytes: int
    resources: int
    next: str | None


class DownloadJournal:
    """The record of the pages that were fetched from one server, in a folder.

    Raises:
        WorldError: The folder belongs to another server, or is not writable.
    """

    def __init__(self, folder: Path, source: str) -> None:
        self.folder = folder
        self._journal = folder / "journal.jsonl"
        self._states: dict[str, DownloadState] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._read(source)
        except OSError as error:
            raise self._unwritable(error) from error

    def state(self, resource_type: str) -> DownloadState | None:
        """Return the progress of a type; None if its download has not begun."""
        return self._states.get(resource_type)

    def file(self, resource_type: str) -> Path:
        """Return the NDJSON file of a type."""
        return self.folder / f"{resource_type}.ndjson"

    def begin(self, resource_type: str, first: str) -> DownloadState:
        """Start or restart the download of a type at its first page."""
        return self._note(DownloadState(resource_type, 0, 0, first))

    def add(self, state: DownloadState, resources: Iterable[Resource], following: str | None) -> DownloadState:
        """Store a page.

        Args:
            state: Progress before this page.
            resources: Resources of the page.
            following: URL of the next page; None after the last page.
        """
        rows = [serialization.dumps(resource) + b"\n" for resource in resources]
        try:
            with self.file(state.type).open("ab") as file:
                file.truncate(state.bytes)
                file.writelines(rows)
                _settle(file)
        except OSError as error:
            raise self._unwritable(error) from error
        length = state.bytes + sum(map(len, rows))
        return self._note(DownloadState(state.type, length, state.resources + len(rows), following))

    def forget(self, resource_types: Iterable[str]) -> None:
        """Discard the progress of these types, so that they are fetched again."""
        for name in resource_types:
            self._note(DownloadState(name, -1, 0, None))
            self.file(name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _note(self, state: DownloadState) -> DownloadState:
        if state.bytes >= 0:
            self._states[state.type] = state
        else:
            self._states.pop(state.type, None)
        self._write(asdict(state))
        return state

    def _write(self, line: dict[str, Json]) -> None:
        try:
            with self._journal.open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
                _settle(file)
        except OSError as error:
            raise self._unwritable(error) from error

    def _read(self, source: str) -> None:
        text = self._journal.read_bytes() if self._journal.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]  # drop an incomplete last line
        if whole != text:
            os.truncate(self._journal, len(whole))
        lines = [json.loads(line) for line in whole.splitlines()]
        if not lines:
            self._write({"source": source})
            return
        if lines[0] != {"source": source}:
            raise WorldError(
                f"{self.folder} holds an unfinished import of {lines[0].get('source')}: "
                "finish that import, delete the folder, or choose another name"
            )
        for line in lines[1:]:
            state = DownloadState(**line)
            if state.bytes < 0 or not self._there(state):
                self._states.pop(state.type, None)
            else:
                self._states[state.type] = state

    def _there(self, state: DownloadState) -> bool:
        path = self.file(state.type)
        return state.bytes == 0 or (path.exists() and path.stat().st_size >= state.bytes)

    def _unwritable(self, error: OSError) -> WorldError:
        return WorldError(f"cannot store downloaded pages in {self.folder}: {error.strerror or error}")


def _settle(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
