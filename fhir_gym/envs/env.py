"""The Gymnasium environment."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.error import ResetNeeded

from fhir_gym.actions import MAX_ACTION_LENGTH
from fhir_gym.arguments import require_url, require_whole
from fhir_gym.envs.limits import step_limit_around
from fhir_gym.envs.spaces import TextSpace
from fhir_gym.episode import Episode, Rules, open_world
from fhir_gym.errors import FhirGymError, UnknownNameError
from fhir_gym.fhir import World
from fhir_gym.processes import end_with_parent
from fhir_gym.tasks import (
    DEFAULT_SPLIT,
    Grading,
    RewardRule,
    choose_tasks,
    find_task,
    offered_tasks,
    require_grading,
    require_phrasing,
    task_set,
)

__all__ = ["FHIREnv", "check_arguments"]

_OPTIONS = ("task", "variation", "phrasing")
_MAX_OBSERVATION_LENGTH = 100_000_000
"""Above what a session answers at most (64 MiB)."""
_KEPT = 16
"""Prepared start states kept: training repeats few pairs of task and variation, and each holds a small database."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which episode: start states are kept by it."""

    task: str
    variation: int
    phrasing: int | None
    max_steps: int


def check_arguments(given: Mapping[str, object]) -> None:
    """Refuse arguments an env does not have, naming the nearest one it has."""
    parameters = signature(FHIREnv).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    for name in given:
        if name not in known:
            raise UnknownNameError("env argument", name, known)


