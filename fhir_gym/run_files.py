"""Find the rollout files of a folder, and name the runs in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

__all__ = ["folder_of_rollouts", "model_name", "names_by_settings", "rollout_files", "unique_names"]

_MAX_NAME = 40


def rollout_files(folder: Path, order: Sequence[str] = ()) -> list[Path]:
    """Return the rollout files that a folder stands for, such as the folder of an experiment.

    Args:
        folder: The folder.
        order: Names without suffix of the files that come first.
    """
    files = [file for file in folder_of_rollouts(folder).glob("*.jsonl") if not file.name.startswith(".")]
    return sorted(files, key=lambda file: (order.index(file.stem) if file.stem in order else len(order), file.stem))


def folder_of_rollouts(folder: Path) -> Path:
    """Return the subfolder ``rollouts`` of an experiment; another folder is returned itself."""
    return folder / "rollouts" if (folder / "rollouts").is_dir() else folder


def unique_names(names: Iterable[str]) -> list[str]:
    """Append numbers to equal names."""
    unique: list[str] = []
    for name in names:
        numbered = (name if number == 1 else f"{name} #{number}" for number in count(1))
        unique.append(next(numbered_name for numbered_name in numbered if numbered_name not in unique))
    return unique


def names_by_settings(runs: Sequence[tuple[str, Mapping[str, Any], Path]]) -> list[str]:
    """Name runs after agent, model and differing settings, and after the file if the name is not unique.

    Args:
        runs: Agent, settings and file of each run.
    """
    names = []
    for agent, own, _ in runs:
        same = [settings for other, settings, _ in runs if other == agent]
        differing = [key for key in sorted(own) if any(settings.get(key) != own[key] for settings in same)]
        shown = [f"{key}={_short(own[key])}" for key in differing if key != "model"]
        model = [model_name(own["model"])] if "model" in own else []
        names.append(" ".join([agent, *model, *shown]))
    if len(set(names)) < len(names):
        names = [f"{name} ({file.stem})" for name, (_, _, file) in zip(names, runs, strict=True)]
    return names


def model_name(name: Any) -> str:
    """Return a model's name; an absolute path is reduced to the name of its folder."""
    return _short(Path(name).name if isinstance(name, str) and Path(name).is_absolute() else name)


def _short(value: Any) -> str:
    """Return a setting as a short text; of nested settings, such as those of each tool, only the names."""
    if isinstance(value, dict):
        value = ",".join(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_NAME else "…" + text[1 - _MAX_NAME :]
