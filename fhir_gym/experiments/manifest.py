"""The manifest of an experiment: everything that is needed to repeat it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from fhir_gym.agents import Agent, make_agent
from fhir_gym.errors import ExperimentError
from fhir_gym.experiments.config import EpisodeName, ExperimentConfig
from fhir_gym.fhir import World
from fhir_gym.files import write_file
from fhir_gym.rollouts import TaskRecord
from fhir_gym.specification import Specification
from fhir_gym.tasks import Part, get_task
from fhir_gym.types import Json

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
        phrasing: Index of the prompt.
        episodes: Number of episodes.
        hash: Hash of all episodes with their parameters, prompts and start states.
    """

    tasks: dict[str, tuple[str, ...]]
    variations: tuple[int, ...]
    phrasing: int
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
