"""The settings of an experiment, and its manifest: everything that is needed to repeat it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from fhir_gym.agents import Agent, make_agent
from fhir_gym.agents.factory import CONFIGURATIONS, Configuration
from fhir_gym.arguments import require_name, require_whole
from fhir_gym.errors import ArgumentError, ExperimentError, UnknownNameError
from fhir_gym.fhir import World
from fhir_gym.files import write_file
from fhir_gym.reflexion import ModelSettings
from fhir_gym.rollouts import TaskRecord
from fhir_gym.specification import Specification
from fhir_gym.tasks import GRADINGS, Experiment, Grading, Part, experiment_packs, get_experiment, get_task, task_keys
from fhir_gym.types import Json, Phrasing, Wording

EpisodeName = tuple[str, str, int, Wording]
"""Env id, task key, variation and wording."""

STUDY_CONFIGURATIONS = tuple(
    name for name, configuration in CONFIGURATIONS.items() if configuration.protocol == "tools"
)
"""Names of the five configurations of FHIR-AgentEval's study."""

EMBEDDERS = ("hashed", "minilm")
"""Names of the embedders that need no further settings."""

_OWN_OPTIONS = ("model", "base_url", "api_key", "protocol", "tools", "memory", "system")
"""Settings of the chat agent that the experiment itself sets."""


