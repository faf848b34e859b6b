"""The folder beside a memory file that keeps the work of its training."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from fhir_gym.agents import Usage
from fhir_gym.agents.memory import Memory
from fhir_gym.errors import TrainingError
from fhir_gym.files import lock_folder, require_writable, write_file
from fhir_gym.reflexion.journal import ReplyJournal
from fhir_gym.reflexion.spending import folder_usage
from fhir_gym.rollouts import Rollout, read_rollouts
from fhir_gym.types import Json

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
            known = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise TrainingError(f"{file} cannot be read: {error}") from error
        if known != self.identity:
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

    Args:
        out: The memory file.

    Returns:
        The tokens of the roles ``agent``, ``evaluator`` and ``reflector``.
    """
    return folder_usage(training_path(Path(out)))
