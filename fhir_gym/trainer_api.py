"""Play one episode of a trainer against an OpenAI-compatible endpoint, and make the rows that name such episodes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from itertools import count
from threading import Lock
from typing import Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, overload

from fhir_gym.agents import ChatAgent
from fhir_gym.arguments import parse_phrasing, require_whole
from fhir_gym.concurrency import call_in_thread, run_coroutine
from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import ArgumentError, InfraError, missing_extra
from fhir_gym.fhir import World
from fhir_gym.rollouts import BudgetTracker, EpisodeSpec, Rollout, RunPlan, plan
from fhir_gym.rollouts.episode_runner import attempt_episode
from fhir_gym.tasks import DEFAULT_SPLIT, get_pack
from fhir_gym.tasks.core.variation import variation_cache
from fhir_gym.types import Phrasing

__all__ = ["EpisodeRow", "aplay", "play", "read_row", "rollout_metrics", "rows", "shared_world", "to_dataset"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_V = TypeVar("_V")

_CLIENTS = 16
"""Number of HTTP clients that share the connections to an endpoint. Each request looks at all connections of a client,
so that with one client for 256 episodes this would take most of the time."""
_START_STATES = 32
"""Number of start states in memory while a world is shared. The members of a group start from the same one."""


class EpisodeRow(TypedDict):
    """A row of a dataset: the name of an episode.

    Attributes:
        env_id: Env id of the pack.
        task: Key of the task.
        variation: Number of the variation.
        phrasing: Index of the prompt wording, ``brief`` or ``paraphrase``; None for the wording that the variation has
            drawn.
        split: Name of the split that the row belongs to.
    """

    env_id: str
    task: str
    variation: int
    phrasing: Phrasing | None
    split: str | None


@overload
def rows(
    env_id: str | EpisodeConfig,
    tasks: str | Sequence[str] | None = None,
    *,
    split: str | None = DEFAULT_SPLIT,
    variations: int | str | Iterable[int] | None = None,
    phrasings: Iterable[Phrasing | None] = (None,),
    as_dataset: Literal[False] = False,
    **settings: Any,
) -> list[EpisodeRow]: ...


@overload
def rows(
    env_id: str | EpisodeConfig,
    tasks: str | Sequence[str] | None = None,
    *,
    split: str | None = DEFAULT_SPLIT,
    variations: int | str | Iterable[int] | None = None,
    phrasings: Iterable[Phrasing | None] = (None,),
    as_dataset: Literal[True],
    **settings: Any,
) -> Any: ...


def rows(
    env_id: str | EpisodeConfig,
    tasks: str | Sequence[str] | None = None,
    *,
    split: str | None = DEFAULT_SPLIT,
    variations: int | str | Iterable[int] | None = None,
    phrasings: Iterable[Phrasing | None] = (None,),
    as_dataset: bool = False,
    **settings: Any,
) -> Any:
    """Return the rows of a dataset for a trainer, one for each task, variation and phrasing.

    Args:
        env_id: Env id of the pack, or an `EpisodeConfig`.
        tasks: Keys of tasks, or one key; None for all tasks of the pack.
        split: ``train``, ``test`` or ``heldout_tasks``. None admits all variations; such rows are refused in training.
        variations: Numbers, also as text such as ``"0-99"``; None for all variations of the split.
        phrasings: Indexes of the prompt wordings, ``brief`` or ``paraphrase``; None stands for the wording that each
            variation drew.
        as_dataset: Whether to return a `datasets.Dataset` instead of a list.
        settings: Fields of `EpisodeConfig` that choose tasks, such as ``level``, ``dials`` and ``world``.

    Raises:
        UnknownNameError: The pack, a task, the split or a setting does not exist.
        TaskError: A variation does not belong to the split, or a task does not have a phrasing.
        ArgumentError: Another argument is invalid.
        MissingExtraError: `as_dataset` needs the package datasets.

    Examples:
        >>> import fhir_gym
        >>> fhir_gym.rows("FHIRAgent/Appointment-v0", "01", variations=0)
        [{'env_id': 'FHIRAgent/Appointment-v0', 'task': '01', 'variation': 0, 'phrasing': None, 'split': 'train'}]
    """
    config = EpisodeConfig.of(env_id, {**settings, "split": split}, ("tasks", "variations", "phrasings"))
    chosen = plan(config, tasks=tasks, variations=config.variations if variations is None else variations)
    if config.world is not None:
        with shared_world(config) as world:
            chosen = chosen.supported(world)
    wordings = list(phrasings)
    for wording in wordings:
        replace(config, phrasing=wording).require_support(dict.fromkeys(spec.task for spec in chosen.episodes))
    episode_rows: list[EpisodeRow] = [
        {
            "env_id": config.env_id,
            "task": spec.task,
            "variation": spec.variation,
            "phrasing": wording,
            "split": config.split,
        }
        for spec in chosen.episodes
        for wording in wordings
    ]
    return to_dataset(episode_rows) if as_dataset else episode_rows


def to_dataset(episode_rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows with a column ``phrasing`` as a `datasets.Dataset`.

    Raises:
        MissingExtraError: The package datasets is missing.
    """
    with missing_extra("a dataset needs the package datasets: pip install datasets"):
        datasets = import_module("datasets")
    if any(isinstance(row["phrasing"], str) for row in episode_rows):  # a column has one type
        episode_rows = [
            {**row, "phrasing": None if row["phrasing"] is None else str(row["phrasing"])} for row in episode_rows
        ]
    return datasets.Dataset.from_list(list(episode_rows))


