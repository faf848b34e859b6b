"""Turn rollouts into training examples for supervised fine-tuning.

TRL's SFT trainer accepts all three formats, and `datasets` can load them:

- ``messages``: a conversation in which each assistant message is the text of an action;
- ``tools``: a conversation with tool calls (with arguments as objects) and tool messages, and the tool schemas;
- ``completion``: one row per turn. ``prompt`` is the conversation before the turn, ``completion`` is the turn.

Only ``tools`` can express lookups, that is, calls to tool sources beside the FHIR tools. If an agent dropped contents
from its context window, the model read no conversation as a whole; only ``completion`` can express such a rollout.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from math import isnan
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Literal, TypeVar, get_args

from fhir_gym.actions import GRAMMAR, Invalid
from fhir_gym.agents.chat_messages import Message, with_decoded_calls
from fhir_gym.agents.prompts import SYSTEM_PROMPT, system_prompt
from fhir_gym.arguments import require_name
from fhir_gym.errors import ArgumentError, MissingExtraError, RecordError, pip_install
from fhir_gym.files import atomic_write, new_folder
from fhir_gym.printable import encodable, markdown_text
from fhir_gym.rollouts.record import Rollout, lookup_messages
from fhir_gym.types import Json

Format = Literal["messages", "tools", "completion"]
"""Format of a dataset's rows; see `export`."""
FORMATS: tuple[Format, ...] = get_args(Format)
"""All dataset formats."""
CHATS: Mapping[Format, tuple[str, ...]] = MappingProxyType(
    {"messages": ("messages",), "tools": ("messages", "tools"), "completion": ("prompt", "completion")}
)
"""The columns of each format that hold lists of JSON values."""
Row = dict[str, Any]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Selection:
    """Criteria that select the rollouts for a dataset.

    Attributes:
        success_only: Whether to select only successful rollouts.
        min_reward: Minimum reward of a rollout; None for no minimum.
        tasks: Keys of the tasks, or one key; None for all tasks.
        valid_only: Whether to select only rollouts without invalid actions.
        dedupe: Whether to select only the first of several rollouts with the same prompt, actions and lookups.
    """

    success_only: bool = True
    min_reward: float | None = None
    tasks: str | Collection[str] | None = None
    valid_only: bool = True
    dedupe: bool = True

    def __post_init__(self) -> None:
        """Raise if the minimum reward is NaN."""
        if self.min_reward is not None and isnan(self.min_reward):
            raise ArgumentError("min_reward must be a number, not nan")

    def refusal(self, rollout: Rollout) -> str | None:
        """Return why a rollout is not selected, or None for a selected rollout. `export` finds duplicates itself."""
        keys = (self.tasks,) if isinstance(self.tasks, str) else self.tasks
        if keys is not None and rollout.task.key not in keys:
            return "other task"
        if not rollout.graded:
            return "not graded"
        if self.success_only and not rollout.success:
            return "not successful"
        if self.min_reward is not None and (rollout.reward or 0.0) < self.min_reward:
            return "reward too low"
        if self.valid_only and any(turn.error is not None for turn in rollout.turns):
            return "invalid action"
        return None


@dataclass(slots=True)
class ExportSummary:
    """Counts of an export.

    Attributes:
        rollouts: Number of exported rollouts.
        rows: Number of rows.
        left_out: For each reason, the number of rollouts that were left out.
    """

    rollouts: int = 0
    rows: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def export(
    rollouts: Iterable[Rollout],
    format: Format = "messages",
    *,
    selection: Selection | None = None,
    summary: ExportSummary | None = None,
) -> Iterator[Row]:
    """Yield the rows of a dataset, in the order of the rollouts.

    Args:
        rollouts: The rollouts.
        format: One of `FORMATS`.
        selection: Which rollouts to use; by default, successful rollouts without duplicates.
        summary: Object to update with the counts of the export, or None.

    Raises:
        UnknownNameError: The format does not exist.
    """
    require_name("dataset format", format, FORMATS)
    return _rows(rollouts, format, selection or Selection(), summary or ExportSummary())


