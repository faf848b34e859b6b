"""A taskset, an environment and a harness for verifiers (v1). Needs the extra ``verifiers``.

verifiers names an environment by a top-level module: ``fhir-gym publish verifiers`` writes one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

import httpx
from pydantic import Field, create_model, model_validator
from typing_extensions import override

from fhir_gym.errors import FhirGymError, missing_extra, pip_install

with missing_extra(f"the integration with verifiers needs: {pip_install('verifiers')}"):
    import verifiers.v1 as vf
    from verifiers.v1.dialects.chat import message_to_wire

from fhir_gym.agents import Completion, Reply
from fhir_gym.agents.completions import parse_completion
from fhir_gym.agents.prompts import system_prompt
from fhir_gym.episode import Episode, Step
from fhir_gym.episode_config import EpisodeConfig, EpisodeSettings
from fhir_gym.fhir import Credentials
from fhir_gym.rollouts.plan import RunPlan, plan
from fhir_gym.tasks import DEFAULT_SPLIT, Grading, RewardRule
from fhir_gym.types import Phrasing

__all__ = ["ChatHarness", "FHIREnv", "FHIRTask", "FHIRTaskset", "taskset_with"]

T = TypeVar("T")


class FHIRTasksetConfig(vf.TasksetConfig):
    """The options ``--env.taskset.…``; the fields of `EpisodeConfig`, and the choice of tasks and variations."""

    env_id: str = "FHIRAgent/Appointment-v0"
    """Env id of the pack."""
    tasks: list[str] | None = None
    """Keys of the tasks; None for all tasks of the pack."""
    split: str | None = DEFAULT_SPLIT
    """``train`` (the default), ``test`` or ``heldout_tasks``; None for all variations."""
    variations: str | None = None
    """Numbers such as ``0-9``; None for the first ten of the split."""
    phrasing: Phrasing | None = None
    world: str | None = None
    fhir_server: str | None = None
    fhir_token_from_env: str | None = None
    """Environment variable with the token that the running FHIR server requires."""
    grading: Grading = "state"
    reward: RewardRule = "sparse"
    max_steps: int | None = None
    level: int | None = None
    dials: dict[str, float] = Field(default_factory=dict)
    task_file: str | None = None
    funcs_file: str | None = None

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        try:
            self.plan()
        except FhirGymError as error:
            raise ValueError(str(error)) from error
        return self

    def plan(self) -> RunPlan:
        """Return the episodes and their settings.

        Raises:
            ValueError: The environment variable with the token is not set, or the URL of the server has a password.
            FhirGymError: Another option is invalid.
        """
        if "@" in (self.fhir_server or ""):  # verifiers writes the options to its files
            raise ValueError("the results would contain the password of fhir_server: use fhir_token_from_env")
        variable = self.fhir_token_from_env
        credentials = None if variable is None else Credentials.bearer_from_env(variable)
        names = [name for name in EpisodeSettings.__annotations__ if name in type(self).model_fields]
        config = EpisodeConfig.of(self.env_id, {name: getattr(self, name) for name in names})
        config = replace(config, fhir_credentials=credentials)
        return plan(config, tasks=self.tasks, variations=self.variations)


class FHIRTaskData(vf.TaskData):
    """Which episode a task is."""

    env_id: str
    task: str
    variation: int
    phrasing: Phrasing | None


class FHIRTask(vf.Task[FHIRTaskData]):
    """One variation of a task. `FHIREnv` opens the conversation with its prompt."""

    @property
    @override
    def key(self) -> str:
        data = self.data
        return f"{data.env_id}/{data.task}/{data.variation}/{data.phrasing}"


class FHIRTaskset(vf.Taskset[FHIRTask, FHIRTasksetConfig]):
    """The variations of a pack's tasks."""

    @override
    def load(self) -> Iterable[FHIRTask]:
        episodes_plan = self.config.plan()
        config = episodes_plan.config
        world, owned = config.resolve_world()
        try:
            for spec in episodes_plan.supported(world).episodes:
                variation = config.task_set()[spec.task].variation(spec.variation, world, config.phrasing)
                data = FHIRTaskData(
                    name=f"{spec.task}/{spec.variation}",
                    system_prompt=system_prompt("text"),
                    env_id=config.env_id,
                    task=spec.task,
                    variation=spec.variation,
                    phrasing=variation.phrasing,
                )
                yield FHIRTask(data, self.config.task)
        finally:
            if owned:
                world.close()