def read_row(
    row: Mapping[str, Any], settings: Mapping[str, Any], other_names: Collection[str] = ()
) -> tuple[EpisodeConfig, EpisodeSpec]:
    """Return the settings of the episode that a row names, and its task and variation.

    The split of `settings` applies; without one, the split of the row; without either, the training split.

    Args:
        row: An `EpisodeRow`, which may have other columns too. ``phrasing``, ``split`` and ``repeat`` may be missing.
        settings: Fields of `EpisodeConfig`.
        other_names: Names of the caller's other settings; see `EpisodeConfig.of`.

    Raises:
        ArgumentError: The row names no episode, or an argument is invalid.
        TaskError: The variation does not belong to the split. So no trainer can train on test variations.
    """
    try:
        env_id, task, variation = row["env_id"], row["task"], row["variation"]
    except (KeyError, TypeError) as error:
        raise ArgumentError(
            f"a row must have env_id, task and variation, as the rows of fhir_gym.rows do: {row!r}"
        ) from error
    config = EpisodeConfig.of(env_id, settings, other_names, default_split=row.get("split", DEFAULT_SPLIT))
    wording = row.get("phrasing")
    if wording is not None:
        config = replace(config, phrasing=parse_phrasing(wording) if isinstance(wording, str) else wording)
    (number,) = config.require_variations([variation])
    return config, EpisodeSpec(str(task), number, require_whole("repeat", row.get("repeat", 0), 0))


class _Shared(Generic[_V]):
    """Values that concurrent episodes share: made for the first of them, given back by the last of them."""

    def __init__(self) -> None:
        self._values: dict[Hashable, tuple[_V, int]] = {}
        self._lock = Lock()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def take(self, key: Hashable, make: Callable[[], _V]) -> _V:
        """Return the value for a key."""
        with self._lock:
            value, users = self._values[key] if key in self._values else (make(), 0)
            self._values[key] = value, users + 1
        return value

    def leave(self, key: Hashable) -> _V | None:
        """Give a value back; return it if nobody uses it any more."""
        with self._lock:
            value, users = self._values.pop(key)
            if users == 1:
                return value
            self._values[key] = value, users - 1
        return None


_worlds: _Shared[World] = _Shared()
_agents: _Shared[ChatAgent] = _Shared()
_numbers = count()


