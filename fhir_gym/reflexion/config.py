"""The settings with which a memory is trained."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fhir_gym.agents import ChatAgent
from fhir_gym.agents.chat_messages import ChatProtocol
from fhir_gym.agents.memory import Embedder, make_embedder
from fhir_gym.agents.provider import ChatModel, Provider
from fhir_gym.arguments import require_url
from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import ArgumentError, FhirGymError, TrainingError
from fhir_gym.rollouts import parse_numbers
from fhir_gym.tasks import find_task, task_set
from fhir_gym.types import Json, Phrasing


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSettings(_Settings):
    """A model behind an OpenAI-compatible endpoint. The key comes from ``OPENAI_API_KEY`` only.

    Attributes:
        model: Name of the model.
        base_url: The endpoint; None for ``OPENAI_BASE_URL`` or OpenAI's endpoint.
        temperature: Sampling temperature; None for the provider's default.
        top_p: Probability mass for nucleus sampling; None for the provider's default.
        max_tokens: Maximum number of tokens of a reply; None for the provider's default.
        seed: Sampling seed; None to send no seed.
        extra_body: Further members of the request body.
        timeout: Seconds until a request counts as failed.
        retries: Maximum number of retries of a failed request.
        backoff: Seconds before the first retry.
    """

    model: str = Field(min_length=1)
    base_url: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    extra_body: dict[str, Json] = {}
    timeout: float = 300.0
    retries: int = 6
    backoff: float = 1.0

    @field_validator("base_url")
    @classmethod
    def _require_url(cls, base_url: str | None) -> str | None:
        try:
            require_url("base_url", base_url, "http://localhost:8000/v1")
        except ArgumentError as error:
            raise ValueError(str(error)) from error
        return base_url

    def identity(self) -> dict[str, Json]:
        """Return the settings that decide the replies. An endpoint may move, so its URL is not one of them."""
        return self.model_dump(mode="json", exclude={"base_url", "timeout", "retries", "backoff"})

    def provider(self, tools: list[dict[str, Any]] | None = None) -> Provider:
        """Return a connection to the endpoint.

        Args:
            tools: Function schemas that every request offers.

        Raises:
            MissingExtraError: The openai package is not installed.
            EndpointError: The key is missing.
        """
        settings = self.model_dump(exclude={"seed"})
        if tools:
            settings["extra_body"] |= {"tools": tools}
        return Provider(ChatModel(**settings))


class TrainingEpisode(_Settings):
    """A variation on which a memory is trained.

    Attributes:
        env_id: Env id of the pack.
        task: Key of the task.
        variation: Number of the training variation.
        phrasing: Index of the prompt, ``brief`` or ``paraphrase``; None for the prompt that the variation draws.
    """

    env_id: str
    task: str
    variation: int
    phrasing: Phrasing | None = None


class MemoryTrainingConfig(_Settings):
    """Settings of `train_memory`.

    Attributes:
        agent: The model of the agent that plays the training episodes.
        evaluator: The model that criticises each episode; None for the agent's model.
        reflector: The model that writes the reflections; None for the agent's model.
        protocol: ``tools`` (the agent calls functions) or ``text`` (the agent writes actions).
        specification: Whether the reflector may look up the FHIR specification.
        env_ids: The packs.
        tasks: Keys of the tasks; empty for all tasks of the packs.
        variations: Training variations of each task; below 1000.
        phrasing: Index of the prompt, ``brief`` or ``paraphrase``; None for the prompt that each variation draws.
        trials: Maximum number of trials of each variation; a success ends them.
        max_steps: Number of actions after which an episode is truncated; None for the pack's limit.
        seed: Seed of the episodes.
        concurrency: Number of concurrent episodes and reviews.
        embedder: One of `fhir_gym.agents.memory.EMBEDDERS`.
        embedder_model: The model of the embedder ``endpoint``.
        embedder_base_url: The URL of the embedder ``endpoint``; None for ``OPENAI_BASE_URL``.
        similarity: Similarity from which two reflections say nearly the same.
        tokens: Budget of input and output tokens of all models together; None for no limit.
        run_chars: Maximum number of characters of a run that the evaluator and the reflector read. Turns in the middle
            of a longer run are left out.
        guard: Test variations whose names and ids no reflection may contain.
    """

    agent: ModelSettings
    evaluator: ModelSettings | None = None
    reflector: ModelSettings | None = None
    protocol: ChatProtocol = "tools"
    specification: bool = False
    env_ids: tuple[str, ...] = Field(default=("FHIRAgent/Appointment-v0", "FHIRAgent/GeneticTesting-v0"), min_length=1)
    tasks: tuple[str, ...] = ()
    variations: str = "0-1"
    phrasing: Annotated[int, Field(ge=0)] | Literal["brief", "paraphrase"] | None = 0
    trials: int = Field(default=2, ge=1, le=10)
    max_steps: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0, lt=1 << 31)
    concurrency: int = Field(default=8, ge=1)
    embedder: str = "hashed"
    embedder_model: str | None = None
    embedder_base_url: str | None = None
    similarity: float = Field(default=0.9, gt=0, le=2)
    tokens: int | None = Field(default=None, ge=1)
    run_chars: int = Field(default=60_000, ge=1_000)
    guard: str = "1000-1019"

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Refuse unknown tasks and variations of the wrong split."""
        try:
            EpisodeConfig(self.env_ids[0], split="test").require_variations(parse_numbers(self.guard))
            self.episodes()
        except FhirGymError as error:
            raise ValueError(str(error)) from error
        return self

    def role(self, name: str) -> ModelSettings:
        """Return the model of a role (``agent``, ``evaluator`` or ``reflector``)."""
        chosen: ModelSettings | None = getattr(self, name)
        return chosen or self.agent

    def episodes(self) -> list[TrainingEpisode]:
        """Return the training episodes by pack, task and variation."""
        config = EpisodeConfig(self.env_ids[0], split="train")
        numbers = config.require_variations(parse_numbers(self.variations))
        episodes: list[TrainingEpisode] = []
        for env_id, keys in self._tasks().items():
            episodes += [
                TrainingEpisode(env_id=env_id, task=key, variation=number, phrasing=self.phrasing)
                for key in keys
                for number in numbers
            ]
        return episodes

    def make_agent(self) -> ChatAgent:
        """Return the agent that plays the episodes."""
        agent = self.agent
        return ChatAgent(
            agent.model,
            base_url=agent.base_url,
            protocol=self.protocol,
            temperature=agent.temperature,
            top_p=agent.top_p,
            max_tokens=agent.max_tokens,
            seed=agent.seed,
            extra_body=agent.extra_body or None,
            timeout=agent.timeout,
            retries=agent.retries,
            backoff=agent.backoff,
        )

    def make_embedder(self) -> Embedder:
        """Return the memory's embedder."""
        options = {"model": self.embedder_model, "base_url": self.embedder_base_url}
        return make_embedder(self.embedder, **{name: value for name, value in options.items() if value is not None})

    def identity(self) -> dict[str, Json]:
        """Return the settings that decide the memory. A training may be resumed with other values of the rest."""
        rest = {"agent", "evaluator", "reflector", "concurrency", "tokens", "embedder_base_url"}
        rest |= {"env_ids", "tasks", "variations", "phrasing"}  # these are in the list of episodes
        plain: dict[str, Json] = self.model_dump(mode="json", exclude=rest)
        return plain | {name: self.role(name).identity() for name in ("agent", "evaluator", "reflector")}

    def _tasks(self) -> Mapping[str, tuple[str, ...]]:
        tasks_by_env = {env_id: task_set(env_id) for env_id in dict.fromkeys(self.env_ids)}
        if not self.tasks:
            return {env_id: tuple(tasks) for env_id, tasks in tasks_by_env.items()}
        for key in self.tasks:
            if not any(key in tasks for tasks in tasks_by_env.values()):
                find_task(next(iter(tasks_by_env.values())), key)  # raises UnknownNameError
        return {env_id: tuple(key for key in self.tasks if key in tasks) for env_id, tasks in tasks_by_env.items()}


def load_memory_config(path: str | Path, **changes: Any) -> MemoryTrainingConfig:
    """Read the settings of a memory training from a TOML file.

    Args:
        path: The file.
        changes: Fields that replace those of the file.

    Raises:
        TrainingError: The file cannot be read.
        ArgumentError: A field is unknown or has a wrong value.
    """
    try:
        fields = tomllib.loads(Path(path).read_text("utf-8-sig"))
    except OSError as error:
        raise TrainingError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TrainingError(f"{path} is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise ArgumentError(f"{path} is not valid TOML: {error}") from error
    return make_memory_config(fields | changes, str(path))


def make_memory_config(fields: Mapping[str, Any], source: str = "config") -> MemoryTrainingConfig:
    """Make the settings of a memory training from plain data; see `load_memory_config`."""
    try:
        return MemoryTrainingConfig.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            names = ", ".join(
                MemoryTrainingConfig.model_fields if len(first["loc"]) == 1 else ModelSettings.model_fields
            )
            raise ArgumentError(f"{source}: unknown field {place!r}. Fields: {names}") from error
        message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
        raise ArgumentError(f"{source}: {place} {message}" if place else f"{source}: {message}") from error
