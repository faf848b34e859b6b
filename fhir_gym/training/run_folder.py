"""The folder of a training run: config, checkpoints and metrics, safe against a kill at any moment."""

from __future__ import annotations

import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Self

import fhir_gym
from fhir_gym.errors import TrainingError
from fhir_gym.files import LOCK, lock_folder, write_file
from fhir_gym.training.config import TrainingConfig
from fhir_gym.training.evaluation import Evaluation

_CONFIG, _METRICS, _CHECKPOINTS = "config.json", "metrics.jsonl", "checkpoints"
_STATE = "run_folder.json"
"""File of a checkpoint with the state of the run folder itself."""
_KEPT = 2
"""Number of checkpoints to keep."""

Row = dict[str, Any]


class Checkpoint(NamedTuple):
    """A complete checkpoint.

    Attributes:
        step: Number of training steps done.
        path: The folder that `RunFolder.save_checkpoint` wrote.
    """

    step: int
    path: Path


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The record of a training run, read from its folder.

    Attributes:
        path: The folder.
        recipe: Name of the recipe.
        version: Version of fhir_gym that started the run.
        config: The config as plain data.
        rows: The rows of ``metrics.jsonl``.
    """

    path: Path
    recipe: str
    version: str
    config: dict[str, Any]
    rows: tuple[Row, ...]

    def evaluations(self, name: str = "test") -> list[tuple[int, Evaluation]]:
        """Return the evaluations of one name with their steps."""
        rows = (row for row in self.rows if row.get("evaluation") == name)
        return [(row["step"], Evaluation.from_plain(row)) for row in rows]

    def evaluation_names(self) -> list[str]:
        """Return the names of the evaluations in the order of their first row."""
        return list(dict.fromkeys(row["evaluation"] for row in self.rows if "evaluation" in row))

    def metrics(self) -> list[Row]:
        """Return the rows that `RunFolder.log` wrote."""
        return [row for row in self.rows if "evaluation" not in row]


class RunFolder:
    """The folder of one training run; a context manager.

    A new folder, or one whose run ended before it did anything, gets the config. A folder with the same recipe and
    config resumes: rows that were logged after its last
    checkpoint are dropped, because that part of the run is repeated. So a recipe restores everything that decides how
    the run goes on (weights, optimizer, counters, random states, curriculum) from the checkpoint and from nothing else.

    Args:
        recipe: Name of the recipe, such as ``"sft"``.

    Raises:
        TrainingError: The folder holds a run of another recipe or with another config, holds other files, or is in use
            by another process.

    Examples:
        >>> with RunFolder("runs/a", recipe="sft", config=config) as folder:  # doctest: +SKIP
        ...     done = folder.latest_checkpoint()
        ...     step = done.step if done else 0
        ...     folder.log(step, {"loss": 1.5})
        ...     folder.save_checkpoint(step, lambda path: model.save_pretrained(path))
    """

    def __init__(self, path: str | Path, *, recipe: str, config: TrainingConfig) -> None:
        self.path = Path(path)
        self._config, self._recipe = config, recipe
        self._board: Any = None
        self._spent_before = 0.0
        if self.path.exists() and not self.path.is_dir():
            raise TrainingError(f"{self.path} is not a folder")
        recorded = _read_config(self.path)
        if recorded is None:
            self._require_empty()
        elif all(child.name in (_CONFIG, LOCK) for child in self.path.iterdir()):
            recorded = None  # the earlier run ended before it did anything, so its config may be replaced
        else:
            self._require_equal(recorded)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(self.path, TrainingError)
        try:
            if recorded is None:
                content = {"recipe": recipe, "fhir_gym": fhir_gym.__version__, "config": config.model_dump(mode="json")}
                write_file(self.path / _CONFIG, json.dumps(content, indent=2) + "\n", TrainingError)
            self._roll_back()
        except BaseException:
            self.close()
            raise
        self._cpu_start = time.process_time()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder."""
        if self._board:
            self._board.close()
        self._board = None
        self._lock.release()

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of this process for the run, including those of earlier processes up to their checkpoints."""
        return self._spent_before + time.process_time() - self._cpu_start

    def latest_checkpoint(self) -> Checkpoint | None:
        """Return the latest complete checkpoint; None if there is none."""
        return next(reversed(_checkpoints(self.path)), None)

    def save_checkpoint(self, step: int, write: Callable[[Path], None]) -> None:
        """Save a checkpoint; a kill at any moment leaves either the previous state or the new one.

        Args:
            step: Number of training steps done.
            write: Function that writes the files of the checkpoint into an existing empty folder.
        """
        folder = self.path / _CHECKPOINTS
        folder.mkdir(exist_ok=True)
        self._drop_unfinished()
        # The serial number keeps an older checkpoint of the same step until the new one is complete.
        name = f"{self._serial:06d}-step-{step}"
        part = folder / f".{name}.part"
        part.mkdir()
        write(part)
        _sync(self._metrics)
        state = {"metrics_bytes": _size(self._metrics), "cpu_seconds": round(self.cpu_seconds, 3)}
        (part / _STATE).write_text(json.dumps(state), "utf-8")
        for file in sorted(part.rglob("*")):
            _sync(file)
        _sync(part)
        part.replace(folder / name)
        _sync(folder)
        self._serial += 1
        for old in _checkpoints(self.path)[:-_KEPT]:
            shutil.rmtree(old.path, ignore_errors=True)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append numbers to ``metrics.jsonl``, and to TensorBoard if it is installed.

        Args:
            step: Number of training steps done.
            metrics: The numbers by name.
        """
        self._append({"step": step, **metrics, "cpu_seconds": round(self.cpu_seconds, 3)})
        for name, value in metrics.items():
            self._add_scalar(f"train/{name}", value, step)

    def log_evaluation(self, step: int, evaluation: Evaluation, name: str = "test") -> None:
        """Append an evaluation to ``metrics.jsonl``, and its success rate to TensorBoard.

        Args:
            step: Number of training steps done.
            evaluation: The evaluation.
            name: ``"test"`` for the curve on test variations; other names, such as ``"held_out"``, ``"start"``,
                ``"random"`` and ``"ceiling"``, are references in the report.
        """
        figures = {"success": round(evaluation.success, 6), "cpu_seconds": round(self.cpu_seconds, 3)}
        self._append({"step": step, "evaluation": name, **figures, **evaluation.plain()})
        self._add_scalar(f"{name}/success", evaluation.success, step)
        for metric, value in evaluation.metrics.items():
            self._add_scalar(f"{name}/{metric}", value, step)

    def rows(self) -> list[Row]:
        """Return all rows of ``metrics.jsonl``."""
        return list(_rows(self._metrics))

    def record(self) -> RunRecord:
        """Return the record of the run so far."""
        return read_run(self.path)

    @property
    def _metrics(self) -> Path:
        return self.path / _METRICS

    def _append(self, row: Row) -> None:
        with self._metrics.open("ab") as file:
            file.write((json.dumps(row) + "\n").encode())

    def _add_scalar(self, name: str, value: float, step: int) -> None:
        if self._board is None:
            self._board = _tensorboard(self.path / "tensorboard", self._purge_step)
        if self._board:
            self._board.add_scalar(name, value, step)

    def _roll_back(self) -> None:
        """Drop unfinished checkpoints, and the rows after the last checkpoint."""
        self._drop_unfinished()
        last = self.latest_checkpoint()
        self._purge_step = last.step + 1 if last else 0
        self._serial = int(last.path.name.partition("-")[0]) + 1 if last else 0
        state = {"metrics_bytes": 0, "cpu_seconds": 0.0}
        if last is not None:
            state = json.loads((last.path / _STATE).read_text("utf-8"))
        self._spent_before = state["cpu_seconds"]
        if _size(self._metrics) > state["metrics_bytes"]:
            os.truncate(self._metrics, int(state["metrics_bytes"]))

    def _drop_unfinished(self) -> None:
        for part in (self.path / _CHECKPOINTS).glob(".*.part"):
            shutil.rmtree(part, ignore_errors=True)

    def _require_empty(self) -> None:
        if self.path.is_dir() and any(child.name != LOCK for child in self.path.iterdir()):
            raise TrainingError(f"{self.path} contains other files than a training run; use another folder")

    def _require_equal(self, recorded: Mapping[str, Any]) -> None:
        if recorded["recipe"] != self._recipe:
            raise TrainingError(
                f"{self.path} holds a run of recipe {recorded['recipe']!r}, not {self._recipe!r}; use another folder"
            )
        new, changeable = self._config.model_dump(mode="json"), type(self._config).changeable
        differing = [
            f"{name} is {json.dumps(recorded['config'].get(name))} there and {json.dumps(new.get(name))} here"
            for name in sorted({*recorded["config"], *new} - changeable)
            if recorded["config"].get(name) != new.get(name)
        ]
        if differing:
            raise TrainingError(
                f"{self.path} holds a run with another config: {'; '.join(differing)}. "
                "Use the same config to resume it, or another folder"
            )
        if recorded["fhir_gym"] != fhir_gym.__version__:
            warnings.warn(
                f"{self.path} was started with fhir_gym {recorded['fhir_gym']} and continues with "
                f"{fhir_gym.__version__}; results may differ",
                stacklevel=3,
            )