def taskset_with(**defaults: Any) -> type[FHIRTaskset]:
    """Return the class of a taskset whose options have other defaults."""
    annotations = {name: field.annotation for name, field in FHIRTasksetConfig.model_fields.items()}
    options: Any = {name: (annotations[name], value) for name, value in defaults.items()}
    config: Any = create_model("FHIRTasksetConfig", __base__=FHIRTasksetConfig, **options)

    class Taskset(FHIRTaskset, vf.Taskset[FHIRTask, config]):
        """The variations of a pack's tasks."""

    return Taskset


class FHIREnvConfig(vf.EnvConfig):
    """The options ``--env.…``."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
    """The agent. Only the harness runs in its runtime, so the machine of the environment will do."""


class FHIREnv(vf.Env[FHIREnvConfig]):
    """An agent acts on a FHIR server by texts such as ``GET /Patient?_count=1``, and reads the responses.

    The trace has the reward ``fhir``, the part of each check in the dense reward with weight 0, metrics, and in `info`
    the verdict with its explanation. A step limit is the stop condition ``max_turns``. After a failure of the server,
    the trace and the episode have an error and no reward.
    """

    @override
    async def start(self) -> None:
        config = self.config.taskset.plan().config
        self._world, self._owns_world = config.resolve_world()
        self._config = replace(config, world=self._world)
        # A running server serves one episode at a time; the other episodes wait.
        self._turn = None if config.fhir_server is None else asyncio.Semaphore(1)

    @override
    async def stop(self) -> None:
        if getattr(self, "_owns_world", False):
            self._world.close()

    @override
    async def run(self, task: FHIRTask, agents: vf.Agents) -> None:
        data = task.data
        config = replace(self._config, phrasing=data.phrasing)
        make = partial(Episode, config, task=data.task, variation=data.variation)
        async with self._turn or nullcontext(), agents.agent.interaction(task) as interaction:
            episode = await self._run(make)
            try:
                step = await self._play(episode, interaction)
            finally:
                await self._run(episode.close)
            if not interaction.trace.errors:
                _record(interaction.trace, step)

    async def _play(self, episode: Episode, interaction: vf.Interaction) -> Step:
        """Let the agent act until the episode is over; return the last step."""
        segment = await interaction.turn(episode.start())
        while not segment.terminated:
            reply = parse_completion(Completion(content=segment.last_reply), "text")[0]
            assert isinstance(reply, Reply)  # without tool calls, there are no look-ups
            step = await self._run(partial(episode.step, reply.action))
            if step.done:
                interaction.trace.stop("agent_completed" if step.terminated else "max_turns")
                return step
            segment = await interaction.turn(step.observation)
        # A limit of verifiers, or a failure of the agent.
        return await self._run(partial(episode.truncate, "unfinished"))

    async def _run(self, work: Callable[[], T]) -> T:
        """Run a function; in a thread if it sends requests to another server."""
        return work() if self._config.fhir_server is None else await asyncio.to_thread(work)


def _record(trace: vf.Trace, step: Step) -> None:
    """Write the result of an episode to a trace."""
    info = step.info
    trace.record_reward("fhir", step.reward)
    for check in info["check_rewards"]:
        trace.record_reward(f"check: {check['name']}", check["reward"], weight=0.0)
    trace.record_metrics({name: info[name] for name in ("success", "step", "invalid_actions")})
    trace.record_metric("truncated", step.truncated)
    trace.info["fhir_gym"] = {**info, "truncated": step.truncated, "explanation": info["verdict"]["explanation"]}


class ChatHarness(vf.Harness[vf.HarnessConfig]):
    """A harness that completes one chat message in this process: it starts no program, so a turn costs little."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    @override
    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        opening = (
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else map(message_to_wire, prompt or ())
        )
        body = {"model": ctx.model, "messages": [*messages, *opening]}
        # For plain HTTP, loading the certificates would take most of the time.
        async with httpx.AsyncClient(timeout=None, verify=endpoint.startswith("https:")) as client:
            headers = {"Authorization": f"Bearer {secret}"}
            response = await client.post(f"{endpoint}/chat/completions", json=body, headers=headers)
        # verifiers knows the cause of an error: a limit, or the provider.
        failed = not response.is_success
        return vf.ProgramResult(exit_code=int(failed), stdout="", stderr=response.text if failed else "")
