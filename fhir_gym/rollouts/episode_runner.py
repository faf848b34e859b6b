"""Run one episode and record it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, Protocol, Self, TypeVar, cast

from fhir_gym.actions import Action, Invalid
from fhir_gym.agents import Agent, ConcurrentAgent, EpisodeContext, EpisodeTruncated, ModelReply, Reply
from fhir_gym.agents.protocol import AsyncConversation, Unfinished
from fhir_gym.episode import Step
from fhir_gym.errors import AgentError, FhirGymError, FhirServerError, InfraError, describe_type, in_one_line
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.running_server import RunningServer
from fhir_gym.rollouts.budget import BudgetTracker
from fhir_gym.rollouts.plan import EpisodeSpec, RunPlan
from fhir_gym.rollouts.record import Rollout
from fhir_gym.rollouts.recorder import EpisodeRecorder

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Attempt(NamedTuple):
    """An attempt to run an episode.

    Attributes:
        rollout: The record, whatever ended the episode.
        server_failure: The failure of the running FHIR server; None if it worked.
    """

    rollout: Rollout
    server_failure: FhirServerError | None = None

    @classmethod
    def elsewhere(cls, rollout: Rollout, tracker: BudgetTracker) -> Self:
        """Return an attempt of another process, whose tokens the budget has not counted."""
        if rollout.usage is not None:
            tracker.spend(rollout.usage)
        return cls(rollout)


class Caller(Protocol):
    """A way to call functions that wait for the FHIR server: directly, or in a thread of that server."""

    def __call__(self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Awaitable[_T]:
        """Call the function and return its result."""


async def call_directly(function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a function on the event loop; the embedded server answers at once."""
    return function(*args, **kwargs)


def run_at_once(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that never waits, without an event loop, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast(_T, end.value)
    finally:
        coroutine.close()
    raise RuntimeError("the coroutine waits for something")


async def attempt_episode(
    plan: RunPlan,
    spec: EpisodeSpec,
    agent: Agent | ConcurrentAgent,
    world: World,
    tracker: BudgetTracker,
    server: RunningServer | None = None,
    call: Caller = call_directly,
) -> Attempt:
    """Run one episode and record it, whatever ends the episode.

    After an infrastructure failure, Ctrl-C or a cancellation, the record has the turns so far but no verdict and no
    reward. Other episodes continue while a `ConcurrentAgent` waits. An `Agent` makes the coroutine wait only in `call`.

    Args:
        plan: The settings of the episode.
        spec: The episode.
        agent: The agent.
        world: The world.
        tracker: Counts the tokens of the agent.
        server: The running server; None for the embedded server.
        call: Calls the functions that wait for the server, and those of an `Agent`.
    """
    config = plan.config_of(spec.task, spec.variation)
    recorder = EpisodeRecorder(config, spec, agent, world, plan.seed_of(spec), server)
    runner = _EpisodeRunner(recorder, tracker, call)
    failure: FhirServerError | None = None
    try:
        await runner.run(agent if isinstance(agent, ConcurrentAgent) else _BlockingAgent(agent, call))
    except InfraError as error:
        recorder.fail(error)
        failure = error if isinstance(error, FhirServerError) else None
    except (KeyboardInterrupt, asyncio.CancelledError):
        pass  # a record without another reason says "interrupted"
    return Attempt(recorder.record(), failure)


def run_alone(plan: RunPlan, spec: EpisodeSpec, agent: Agent | ConcurrentAgent, world: World) -> Rollout:
    """Run one episode in a thread without an event loop, and return its record."""
    attempt = attempt_episode(plan, spec, agent, world, BudgetTracker())
    if not isinstance(agent, ConcurrentAgent):
        return run_at_once(attempt).rollout

    async def attempt_and_close() -> Rollout:
        try:
            return (await attempt).rollout
        finally:
            await agent.aclose()

    return asyncio.run(attempt_and_close())


class _BlockingAgent:
    """Lets an `Agent` act like a `ConcurrentAgent` that waits only in `call`."""

    opening = None

    def __init__(self, agent: Agent, call: Caller) -> None:
        self._agent, self._call = agent, call
        self._context: EpisodeContext | None = None

    def converse(self, observation: str, context: EpisodeContext) -> _BlockingAgent:
        self._context = context
        return self

    async def act(self, observation: str) -> str | Reply:
        return await self._call(self._act, observation)

    def _act(self, observation: str) -> str | Reply:
        if self._context is not None:  # the first action, so that an agent does everything in one thread
            self._agent.reset(observation, self._context)
            self._context = None
        return self._agent.act(observation)


@dataclass(frozen=True, slots=True)
class _EpisodeRunner:
    """Lets an agent act in one episode."""

    recorder: EpisodeRecorder
    tracker: BudgetTracker
    call: Caller

    async def run(self, agent: ConcurrentAgent | _BlockingAgent) -> None:
        """Run the episode."""
        recorder = self.recorder
        try:
            episode = await self.call(recorder.open)
            observation = await self.call(recorder.start)
            with self._agent_time():
                conversation = agent.converse(observation, EpisodeContext.of(episode, recorder.seed))
                recorder.opening = conversation.opening
            try:
                await self._converse(conversation, observation)
            except EpisodeTruncated as end:
                await self.call(recorder.truncate, end.stop_reason, str(end) or None)
        finally:
            await self.call(recorder.close)

    async def _converse(self, conversation: AsyncConversation | _BlockingAgent, observation: str) -> None:
        step: Step | None = None
        try:
            while step is None or not step.done:
                with self._agent_time():
                    reply = _as_reply(await conversation.act(observation))
                step = await self.call(self._step, reply)
                observation = step.observation
        finally:
            unfinished = getattr(conversation, "unfinished", None)
            if isinstance(unfinished, Unfinished):
                self._spend(*(lookup.reply for lookup in unfinished.lookups))
                self.recorder.leave(unfinished)

    def _step(self, reply: Reply) -> Step:
        self._spend(reply.model, *(lookup.reply for lookup in reply.lookups))
        return self.recorder.step(reply)

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
            spec, number = self.recorder.spec, len(self.recorder.turns) + 1
            raise AgentError(
                f"agent {self.recorder.agent.name} failed in task {spec.task}, variation {spec.variation}, "
                f"step {number}: {in_one_line(error)}"
            ) from error


def _as_reply(result: object) -> Reply:
    """Return the result of `Agent.act` as a `Reply`."""
    reply = Reply(result) if isinstance(result, str) else result
    if not isinstance(reply, Reply) or not isinstance(reply.action, str | Action | Invalid):
        raise TypeError(
            f"act() must return a text, or a fhir_gym.agents.Reply with an action, not {describe_type(result)}"
        )
    return reply