class FHIREnv(gymnasium.Env[str, str]):
    """An agent does one task on an embedded FHIR R4 server.

    ## Action
    A text of at most 262,144 characters that says one action: `GET url`, `POST url` with a JSON body on the next
    lines, `PUT`, `PATCH`, `DELETE`, or `FINISH([...])` with the answer as a JSON list. Urls are relative to the
    server's base or absolute. Any other text is an invalid action: it is answered with what is wrong and an
    example, and counts as a step.

    ## Observation
    A text. The first is the task's prompt and the action format, each later one the server's answer: `HTTP 200 OK`,
    and the FHIR JSON on the next line.

    ## Starting state
    The world and what the task's variation adds to it. `reset(options={"task": key, "variation": k})` chooses; what
    is not chosen is drawn from `np_random`, among `tasks` and the variations of `split`; `"phrasing"` chooses among
    the task's prompts. Writes of earlier episodes are gone.

    ## Rewards
    0 until the last step. Then, with `reward="sparse"`, 1 for success and 0 otherwise; with `"dense"`, the share of
    checks passed beyond those that an idle agent passes, 1 for success only.

    ## Episode end
    Terminated by `FINISH`; truncated after `max_steps` actions, and graded all the same. Gymnasium's `TimeLimit`, and
    `make(max_episode_steps=…)`, which wraps one around, do what a smaller `max_steps` does.

    ## Info
    `task`, `variation`, `step`, `status` (HTTP status of the answer; 0 where no request was made), `invalid`
    (whether the text was no action); at the end also `success` and `verdict`, the whole judgement as plain data.

    ## Arguments
    - `tasks`: keys of the tasks to draw from, or one key; None for all of the pack that the world offers
    - `split`: `"train"` (variations 0 to 999; the default), `"test"` (1000 to 1999), `"heldout_tasks"` (1000 to 1999 of
      the tasks held out in FHIR-AgentEval's fourth experiment), or None for all
    - `phrasing`: which of each task's prompts is used; None for each variation's own
    - `world`: name or path of a world, or a `World`; None for the pack's own
    - `fhir_server`: base url of a running FHIR server that holds the world; None for the embedded one
    - `max_steps`: actions until truncation; None for the pack's limit
    - `reward`: `"sparse"` or `"dense"`
    - `grading`: `"state"`; `"evidence"` to count only answers whose records were retrieved; with a task file also
      `"official"`, the benchmark's own loop and verdict
    - `task_file`: a benchmark's own task file, for packs that read one: its tasks in place of the pack's
    - `funcs_file`: the function list that belongs to it, to be shown in the prompts
    - `render_mode`: None, or `"ansi"`: `render()` gives the latest action and what it led to

    ## Version history
    - v0: first version

    Attributes:
        tasks: Keys of the tasks that are drawn from, in the order of the pack.
        variations: Numbers of the variations that are drawn from.
        world: The world.
        rules: How episodes end and what they earn.

    Raises:
        UnknownNameError: No such argument, pack, task, split, world, grading or reward rule; the nearest is named.
        TaskError: The world does not offer the tasks, or they lack the phrasing.
        FhirGymError: Another argument makes no sense.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - Gymnasium declares and reads it this way

    def __init__(
        self,
        env_id: str,
        *,
        tasks: str | Sequence[str] | None = None,
        split: str | None = DEFAULT_SPLIT,
        phrasing: int | None = None,
        world: World | str | Path | None = None,
        fhir_server: str | None = None,
        max_steps: int | None = None,
        reward: RewardRule = "sparse",
        grading: Grading = "state",
        render_mode: str | None = None,
        task_file: str | Path | None = None,
        funcs_file: str | Path | None = None,
        **unknown: object,
    ) -> None:
        end_with_parent()
        check_arguments(unknown)
        if render_mode not in (None, "ansi"):
            raise UnknownNameError("render mode", render_mode, ["ansi"])
        self.env_id = env_id
        self.render_mode = render_mode
        self._task_file, self._funcs_file = task_file, funcs_file
        self._task_set = task_set(env_id, task_file, funcs_file)
        if isinstance(tasks, Collection) and not tasks:
            raise FhirGymError("an env needs at least one task: tasks is empty")
        keys, self.variations = choose_tasks(env_id, self._task_set, tasks, split, from_file=task_file is not None)
        require_phrasing(self._task_set, keys, phrasing)
        self.phrasing = phrasing
        self.rules = Rules.of(env_id, grading, reward, max_steps)
        for key in keys:
            require_grading(self._task_set[key], grading)
        require_url("fhir_server", fhir_server)
        self._fhir_server = fhir_server
        self.world, self._owns_world = open_world(world, env_id)
        self.tasks = self._offered(keys, named=tasks is not None or task_file is not None)
        self.action_space = TextSpace(MAX_ACTION_LENGTH)
        self.observation_space = TextSpace(_MAX_OBSERVATION_LENGTH)
        # On a server elsewhere the start states of two episodes would meet, so only one is prepared at a time.
        self._kept = _KEPT if fhir_server is None else 1
        self._episodes: OrderedDict[_Choice, Episode] = OrderedDict()
        self._episode: Episode | None = None
        self._over = False
        self._shown = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seeds `np_random`, from which task and variation are drawn.
            options: ``task``, ``variation`` and ``phrasing``, to choose them.

        Raises:
            UnknownNameError: No such option or task.
            TaskError: No such variation or phrasing.
        """
        super().reset(seed=seed)
        self._episode = self._prepared(self._choose({} if options is None else options, step_limit_around(self)))
        observation = self._episode.start()
        self._shown = observation
        return observation, self._episode.info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Do one action.

        Raises:
            ResetNeeded: The episode is over, or none was started.
            WrongTypeError: The action is no text.
        """
        if self._episode is None:
            raise ResetNeeded(f"{'the episode is over' if self._over else 'no episode has begun'}: call reset()")
        step = self._episode.step(action)
        self._shown = f"> {action}\n{step.observation}"
        if step.done:
            self._episode, self._over = None, True
        return step.observation, step.reward, step.terminated, step.truncated, step.info

    def render(self) -> str | None:
        """The latest action and observation; None without render mode."""
        return self._shown if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Free all servers. May be called twice."""
        self._episode = None
        while self._episodes:
            self._episodes.popitem()[1].close()
        if self._owns_world:
            self.world.close()
        super().close()

    def _offered(self, keys: tuple[str, ...], *, named: bool) -> tuple[str, ...]:
        """The tasks that the world offers, in the order of the pack."""
        ordered = tuple(key for key in self._task_set if key in keys)
        try:
            return offered_tasks(self.env_id, self._task_set, ordered, self.world, self.variations[0], named=named)
        except BaseException:
            if self._owns_world:
                self.world.close()
            raise

    def _choose(self, options: Mapping[str, Any], limit: int | None) -> _Choice:
        if not isinstance(options, Mapping):
            raise FhirGymError(f"reset options must be a dict with {', '.join(_OPTIONS)}, not {options!r}")
        for name in options:
            if name not in _OPTIONS:
                raise UnknownNameError("reset option", name, _OPTIONS)
        task, variation = options.get("task"), options.get("variation")
        if task is None:
            task = self.tasks[int(self.np_random.integers(len(self.tasks)))]
        else:
            find_task(self._task_set, task)
        if variation is None:
            variation = self.variations[int(self.np_random.integers(len(self.variations)))]
        phrasing = options.get("phrasing", self.phrasing)
        variation = require_whole("option variation", variation)
        phrasing = None if phrasing is None else require_whole("option phrasing", phrasing)
        most = self.rules.max_steps
        steps = most if limit is None else min(most, limit)
        return _Choice(task, variation, phrasing, steps)

    def _prepared(self, choice: _Choice) -> Episode:
        if choice in self._episodes:
            self._episodes.move_to_end(choice)
            return self._episodes[choice]
        if len(self._episodes) >= self._kept:
            self._episodes.popitem(last=False)[1].close()
        rules = self.rules
        episode = Episode(
            self.env_id,
            task=choice.task,
            variation=choice.variation,
            phrasing=choice.phrasing,
            world=self.world,
            fhir_server=self._fhir_server,
            grading=rules.grading,
            max_steps=choice.max_steps,
            reward=rules.reward,
            task_file=self._task_file,
            funcs_file=self._funcs_file,
        )
        self._episodes[choice] = episode
        return episode