def _rows(rollouts: Iterable[Rollout], format: Format, selection: Selection, summary: ExportSummary) -> Iterator[Row]:
    for rollout, rows in converted(rollouts, _BUILD[format], selection, summary):
        for row in rows:
            summary.rows += 1
            yield row | provenance(rollout)


def converted(
    rollouts: Iterable[Rollout], build: Callable[[Rollout], _T | str], selection: Selection, summary: ExportSummary
) -> Iterator[tuple[Rollout, _T]]:
    """Yield the selected rollouts, each with its converted form.

    Args:
        rollouts: The rollouts.
        build: Function that converts a rollout, or returns the reason why this is impossible.
        selection: Which rollouts to convert.
        summary: Object to update with the counts of rollouts.
    """
    seen: set[tuple[str, ...]] = set()
    for rollout in rollouts:
        refusal = selection.refusal(rollout)
        asked = (part for lookup in rollout.lookups for part in (lookup.tool, lookup.arguments))
        content = (rollout.prompt, *(turn.action for turn in rollout.turns), *asked)
        if refusal is None and selection.dedupe and content in seen:
            refusal = "duplicate"
        result = refusal or build(rollout)
        if isinstance(result, str):
            summary.left_out[result] += 1
            continue
        seen.add(content)
        summary.rollouts += 1
        yield rollout, result


def write_dataset(
    rollouts: Iterable[Rollout],
    path: str | PathLike[str],
    format: Format = "messages",
    *,
    selection: Selection | None = None,
) -> ExportSummary:
    """Write a dataset as JSON lines. The complete new file replaces an existing file.

    Args:
        rollouts: The rollouts.
        path: The file.
        format: One of `FORMATS`.
        selection: Which rollouts to use.

    Returns:
        The counts of the export.

    Raises:
        UnknownNameError: The format does not exist.
        RecordError: The file cannot be written.
    """
    summary = ExportSummary()
    rows = export(rollouts, format, selection=selection, summary=summary)
    with atomic_write(path, RecordError) as file:
        for row in rows:
            file.write((json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))
    return summary


def load(path: str | PathLike[str], format: Format = "messages") -> Any:
    """Load a dataset as a `datasets.Dataset`.

    Conversations are loaded as JSON values. If `datasets` inferred a schema, every tool call would get the arguments of
    all tools, and a model would learn their null values. Numbers stay exact; the library's own reader turns 1.7 into
    1.7000000000000002.

    Args:
        path: A file that `write_dataset` has written.
        format: The format of the file.

    Raises:
        UnknownNameError: The format does not exist.
        MissingExtraError: `datasets` is not installed.
    """
    require_name("dataset format", format, FORMATS)
    try:
        datasets = import_module("datasets")
        json_value, list_of = _exact_json(datasets.Json), datasets.List
    except (ImportError, AttributeError) as error:
        raise MissingExtraError(f"loading a dataset needs datasets 4.7 or later: {pip_install('train')}") from error
    origin = {name: datasets.Value(kind) for name, kind in PROVENANCE.items()}
    features = datasets.Features({**{name: list_of(json_value()) for name in CHATS[format]}, **origin})
    with Path(path).open(encoding="utf-8") as file:
        rows = [dict.fromkeys(PROVENANCE) | json.loads(line) for line in file]  # older files have fewer columns
    return datasets.Dataset.from_list(rows, features=features)


def _exact_json(base: type) -> Any:
    """Return a variant of the library's feature for JSON values that keeps numbers exact."""

    def encode_example(self: object, value: Json) -> str:
        return json.dumps(value, ensure_ascii=False)

    def decode_example(self: object, text: str, token_per_repo_id: object = None) -> Json:
        return json.loads(text)

    return type("ExactJson", (base,), {"encode_example": encode_example, "decode_example": decode_example})


PROVENANCE: Mapping[str, str] = MappingProxyType(
    {
        "env_id": "string",
        "task": "string",
        "variation": "int64",
        "phrasing": "int64",
        "split": "string",
        "agent": "string",
        "reward": "float64",
        "success": "bool",
        "turns": "int64",
    }
)
"""Types of the columns about the origin of a row."""