@contextmanager
def shared_world(config: EpisodeConfig) -> Iterator[World]:
    """Open the world of a config, or share it with the other users in this process, and keep recent start states.

    Raises:
        WorldError: The world cannot be opened.
    """
    if isinstance(config.world, World):
        yield config.world
        return
    name = get_pack(config.env_id).world if config.world is None else config.world
    if name not in _worlds:
        config.resolve_world()[0].close()  # a missing world is built before others wait for the lock
    world = _worlds.take(name, lambda: config.resolve_world()[0])
    variation_cache.reserve(_START_STATES)
    try:
        yield world
    finally:
        variation_cache.release(_START_STATES)
        if (unused := _worlds.leave(name)) is not None:
            unused.close()


async def aplay(
    row: Mapping[str, Any], *, model: str, base_url: str | None = None, api_key: str | None = None, **settings: Any
) -> Rollout:
    """Play the episode that a row names with the agent ``chat``, and return its record.

    Concurrent calls share worlds, start states and the connections to an endpoint. The event loop is free while the
    episode starts, acts and is graded. A running FHIR server (`fhir_server`) serves one episode at a time.

    `Rollout.reward` is the reward. An episode that ends at the step limit or with a full context window is graded as it
    is; `Rollout.stop_reason` tells it apart. `Rollout.replies` has the token ids and log-probabilities in `extra`, if
    the endpoint returns them.

    Args:
        row: A row of `rows`: ``env_id``, ``task``, ``variation`` and, if you like, ``phrasing``, ``split`` (default:
            ``train``) and ``repeat`` (a number that changes the episode's sampling seed). Other columns are not used.
        model: Name of the model.
        base_url: The endpoint (``http://localhost:8000/v1``); None for ``OPENAI_BASE_URL`` or OpenAI's endpoint.
        api_key: The endpoint's key; None for ``OPENAI_API_KEY``.
        settings: Fields of `EpisodeConfig`, such as ``reward``, ``max_steps`` and ``split``, and settings of
            `ChatAgent`, such as ``protocol`` and ``temperature``.

    Raises:
        InfraError: The FHIR server or the endpoint failed, so the episode has no reward.
        EndpointError: The endpoint is misconfigured.
        UnknownNameError: The pack, the task or a setting does not exist.
        TaskError: The variation does not belong to the split.
        ArgumentError: Another argument is invalid.
    """
    names = inspect.signature(ChatAgent).parameters
    chat = {name: value for name, value in settings.items() if name in names}
    config, spec = read_row(row, {name: value for name, value in settings.items() if name not in names}, names)
    number = next(_numbers) % _CLIENTS
    key = (asyncio.get_running_loop(), number, model, base_url, api_key, repr(sorted(chat.items())))
    async with AsyncExitStack() as stack:

        def prepare() -> tuple[World, ChatAgent]:
            world = stack.enter_context(shared_world(config))
            agent = _agents.take(key, lambda: ChatAgent(model, base_url=base_url, api_key=api_key, **chat))
            stack.push_async_callback(_leave_agent, key)
            return world, agent

        world, agent = await _in_thread(prepare)
        one_episode = RunPlan(replace(config, world=world), (spec,))
        attempt = await attempt_episode(one_episode, spec, agent, world, BudgetTracker(), call=_in_thread)
    rollout = attempt.rollout
    if rollout.stop_reason == "interrupted":
        raise asyncio.CancelledError
    if rollout.stop_reason == "infra_error":
        raise attempt.server_failure or InfraError(f"{rollout.error}")
    return rollout


def play(
    row: Mapping[str, Any], *, model: str, base_url: str | None = None, api_key: str | None = None, **settings: Any
) -> Rollout:
    """Play one episode like `aplay`, for callers without an event loop and for notebooks."""
    return run_coroutine(aplay(row, model=model, base_url=base_url, api_key=api_key, **settings))


def rollout_metrics(rollout: Rollout) -> dict[str, float]:
    """Return the metrics that trainers log about an episode."""
    return {
        "success": float(bool(rollout.success)),
        "steps": float(rollout.steps),
        "invalid_actions": float(sum(turn.error is not None for turn in rollout.turns)),
        "truncated": float(rollout.stop_reason != "finished"),
    }


async def _leave_agent(key: Hashable) -> None:
    if (unused := _agents.leave(key)) is not None:
        await unused.aclose()


async def _in_thread(function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    return await call_in_thread(None, function, *args, **kwargs)
