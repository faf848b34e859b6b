"""Run agents on episodes and record them: one by one, concurrently, or in worker processes."""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Container, Coroutine, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, Unpack

from fhir_gym import processes
from fhir_gym.agents import Agent, ConcurrentAgent, make_agent, require_agent
from fhir_gym.arguments import require_path, require_whole
from fhir_gym.concurrency import call_in_thread, finished, gather_or_cancel
from fhir_gym.episode_config import EpisodeConfig, EpisodeSettings
from fhir_gym.errors import FhirGymError, FhirServerError, InfraError
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.running_server import RunningServer
from fhir_gym.rollouts.budget import Budget, BudgetTracker
from fhir_gym.rollouts.episode_runner import Attempt, attempt_episode, run_at_once
from fhir_gym.rollouts.plan import EpisodeSpec, RunPlan, plan
from fhir_gym.rollouts.ray_cluster import RayCluster, RayRun
from fhir_gym.rollouts.record import Rollout
from fhir_gym.tasks.core.registry import pickle_packs, unpickle_packs

OnRetired = Callable[[str, str], None]
"""Function that is called with the base URL of a retired server and the reason."""


def warn_of_retired(url: str, reason: str) -> None:
    """Warn that a server is used no more."""
    warnings.warn(f"{url} is used no more in this run: {reason}", stacklevel=2)