def provenance(rollout: Rollout) -> Row:
    """Return the columns about the origin of a row; trainers ignore them."""
    return {
        "env_id": rollout.env_id,
        "task": rollout.task.key,
        "variation": rollout.task.variation,
        "phrasing": rollout.task.phrasing,
        "split": rollout.task.split,
        "agent": rollout.agent.name,
        "reward": rollout.reward,
        "success": rollout.success,
        "turns": rollout.steps,
    }


def _messages(rollout: Rollout) -> list[Row] | str:
    if rollout.drops:
        return DROPPED
    return ONLY_TOOLS if rollout.lookups else [{"messages": _conversation(rollout)}]


def _completion(rollout: Rollout) -> list[Row] | str:
    if rollout.lookups:
        return ONLY_TOOLS
    if rollout.drops:
        if rollout.opening is None or rollout.opening.protocol != "text":
            return DROPPED
        asked = zip(rollout.requests(), rollout.replies, strict=True)
        return [{"prompt": messages, "completion": [reply.message]} for messages, reply in asked]
    conversation = _conversation(rollout)
    turns = [n for n, message in enumerate(conversation) if message["role"] == "assistant"]
    return [{"prompt": conversation[:n], "completion": [conversation[n]]} for n in turns]


def _conversation(rollout: Rollout) -> list[Row]:
    """Return the episode as a chat that ends with the last action."""
    if rollout.opening and rollout.opening.protocol == "text":
        return rollout.messages
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": rollout.first_observation}]
    for turn in rollout.turns:
        messages.append({"role": "assistant", "content": turn.action})
        messages.append({"role": "user", "content": turn.read})
    return messages[:-1] if rollout.turns else messages


def _tools(rollout: Rollout) -> list[Row] | str:
    """Return the episode as a conversation with tool calls, or the reason why this is impossible."""
    if rollout.drops:
        return DROPPED
    tools = [*GRAMMAR.tools(), *(rollout.opening.tools if rollout.opening else ())]
    if rollout.opening and rollout.opening.protocol == "tools":
        return [{"messages": _with_tool_names(rollout.messages), "tools": tools}]
    sources: Any = rollout.agent.settings.get("tools", {}) if rollout.lookups else ()
    messages: list[Row] = [
        {"role": "system", "content": system_prompt("tools", sources)},
        {"role": "user", "content": rollout.prompt},
    ]
    for number, turn in enumerate(rollout.turns):
        messages += _with_tool_names(lookup_messages(turn.lookups))
        action = GRAMMAR.parse(turn.action)
        call = None if isinstance(action, Invalid) else GRAMMAR.to_tool_call(action)
        if call is None:
            return "an action without an equivalent tool call"
        name, arguments = call
        id = f"call_{number}"
        function = {"name": name, "arguments": arguments}
        calls = [{"id": id, "type": "function", "function": function}]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": id, "name": name, "content": turn.read})
    messages += _with_tool_names(lookup_messages(rollout.final_lookups))
    return [{"messages": messages[:-1], "tools": tools}]


def _with_tool_names(messages: Iterable[Message]) -> list[Row]:
    """Decode the arguments of tool calls, and add the tool's name to each tool message."""
    rows: list[Row] = []
    names: dict[str, str] = {}
    for message in messages:
        row = with_decoded_calls(message)
        names |= {call["id"]: call["function"]["name"] for call in row.get("tool_calls", ())}
        if row["role"] == "tool":
            row = {"role": "tool", "tool_call_id": row["tool_call_id"], "name": names[row["tool_call_id"]]} | row
        rows.append(row)
    return rows


ONLY_TOOLS = "lookups, which only the format tools can express"
"""Why other formats leave out rollouts with calls to tool sources."""
DROPPED = "contents dropped from the context window, which only completion rows of text actions can express"
"""Why formats leave out rollouts whose model did not read one growing conversation."""
_BUILD: Mapping[Format, Callable[[Rollout], list[Row] | str]] = MappingProxyType(
    {"messages": _messages, "tools": _tools, "completion": _completion}
)


