"""Servers on loopback for a `with` block: any ASGI application, the FHIR server, and a scripted chat server.

The OpenAI-compatible chat server has scripted replies or the reference solutions, and can simulate faults.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from fhir_gym import tasks
from fhir_gym.actions import GRAMMAR, Action, Finish
from fhir_gym.errors import FhirGymError
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.http import create_app
from fhir_gym.http_server import HttpProtocol, bind
from fhir_gym.observations import read_response
from fhir_gym.tasks import LatestResponse, Params, Task
from fhir_gym.types import Json


class AppServer(AbstractContextManager[Any]):
    """Context manager that serves an ASGI application on 127.0.0.1 from a thread.

    Args:
        app: The application.
        port: Port; 0 for a free port.
        config: Further settings of `uvicorn.Config`.

    Raises:
        FhirGymError: The port is in use.
    """

    def __init__(self, app: ASGIApp, port: int = 0, **config: Any) -> None:
        self._listener = bind("127.0.0.1", port)
        settings: dict[str, Any] = {"http": HttpProtocol, "log_level": "critical", "ws": "none"} | config
        self._server = uvicorn.Server(uvicorn.Config(app, **settings))
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],), daemon=True)

    @property
    def url(self) -> str:
        """The URL of the server, without a trailing slash."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @override
    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise FhirGymError("the server did not start")
            time.sleep(0.001)
        return self

    @override
    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()


@contextmanager
def serving(world: World, *, port: int = 0) -> Iterator[str]:
    """Serve a world on 127.0.0.1, in a thread of this process.

    Args:
        world: The initial content of the server.
        port: Port to listen on; 0 for a free port.

    Yields:
        The server's base URL.

    Raises:
        FhirGymError: The port is in use.

    Examples:
        >>> from fhir_gym import worlds
        >>> with worlds.load("empty") as world, serving(world) as url:
        ...     url.startswith("http://127.0.0.1:")
        True
    """
    with AppServer(create_app(world), port) as server:
        yield f"{server.url}/fhir"


Fault = Literal["429", "500", "503", "timeout", "half", "garbled", "no_message"]
"""Name of a fault: an error status, no response, a lost connection, truncated JSON, or a reply without a message."""

FAULTS: tuple[Fault, ...] = get_args(Fault)
"""All faults that a chat server can simulate."""


def random_faults(share: float, *, kinds: Sequence[Fault] = FAULTS, seed: int = 0) -> Callable[[int], Fault | None]:
    """Return a function that chooses a fault, or none, for a request; the request number and the seed determine it.

    On average, this share of the requests fails.
    """

    def fault(number: int) -> Fault | None:
        rng = random.Random(f"{seed}/{number}")
        return rng.choice(kinds) if rng.random() < share else None

    return fault


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """A reply of the chat completions API.

    Attributes:
        content: The text; None for no text.
        calls: Tool calls. Each has a name, and arguments as an object or as text, which may be invalid.
        finish_reason: The reported finish reason; None means ``tool_calls`` if the reply has calls, otherwise ``stop``.
        refusal: Text of the refusal, in OpenAI's format.
        reasoning: Text of the reasoning, as a separate member of the message.
        message: Further members of the message.
        usage: Whether the reply reports token counts.
    """

    content: str | None = None
    calls: Sequence[tuple[str, Mapping[str, Json] | str]] = ()
    finish_reason: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    message: Mapping[str, Json] = field(default_factory=dict)
    usage: bool = True

    def body(self, request: Mapping[str, Any], number: int) -> dict[str, Json]:
        """Return the body of the response.

        Args:
            request: The body of the request.
            number: Number of the request. The ids of tool calls do not depend on this number, so that equal
                conversations get equal replies.
        """
        message: dict[str, Json] = {"role": "assistant", "content": self.content}
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{len(request['messages'])}_{at}",
                    "type": "function",
                    "function": {"name": name, "arguments": _text(arguments)},
                }
                for at, (name, arguments) in enumerate(self.calls)
            ]
        if self.refusal is not None:
            message["refusal"] = self.refusal
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        message |= self.message
        reason = self.finish_reason or ("tool_calls" if self.calls else "stop")
        read = sum(len(str(part.get("content") or "")) for part in request["messages"]) // 4
        written = len(json.dumps(message)) // 4
        counted = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        return {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "system_fingerprint": "fp_scripted",
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        } | ({"usage": counted} if self.usage else {})


