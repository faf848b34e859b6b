"""The folder of an experiment, which one process at a time may change; its progress and cost, read from the folder."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from fhir_gym.agents import Usage
from fhir_gym.agents.memory import Memory
from fhir_gym.errors import ExperimentError
from fhir_gym.experiments.manifest import MANIFEST, Manifest, MemoryRecord, read_manifest
from fhir_gym.files import LOCK, lock_folder
from fhir_gym.reflexion import training_usage
from fhir_gym.rollouts import Budget, BudgetTracker, Prices, Rollout, read_rollouts


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


ROLES = {"agent": "trainer", "evaluator": "evaluator", "reflector": "reflector"}
"""Maps each role of `training_usage` to the role in the manifest."""


@dataclass(frozen=True, slots=True)
class ModelPrices:
    """Prices of the tokens of several models.

    Attributes:
        default: Prices of all other models; None if they are unknown.
        by_model: Prices by the name of the model.
    """

    default: Prices | None = None
    by_model: Mapping[str, Prices] = field(default_factory=dict)

    def of(self, model: str) -> Prices | None:
        """Return the prices of a model; None if they are unknown."""
        return self.by_model.get(model, self.default)

    def cost(self, spent: Iterable[tuple[str, Usage]]) -> float | None:
        """Return the cost of the tokens of several models; None if a price is unknown."""
        if self.default is None and not self.by_model:
            return None
        total = 0.0
        for model, usage in spent:
            prices = self.of(model)
            if prices is None and usage.total:
                return None
            total += prices.cost(usage) if prices else 0.0
        return total


def training_spending(folder: Path, manifest: Manifest, memory: str) -> list[tuple[str, Usage]]:
    """Return the name and the tokens of each model that trains a memory."""
    training = manifest.training
    if training is None:
        return []
    spent = training_usage(memory_file(folder, memory))
    return [(training.models[ROLES[role]].model, usage) for role, usage in spent.items()]


def tracker_of(
    folder: Path, manifest: Manifest, max_tokens: int | None, max_cost: float | None, prices: ModelPrices
) -> BudgetTracker:
    """Return a tracker of the experiment's budget that has already counted the tokens in the folder.

    Raises:
        ExperimentError: There is a maximum cost, but the prices of a model are unknown.
    """
    models = [manifest.model, *(manifest.training.models.values() if manifest.training else ())]
    for record in models:
        if max_cost is not None and prices.of(record.model) is None:
            raise ExperimentError(f"a maximum cost needs the prices of {record.model}'s tokens")
    tracker = BudgetTracker(Budget(tokens=max_tokens, cost=max_cost, prices=prices.of(manifest.model.model)))
    for memory in dict.fromkeys(
        configuration.memory for configuration in manifest.configurations.values() if configuration.memory
    ):
        for model, usage in training_spending(folder, manifest, memory):
            tracker.spend(usage, prices.of(model))
    for name in manifest.configurations:
        for rollout in rollouts_of(folder, name):
            tracker.spend(rollout.usage or Usage())
    return tracker


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    """How far a memory is.

    Attributes:
        name: ``plain`` or ``spec``.
        trained: Whether the training is complete.
        tokens: Number of tokens used so far.
        cost: Their cost; None if a price is unknown.
    """

    name: str
    trained: bool
    tokens: int
    cost: float | None


@dataclass(frozen=True, slots=True)
class ConfigurationStatus:
    """How far a configuration is.

    Attributes:
        episodes: Number of test episodes, counting each repeat.
        done: Number of episodes with a verdict.
        successes: Number of successful episodes.
        errors: Number of episodes that failed without a verdict and must be repeated.
        first_error: Why the first of them failed; empty if there are none.
        tokens: Number of tokens used so far, including those of repeated episodes.
        cost: Their cost; None if the prices are unknown.
    """

    name: str
    episodes: int
    done: int
    successes: int
    errors: int
    first_error: str
    tokens: int
    cost: float | None


@dataclass(frozen=True, slots=True)
class ExperimentStatus:
    """How far an experiment is.

    Attributes:
        experiment: Name of the experiment.
        model: Name of the model.
        tokens: Number of all tokens.
        cost: Their cost; None if a price is unknown.
    """

    experiment: str
    model: str
    memories: tuple[MemoryStatus, ...]
    configurations: tuple[ConfigurationStatus, ...]
    tokens: int
    cost: float | None

    @property
    def missing(self) -> int:
        """Number of test episodes without a verdict."""
        return sum(configuration.episodes - configuration.done for configuration in self.configurations)

    @property
    def errors(self) -> int:
        """Number of episodes that failed without a verdict and must be repeated."""
        return sum(configuration.errors for configuration in self.configurations)

    @property
    def first_error(self) -> str:
        """Why the first of these episodes failed; empty if there are none."""
        return next((configuration.first_error for configuration in self.configurations if configuration.errors), "")

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self) | {"missing": self.missing, "errors": self.errors}


def experiment_status(folder: str | Path, prices: ModelPrices | None = None) -> ExperimentStatus:
    """Return how far an experiment is. The experiment may be running.

    Raises:
        ExperimentError: The folder holds no experiment.
        RecordError: A rollout file is unreadable.
    """
    path, manifest, prices = Path(folder), require_manifest(folder), prices or ModelPrices()
    memory_names = dict.fromkeys(
        configuration.memory for configuration in manifest.configurations.values() if configuration.memory
    )
    spent = {name: training_spending(path, manifest, name) for name in memory_names}
    memories = tuple(
        MemoryStatus(
            name,
            name in manifest.memories and memory_file(path, name).exists(),
            sum(usage.total for _, usage in spent[name]),
            prices.cost(spent[name]),
        )
        for name in memory_names
    )
    configurations = tuple(_configuration(path, manifest, name, prices) for name in manifest.configurations)
    parts: list[MemoryStatus | ConfigurationStatus] = [*memories, *configurations]
    costs = [part.cost for part in parts if part.cost is not None]
    return ExperimentStatus(
        manifest.experiment,
        manifest.model.model,
        memories,
        configurations,
        sum(part.tokens for part in parts),
        sum(costs) if len(costs) == len(parts) else None,
    )


def _configuration(folder: Path, manifest: Manifest, name: str, prices: ModelPrices) -> ConfigurationStatus:
    usage = Usage()
    done: dict[tuple[str, str, int, int], bool] = {}
    failed: dict[tuple[str, str, int, int], str] = {}
    for rollout in rollouts_of(folder, name):
        episode = (rollout.env_id, rollout.task.key, rollout.task.variation, rollout.repeat)
        usage += rollout.usage or Usage()
        if rollout.graded:
            done[episode] = bool(rollout.success)
        else:
            failed.setdefault(episode, rollout.error or f"the episode was {rollout.stop_reason}")
    errors = [text for episode, text in failed.items() if episode not in done]
    return ConfigurationStatus(
        name=name,
        episodes=manifest.test.episodes * manifest.repeats,
        done=len(done),
        successes=sum(done.values()),
        errors=len(errors),
        first_error=errors[0] if errors else "",
        tokens=usage.total,
        cost=prices.cost([(manifest.model.model, usage)]),
    )