CARD = "README.md"
"""Name of the dataset card."""

_EXPLAINED: Mapping[Format, str] = {
    "messages": "A row is an episode. `messages` is the chat, in which the assistant writes the text of each action.",
    "tools": "A row is an episode. `messages` is the chat with tool calls, and `tools` holds the schemas of the tools.",
    "completion": "A row is one action. `prompt` is the chat before the action, and `completion` is the action.",
}


def write_hub_folder(
    rollouts: Iterable[Rollout],
    folder: str | PathLike[str],
    format: Format = "messages",
    *,
    selection: Selection | None = None,
) -> ExportSummary:
    """Write a dataset as a new folder that ``datasets.load_dataset(folder)`` loads.

    The folder contains ``data/train.jsonl`` and ``data/test.jsonl`` for the splits that have rows, and a dataset card
    that declares the columns.

    Args:
        rollouts: The rollouts.
        folder: The folder.
        format: One of `FORMATS`.
        selection: Which rollouts to use.

    Returns:
        The counts of the export.

    Raises:
        UnknownNameError: The format does not exist.
        RecordError: The folder cannot be written or is not empty, or no rollout is selected.
    """
    summary = ExportSummary()
    rows = export(rollouts, format, selection=selection, summary=summary)
    splits: Counter[str] = Counter()
    origins: dict[str, Counter[str]] = {name: Counter() for name in ("env_id", "agent")}
    with new_folder(Path(folder), RecordError) as part, ExitStack() as stack:
        (part / "data").mkdir()
        files: dict[str, BinaryIO] = {}
        for row in rows:
            split = str(row["split"])
            if split not in files:
                files[split] = stack.enter_context((part / "data" / f"{split}.jsonl").open("wb"))
            files[split].write(encodable(json.dumps(row, ensure_ascii=False)).encode() + b"\n")
            splits[split] += 1
            for name, counts in origins.items():
                counts[str(row[name])] += 1
        if not splits:
            raise RecordError("a dataset folder needs at least one example, and no rollout was selected")
        (part / CARD).write_text(_card(format, splits, origins, summary), "utf-8")
    return summary


def _card(format: Format, splits: Counter[str], origins: Mapping[str, Counter[str]], summary: ExportSummary) -> str:
    columns: list[Json] = [{"name": name, "list": "json"} for name in CHATS[format]]
    columns += [{"name": name, "dtype": kind} for name, kind in PROVENANCE.items()]
    files: list[Json] = [{"split": split, "path": f"data/{split}.jsonl"} for split in sorted(splits, reverse=True)]
    settings: dict[str, Json] = {
        "pretty_name": "Rollouts of fhir_gym",
        "language": ["en"],
        "task_categories": ["text-generation"],
        "tags": ["agents", "fhir", "reinforcement-learning"],
        "configs": [{"config_name": "default", "data_files": files}],
        "dataset_info": {"config_name": "default", "features": columns},
    }
    names = {"env_id": "Environments", "agent": "Agents"}
    listed = [
        f"- {names[name]}: {', '.join(map(markdown_text, sorted(versions)))}" for name, versions in origins.items()
    ]
    lines = [
        "---",
        *(f"{name}: {json.dumps(value)}" for name, value in settings.items()),  # JSON is YAML
        "---",
        "# Rollouts of fhir_gym",
        "",
        "Agents act on a FHIR R4 server. An automatic check graded each episode.",
        "",
        f"- Rows: {', '.join(f'{splits[split]:,} {split}' for split in sorted(splits, reverse=True))}",
        f"- Episodes: {summary.rollouts:,}",
        *listed,
        "",
        f"{_EXPLAINED[format]} `env_id`, `task`, `variation` and `phrasing` name the episode, so that it can be run",
        "again. `reward` and `success` are its result.",
        "",
        "The split `test` (variations 1000 and up) is for evaluation: do not train on it.",
        "",
    ]
    return "\n".join(lines)
