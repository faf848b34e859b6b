"""Tasks, tools, a solver and a scorer for Inspect AI. Needs the extra ``inspect``.

The entry point of the distribution makes the tasks known to Inspect: ``inspect eval fhir_gym/appointment``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, Unpack
from weakref import finalize

from fhir_gym.errors import FhirGymError, InfraError, missing_extra, pip_install

with missing_extra(f"the integration with Inspect needs: {pip_install('inspect')}"):
    import anyio
    import click
    from inspect_ai import Task, task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ChatMessageSystem, ChatMessageUser, ModelOutput
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
    from inspect_ai.solver import Generate, Solver, TaskState, solver
    from inspect_ai.tool import Tool, ToolDef, ToolParams
    from inspect_ai.util import LimitExceededError, store

import fhir_gym
from fhir_gym.actions import GRAMMAR, Action, Invalid
from fhir_gym.agents import Completion, EpisodeContext, Reply, make_opening
from fhir_gym.agents.chat_messages import ChatProtocol
from fhir_gym.agents.completions import parse_completion
from fhir_gym.arguments import require_name
from fhir_gym.episode import FINISHED, Episode, Step, Truncation
from fhir_gym.episode_config import EpisodeConfig, EpisodeSettings
from fhir_gym.fhir import Credentials
from fhir_gym.rollouts.plan import plan
from fhir_gym.tasks import find_packs

__all__ = [
    "ParameterError",
    "TaskSettings",
    "action_reasoning",
    "appointment",
    "fhir_agent",
    "fhir_tools",
    "genetic_testing",
    "invalid_actions",
    "medagentbench",
    "pack",
    "shift",
    "truncated",
    "verdict",
]

T = TypeVar("T")

_RESULT = "fhir_gym_result"
"""Key of the sample's store that holds the result of the episode."""
_FINISH_REASONS = {"max_tokens": "length", "content_filter": "content_filter"}
"""Maps Inspect's stop reasons to those of the chat completions API."""
_MESSAGES = {"system": ChatMessageSystem, "user": ChatMessageUser}


class TaskSettings(EpisodeSettings, total=False):
    """The parameters of the Inspect tasks: these, and the fields of `EpisodeConfig` except ``fhir_credentials``.

    The default of `split` is ``test``.

    Attributes:
        tasks: Keys of the tasks; by default all tasks of the pack.
        variations: Numbers such as ``1000-1009``; by default the first ten of the split.
        protocol: ``tools`` (the default) or ``text``; see `fhir_agent`.
        system: System prompt; an empty text for none; by default that of the chat agent.
        fhir_token_from_env: Environment variable with the token that the running FHIR server requires.
    """

    tasks: str | int | list[str | int]
    variations: str | int | list[str | int]
    protocol: ChatProtocol
    system: str
    fhir_token_from_env: str


_OWN_NAMES = tuple(name for name in TaskSettings.__annotations__ if name not in EpisodeSettings.__annotations__)


class ParameterError(FhirGymError, click.ClickException):
    """A parameter of a task is invalid. The command line of Inspect prints such an error as one line."""


class _Play:
    """The episode of a running sample.

    Args:
        state: The state of the sample.
    """

    def __init__(self, episode: Episode, state: TaskState) -> None:
        self._episode, self._state = episode, state
        self._failure: InfraError | None = None
        self.steps = 0
        self.over = False

    @property
    def step_limit(self) -> int:
        """Number of actions after which the episode is truncated."""
        return self._episode.step_limit

    async def step(self, action: str | Action | Invalid) -> str:
        """Perform an action and return its observation."""
        if self.over:
            return FINISHED
        try:
            step = await self.run(partial(self._episode.step, action))
        except InfraError as failure:
            self._failure = failure
            raise
        self.steps += 1
        if step.done:
            self._end(step)
        return step.observation

    async def truncate(self, stop_reason: Truncation) -> None:
        """End and grade the episode, because the agent cannot act any more, or has stopped without an answer.

        Raises:
            InfraError: The server has failed, also if a solver has hidden this error.
        """
        if self._failure is not None:
            raise self._failure
        self._end(await self.run(partial(self._episode.truncate, stop_reason)))

    async def close(self) -> None:
        """Close the episode."""
        await self.run(self._episode.close)

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function; in a thread if it sends requests to another server."""
        return work() if self._episode.config.fhir_server is None else await anyio.to_thread.run_sync(work)

    def _end(self, step: Step) -> None:
        # The log keeps the store, so that a finished log can be scored again.
        self._state.store.set(_RESULT, {"reward": step.reward, "truncated": step.truncated, **step.info})
        self._state.completed = self.over = True


_playing: dict[str, _Play] = {}
"""The episodes of the running samples, by the sample's uuid. Inspect cannot keep such objects in a sample's store."""
_PLAY = "fhir_gym_episode"
"""Key of the sample's store that holds its key in `_playing`. Tools find the episode with it."""


