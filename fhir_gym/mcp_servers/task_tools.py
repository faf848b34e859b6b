"""The FHIR tools on episodes of tasks: start a task, act, finish, and get the verdict."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any, Literal, TypeAlias

from typing_extensions import override

from fhir_gym.actions import GRAMMAR, MAX_ACTION_LENGTH, Action
from fhir_gym.agents import Reply
from fhir_gym.agents.tool_sources import function_schema
from fhir_gym.arguments import require_name
from fhir_gym.episode import Step
from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import ArgumentError, InfraError, in_one_line
from fhir_gym.fhir import World
from fhir_gym.mcp_servers.fhir_tools import FHIR_TOOLS, FhirTools
from fhir_gym.mcp_servers.sessions import Ending, SessionError, SessionTable
from fhir_gym.mcp_servers.toolset import McpClient, ToolResult
from fhir_gym.printable import one_line
from fhir_gym.rollouts import EpisodeSpec, Rollout, read_rollouts
from fhir_gym.rollouts.recorder import EpisodeRecorder
from fhir_gym.rollouts.rollout_files import RolloutWriter
from fhir_gym.tasks.core.splits import split_of
from fhir_gym.types import BRIEF, PARAPHRASE, Json

Feedback = Literal["explained", "checks", "none"]
"""What `finish` tells the client.

``explained``: success, reward and checks, and for training variations also the explanation. ``checks``: the same
without explanations. ``none``: only that the episode is over.
"""
FEEDBACKS: tuple[Feedback, ...] = ("explained", "checks", "none")

AGENT_NAME = "mcp"
"""Name of the agent in records of episodes that an MCP client played."""
_MAX_NAME = 100
"""Maximum number of characters of a client's name and version in records."""

_Key: TypeAlias = tuple[str, str, int, str]


@dataclass(slots=True)
class McpAgent:
    """An MCP client, as records describe it."""

    name: str
    settings: Mapping[str, Json]

    @classmethod
    def of(cls, client: McpClient) -> McpAgent:
        """Return the agent of a client."""
        settings = {"client": client.name, "client_version": client.version}
        return cls(AGENT_NAME, {key: one_line(value, _MAX_NAME) for key, value in settings.items() if value})