class EpisodePool:
    """Distributes episodes over workers as these become free. The caller's thread receives the rollouts.

    If there are several servers, a server that fails is retired, and its episode starts again on another server, unless
    the episode has a verdict. Each of several servers has one thread, in which everything happens that waits for the
    server. A `ConcurrentAgent` acts on the event loop; an `Agent` acts in the threads, and each server has its own copy
    of the agent.

    Args:
        plan: The episodes.
        agent: The agent; an `Agent` needs servers.
        world: The world.
        tracker: The budget.
        servers: The server of each worker; None for the embedded server.
        on_retired: Function to call for each retired server.

    Raises:
        FhirGymError: The agent cannot be copied.
    """

    def __init__(
        self,
        plan: RunPlan,
        agent: Agent | ConcurrentAgent,
        world: World,
        tracker: BudgetTracker,
        servers: Sequence[RunningServer | None],
        on_retired: OnRetired = warn_of_retired,
    ) -> None:
        self._plan, self._agent, self._world, self._tracker = plan, agent, world, tracker
        self._agents = [agent if isinstance(agent, ConcurrentAgent) else _copy(agent) for _ in servers]
        self._servers, self._on_retired = servers, on_retired
        self._failures: list[FhirServerError] = []
        self._waiting = deque(plan.episodes)
        self._begun: set[EpisodeSpec] = set()
        self._running = 0
        self._changed = asyncio.Condition()
        self._stopped = threading.Event()
        self._done: SimpleQueue[Rollout | Callable[[], None] | BaseException | None] = SimpleQueue()
        """What the caller's thread receives: rollouts, calls to make there, an exception, and None at the end."""
        self._thread = threading.Thread(target=self._run, name="fhir-gym-rollouts", daemon=True)
        self._started = threading.Event()
        self._cancelled = False
        self._work: asyncio.Task[list[None]] | None = None

    # in the caller's thread

    def in_order(self) -> Iterator[Rollout]:
        """Run the episodes, and yield the rollouts in the order of the plan.

        After an exception, the rollouts that are left are yielded before it is raised.
        """
        held: dict[EpisodeSpec, Rollout] = {}
        waiting = deque(self._plan.episodes)
        failure: BaseException | None = None
        try:
            with closing(self.run()) as rollouts:
                for rollout in rollouts:
                    held[EpisodeSpec(rollout.task.key, rollout.task.variation, rollout.repeat)] = rollout
                    while waiting and waiting[0] in held:
                        yield held.pop(waiting.popleft())
        except (Exception, KeyboardInterrupt) as error:
            failure = error
        yield from (held[episode] for episode in waiting if episode in held)
        if failure is not None:
            raise failure

    def run(self) -> Generator[Rollout]:
        """Run the episodes, and yield each rollout when its episode ends.

        Raises:
            InfraError: All servers have failed.
        """
        try:
            try:
                self.start()
                yield from self.rollouts()
            except KeyboardInterrupt:
                self.cancel()
                yield from self.rollouts()  # the interrupted episodes
                raise
        finally:
            self.stop()

    def start(self) -> None:
        """Start the thread and wait until its event loop runs."""
        self._thread.start()
        self._started.wait()

    def rollouts(self) -> Iterator[Rollout]:
        """Yield rollouts until all episodes are over; raise an exception of the workers, if there is one."""
        while (item := self._done.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, Rollout):
                yield item
            else:
                item()

    def cancel(self) -> None:
        """Interrupt the running episodes."""
        self._stopped.set()
        self._cancelled = True
        if self._work is not None:
            with suppress(RuntimeError):  # the loop is closed, so there is nothing to cancel
                self._work.get_loop().call_soon_threadsafe(self._work.cancel)

    def stop(self) -> None:
        """Cancel the remaining work and wait for the thread."""
        if self._thread.is_alive():
            self.cancel()
            self._thread.join()

    # in the thread of the event loop

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            pass  # `cancel` was called; all running episodes have returned their records
        except BaseException as error:  # `rollouts` raises it in the caller's thread
            self._done.put(error)
        finally:
            self._started.set()
            self._done.put(None)

    async def _main(self) -> None:
        pairs = zip(self._servers, self._agents, strict=True)
        self._work = asyncio.create_task(gather_or_cancel(self._serve(server, agent) for server, agent in pairs))
        if self._cancelled:  # `cancel` was called before the task existed
            self._work.cancel()
        self._started.set()
        try:
            await self._work
        finally:
            if isinstance(self._agent, ConcurrentAgent):
                await self._agent.aclose()

    async def _serve(self, server: RunningServer | None, agent: Agent | ConcurrentAgent) -> None:
        """Run episodes until no episode is left or the server is retired."""
        try:
            with ThreadPoolExecutor(1, "fhir-gym-server") as thread:  # which starts at the first call
                while (episode := await self._next()) is not None:
                    attempt = await self._attempt(episode, server, agent, thread)
                    rollout = attempt.rollout
                    if rollout.stop_reason == "interrupted" or self._stopped.is_set():
                        if self._cancelled or rollout.graded:  # otherwise another episode's failure ends the run
                            self._done.put(rollout)
                        raise asyncio.CancelledError
                    failure = attempt.server_failure if self._has_several_servers else None
                    await self._finish(episode, rollout, failure)
                    if server is not None and failure is not None:
                        await self._retire(server, failure)
                        return
        except BaseException:
            self._stopped.set()  # threads end their episodes before the next action
            raise

    @property
    def _has_several_servers(self) -> bool:
        return len(self._servers) > 1 and self._servers[0] is not None

    async def _next(self) -> EpisodeSpec | None:
        """Return the next episode; None if all are over. Wait while a running episode may have to start again."""
        async with self._changed:
            while True:
                if self._waiting:
                    episode = self._waiting[0]
                    if episode in self._begun or self._tracker.try_begin():
                        self._begun.add(episode)
                        self._running += 1
                        return self._waiting.popleft()
                    self._waiting.clear()
                if not self._running:
                    return None
                await self._changed.wait()

    async def _attempt(
        self,
        episode: EpisodeSpec,
        server: RunningServer | None,
        agent: Agent | ConcurrentAgent,
        thread: ThreadPoolExecutor,
    ) -> Attempt:
        attempt = partial(attempt_episode, self._plan, episode, agent, self._world, self._tracker, server)
        if not self._has_several_servers:
            return await attempt()
        if isinstance(agent, ConcurrentAgent):
            return await attempt(partial(call_in_thread, thread))
        alone = attempt(stopped=self._stopped)
        future = asyncio.get_running_loop().run_in_executor(thread, run_at_once, alone)
        with suppress(asyncio.CancelledError):  # the record says that the episode was interrupted
            await finished(future)
        return future.result()

    async def _finish(self, episode: EpisodeSpec, rollout: Rollout, failure: FhirServerError | None) -> None:
        """Hand over the record of an episode, or let the episode start again if its server failed."""
        async with self._changed:
            self._running -= 1
            if failure is None or rollout.graded:
                self._done.put(rollout)
            else:
                self._waiting.appendleft(episode)
            self._changed.notify_all()

    async def _retire(self, server: RunningServer, failure: FhirServerError) -> None:
        """Use a server no more.

        Raises:
            InfraError: No server is left for the remaining episodes.
        """
        self._failures.append(failure)
        self._done.put(partial(self._on_retired, server.url, str(failure)))
        if len(self._failures) == len(self._servers) and self._has_work():
            raise InfraError(f"no FHIR server is left: {'; '.join(map(str, self._failures))}")

    def _has_work(self) -> bool:
        return bool(self._waiting) and (self._waiting[0] in self._begun or not self._tracker.exhausted)


