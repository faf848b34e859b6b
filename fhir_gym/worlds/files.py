"""Read NDJSON and Bundle files, plain or gzipped, with limits on their size."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, cast

from fhir_gym.errors import WorldError
from fhir_gym.fhir import serialization
from fhir_gym.fhir.store.schema import MOST_BODY_BYTES
from fhir_gym.types import Json

Format = Literal["ndjson", "bundles"]
"""Format of the files in a folder to import."""

_ENDINGS: dict[str, Format] = {".ndjson": "ndjson", ".json": "bundles"}
_BUNDLE = re.compile(rb'"resourceType"\s*:\s*"Bundle"')
_DOCUMENT_BYTES = 128 * 1024 * 1024
_MOST_RATIO = 100  # highest accepted compression ratio; resources have ratios from 10 to 50
_UNPACKED_BYTES = 16 * 1024 * 1024  # up to this size, any compression ratio is accepted


@dataclass(frozen=True)
class SourceRecord:
    """One JSON value in a file, or the problem that prevented its reading.

    Attributes:
        place: File and line, or file and Bundle entry, for messages.
        value: Parsed JSON; None if there is a problem.
        problem: Error message; None if there is none.
    """

    place: str
    value: Json = None
    problem: str | None = None


class _BombError(Exception):
    """A gzipped file expands too much to be a file of resources."""

    def __init__(self, most: int) -> None:
        super().__init__(f"it expands to more than {most:,} bytes, too much for a file of resources")


def format_of(source: Path) -> Format:
    """Determine the format of a file or folder from its file extensions.

    If there are `.ndjson` files, `.json` files other than Bundles are ignored, because bulk exports include a manifest.

    Raises:
        WorldError: The source does not exist, has no files to import, or has files of both formats.
    """
    files = _all_files(source)
    rows, documents = (
        [path for path in files if _ENDINGS.get(_plain(_ending(path))) == format] for format in ("ndjson", "bundles")
    )
    if source.is_file() and not documents:
        return "ndjson"  # a single file may have any extension
    if not rows and not documents:
        seen = Counter(map(_ending, files)).most_common(5)
        told = ", ".join(f"{number} {ending or 'without extension'}" for ending, number in seen)
        raise WorldError(f"cannot import {source}: it has no {' or '.join(_ENDINGS)} file; found {told or 'no files'}")
    if rows and (bundles := [path for path in documents if _begins_like_a_bundle(path)]):
        raise WorldError(
            f"cannot import {source}: it has {len(rows)} .ndjson files ({rows[0].name}) and {len(bundles)} "
            f"Bundles in .json files ({bundles[0].name}); choose with --format ndjson or --format bundles"
        )
    return "ndjson" if rows else "bundles"


def find_files(source: Path, ending: str) -> list[Path]:
    """Return the files to import, sorted: the source itself, or the files with an extension below the folder.

    Args:
        source: A file or folder.
        ending: The extension, such as `.ndjson`, which also stands for the extension with `.gz` appended.

    Raises:
        WorldError: The source does not exist or has no such file.
    """
    if source.is_file():
        return [source]
    paths = [path for path in _all_files(source) if _plain(_ending(path)) == ending]
    if not paths:
        raise WorldError(f"cannot import {source}: it has no {ending} file")
    return paths


def read_lines(path: Path, shown: str) -> Iterator[SourceRecord]:
    """Yield one record for each line of an NDJSON file, except blank lines."""
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(_bounded(path, file), 1):
                if line is None:
                    problem = f"longer than the limit of {MOST_BODY_BYTES:,} bytes per resource"
                    yield SourceRecord(f"{shown}:{number}", problem=problem)
                elif line.strip():
                    yield _parse(f"{shown}:{number}", line)
    except (OSError, EOFError, zlib.error, _BombError) as error:  # gzip raises the first three on damaged files
        yield SourceRecord(f"{shown}:{number + 1}", problem=f"cannot be read: {error}")


def read_document(path: Path, shown: str) -> SourceRecord:
    """Read a file as one JSON document."""
    bomb = _most_unpacked(path)
    try:
        with _open(path) as file:
            text = file.read(_DOCUMENT_BYTES + 1 if bomb is None else min(_DOCUMENT_BYTES, bomb) + 1)
    except (OSError, EOFError, zlib.error) as error:
        return SourceRecord(shown, problem=f"cannot be read: {error}")
    if bomb is not None and len(text) > bomb:
        return SourceRecord(shown, problem=f"cannot be read: {_BombError(bomb)}")
    if len(text) > _DOCUMENT_BYTES:
        return SourceRecord(shown, problem=f"longer than the limit of {_DOCUMENT_BYTES:,} bytes per Bundle; use NDJSON")
    return _parse(shown, text)


def _most_unpacked(path: Path) -> int | None:
    """Return the size limit of a gzipped file's content in bytes; None if the file is not gzipped."""
    return max(_UNPACKED_BYTES, _MOST_RATIO * path.stat().st_size) if path.name.endswith(".gz") else None


def _bounded(path: Path, file: IO[bytes]) -> Iterator[bytes | None]:
    """Yield the lines of a file; yield None for a line over the limit, which is never held in memory."""
    most = _most_unpacked(path)
    unpacked, too_long = 0, False
    while part := file.readline(MOST_BODY_BYTES + 1):
        unpacked += len(part)
        if most is not None and unpacked > most:
            raise _BombError(most)
        ended = part.endswith(b"\n")
        if not ended and len(part) > MOST_BODY_BYTES:
            too_long = True
        else:
            yield None if too_long else part
            too_long = False
    if too_long:
        yield None


def _all_files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise WorldError(f"cannot import {source}: no such file or folder")
    return sorted(path for path in source.rglob("[!.]*") if path.is_file())


def _ending(path: Path) -> str:
    """Return the extension of a file name, including a trailing `.gz`."""
    parts = path.name.split(".")[1:]
    return "".join(f".{part}" for part in (parts[-2:] if parts[-1:] == ["gz"] else parts[-1:]))


def _plain(ending: str) -> str:
    return ending.removesuffix(".gz")


def _begins_like_a_bundle(path: Path) -> bool:
    try:
        with _open(path) as file:
            return _BUNDLE.search(file.read(4096)) is not None
    except (OSError, EOFError, zlib.error):
        return False


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.name.endswith(".gz") else path.open("rb")


def _parse(place: str, text: bytes) -> SourceRecord:
    try:
        return SourceRecord(place, serialization.loads(text.removeprefix(b"\xef\xbb\xbf")))
    except (ValueError, RecursionError) as error:
        return SourceRecord(place, problem=f"not JSON: {error}")
