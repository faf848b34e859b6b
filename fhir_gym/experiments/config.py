"""The settings of an experiment: which configurations, models, packs and episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from fhir_gym.agents.factory import CONFIGURATIONS, Configuration
from fhir_gym.arguments import require_name, require_whole
from fhir_gym.errors import ArgumentError, UnknownNameError
from fhir_gym.reflexion import ModelSettings
from fhir_gym.tasks import GRADINGS, Experiment, Grading, Part, experiment_packs, get_experiment, task_keys

EpisodeName = tuple[str, str, int, int]
"""Env id, task key, variation and phrasing."""

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
        configurations: Names of the configurations; see `fhir_gym.agents.factory`.
        base_url: The model's endpoint; None for ``OPENAI_BASE_URL`` or OpenAI's endpoint.
        training_model: Model of the agent in the memory's training; None for `model`.
        evaluator_model: Model that evaluates training episodes; None for `model`.
        reflector_model: Model that writes reflections; None for `model`.
        training_base_url: Endpoint of these three models; None for `base_url`.
        env_ids: The packs; empty for the packs that are modelled on FHIR-AgentEval.
        tasks: Keys of the tasks to keep; empty for all tasks of the experiment.
        repeats: Number of runs of each test episode; None for the experiment's own number.
        seed: Seed of the run.
        settings: Further settings of the chat agent, such as ``{"temperature": 0}``, in training and testing.
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

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        get_experiment(self.experiment)
        if not self.configurations:
            raise ArgumentError(f"an experiment needs configurations, such as {', '.join(CONFIGURATIONS)}")
        for name in self.configurations:
            require_name("configuration", name, CONFIGURATIONS)
        require_name("grading", self.grading, GRADINGS)
        require_whole("repeats", self.run_count, 1)
        require_name("embedder", self.embedder, EMBEDDERS)
        for name in (*self.settings, *self.training_settings):
            if name in _OWN_OPTIONS:
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
        """The configurations without duplicates."""
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
        """Yield the episodes of the training or test part, each once."""
        for env_id in self.packs:
            for key in self.keys(part, env_id):
                yield from ((env_id, key, variation, part.phrasing) for variation in part.variations)

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
