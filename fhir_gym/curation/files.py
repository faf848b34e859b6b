"""Files written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fhir_gym.errors import FhirGymError

__all__ = ["write_all", "write_whole"]


def write_all(files: Mapping[Path, str | bytes]) -> None:
    """Write some files, with their folders: all of them or, where one cannot be written, none.

    Each is written beside its place first; interrupted, all stays as it was. Of a link, what it points to is replaced.

    Raises:
        FhirGymError: One cannot be written.
    """
    parts: dict[Path, Path] = {}
    path = Path()
    try:
        for path, content in files.items():
            whole = path.expanduser().resolve()
            whole.parent.mkdir(parents=True, exist_ok=True)
            part = parts[whole] = whole.with_name(f".{whole.name}.{os.getpid()}.part")
            part.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))
        for whole, part in parts.items():
            part.replace(whole)
    except OSError as error:
        raise FhirGymError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        for part in parts.values():
            with suppress(OSError):  # most are in their places by now; of the others the first error tells
                part.unlink()


def write_whole(path: Path, text: str) -> None:
    """Write a text file, with its folder.

    Raises:
        FhirGymError: It cannot be written.
    """
    write_all({path: text})
