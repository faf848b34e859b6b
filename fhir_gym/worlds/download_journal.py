"""On-disk state of an unfinished download: one NDJSON file per resource type and a journal of fetched pages.

A page is appended to its file first and recorded in the journal second. After a crash, the download resumes from the
journal: each file is truncated to its recorded length, and later pages are fetched again. So no resource is lost or
duplicated.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from fhir_gym.errors import WorldError
from fhir_gym.fhir import serialization
from fhir_gym.types import Json, Resource


@dataclass(frozen=True)
class DownloadState:
    """Progress of one resource type: the file's length and number of resources, and the next page's URL, if any."""

    type: str
    bytes: int
    resources: int
    next: str | None


class DownloadJournal:
    """The record of the pages that were fetched from one server, in a folder.

    Args:
        folder: Created if missing.
        source: Base URL of the server.

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
