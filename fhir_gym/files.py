"""Files written whole or not at all: beside their place first, and put there once they are complete.

A reader never sees half a file, and what stood there before is lost neither to bad input nor to Ctrl-C, a full disk or
a kill.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from fhir_gym.errors import FhirGymError
from fhir_gym.processes import is_running

__all__ = ["problem", "real", "replacing", "write_all", "write_whole"]


@contextmanager
def replacing(path: str | PathLike[str], error: type[FhirGymError] = FhirGymError) -> Iterator[BinaryIO]:
    """Write a file, with its folder, that takes its place when the block ends; after an exception nothing has changed.

    Of a link, what it points to is replaced. What is no file (a pipe, a terminal) is written to directly.

    Args:
        path: Where the file is to be.
        error: What is raised where it cannot be written.

    Yields:
        The open file.
    """
    _require_writable([path], error)
    try:
        with ExitStack() as stack:
            file, finish = _begin(Path(path), stack)
            yield file
            finish()
    except OSError as failure:
        raise error(f"{path} cannot be written: {failure.strerror or failure}") from failure


def write_all(files: Mapping[Path, str | bytes], error: type[FhirGymError] = FhirGymError) -> None:
    """Write some files, with their folders: all of them or, where one cannot be written, none.

    Args:
        files: What each is to hold.
        error: What is raised where one cannot be written.
    """
    _require_writable(files, error)
    path = Path()
    try:
        with ExitStack() as stack:
            finishing = []
            for path, content in files.items():
                file, finish = _begin(path, stack)
                file.write(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))
                file.flush()
                finishing.append(finish)
            for finish in finishing:
                finish()
    except OSError as failure:
        raise error(f"{path} cannot be written: {failure.strerror or failure}") from failure


def write_whole(path: Path, content: str | bytes, error: type[FhirGymError] = FhirGymError) -> None:
    """Write one file: see `write_all`."""
    write_all({path: content}, error)


def problem(path: str | PathLike[str]) -> str | None:
    """Why a file cannot be written, as far as that can be seen without writing; None if nothing speaks against it."""
    target = Path(path)
    try:
        if target.is_dir():
            return f"{path} cannot be written: it is a folder"
        if target.exists():
            return None if os.access(target, os.W_OK) else f"{path} cannot be written: Permission denied"
        folder = next(one for one in target.resolve().parents if one.exists())
        if not folder.is_dir():
            return f"{path} cannot be written: {folder} is no folder"
        allowed = os.access(folder, os.W_OK | os.X_OK)
    except (OSError, RuntimeError, ValueError) as failure:  # a loop of links, a name no file system takes
        return f"{str(path)!r} cannot be written: {failure}"
    return None if allowed else f"{path} cannot be written: {folder} is not writable"


def real(path: str | PathLike[str]) -> Path:
    """Where a path leads, links followed: for telling whether two paths are one file. Never raises."""
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a home that is not known
        return Path(path).absolute()


def _require_writable(paths: Iterable[str | PathLike[str]], error: type[FhirGymError]) -> None:
    for path in paths:
        wrong = problem(path)
        if wrong is not None:
            raise error(wrong)


def _begin(path: Path, stack: ExitStack) -> tuple[BinaryIO, Callable[[], None]]:
    """A file to write to, and what puts it in its place; the stack removes what is left over."""
    whole = real(path)
    whole.parent.mkdir(parents=True, exist_ok=True)
    if whole.exists() and not whole.is_file():
        direct = stack.enter_context(whole.open("wb"))
        return direct, direct.flush
    _remove_leftovers(whole)
    part = whole.with_name(f".{whole.name}.{os.getpid()}.part")
    stack.callback(_discard, part)
    file = stack.enter_context(part.open("wb"))

    def finish() -> None:
        file.flush()
        os.fsync(file.fileno())
        file.close()  # Windows renames no open file
        if whole.exists():
            shutil.copymode(whole, part)
        part.replace(whole)

    return file, finish


def _discard(part: Path) -> None:
    with suppress(OSError):  # mostly it has been put in its place
        part.unlink()


def _remove_leftovers(whole: Path) -> None:
    """Delete what killed writers of a file left."""
    for part in whole.parent.glob(f".{escape(whole.name)}.*.part"):
        number = part.name.split(".")[-2]
        if number.isdecimal() and not is_running(int(number)):
            _discard(part)
