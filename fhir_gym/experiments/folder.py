"""The folder of an experiment, which one process at a time may change."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from fhir_gym.agents.memory import Memory
from fhir_gym.errors import ExperimentError
from fhir_gym.experiments.manifest import MANIFEST, Manifest, MemoryRecord, read_manifest
from fhir_gym.files import LOCK, lock_folder
from fhir_gym.rollouts import Rollout, read_rollouts


class ExperimentFolder:
    """The folder of an experiment; a context manager.

    An experiment that is already in the folder continues; its manifest gets the new configurations. A manifest without
    any results is replaced.

    Args:
        manifest: The manifest of the experiment that is about to run.

    Raises:
        ExperimentError: The folder holds another experiment or other files, or another process uses it.
    """

    def __init__(self, path: str | Path, manifest: Manifest) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise ExperimentError(f"{self.path} is not a folder")
        recorded = read_manifest(self.path)
        if recorded is None:
            _require_empty(self.path)
        elif _has_no_results(self.path):
            recorded = None  # the earlier run ended before its first episode, so its settings may be replaced
        else:
            _require_same(self.path, recorded, manifest)
        self._lock = lock_folder(self.path, ExperimentError)
        try:
            self.manifest = manifest if recorded is None else recorded.extended(manifest)
            self.manifest.save(self.path)
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def save_memory(self, name: str, memory: Memory) -> None:
        """Record a trained memory in the manifest.

        Raises:
            ExperimentError: The folder's rollouts were made with another memory.
        """
        record = MemoryRecord(file=str(memory_file(Path(), name)), hash=memory.hash)
        recorded = self.manifest.memories.get(name)
        if recorded is not None and recorded != record:
            raise ExperimentError(
                f"{memory_file(self.path, name)} is not the memory of this experiment any more: its hash is "
                f"{record.hash}, not {recorded.hash}; restore the file, or use another folder"
            )
        if recorded is None:
            self.manifest = self.manifest.model_copy(update={"memories": {**self.manifest.memories, name: record}})
            self.manifest.save(self.path)


def rollout_file(folder: Path, configuration: str) -> Path:
    """Return the path of a configuration's rollouts."""
    return folder / "rollouts" / f"{configuration}.jsonl"


def rollouts_of(folder: Path, configuration: str) -> Iterator[Rollout]:
    """Yield a configuration's rollouts. The file may be missing, and another process may write to it.

    Raises:
        RecordError: The file is unreadable.
    """
    file = rollout_file(folder, configuration)
    if file.exists():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about an incomplete last line
            yield from read_rollouts(file)


def memory_file(folder: Path, name: str) -> Path:
    """Return the path of a memory."""
    return folder / "memory" / f"{name}.jsonl"


def require_manifest(folder: str | Path) -> Manifest:
    """Read the manifest of an experiment's folder.

    Raises:
        ExperimentError: The folder holds no experiment, or one of another version.
    """
    manifest = read_manifest(Path(folder))
    if manifest is None:
        raise ExperimentError(f"{folder} holds no experiment: it has no {MANIFEST}")
    return manifest


def _require_empty(folder: Path) -> None:
    if folder.is_dir() and not _has_no_results(folder):
        raise ExperimentError(f"{folder} contains other files than an experiment; use another folder")


def _has_no_results(folder: Path) -> bool:
    """Whether a folder contains at most the files that a run writes before its first episode."""
    names = [child.name for child in folder.iterdir()]
    return all(name in (LOCK, MANIFEST) or name.startswith(f".{MANIFEST}.") for name in names)


def _require_same(folder: Path, recorded: Manifest, manifest: Manifest) -> None:
    differing = recorded.differences(manifest)
    if differing:
        raise ExperimentError(
            f"{folder} holds an experiment with other settings: {'; '.join(differing)}. "
            "Use the same settings to continue it, or another folder"
        )
    if recorded.package_version != manifest.package_version:
        warnings.warn(
            f"{folder} was started with fhir_gym {recorded.package_version} and continues with "
            f"{manifest.package_version}; results may differ",
            stacklevel=4,
        )