def _current() -> _Play:
    """Return the episode of the sample that runs this code."""
    play = _playing.get(store().get(_PLAY, ""))
    if play is None:
        raise FhirGymError("no episode is running: these tools and solvers belong to the tasks of fhir_gym")
    return play


@task
def pack(env_id: str = "", **settings: Unpack[TaskSettings]) -> Task:
    """Any pack, such as one that another distribution registers.

    Args:
        env_id: Env id of the pack, or a module that registers one pack.
        settings: Parameters of the task.
    """
    return _make_task(env_id, settings)


@task
def appointment(**settings: Unpack[TaskSettings]) -> Task:
    """The front desk of a clinic: patients, insurance, slots and appointments."""
    return _make_task("FHIRAgent/Appointment-v0", settings)


@task
def genetic_testing(**settings: Unpack[TaskSettings]) -> Task:
    """Genetic tests: orders, reports and family history."""
    return _make_task("FHIRAgent/GeneticTesting-v0", settings)


@task
def medagentbench(**settings: Unpack[TaskSettings]) -> Task:
    """An internist's day: look up, record and order."""
    return _make_task("FHIRAgent/MedAgentBench-v0", settings)


@task
def action_reasoning(**settings: Unpack[TaskSettings]) -> Task:
    """Action-based reasoning over laboratory results."""
    return _make_task("FHIRAgent/ActionReasoning-v0", settings)


@task
def shift(**settings: Unpack[TaskSettings]) -> Task:
    """A clinic's desk: many requests in one episode."""
    return _make_task("FHIRAgent/Shift-v0", settings)


def _make_task(env_id: str, settings: TaskSettings) -> Task:
    """Return an Inspect task with one sample for each task and variation.

    Raises:
        ParameterError: A parameter is invalid.
    """
    episode_settings: dict[str, Any] = {**settings}
    protocol: ChatProtocol = episode_settings.pop("protocol", "tools")
    chosen = {name: episode_settings.pop(name, None) for name in ("tasks", "variations")}
    try:
        require_name("protocol", protocol, ("tools", "text"))
        (first_pack, *others) = find_packs(env_id)
        if others:
            raise FhirGymError(f"{env_id} registers {', '.join([first_pack, *others])}: name one of them")
        if "@" in str(episode_settings.get("fhir_server")):  # Inspect logs the parameters
            raise FhirGymError("the log would contain the credentials: use fhir_token_from_env")
        system = episode_settings.pop("system", None)
        system = None if system is None else ",".join(map(str, _listed(system)))  # Inspect splits texts at commas
        variable = episode_settings.pop("fhir_token_from_env", None)
        credentials = None if variable is None else Credentials.bearer_from_env(str(variable))
        config = EpisodeConfig.of(
            first_pack, episode_settings, _OWN_NAMES, without=("fhir_credentials",), default_split="test"
        )
        source = _Source(replace(config, fhir_credentials=credentials), protocol, system)
        samples = source.samples(**chosen)
    except (FhirGymError, ValueError) as error:
        raise ParameterError(str(error)) from error
    return Task(
        dataset=MemoryDataset(samples, name=first_pack),
        setup=source.setup(),
        solver=fhir_agent(protocol),
        cleanup=source.cleanup,
        scorer=[verdict(), truncated(), invalid_actions()],
        version=fhir_gym.__version__,
        metadata=source.metadata(),
    )


