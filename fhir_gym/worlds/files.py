"""Reading files of resources, a line or a document at a time, plain or gzipped."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from fhir_gym.errors import WorldError
from fhir_gym.fhir import parsing
from fhir_gym.types import Json

__all__ = ["Record", "document", "find_files", "lines"]


@dataclass(frozen=True)
class Record:
    """One JSON value of a file, or what was wrong in its place.

    Attributes:
        place: File and line, or file and entry, as a person looks it up.
        value: What was read; None if there is a problem.
        problem: What is wrong.
    """

    place: str
    value: Json = None
    problem: str | None = None


def find_files(source: Path, endings: Sequence[str]) -> list[Path]:
    """The files to import: the source itself, or those in and below a folder that have one of the endings, sorted.

    Args:
        source: A file or a folder.
        endings: Such as `.ndjson`; with `.gz` behind it an ending fits as well.

    Raises:
        WorldError: There is no such file or folder, or no such file in it.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise WorldError(f"cannot import {source}: there is no such file or folder")
    wanted = (*endings, *(f"{ending}.gz" for ending in endings))
    found = sorted(path for path in source.rglob("[!.]*") if path.name.endswith(wanted) and path.is_file())
    if not found:
        raise WorldError(f"cannot import {source}: no {' or '.join(endings)} file in it")
    return found


def lines(path: Path, shown: str) -> Iterator[Record]:
    """A record a line of an NDJSON file; blank lines are passed over.

    Args:
        path: The file.
        shown: How the file is called in places.
    """
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _parse(f"{shown}:{number}", line)
    except (OSError, EOFError, zlib.error) as error:  # gzip raises the latter two for damaged files
        yield Record(f"{shown}:{number + 1}", problem=f"cannot be read: {error}")


def document(path: Path, shown: str) -> Record:
    """The whole file as one JSON document."""
    try:
        with _open(path) as file:
            return _parse(shown, file.read())
    except (OSError, EOFError, zlib.error) as error:
        return Record(shown, problem=f"cannot be read: {error}")


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.name.endswith(".gz") else path.open("rb")


def _parse(place: str, text: bytes) -> Record:
    try:
        return Record(place, parsing.loads(text.removeprefix(b"\xef\xbb\xbf")))
    except ValueError as error:
        return Record(place, problem=f"not JSON: {error}")
