"""Run agents on episodes and record them: one by one, concurrently, in worker processes, or on a Ray cluster."""

from __future__ import annotations

import asyncio
import pickle
import sys
import warnings
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

from fhir_gym import processes
from fhir_gym.agents import Agent, ConcurrentAgent, make_agent, require_agent
from fhir_gym.arguments import require_path, require_whole
from fhir_gym.concurrency import call_in_thread
from fhir_gym.episode_config import EpisodeConfig, EpisodeSettings
from fhir_gym.errors import ArgumentError, FhirGymError
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.running_server import RunningServer
from fhir_gym.rollouts.budget import Budget, BudgetTracker
from fhir_gym.rollouts.episode_runner import Attempt, attempt_episode, run_alone, run_at_once
from fhir_gym.rollouts.plan import EpisodeSpec, RunPlan, plan
from fhir_gym.rollouts.ray_cluster import RayCluster, RayRun
from fhir_gym.rollouts.record import Rollout
from fhir_gym.rollouts.scheduler import OnRetired, Place, Scheduler
from fhir_gym.tasks.core.registry import pickle_packs, unpickle_packs

_Shipped = tuple[RunPlan, Agent, World]
_Attempting = Callable[..., Coroutine[Any, Any, Attempt]]


def warn_of_retired(url: str, reason: str) -> None:
    """Warn that a server is used no more."""
    warnings.warn(f"{url} is used no more in this run: {reason}", stacklevel=2)


_FIRST_ANSWER_TIMEOUT = 20.0
"""Maximum number of seconds to wait for the first response of a running FHIR server."""


def run(
    env_id: str | EpisodeConfig,
    agent: Agent | ConcurrentAgent | str,
    *,
    tasks: str | Sequence[str] | None = None,
    variations: int | str | Iterable[int] | None = None,
    repeats: int = 1,
    seed: int = 0,
    skip: Container[tuple[str, int, int]] = (),
    workers: int | Literal["ray"] | RayCluster = 0,
    concurrency: int = 8,
    budget: Budget | None = None,
    resume: str | Path | None = None,
    **settings: Unpack[EpisodeSettings],
) -> Iterator[Rollout]:
    """Run an agent on episodes, and yield their records in the order of task, variation and repeat.

    The function checks its arguments at once. The episodes run while the caller iterates. The records are the same with
    and without worker processes, except for timings. Without workers, a `ConcurrentAgent` runs several episodes
    concurrently. Each rollout is then yielded as soon as its episode ends, so that paid work is saved immediately.

    If `fhir_server` lists several servers, each of them runs one episode at a time; an agent that is no
    `ConcurrentAgent` is copied for each server. A server that fails is retired with a warning, and its episode starts
    again on another server.

    Args:
        env_id: Env id of the pack, or an `EpisodeConfig`.
        agent: The agent or its name. Each worker gets a copy of the agent, so the agent must be picklable, and the
            classes of the agent and of the tasks must be defined at the top level of a module.
        tasks: Keys of tasks, or one key; None for all of the pack's tasks that the world supports.
        variations: A variation number, several numbers, or a text such as ``"0-9"``; None for the first ten variations
            of the split `split` in `settings`, or of the training split.
        repeats: Number of runs of each variation.
        seed: Seed of the run; each episode's own seed is derived from it.
        skip: Episodes to skip, each given as task, variation and repeat.
        workers: Number of worker processes; 0 to run in this process. The number is ignored for a `ConcurrentAgent`
            that is not also an `Agent`. A `RayCluster` runs the episodes on a Ray cluster; ``"ray"`` is short for
            `RayCluster()`. With `fhir_server`, pass several servers instead.
        concurrency: Number of episodes that a `ConcurrentAgent` runs concurrently if there are no workers, and in each
            Ray actor. Each server of `fhir_server` runs one episode at a time.
        budget: Limits of the run; None for no limit.
        resume: A rollout file. Graded episodes in the file that match the arguments are skipped. The file may be
            missing.
        settings: Fields of `EpisodeConfig`, such as ``world``, ``grading`` and ``split``.

    Raises:
        UnknownNameError: The pack, agent, task, split, world, grading or reward rule does not exist.
        WrongTypeError: `agent` is not an agent (for example, a class instead of an instance).
        TaskError: The world supports no task, or does not support a named task; or a variation does not exist or is not
            in the split.
        ArgumentError: Another argument is invalid.
        AgentError: The agent's own code failed (during iteration).
        EndpointError: A model's endpoint is misconfigured (during iteration).
        InfraError: The FHIR server does not answer, is in use or does not contain the world (at once). A worker process
            died, all of several FHIR servers failed, the Ray cluster does not answer, or several Ray actors died in one
            episode (during iteration).
        MissingExtraError: Ray is needed and not installed.

    Examples:
        >>> import fhir_gym
        >>> [rollout.reward for rollout in fhir_gym.run("FHIRAgent/Appointment-v0", "idle", tasks="01", variations=0)]
        [0.0]
    """
    chosen = plan(env_id, tasks=tasks, variations=variations, repeats=repeats, seed=seed, skip=skip, **settings)
    return run_plan(chosen, agent, workers=workers, concurrency=concurrency, budget=budget, resume=resume)


