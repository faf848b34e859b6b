"""The folder beside a memory file that keeps the work of its training."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from fhir_gym.agents import Completion, Usage
from fhir_gym.agents.memory import Memory
from fhir_gym.errors import TrainingBudgetError, TrainingError
from fhir_gym.files import lock_folder, require_writable, write_file
from fhir_gym.rollouts import BudgetTracker, Rollout, read_rollouts
from fhir_gym.types import Json

ROLES = ("agent", "evaluator", "reflector")
"""Roles of the models of a memory training."""


def require_budget(tracker: BudgetTracker) -> None:
    """Raise if no further request may be sent.

    Raises:
        TrainingBudgetError: The budget is spent.
    """
    if tracker.exhausted:
        raise TrainingBudgetError(
            f"the budget of the memory training is spent after {tracker.usage.total:,} tokens; nothing is lost: "
            "run it again with a larger budget"
        )


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
    usage_by_role: dict[str, Usage] = {}
    for number, line in enumerate(_complete_lines(path, repair=False), start=1):
        entry, completion = _parsed(line, f"{path}:{number}")
        if completion.usage:
            usage_by_role[entry["role"]] = usage_by_role.get(entry["role"], Usage()) + completion.usage
    return usage_by_role


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


_CONFIG = "config.json"


class TrainingFolder:
    """The folder of one memory training; a context manager that keeps other processes out.

    It is named like the memory file, with ``.training`` at the end. It holds the settings, the rollouts of each trial
    and the replies of the evaluator and the reflector.

    Args:
        out: The memory file.
        identity: The settings that decide the memory.

    Raises:
        TrainingError: The memory file or the folder belongs to a training with other settings, or the folder is in
            use.
    """

    def __init__(self, out: Path, identity: Mapping[str, Json]) -> None:
        self.out = out
        self.path = training_path(out)
        self.identity: Json = json.loads(json.dumps(identity))
        require_writable(out, TrainingError)
        if self.path.exists() and not self.path.is_dir():
            raise TrainingError(f"{self.path} is not a folder")

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(self.path, TrainingError)
        try:
            self._require_same_settings()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def finished(self) -> Memory | None:
        """Return the memory if the training is complete.

        Raises:
            TrainingError: The file is a memory that was made with other settings.
        """
        if not self.out.exists():
            return None
        memory = Memory.load(self.out)
        if memory.header.training.get("settings") != self.identity:
            raise TrainingError(f"{self.out} was trained with other settings: choose another file, or delete it")
        return memory

    def journal(self) -> ReplyJournal:
        """Return the replies of the evaluator and the reflector."""
        return ReplyJournal(self.path / "replies.jsonl")

    def usage(self) -> dict[str, Usage]:
        """Return the tokens spent so far by role."""
        return folder_usage(self.path)

    def rollout_file(self, trial: int) -> Path:
        """Return the file with the rollouts of a trial, which are numbered from 1."""
        return self.path / f"trial-{trial}.jsonl"

    def rollouts(self, trial: int) -> Sequence[Rollout]:
        """Return the rollouts of a trial that are on disk, in the order of their writing."""
        path = self.rollout_file(trial)
        if not path.exists():
            return ()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the next writer removes an incomplete line
            return tuple(read_rollouts(path))

    def _require_same_settings(self) -> None:
        file = self.path / _CONFIG
        if not file.exists():
            write_file(file, json.dumps(self.identity, indent=2) + "\n", TrainingError)
            return
        try:
            recorded = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise TrainingError(f"{file} cannot be read: {error}") from error
        if recorded != self.identity:
            raise TrainingError(
                f"{self.path} holds the work of a training with other settings: choose another memory file, "
                "or delete this folder"
            )


def training_path(out: Path) -> Path:
    """Return the folder of the training of a memory file."""
    return out.with_name(f"{out.name}.training")


def training_usage(out: str | Path) -> dict[str, Usage]:
    """Return the tokens that the training of a memory file has spent so far, by role.

    It may be called before, during and after a training.

    Returns:
        The tokens of the roles ``agent``, ``evaluator`` and ``reflector``.
    """
    return folder_usage(training_path(Path(out)))


def folder_usage(folder: Path) -> dict[str, Usage]:
    """Return the tokens by role that a training folder accounts for. The folder may be missing or in use."""
    total = Usage()
    for path in sorted(folder.glob("trial-*.jsonl")):
        for line in path.read_bytes().splitlines(keepends=True):
            usage = json.loads(line).get("usage") if line.endswith(b"\n") else None
            total += Usage.model_validate(usage) if usage else Usage()
    journalled = journal_usage(folder / "replies.jsonl")
    return {role: journalled.get(role, Usage()) for role in ROLES} | {"agent": total}
