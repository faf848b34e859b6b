"""A file of model replies, so that an interrupted training does not pay for a reply twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fhir_gym.agents import Completion, Usage
from fhir_gym.errors import TrainingError


class ReplyJournal:
    """Appends each reply to a file as soon as it arrives, and finds it again when the request is repeated.

    Args:
        path: The file; it is made with the first reply.

    Raises:
        TrainingError: The file cannot be read, or has a damaged line before its last one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._replies: dict[str, Completion] = {}
        for number, line in enumerate(_complete_lines(path), start=1):
            entry, completion = _parsed(line, f"{path}:{number}")
            self._replies.setdefault(entry["key"], completion)

    def find(self, key: str) -> Completion | None:
        """Return the reply to a request; None if the request is new."""
        return self._replies.get(key)

    def add(self, key: str, role: str, completion: Completion) -> None:
        """Append a reply.

        Raises:
            TrainingError: The file cannot be written.
        """
        self._replies[key] = completion
        plain = completion.model_dump(mode="json", exclude_defaults=True)
        line = json.dumps({"key": key, "role": role, "completion": plain}) + "\n"
        try:
            with self._path.open("ab") as file:
                file.write(line.encode())
        except OSError as error:
            raise TrainingError(f"{self._path} cannot be written: {error.strerror or error}") from error


def request_key(role: str, request: Mapping[str, Any]) -> str:
    """Return the key of a request in a `ReplyJournal`."""
    text = json.dumps([role, request], sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def journal_usage(path: Path) -> dict[str, Usage]:
    """Return the tokens of the replies in a journal by role. The file may be missing, or be written at the moment."""
    found: dict[str, Usage] = {}
    for number, line in enumerate(_complete_lines(path, repair=False), start=1):
        entry, completion = _parsed(line, f"{path}:{number}")
        if completion.usage:
            found[entry["role"]] = found.get(entry["role"], Usage()) + completion.usage
    return found


def _parsed(line: bytes, where: str) -> tuple[dict[str, Any], Completion]:
    try:
        entry = json.loads(line)
        return {"key": str(entry["key"]), "role": str(entry["role"])}, Completion.model_validate(entry["completion"])
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError):
        raise TrainingError(f"{where} is not a model's reply: delete the line to ask again") from None


def _complete_lines(path: Path, *, repair: bool = True) -> list[bytes]:
    """Return the lines of a file without an incomplete last line, which is removed from the file if `repair`."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TrainingError(f"{path} cannot be read: {error.strerror or error}") from error
    complete = content.rfind(b"\n") + 1
    if repair and complete < len(content):
        with path.open("rb+") as file:
            file.truncate(complete)
    return content[:complete].splitlines()
