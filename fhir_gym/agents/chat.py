"""An agent that uses a language model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import get_args

from typing_extensions import override

from fhir_gym.agents.chat_messages import ChatProtocol
from fhir_gym.agents.context_window import ContextPolicy
from fhir_gym.agents.conversation import Conversation, LookupRules, SyncAdapter, make_opening
from fhir_gym.agents.dropping_window import make_window
from fhir_gym.agents.protocol import EpisodeContext
from fhir_gym.agents.provider import ChatModel, Provider
from fhir_gym.agents.tool_sources import ToolSource
from fhir_gym.agents.tool_sources.toolbox import FHIR, Toolbox, make_tool_sources, split_tools
from fhir_gym.arguments import require_name
from fhir_gym.errors import ArgumentError
from fhir_gym.types import Json

_SEED_LIMIT = 2**31
"""Sampling seeds are below this number, because providers refuse larger seeds."""


class ChatAgent(SyncAdapter):
    """An agent that requests each action from a model. It needs the extra ``llm``.

    `fhir_gym.run` runs several episodes concurrently; each episode has its own conversation.

    Args:
        model: Name of the model.
        base_url: The endpoint (``http://localhost:8000/v1``); None for ``OPENAI_BASE_URL`` or OpenAI's endpoint.
        protocol: ``text`` (the model writes actions) or ``tools`` (the model calls functions); None for ``tools`` if
            `tools` contains ``fhir``, otherwise ``text``.
        tools: The tools that the model may call: ``fhir`` (the FHIR tools and ``finish``), ``spec`` (the FHIR
            specification), ``memory`` (lessons from training), ``mcp:URL`` or ``mcp:COMMAND`` (the tools of an MCP
            server), or a `ToolSource`. Calls of all tools except those of ``fhir`` are lookups, which never reach the
            episode's server. A text is a list separated by commas.
        memory: The memory file for ``memory``.
        count_lookups: Whether lookups count towards the step limit of the episode.
        max_lookups: Maximum number of lookups of an episode; None for the step limit. A lookup beyond this number gets
            an error as its result, and counts as a step.
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
        context_policy: What happens when the conversation no longer fits into `context_tokens`: ``stop`` (the episode
            ends) or ``drop`` (the oldest results are dropped; the records say which).

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
        protocol: ChatProtocol | None = None,
        tools: str | Sequence[str | ToolSource] = (),
        memory: str | None = None,
        count_lookups: bool = True,
        max_lookups: int | None = None,
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
        context_policy: ContextPolicy = "stop",
    ) -> None:
        chosen = split_tools(tools)
        protocol = _protocol(protocol, offers_fhir=FHIR in chosen)
        if max_lookups is not None and max_lookups < 1:
            raise ArgumentError(f"max_lookups must be at least 1, not {max_lookups}")
        endpoint = ChatModel(
            model=model,
            base_url=base_url,
            api_key=api_key,
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            extra_body=dict(extra_body or {}),
            timeout=timeout,
            retries=retries,
            backoff=backoff,
        )
        self._provider = Provider(endpoint)
        self._protocol: ChatProtocol = protocol
        self._system, self._seed = system, seed
        self._limits = (context_policy, context_tokens, max_tokens, observation_chars)
        make_window(*self._limits)  # checks the limits
        sources = make_tool_sources(chosen, memory)
        self._lookups = LookupRules(Toolbox(sources), count_lookups, max_lookups) if sources else None
        settings: dict[str, Json] = {
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
            "context_policy": None if context_policy == "stop" else context_policy,
        }
        if self._lookups is not None:
            settings |= {
                "tools": self._lookups.toolbox.settings,
                "count_lookups": count_lookups,
                "max_lookups": max_lookups,
            }
        self.settings: Mapping[str, Json] = {key: value for key, value in settings.items() if value is not None}

    @override
    def converse(self, observation: str, context: EpisodeContext) -> Conversation:
        seed = None if self._seed is None else (self._seed + context.seed) % _SEED_LIMIT
        start = make_opening(
            self._protocol,
            observation,
            context,
            system=self._system,
            host=self._provider.host,
            seed=seed,
            lookups=self._lookups,
        )
        return Conversation(start, self._provider.complete, make_window(*self._limits), self._lookups, context)

    @override
    async def aclose(self) -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._provider.aclose)
            if self._lookups is not None:
                stack.push_async_callback(self._lookups.toolbox.aclose)


def _protocol(protocol: ChatProtocol | None, *, offers_fhir: bool) -> ChatProtocol:
    """Return the protocol for the given protocol and tools."""
    if protocol is None:
        return "tools" if offers_fhir else "text"
    require_name("protocol", protocol, get_args(ChatProtocol))
    if protocol == "text" and offers_fhir:
        raise ArgumentError("with protocol='text' the model does not call the FHIR tools: leave fhir out of tools")
    return protocol
