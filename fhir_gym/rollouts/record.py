"""The complete record of one episode, stored as one JSON line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict

from fhir_gym.agents.chat_messages import Lookup, Message, ModelReply, Opening, Usage, result_message
from fhir_gym.agents.dropping_window import short_form
from fhir_gym.observations import Observations
from fhir_gym.tasks import Task, Variation, Verdict, get_pack
from fhir_gym.types import Json, Wording

SCHEMA_VERSION = 4
"""Version of the record format. A record has the lowest version that can express it; see `schema_version_of`."""
StopReason = Literal["finished", "step_limit", "context_limit", "unfinished", "infra_error", "interrupted"]
"""Why an episode ended."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskRecord(_Record):
    """The task of an episode.

    Attributes:
        key: Key of the task in its pack.
        variation: Number of the variation.
        split: ``train`` or ``test``.
        phrasing: Index of the prompt wording, or ``brief``.
        title: Short title.
        category: Group in which reports count the task.
        task_kind: ``query`` or ``action``.
        difficulty: 1 to 3.
        hash: Hash of the variation's parameters, prompt and start state.
        pack_version: Version of the task's pack; empty if the task belongs to no pack.
    """

    key: str
    variation: int
    split: str
    phrasing: Wording
    hash: str
    title: str = ""
    category: str = ""
    task_kind: str = ""
    difficulty: int = 0
    pack_version: str = ""

    @classmethod
    def of(cls, variation: Variation, task: Task[Any]) -> Self:
        """Return the task record of a variation."""
        return cls(
            key=variation.task_key,
            variation=variation.number,
            split=variation.split,
            phrasing=variation.phrasing,
            hash=_hash(variation),
            title=task.title,
            category=task.category,
            task_kind=task.kind,
            difficulty=task.difficulty,
            pack_version=get_pack(task.pack).version if task.pack else "",
        )


def _hash(variation: Variation) -> str:
    """Return the hash of a variation's parameters, prompt and start state.

    The resources are encoded one by one: encoding thousands of them at once would stop all threads for 0.2 seconds.
    """
    dumps = partial(json.dumps, sort_keys=True, ensure_ascii=False, default=str)
    digest = blake2b(digest_size=16)
    digest.update(f"[{dumps(variation.prompt)}, {dumps(variation.params.model_dump(mode='json'))}, [".encode())
    for number, resource in enumerate(variation.setup):
        digest.update(f"{', ' if number else ''}{dumps(resource)}".encode())
    digest.update(b"]]")
    return digest.hexdigest()


class WorldRecord(_Record):
    """The world of an episode.

    Attributes:
        hash: Content hash.
    """

    name: str
    hash: str


class RecordedAgent(Protocol):
    """The attributes of an agent that records contain.

    Attributes:
        settings: The agent's settings as plain data.
    """

    name: str
    settings: Mapping[str, Json]


class AgentRecord(_Record):
    """The agent of an episode.

    Attributes:
        settings: The agent's settings.
    """

    name: str
    settings: dict[str, Json]

    @classmethod
    def of(cls, agent: RecordedAgent) -> Self:
        """Return the record of an agent."""
        return cls(name=agent.name, settings=dict(agent.settings))


class Turn(_Record):
    """One action and its result.

    Attributes:
        action: The action's text; for a tool call, the equivalent text.
        observation: The observation after the action.
        status: HTTP status; 0 if no request was sent.
        tool: Name of the called tool; None without a tool call.
        error: Why the action was invalid; None for a valid action.
        text: The agent's original text; None if it equals the action.
        notes: Further data from the agent.
        reply: The model's reply that contains this action. None without a model, and for all actions of a reply except
            the first.
        call_id: Id of the tool call.
        shown: The shortened observation that the model read; None if the model read the whole observation.
        lookups: The calls to tool sources between the previous action and this action, in order.
    """

    action: str
    observation: str
    status: int = 0
    tool: str | None = None
    error: str | None = None
    text: str | None = None
    notes: dict[str, Json] = {}
    reply: ModelReply | None = None
    call_id: str | None = None
    shown: str | None = None
    lookups: tuple[Lookup, ...] = ()

    @property
    def read(self) -> str:
        """The observation as the agent read it."""
        return self.observation if self.shown is None else self.shown


def schema_version_of(turns: Sequence[Turn], final_lookups: Sequence[Lookup]) -> int:
    """Return the lowest schema version that can express turns, so that earlier releases can read most records."""
    lookups = [*(lookup for turn in turns for lookup in turn.lookups), *final_lookups]
    replies = [*(turn.reply for turn in turns), *(lookup.reply for lookup in lookups)]
    if any(reply is not None and reply.dropped is not None for reply in replies):
        return 4
    return 3 if lookups else 2


class Timings(_Record):
    """Wall-clock times and retries. All other parts of a record are the same when a run is repeated.

    Attributes:
        prepare: Seconds until the first observation.
        agent: Seconds spent by the agent.
        server: Seconds spent by the server, including grading.
        retries: Number of repeated requests to a provider.
        turns: Seconds of the agent and of the server in each turn; empty in older records.
    """

    prepare: float
    agent: float
    server: float
    retries: int = 0
    turns: tuple[tuple[float, float], ...] = ()