@dataclass(frozen=True, slots=True)
class ExperimentConfig:
    """The settings of an experiment.

    Attributes:
        experiment: Name of the experiment; see `fhir_gym.tasks.EXPERIMENTS`.
        model: Name of the model that is tested.
        configurations: Names of the configurations of the agent ``chat``; see `fhir_gym.agents.factory`. Another agent
            has none.
        agent: The agent that is tested: ``chat``, another name or ``module:Class``; see `make_agent`.
        base_url: The model's endpoint; None for ``OPENAI_BASE_URL`` or OpenAI's endpoint.
        training_model: Model of the agent in the memory's training; None for `model`.
        evaluator_model: Model that evaluates training episodes; None for `model`.
        reflector_model: Model that writes reflections; None for `model`.
        training_base_url: Endpoint of these three models; None for `base_url`.
        env_ids: The packs; empty for the packs that are modelled on FHIR-AgentEval.
        tasks: Keys of the tasks to keep; empty for all tasks of the experiment.
        repeats: Number of runs of each test episode; None for the experiment's own number.
        seed: Seed of the run.
        settings: Further settings of the agent, such as ``{"temperature": 0}``, in training and testing.
        training_settings: Settings of the evaluator's and the reflector's model, such as ``{"max_tokens": 1024}``.
        grading: What counts as success; see `fhir_gym.tasks.grade`.
        max_steps: Step limit of an episode; None for the pack's limit.
        embedder: Embedder of the memory: ``hashed`` or ``minilm``.

    Raises:
        UnknownNameError: An experiment, configuration, pack, task or grading does not exist.
        ArgumentError: The experiment has no episodes with these settings, or a setting is invalid.
    """

    experiment: str
    model: str
    configurations: tuple[str, ...]
    base_url: str | None = None
    training_model: str | None = None
    evaluator_model: str | None = None
    reflector_model: str | None = None
    training_base_url: str | None = None
    env_ids: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    repeats: int | None = None
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    training_settings: Mapping[str, Any] = field(default_factory=dict)
    grading: Grading = "state"
    max_steps: int | None = None
    embedder: str = "hashed"
    agent: str = "chat"

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        get_experiment(self.experiment)
        if self.agent != "chat" and self.configurations:
            raise ArgumentError(f"only the agent chat has configurations, not {self.agent}: leave them out")
        if self.agent == "chat" and not self.configurations:
            raise ArgumentError(f"an experiment needs configurations, such as {', '.join(CONFIGURATIONS)}")
        for name in self.configurations:
            require_name("configuration", name, CONFIGURATIONS)
        require_name("grading", self.grading, GRADINGS)
        require_whole("repeats", self.run_count, 1)
        require_name("embedder", self.embedder, EMBEDDERS)
        for name in (*self.settings, *self.training_settings):
            if name in _OWN_OPTIONS and self.agent == "chat":
                raise ArgumentError(f"the experiment sets {name} itself; it cannot be a further setting")
        self._require_training_settings()
        keys_of_packs = {key for env_id in self.packs for key in task_keys(env_id)}
        for key in self.tasks:
            if key not in keys_of_packs:
                raise UnknownNameError("task", key, sorted(keys_of_packs))
        self._require_episodes()

    @property
    def definition(self) -> Experiment:
        """The experiment."""
        return get_experiment(self.experiment)

    @property
    def chosen(self) -> tuple[Configuration, ...]:
        """The configurations without duplicates; for another agent than ``chat``, one of the name ``agent``."""
        if self.agent != "chat":
            return (Configuration("agent", f"The agent {self.agent}.", "text"),)
        return tuple(CONFIGURATIONS[name] for name in dict.fromkeys(self.configurations))

    @property
    def packs(self) -> tuple[str, ...]:
        """The env ids of the packs."""
        return tuple(dict.fromkeys(self.env_ids)) or experiment_packs()

    @property
    def run_count(self) -> int:
        """Number of runs of each test episode."""
        return self.definition.repeats if self.repeats is None else self.repeats

    @property
    def memories(self) -> tuple[str, ...]:
        """The memories that the configurations need: ``plain``, ``spec``, both or none."""
        return tuple(
            dict.fromkeys(configuration.memory for configuration in self.chosen if configuration.memory is not None)
        )

    @property
    def training_models(self) -> dict[str, str]:
        """The models of the memory's training by role: ``trainer``, ``evaluator`` and ``reflector``."""
        roles = {"trainer": self.training_model, "evaluator": self.evaluator_model, "reflector": self.reflector_model}
        return {role: model or self.model for role, model in roles.items()}

    def keys(self, part: Part, env_id: str) -> tuple[str, ...]:
        """Return the keys of a pack's tasks in the training or test part."""
        return tuple(key for key in part.keys(env_id) if not self.tasks or key in self.tasks)

    def episodes(self, part: Part) -> Iterator[EpisodeName]:
        """Return the episodes of the training or test part, each once."""
        return (episode for episode in part.episodes(self.packs) if not self.tasks or episode[1] in self.tasks)

    def _require_training_settings(self) -> None:
        try:
            ModelSettings(model=self.model, **self.training_settings)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ArgumentError(f"a setting of the training's models is invalid: {place}: {first['msg']}") from error

    def _require_episodes(self) -> None:
        definition, packs = self.definition, ", ".join(self.packs)
        chosen = f"the tasks {', '.join(self.tasks)}" if self.tasks else packs
        hint = " (it tests held-out tasks and trains on the others)" if definition.test.tasks == "heldout_tasks" else ""
        if not any(self.episodes(definition.test)):
            raise ArgumentError(f"{self.experiment} has no test episodes with {chosen}{hint}")
        if self.memories and not any(self.episodes(definition.train)):
            raise ArgumentError(f"{self.experiment} has no training episodes with {chosen}{hint}")


MANIFEST = "manifest.json"
MANIFEST_VERSION = 1
"""Version of the manifest's format."""

