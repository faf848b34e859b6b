"""Record one episode action by action."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import lru_cache, partial
from importlib.metadata import version
from itertools import pairwise

from fhir_gym.actions import GRAMMAR, Action, Invalid
from fhir_gym.agents import EpisodeContext, GoldAgent, ModelReply, Opening, Reply, Usage
from fhir_gym.agents.chat_messages import Lookup
from fhir_gym.agents.protocol import Unfinished
from fhir_gym.episode import Episode, Step, Truncation
from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import InfraError
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.running_server import RunningServer
from fhir_gym.printable import encodable
from fhir_gym.rollouts.plan import EpisodeSpec
from fhir_gym.rollouts.record import (
    AgentRecord,
    RecordedAgent,
    Rollout,
    StopReason,
    TaskRecord,
    Timings,
    Turn,
    WorldRecord,
    schema_version_of,
)
from fhir_gym.tasks import Variation, Verdict, requests_answered


def with_reference(verdict: Verdict, episode: Episode) -> Verdict:
    """Return a verdict whose `process` says how many requests the reference solution sends in the same variation.

    The tool sequences of most tasks tell this number, and their verdicts have it already. The reference solution of
    another task is played once per variation. Only a success is compared with it, because a failed episode may have
    stopped early.
    """
    if verdict.process.reference is not None or not verdict.success or not episode.task.judges_changes:
        return verdict
    requests = episode.variation.reference_requests(partial(_play_reference, episode))
    process = verdict.process.model_copy(update={"reference": requests})
    return verdict.model_copy(update={"process": process})


def _play_reference(episode: Episode) -> int:
    """Return the number of requests of the reference solution, up to its answer, so that nothing is graded."""
    config = replace(episode.config, world=episode.world, fhir_server=None, fhir_credentials=None, max_steps=None)
    agent = GoldAgent()
    with Episode(config, task=episode.task.key, variation=episode.variation.number) as own:
        observation = own.start()
        agent.reset(observation, EpisodeContext.of(own))
        while not (action := agent.act(observation)).startswith("FINISH"):
            observation = own.step(action).observation
        return requests_answered(own.requests)


class Stopwatch:
    """Adds up wall-clock seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._start