ReplyPolicy = Callable[[Mapping[str, Any]], ScriptedReply | str]
"""Function that maps a request body to a reply. It runs on the server's thread, so it must not block."""


def scripted_policy(replies: Sequence[ScriptedReply | str]) -> ReplyPolicy:
    """Return a policy that gives these replies in order in every conversation, and then ``FINISH([])``.

    The position in a conversation is the number of its assistant messages, so conversations may overlap.
    """

    def policy(request: Mapping[str, Any]) -> ScriptedReply | str:
        count: int = sum(message.get("role") == "assistant" for message in request["messages"])
        if count < len(replies):
            return replies[count]
        return ScriptedReply(calls=[("finish", {"answer": []})]) if offers_actions(request) else "FINISH([])"

    return policy


def offers_actions(request: Mapping[str, Any]) -> bool:
    """Whether a request offers actions as tools; it may also offer only lookups."""
    return any(tool["function"]["name"] == "finish" for tool in request.get("tools") or ())


def _text(arguments: Mapping[str, Json] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


_TICK = 0.02  # seconds; how often a request with the fault "timeout" checks whether it may end


class ChatServer(AppServer):
    """Context manager that serves ``/v1/chat/completions`` and ``/v1/models`` on 127.0.0.1 from a thread.

    Args:
        policy: Function that maps a request body to a reply, or the list of replies for every conversation.
        faults: Function that maps the number of a request (from 0) to a fault, or the list of faults of the first
            requests.
        models: Names of the available models; requests for other models get 404.
        api_key: The API key that requests must have; None to accept any key.
        context_tokens: Maximum length of a conversation in tokens of four characters; None for no limit.
        delay: Seconds before each response.
        retry_after: Value of the ``Retry-After`` header of 429 responses.
        port: Port; 0 for a free port.

    Attributes:
        requests: Bodies of all completion requests, including failed ones.
        faulted: Number of requests that failed because of `faults`.
        busy: Seconds that the server has spent on replies.

    Raises:
        FhirGymError: The port is in use.
    """

    def __init__(
        self,
        policy: ReplyPolicy | Sequence[ScriptedReply | str],
        *,
        faults: Callable[[int], Fault | None] | Sequence[Fault | None] = (),
        models: Sequence[str] = ("scripted",),
        api_key: str | None = None,
        context_tokens: int | None = None,
        delay: float = 0.0,
        retry_after: float | None = None,
        port: int = 0,
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self.faulted = 0
        self.busy = 0.0
        self._policy = policy if callable(policy) else scripted_policy(policy)
        self._faults = faults if callable(faults) else dict(enumerate(faults)).get
        self._models, self._key, self._context = tuple(models), api_key, context_tokens
        self._delay, self._retry_after = delay, retry_after
        routes = [
            Route("/v1/chat/completions", self._complete, methods=["POST"]),
            Route("/v1/models", self._list, methods=["GET"]),
        ]
        super().__init__(Starlette(routes=routes), port, lifespan="off", timeout_graceful_shutdown=1)

    @property
    def base_url(self) -> str:
        """Base URL for clients."""
        return f"{self.url}/v1"

    async def _list(self, http: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model"} for name in self._models]})

    async def _complete(self, http: Request) -> Response:
        body = await http.body()
        number = len(self.requests)
        start = time.perf_counter()
        request = json.loads(body)
        self.requests.append(request)
        refusal = self._refusal(http, request)
        fault = None if refusal else self._faults(number)
        if fault is not None:
            self.faulted += 1
        answer = b"" if refusal or fault in ("429", "500", "503", "timeout") else self._answer(request, number)
        self.busy += time.perf_counter() - start
        if self._delay:
            await asyncio.sleep(self._delay)
        if refusal is not None:
            return refusal
        return await self._faulty(fault, answer, http) if fault else Response(answer, media_type="application/json")

    def _answer(self, request: dict[str, Any], number: int) -> bytes:
        reply = self._policy(request)
        reply = ScriptedReply(reply) if isinstance(reply, str) else reply
        return json.dumps(reply.body(request, number)).encode()

    def _refusal(self, http: Request, request: dict[str, Any]) -> Response | None:
        if self._key is not None and http.headers.get("authorization") != f"Bearer {self._key}":
            return _error(401, "Incorrect API key provided", "invalid_api_key")
        if request["model"] not in self._models:
            return _error(404, f"The model {request['model']!r} does not exist", "model_not_found")
        length = len(json.dumps(request["messages"])) // 4
        if self._context is not None and length > self._context:
            text = f"This model's maximum context length is {self._context} tokens, the messages have {length}"
            return _error(400, text, "context_length_exceeded")
        return None

    async def _faulty(self, fault: Fault, answer: bytes, http: Request) -> Response:
        if fault == "timeout":
            while not (self._server.should_exit or await http.is_disconnected()):
                await asyncio.sleep(_TICK)
            return Response(status_code=504)
        if fault == "429":
            after = {} if self._retry_after is None else {"retry-after": f"{self._retry_after:g}"}
            return _error(429, "Too many requests", "rate_limit_exceeded", after)
        if fault == "half":
            return _HalfResponse(answer)
        if fault == "garbled":
            return Response(answer[: len(answer) // 2], media_type="application/json")
        if fault == "no_message":
            return JSONResponse({"error": {"message": "the model is overloaded"}})
        return _error(int(fault), "the server had an error", "server_error")


class _HalfResponse(Response):
    """A response that announces its full length but sends only half of its body before the connection closes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        half = bytes(self.body[: len(self.body) // 2])
        await send({"type": "http.response.body", "body": half, "more_body": True})


def _error(status: int, message: str, code: str, headers: dict[str, str] | None = None) -> Response:
    error: dict[str, Json] = {"message": message, "type": "error", "param": None, "code": code}
    return JSONResponse({"error": error}, status_code=status, headers=headers)


class GoldOverChat:
    """A policy for `ChatServer` that solves tasks with tool calls if the request offers tools, otherwise with text.

    The policy tests the path between a model and an episode. Unlike a model, the policy knows the announced tasks and
    variations, and recognises them by their prompts. It then follows the reference solution, which reads the server's
    responses from the messages. Lookups in the conversation, which a policy around this one may have made, are skipped.

    Args:
        world: The world of the tasks.
        episodes: Env id, task and variation of each announced episode.

    Raises:
        FhirGymError: Two announced episodes have the same prompt but different parameters.
    """

    def __init__(self, world: World, episodes: Iterable[tuple[str, str, int]]) -> None:
        self._known: dict[str, tuple[Task[Any], Params]] = {}
        for env_id, key, number in episodes:
            task = tasks.get_task(env_id, key)
            variation = task.variation(number, world)
            known_task = self._known.setdefault(variation.prompt, (task, variation.params))
            if known_task != (task, variation.params):
                raise FhirGymError(f"{env_id}, task {key}, variation {number} has the same prompt as another episode")

    def __call__(self, request: Mapping[str, Any]) -> ScriptedReply | str:
        """Return the next action of the solution."""
        messages = [message for message in request["messages"] if message["role"] != "system"]
        action = self._next(messages[0]["content"], _without_lookups(messages[1:]))
        if not offers_actions(request):
            return action.text()
        call = GRAMMAR.to_tool_call(action)
        return f"No tool call is equivalent to {action.text()}" if call is None else ScriptedReply(calls=[call])

    def _next(self, task_text: str, later: Iterable[Mapping[str, Any]]) -> Action:
        known_task = next((self._known[prompt] for prompt in _beginnings(task_text) if prompt in self._known), None)
        if known_task is None:
            raise FhirGymError(f"no announced task has this prompt: {task_text[:200]!r}")
        task, params = known_task
        fhir = LatestResponse()
        solution = task.gold(params)
        try:
            action = next(solution)
            for message in later:
                if message["role"] != "assistant":
                    fhir.last = read_response(message["content"])
                    action = solution.send(fhir.json())
        except StopIteration:
            return Finish()
        return action


def _without_lookups(messages: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the messages except the results of calls to tool sources."""
    lookups: set[str] = set()
    for message in messages:
        calls = message.get("tool_calls") or ()
        lookups |= {call["id"] for call in calls if call["function"]["name"] not in GRAMMAR.tool_names}
        if message.get("tool_call_id") not in lookups:
            yield message


def _beginnings(text: str) -> Iterator[str]:
    """Yield the text before each empty line, then the complete text."""
    at = text.find("\n\n")
    while at >= 0:
        yield text[:at]
        at = text.find("\n\n", at + 1)
    yield text
