"""Serve one episode: FHIR and MCP over HTTP for the agent, the result over a Unix socket for the verifier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.responses import Response as HttpResponse

from fhir_gym.actions import GRAMMAR, HEADERS, MAX_ACTION_LENGTH, Action, Invalid
from fhir_gym.agents import Reply
from fhir_gym.agents.tool_sources import unknown_tool
from fhir_gym.episode import Step
from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import FhirGymError, InfraError, TaskError
from fhir_gym.fhir import FhirError, Limits, Request, Response, World, operation_outcome, serialization
from fhir_gym.fhir.adapters.http import fhir_endpoint
from fhir_gym.fhir.messages import JSON
from fhir_gym.http_server import bind, make_http_server, read_body
from fhir_gym.mcp_servers import McpClient, ToolResult, make_app
from fhir_gym.mcp_servers.fhir_tools import FhirTools
from fhir_gym.mcp_servers.task_tools import PlayedEpisode, reply_of_call
from fhir_gym.rollouts import EpisodeSpec, Rollout, TaskRecord
from fhir_gym.rollouts.recorder import EpisodeRecorder
from fhir_gym.types import Json

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from fhir_gym.actions import Kind

_T = TypeVar("_T")

FINISH_PATH, HEALTH_PATH = "/finish", "/health"
"""Paths to which the agent posts its answer, and at which the server says that it is ready."""
_OTHER_VERSION = "export the task with the version of fhir-gym that the image of the server contains"
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@dataclass(slots=True)
class HarborAgent:
    """The agent in records. The server does not learn which agent acts."""

    name: str = "harbor"
    settings: Mapping[str, Json] = field(default_factory=dict)


class EpisodeOverError(FhirGymError):
    """The episode is over, so no further action is possible."""


class ServedEpisode:
    """One episode that an agent plays by requests. It cannot be restarted.

    Args:
        recorder: The recorder of an opened and started episode.

    Attributes:
        thread: Runs the calls of the other methods, one after another.
    """

    def __init__(self, recorder: EpisodeRecorder) -> None:
        self._recorder = recorder
        self._played = PlayedEpisode(recorder, lambda _: None)
        self._ending: str | None = None
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="fhir-gym-harbor")

    async def run(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function in the episode's thread: grading takes seconds, in which the server must answer."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, function, *arguments)

    def step(self, reply: Reply) -> Step:
        """Perform an action.

        Raises:
            EpisodeOverError: The episode is over.
            InfraError: The server itself failed. The episode is over and has no verdict.
        """
        if self._ending is not None:
            raise EpisodeOverError(f"The episode is over: {self._ending}")
        try:
            step = self._played.step(reply)
        except InfraError:
            self._ending = "the FHIR server has failed"
            raise
        if step.done:
            limit = self._recorder.episode.step_limit
            self._ending = f"its limit of {limit} actions is reached" if step.truncated else "it has finished"
        return step

    def answer(self, request: Request) -> Response:
        """Answer a FHIR request, which is one action of the episode."""
        try:
            step = self.step(Reply(_action(request)))
        except EpisodeOverError as error:
            return _refusal(403, str(error), "forbidden")
        except FhirError as error:
            return _refusal(error.status, error.diagnostics, error.code)
        if step.info["invalid"]:
            return _refusal(400, step.observation, "processing")
        return self._recorder.episode.requests[-1].response

    def end(self) -> Rollout:
        """End the episode if it still runs, and return its record."""
        if self._ending is None:
            self._ending = "it has been graded"
            with suppress(InfraError):
                self._played.leave()
        return self._recorder.record()

    def close(self) -> None:
        """Close the episode, which no call uses any more."""
        self.thread.shutdown()
        self._recorder.episode.close()


def _action(request: Request) -> Action:
    """Convert a FHIR request to an action.

    Raises:
        FhirError: No action corresponds to the request.
    """
    if request.method not in _METHODS:
        raise FhirError(405, f"This server accepts {', '.join(_METHODS)}, not {request.method[:20]}")
    try:
        body = request.body.decode()
    except UnicodeDecodeError:
        raise FhirError(400, "The body of the request is not encoded in UTF-8") from None
    url = (request.path or "/") + (f"?{request.query}" if request.query else "")
    headers = tuple((name, request.headers[name.lower()]) for name in HEADERS if name.lower() in request.headers)
    return Action(cast("Kind", request.method), url, body or None, headers=headers)


def _refusal(status: int, diagnostics: str, code: str) -> Response:
    body = serialization.dumps(operation_outcome(diagnostics, code=code))
    return Response(status, {"Content-Type": JSON}, body)


class EpisodeTools:
    """The tools of the action grammar on one episode."""

    name = "fhir-gym-episode"
    instructions = "Health records on a FHIR R4 server, for one task. finish ends the task with your answer."
    read_only = FhirTools.read_only

    def __init__(self, episode: ServedEpisode) -> None:
        self._episode = episode

    def schemas(self) -> list[dict[str, Any]]:
        """Return the OpenAI function schemas of the tools."""
        return GRAMMAR.tools()

    async def call(self, name: str, arguments: Mapping[str, Any], client: McpClient) -> ToolResult:
        """Call a tool.

        Raises:
            FhirGymError: The episode is over, or the server failed.
        """
        if name not in GRAMMAR.tool_names:
            return ToolResult(unknown_tool(name, list(GRAMMAR.tool_names)), error=True)
        step = await self._episode.run(self._episode.step, reply_of_call(name, arguments, {}))
        return ToolResult(step.observation, error=step.info["invalid"])

    def reap(self) -> None:
        """Do nothing: clients open nothing."""

    async def aclose(self) -> None:
        """Do nothing: `serve_episode` closes the episode after its record was read."""


def make_episode_app(episode: ServedEpisode, host: str) -> Starlette:
    """Return an ASGI application for the agent: ``/fhir``, ``/mcp``, ``/finish`` and ``/health``.

    Args:
        episode: The episode.
        host: The address that the application will listen on; see `fhir_gym.mcp_servers.make_app`.

    Raises:
        MissingExtraError: The MCP SDK is not installed.
    """
    app = make_app(EpisodeTools(episode), host)
    app.add_route(FINISH_PATH, partial(_finish, episode), methods=["POST"])
    app.add_route(HEALTH_PATH, _health, methods=["GET"])
    app.router.default = fhir_endpoint(episode.answer, Limits(), executor=episode.thread)
    return app


async def _health(_: HttpRequest) -> HttpResponse:
    return PlainTextResponse("ok\n")


async def _finish(episode: ServedEpisode, http: HttpRequest) -> HttpResponse:
    """End the episode with the JSON list in the body. The agent does not learn its reward."""
    body = await read_body(http, MAX_ACTION_LENGTH)
    try:
        answer = orjson.loads(body) if len(body) <= MAX_ACTION_LENGTH else None
    except ValueError:
        answer = None
    action = GRAMMAR.from_tool_call("finish", {"answer": answer})
    if isinstance(action, Invalid):
        return _message(400, 'The body must be a JSON list, such as ["12"]; [] is an empty answer.')
    try:
        return _message(200, (await episode.run(episode.step, Reply(action))).observation)
    except EpisodeOverError as error:
        return _message(403, str(error))
    except InfraError as error:
        return _message(500, str(error))


def _message(status: int, text: str) -> HttpResponse:
    return JSONResponse({"message": text}, status)


def open_recorder(
    config: EpisodeConfig,
    task: str,
    variation: int,
    world: World,
    *,
    task_hash: str | None = None,
    world_hash: str | None = None,
) -> EpisodeRecorder:
    """Start an episode and return its recorder.

    Args:
        config: The settings of the episode.
        task: Key of the task.
        variation: Number of the variation.
        world: The world.
        task_hash: Expected hash of the variation; None for no check.
        world_hash: Expected content hash of the world; None for no check.

    Raises:
        TaskError: The variation or the world has other content than expected.
        InfraError: The episode cannot be prepared.
    """
    if world_hash not in (None, world.manifest.content_hash):
        raise TaskError(f"world {world.name} has other content than the exported task: {_OTHER_VERSION}")
    recorder = EpisodeRecorder(config, EpisodeSpec(task, variation, 0), HarborAgent(), world)
    episode = recorder.open()
    if task_hash not in (None, TaskRecord.of(episode.variation, episode.task).hash):
        recorder.episode.close()
        raise TaskError(f"variation {variation} of task {task} differs from the exported task: {_OTHER_VERSION}")
    recorder.start()
    return recorder


def serve_episode(
    recorder: EpisodeRecorder, *, host: str, port: int, socket: Path, ready: Callable[[str], object]
) -> None:
    """Serve an episode until the process is interrupted.

    Args:
        recorder: The recorder of a started episode, which this function closes.
        host: The address to bind.
        port: The port to bind.
        socket: Path of the Unix socket that answers each connection with the record of the ended episode.
        ready: Function that is called with the server's origin as soon as clients can connect.

    Raises:
        FhirGymError: The address or the socket cannot be bound.
        MissingExtraError: The MCP SDK is not installed.
    """
    episode = ServedEpisode(recorder)
    try:
        with bind(host, port) as listener:
            asyncio.run(_serve(episode, host, listener, socket, partial(ready, f"http://{host}:{port}")))
    finally:
        episode.close()


async def _serve(episode: ServedEpisode, host: str, listener: Any, socket: Path, ready: Callable[[], object]) -> None:
    server = make_http_server(make_episode_app(episode, host))
    try:
        results = await asyncio.start_unix_server(partial(_send_result, episode), socket)
    except OSError as error:
        raise FhirGymError(f"cannot serve on {socket}: {error.strerror or error}") from error
    async with results:
        ready()
        await server.serve(sockets=[listener])


async def _send_result(episode: ServedEpisode, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End the episode and send its record as JSON."""
    writer.write((await episode.run(episode.end)).model_dump_json().encode())
    await writer.drain()
    writer.close()