class EpisodeRecorder:
    """Performs the actions of one episode and collects the parts of its record.

    Args:
        spec: The episode.
        config: The settings of the episode.
        agent: The agent, whose name and settings the record contains.
        seed: Seed of the agent's randomness.
        server: The running server; see `Episode`.
    """

    def __init__(
        self,
        config: EpisodeConfig,
        spec: EpisodeSpec,
        agent: RecordedAgent,
        world: World,
        seed: int = 0,
        server: RunningServer | None = None,
    ) -> None:
        self.config = replace(config, world=world)
        self.spec, self.agent, self.world, self.seed = spec, agent, world, seed
        self._server = server
        self.opening: Opening | None = None
        self.turns: list[Turn] = []
        self._episode: Episode | None = None
        self._variation: Variation | None = None
        self._action_format = ""
        self._usage: Usage | None = None
        self._retries = 0
        self._final_lookups: tuple[Lookup, ...] = ()
        self._verdict: Verdict | None = None
        self._reward: float | None = None
        self._stop_reason: StopReason = "interrupted"
        self._error: str | None = None
        self.prepare_time, self.agent_time, self.server_time = Stopwatch(), Stopwatch(), Stopwatch()
        self._times = [(0.0, 0.0)]
        """Seconds of the agent and of the server at the start and after each turn."""

    @property
    def episode(self) -> Episode:
        """The episode; `open` prepares it."""
        assert self._episode is not None
        return self._episode

    def open(self) -> Episode:
        """Prepare the episode."""
        with self.prepare_time:
            self._episode = Episode(
                self.config, task=self.spec.task, variation=self.spec.variation, server=self._server
            )
        return self._episode

    def close(self) -> None:
        """Close the episode, if it was prepared."""
        if self._episode is not None:
            self._episode.close()

    def start(self) -> str:
        """Start the episode and return the first observation."""
        self._variation, self._action_format = self.episode.variation, self.episode.action_format
        with self.prepare_time:
            return self.episode.start()

    def step(self, reply: Reply) -> Step:
        """Perform the action of a reply and record both."""
        self._retries += reply.retries
        self._read(reply.shown)
        self._count(reply.model, *(lookup.reply for lookup in reply.lookups))
        self._final_lookups = reply.lookups
        with self.server_time:
            step = self.episode.step(reply.action)
        self.turns.append(_turn(reply, step))
        self._times.append((self.agent_time.seconds, self.server_time.seconds))
        self._final_lookups = ()
        if step.done:
            self._end(step, "step_limit" if step.truncated else "finished")
        return step

    def leave(self, unfinished: Unfinished) -> None:
        """Record what the agent did after its last action."""
        self._retries += unfinished.retries
        self._read(unfinished.shown)
        self._count(*(lookup.reply for lookup in unfinished.lookups))
        self._final_lookups += unfinished.lookups

    def truncate(self, reason: Truncation, error: str | None) -> None:
        """End and grade the episode because the agent cannot act any more."""
        with self.server_time:
            step = self.episode.truncate(reason)
        self._end(step, reason)
        self._error = error

    def fail(self, failure: InfraError) -> None:
        """End the episode after a failure that is not the agent's fault."""
        self._stop_reason, self._error = "infra_error", str(failure)

    def record(self) -> Rollout:
        """Return the record of the episode, also if the episode did not finish."""
        config, manifest, spec = self.config, self.world.manifest, self.spec
        task = config.task_set()[spec.task]
        variation = self._variation or task.variation(spec.variation, self.world, config.phrasing)
        return Rollout(
            schema_version=schema_version_of(self.turns, self._final_lookups),
            package_version=_package_version(),
            env_id=config.env_id,
            task=TaskRecord.of(variation, task),
            world=WorldRecord(name=manifest.name, hash=manifest.content_hash),
            agent=AgentRecord.of(self.agent),
            seed=self.seed,
            repeat=spec.repeat,
            grading=config.grading,
            reward_rule=config.reward,
            max_steps=config.step_limit_of(task),
            observations=config.observations,
            prompt=variation.prompt,
            action_format=self._action_format,
            opening=self.opening,
            turns=tuple(self.turns),
            usage=self._usage,
            steps=len(self.turns),
            stop_reason=self._stop_reason,
            error=self._error,
            success=self._verdict.success if self._verdict else None,
            light=self._verdict.light if self._verdict else None,
            reward=self._reward,
            verdict=self._verdict,
            timings=Timings(
                prepare=self.prepare_time.seconds,
                agent=self.agent_time.seconds,
                server=self.server_time.seconds,
                retries=self._retries,
                turns=tuple(
                    (round(agent - agent_before, 6), round(server - server_before, 6))
                    for (agent_before, server_before), (agent, server) in pairwise(self._times)
                ),
            ),
            final_lookups=self._final_lookups,
        )

    def _read(self, shown: str | None) -> None:
        """Record the shortened form in which the agent read the latest observation."""
        if shown is not None and self.turns:
            self.turns[-1] = self.turns[-1].model_copy(update={"shown": shown})

    def _count(self, *replies: ModelReply | None) -> None:
        for reply in replies:
            if reply is not None and reply.usage is not None:
                self._usage = (self._usage or Usage()) + reply.usage

    def _end(self, step: Step, reason: StopReason) -> None:
        self._verdict = with_reference(self.episode.verdict(), self.episode)
        self._reward, self._stop_reason = step.reward, reason


def _turn(reply: Reply, step: Step) -> Turn:
    action = reply.action
    written = action if isinstance(action, str) else action.text() if isinstance(action, Action) else reply.text or ""
    error = None
    if step.info["invalid"]:
        parsed = GRAMMAR.parse(action) if isinstance(action, str) else action
        line = step.observation.partition("\n")[0]
        error = parsed.reason if isinstance(parsed, Invalid) else line.removeprefix(Invalid.prefix)
    return Turn(
        action=encodable(written),
        observation=step.observation,
        status=step.info["status"],
        tool=reply.tool,
        error=error,
        text=None if reply.text is None else encodable(reply.text),
        notes=dict(reply.notes),
        reply=reply.model,
        call_id=reply.call_id,
        lookups=reply.lookups,
    )


@lru_cache(maxsize=1)
def _package_version() -> str:
    return version("fhir-gym")