def _copy(agent: Agent) -> Agent:
    try:
        return deepcopy(agent)
    except Exception as error:
        raise FhirGymError(
            f"agent {agent.name} cannot be copied for each FHIR server ({type(error).__name__}: {error}): "
            "use one server, or give the agent a method __deepcopy__"
        ) from error


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
        FhirGymError: Another argument is invalid.
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
        raise FhirGymError(
            "workers are for the embedded server, because a running FHIR server serves one episode at a time: leave "
            "workers out; to run several episodes at the same time, pass the base URLs of several servers as "
            "fhir_server (repeat --fhir-server on the command line)"
        )
    actor = make_agent(agent) if isinstance(agent, str) else require_agent(agent)
    if isinstance(workers, int) and workers and isinstance(actor, Agent):
        _require_portable(actor)
        pickle_packs([config.env_id])
    with ExitStack() as stack:
        world, owned = config.resolve_world()
        if owned:
            stack.callback(world.close)
        plan = _remaining(replace(plan, config=replace(config, world=world)), actor, world, resume)
        servers = stack.enter_context(_reserved(plan, world))
        tracker = budget if isinstance(budget, BudgetTracker) else BudgetTracker(budget)
        if isinstance(workers, RayCluster):
            rollouts = RayRun(plan, actor, world, tracker, workers, concurrency).rollouts()
        elif isinstance(actor, ConcurrentAgent) and not (workers and isinstance(actor, Agent)):
            pool = EpisodePool(plan, actor, world, tracker, servers or [None] * concurrency, on_retired)
            rollouts = pool.run()
        elif len(servers) > 1:
            rollouts = EpisodePool(plan, actor, world, tracker, servers, on_retired).in_order()
        elif workers:
            rollouts = _run_in_workers(plan, actor, world, tracker, workers)
        else:
            rollouts = _run_serially(plan, actor, world, tracker, next(iter(servers), None))
        resources = stack.pop_all()
    return _closing(rollouts, resources)


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
    """Yield the rollouts, then close the world and release the server."""
    with resources:
        yield from rollouts


def _run_serially(
    plan: RunPlan, agent: Agent, world: World, tracker: BudgetTracker, server: RunningServer | None
) -> Iterator[Rollout]:
    for episode in plan.episodes:
        if not tracker.try_begin():
            return
        rollout = run_at_once(attempt_episode(plan, episode, agent, world, tracker, server)).rollout
        yield rollout
        if rollout.stop_reason == "interrupted":
            raise KeyboardInterrupt


def _run_in_workers(
    plan: RunPlan, agent: Agent, world: World, tracker: BudgetTracker, workers: int
) -> Iterator[Rollout]:
    pending: deque[Future[Rollout]] = deque()
    episodes = iter(plan.episodes)
    tasks = pickle_packs([plan.config.env_id])
    start = partial(_start_worker, replace(plan, episodes=()), agent, world, tasks)
    try:
        with processes.worker_pool(workers, start) as pool:
            while True:
                while (
                    len(pending) < 4 * workers and (episode := next(episodes, None)) is not None and tracker.try_begin()
                ):
                    pending.append(pool.submit(_work, episode))
                if not pending:
                    return
                rollout = pending.popleft().result()
                if rollout.usage is not None:
                    tracker.spend(rollout.usage)
                yield rollout
    except BrokenProcessPool as error:
        raise InfraError(
            "a worker process died: it ran out of memory, or the main script starts the run without the guard "
            '`if __name__ == "__main__":` that worker processes need'
        ) from error


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


_worker: tuple[RunPlan, Agent, World] | None = None


def _start_worker(plan: RunPlan, agent: Agent, world: World, tasks: bytes) -> None:
    global _worker
    _worker = plan, agent, world
    unpickle_packs(tasks)


def _work(episode: EpisodeSpec) -> Rollout:
    if _worker is None:
        raise RuntimeError("the worker process was not started by _start_worker")
    plan, agent, world = _worker
    attempt = attempt_episode(plan, episode, agent, world, BudgetTracker())
    if isinstance(agent, ConcurrentAgent):
        return asyncio.run(_closing_agent(agent, attempt)).rollout
    return run_at_once(attempt).rollout


async def _closing_agent(agent: ConcurrentAgent, attempt: Coroutine[Any, Any, Attempt]) -> Attempt:
    try:
        return await attempt
    finally:
        await agent.aclose()
