"""Read the summary and the named sections of a task's docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from fhir_gym.tasks.core.task import Task

SECTIONS = ("Starting state", "Decoys", "Checks", "Light")
"""Sections of every task's docstring; a section about differences from the published benchmark follows them."""

_HEAD = re.compile(r"([A-Z][A-Za-z- ]+): (.*)")


def summary(task: Task[Any]) -> str:
    """Return the first paragraph of a task's docstring."""
    lines = _text(task)
    return " ".join(lines[: lines.index("")] if "" in lines else lines)


def sections(task: Task[Any]) -> Mapping[str, str]:
    """Return the text of each section of a task's docstring."""
    lines_by_section: dict[str, list[str]] = {}
    name = ""
    for line in _text(task)[1:]:
        head = _HEAD.match(line)
        if head:
            name = head[1]
            lines_by_section[name] = [head[2]]
        elif name and line.strip():
            lines_by_section[name].append(line.strip())
    return {name: " ".join(lines) for name, lines in lines_by_section.items()}


def _text(task: Task[Any]) -> list[str]:
    return (inspect.getdoc(type(task)) or "").splitlines()
