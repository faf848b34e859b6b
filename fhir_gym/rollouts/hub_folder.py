"""Write a dataset of rollouts as a folder for the Hugging Face Hub: one file per split and a dataset card."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from fhir_gym.errors import RecordError
from fhir_gym.files import new_folder
from fhir_gym.printable import encodable, markdown_text
from fhir_gym.rollouts.dataset import CHATS, PROVENANCE, ExportSummary, Format, Selection, export
from fhir_gym.rollouts.record import Rollout
from fhir_gym.types import Json

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
    listed = [f"- {names[name]}: {', '.join(map(markdown_text, sorted(found)))}" for name, found in origins.items()]
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
