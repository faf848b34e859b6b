"""Requests to a model behind an OpenAI-compatible endpoint, with retries and classified errors."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, TypedDict
from urllib.parse import urlsplit

from fhir_gym.actions import GRAMMAR
from fhir_gym.agents.chat_messages import Completion, Message, Opening, Usage
from fhir_gym.agents.protocol import ContextWindowExceeded
from fhir_gym.errors import ArgumentError, EndpointError, InfraError, MissingExtraError, UnknownNameError, pip_install
from fhir_gym.http_client import ReplyTooLargeError, RetryPolicy, limit_size, redirect_target, retry_after
from fhir_gym.types import Json, as_object, objects_in

_CONNECT_TIMEOUT = 20.0  # seconds
_REPLY_BYTES = 16 * 1024 * 1024  # for 32,000 tokens, each with its probability and those of five others
_MAX_COUNT = 10**12  # tokens of one reply; a server may report any number
_TRANSIENT = frozenset({408, 409, 425, 429})
"""Statuses below 500 after which a request is repeated. All statuses from 500 on are repeated too."""
_KNOWN_FIELDS = frozenset(
    {"role", "content", "tool_calls", "refusal", "reasoning", "reasoning_content", "audio", "annotations"}
    | {"function_call"}
)


class ModelOptions(TypedDict, total=False):
    """The optional fields of `ChatModel`."""

    base_url: str | None
    api_key: str | None
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    extra_body: Mapping[str, Json]
    timeout: float
    retries: int
    backoff: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatModel:
    """A model behind an OpenAI-compatible endpoint.

    Attributes:
        model: Name of the model.
        base_url: The endpoint (``http://localhost:8000/v1``); None for ``OPENAI_BASE_URL`` or OpenAI's endpoint.
        api_key: The endpoint's key; None for ``OPENAI_API_KEY``.
        temperature: Sampling temperature; None for the provider's default.
        top_p: Probability mass for nucleus sampling; None for the provider's default.
        max_tokens: Maximum number of tokens of a reply; None for the provider's default.
        extra_body: Further members of the request body.
        timeout: Seconds until a request counts as failed.
        retries: Maximum number of retries of a failed request.
        backoff: Seconds before the first retry. The wait doubles with each retry.

    Raises:
        ArgumentError: The model has no name, or a number is out of its range.
    """

    model: str
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    extra_body: Mapping[str, Json] = field(default_factory=dict)
    timeout: float = 120.0
    retries: int = 4
    backoff: float = 1.0

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if not self.model:
            raise ArgumentError("model must be a name, not an empty text")
        if self.timeout <= 0 or self.retries < 0 or self.backoff < 0:
            raise ArgumentError("timeout must be positive; retries and backoff must not be negative")

    def request(self, messages: Sequence[Message], opening: Opening) -> dict[str, Any]:
        """Return the body of a request."""
        tools = [*(GRAMMAR.tools() if opening.protocol == "tools" else ()), *opening.tools]
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_tokens,
            "seed": opening.seed,
            "tools": tools or None,
        }
        return {name: value for name, value in body.items() if value is not None} | dict(self.extra_body)


class _TransientError(Exception):
    """A failure of the provider after which a retry may succeed."""

    def __init__(self, message: str, asked: float | None = None) -> None:
        super().__init__(message)
        self.asked = asked


class Provider:
    """Sends requests to the endpoint of a model and repeats failed requests.

    Raises:
        MissingExtraError: The openai package is not installed.
        ArgumentError: The base URL is invalid.
        EndpointError: The key is missing.
    """

    def __init__(self, model: ChatModel) -> None:
        if find_spec("openai") is None:
            raise MissingExtraError(f"the chat agent needs the openai package: {pip_install('llm')}")
        base_url = model.base_url or os.environ.get("OPENAI_BASE_URL") or None
        key = model.api_key or os.environ.get("OPENAI_API_KEY") or None
        if key is None and base_url is None:
            raise EndpointError("OpenAI's endpoint needs a key: set OPENAI_API_KEY, or base_url for another endpoint")
        self.base_url = base_url or "https://api.openai.com/v1"
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ArgumentError(f"base_url must be a URL such as http://localhost:8000/v1, not {base_url!r}")
        self.host = parts.hostname
        self._shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # without user and password
        self.model = model
        self._key = key or "EMPTY"
        self._client: Any = None
        self._answered = False
        self._jitter = random.Random(0)  # affects only waiting times

    async def complete(self, messages: Sequence[Message], opening: Opening) -> Completion:
        """Request a completion.

        Raises:
            InfraError: Every attempt failed.
            EndpointError: The endpoint is misconfigured, or has never responded successfully.
            ContextWindowExceeded: The conversation is too long for the model.
        """
        request = self.model.request(messages, opening)
        policy = RetryPolicy(self.model.retries, self.model.backoff)
        for attempt in range(policy.attempts):
            try:
                async with asyncio.timeout(self.model.timeout):  # for the whole reply, not only for each part of it
                    completion = await self._ask(request)
            except (_TransientError, TimeoutError) as failure:
                late = f"no answer within {self.model.timeout:g} seconds"
                last = failure if isinstance(failure, _TransientError) else _TransientError(late)
                if (pause := policy.pause(attempt, last.asked)) is not None:
                    await asyncio.sleep(pause * self._jitter.uniform(1.0, 1.25))
            else:
                self._answered = True
                return completion.model_copy(update={"retries": attempt})
        failed = f"{self.host} failed {policy.attempts} times"
        if not self._answered:  # probably permanent: some servers send 500 for a model that they cannot load
            raise EndpointError(
                f"{failed} and has not answered yet: {last}. Check its log: does it have the model "
                f"{self.model.model!r}, and can it parse the model's tool calls?"
            )
        raise InfraError(f"{failed}: {last}")

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the provider without its connections."""
        return self.__dict__ | {"_client": None}

    def _opened(self) -> Any:
        if self._client is None:
            import openai

            # The client's retries are off, because the retries of this class are counted and cover more failures.
            # Redirects are off, so that prompts and the key go only to the endpoint that the user named.
            # For plain HTTP, loading the certificates would take most of the time.
            client = openai.DefaultAsyncHttpxClient(
                follow_redirects=False, verify=not self.base_url.startswith("http:")
            )
            limit_size(client, _REPLY_BYTES)
            # `complete` limits the rest of the time. Connecting has a lower limit, so that it fails with its own error.
            timeout = openai.Timeout(None, connect=min(self.model.timeout / 2, _CONNECT_TIMEOUT))
            self._client = openai.AsyncOpenAI(
                base_url=self.base_url, api_key=self._key, timeout=timeout, max_retries=0, http_client=client
            )
        return self._client

    async def _ask(self, request: dict[str, Any]) -> Completion:
        import openai

        client = self._opened()
        try:
            # `chat.completions.create` is much slower because it validates all messages and tools.
            body = await client.post("/chat/completions", cast_to=bytes, body=request)
            if not self._answered and body.lstrip().startswith(b"<"):
                raise EndpointError(f"{self._shown} is not an endpoint: it answered with a web page instead of JSON")
            return read_completion(body)
        except openai.APITimeoutError as error:  # nobody accepts the connection
            if not self._answered and _is_unreachable(error):
                raise EndpointError(f"no server answers at {self._shown}: is the URL right?") from error
            raise _TransientError("the connection failed: timeout") from None
        except openai.APIStatusError as error:
            if _is_unreadable_reply(message := _error_message(error.body)):
                return Completion(finish_reason="unreadable", extra={"error": message})
            raise await self._classify(error) from error
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            if isinstance(cause, ReplyTooLargeError):
                raise _TransientError(str(cause)) from error
            if not self._answered and _is_unreachable(cause):
                raise EndpointError(f"no server answers at {self._shown}: is it running? ({cause})") from error
            raise _TransientError(f"the connection failed: {type(cause).__name__}") from error

    async def _classify(self, error: Any) -> Exception:
        """Return the exception to raise for a response with an error status."""
        status: int = error.status_code
        if 300 <= status < 400:
            target = redirect_target(self._shown, error.response.headers.get("location")) or "elsewhere"
            return EndpointError(
                f"{self._shown} redirects to {target} (HTTP {status}); redirects are not followed, to protect prompts "
                "and key: use that URL as base_url if it is right"
            )
        message = _error_message(error.body) or str(error)
        short = f"HTTP {status}: {message[:300]}"
        code = error.body.get("code") if isinstance(error.body, dict) else None
        if code == "insufficient_quota":
            return EndpointError(f"{self.host}: {short}")
        if status in _TRANSIENT or status >= 500:
            return _TransientError(short, retry_after(error.response.headers))
        if code == "context_length_exceeded" or _is_context_overflow(message):
            return ContextWindowExceeded(short)
        if status in (401, 403):
            return EndpointError(f"{self.host} rejects the key ({short}): set OPENAI_API_KEY or api_key")
        if status == 404:
            models = await self._models()
            if models and self.model.model not in models:
                return EndpointError(f"{self.host}: {UnknownNameError('model', self.model.model, models)}")
            return EndpointError(
                f"{self._shown} has no model {self.model.model!r}, or is not an endpoint ({short}); "
                "the URL of an endpoint usually ends with /v1"
            )
        if not self._answered:
            return EndpointError(f"{self.host} rejects the request ({short})")
        return InfraError(f"{self.host} rejects the request ({short})")

    async def _models(self) -> list[str]:
        """Return the endpoint's models; an empty list if the endpoint cannot list models."""
        import openai

        try:
            return [str(model.id) for model in (await self._opened().models.list()).data]
        except (openai.OpenAIError, TypeError, AttributeError):  # the endpoint has no list, or another response format
            return []


def read_completion(body: bytes) -> Completion:
    """Parse a response of the chat completions API.

    Raises:
        _TransientError: The response is incomplete, or it has a success status but an error body.
    """
    try:
        data = json.loads(body)
        if rb"\ud" in body.lower():  # JSON may contain lone surrogates, but a request cannot
            data = json.loads(json.dumps(data, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise _TransientError(f"an incomplete response of {len(body)} bytes") from None
    choices = as_object(data).get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = as_object(choice).get("message")
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise _TransientError(
            f"a response without a message: {_error_message(data) or body[:200].decode('utf-8', 'replace')}"
        )
    extra = {key: value for key, value in message.items() if key not in _KNOWN_FIELDS and value is not None}
    extra |= {key: choice[key] for key in ("logprobs", "token_ids", "stop_reason") if choice.get(key) is not None}
    if data.get("prompt_token_ids") is not None:
        extra["prompt_token_ids"] = data["prompt_token_ids"]
    return Completion(
        content=_text(message.get("content")),
        tool_calls=tuple(objects_in(message.get("tool_calls"))),
        finish_reason=str(choice.get("finish_reason") or "unknown"),
        reasoning=_text(message.get("reasoning_content") or message.get("reasoning")),
        refusal=_text(message.get("refusal")),
        usage=_usage(data.get("usage")),
        model=_text(data.get("model")),
        fingerprint=_text(data.get("system_fingerprint")),
        extra=extra,
    )


def _text(value: Json) -> str | None:
    """Return a text; join the texts of a list of parts."""
    if isinstance(value, list):
        parts = (part.get("text") for part in value if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str)) or None
    return value if isinstance(value, str) and value else None


def _usage(usage: Json) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    return Usage(
        prompt=_count(usage, "prompt_tokens"),
        completion=_count(usage, "completion_tokens"),
        cached=_count(usage.get("prompt_tokens_details"), "cached_tokens"),
        reasoning=_count(usage.get("completion_tokens_details"), "reasoning_tokens"),
    )


def _count(counts: Json, name: str) -> int:
    value = as_object(counts).get(name)
    return min(value, _MAX_COUNT) if isinstance(value, int) and value > 0 else 0


def _error_message(body: Json) -> str:
    """Return the message in an error body. Servers use several formats."""
    if isinstance(body, dict):
        inner = body.get("error", body)
        if isinstance(inner, dict):
            inner = inner.get("message") or inner.get("detail")
        return str(inner) if inner else ""
    return str(body or "")


def _is_context_overflow(message: str) -> bool:
    """Whether an error message means that the conversation is too long. Servers have no common error code for this."""
    text = message.lower()
    return "context" in text and any(word in text for word in ("length", "exceed", "size", "window", "too long"))


def _is_unreadable_reply(message: str) -> bool:
    """Whether an error message means that the server could not parse the model's reply.

    llama.cpp then sends 500 ("The model produced output that does not match the expected peg-native format"). The model
    made this mistake and often repeats it after a retry, so the episode continues and gets a verdict.
    """
    return "model produced output that does not match" in message.lower()


def _is_unreachable(cause: BaseException) -> bool:
    """Whether any cause of a failed connection is a refused connection or an unknown host."""
    seen: BaseException | None = cause
    while seen is not None:
        if type(seen).__name__ in ("ConnectError", "ConnectTimeout") or isinstance(seen, ConnectionRefusedError):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
