"""A reader of growing rollout files, and their index in a temporary database that a thread keeps up to date."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from typing_extensions import override

from fhir_gym.errors import RecordError
from fhir_gym.run_files import names_by_settings, rollout_files, unique_names
from fhir_gym.web.episode_row import COLUMNS, EpisodeRow, parse_line

if TYPE_CHECKING:
    from fhir_gym.rollouts import Rollout


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
    """Reads the lines that are added to a file."""

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
        lines: list[Line] = []
        file.seek(self._offset)
        while len(lines) < _BATCH and (line := file.readline(_MAX_LINE)):
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
                lines.append(Line(self._lines, self._offset, length, problem))
            elif line.strip():
                lines.append(Line(self._lines, self._offset, length, _row_or_problem(line)))
            self._offset, self._unended = self._offset + length, not ended and not too_long
            self._tail = line[-_TAIL:] if not too_long else b""
        return lines


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


_SCHEMA = f"""
CREATE TABLE run (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER, agent TEXT, settings TEXT, digest BLOB, UNIQUE (file, digest)
);
CREATE TABLE episode (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER, line INTEGER, start INTEGER, length INTEGER, run INTEGER,
    {", ".join(COLUMNS)}, failed INTEGER, UNIQUE (file, line)
);
CREATE INDEX episode_of_run ON episode (run);
CREATE TABLE failed_check (name TEXT, episode INTEGER, PRIMARY KEY (name, episode)) WITHOUT ROWID;
CREATE INDEX failed_check_of ON failed_check (episode);
CREATE TABLE bad_line (file INTEGER, line INTEGER, problem TEXT);
CREATE TABLE hit (search INTEGER, episode INTEGER, PRIMARY KEY (search, episode)) WITHOUT ROWID;
"""
_INTERVAL = 1.0
"""Seconds between two looks at the files."""
_MAX_DESCRIBED_RUNS = 200
"""Number of runs up to which names show the settings that differ; with more runs, names show numbers."""

Neighbours = tuple[tuple[int, int] | None, tuple[int, int] | None]
"""File and line of the episodes before and after an episode; None if there is none."""
_T = TypeVar("_T")


class UnknownEpisodeError(RecordError):
    """The rollout files have no episode at this place."""


@dataclass(frozen=True, slots=True)
class IndexState:
    """How far the files have been read.

    Attributes:
        version: A number that grows whenever the content of the index changes.
        episodes: Number of episodes.
        bad_lines: Number of lines that are not rollouts.
        complete: Whether all files have been read to their present ends.
        share: Share of the bytes that have been read, from 0 to 1.
        problem: Why the index is no longer updated; empty if it is.
    """

    version: int = 0
    episodes: int = 0
    bad_lines: int = 0
    complete: bool = False
    share: float = 0.0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class IndexedRun:
    """A run: the episodes of one agent with the same settings in one file.

    Attributes:
        id: Number of the run in this index.
        file: Index of the file.
        name: Name that is unique among the runs.
        episodes: Number of episodes.
    """

    id: int
    file: int
    name: str
    episodes: int


class RolloutIndex(AbstractContextManager["RolloutIndex"]):
    """The episodes of rollout files. All methods may be called from any thread.

    Attributes:
        given: The given files and folders.

    Args:
        paths: Rollout files, and folders of experiments. The files of a folder are found while they appear.

    Raises:
        RecordError: A file does not exist, or is not a regular file.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self.given = [Path(path) for path in paths]
        for path in self.given:
            if not path.is_file() and not path.is_dir():
                raise RecordError(f"{path} {'is not a file' if path.exists() else 'does not exist'}")
        self._readers: list[RolloutReader] = []
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)  # a temporary file
        self._db.executescript(_SCHEMA)
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._state = IndexState()
        self._cache: tuple[int, dict[str, Any]] = (0, {})
        self._find_files()

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files; an episode is named after the position of its file here and the number of its line."""
        return tuple(reader.path for reader in self._readers)

    @property
    def state(self) -> IndexState:
        """How far the files have been read."""
        return self._state

    def follow(self) -> None:
        """Read the files in a background thread until `close`, and go on when they grow."""
        self._thread = threading.Thread(target=self._follow, name="rollout-index", daemon=True)
        self._thread.start()

    def update(self) -> None:
        """Read what has been added to the files since the last call.

        Raises:
            sqlite3.Error: The temporary database cannot be written, for example because the disk is full.
        """
        self._find_files()
        for number, reader in enumerate(self._readers):
            for batch in reader.read():
                self._add(number, batch)
                if self._stop.is_set():
                    return
        if not self._state.complete:
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

    def select(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._lock:
            return self._db.execute(sql, parameters).fetchall()

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """Change the database in one transaction, while no other thread reads it."""
        with self._lock:
            self._db.execute("BEGIN")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def cached(self, name: str, compute: Callable[[], _T]) -> _T:
        """Return a value that is computed once for each state of the index."""
        with self._lock:
            if self._cache[0] != self._state.version:
                self._cache = self._state.version, {}
            values = self._cache[1]
            if name not in values:
                values[name] = compute()
            value: _T = values[name]
            return value

    def runs(self) -> list[IndexedRun]:
        """Return the runs in the order of their files."""
        return self.cached("runs", self._runs)

    def _runs(self) -> list[IndexedRun]:
        rows = self.select(
            "SELECT run.id, run.file, run.agent, run.settings, count(*) FROM run JOIN episode ON episode.run = run.id"
            " GROUP BY run.id ORDER BY run.file, run.id"
        )
        if len(rows) <= _MAX_DESCRIBED_RUNS:
            described = [(agent, json.loads(settings), self.paths[file]) for _, file, agent, settings, _ in rows]
            names = unique_names(names_by_settings(described))
        else:
            names = [f"{agent} #{id}" for id, _, agent, _, _ in rows]
        return [IndexedRun(row[0], row[1], name, row[4]) for row, name in zip(rows, names, strict=True)]

    def lines(self, places: Iterable[tuple[int, int, int]]) -> Iterator[bytes]:
        """Yield lines of the files; an empty text for a line that cannot be read any more.

        Args:
            places: File, start and length of each line.
        """
        opened, file = None, -1
        try:
            for number, start, length in places:
                try:
                    if number != file or opened is None:
                        if opened is not None:
                            opened.close()
                        opened, file = self.paths[number].open("rb"), number
                    opened.seek(start)
                    yield opened.read(length)
                except OSError:
                    yield b""
        finally:
            if opened is not None:
                opened.close()

    def line(self, file: int, line: int) -> bytes:
        """Return the line of an episode.

        Args:
            file: Index of the file.
            line: Number of the line, from 1.

        Raises:
            UnknownEpisodeError: There is no such episode.
            RecordError: The file cannot be read, or has changed.
        """
        start, length, _ = self._episode(file, line)
        (content,) = self.lines([(file, start, length)])
        if not content:
            raise RecordError(f"{self.paths[file]}:{line}: cannot be read any more")
        return content

    def rollout(self, file: int, line: int) -> Rollout:
        """Return the record of an episode.

        Raises:
            UnknownEpisodeError: There is no such episode.
            RecordError: The file cannot be read, has changed, or the line is not a valid rollout.
        """
        from fhir_gym.rollouts.rollout_files import parse_rollout

        return parse_rollout(self.line(file, line), f"{self.paths[file]}:{line}")

    def run_name(self, file: int, line: int) -> str:
        """Return the name of an episode's run.

        Raises:
            UnknownEpisodeError: There is no such episode.
        """
        *_, number = self._episode(file, line)
        return next((run.name for run in self.runs() if run.id == number), "")

    def neighbours(self, file: int, line: int) -> Neighbours:
        """Return file and line of the episodes before and after an episode, in the order of the files."""
        before = self.select(
            "SELECT file, line FROM episode WHERE (file, line) < (?, ?) ORDER BY file DESC, line DESC LIMIT 1",
            (file, line),
        )
        after = self.select(
            "SELECT file, line FROM episode WHERE (file, line) > (?, ?) ORDER BY file, line LIMIT 1", (file, line)
        )
        return (before[0][0], before[0][1]) if before else None, (after[0][0], after[0][1]) if after else None

    def neighbours_where(
        self, file: int, line: int, where: str, parameters: Sequence[str | int], order: str
    ) -> Neighbours:
        """Return file and line of the episodes before and after an episode, among those that fulfil a condition.

        Args:
            file: Index of the file.
            line: Number of the line, from 1.
            where: The condition in SQL.
            parameters: Its parameters.
            order: The order in SQL.
        """
        near = ", ".join(
            f"{at}({name}) OVER near AS {at}_{name}" for at in ("lag", "lead") for name in ("file", "line")
        )
        rows = self.select(
            f"SELECT lag_file, lag_line, lead_file, lead_line FROM"
            f" (SELECT file, line, {near} FROM episode WHERE {where} WINDOW near AS (ORDER BY {order}))"
            " WHERE file = ? AND line = ?",
            [*parameters, file, line],
        )
        if not rows:
            return None, None
        file_before, line_before, file_after, line_after = rows[0]
        before = None if file_before is None else (file_before, line_before)
        return before, None if file_after is None else (file_after, line_after)

    def _episode(self, file: int, line: int) -> tuple[int, int, int]:
        """Return start, length and run of an episode."""
        place = (file, line) if max(file, line) < 2**63 else (-1, -1)  # SQLite's largest number
        rows = self.select("SELECT start, length, run FROM episode WHERE file = ? AND line = ?", place)
        if not rows:
            raise UnknownEpisodeError(f"there is no episode in line {line} of file {file}")
        start, length, run = rows[0]
        return start, length, run

    def _find_files(self) -> None:
        """Start to read files that have appeared in the given folders."""
        indexed = set(self.paths)
        for source in self.given:
            with suppress(OSError):  # a folder that was deleted has no new files
                for path in rollout_files(source) if source.is_dir() else [source]:
                    if path not in indexed:
                        indexed.add(path)
                        self._readers.append(RolloutReader(path))

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                self.update()
            except sqlite3.Error as error:
                problem = f"The table is no longer updated: {error}."
                self._state = IndexState(self._state.version + 1, *self._counts(), complete=True, problem=problem)
                return
            self._stop.wait(_INTERVAL)

    def _add(self, file: int, batch: Sequence[Line] | None) -> None:
        """Add lines of a file; None means that the file was replaced, so its episodes are removed."""
        with self.changing() as db:
            if batch is None:
                episodes = "(SELECT id FROM episode WHERE file = ?)"
                db.execute(f"DELETE FROM failed_check WHERE episode IN {episodes}", (file,))
                db.execute(f"DELETE FROM hit WHERE episode IN {episodes}", (file,))
                for table in ("episode", "run", "bad_line"):
                    db.execute(f"DELETE FROM {table} WHERE file = ?", (file,))
            for line in batch or ():
                if isinstance(line.row, str):
                    db.execute("INSERT INTO bad_line VALUES (?, ?, ?)", (file, line.number, line.row))
                else:
                    _add_episode(db, file, line, line.row)
        self._set_state(complete=False)

    def _counts(self) -> tuple[int, int]:
        [(episodes, bad_lines)] = self.select("SELECT (SELECT count(*) FROM episode), (SELECT count(*) FROM bad_line)")
        return episodes, bad_lines

    def _set_state(self, *, complete: bool) -> None:
        read, size = (
            sum(sizes) for sizes in zip((0, 0), *(reader.progress() for reader in self._readers), strict=True)
        )
        share = min(1.0, read / size) if size else 1.0
        self._state = IndexState(self._state.version + 1, *self._counts(), complete, share)


def _add_episode(db: sqlite3.Connection, file: int, line: Line, row: EpisodeRow) -> None:
    digest = row.run_digest
    earlier = db.execute("SELECT id FROM run WHERE file = ? AND digest = ?", (file, digest)).fetchone()
    if earlier is None:
        new = db.execute("INSERT INTO run VALUES (NULL, ?, ?, ?, ?)", (file, row.agent, row.settings, digest))
        earlier = (new.lastrowid,)
    values = [file, line.number, line.start, line.length, earlier[0], *row.values(), len(row.failed_checks)]
    added = db.execute(f"INSERT INTO episode VALUES (NULL, {', '.join('?' * len(values))})", values)
    checks = [(name, added.lastrowid) for name in row.failed_checks]
    db.executemany("INSERT INTO failed_check VALUES (?, ?)", checks)