class Rollout(_Record):
    """The record of one episode.

    Attributes:
        schema_version: Version of this format.
        package_version: Version of fhir_gym that wrote the record.
        env_id: Env id of the pack.
        seed: Seed of the agent's randomness.
        repeat: Index of this run of the variation, from 0.
        grading: The grading that decided success.
        max_steps: The step limit.
        observations: The form of the observations.
        action_format: The rest of the first observation, after the prompt.
        opening: Start of the conversation with the agent's model; None without a model.
        turns: The actions in order.
        usage: Total token counts of all replies; None if tokens were not counted.
        steps: Number of turns.
        stop_reason: Why the episode ended.
        error: Message of the failure that ended the episode; None for most stop reasons.
        success: Whether the verdict is a success; None without a verdict.
        light: Whether light validation passed; None without a verdict or without light validation.
        reward: The episode's reward; None without a verdict.
        verdict: The verdict; None after an infrastructure failure or an interruption.
        timings: Wall-clock times; None if they were not recorded.
        final_lookups: The calls to tool sources after the last turn; see `lookups`.
    """

    schema_version: int = 2
    package_version: str
    env_id: str
    task: TaskRecord
    world: WorldRecord
    agent: AgentRecord
    seed: int
    repeat: int = 0
    grading: str
    reward_rule: str
    max_steps: int
    observations: Observations = "http"
    prompt: str
    action_format: str
    opening: Opening | None = None
    turns: tuple[Turn, ...]
    usage: Usage | None = None
    steps: int
    stop_reason: StopReason
    error: str | None = None
    success: bool | None
    light: bool | None
    reward: float | None
    verdict: Verdict | None
    timings: Timings | None = None
    final_lookups: tuple[Lookup, ...] = ()

    @property
    def first_observation(self) -> str:
        """The first observation: prompt and action format."""
        return f"{self.prompt}\n\n{self.action_format}"

    @property
    def messages(self) -> list[Message]:
        """The conversation with the model; empty without a model.

        The last message is the last reply, because the model does not read the result of its last action. Contents that
        the agent dropped later are there; see `requests`.
        """
        messages = list(self.opening.messages) if self.opening else []
        for turn in self.turns if self.opening else ():
            messages += lookup_messages(turn.lookups)
            if turn.reply is not None:
                messages.append(turn.reply.message)
            messages.append(result_message(turn.read, turn.call_id))
        messages += lookup_messages(self.final_lookups)
        return messages[:-1] if self.turns or self.final_lookups else messages

    def requests(self) -> Iterator[list[Message]]:
        """Yield the messages of the request for each of the `replies`, exactly as the model read them.

        They lack what the agent had dropped from the conversation before the request. A rollout without an opening has
        no requests.
        """
        if self.opening is None:
            return
        messages = self.messages
        first = start = len(self.opening.messages)
        places = [place for place in range(first, len(messages)) if messages[place]["role"] == "assistant"]
        for place, reply in zip(places, self.replies, strict=True):
            if reply.dropped is not None:
                start += reply.dropped.messages
                for number in reply.dropped.contents:
                    messages[number] = short_form(messages[number])
            yield [*messages[:first], *messages[start:place]]

    @property
    def drops(self) -> int:
        """Number of times that the agent dropped something from the conversation, because the window was full."""
        return sum(reply.dropped is not None for reply in self.replies)

    @property
    def lookups(self) -> tuple[Lookup, ...]:
        """All calls to tool sources, in order."""
        return (*(lookup for turn in self.turns for lookup in turn.lookups), *self.final_lookups)

    @property
    def replies(self) -> list[ModelReply]:
        """All replies of the model, in order."""
        replies: list[ModelReply | None] = []
        for turn in self.turns:
            replies += [*(lookup.reply for lookup in turn.lookups), turn.reply]
        replies += [lookup.reply for lookup in self.final_lookups]
        return [reply for reply in replies if reply is not None]

    @property
    def graded(self) -> bool:
        """Whether the episode has a verdict."""
        return self.verdict is not None

    def line(self, *, timings: bool = True) -> str:
        """Return the record as one line of JSON, without a line end.

        Args:
            timings: Whether to include timings. Without timings, equal runs give equal lines.
        """
        exclude = None if timings else {"timings"}
        data: dict[str, Any] = self.model_dump(mode="json", exclude=exclude)
        _leave_out_if_empty(data, "final_lookups")
        _leave_out_if_empty(data["opening"] or {}, "tools")
        lookups = data.get("final_lookups", [])
        for turn in data["turns"]:
            lookups = [*lookups, *turn["lookups"]]
            _leave_out_if_empty(turn, "lookups")
        for holder in (*data["turns"], *lookups):
            _leave_out_if_empty(holder["reply"] or {}, "dropped")
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _leave_out_if_empty(data: dict[str, Any], name: str) -> None:
    """Remove an empty element, so that records without it keep the form of an earlier schema version.

    A serializer of Pydantic would do the same, but would turn Ctrl-C during its call into another exception.
    """
    if not data.get(name):
        data.pop(name, None)


def lookup_messages(lookups: Iterable[Lookup]) -> Iterator[Message]:
    """Yield the messages of lookups: the model's replies and the results."""
    for lookup in lookups:
        if lookup.reply is not None:
            yield lookup.reply.message
        yield result_message(lookup.result, lookup.call_id)
