"""Settings, open worlds and dataset rows of the episodes of a GRPO run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module
from typing import Any, Literal, Unpack

from typing_extensions import override

from fhir_gym.agents.prompts import SYSTEM_PROMPT, TOOLS_NOTE
from fhir_gym.arguments import require_name, require_phrasing_type
from fhir_gym.episode_config import EpisodeConfig, EpisodeSettings
from fhir_gym.errors import FhirGymError, TrainingError, missing_extra, pip_install
from fhir_gym.fhir import World
from fhir_gym.tasks import DEFAULT_SPLIT
from fhir_gym.training.curriculum import Curriculum, EpisodeChoice

RowShape = Literal["rollout_func", "environment_factory"]
ROW_SHAPES: tuple[RowShape, ...] = ("rollout_func", "environment_factory")
INSTALL = pip_install("local,train")


class OpenConfigs(AbstractContextManager["OpenConfigs"]):
    """The episode settings of each pack, with its world opened once.

    Args:
        settings: Fields of `EpisodeConfig`, such as ``reward`` and ``max_steps``; the default split is for training.
    """

    def __init__(self, **settings: Unpack[EpisodeSettings]) -> None:
        self._settings = settings
        self._configs: dict[str, tuple[EpisodeConfig, World]] = {}
        self._own_worlds: list[World] = []

    def of(self, choice: EpisodeChoice) -> tuple[EpisodeConfig, World]:
        """Return the settings of an episode, and the world.

        Raises:
            ArgumentError: The variation does not exist or is not in the split.
            UnknownNameError: The pack or a setting does not exist.
            WorldError: The world cannot be opened.
        """
        if choice.env_id not in self._configs:
            config = EpisodeConfig.of(choice.env_id, self._settings, default_split=DEFAULT_SPLIT)
            world, owned = config.resolve_world()
            if owned:
                self._own_worlds.append(world)
            self._configs[choice.env_id] = replace(config, world=world), world
        config, world = self._configs[choice.env_id]
        config.require_variations([choice.variation])
        return (config if choice.phrasing is None else replace(config, phrasing=choice.phrasing)), world

    @override
    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the worlds that were opened here."""
        self._configs.clear()
        while self._own_worlds:
            self._own_worlds.pop().close()


def make_row(choice: EpisodeChoice, shape: RowShape = "rollout_func", system: str | None = None) -> dict[str, Any]:
    """Return a dataset row that names an episode.

    Besides ``env_id``, ``task``, ``variation`` and ``phrasing``, a row has the ``prompt`` that TRL requires. For
    ``rollout_func`` it is the name of the episode as JSON text, because that function receives nothing else. For
    ``environment_factory`` it is the start of the chat, to which `FHIRToolEnv.reset` adds the task; `system`
    replaces its default system prompt, and an empty text stands for no system prompt.

    Examples:
        >>> make_row(EpisodeChoice("FHIRAgent/Appointment-v0", "01", 3))["prompt"]
        '["FHIRAgent/Appointment-v0", "01", 3, null]'
    """
    require_name("shape", shape, ROW_SHAPES)
    prompt: Any = json.dumps(choice)
    if shape == "environment_factory":
        text = SYSTEM_PROMPT + TOOLS_NOTE if system is None else system
        prompt = [*([{"role": "system", "content": text}] if text else []), {"role": "user", "content": ""}]
    return {"prompt": prompt, **choice._asdict()}


def read_prompt(prompt: Any) -> EpisodeChoice:
    """Return the episode that the prompt of a ``rollout_func`` row names.

    Raises:
        TrainingError: The prompt was not made by `make_row`.
    """
    try:
        env_id, task, variation, phrasing = json.loads(prompt)
        wording = None if phrasing is None else require_phrasing_type("phrasing", phrasing)
        return EpisodeChoice(str(env_id), str(task), int(variation), wording)
    except (TypeError, ValueError, FhirGymError) as error:
        raise TrainingError(
            "a prompt does not name an episode: make the dataset with EpisodeRows or make_row"
        ) from error


class EpisodeRows:
    """The episodes of a run in order, drawn from a curriculum when training reaches them.

    A row of `dataset` is drawn when it is first read, so the curriculum can react to the results so far. TRL reads one
    batch ahead. Each row is drawn once, in order, and remembered: TRL's repeats of a row are the same episode.

    Args:
        shape: The shape of the rows; see `make_row`.
        system: System prompt of ``environment_factory``; see `make_row`.
    """

    def __init__(self, curriculum: Curriculum, shape: RowShape = "rollout_func", system: str | None = None) -> None:
        self.curriculum = curriculum
        require_name("shape", shape, ROW_SHAPES)
        self._shape, self._system = shape, system
        self._choices: list[EpisodeChoice] = []

    def choice(self, number: int) -> EpisodeChoice:
        """Return the episode of a row."""
        while len(self._choices) <= number:
            self._choices.append(self.curriculum.draw())
        return self._choices[number]

    def dataset(self, length: int) -> Any:
        """Return a `datasets.Dataset` of this many rows, one for each group. Train on it without shuffling.

        Raises:
            MissingExtraError: The package datasets is missing.
        """
        with missing_extra(f"GRPO needs the package datasets: {INSTALL}"):
            datasets = import_module("datasets")
        return datasets.Dataset.from_dict({"number": list(range(length))}).with_transform(self._rows)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as data for JSON, with the curriculum's."""
        return {"choices": [list(choice) for choice in self._choices], "curriculum": self.curriculum.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; see `Curriculum.load_state_dict`."""
        self.curriculum.load_state_dict(state["curriculum"])
        self._choices = [EpisodeChoice(*choice) for choice in state["choices"]]

    def _rows(self, batch: dict[str, Sequence[int]]) -> dict[str, list[Any]]:
        rows = [make_row(self.choice(number), self._shape, self._system) for number in batch["number"]]
        return {name: [row[name] for row in rows] for name in rows[0]}
