"""An index of rollout files in a temporary database, which a thread keeps up to date while the files grow."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from typing_extensions import override

from fhir_gym.errors import RecordError, UnknownNameError
from fhir_gym.rollouts import Rollout
from fhir_gym.rollouts.rollout_files import parse_rollout
from fhir_gym.web.episode_row import COLUMNS, EpisodeRow, parse_line

_SCHEMA = f"""
CREATE TABLE run (id INTEGER PRIMARY KEY, file INTEGER, agent TEXT, model TEXT, digest BLOB, UNIQUE (file, digest));
CREATE TABLE episode (
    id INTEGER PRIMARY KEY, file INTEGER, line INTEGER, start INTEGER, length INTEGER, run INTEGER,
    {", ".join(COLUMNS)}, failed INTEGER, UNIQUE (file, line)
);
CREATE TABLE failed_check (name TEXT, episode INTEGER, PRIMARY KEY (name, episode)) WITHOUT ROWID;
CREATE INDEX failed_check_of ON failed_check (episode);
CREATE TABLE bad_line (file INTEGER, line INTEGER, problem TEXT);
"""
_BATCH = 500
"""Number of lines after which pages see the new episodes."""
_MAX_LINE = 64 * 1024 * 1024
_INTERVAL = 1.0
"""Seconds between two looks at the files."""


@dataclass(slots=True)
class _Source:
    """A rollout file and how far it has been read.

    Attributes:
        path: The file.
        number: Index of the file in the viewer.
        offset: Number of bytes read.
        lines: Number of lines read.
        identity: Device and inode of the file; a file with another identity is read from its beginning.
        unended: Whether the last line that was read had no line end.
    """

    path: Path
    number: int
    offset: int = 0
    lines: int = 0
    identity: tuple[int, int] = (0, 0)
    unended: bool = False
    runs: dict[bytes, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IndexState:
    """How far the files have been read.

    Attributes:
        version: A number that grows whenever the content of the index changes.
        episodes: Number of episodes.
        bad_lines: Number of lines that are not rollouts.
        complete: Whether all files have been read to their present ends.
        share: Share of the bytes that have been read, from 0 to 1.
    """

    version: int
    episodes: int
    bad_lines: int
    complete: bool
    share: float


class RolloutIndex(AbstractContextManager["RolloutIndex"]):
    """The episodes of rollout files. All methods may be called from any thread.

    Args:
        paths: The files.

    Raises:
        RecordError: A file does not exist, or is not a regular file.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self._sources = [_Source(Path(path), number) for number, path in enumerate(paths)]
        for source in self._sources:
            if not source.path.is_file():
                problem = "is not a file" if source.path.exists() else "does not exist"
                raise RecordError(f"{source.path} {problem}")
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)  # a temporary file
        self._db.executescript(_SCHEMA)
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._state = IndexState(0, 0, 0, not paths, 1.0 if not paths else 0.0)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files."""
        return tuple(source.path for source in self._sources)

    @property
    def state(self) -> IndexState:
        """How far the files have been read."""
        return self._state

    def follow(self) -> None:
        """Read the files in a background thread until `close`, and go on when they grow."""
        self._thread = threading.Thread(target=self._follow, name="rollout-index", daemon=True)
        self._thread.start()

    def update(self) -> None:
        """Read what has been added to the files since the last call."""
        for source in self._sources:
            with suppress(OSError):  # a file that was deleted keeps its episodes in the table
                self._update(source)
        self._set_state(complete=True)

    @override
    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread and delete the temporary database."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._db.close()

    def select(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._lock:
            return self._db.execute(sql, parameters).fetchall()

    def line(self, file: int, line: int) -> bytes:
        """Return the bytes of an episode's line.

        Raises:
            UnknownNameError: There is no such episode.
            RecordError: The file cannot be read, or has changed.
        """
        rows = self.select("SELECT start, length FROM episode WHERE file = ? AND line = ?", (file, line))
        if not rows:
            raise UnknownNameError("episode", f"{file}/{line}", ())
        path, (start, length) = self._sources[file].path, rows[0]
        try:
            with path.open("rb") as opened:
                opened.seek(start)
                return opened.read(length)
        except OSError as error:
            raise RecordError(f"{path}: cannot be read: {error.strerror}") from error

    def rollout(self, file: int, line: int) -> Rollout:
        """Return the record of an episode.

        Args:
            file: Index of the file.
            line: Number of the line, from 1.

        Raises:
            UnknownNameError: There is no such episode.
            RecordError: The file cannot be read, has changed, or the line is not a valid rollout.
        """
        return parse_rollout(self.line(file, line), f"{self._sources[file].path}:{line}")

    def _follow(self) -> None:
        while not self._stop.is_set():
            self.update()
            self._stop.wait(_INTERVAL)

    def _update(self, source: _Source) -> None:
        with source.path.open("rb") as file:
            status = os.fstat(file.fileno())
            identity = status.st_dev, status.st_ino
            if identity != source.identity or status.st_size < source.offset:
                self._forget(source)
                source.identity = identity
            while not self._stop.is_set() and self._read_batch(source, file):
                self._set_state(complete=False)

    def _forget(self, source: _Source) -> None:
        """Remove the episodes of a file that was replaced."""
        if source.lines:
            with self._lock:
                self._db.execute("BEGIN")
                episodes = "(SELECT id FROM episode WHERE file = ?)"
                self._db.execute(f"DELETE FROM failed_check WHERE episode IN {episodes}", (source.number,))
                for table in ("episode", "run", "bad_line"):
                    self._db.execute(f"DELETE FROM {table} WHERE file = ?", (source.number,))
                self._db.execute("COMMIT")
        source.offset = source.lines = 0
        source.unended = False
        source.runs.clear()

    def _read_batch(self, source: _Source, file: BinaryIO) -> bool:
        """Add up to `_BATCH` lines; return whether there were any."""
        found: list[tuple[int, int, int, EpisodeRow | str]] = []
        file.seek(source.offset)
        while len(found) < _BATCH and (line := file.readline(_MAX_LINE)):
            if source.unended and line == b"\n":
                source.offset, source.unended = source.offset + 1, False
                continue
            ended = line.endswith(b"\n")
            if not ended and len(line) < _MAX_LINE and not _is_json(line):
                break  # a writer is still writing this line
            source.lines += 1
            start, length = source.offset, len(line)
            if not ended and length == _MAX_LINE:
                length += _skip_line(file)
                found.append((source.lines, start, length, f"longer than {_MAX_LINE // 1024 // 1024} MiB"))
            elif line.strip():
                found.append((source.lines, start, length, _row_or_problem(line)))
            source.offset, source.unended = start + length, not ended
        with self._lock:
            self._db.execute("BEGIN")
            for number, start, length, row in found:
                self._add(source, number, start, length, row)
            self._db.execute("COMMIT")
        return bool(found)

    def _add(self, source: _Source, line: int, start: int, length: int, row: EpisodeRow | str) -> None:
        if isinstance(row, str):
            self._db.execute("INSERT INTO bad_line VALUES (?, ?, ?)", (source.number, line, row))
            return
        values = [getattr(row, name) for name in COLUMNS]
        marks = ", ".join("?" * (6 + len(values)))
        added = self._db.execute(
            f"INSERT INTO episode VALUES (NULL, {marks})",
            (source.number, line, start, length, self._run(source, row), *values, len(row.failed_checks)),
        )
        checks = [(name, added.lastrowid) for name in row.failed_checks]
        self._db.executemany("INSERT INTO failed_check VALUES (?, ?)", checks)

    def _run(self, source: _Source, row: EpisodeRow) -> int:
        """Return the id of the run: the combination of file, agent and settings."""
        digest = blake2b(f"{row.agent}\n{row.settings}".encode(), digest_size=16).digest()
        if digest not in source.runs:
            sql = "INSERT INTO run VALUES (NULL, ?, ?, ?, ?)"
            added = self._db.execute(sql, (source.number, row.agent, row.model, digest)).lastrowid
            assert added is not None
            source.runs[digest] = added
        return source.runs[digest]

    def _set_state(self, *, complete: bool) -> None:
        [(episodes,)] = self.select("SELECT count(*) FROM episode")
        [(bad_lines,)] = self.select("SELECT count(*) FROM bad_line")
        before = self._state
        changed = (episodes, bad_lines, complete) != (before.episodes, before.bad_lines, before.complete)
        sizes = sum(_size(source.path) for source in self._sources)
        read = sum(source.offset for source in self._sources)
        share = min(1.0, read / sizes) if sizes else 1.0
        self._state = IndexState(before.version + changed, episodes, bad_lines, complete, share)


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


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
