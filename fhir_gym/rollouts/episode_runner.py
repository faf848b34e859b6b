"""Run one episode with an `Agent` or a `ConcurrentAgent`, and record it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version

from fhir_gym.actions import GRAMMAR, Action, Invalid
from fhir_gym.agents import Agent, ConcurrentAgent, ContextWindowExceeded, EpisodeContext, Opening, Reply, Usage
from fhir_gym.episode import Episode, Step
from fhir_gym.errors import AgentError, FhirGymError, InfraError, describe_type, in_one_line
from fhir_gym.fhir import World
from fhir_gym.rollouts.budget import BudgetTracker
from fhir_gym.rollouts.plan import EpisodeSpec, RunPlan
from fhir_gym.rollouts.record import AgentRecord, Rollout, StopReason, TaskRecord, Timings, Turn, WorldRecord
from fhir_gym.tasks import Variation, Verdict


def run_episode(
    plan: RunPlan, spec: EpisodeSpec, agent: Agent, world: World, tracker: BudgetTracker | None = None
) -> Rollout:
    """Run one episode and record it, whatever ends the episode.

    After an infrastructure failure or Ctrl-C, the record has the turns so far but no verdict and no reward.
    """
    runner = _EpisodeRunner(plan, spec, agent, world, tracker or BudgetTracker())
    try:
        runner.act(agent)
    except InfraError as failure:
        runner.fail(failure)
    except KeyboardInterrupt:
        runner.stop_reason = "interrupted"
    return runner.record()


async def run_conversation(
    plan: RunPlan, spec: EpisodeSpec, agent: ConcurrentAgent, world: World, tracker: BudgetTracker
) -> Rollout:
    """Run one of several concurrent episodes and record it. The record of a cancelled episode says "interrupted"."""
    runner = _EpisodeRunner(plan, spec, agent, world, tracker)
    try:
        await runner.converse(agent)
    except InfraError as failure:
        runner.fail(failure)
    except asyncio.CancelledError:
        runner.stop_reason = "interrupted"
    return runner.record()


class _Stopwatch:
    """Adds up wall-clock seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._start


