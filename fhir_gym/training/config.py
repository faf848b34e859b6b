"""The settings that all training recipes share, and their TOML files."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import ArgumentError, FhirGymError, TrainingError
from fhir_gym.rollouts import parse_numbers
from fhir_gym.tasks import RewardRule, TrainOrTest, find_task, get_pack, task_set

ConfigT = TypeVar("ConfigT", bound="TrainingConfig")


class TaskName(NamedTuple):
    """A task of a pack."""

    env_id: str
    task: str


class TrainingConfig(BaseModel):
    """Settings of a training run that every recipe has; a recipe's own config adds fields.

    Attributes:
        env_ids: The packs.
        tasks: Keys of the tasks; empty for all tasks of the packs. A key stands for the task of each pack that has it;
            ``"MedAgentBench-v0/01"`` names one pack's task. The same holds for `held_out`.
        held_out: Keys of tasks that are never trained on and are evaluated separately, or ``"pack"`` for the held-out
            tasks of the packs.
        train: Training variations of each task, such as ``"0-199"``; below 1000.
        test: Test variations of each task, such as ``"1000-1019"``; from 1000 on.
        seed: Seed of all random choices.
        reward: ``"sparse"`` or ``"dense"``; see `Verdict.reward`.
        max_steps: Number of actions after which an episode is truncated; None for the pack's limit.
        evaluate_every: Number of training steps between evaluations on the test variations; 0 for the end only. The
            recipe defines the unit of a step.
        checkpoint_every: Number of training steps between checkpoints.
        threads: Number of CPU threads of torch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    changeable: ClassVar[frozenset[str]] = frozenset({"threads"})
    """Fields that may differ when a run is resumed, because they do not change its results."""

    env_ids: tuple[str, ...] = Field(default=("FHIRAgent/Appointment-v0",), min_length=1)
    tasks: tuple[str, ...] = ()
    held_out: tuple[str, ...] | Literal["pack"] = ()
    train: str = "0-199"
    test: str = "1000-1019"
    seed: int = Field(default=0, ge=0, lt=1 << 31)
    reward: RewardRule = "sparse"
    max_steps: int | None = Field(default=None, ge=1)
    evaluate_every: int = Field(default=0, ge=0)
    checkpoint_every: int = Field(default=1, ge=1)
    threads: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Refuse unknown tasks and variations of the other split."""
        try:
            self.numbers("train")
            self.numbers("test")
            if not self.train_tasks():
                raise ArgumentError("all tasks are held out; no task remains for training")
        except FhirGymError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def train_variations(self) -> tuple[int, ...]:
        """Numbers of the training variations."""
        return self.numbers("train")

    @property
    def test_variations(self) -> tuple[int, ...]:
        """Numbers of the test variations."""
        return self.numbers("test")

    def numbers(self, split: TrainOrTest) -> tuple[int, ...]:
        """Return the variation numbers of a split.

        Raises:
            ArgumentError: A number does not belong to the split.
        """
        config = EpisodeConfig(self.env_ids[0], split=split)
        try:
            return config.require_variations(parse_numbers(getattr(self, split)))
        except FhirGymError as error:
            raise ArgumentError(f"{split}: {error}") from error

    def train_tasks(self) -> list[TaskName]:
        """Return the tasks to train on, by pack and in the order of the config or of the pack."""
        return [name for name in self._chosen() if name not in set(self.held_out_tasks())]

    def held_out_tasks(self) -> list[TaskName]:
        """Return the tasks that are evaluated but never trained on."""
        if self.held_out == "pack":
            return [name for name in self._chosen() if name.task in get_pack(name.env_id).held_out]
        return self._find("held_out", self.held_out) if self.held_out else []

    def _chosen(self) -> list[TaskName]:
        if self.tasks:
            return self._find("tasks", self.tasks)
        return [TaskName(env_id, key) for env_id in dict.fromkeys(self.env_ids) for key in task_set(env_id)]

    def _find(self, field: str, keys: tuple[str, ...]) -> list[TaskName]:
        """Return the tasks with these keys; each key must exist in at least one pack."""
        tasks_by_env = {env_id: task_set(env_id) for env_id in self.env_ids}
        packs = {env_id.rpartition("/")[2]: env_id for env_id in self.env_ids}
        names: dict[TaskName, None] = {}
        for name in keys:
            pack, _, key = name.rpartition("/")
            if pack and pack not in packs:
                raise ArgumentError(f"{field}: {name!r} names none of the packs {', '.join(packs)}")
            env_ids = [packs[pack]] if pack else self.env_ids
            having = [env_id for env_id in env_ids if key in tasks_by_env[env_id]]
            if not having and len(env_ids) > 1:
                raise ArgumentError(f"{field}: no task {key!r} in {', '.join(tasks_by_env)}")
            for env_id in having or env_ids:
                names[TaskName(env_id, find_task(tasks_by_env[env_id], key).key)] = None
        return list(names)


def load_config(path: str | Path, kind: type[ConfigT], **changes: Any) -> ConfigT:
    """Read a recipe's config from a TOML file.

    Args:
        path: The file.
        kind: The recipe's config class.
        changes: Fields that replace those of the file.

    Raises:
        TrainingError: The file cannot be read.
        ArgumentError: A field is unknown or has a wrong value.
    """
    try:
        text = Path(path).read_text("utf-8-sig")  # some editors write a byte order mark
    except OSError as error:
        raise TrainingError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TrainingError(f"{path} is not UTF-8 text") from error
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ArgumentError(f"{path} is not valid TOML: {error}") from error
    return make_config(kind, fields | changes, str(path))


def make_config(kind: type[ConfigT], fields: Mapping[str, Any], source: str = "config") -> ConfigT:
    """Make a recipe's config from plain data; see `load_config`."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise ArgumentError(f"{source}: {_explain(error, kind)}") from error


def _explain(error: ValidationError, kind: type[BaseModel]) -> str:
    """Return the first problem in one line, naming the field and, for an unknown field, the valid names."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        names = sorted(kind.model_fields)
        near = get_close_matches(place, names, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        return f"unknown field {place!r}{hint} Fields: {', '.join(names)}"
    if first["type"] == "missing":
        return f"the field {place!r} is missing"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{place} {message}" if place else message