_CHANGEABLE = ("package_version", "memories")
"""Members in which the manifests of two runs of one experiment may differ."""
_OPTIONAL = ("training", "specification")
"""Members that only some configurations need."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PartRecord(_Data):
    """The training or test episodes.

    Attributes:
        tasks: Keys of the tasks by env id.
        variations: Numbers of the variations of each task.
        phrasing: Index of the prompt, or ``paraphrase``.
        episodes: Number of episodes.
        hash: Hash of all episodes with their parameters, prompts and start states.
    """

    tasks: dict[str, tuple[str, ...]]
    variations: tuple[int, ...]
    phrasing: Phrasing
    episodes: int
    hash: str


class ModelRecord(_Data):
    """A model.

    Attributes:
        model: Name of the model.
        hosts: Hosts of its endpoints; an experiment may continue with another endpoint.
    """

    model: str
    hosts: tuple[str, ...]

    def extended(self, other: ModelRecord) -> ModelRecord:
        """Return the record with the hosts of another record."""
        return self.model_copy(update={"hosts": tuple(dict.fromkeys((*self.hosts, *other.hosts)))})


class ConfigurationRecord(_Data):
    """A configuration of the agent.

    Attributes:
        about: What the configuration is.
        protocol: How the model acts.
        tools: The tools that the agent offers.
        memory: The memory that the agent reads; None for no memory.
        system: System prompt; None for the default.
    """

    about: str
    protocol: str
    tools: tuple[str, ...]
    memory: str | None
    system: str | None


class WorldRecord(_Data):
    """A world.

    Attributes:
        hash: Content hash.
    """

    name: str
    hash: str


class SpecificationRecord(_Data):
    """The FHIR definitions that agents and the reflector can look up.

    Attributes:
        version: Version of the definitions.
        hash: Content hash.
    """

    version: str
    hash: str


class MemoryRecord(_Data):
    """A trained memory.

    Attributes:
        file: Path in the experiment's folder.
        hash: Content hash.
    """

    file: str
    hash: str


class TrainingRecord(_Data):
    """How the memories are trained.

    Attributes:
        models: The models by role: ``trainer`` (the agent), ``evaluator`` and ``reflector``.
        settings: Settings of the evaluator's and the reflector's model.
        embedder: Embedder of the memory.
    """

    episodes: PartRecord
    models: dict[str, ModelRecord]
    settings: dict[str, Json]
    embedder: str


class Manifest(_Data):
    """Everything that is needed to repeat an experiment.

    Attributes:
        manifest_version: Version of this format.
        package_version: Version of fhir_gym that started the experiment.
        experiment: Name of the experiment.
        about: What the experiment tests.
        test: The test episodes.
        repeats: Number of runs of each test episode.
        seed: Seed of the run.
        grading: What counts as success.
        max_steps: Step limit; None for the limits of the packs.
        model: The model that is tested.
        settings: Further settings of the chat agent, in training and testing.
        training: How the memories are trained; None without a configuration that reads a memory.
        worlds: The world of each pack.
        specification: The FHIR definitions; None if nothing reads them.
        configurations: The configurations by name.
        memories: The trained memories by name; empty before the training.
    """

    manifest_version: int = MANIFEST_VERSION
    package_version: str
    experiment: str
    about: str
    test: PartRecord
    repeats: int
    seed: int
    grading: str
    max_steps: int | None
    model: ModelRecord
    settings: dict[str, Json]
    training: TrainingRecord | None
    worlds: dict[str, WorldRecord]
    specification: SpecificationRecord | None
    configurations: dict[str, ConfigurationRecord]
    memories: dict[str, MemoryRecord] = {}

    @classmethod
    def of(cls, config: ExperimentConfig, worlds: Mapping[str, World]) -> Manifest:
        """Return the manifest of an experiment that has not trained a memory yet.

        Args:
            config: The experiment's settings.
            worlds: The world of each pack, by env id.
        """
        definition = config.definition
        reads_specification = "spec" in config.memories or any(
            "spec" in configuration.tools for configuration in config.chosen
        )
        specification = Specification() if reads_specification else None
        return cls(
            package_version=version("fhir-gym"),
            experiment=definition.name,
            about=definition.about,
            test=_part(config, definition.test, worlds),
            repeats=config.run_count,
            seed=config.seed,
            grading=config.grading,
            max_steps=config.max_steps,
            model=ModelRecord(model=config.model, hosts=(_host(config.base_url),) if config.agent == "chat" else ()),
            settings=_recorded_settings(config),
            training=_training(config, worlds) if config.memories else None,
            worlds={
                env_id: WorldRecord(name=world.name, hash=world.manifest.content_hash)
                for env_id, world in worlds.items()
            },
            specification=specification and SpecificationRecord(version=specification.version, hash=specification.hash),
            configurations={
                configuration.name: ConfigurationRecord(
                    about=configuration.about,
                    protocol=configuration.protocol,
                    tools=configuration.tools,
                    memory=configuration.memory,
                    system=configuration.system,
                )
                for configuration in config.chosen
            },
        )

    def differences(self, other: Manifest) -> list[str]:
        """Return a text for each member that makes the other manifest a different experiment.

        Manifests of one experiment may have different configurations, and different hosts of a model.
        """
        old, new = self.model_dump(mode="json"), other.model_dump(mode="json")
        for name in _OPTIONAL:
            if old[name] is None or new[name] is None:
                old[name] = new[name] = None
        for name in old["configurations"].keys() ^ new["configurations"].keys():
            old["configurations"].pop(name, None), new["configurations"].pop(name, None)
        return [
            f"{'.'.join(path)} is {_short(there)} there and {_short(here)} here"
            for path, there, here in _walk(old, new)
            if path[0] not in _CHANGEABLE and path[-1] != "hosts"
        ]

    def extended(self, other: Manifest) -> Manifest:
        """Return the manifest with the configurations and hosts of another manifest of the same experiment."""
        mine, others = self.training, other.training
        training = mine or others
        if mine is not None and others is not None:
            models = {role: record.extended(others.models[role]) for role, record in mine.models.items()}
            training = mine.model_copy(update={"models": models})
        changes = {
            "model": self.model.extended(other.model),
            "training": training,
            "specification": self.specification or other.specification,
            "configurations": self.configurations | other.configurations,
        }
        return self.model_copy(update=changes)

    def save(self, folder: Path) -> None:
        """Write the manifest into a folder."""
        write_file(folder / MANIFEST, json.dumps(self.model_dump(mode="json"), indent=2) + "\n", ExperimentError)


def read_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of a folder; None if the folder has none.

    Raises:
        ExperimentError: The file is not a manifest, or has another version.
    """
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ExperimentError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict) or "manifest_version" not in data:
        raise ExperimentError(f"{path} is not the manifest of an experiment: it has no manifest_version")
    if data["manifest_version"] != MANIFEST_VERSION:
        raise ExperimentError(
            f"{path} has manifest version {data['manifest_version']!r}; this fhir_gym reads version "
            f"{MANIFEST_VERSION}: use the fhir_gym that wrote it, or another folder"
        )
    try:
        return Manifest.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ExperimentError(f"{path} is not the manifest of an experiment: {place}: {first['msg']}") from error