class PlayedEpisode:
    """One episode that a client plays.

    Args:
        recorder: The opened episode with its record.
        keep: Function that keeps the record.
    """

    def __init__(self, recorder: EpisodeRecorder, keep: Callable[[Rollout], object]) -> None:
        self.recorder = recorder
        self._keep = keep
        self._waiting_since = time.perf_counter()
        self._over = False

    def step(self, reply: Reply) -> Step:
        """Perform an action; the time since the last action is the agent's.

        Raises:
            InfraError: The FHIR server failed. The episode is over and has no verdict.
        """
        self.recorder.agent_time.seconds += time.perf_counter() - self._waiting_since
        with self._recording_failures():
            step = self.recorder.step(reply)
        self._waiting_since, self._over = time.perf_counter(), step.done
        return step

    def leave(self) -> None:
        """End an episode that still runs because its client left it, and grade it as it is.

        Raises:
            InfraError: The FHIR server failed. The episode has no verdict.
        """
        if not self._over:
            self._over = True
            with self._recording_failures():
                self.recorder.truncate("unfinished", None)

    def close(self) -> None:
        """Close the episode and keep its record."""
        with suppress(InfraError):
            self.leave()
        self.recorder.close()
        self._keep(self.recorder.record())

    @contextmanager
    def _recording_failures(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            failure = error if isinstance(error, InfraError) else InfraError(in_one_line(error))
            self.recorder.fail(failure)
            self._over = True
            raise failure from error


class TaskTools(FhirTools[PlayedEpisode]):
    """The five FHIR tools, `start_task` and `finish`, on episodes of tasks.

    Args:
        configs: The settings of the episodes, one config for each pack. A config without a `World` opens its own.
        out: Rollout file to which each episode is appended when it is over; None for no file.
        feedback: The part of the verdict that `finish` returns.
        max_sessions: Maximum number of running episodes.
        idle_timeout: Seconds without a call after which an episode is over and is graded as it is.
        seed: Seed of the episode ids; None for ids that clients cannot guess.
        clock: Clock in seconds.

    Raises:
        UnknownNameError: A pack or the feedback does not exist.
        RecordError: The file cannot be written, or contains data other than rollouts.
        WorldError: A world cannot be opened.
    """

    def __init__(
        self,
        configs: Sequence[EpisodeConfig],
        *,
        out: str | PathLike[str] | None = None,
        feedback: Feedback = "explained",
        max_sessions: int = 128,
        idle_timeout: float = 1_800.0,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            SessionTable("episode", most=max_sessions, idle_seconds=idle_timeout, seed=seed, clock=clock),
            id_name="episode_id",
            id_about="Id that start_task returned.",
            id_required=True,
            grammar_tools=(*FHIR_TOOLS, "finish"),
        )
        require_name("feedback", feedback, FEEDBACKS)
        self._feedback = feedback
        self._writer = None if out is None else RolloutWriter(out)
        self._repeats = Counter[_Key]() if out is None else _recorded_repeats(Path(out))
        self._unwritten: list[Rollout] = []
        self._lock = Lock()  # protects the three attributes above
        self._configs: dict[str, EpisodeConfig] = {}
        self._own_worlds: list[World] = []
        for config in configs:
            if config.fhir_server is not None:
                raise ArgumentError("episodes of MCP clients need the embedded server: leave fhir_server out")
            config.task_set()  # an unknown pack is an error now, not when a client asks for it
            world, owned = config.resolve_world()
            self._configs[config.env_id] = replace(config, world=world)
            self._own_worlds += [world] * owned
        self.instructions = (
            "Tasks with health records on FHIR R4 servers. start_task starts an episode and returns its episode_id and "
            "the request to fulfil. Pass this episode_id to every tool; each episode has its own records. finish ends "
            f"the episode. Environments: {', '.join(self._configs)}."
        )
        self.offer(_start_schema(tuple(self._configs)), self._start)

    @override
    def act(self, id: str | None, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        assert id is not None
        try:
            with self.sessions.use(id) as played:
                return self._step(id, played, name, arguments)
        except SessionError as error:
            if name != "finish" or error.ending is None or error.ending.result is None:
                raise
            late = {"note": "The episode was over before this call, so the answer of this call does not count."}
            return _json_result(late | dict(error.ending.result))

    @override
    def close(self) -> None:
        super().close()
        try:
            self._write()
        finally:
            if self._writer is not None:
                self._writer.close()
            while self._own_worlds:
                self._own_worlds.pop().close()

    def _start(self, arguments: Mapping[str, Any], client: McpClient) -> ToolResult:
        env_id, task, number = arguments["env_id"], arguments["task"], arguments["variation"]
        config = self._configs[env_id]
        if "phrasing" in arguments:
            config = replace(config, phrasing=arguments["phrasing"])
        (key,) = config.choose_tasks(task)
        (number,) = config.require_variations([number])
        id, played = self.sessions.add(lambda: self._play(config, key, number, McpAgent.of(client)))
        limit = played.recorder.episode.step_limit
        prompt = (
            f"{played.recorder.episode.prompt}\n\nCall the tools with episode_id {id!r}, at most {limit} times. "
            "Where the task says FINISH([...]), call finish with that list as its answer."
        )
        return _json_result({"episode_id": id, "prompt": prompt, "max_steps": limit})

    def _play(self, config: EpisodeConfig, task: str, variation: int, agent: McpAgent) -> PlayedEpisode:
        key = (config.env_id, task, variation, _settings_text(agent.settings))
        assert isinstance(config.world, World)
        with self._lock:
            spec = EpisodeSpec(task, variation, self._repeats[key])
            self._repeats[key] += 1
        recorder = EpisodeRecorder(config, spec, agent, config.world)
        recorder.open()
        try:
            recorder.start()
        except BaseException:
            recorder.episode.close()
            raise
        return PlayedEpisode(recorder, self._keep)

    def _step(self, id: str, played: PlayedEpisode, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            step = played.step(reply_of_call(name, arguments, {"episode_id": id}))
        except InfraError:
            self.sessions.end(id, Ending("has failed, because the FHIR server failed"))
            raise
        if not step.done:
            return ToolResult(step.observation, error=step.info["invalid"])
        result = self._result(played, step)
        if step.terminated:
            self.sessions.end(id, Ending("has finished", result))
            return _json_result(result)
        self.sessions.end(id, Ending("is over, because it reached its step limit", result))
        note = "The episode is over, because it reached its step limit. Call finish for the verdict."
        return ToolResult(f"{step.observation}\n\n{note}", error=step.info["invalid"])

    def _result(self, played: PlayedEpisode, step: Step) -> dict[str, Json]:
        """Return the feedback at the end of an episode, never with the expected values of a test variation."""
        info = step.info
        over: dict[str, Json] = {"stop_reason": info["stop_reason"], "steps": info["step"]}
        if self._feedback == "none":
            return over
        verdict = played.recorder.episode.verdict()
        checks: Json = [{"name": check.name, "passed": check.passed} for check in verdict.checks]
        result: dict[str, Json] = {"success": verdict.success, "reward": step.reward} | over | {"checks": checks}
        training = split_of(info["variation"]) == "train" and played.recorder.config.task_file is None
        if self._feedback == "explained" and training:
            result["explanation"] = verdict.explanation
        return result

    def _keep(self, rollout: Rollout) -> None:
        """Append a record to the file, and before it the records that could not be written earlier."""
        if self._writer is not None:
            with self._lock:
                self._unwritten.append(rollout)
                self._write()

    def _write(self) -> None:
        while self._writer is not None and self._unwritten:
            self._writer.write(self._unwritten[0])
            del self._unwritten[0]


def _start_schema(env_ids: tuple[str, ...]) -> dict[str, Any]:
    return function_schema(
        "start_task",
        "Start an episode of a task; returns its episode_id and the request to fulfil.",
        {
            "env_id": {"type": "string", "enum": list(env_ids), "description": "The environment."},
            "task": {"type": "string", "description": "Key of the task in its environment, such as 01."},
            "variation": {"type": "integer", "description": "Number of the variation, from 0."},
            "phrasing": {
                "anyOf": [{"type": "integer"}, {"enum": [BRIEF, PARAPHRASE]}],
                "description": "Number of the prompt's wording, brief or paraphrase; default: the variation's.",
            },
        },
        ("env_id", "task", "variation"),
    )


def _json_result(data: Mapping[str, Json]) -> ToolResult:
    return ToolResult(json.dumps(data, ensure_ascii=False), data=data)


def reply_of_call(name: str, arguments: Mapping[str, Any], handled: Mapping[str, Json]) -> Reply:
    """Convert a call of a tool of the grammar to a reply; see `Grammar.from_tool_call`."""
    action = GRAMMAR.from_tool_call(name, arguments, handled)
    return Reply(action, None if isinstance(action, Action) else _written(name, arguments), name)


def _written(name: str, arguments: Mapping[str, Any]) -> str:
    """Return an invalid call as text for the record."""
    try:
        text = json.dumps(arguments, ensure_ascii=False)
    except RecursionError:
        text = "nested too deeply"
    return f"{name}({text[:MAX_ACTION_LENGTH]})"


def _settings_text(settings: Mapping[str, Json]) -> str:
    return json.dumps(settings, sort_keys=True)


def _recorded_repeats(out: Path) -> Counter[_Key]:
    """Return the number of the next repeat of each variation and client in a rollout file, which may be missing."""
    repeats = Counter[_Key]()
    if out.is_file():
        for rollout in read_rollouts(out):
            if rollout.agent.name == AGENT_NAME:
                task = rollout.task
                key = (rollout.env_id, task.key, task.variation, _settings_text(rollout.agent.settings))
                repeats[key] = max(repeats[key], rollout.repeat + 1)
    return repeats
