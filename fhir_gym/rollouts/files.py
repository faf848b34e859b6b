"""Rollouts in files: JSON lines, appended one by one."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from fhir_gym.errors import RecordError
from fhir_gym.rollouts.record import SCHEMA_VERSION, Rollout

__all__ = ["completed", "read_rollouts", "write_rollouts"]

_CHUNK = 65_536
_READABLE = (1, SCHEMA_VERSION)
"""Version 1 has none of what version 2 adds for models, and lacks nothing."""


def write_rollouts(path: str | PathLike[str], rollouts: Iterable[Rollout], *, timings: bool = True) -> int:
    """Append rollouts to a file, each on disk as soon as its episode is done.

    A last line that an earlier writer did not complete is cut off first. When the iterable stops with an exception
    (Ctrl-C is one), what was written stays.

    Args:
        path: The file; made, with its folder, if it is not there.
        rollouts: The rollouts, usually what `fhir_gym.run` gives.
        timings: Whether to record how long episodes took.

    Returns:
        Number of rollouts written.

    Raises:
        RecordError: The file cannot be written.
    """
    target = Path(path)
    written = 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        file = target.open("ab+")
    except OSError as error:
        raise RecordError(f"{target}: cannot be written: {error.strerror}") from error
    with file:
        _cut_partial_line(file)
        for rollout in rollouts:
            try:
                file.write(rollout.line(timings=timings).encode("utf-8", "backslashreplace") + b"\n")
                file.flush()
            except OSError as error:
                raise RecordError(f"{target}: cannot be written: {error.strerror}") from error
            written += 1
    return written


def read_rollouts(path: str | PathLike[str]) -> Iterator[Rollout]:
    """The rollouts of a file, one at a time.

    An incomplete last line is what an interrupted writer left: it is left out with a warning.

    Raises:
        RecordError: The file cannot be read, or a line is no rollout; the message names file and line.
    """
    source = Path(path)
    try:
        file = source.open("rb")
    except OSError as error:
        raise RecordError(f"{source}: cannot be read: {error.strerror}") from error
    with file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n") and not _is_json(line):
                warnings.warn(f"{source}:{number}: left out: the line is incomplete, its writer stopped", stacklevel=2)
            elif line.strip():
                yield _rollout(line, f"{source}:{number}")


def completed(
    path: str | PathLike[str], *, like: Callable[[Rollout], bool] | None = None
) -> frozenset[tuple[str, int, int]]:
    """Task, variation and repeat of every judged episode in a file; nothing if there is no file.

    With `run(..., resume=path)` a second run goes on where the first one stopped. Episodes that ended without a verdict
    (a provider or server failed, Ctrl-C) are not among these, so they are done again.

    Args:
        path: The file.
        like: Which of its rollouts count, where it may hold those of other runs too: see `Plan.includes`.
    """
    if not Path(path).exists():
        return frozenset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # who goes on writing cuts the incomplete line off
        kept = (r for r in read_rollouts(path) if r.graded and (like is None or like(r)))
        return frozenset((r.task.key, r.task.variation, r.repeat) for r in kept)


def _rollout(line: bytes, where: str) -> Rollout:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise RecordError(f"{where}: not JSON: {error}") from error
    if not isinstance(data, dict) or "schema_version" not in data:
        raise RecordError(f"{where}: no rollout: it has no schema_version")
    version = data["schema_version"]
    if version not in _READABLE:
        raise RecordError(f"{where}: a rollout of schema version {version!r}, this fhir_gym reads {SCHEMA_VERSION}")
    try:
        return Rollout.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise RecordError(f"{where}: no rollout: {place}: {first['msg']}") from error


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _cut_partial_line(file: BinaryIO) -> None:
    """Cut what follows the last line end; complete a last line that only lacks its line end."""
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