class _Source:
    """The samples of a task, and their episodes.

    Args:
        config: The settings of the episodes.
        protocol: ``tools`` or ``text``.
        system: System prompt; None for the default, an empty text for none.
    """

    def __init__(self, config: EpisodeConfig, protocol: ChatProtocol, system: str | None) -> None:
        self.world, owned = config.resolve_world()
        if owned:
            finalize(self, self.world.close)
        self.config, self.protocol, self.system = replace(config, world=self.world), protocol, system
        # A running server serves one episode at a time; the other samples wait.
        self._turn = None if config.fhir_server is None else anyio.Semaphore(1)

    def samples(self, tasks: Any, variations: Any) -> list[Sample]:
        """Return the samples: the request to the agent, and which task and variation it belongs to."""
        all_tasks = self.config.task_set()
        # Inspect parses parameters as YAML, so 01 arrives as 1, and 0-4,9 as a list.
        keys = None if tasks is None else [_key(key, all_tasks) for key in _listed(tasks)]
        numbers = None if variations is None else ",".join(map(str, _listed(variations)))
        samples = []
        for spec in plan(self.config, tasks=keys, variations=numbers).supported(self.world).episodes:
            variation = all_tasks[spec.task].variation(spec.variation, self.world, self.config.phrasing)
            metadata = {
                "env_id": self.config.env_id,
                "task": spec.task,
                "variation": spec.variation,
                "phrasing": variation.phrasing,
            }
            samples.append(Sample(input=variation.prompt, id=f"{spec.task}/{spec.variation}", metadata=metadata))
        return samples

    def metadata(self) -> dict[str, Any]:
        """Return the settings for the log."""
        config, manifest = self.config, self.world.manifest
        return {
            "env_id": config.env_id,
            "world": manifest.name,
            "world_hash": manifest.content_hash,
            "protocol": self.protocol,
            "grading": config.grading,
            "reward": config.reward,
            "max_steps": config.max_steps,
        }

    def setup(self) -> Solver:
        """Return the solver that starts the episode of a sample and writes the first messages."""

        @solver(name="start_episode")
        def start_episode() -> Solver:
            async def solve(state: TaskState, generate: Generate) -> TaskState:
                if self._turn is not None:
                    await self._turn.acquire()
                try:
                    await self._start(state)
                except BaseException:
                    self._release()
                    raise
                return state

            return solve

        return start_episode()

    async def cleanup(self, state: TaskState) -> None:
        """Close the episode of a sample."""
        play = _playing.pop(state.uuid, None)
        if play is not None:
            try:
                await play.close()
            finally:
                self._release()

    def _release(self) -> None:
        if self._turn is not None:
            self._turn.release()

    async def _start(self, state: TaskState) -> None:
        key, number = state.metadata["task"], state.metadata["variation"]
        config = replace(self.config, phrasing=state.metadata["phrasing"])
        make = partial(Episode, config, task=key, variation=number)
        episode = make() if config.fhir_server is None else await anyio.to_thread.run_sync(make)
        opening = make_opening(self.protocol, episode.start(), EpisodeContext.of(episode), system=self.system)
        state.messages = [_MESSAGES[message["role"]](content=message["content"]) for message in opening.messages]
        state.store.set(_PLAY, state.uuid)
        _playing[state.uuid] = _Play(episode, state)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _key(value: Any, names: Collection[str]) -> str:
    """Return the key that a user wrote, before YAML turned it into a number."""
    padded = f"{value:02}" if type(value) is int else ""
    return padded if padded in names else str(value)


def fhir_tools() -> list[Tool]:
    """Return the tools of an episode: five FHIR tools and ``finish``, for `react` or any other agent.

    The results are not cut, whatever Inspect's ``max_tool_output`` is.
    """
    return [_tool(schema["function"]) for schema in GRAMMAR.tools()]


