"""Read and write rollout files, to which each episode appends one JSON line."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError
from typing_extensions import override

from fhir_gym.errors import RecordError
from fhir_gym.files import require_writable, write_file
from fhir_gym.rollouts.record import SCHEMA_VERSION, Rollout
from fhir_gym.types import Json

_BEGINNING = b'{"schema_version":'
_CHUNK = 65_536
_READABLE = range(1, SCHEMA_VERSION + 1)
"""Schema versions that can be read. Each version only adds optional fields to the version before it."""


def write_rollouts(
    path: str | PathLike[str], rollouts: Iterable[Rollout], *, timings: bool = True, overwrite: bool = False
) -> int:
    """Append rollouts to a file, each as soon as its episode ends.

    A record that the file already contains is not written again, so a script may run twice. An incomplete last line is
    removed first. If `rollouts` raises an exception such as KeyboardInterrupt, the records written so far remain.

    Args:
        path: The file. The first rollout creates the file and its folder.
        rollouts: The rollouts, usually from `fhir_gym.run`.
        timings: Whether to record timings.
        overwrite: Whether to replace the file instead of appending to it. The first graded rollout replaces the file;
            without a graded rollout, the file remains unchanged.

    Returns:
        Number of rollouts written.

    Raises:
        RecordError: The file cannot be written, contains data other than rollouts, or already contains a different
            record of one of the episodes.
    """
    target = Path(path)
    require_writable(target, RecordError)
    with ExitStack() as stack:
        if not overwrite or not target.is_file() or not target.stat().st_size:
            writer = stack.enter_context(RolloutWriter(target, timings=timings))
            return sum(writer.write(rollout) for rollout in rollouts)
        held: list[bytes] = []
        written, file = 0, None
        for rollout in rollouts:
            line = _line(rollout, timings)
            if file is not None:
                _write(file, line, target)
                written += 1
                continue
            held.append(line)
            if rollout.graded:
                write_file(target, b"".join(held), RecordError)
                file = stack.enter_context(_open_to_append(target))
                written = len(held)
        return written


class RolloutWriter(AbstractContextManager["RolloutWriter"]):
    """Appends rollouts to a file one at a time; `write_rollouts` writes a whole run.

    Args:
        path: The file. The first rollout creates the file and its folder.
        timings: Whether to record timings.

    Raises:
        RecordError: The file cannot be written, or contains data other than rollouts.
    """

    def __init__(self, path: str | PathLike[str], *, timings: bool = True) -> None:
        self._path, self._timings = Path(path), timings
        require_writable(self._path, RecordError)
        self._known = _known_episodes(self._path)
        self._file: BinaryIO | None = None

    def write(self, rollout: Rollout) -> bool:
        """Append a rollout; return False if the file contained this record before.

        Raises:
            RecordError: The file cannot be written, or contained a different record of the episode.
        """
        line = _line(rollout, self._timings)
        if rollout.graded and _is_known(line, self._known, self._path):
            return False
        if self._file is None:
            self._file = _open_to_append(self._path)
        _write(self._file, line, self._path)
        return True

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    @override
    def __exit__(self, *_: object) -> None:
        self.close()


def _line(rollout: Rollout, timings: bool) -> bytes:
    return rollout.line(timings=timings).encode("utf-8", "backslashreplace") + b"\n"


def read_rollouts(path: str | PathLike[str]) -> Iterator[Rollout]:
    """Yield the rollouts of a file one at a time.

    If a writer was interrupted and the last line is incomplete, the line is skipped with a warning.

    Raises:
        RecordError: The file cannot be read, or a line is not a rollout. The message names the file and the line.
    """
    source = Path(path)
    try:
        file = source.open("rb")
    except OSError as error:
        raise RecordError(f"{source}: cannot be read: {error.strerror}") from error
    with file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n") and not _is_json(line):
                _require_rollout_prefix(line, number, source)
                warnings.warn(f"{source}:{number}: skipped an incomplete line of an interrupted writer", stacklevel=2)
            elif line.strip():
                yield parse_rollout(line, f"{source}:{number}")


def no_rollouts(path: str | PathLike[str]) -> RecordError:
    """Return the error for a file in which `read_rollouts` finds nothing."""
    is_cut = Path(path).read_bytes()[-1:] not in (b"", b"\n")
    what = "its only line is incomplete, because its writer was interrupted" if is_cut else "contains no rollouts"
    return RecordError(f"{path}: {what}")


def completed(
    path: str | PathLike[str], *, like: Callable[[Rollout], bool] | None = None
) -> frozenset[tuple[str, int, int]]:
    """Return the task, variation and repeat of every graded episode in a file; an empty set if the file is missing.

    `run(..., resume=path)` skips these episodes. It repeats episodes without a verdict, in which a provider or server
    failed or the user pressed Ctrl-C.

    Args:
        path: The file.
        like: Function that selects rollouts, because the file may contain other runs too; see `RunPlan.includes`.
    """
    if not Path(path).exists():
        return frozenset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # `write_rollouts` removes an incomplete line
        kept = (r for r in read_rollouts(path) if r.graded and (like is None or like(r)))
        return frozenset((r.task.key, r.task.variation, r.repeat) for r in kept)


def parse_rollout(line: bytes, where: str) -> Rollout:
    """Return the rollout of a line.

    Args:
        line: The line.
        where: File and line number for error messages.

    Raises:
        RecordError: The line is not a rollout.
    """
    try:
        return Rollout.model_validate(_plain(line, where))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise RecordError(f"{where}: not a rollout: {place}: {first['msg']}") from error


def _plain(line: bytes, where: str) -> dict[str, Json]:
    """Parse a line as JSON and check its schema version."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where}: not JSON: {error}") from error
    if not isinstance(data, dict) or "schema_version" not in data:
        raise RecordError(f"{where}: not a rollout: it has no schema_version")
    version = data["schema_version"]
    if version not in _READABLE:
        raise RecordError(
            f"{where}: the rollout has schema version {version!r}; this fhir_gym reads up to {SCHEMA_VERSION}"
        )
    return data