class _EpisodeRunner:
    """Runs one episode and collects the parts of its record."""

    def __init__(
        self, plan: RunPlan, spec: EpisodeSpec, agent: Agent | ConcurrentAgent, world: World, tracker: BudgetTracker
    ) -> None:
        self.config = replace(plan.config_of(spec.task, spec.variation), world=world)
        self.spec, self.agent, self.world, self.tracker = spec, agent, world, tracker
        self.variation: Variation | None = None
        self.seed = plan.seed_of(spec)
        self.turns: list[Turn] = []
        self.action_format = ""
        self.opening: Opening | None = None
        self.usage: Usage | None = None
        self.retries = 0
        self.verdict: Verdict | None = None
        self.reward: float | None = None
        self.stop_reason: StopReason = "interrupted"
        self.error: str | None = None
        self.prepare_time, self.agent_time, self.server_time = _Stopwatch(), _Stopwatch(), _Stopwatch()

    def act(self, agent: Agent) -> None:
        """Run the episode with an agent that acts synchronously."""
        with self._episode() as episode:
            observation = self._start(episode)
            with self.agent_time, self._attributed():
                agent.reset(observation, self._context(episode))
            with self._truncated_when_full(episode):
                step: Step | None = None
                while step is None or not step.done:
                    with self.agent_time, self._attributed():
                        reply = _as_reply(agent.act(observation))
                    step = self._step(episode, reply)
                    observation = step.observation

    async def converse(self, agent: ConcurrentAgent) -> None:
        """Run the episode with an asynchronous agent; other episodes continue while the agent waits."""
        with self._episode() as episode:
            observation = self._start(episode)
            with self.agent_time, self._attributed():
                conversation = agent.converse(observation, self._context(episode))
                self.opening = conversation.opening
            with self._truncated_when_full(episode):
                step: Step | None = None
                while step is None or not step.done:
                    with self.agent_time, self._attributed():
                        reply = _as_reply(await conversation.act(observation))
                    step = self._step(episode, reply)
                    observation = step.observation

    def fail(self, failure: InfraError) -> None:
        """End the episode after a failure that is not the agent's fault."""
        self.stop_reason, self.error = "infra_error", str(failure)

    def record(self) -> Rollout:
        """Return the record of the episode, also if the episode did not finish."""
        config, manifest, spec = self.config, self.world.manifest, self.spec
        task = config.task_set()[spec.task]
        variation = self.variation or task.variation(spec.variation, self.world, config.phrasing)
        return Rollout(
            package_version=_package_version(),
            env_id=config.env_id,
            task=TaskRecord.of(variation, task),
            world=WorldRecord(name=manifest.name, hash=manifest.content_hash),
            agent=AgentRecord.of(self.agent),
            seed=self.seed,
            repeat=spec.repeat,
            grading=config.grading,
            reward_rule=config.reward,
            max_steps=config.step_limit,
            prompt=variation.prompt,
            action_format=self.action_format,
            opening=self.opening,
            turns=tuple(self.turns),
            usage=self.usage,
            steps=len(self.turns),
            stop_reason=self.stop_reason,
            error=self.error,
            success=self.verdict.success if self.verdict else None,
            light=self.verdict.light if self.verdict else None,
            reward=self.reward,
            verdict=self.verdict,
            timings=Timings(
                prepare=self.prepare_time.seconds,
                agent=self.agent_time.seconds,
                server=self.server_time.seconds,
                retries=self.retries,
            ),
        )

    def _episode(self) -> Episode:
        with self.prepare_time:
            return Episode(self.config, task=self.spec.task, variation=self.spec.variation)

    def _start(self, episode: Episode) -> str:
        self.variation, self.action_format = episode.variation, episode.action_format
        with self.prepare_time:
            return episode.start()

    def _context(self, episode: Episode) -> EpisodeContext:
        return EpisodeContext(
            env_id=self.config.env_id,
            task=self.spec.task,
            variation=self.spec.variation,
            world=self.world,
            seed=self.seed,
            max_steps=self.config.step_limit,
            prompt=episode.prompt,
            source=episode.task,
        )

    def _step(self, episode: Episode, reply: Reply) -> Step:
        """Record a reply and perform its action."""
        self.retries += reply.retries
        if reply.shown is not None and self.turns:
            self.turns[-1] = self.turns[-1].model_copy(update={"shown": reply.shown})
        if reply.model is not None and reply.model.usage is not None:
            self.usage = (self.usage or Usage()) + reply.model.usage
            self.tracker.spend(reply.model.usage)
        with self.server_time:
            step = episode.step(reply.action)
        self.turns.append(_turn(reply, step))
        if step.done:
            self._end(episode, step, "step_limit" if step.truncated else "finished")
        return step

    @contextmanager
    def _attributed(self) -> Iterator[None]:
        """Convert an exception of the agent's own code to an error that names the episode and the step."""
        try:
            yield
        except (FhirGymError, ContextWindowExceeded):
            raise
        except Exception as error:
            where = f"task {self.spec.task}, variation {self.spec.variation}, step {len(self.turns) + 1}"
            raise AgentError(f"agent {self.agent.name} failed in {where}: {in_one_line(error)}") from error

    @contextmanager
    def _truncated_when_full(self, episode: Episode) -> Iterator[None]:
        try:
            yield
        except ContextWindowExceeded as full:
            with self.server_time:
                step = episode.truncate()
            self._end(episode, step, "context_limit")
            self.error = str(full) or None

    def _end(self, episode: Episode, step: Step, reason: StopReason) -> None:
        self.verdict, self.reward, self.stop_reason = episode.verdict(), step.reward, reason


def _as_reply(result: object) -> Reply:
    """Return the result of `Agent.act` as a `Reply`."""
    reply = Reply(result) if isinstance(result, str) else result
    if not isinstance(reply, Reply) or not isinstance(reply.action, str | Action | Invalid):
        raise TypeError(
            f"act() must return a text, or a fhir_gym.agents.Reply with an action, not {describe_type(result)}"
        )
    return reply


def _turn(reply: Reply, step: Step) -> Turn:
    action = reply.action
    written = action if isinstance(action, str) else action.text() if isinstance(action, Action) else reply.text or ""
    error = None
    if step.info["invalid"]:
        parsed = GRAMMAR.parse(action) if isinstance(action, str) else action
        error = parsed.reason if isinstance(parsed, Invalid) else step.observation.partition("\n")[0]
    return Turn(
        action=_encodable(written),
        observation=step.observation,
        status=step.info["status"],
        tool=reply.tool,
        error=error,
        text=None if reply.text is None else _encodable(reply.text),
        notes=dict(reply.notes),
        reply=reply.model,
        call_id=reply.call_id,
    )


def _encodable(text: str) -> str:
    """Escape lone surrogates; agents may write them, but UTF-8 files cannot contain them."""
    return text.encode("utf-8", "backslashreplace").decode()


@lru_cache(maxsize=1)
def _package_version() -> str:
    return version("fhir-gym")
