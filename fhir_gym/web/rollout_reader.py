"""Read a rollout file while a run appends to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fhir_gym.web.episode_row import EpisodeRow, parse_line

_BATCH = 200
"""Number of lines after which pages see the new episodes."""
_MAX_LINE = 64 * 1024 * 1024
"""Largest size of a line in bytes; longer lines are skipped, since they would fill the memory."""
_TAIL = 256
"""Number of bytes that are compared to see whether the part of the file that was read before is the same."""


@dataclass(frozen=True, slots=True)
class Line:
    """A complete line of a file.

    Attributes:
        number: Number of the line, from 1.
        start: Position of its first byte.
        length: Number of bytes.
        row: The row of the table, or why the line is not a rollout.
    """

    number: int
    start: int
    length: int
    row: EpisodeRow | str


class RolloutReader:
    """Reads the lines that are added to a file.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._lines = 0
        self._status: tuple[int, ...] = ()
        self._tail = b""
        self._unended = False  # whether the last line had no line end

    def progress(self) -> tuple[int, int]:
        """Return the number of bytes that have been read, and the size of the file."""
        try:
            return self._offset, self.path.stat().st_size
        except OSError:
            return self._offset, self._offset

    def read(self) -> Iterator[list[Line] | None]:
        """Yield the new lines in batches. None means that another file has taken the place of the file.

        A file that cannot be read has no new lines: the episodes of a deleted file stay in the table.
        """
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                status = stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
                if status == self._status:
                    return
                if self._is_replaced(file, status):
                    self._offset = self._lines = 0
                    self._tail, self._unended = b"", False
                    yield None
                self._status = status
                while batch := self._batch(file):
                    yield batch
        except OSError:
            return

    def _is_replaced(self, file: BinaryIO, status: tuple[int, ...]) -> bool:
        if not self._offset:
            return False
        file.seek(self._offset - len(self._tail))
        return status[:2] != self._status[:2] or file.read(len(self._tail)) != self._tail

    def _batch(self, file: BinaryIO) -> list[Line]:
        """Read up to `_BATCH` lines."""
        found: list[Line] = []
        file.seek(self._offset)
        while len(found) < _BATCH and (line := file.readline(_MAX_LINE)):
            if self._unended and line == b"\n":
                self._offset, self._unended = self._offset + 1, False
                self._tail = (self._tail + line)[-_TAIL:]
                continue
            ended = line.endswith(b"\n")
            too_long = not ended and len(line) == _MAX_LINE
            if not ended and not too_long and not _is_json(line):
                break  # the writer is still writing this line
            length = len(line) + (_skip_line(file) if too_long else 0)
            self._lines += 1
            if too_long:
                problem = f"longer than {_MAX_LINE // 1024 // 1024} MiB"
                found.append(Line(self._lines, self._offset, length, problem))
            elif line.strip():
                found.append(Line(self._lines, self._offset, length, _row_or_problem(line)))
            self._offset, self._unended = self._offset + length, not ended and not too_long
            self._tail = line[-_TAIL:] if not too_long else b""
        return found


def _row_or_problem(line: bytes) -> EpisodeRow | str:
    try:
        return EpisodeRow.of(line)
    except ValueError as error:
        return str(error)


def _is_json(line: bytes) -> bool:
    try:
        parse_line(line)
    except ValueError:
        return False
    return True


def _skip_line(file: BinaryIO) -> int:
    """Read to the end of the line; return the number of bytes."""
    skipped = 0
    while piece := file.readline(_MAX_LINE):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped
