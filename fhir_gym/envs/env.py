"""The Gymnasium environment and the space of its texts."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn, Unpack
from weakref import finalize

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Space
from gymnasium.spaces.utils import flatdim, flatten, flatten_space
from gymnasium.vector.utils import create_shared_memory
from gymnasium.wrappers import TimeLimit
from gymnasium.wrappers.utils import create_zero_array
from typing_extensions import override

from fhir_gym.actions import MAX_ACTION_LENGTH
from fhir_gym.arguments import require_name, require_phrasing_type, require_whole
from fhir_gym.episode import Episode
from fhir_gym.episode_config import EpisodeConfig, EpisodeSettings
from fhir_gym.errors import ArgumentError, UnknownNameError, WrongTypeError
from fhir_gym.fhir.adapters.running_server import RunningServer
from fhir_gym.processes import end_with_parent
from fhir_gym.tasks import DEFAULT_SPLIT, available_tasks, find_task
from fhir_gym.tasks.core.variation import variation_cache
from fhir_gym.types import Phrasing

_TYPES = ("Appointment", "Condition", "Observation", "Patient", "Practitioner", "Schedule", "Slot")


class TextSpace(Space[str]):
    """All texts up to a maximum length, with any characters.

    Gymnasium's `Text` checks every character, which takes longer for large FHIR responses than the server's own work.
    `Text` samples random characters; this space samples valid actions.

    Args:
        max_length: Maximum number of characters.
        seed: Seed of `sample`.
    """

    def __init__(self, max_length: int, *, seed: int | np.random.Generator | None = None) -> None:
        self.max_length = max_length
        super().__init__(dtype=str, seed=seed)

    @property
    @override
    def is_np_flattenable(self) -> bool:
        return False

    @override
    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a short, valid search action.

        Args:
            mask: Not supported.
            probability: Not supported.

        Raises:
            ValueError: A mask or probabilities were given.
        """
        if mask is not None or probability is not None:
            raise ValueError("a TextSpace supports neither mask nor probability")
        kind = _TYPES[int(self.np_random.integers(len(_TYPES)))]
        count = int(self.np_random.integers(1, 10))
        return f"GET /{kind}?_count={count}"

    @override
    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and self.max_length == other.max_length

    @override
    def __hash__(self) -> int:
        return hash((TextSpace, self.max_length))

    @override
    def __repr__(self) -> str:
        return f"TextSpace({self.max_length})"


def _refuse(function: Any, advice: str) -> None:
    """Make a space function of Gymnasium raise an error with advice if it gets a `TextSpace`."""

    def refused(space: TextSpace, *_: object, **__: object) -> NoReturn:
        raise WrongTypeError(f"observations are texts of any length up to {space.max_length:,} characters: {advice}")

    function.register(TextSpace, refused)


_NO_ARRAYS = "they have no array form. Keep the texts, for example as chat messages, or convert them to numbers with "
_TRANSFORM = "gymnasium.wrappers.TransformObservation first"
for _function in (flatdim, flatten, flatten_space, create_zero_array):
    _refuse(_function, _NO_ARRAYS + _TRANSFORM)
_refuse(
    create_shared_memory,
    "shared memory cannot hold them. Pass shared_memory=False to AsyncVectorEnv, or to make_vec "
    'vector_kwargs={"shared_memory": False}',
)


ARGUMENTS = ("tasks", "render_mode", "prepared")
"""Names of the arguments that an environment has in addition to those of `EpisodeConfig`."""

_OPTIONS = ("task", "variation", "phrasing")
_MAX_OBSERVATION_LENGTH = 100_000_000
"""A limit above the length of the longest response (64 MiB)."""


class _Choice(NamedTuple):
    """The task, variation and phrasing of a prepared episode."""

    task: str
    variation: int
    phrasing: Phrasing | None
    max_steps: int


