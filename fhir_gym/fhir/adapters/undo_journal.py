"""On-disk record of what undoes the writes to a running server, so that a later process can undo them after a crash.

The session notes each write, and waits until the note is on disk, before it sends the write.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fhir_gym.errors import InfraError
from fhir_gym.fhir import serialization
from fhir_gym.fhir.adapters.remote_interactions import ResourceStates
from fhir_gym.fhir.adapters.version_history import Version
from fhir_gym.fhir.world import World
from fhir_gym.printable import one_line

_ENDING = ".undo.jsonl"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class SentWrite:
    """A write of which the session knows no answer.

    Attributes:
        request: Method and path.
        marks: Types of which the write may create resources, each with the newest version before the write, or with
            None if the server's history does not tell. None if the request is unreadable.
    """

    request: str
    marks: Mapping[str, Version | None] | None


class UndoJournal:
    """The record of one world's changes on one server.

    Args:
        folder: The folder of the server, whose lock the caller holds.
        world: The world.
        server: Base URL of the server.
        discard: Whether to delete the file first.

    Attributes:
        states: The resources that the writes in the file may have changed, with their states before.
        unanswered: The writes in the file whose answer is unknown.

    Raises:
        InfraError: The file is unusable; or the server has changes of an interrupted episode with another world.
    """

    def __init__(self, folder: Path, world: World, server: str, *, discard: bool = False) -> None:
        digest = world.manifest.content_hash
        name = re.sub(r"[^A-Za-z0-9.]+", "-", world.name)[:60]
        self.path = folder / f"{name}-{digest[:16]}{_ENDING}"
        self._head = {"format": _FORMAT, "world": world.name, "content_hash": digest}
        self._size = self._floor = 0
        self.states: list[ResourceStates] = []
        self.unanswered: list[SentWrite] = []
        for other in folder.glob(f"*{_ENDING}"):
            if other != self.path:
                _refuse(other, server)
        try:
            if discard:
                self.path.unlink(missing_ok=True)
            lines = _read(self.path)
            if lines and lines[0] != self._head:
                raise ValueError("it belongs to something else")
            for line in lines[1:]:
                self._take(line)
        except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise self._unusable(error) from error
        self._known: set[tuple[str, str]] = set()

    def note(self, write: SentWrite, states: Sequence[ResourceStates]) -> None:
        """Note a write before it is sent. When this method returns, the note is on disk."""
        new = [one for one in states if (one.type, one.id) not in self._known]
        marks = None if write.marks is None else {kind: mark and list(mark) for kind, mark in write.marks.items()}
        line = {"write": write.request, "marks": marks, "undo": [[one.type, one.id, one.before] for one in new]}
        self._append(line, sync=bool(new or write.marks or write.marks is None))
        self._known |= {(one.type, one.id) for one in new}

    def answered(self, created: Sequence[tuple[str, str]] = ()) -> None:
        """Note that the answer to the last write is known, and which resources the write created.

        The note need not be on disk: without it, the history of the types tells what was created.
        """
        self._append({"created": [list(one) for one in created]}, sync=False)
        self._known |= set(created)

    @property
    def position(self) -> int:
        """The end of the file, for `truncate`."""
        return self._size

    def truncate(self, position: int, kept: Sequence[ResourceStates]) -> None:
        """Drop the notes after a position, because their writes are undone.

        Args:
            position: The position.
            kept: The states of the writes before the position.
        """
        self._size = max(position, self._floor)
        try:
            if self._size:
                os.truncate(self.path, self._size)
            else:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            raise self._unusable(error) from error
        self._known = {(one.type, one.id) for one in kept}

    def keep(self) -> None:
        """Let `truncate` keep the notes so far, so that the next session with this journal undoes the writes again."""
        self._floor = self._size

    def _append(self, line: Mapping[str, Any], *, sync: bool) -> None:
        new = not self._size
        lines = [self._head, line] if new else [line]
        try:
            with self.path.open("wb" if new else "ab") as file:
                file.write(b"".join(serialization.dumps(one) + b"\n" for one in lines))
                file.flush()
                if sync:
                    os.fsync(file.fileno())
                self._size = file.tell()
            if new:
                _sync_folder(self.path.parent)
        except OSError as error:
            raise self._unusable(error) from error

    def _take(self, line: Mapping[str, Any]) -> None:
        """Add a note of the file to the attributes."""
        if "write" in line:
            marks = line["marks"]
            read = (
                None if marks is None else {kind: None if mark is None else tuple(mark) for kind, mark in marks.items()}
            )
            self.unanswered.append(SentWrite(line["write"], read))
            self.states += [ResourceStates(kind, id, before) for kind, id, before in line["undo"]]
        else:
            self.states += [ResourceStates(kind, id, None) for kind, id in line["created"]]
            self.unanswered.pop()

    def _unusable(self, error: Exception) -> InfraError:
        reason = (error.strerror if isinstance(error, OSError) else None) or one_line(str(error), 200)
        return InfraError(f"cannot use the undo journal {self.path}: {reason}")


def _read(path: Path) -> list[Any]:
    """Return the lines of a journal. An incomplete last line is dropped, because its write was not sent."""
    text = path.read_bytes() if path.exists() else b""
    whole = text[: text.rfind(b"\n") + 1]
    return [serialization.loads(line) for line in whole.splitlines()]


def _refuse(other: Path, server: str) -> None:
    """Refuse a server that an interrupted episode with another world has changed."""
    try:
        lines = _read(other)
        name = one_line(str(lines[0]["world"]), 60) if len(lines) > 1 else None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InfraError(f"cannot use the undo journal {other}: {one_line(str(error), 200)}") from error
    if name is not None:
        raise InfraError(
            f"{server} has changes of an interrupted episode with the world {name!r}: run "
            f"`fhir-gym worlds restore {name} {server}` first; if the server's data was replaced since, delete {other}"
        )


def _sync_folder(folder: Path) -> None:
    """Wait until a new file of a folder is on disk; Windows needs no such step."""
    if sys.platform != "win32":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
