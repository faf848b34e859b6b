"""A Gymnasium environment in which an agent chooses actions from a menu."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from typing_extensions import override

import fhir_gym
from fhir_gym import tasks as packs
from fhir_gym import worlds
from fhir_gym.arguments import require_name, require_whole
from fhir_gym.envs import FHIREnv
from fhir_gym.episode_config import EpisodeConfig, EpisodeSettings
from fhir_gym.errors import ArgumentError, UnknownNameError
from fhir_gym.fhir import World
from fhir_gym.rollouts import Rollout
from fhir_gym.tasks import DEFAULT_SPLIT, RewardRule, find_task, task_set
from fhir_gym.training.config import TaskName
from fhir_gym.training.curriculum import Curriculum
from fhir_gym.training.evaluation import Evaluation, Outcome
from fhir_gym.training.menu.actions import meaning
from fhir_gym.training.menu.features import CANDIDATE_FEATURES, CANDIDATE_SIZE, STATE_FEATURES, STATE_SIZE, Features
from fhir_gym.training.menu.menu import PLACES, Candidate, Menu, MenuSession
from fhir_gym.training.menu.templates import Templates

Observation = dict[str, NDArray[np.int16]]
_OPTIONS = ("env_id", "task", "variation", "phrasing")


class MenuEnv(gymnasium.Env[Observation, np.int64]):
    """An agent performs tasks of one or several packs by choosing actions from a menu.

    ## Action
    The number of a place of the menu. An empty place does nothing, but counts as a step. `action_masks()` tells which
    places are filled.

    ## Observation
    A dict of arrays with the numbers of active features: ``state`` (prompt, last answer, earlier actions) and
    ``candidates`` (one row for each place). The number 0 stands for no feature; the row of an empty place has only 0.
    The order of the numbers has no meaning, so a network should add up one weight vector for each number, as
    `MenuPolicy` does. Names and ids are not part of the observation.

    ## Rewards and episode end
    As for `FHIREnv`.

    ## Info
    As for `FHIREnv`, but without `verdict`; also `env_id`, and after a step `action`, the text of the action.

    Args:
        templates: The templates, or the path of a template file.
        tasks: The tasks to draw from, as pairs of env id and key.
        variations: The variations to draw from; None for all of the split.
        curriculum: Draws the episodes of a `reset` without options and counts their results. Environments of one
            process may share it.
        reward: ``"sparse"`` or ``"dense"``; see `Verdict.reward`.
        max_steps: Number of actions after which an episode is truncated; None for the pack's limit.
        distractors: Number of wrong fillings to add for each template.
        paced: Whether an episode of the curriculum has fewer distractors if its task has seldom succeeded recently.
        prepared: Number of start states to keep in memory; see `FHIREnv`.
        world: The world; None for the pack's world. The environments of one process share an open world.
        split: The split of all variations, also of those that `reset` gets as an option; see `EpisodeConfig`.

    Raises:
        TrainingError: The template file is unusable.
        UnknownNameError: A task, the reward rule or the split does not exist.
        ArgumentError: A variation does not exist or is not in the split.
        ArgumentError: Another argument is invalid.
    """

    def __init__(
        self,
        templates: Templates | str | Path,
        tasks: Sequence[TaskName | tuple[str, str]],
        *,
        variations: Sequence[int] | None = None,
        curriculum: Curriculum | None = None,
        reward: RewardRule = "sparse",
        max_steps: int | None = None,
        distractors: int = 0,
        paced: bool = False,
        prepared: int = 0,
        world: str | Path | World | None = None,
        split: str | None = DEFAULT_SPLIT,
    ) -> None:
        self.tasks = tuple(_task_name(name) for name in tasks)
        self._settings: EpisodeSettings = {"reward": reward, "max_steps": max_steps, "split": split}
        if self.tasks:
            self.variations = EpisodeConfig(self.tasks[0].env_id, **self._settings).require_variations(variations)
        if not self.tasks or not self.variations:
            raise ArgumentError("a MenuEnv needs at least one task and one variation")
        self.curriculum = curriculum
        loaded = templates if isinstance(templates, Templates) else Templates.load(templates)
        self.menu = Menu.shared(loaded, distractors)
        self._paced = paced
        self._world, self._prepared = world, require_whole("prepared", prepared, 0)
        self._envs: dict[str, FHIREnv] = {}
        self._name = self.tasks[0]
        self._counted = False
        self._session: MenuSession | None = None
        self._features: Features | None = None
        self.places: list[Candidate] = []
        self.action_space = spaces.Discrete(PLACES)
        state = spaces.Box(0, STATE_FEATURES - 1, (STATE_SIZE,), np.int16)
        candidates = spaces.Box(0, CANDIDATE_FEATURES - 1, (PLACES, CANDIDATE_SIZE), np.int16)
        space: Any = spaces.Dict({"state": state, "candidates": candidates})
        self.observation_space = space

    @override
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seed of `np_random`, which draws task and variation if there is no curriculum.
            options: Values of ``env_id``, ``task``, ``variation`` and ``phrasing``; missing values are drawn.

        Raises:
            UnknownNameError: The option or task does not exist.
            ArgumentError: The variation does not exist or is not in the split, or the phrasing does not exist.
        """
        super().reset(seed=seed)
        self._session = None
        self._name, chosen = self._choose(options or {})
        self._counted = self.curriculum is not None and not options
        first, info = self._env(self._name.env_id).reset(options=chosen)
        self._session = self.menu.start(first, self._distractors())
        self._features = Features(self._session)
        return self._observe(), info | {"env_id": self._name.env_id}

    def _distractors(self) -> int | None:
        """Return the number of distractors of this episode; None for the menu's number."""
        if not (self._paced and self._counted and self.curriculum is not None):
            return None
        return math.ceil(self.curriculum.success_rates()[self._name] * (self.menu.distractors + 1)) - 1

    def _choose(self, options: Mapping[str, Any]) -> tuple[TaskName, dict[str, Any]]:
        for option in options:
            require_name("reset option", option, _OPTIONS)
        if self.curriculum is not None and not options:
            drawn = self.curriculum.draw()
            extra = {} if drawn.phrasing is None else {"phrasing": drawn.phrasing}
            return drawn.name, {"task": drawn.task, "variation": drawn.variation} | extra
        name = self._choose_task(options.get("env_id"), options.get("task"))
        chosen = {"task": name.task, "variation": options.get("variation")}
        if chosen["variation"] is None:
            chosen["variation"] = self.variations[int(self.np_random.integers(len(self.variations)))]
        require_whole("option variation", chosen["variation"])
        return name, chosen | ({"phrasing": options["phrasing"]} if "phrasing" in options else {})

    def _choose_task(self, env_id: str | None, task: str | None) -> TaskName:
        if env_id is not None and task is not None:
            return TaskName(env_id, task)
        env_ids = list(dict.fromkeys(name.env_id for name in self.tasks))
        if task is None:
            fitting = [name for name in self.tasks if env_id in (None, name.env_id)]
        else:
            fitting = [TaskName(pack, task) for pack in env_ids if task in task_set(pack)]
        if not fitting and task is None:
            raise UnknownNameError("env id", env_id, env_ids)
        if not fitting:
            raise UnknownNameError("task", task, [name.task for name in self.tasks])
        return fitting[int(self.np_random.integers(len(fitting)))]

    @override
    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Perform the action at a place of the menu."""
        if self._session is None or self._features is None:
            raise gymnasium.error.ResetNeeded("no episode has started: call reset()")
        place = int(action)
        candidate = self.places[place] if 0 <= place < len(self.places) else None
        text = "" if candidate is None else candidate.text
        observation, reward, terminated, truncated, info = self._env(self._name.env_id).step(text)
        self._features.record(candidate)
        self._session.add(text, observation)
        done = terminated or truncated
        if done and self._counted and self.curriculum is not None:
            self.curriculum.record(self._name, bool(info["success"]))
        info.pop("verdict", None)  # Stable-Baselines3 copies `info` deeply at every step
        observed = self._observe(over=done)
        return observed, reward, terminated, truncated, info | {"env_id": self._name.env_id, "action": text}

    def action_masks(self) -> NDArray[np.bool_]:
        """Return which places of the menu are filled."""
        return np.arange(PLACES) < len(self.places)

    @override
    def close(self) -> None:
        for env in self._envs.values():
            env.close()
        self._envs = {}
        super().close()

    def _env(self, env_id: str) -> FHIREnv:
        if env_id not in self._envs:
            world = self._world
            if not isinstance(world, World):
                world = shared_world(packs.get_pack(env_id).world if world is None else world)
            config = EpisodeConfig.of(env_id, {**self._settings, "world": world})
            self._envs[env_id] = FHIREnv(config, split=config.split, prepared=self._prepared)
        return self._envs[env_id]

    def _observe(self, *, over: bool = False) -> Observation:
        assert self._session is not None and self._features is not None
        self.places = [] if over else self._session.candidates()
        return {"state": self._features.state(), "candidates": self._features.candidates(self.places)}


def _task_name(name: TaskName | tuple[str, str]) -> TaskName:
    if isinstance(name, str) or len(name) != 2:
        raise ArgumentError(f"a task of a MenuEnv is a pair such as ('FHIRAgent/Appointment-v0', '01'), not {name!r}")
    task_name = TaskName(*name)
    find_task(task_set(task_name.env_id), task_name.task)
    return task_name


@cache
def shared_world(name: str | Path) -> World:
    """Return an open world; each process opens it once and keeps it open."""
    return worlds.load(name)


def menu_ceiling(
    templates: Templates, tasks: Sequence[TaskName], variations: Sequence[int], *, distractors: int = 0
) -> Evaluation:
    """Return the share of episodes in which the menu contains the reference solution's action at every step.

    An episode may have another winning path, so the share is a lower bound.

    Args:
        templates: The templates.
        tasks: The tasks.
        variations: The variations of each task.
        distractors: As for `MenuEnv`.
    """
    menu = Menu(templates, distractors)
    packs = dict.fromkeys(name[0] for name in tasks)
    keys = {env_id: [name[1] for name in tasks if name[0] == env_id] for env_id in packs}
    runs = (fhir_gym.run(env_id, "gold", tasks=keys[env_id], variations=variations) for env_id in packs)
    return Evaluation.from_outcomes(_outcome(menu, rollout) for rollouts in runs for rollout in rollouts)


def _outcome(menu: Menu, rollout: Rollout) -> Outcome:
    session = menu.start(rollout.prompt)
    possible, sizes = bool(rollout.success), []
    for turn in rollout.turns:
        texts = [candidate.text for candidate in session.candidates()]
        sizes.append(len(texts))
        possible = possible and _contains(texts, turn.action)
        session.add(turn.action, turn.observation)
    metrics = {"steps": float(len(sizes)), "places": float(np.mean(sizes))}
    return Outcome(rollout.env_id, rollout.task.key, rollout.task.variation, possible, metrics)


def _contains(texts: Iterable[str], action: str) -> bool:
    texts = list(texts)
    return action in texts or meaning(action) in map(meaning, texts)


def random_over_menu(env: MenuEnv, variations: Sequence[int], seed: int = 0) -> Evaluation:
    """Return the success of a policy that chooses uniformly among the filled places.

    Args:
        env: The environment; its tasks are played.
        variations: The variations of each task.
        seed: Seed of the choices.
    """
    rng = np.random.default_rng(seed)
    outcomes = []
    for name in env.tasks:
        for number in variations:
            env.reset(options={"env_id": name.env_id, "task": name.task, "variation": number})
            done, reward = False, 0.0
            info: dict[str, Any] = {}
            while not done:
                _, reward, terminated, truncated, info = env.step(rng.integers(max(1, len(env.places))))
                done = terminated or truncated
            metrics = {"steps": float(info["step"]), "reward": float(reward)}
            metrics["invalid_actions"] = float(info["invalid_actions"])
            outcomes.append(Outcome(name.env_id, name.task, number, bool(info["success"]), metrics))
    return Evaluation.from_outcomes(outcomes)
