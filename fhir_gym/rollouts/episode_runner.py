"""Run one episode with an `Agent` or a `ConcurrentAgent`, and record it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from fhir_gym.actions import Action, Invalid
from fhir_gym.agents import Agent, ConcurrentAgent, EpisodeContext, EpisodeTruncated, ModelReply, Reply
from fhir_gym.agents.protocol import AsyncConversation, Unfinished
from fhir_gym.episode import Step
from fhir_gym.errors import AgentError, FhirGymError, InfraError, describe_type, in_one_line
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.running_server import RunningServer
from fhir_gym.rollouts.budget import BudgetTracker
from fhir_gym.rollouts.plan import EpisodeSpec, RunPlan
from fhir_gym.rollouts.record import Rollout
from fhir_gym.rollouts.recorder import EpisodeRecorder


def run_episode(
    plan: RunPlan,
    spec: EpisodeSpec,
    agent: Agent,
    world: World,
    tracker: BudgetTracker | None = None,
    server: RunningServer | None = None,
) -> Rollout:
    """Run one episode and record it, whatever ends the episode.

    After an infrastructure failure or Ctrl-C, the record has the turns so far but no verdict and no reward.
    """
    runner = _EpisodeRunner(plan, spec, agent, world, tracker or BudgetTracker(), server)
    try:
        runner.act(agent)
    except InfraError as failure:
        runner.recorder.fail(failure)
    except KeyboardInterrupt:
        pass  # a record without another reason says "interrupted"
    return runner.recorder.record()


async def run_conversation(
    plan: RunPlan,
    spec: EpisodeSpec,
    agent: ConcurrentAgent,
    world: World,
    tracker: BudgetTracker,
    server: RunningServer | None = None,
) -> Rollout:
    """Run one of several concurrent episodes and record it. The record of a cancelled episode says "interrupted"."""
    runner = _EpisodeRunner(plan, spec, agent, world, tracker, server)
    try:
        await runner.converse(agent)
    except InfraError as failure:
        runner.recorder.fail(failure)
    except asyncio.CancelledError:
        pass  # a record without another reason says "interrupted"
    return runner.recorder.record()


class _EpisodeRunner:
    """Lets an agent act in one episode."""

    def __init__(
        self,
        plan: RunPlan,
        spec: EpisodeSpec,
        agent: Agent | ConcurrentAgent,
        world: World,
        tracker: BudgetTracker,
        server: RunningServer | None,
    ) -> None:
        config = plan.config_of(spec.task, spec.variation)
        self.recorder = EpisodeRecorder(config, spec, agent, world, plan.seed_of(spec), server)
        self.spec, self.agent, self.tracker = spec, agent, tracker

    def act(self, agent: Agent) -> None:
        """Run the episode with an agent that acts synchronously."""
        with self.recorder.open():
            observation = self.recorder.start()
            with self._agent_time():
                agent.reset(observation, self._context())
            with self._truncated():
                step: Step | None = None
                while step is None or not step.done:
                    with self._agent_time():
                        reply = _as_reply(agent.act(observation))
                    step = self._step(reply)
                    observation = step.observation

    async def converse(self, agent: ConcurrentAgent) -> None:
        """Run the episode with an asynchronous agent; other episodes continue while the agent waits."""
        with self.recorder.open():
            observation = self.recorder.start()
            with self._agent_time():
                conversation = agent.converse(observation, self._context())
                self.recorder.opening = conversation.opening
            with self._truncated():
                step: Step | None = None
                try:
                    while step is None or not step.done:
                        with self._agent_time():
                            reply = _as_reply(await conversation.act(observation))
                        step = self._step(reply)
                        observation = step.observation
                finally:
                    self._leave(conversation)

    def _context(self) -> EpisodeContext:
        recorder = self.recorder
        return EpisodeContext(
            env_id=recorder.config.env_id,
            task=self.spec.task,
            variation=self.spec.variation,
            world=recorder.world,
            seed=recorder.seed,
            max_steps=recorder.episode.step_limit,
            prompt=recorder.episode.prompt,
            source=recorder.episode.task,
        )

    def _step(self, reply: Reply) -> Step:
        self._spend(reply.model, *(lookup.reply for lookup in reply.lookups))
        return self.recorder.step(reply)

    def _leave(self, conversation: AsyncConversation) -> None:
        """Record what a conversation did after its last action."""
        unfinished = getattr(conversation, "unfinished", None)
        if isinstance(unfinished, Unfinished):
            self._spend(*(lookup.reply for lookup in unfinished.lookups))
            self.recorder.leave(unfinished)

    def _spend(self, *replies: ModelReply | None) -> None:
        for reply in replies:
            if reply is not None and reply.usage is not None:
                self.tracker.spend(reply.usage)

    @contextmanager
    def _agent_time(self) -> Iterator[None]:
        """Add to the agent's time. Convert an exception of the agent's own code to an error that names the episode."""
        try:
            with self.recorder.agent_time:
                yield
        except (FhirGymError, EpisodeTruncated):
            raise
        except Exception as error:
            where = f"task {self.spec.task}, variation {self.spec.variation}, step {len(self.recorder.turns) + 1}"
            raise AgentError(f"agent {self.agent.name} failed in {where}: {in_one_line(error)}") from error

    @contextmanager
    def _truncated(self) -> Iterator[None]:
        """End and grade the episode if the agent cannot act any more."""
        try:
            yield
        except EpisodeTruncated as end:
            self.recorder.truncate(end.stop_reason, str(end) or None)


def _as_reply(result: object) -> Reply:
    """Return the result of `Agent.act` as a `Reply`."""
    reply = Reply(result) if isinstance(result, str) else result
    if not isinstance(reply, Reply) or not isinstance(reply.action, str | Action | Invalid):
        raise TypeError(
            f"act() must return a text, or a fhir_gym.agents.Reply with an action, not {describe_type(result)}"
        )
    return reply