def _known_episodes(path: Path) -> dict[bytes, bytes]:
    """Map the digest of each graded episode in a file to the digest of its record.

    Raises:
        RecordError: The file contains data other than rollouts, so it must not be changed.
    """
    if not path.is_file():
        return {}
    known_episodes: dict[bytes, bytes] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n") or _is_json(line):
                data = _plain(line, f"{path}:{number}") if line.strip() else {}
                if data.get("verdict") is not None:
                    try:
                        episode, record = _digests(data)
                    except (KeyError, TypeError) as error:
                        raise RecordError(f"{path}:{number}: not a rollout: it lacks {error}") from error
                    known_episodes.setdefault(episode, record)
            else:
                _require_rollout_prefix(line, number, path)
    return known_episodes


def _require_rollout_prefix(line: bytes, number: int, path: Path) -> None:
    """Raise if the incomplete first line of a file is not the start of a rollout."""
    if number == 1 and not (line.startswith(_BEGINNING) or _BEGINNING.startswith(line)):
        raise RecordError(f"{path} contains data other than rollouts")


def _is_known(line: bytes, lines_by_key: Mapping[bytes, bytes], path: Path) -> bool:
    """Whether a file already contains this record."""
    data = json.loads(line)
    episode, record = _digests(data)
    if lines_by_key.get(episode, record) != record:
        task = data["task"]
        raise RecordError(
            f"{path} already holds task {task['key']}, variation {task['variation']}, repeat {data['repeat']} by "
            f"{data['agent']['name']}, with other actions or another result: use run(..., resume=path) to skip it, "
            "write_rollouts(..., overwrite=True) to replace the file, or another file"
        )
    return episode in lines_by_key


def _digests(data: Mapping[str, Json]) -> tuple[bytes, bytes]:
    """Return a digest of the episode and its agent, and a digest of the complete record without timings."""
    task, world, agent = (data[name] for name in ("task", "world", "agent"))
    episode = (
        *(data["env_id"], task["key"], task["variation"], task["hash"], world["hash"], data["seed"]),
        *(data.get("repeat", 0), agent, data["grading"], data["reward_rule"], data["max_steps"]),
    )
    return _digest(episode), _digest({name: value for name, value in data.items() if name != "timings"})


def _digest(value: Json) -> bytes:
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RecordError(f"{path}: cannot be written: {error.strerror}") from error


def _open_to_append(path: Path) -> BinaryIO:
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            return path.open("wb")  # a pipe cannot be read back
        file = path.open("ab+")
        _remove_partial_line(file)
    return file


def _write(file: BinaryIO, line: bytes, path: Path) -> None:
    with _writing(path):
        file.write(line)
        file.flush()


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _remove_partial_line(file: BinaryIO) -> None:
    """Remove an incomplete last line. If only its line end is missing, add the line end."""
    end = file.seek(0, os.SEEK_END)
    tail, start = b"", end
    while start > 0 and b"\n" not in tail:
        step = min(_CHUNK, start)
        start = file.seek(start - step)
        tail = file.read(step) + tail
        file.seek(start)
    partial = tail[tail.rfind(b"\n") + 1 :]
    if not partial:
        return
    if _is_json(partial):
        file.seek(0, os.SEEK_END)
        file.write(b"\n")
    else:
        file.truncate(end - len(partial))
