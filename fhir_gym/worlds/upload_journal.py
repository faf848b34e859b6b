"""On-disk record of how far an upload has come, so that the next run knows which resources this upload wrote.

A batch is noted before it is sent. The next run reads from the server which of the noted resources arrived.
"""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path

from fhir_gym.errors import WorldError
from fhir_gym.fhir import World
from fhir_gym.worlds.cache import cache_dir


class UploadJournal:
    """The record of the upload of one world to one server.

    Args:
        path: The file.
        head: The first line, which identifies the upload.

    Attributes:
        sent: Number of resources, in the order of the plan, that may have been sent.
    """

    def __init__(self, path: Path, head: dict[str, str]) -> None:
        self._path = path
        try:
            self.sent = self._read(head)
        except (OSError, ValueError, TypeError) as error:
            raise self._unusable(error) from error

    def note(self, sent: int) -> None:
        """Note that the resources before this position of the plan are about to be sent."""
        if sent > self.sent:
            self._write({"sent": sent})
            self.sent = sent

    def remove(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)

    def _read(self, head: dict[str, str]) -> int:
        text = self._path.read_bytes() if self._path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]  # drop an incomplete last line
        if whole != text:
            os.truncate(self._path, len(whole))
        lines = [json.loads(line) for line in whole.splitlines()]
        if not lines:
            self._write(head)
        elif lines[0] != head:
            raise ValueError("it belongs to another upload; delete it")
        return max((int(line["sent"]) for line in lines[1:]), default=0)

    def _write(self, line: dict[str, str] | dict[str, int]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> WorldError:
        reason = error.strerror if isinstance(error, OSError) else error
        return WorldError(f"cannot use the journal {self._path}: {reason or error}")


def upload_journal(world: World, server: str, name: str) -> UploadJournal:
    """Open the journal of an upload; the caller holds the server's lock.

    Args:
        world: The world.
        server: Base URL of the server.
        name: The server's name in file names.
    """
    content = world.manifest.content_hash
    key = sha256(f"{server} {content}".encode()).hexdigest()[:16]
    path = cache_dir() / "uploads" / f"{name}-{key}.jsonl"
    return UploadJournal(path, {"server": server, "content_hash": content})