def read_run(path: str | Path) -> RunRecord:
    """Read the record of a training run; the run may still be in progress.

    Raises:
        TrainingError: The folder holds no training run.
    """
    folder = Path(path)
    recorded = _read_config(folder)
    if recorded is None:
        raise TrainingError(f"{folder} holds no training run: it has no {_CONFIG}")
    return RunRecord(
        folder, recorded["recipe"], recorded["fhir_gym"], recorded["config"], tuple(_rows(folder / _METRICS))
    )


def _read_config(folder: Path) -> dict[str, Any] | None:
    path = folder / _CONFIG
    try:
        recorded = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path} cannot be read: {error}") from error
    if not isinstance(recorded, dict) or not {"recipe", "fhir_gym", "config"} <= recorded.keys():
        raise TrainingError(f"{path} is not the config of a training run")
    return recorded


def _rows(path: Path) -> Iterator[Row]:
    """Yield the complete rows; a killed writer may leave an incomplete last line."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


def _checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the complete checkpoints, the latest last."""
    paths = sorted((folder / _CHECKPOINTS).glob("[0-9]*-step-*"))
    return [Checkpoint(int(path.name.rpartition("-")[2]), path) for path in paths]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _sync(path: Path) -> None:
    """Write a file or folder through to the disk."""
    if path.is_dir() and os.name == "nt":  # Windows cannot open folders
        return
    if path.exists():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _tensorboard(folder: Path, purge_step: int) -> Any:
    """Return a TensorBoard writer that replaces the rows from `purge_step` on; False without TensorBoard."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that TensorBoard imports
        try:
            module = import_module("torch.utils.tensorboard")
        except ImportError:
            return False
        return module.SummaryWriter(str(folder), purge_step=purge_step)
