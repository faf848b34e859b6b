"""Let an agent do episodes, here or in worker processes, and record them."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fhir_gym.actions import GRAMMAR, Action, Invalid
from fhir_gym.agents import Agent, Context, Reply, make_agent
from fhir_gym.episode import Episode, Step, open_world
from fhir_gym.errors import FhirGymError, InfraError
from fhir_gym.fhir import World
from fhir_gym.rollouts.plan import Job, Plan, plan
from fhir_gym.rollouts.record import AgentRecord, Rollout, StopReason, TaskRecord, Timings, Turn, WorldRecord
from fhir_gym.tasks import Grading, RewardRule, Variation, Verdict, task_set

__all__ = ["run", "run_job"]


def run(
    env_id: str,
    agent: Agent | str,
    *,
    tasks: str | Sequence[str] | None = None,
    variations: int | str | Iterable[int] | None = None,
    split: str | None = None,
    phrasing: int | None = None,
    workers: int = 0,
    world: World | str | Path = "hospital-small",
    fhir_server: str | None = None,
    repeats: int = 1,
    seed: int = 0,
    grading: Grading = "state",
    reward: RewardRule = "sparse",
    max_steps: int | None = None,
    skip: Container[tuple[str, int, int]] = (),
    task_file: str | Path | None = None,
    funcs_file: str | Path | None = None,
) -> Iterator[Rollout]:
    """Let an agent do episodes and record them, in the order of tasks, variations, repeats.

    Arguments are checked at once; episodes run as the rollouts are taken. With workers the records are the same, byte
    for byte but for their timings.

    Args:
        env_id: The pack.
        agent: The agent, or its name. For workers it must be picklable; each has its own copy. A pack of your own has
            to be registered by the module that defines the agent, for workers to know it.
        tasks: Keys of tasks, or one; None for all of the pack.
        variations: Numbers: one, several, or a text such as ``"0-9"``; None for the first ten of the split.
        split: ``"train"`` or ``"test"``, to refuse variations of the other one; ``"heldout_tasks"`` also leaves out
            the tasks that are not held out.
        phrasing: Which of each task's prompts is used; None for each variation's own.
        workers: Worker processes; 0 to run in this one.
        world: A world, or the name or path of one; workers open it by its file.
        fhir_server: Base url of a running FHIR server that holds the world; None for the embedded one.
        repeats: How often each variation is done.
        seed: What every episode's seed is made from.
        grading: See `Episode`.
        reward: See `Episode`.
        max_steps: See `Episode`.
        skip: Task, variation and repeat of episodes to leave out; see `completed`.
        task_file: See `Episode`.
        funcs_file: See `Episode`.

    Raises:
        UnknownNameError: No such pack, agent, task, split, world, grading or reward rule.
        FhirGymError: Another argument makes no sense.
        InfraError: A worker process died (while rollouts are taken).

    Example:
        >>> import fhir_gym
        >>> [rollout.reward for rollout in fhir_gym.run("FHIRAgent/Appointment-v0", "idle", tasks="01", variations=0)]
        [0.0]
    """
    todo = plan(
        env_id,
        tasks=tasks,
        variations=variations,
        split=split,
        phrasing=phrasing,
        repeats=repeats,
        seed=seed,
        grading=grading,
        reward=reward,
        max_steps=max_steps,
        fhir_server=fhir_server,
        skip=skip,
        task_file=task_file,
        funcs_file=funcs_file,
    )
    if workers < 0:
        raise FhirGymError(f"workers must not be negative: {workers}")
    if workers and fhir_server is not None:
        raise FhirGymError("a running FHIR server serves one episode at a time: use workers=0 with fhir_server")
    actor = make_agent(agent) if isinstance(agent, str) else agent
    opened, owned = open_world(world)
    return _serial(todo, actor, opened, owned) if workers == 0 else _parallel(todo, actor, opened, owned, workers)


def _serial(todo: Plan, agent: Agent, world: World, owned: bool) -> Iterator[Rollout]:
    try:
        for job in todo.jobs:
            rollout = run_job(todo, job, agent, world)
            yield rollout
            if rollout.stop_reason == "interrupted":
                raise KeyboardInterrupt
    finally:
        if owned:
            world.close()


def _parallel(todo: Plan, agent: Agent, world: World, owned: bool, workers: int) -> Iterator[Rollout]:
    # Spawned, not forked: SQLite connections and threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(todo, agent, world))
    pending: deque[Future[Rollout]] = deque()
    jobs = iter(todo.jobs)
    try:
        while True:
            while len(pending) < 4 * workers and (job := next(jobs, None)) is not None:
                pending.append(pool.submit(_work, job))
            if not pending:
                return
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise InfraError(
            "a worker process died: out of memory, or the main script starts the run without the guard "
            '`if __name__ == "__main__":` that worker processes need'
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
        if owned:
            world.close()


_worker: tuple[Plan, Agent, World] | None = None


def _start_worker(todo: Plan, agent: Agent, world: World) -> None:
    global _worker
    _worker = todo, agent, world
    # Ctrl-C reaches the whole process group: the main process stops the run, workers end the episode they are in.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _work(job: Job) -> Rollout:
    if _worker is None:
        raise RuntimeError("a worker without its plan")
    todo, agent, world = _worker
    return run_job(todo, job, agent, world)


@dataclass(slots=True)
class _Clock:
    """Adds up wall-clock seconds."""

    spent: float = 0.0
    _start: float = field(default=0.0)

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.spent += time.perf_counter() - self._start


def run_job(todo: Plan, job: Job, agent: Agent, world: World) -> Rollout:
    """Do one episode and record it, however it ends.

    An infrastructure failure and Ctrl-C end with a record too: without verdict and reward, with the turns so far.
    """
    attempt = _Attempt(todo, job, agent, world)
    try:
        attempt.go()
    except InfraError as failure:
        attempt.stop, attempt.error = "infra_error", str(failure)
    except KeyboardInterrupt:
        attempt.stop = "interrupted"
    return attempt.record()


class _Attempt:
    """One episode being done: what is known of it at any moment."""

    def __init__(self, todo: Plan, job: Job, agent: Agent, world: World) -> None:
        self.todo, self.job, self.agent, self.world = todo, job, agent, world
        self.variation: Variation | None = None
        self.seed = todo.seed_of(job)
        self.turns: list[Turn] = []
        self.action_format = ""
        self.verdict: Verdict | None = None
        self.reward: float | None = None
        self.stop: StopReason = "interrupted"
        self.error: str | None = None
        self.prepare, self.acting, self.serving = _Clock(), _Clock(), _Clock()

    def go(self) -> None:
        todo, job, rules = self.todo, self.job, self.todo.rules
        with self.prepare:
            episode = Episode(
                todo.env_id,
                task=job.task,
                variation=job.variation,
                phrasing=todo.phrasing,
                world=self.world,
                fhir_server=todo.fhir_server,
                grading=rules.grading,
                max_steps=rules.max_steps,
                reward=rules.reward,
                task_file=todo.task_file,
                funcs_file=todo.funcs_file,
            )
        with episode:
            self._play(episode)

    def _play(self, episode: Episode) -> None:
        job, world = self.job, self.world
        self.variation, self.action_format = episode.variation, episode.action_format
        with self.prepare:
            observation = episode.start()
        limit = episode.rules.max_steps
        task = episode.task
        context = Context(self.todo.env_id, job.task, job.variation, world, self.seed, limit, episode.prompt, task)
        with self.acting:
            self.agent.reset(observation, context)
        step: Step | None = None
        while step is None or not step.done:
            with self.acting:
                given = self.agent.act(observation)
            reply = given if isinstance(given, Reply) else Reply(given)
            with self.serving:
                step = episode.step(reply.action)
            observation = step.observation
            self.turns.append(_turn(reply, step))
        self.stop = "step_limit" if step.truncated else "finished"
        self.verdict, self.reward = episode.verdict(), step.reward

    def record(self) -> Rollout:
        rules, manifest, job = self.todo.rules, self.world.manifest, self.job
        task = task_set(self.todo.env_id, self.todo.task_file, self.todo.funcs_file)[job.task]
        variation = self.variation or task.variation(job.variation, self.world, self.todo.phrasing)
        return Rollout(
            package_version=_package_version(),
            env_id=self.todo.env_id,
            task=TaskRecord.of(variation, task),
            world=WorldRecord(name=manifest.name, hash=manifest.content_hash),
            agent=AgentRecord(name=self.agent.name, settings=dict(self.agent.settings)),
            seed=self.seed,
            repeat=job.repeat,
            grading=rules.grading,
            reward_rule=rules.reward,
            max_steps=rules.max_steps,
            prompt=variation.prompt,
            action_format=self.action_format,
            turns=tuple(self.turns),
            steps=len(self.turns),
            stop_reason=self.stop,
            error=self.error,
            success=self.verdict.success if self.verdict else None,
            light=self.verdict.light if self.verdict else None,
            reward=self.reward,
            verdict=self.verdict,
            timings=Timings(prepare=self.prepare.spent, agent=self.acting.spent, server=self.serving.spent),
        )


def _turn(reply: Reply, step: Step) -> Turn:
    action = reply.action
    parsed = GRAMMAR.parse(action) if isinstance(action, str) else action
    written = action if isinstance(action, str) else action.text() if isinstance(action, Action) else reply.text or ""
    error = None
    if step.info["invalid"]:
        error = parsed.reason if isinstance(parsed, Invalid) else step.observation.partition("\n")[0]
    notes: Mapping[str, Any] = reply.notes
    return Turn(
        action=_safe(written),
        observation=step.observation,
        status=step.info["status"],
        tool=reply.tool,
        error=error,
        text=None if reply.text is None else _safe(reply.text),
        notes=dict(notes),
    )


def _safe(text: str) -> str:
    """Text that UTF-8 can hold: agents may write lone surrogates, files may not."""
    return text.encode("utf-8", "backslashreplace").decode()


@lru_cache(maxsize=1)
def _package_version() -> str:
    return version("fhir-gym")