def run_plan(
    plan: RunPlan,
    agent: Agent | ConcurrentAgent | str,
    *,
    workers: int | Literal["ray"] | RayCluster = 0,
    concurrency: int = 8,
    budget: Budget | BudgetTracker | None = None,
    resume: str | Path | None = None,
    on_retired: OnRetired = warn_of_retired,
) -> Iterator[Rollout]:
    """Run an agent on the episodes of a plan; see `run`. Several runs can share the tracker of one budget.

    If one of several FHIR servers fails, `on_retired` is called with its base URL and the reason; by default, there is
    a warning.
    """
    if workers == "ray":
        workers = RayCluster()
    elif not isinstance(workers, RayCluster):
        workers = require_whole("workers", workers, 0)
    require_whole("concurrency", concurrency, 1)
    require_path("resume", resume)
    config = plan.config
    if workers and config.fhir_server is not None:
        raise ArgumentError(
            "workers are for the embedded server, because a running FHIR server serves one episode at a time: leave "
            "workers out; to run several episodes at the same time, pass the base URLs of several servers as "
            "fhir_server (repeat --fhir-server on the command line)"
        )
    actor = make_agent(agent) if isinstance(agent, str) else require_agent(agent)
    portable = actor if isinstance(workers, int) and workers and isinstance(actor, Agent) else None
    conversing = actor if isinstance(actor, ConcurrentAgent) and portable is None else None
    if portable is not None:
        _require_portable(portable)
        pickle_packs([config.env_id])
    with ExitStack() as stack:
        world, owned = config.resolve_world()
        if owned:
            stack.callback(world.close)
        plan = _remaining(replace(plan, config=replace(config, world=world)), actor, world, resume)
        servers = stack.enter_context(_reserved(plan, world))
        tracker = budget if isinstance(budget, BudgetTracker) else BudgetTracker(budget)
        scheduler = Scheduler(plan.episodes, tracker, ordered=conversing is None, on_retired=on_retired)
        attempt = partial(attempt_episode, plan, agent=actor, world=world, tracker=tracker)
        places: AbstractContextManager[Sequence[Place]]
        if isinstance(workers, RayCluster):
            places = RayRun(plan, actor, world, tracker, workers, concurrency).places()
        elif portable is not None and isinstance(workers, int):
            places = _worker_places(plan, portable, world, tracker, workers)
        elif servers and conversing is not None:
            places = _server_places(attempt, servers, [conversing] * len(servers), conversing.aclose)
        elif conversing is not None:
            places = nullcontext([Place(attempt, concurrency, close=conversing.aclose)])
        elif len(servers) > 1:
            places = _server_places(attempt, servers, [_copy(actor) for _ in servers])
        else:
            server = next(iter(servers), None)
            places = nullcontext([Place(partial(_attempt_in_caller, scheduler, partial(attempt, server=server)))])
        resources = stack.pop_all()
    return _closing(scheduler.rollouts(places), resources)


