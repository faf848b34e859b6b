"""An OpenAI-compatible chat server with scripted replies."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fhir_gym.testing.app_server import AppServer
from fhir_gym.testing.faults import Fault
from fhir_gym.testing.scripted_replies import ReplyPolicy, ScriptedReply, scripted_policy
from fhir_gym.types import Json

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