def _tool(function: dict[str, Any]) -> Tool:
    name = function["name"]

    async def execute(**kwargs: Any) -> str:
        return await _current().step(GRAMMAR.from_tool_call(name, kwargs))

    parameters = ToolParams.model_validate(function["parameters"])
    return ToolDef(execute, name, function["description"], parameters, max_output=0).as_tool()


@solver
def fhir_agent(protocol: ChatProtocol = "tools") -> Solver:
    """Let the model act until the episode is over.

    A reply without an action, and a tool call that Inspect refuses, count as a step, as for the agents of fhir_gym.

    Args:
        protocol: ``tools`` to act by tool calls, ``text`` to act by texts such as ``GET /Patient?_count=1``. It must be
            the protocol of the task.
    """

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        play = _current()
        if protocol == "tools":
            state.tools.extend(fhir_tools())
        while not play.over:
            steps = play.steps
            state = await generate(state, tool_calls="single")
            if state.output.stop_reason == "model_length":
                await play.truncate("context_limit")
            elif play.steps == steps:
                refused = protocol == "tools" and bool(state.output.message.tool_calls)
                action = Invalid("the tool call was refused", "") if refused else _parse(state.output, protocol)
                observation = await play.step(action)
                if not refused and not play.over:
                    state.messages.append(ChatMessageUser(content=observation))
        if state.store.get(_RESULT)["stop_reason"] == "step_limit":
            text = f"the episode reached its limit of {play.step_limit} steps"
            raise LimitExceededError("custom", value=play.steps, limit=play.step_limit, message=text)
        return state

    return solve


def _parse(output: ModelOutput, protocol: ChatProtocol) -> str | Action | Invalid:
    """Return the action of a reply without tool calls."""
    reason = _FINISH_REASONS.get(output.stop_reason, "stop")
    completion = Completion(content=output.completion, finish_reason=reason)
    reply = parse_completion(completion, protocol)[0]
    assert isinstance(reply, Reply)  # without tool calls, there are no look-ups
    return reply.action


@scorer(metrics=[mean(), stderr(cluster="task")])
def verdict() -> Scorer:
    """Score an episode with its reward; the explanation and the metadata say why."""

    async def score(state: TaskState, target: Target) -> Score:
        if (result := await _result(state)) is None:
            return _unscored()
        graded = result["verdict"]
        return Score(
            value=result["reward"],
            answer=None if graded["answer"] is None else json.dumps(graded["answer"], ensure_ascii=False),
            explanation=graded["explanation"],
            metadata={
                "success": result["success"],
                "truncated": result["truncated"],
                "stop_reason": result["stop_reason"],
                "steps": result["step"],
                "invalid_actions": result["invalid_actions"],
                "checks": graded["checks"],
                "check_rewards": result["check_rewards"],
                "evidence": graded["evidence"],
                "process": graded["process"],
            },
        )

    return score


@scorer(metrics=[mean()])
def truncated() -> Scorer:
    """Score 1 for an episode that ended without an answer, else 0."""

    async def score(state: TaskState, target: Target) -> Score:
        result = await _result(state)
        return _unscored() if result is None else Score(value=float(result["truncated"]))

    return score


@scorer(metrics=[mean()])
def invalid_actions() -> Scorer:
    """Score the number of the episode's invalid actions."""

    async def score(state: TaskState, target: Target) -> Score:
        result = await _result(state)
        return _unscored() if result is None else Score(value=result["invalid_actions"])

    return score


async def _result(state: TaskState) -> dict[str, Any] | None:
    """Return the result of an episode, which ends now if its agent has stopped; None while the sample runs."""
    if _RESULT not in state.store:
        if store() is not state.store:  # an interim score, requested while the sample runs
            return None
        await _current().truncate("unfinished")
    result: dict[str, Any] = state.store.get(_RESULT)
    return result


def _unscored() -> Score:
    return Score.unscored(explanation="the episode is still running")
