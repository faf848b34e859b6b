"""On-disk record of what undoes the writes to a running server, so that a later process can undo them after a crash.

The session notes each write, and waits until the note is on disk, before it sends the write.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from fhir_gym.errors import InfraError
from fhir_gym.fhir import serialization
from fhir_gym.fhir.adapters.remote_interactions import ResourceStates
from fhir_gym.fhir.world import World
from fhir_gym.printable import one_line
from fhir_gym.types import Resource

_ENDING = ".undo.jsonl"
_FORMAT = 2
_UNUSABLE = (ValueError, TypeError, KeyError, IndexError, AttributeError)
"""Errors of reading a file that the session did not write."""


@dataclass(frozen=True, slots=True)
class SentWrite:
    """A write that the session has sent.

    Attributes:
        request: Method and path.
        creates: Whether it may create resources with ids from the server.
        time: The server's time before the write; None if the server has no history of itself.
        doubt: How the server's answer differs from the request; empty if there is no answer.
    """

    request: str
    creates: bool
    time: str | None
    doubt: str = ""

    @property
    def problem(self) -> str:
        """Why it is not known what the write did."""
        return f"the server {self.doubt}" if self.doubt else f"{self.request} has an unknown outcome"


class UndoJournal:
    """The record of one world's changes on one server.

    Args:
        folder: The folder of the server, whose lock the caller holds.
        world: The world.
        server: Base URL of the server.
        discard: Whether to delete the file first.
        force: Whether to drop what is unusable in the file, and the files of other worlds.

    Attributes:
        states: The resources that the writes in the file may have changed, with their states before.
        unanswered: The writes in the file whose answer is unknown or differs from the request.

    Raises:
        InfraError: The file is unusable; or the server has changes of an interrupted episode with another world.
    """

    def __init__(self, folder: Path, world: World, server: str, *, discard: bool = False, force: bool = False) -> None:
        digest = world.manifest.content_hash
        name = re.sub(r"[^A-Za-z0-9.]+", "-", world.name)[:60]
        self.path = folder / f"{name}-{digest[:16]}{_ENDING}"
        self._head = {"format": _FORMAT, "world": world.name, "content_hash": digest}
        self._size = self._floor = 0
        self.states: list[ResourceStates] = []
        self.unanswered: list[SentWrite] = []
        self._way_out = f"`fhir-gym worlds restore {world.name} {server} --force` forgets what cannot be undone"
        for other in folder.glob(f"*{_ENDING}"):
            if other != self.path:
                other.unlink() if force else _refuse(other, server, self._way_out)
        try:
            if discard:
                self.path.unlink(missing_ok=True)
            for number, line in enumerate(_lines(self.path)):
                try:
                    self._take(number, serialization.loads(line))
                except _UNUSABLE:
                    if not force:
                        raise
        except (OSError, *_UNUSABLE) as error:
            raise self._unusable(error) from error
        self._known: set[tuple[str, str]] = set()

    def note(self, write: SentWrite, states: Sequence[ResourceStates]) -> None:
        """Note a write before it is sent. When this method returns, the note is on disk."""
        new = [state for state in states if state.key not in self._known]
        undo = [[state.type, state.id, state.before] for state in new]
        line = {"write": write.request, "creates": write.creates, "time": write.time, "undo": undo}
        self._append(line, sync=bool(new or write.creates))
        self._known |= {state.key for state in new}

    def answered(self, created: Sequence[tuple[str, str]] = ()) -> None:
        """Note that the answer to the last write is known, and which resources the write created.

        The note need not be on disk: without it, the history of the types tells what was created.
        """
        self._append({"created": [list(key) for key in created]}, sync=False)
        self._known |= set(created)

    def doubt(self, difference: str) -> None:
        """Note that the answer to the last write differs from the request, so that the history must tell its effect."""
        self._append({"doubt": difference}, sync=False)

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

    def _take(self, number: int, line: Mapping[str, Any]) -> None:
        """Add a line of the file to the attributes."""
        if not number:
            if line != self._head:
                raise ValueError("it belongs to something else")
        elif "write" in line:
            states = [_state(*state) for state in line["undo"]]
            if line["time"] is not None:
                datetime.fromisoformat(line["time"])
            self.unanswered.append(SentWrite(line["write"], line["creates"], line["time"]))
            self.states += states
        elif "doubt" in line:
            self.unanswered[-1] = replace(self.unanswered[-1], doubt=line["doubt"])
        else:
            self.states += [_state(kind, id, None) for kind, id in line["created"]]
            self.unanswered.pop()

    def _unusable(self, error: Exception) -> InfraError:
        reason = (error.strerror if isinstance(error, OSError) else None) or one_line(str(error), 200)
        return InfraError(f"cannot use the undo journal {self.path}: {reason}; {self._way_out}")


def _state(resource_type: str, id: str, before: Resource | None) -> ResourceStates:
    if not (isinstance(resource_type, str) and isinstance(id, str) and (before is None or isinstance(before, dict))):
        raise TypeError("a state is not a resource")
    return ResourceStates(resource_type, id, before)


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a journal. An incomplete last line is dropped, because its write was not sent."""
    text = path.read_bytes() if path.exists() else b""
    yield from text[: text.rfind(b"\n") + 1].splitlines()


def _refuse(other: Path, server: str, way_out: str) -> None:
    """Refuse a server that an interrupted episode with another world has changed."""
    try:
        lines = [*_lines(other)]
        name = one_line(str(serialization.loads(lines[0])["world"]), 60) if len(lines) > 1 else None
    except (OSError, *_UNUSABLE) as error:
        text = f"cannot use the undo journal {other}: {one_line(str(error), 200)}; {way_out}"
        raise InfraError(text) from error
    if name is not None:
        raise InfraError(
            f"{server} has changes of an interrupted episode with the world {name!r}: run "
            f"`fhir-gym worlds restore {name} {server}` first; if the server's data was replaced since, {way_out}"
        )


def _sync_folder(folder: Path) -> None:
    """Wait until a new file of a folder is on disk; Windows needs no such step."""
    if sys.platform != "win32":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
