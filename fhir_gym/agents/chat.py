"""An agent that uses a language model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from typing_extensions import override

from fhir_gym.agents.chat_messages import ChatProtocol
from fhir_gym.agents.context_window import ContextWindow
from fhir_gym.agents.conversation import Conversation, make_opening
from fhir_gym.agents.protocol import EpisodeContext
from fhir_gym.agents.provider import Provider, Sampling
from fhir_gym.agents.sync_adapter import SyncAdapter
from fhir_gym.errors import FhirGymError, UnknownNameError
from fhir_gym.types import Json

_SEED_LIMIT = 2**31
"""Sampling seeds are below this number, because providers refuse larger seeds."""


class ChatAgent(SyncAdapter):
    """An agent that requests each action from a model. It needs the extra ``llm``.

    `fhir_gym.run` runs several episodes concurrently; each episode has its own conversation.

    Args:
        model: Name of the model.
        base_url: The endpoint (``http://localhost:8000/v1``); None for ``OPENAI_BASE_URL`` or OpenAI's endpoint.
        protocol: ``text`` (the model writes actions) or ``tools`` (the model calls functions).
        system: System prompt that replaces the default; an empty text for no system prompt.
        temperature: Sampling temperature; None for the provider's default.
        top_p: Probability mass for nucleus sampling; None for the provider's default.
        max_tokens: Maximum number of tokens of a reply; None for the provider's default.
        seed: Number that is added to each episode's seed to obtain the sampling seed; None to send no seed.
        extra_body: Further members of the request body (``{"top_k": 20}``, ``{"stop": ["END"]}``). Records contain
            them, so they must not contain secrets.
        api_key: The endpoint's key; None for ``OPENAI_API_KEY``. Records never contain the key.
        timeout: Seconds until a request counts as failed.
        retries: Maximum number of retries of a failed request (429, 5xx, timeout, lost connection).
        backoff: Seconds before the first retry. The wait doubles with each retry; a wait that the provider requests
            has priority.
        context_tokens: Size of the model's context window; None for no limit. An observation that does not fit is
            shortened and gets a note.
        observation_chars: Maximum number of characters of an observation; None for no limit.

    Raises:
        MissingExtraError: The openai package is not installed.
        EndpointError: The key is missing, or the base URL is invalid.
        UnknownNameError: The protocol does not exist.

    Examples:
        >>> agent = ChatAgent("qwen3", base_url="http://localhost:8000/v1", protocol="tools")
        >>> agent.name
        'chat'
    """

    name = "chat"

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        protocol: ChatProtocol = "text",
        system: str | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        extra_body: Mapping[str, Json] | None = None,
        api_key: str | None = None,
        timeout: float = 300.0,
        retries: int = 6,
        backoff: float = 1.0,
        context_tokens: int | None = None,
        observation_chars: int | None = None,
    ) -> None:
        if protocol not in get_args(ChatProtocol):
            raise UnknownNameError("protocol", protocol, get_args(ChatProtocol))
        if not model:
            raise FhirGymError("model must be a name, not an empty text")
        sampling = Sampling(model, temperature, max_tokens, dict(extra_body or {}), top_p)
        self._provider = Provider(sampling, base_url, api_key, timeout, retries, backoff)
        self._protocol: ChatProtocol = protocol
        self._system, self._seed = system, seed
        self._limits = (context_tokens, max_tokens, observation_chars)
        ContextWindow(*self._limits)  # checks the limits
        given: dict[str, Json] = {
            "model": model,
            "protocol": protocol,
            "system": system,
            "temperature": temperature,
            "top_p": top_p,
            "max_tokens": max_tokens,
            "seed": seed,
            "extra_body": dict(extra_body) if extra_body else None,
            "context_tokens": context_tokens,
            "observation_chars": observation_chars,
        }
        self.settings: Mapping[str, Json] = {key: value for key, value in given.items() if value is not None}

    @override
    def converse(self, observation: str, context: EpisodeContext) -> Conversation:
        seed = None if self._seed is None else (self._seed + context.seed) % _SEED_LIMIT
        start = make_opening(
            self._protocol, observation, context, system=self._system, host=self._provider.host, seed=seed
        )
        return Conversation(start, self._provider.complete, ContextWindow(*self._limits))

    @override
    async def aclose(self) -> None:
        await self._provider.aclose()