def _remaining(plan: RunPlan, agent: Agent | ConcurrentAgent, world: World, resume: str | Path | None) -> RunPlan:
    """Return the plan of the remaining episodes."""
    plan = plan.supported(world)
    return plan if resume is None else plan.unfinished(resume, agent, world)


@contextmanager
def _reserved(plan: RunPlan, world: World) -> Iterator[list[RunningServer]]:
    """Lock the running servers for a `with` block; first check for problems that would affect all episodes.

    Agents see the base URL of the first server everywhere, so that records do not depend on which server is free.
    """
    config = plan.config
    with ExitStack() as stack:
        servers = []
        for url in config.servers if plan.episodes else ():
            server = RunningServer(url, config.fhir_credentials, shown_url=config.servers[0].rstrip("/"))
            servers.append(stack.enter_context(server))
            server.session(world, timeout=_FIRST_ANSWER_TIMEOUT).close()
        yield servers


def _closing(rollouts: Iterator[Rollout], resources: ExitStack) -> Iterator[Rollout]:
    """Yield the rollouts, then close the world and release the servers."""
    with resources:
        yield from rollouts


async def _attempt_in_caller(scheduler: Scheduler, attempt: _Attempting, spec: EpisodeSpec) -> Attempt:
    """Run an episode in the thread that iterates, where Ctrl-C interrupts the agent."""
    return await scheduler.caller.result_in_caller(lambda: run_at_once(attempt(spec)))


@contextmanager
def _server_places(
    attempt: _Attempting,
    servers: Sequence[RunningServer],
    agents: Sequence[Agent | ConcurrentAgent],
    close: Callable[[], Awaitable[None]] | None = None,
) -> Iterator[list[Place]]:
    """Provide one place for each server. Everything that waits for a server happens in a thread of its own."""
    with ExitStack() as stack:
        places = []
        for server, agent in zip(servers, agents, strict=True):
            thread = stack.enter_context(ThreadPoolExecutor(1, "fhir-gym-server"))
            call = partial(call_in_thread, thread)
            places.append(Place(partial(attempt, agent=agent, server=server, call=call), url=server.url))
        if close is not None:
            places[0].close = close  # all places use the same agent
        yield places


def _copy(agent: Agent | ConcurrentAgent) -> Agent | ConcurrentAgent:
    try:
        return deepcopy(agent)
    except Exception as error:
        raise FhirGymError(
            f"agent {agent.name} cannot be copied for each FHIR server ({type(error).__name__}: {error}): "
            "use one server, or give the agent a method __deepcopy__"
        ) from error


@contextmanager
def _worker_places(
    plan: RunPlan, agent: Agent, world: World, tracker: BudgetTracker, workers: int
) -> Iterator[list[Place]]:
    """Provide worker processes, which have a queue so that no worker waits for its next episode."""
    shipped = replace(plan, episodes=()), agent, world
    with processes.worker_pool(workers, partial(_unpack, *shipped, pickle_packs([plan.config.env_id]))) as submit:

        async def attempt(spec: EpisodeSpec) -> Attempt:
            return Attempt.elsewhere(await asyncio.wrap_future(submit(_work, spec)), tracker)

        yield [Place(attempt, slots=2 * workers)]


def _unpack(plan: RunPlan, agent: Agent, world: World, packs: bytes) -> _Shipped:
    unpickle_packs(packs)
    return plan, agent, world


def _work(shipped: _Shipped, spec: EpisodeSpec) -> Rollout:
    plan, agent, world = shipped
    return run_alone(plan, spec, agent, world)


def _require_portable(agent: Agent) -> None:
    """Raise if an agent cannot be sent to worker processes, which import the agent's class by name."""
    kind = type(agent)
    advice = "define it at the top of a file, or use workers=0"
    if kind.__module__ == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        raise FhirGymError(f"worker processes cannot import {kind.__qualname__}, an agent of this session: {advice}")
    try:
        pickle.dumps(agent)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise FhirGymError(f"agent {agent.name} cannot be sent to worker processes ({reason}): {advice}") from error