class FHIREnv(gymnasium.Env[str, str]):
    """An agent performs one task on an embedded FHIR R4 server.

    ## Action
    A text of at most 262,144 characters with one action: `GET url`, `POST url` with a JSON body on the next lines,
    `PUT`, `PATCH`, `DELETE`, or `FINISH([...])` with the answer as a JSON list. URLs are absolute or relative to the
    server's base URL. Any other text is an invalid action: the observation gives the reason and a valid example, and
    the action counts as a step.

    ## Observation
    A text. The first observation is the task's prompt and the action format. Each later observation is the server's
    response: a status line such as `HTTP 200 OK`, then the FHIR JSON.

    ## Starting state
    The world plus the records that the task's variation adds. `reset(options={"task": key, "variation": k})` chooses
    the task and the variation, which must belong to `split`; otherwise they are drawn with `np_random` from `tasks` and
    the variations of `split`.
    The option `"phrasing"` chooses the wording of the prompt. Each reset undoes the writes of earlier episodes.

    ## Rewards
    0 until the last step. With `reward="sparse"` the last reward is 1 for success and 0 otherwise. With `"dense"` the
    last reward is the share of passed checks among the checks that an idle agent fails, minus a penalty for failing
    the other checks; only success gives 1.

    ## Episode end
    `FINISH` terminates the episode. After `max_steps` actions, the episode is truncated. A truncated episode is graded
    too. Gymnasium's `TimeLimit` wrapper and `make(max_episode_steps=…)` work like a smaller `max_steps`.

    ## Info
    `task`, `variation`, `phrasing`, `step`, `status` (HTTP status; 0 if no request was sent) and `invalid` (whether the
    action was invalid). The last step adds:

    - `success`, and `verdict`: the complete grading as plain data; its `process` has the tool usage
    - `check_rewards`: the part of each check in the dense reward (`name`, `level`, `passed`, `idle`, `reward`)
    - `invalid_actions`: number of invalid actions; `step` is the length of the episode
    - `stop_reason`: `finished`, or `step_limit` for a truncated episode

    ## Arguments
    - `tasks`: keys of the tasks to draw from, or one key; None for all of the pack's tasks that the world supports
    - `split`: `"train"` (variations 0 to 999; the default), `"test"` (1000 to 1999), `"heldout_tasks"` (1000 to 1999 of
      the tasks held out in FHIR-AgentEval's fourth experiment), or None for all. `reset` refuses other variations.
    - `render_mode`: None, or `"ansi"`: `render()` returns the latest action and observation
    - `prepared`: number of start states to keep in memory (about 100 kB each), for training on a bounded number of
      variations: a variation that is repeated is neither drawn nor loaded again. All environments of a process share
      them. 0 (the default) keeps none.
    - `world`, `fhir_server`, `fhir_credentials`, `phrasing`, `grading`, `reward`, `max_steps`, `level`, `dials`,
      `task_file`, `funcs_file`: see `fhir_gym.EpisodeConfig`
    - the dials of the pack's tasks, such as `minutes` of `FHIRAgent/Shift-v0`: `minutes=60` is short for
      `dials={"minutes": 60}`

    ## Version history
    - v0: first version

    Attributes:
        tasks: Keys of the tasks to draw from, in the order of the pack.
        variations: Numbers of the variations to draw from.
        config: The settings of the episodes.

    Raises:
        UnknownNameError: An argument, pack, task, split, world, grading or reward rule does not exist.
        TaskError: The world does not support the tasks.
        ArgumentError: The tasks do not have the phrasing.
        ArgumentError: Another argument is invalid.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - Gymnasium declares and reads it this way

    def __init__(
        self,
        env_id: str | EpisodeConfig,
        *,
        tasks: str | Sequence[str] | None = None,
        render_mode: str | None = None,
        prepared: int = 0,
        **settings: Unpack[EpisodeSettings],
    ) -> None:
        end_with_parent()
        config = EpisodeConfig.of(env_id, settings, ARGUMENTS, default_split=DEFAULT_SPLIT)
        config.one_server()  # several servers are an error
        if render_mode not in (None, "ansi"):
            raise UnknownNameError("render mode", render_mode, ["ansi"])
        self.render_mode = render_mode
        require_whole("prepared", prepared, 0)
        if isinstance(tasks, Collection) and not tasks:
            raise ArgumentError("tasks is empty: an environment needs at least one task")
        self._task_set, from_file = config.task_set(), config.task_file is not None
        keys, self.variations = config.choose_tasks(tasks), config.variations
        config.require_support(keys)
        self.world, self._owns_world = config.resolve_world()
        self.config = replace(config, world=self.world)
        self.tasks = self._supported(keys, named=tasks is not None or from_file)
        self.action_space = TextSpace(MAX_ACTION_LENGTH)
        self.observation_space = TextSpace(_MAX_OBSERVATION_LENGTH)
        variation_cache.reserve(prepared)
        self._release = finalize(self, variation_cache.release, prepared)
        self._server: RunningServer | None = None
        self._choice: _Choice | None = None
        self._episode: Episode | None = None
        self._state = "no episode has started"
        self._shown = ""

    @override
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seed of `np_random`, which draws task and variation.
            options: Values of ``task``, ``variation`` and ``phrasing``; missing values are drawn.

        Raises:
            UnknownNameError: An option or the task does not exist.
            ArgumentError: The variation does not exist or is not in `split`, or the phrasing does not exist.
        """
        super().reset(seed=seed)
        episode = self._prepare(self._choose({} if options is None else options, step_limit_around(self)))
        self._shown = observation = episode.start()
        self._state = ""
        return observation, episode.info()

    @override
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Perform one action.

        Raises:
            ResetNeeded: The episode is over, or no episode was started.
            WrongTypeError: The action is not a text.
        """
        if self._episode is None or self._state:
            raise ResetNeeded(f"{self._state}: call reset()")
        step = self._episode.step(action)
        self._shown = f"> {action}\n{step.observation}"
        if step.done:
            self._state = "the episode is over"
        return step.observation, step.reward, step.terminated, step.truncated, step.info

    @override
    def render(self) -> str | None:
        """Return the latest action and observation; None without a render mode."""
        return self._shown if self.render_mode == "ansi" else None

    @override
    def close(self) -> None:
        self._close_episode()
        self._release()
        if self._server is not None:
            self._server.release()
            self._server = None
        if self._owns_world:
            self.world.close()
        super().close()

    def _supported(self, keys: tuple[str, ...], *, named: bool) -> tuple[str, ...]:
        """Return the tasks that the world supports, in the order of the pack."""
        places = {key: place for place, key in enumerate(self._task_set)}
        ordered = sorted(keys, key=lambda key: places.get(key, len(places)))  # keys with dials come last
        try:
            return available_tasks(
                self.config.env_id, self._task_set, ordered, self.world, self.variations[0], named=named
            )
        except BaseException:
            if self._owns_world:
                self.world.close()
            raise

    def _choose(self, options: Mapping[str, Any], limit: int | None) -> _Choice:
        if not isinstance(options, Mapping):
            raise ArgumentError(f"reset options must be a dict with {', '.join(_OPTIONS)}, not {options!r}")
        for name in options:
            require_name("reset option", name, _OPTIONS)
        task, variation = options.get("task"), options.get("variation")
        if task is None:
            task = self.tasks[int(self.np_random.integers(len(self.tasks)))]
        else:
            task = find_task(self._task_set, task).key
        if variation is None:
            variation = self.variations[int(self.np_random.integers(len(self.variations)))]
        phrasing = options.get("phrasing", self.config.phrasing)
        variation = require_whole("option variation", variation)
        phrasing = None if phrasing is None else require_phrasing_type("option phrasing", phrasing)
        max_steps = self.config.step_limit_of(self._task_set[task])
        return _Choice(task, variation, phrasing, max_steps if limit is None else min(max_steps, limit))

    def _prepare(self, choice: _Choice) -> Episode:
        """Return the chosen episode. The open episode is used again if it is the chosen one."""
        if self._episode is not None and choice == self._choice:
            return self._episode
        self._close_episode()
        task, variation, phrasing, max_steps = choice
        config = replace(self.config, phrasing=phrasing, max_steps=max_steps)
        url = config.one_server()
        if url is not None and self._server is None:
            self._server = RunningServer(url, config.fhir_credentials)
        self._episode, self._choice = Episode(config, task=task, variation=variation, server=self._server), choice
        return self._episode

    def _close_episode(self) -> None:
        episode, self._episode, self._state = self._episode, None, "no episode has started"
        if episode is not None:
            episode.close()


def step_limit_around(env: gymnasium.Env[str, str]) -> int | None:
    """Return the lowest step limit of the `TimeLimit` wrappers around an environment; None without such wrappers.

    An environment must know the last step to grade the episode there. But Gymnasium does not tell an environment about
    its wrappers, such as the `TimeLimit` that `make(max_episode_steps=…)` adds. This function therefore searches the
    call stack for wrappers that have called `reset`. Call it only from the environment's `reset`.
    """
    limits = []
    frame = inspect.currentframe()
    frame = frame and frame.f_back and frame.f_back.f_back
    while frame is not None:
        caller = frame.f_locals.get("self")
        if not isinstance(caller, gymnasium.Env) and not frame.f_globals.get("__name__", "").startswith("gymnasium."):
            break
        if isinstance(caller, TimeLimit) and caller.unwrapped is env:
            limits.append(caller._max_episode_steps)
        frame = frame.f_back
    return min(limits, default=None)