def _part(config: ExperimentConfig, part: Part, worlds: Mapping[str, World]) -> PartRecord:
    episodes = list(config.episodes(part))
    return PartRecord(
        tasks={env_id: keys for env_id in config.packs if (keys := config.keys(part, env_id))},
        variations=part.variations,
        phrasing=part.phrasing,
        episodes=len(episodes),
        hash=_episodes_hash(episodes, worlds),
    )


def _episodes_hash(episodes: Iterable[EpisodeName], worlds: Mapping[str, World]) -> str:
    digest = blake2b(digest_size=16)
    for env_id, key, number, phrasing in episodes:
        task = get_task(env_id, key)
        record = TaskRecord.of(task.variation(number, worlds[env_id], phrasing), task)
        digest.update(f"{env_id}\n{key}\n{number}\n{phrasing}\n{record.hash}\n".encode())
    return digest.hexdigest()


def _training(config: ExperimentConfig, worlds: Mapping[str, World]) -> TrainingRecord:
    hosts = (_host(config.training_base_url or config.base_url),)
    return TrainingRecord(
        episodes=_part(config, config.definition.train, worlds),
        models={role: ModelRecord(model=model, hosts=hosts) for role, model in config.training_models.items()},
        settings=dict(config.training_settings),
        embedder=config.embedder,
    )


def _host(base_url: str | None) -> str:
    """Return the host of an endpoint as the chat agent resolves it."""
    url = base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
    return urlsplit(url).hostname or ""


def own_agent(config: ExperimentConfig) -> Agent:
    """Return the agent of an experiment with its own settings, without those of a configuration."""
    if config.agent != "chat":
        return make_agent(config.agent, **config.settings)
    return make_agent("chat", model=config.model, base_url=config.base_url, **config.settings)


def _recorded_settings(config: ExperimentConfig) -> dict[str, Json]:
    """Return the settings that the agent records. The agent checks them, and leaves out those without effect."""
    agent = own_agent(config)
    return {name: value for name, value in agent.settings.items() if name in config.settings}


def _walk(old: Json, new: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Json, Json]]:
    """Yield the path and the values of every member in which two JSON values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from _walk(old.get(name), new.get(name), (*path, name))
    elif old != new:
        yield path, old, new


def _short(value: Any, most: int = 60) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[:most]} …"
