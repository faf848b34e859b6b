"""Read the answers of the evaluator and the reflector, which may be anything."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fhir_gym.agents.memory import find_operation
from fhir_gym.agents.memory.reflection import Operation
from fhir_gym.fhir.definitions import RESOURCE_TYPES
from fhir_gym.types import Json

MAX_MICRO, MAX_MACRO = 6, 3
"""Maximum numbers of lessons that are taken from one answer."""
_MAX_TRIES = 200
"""Maximum number of positions at which an object may start."""
_MAX_SHOWN = 4_000


class Critique(BaseModel):
    """The evaluator's judgement of an episode.

    Attributes:
        execution_quality: From 1 to 5: correct and economical use of the tools.
        constraint_adherence: From 1 to 5: whether the agent did what the task demands and forbids.
        failure_modes: A short phrase for each mistake.
        critique: The judgement in words.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    execution_quality: int = Field(ge=1, le=5)
    constraint_adherence: int = Field(ge=1, le=5)
    failure_modes: tuple[str, ...] = ()
    critique: str = Field(min_length=1)

    def text(self) -> str:
        """Return the judgement as the reflector reads it."""
        modes = "; ".join(self.failure_modes) or "none"
        return (
            f"execution quality {self.execution_quality} of 5, constraint adherence {self.constraint_adherence} of 5\n"
            f"failure modes: {modes}\n{self.critique}"
        )[:_MAX_SHOWN]


@dataclass(frozen=True, slots=True)
class Lesson:
    """A lesson as the reflector wrote it, before it is filtered.

    Attributes:
        resource_type: Resource type of a micro lesson; None for a macro lesson.
        operation: Operation of a micro lesson; None for a macro lesson.
    """

    text: str
    resource_type: str | None = None
    operation: Operation | None = None


@dataclass(slots=True)
class Lessons:
    """The lessons in an answer of the reflector.

    Attributes:
        lessons: The usable lessons; micro lessons come first.
        dropped: Why each of the other entries was dropped.
    """

    lessons: list[Lesson] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)


def parse_critique(text: str) -> Critique | str:
    """Return the critique in an answer, or what is wrong with the answer."""
    reply = _object_with(text, ("execution_quality", "critique"))
    if isinstance(reply, str):
        return reply
    try:
        return Critique.model_validate(reply)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def parse_lessons(text: str) -> Lessons | str:
    """Return the lessons in an answer, or what is wrong with the answer. A wrong entry is dropped, others are kept."""
    reply = _object_with(text, ("micro", "macro"))
    if isinstance(reply, str):
        return reply
    micro, macro = reply.get("micro") or [], reply.get("macro") or []
    if not isinstance(micro, list) or not isinstance(macro, list):
        return "micro and macro must be lists"
    result = Lessons()
    for entries, read, limit in ((micro, _micro, MAX_MICRO), (macro, _macro, MAX_MACRO)):
        kept = 0
        for entry in entries:
            lesson = "too many lessons" if kept == limit else read(entry)
            if isinstance(lesson, str):
                result.dropped.append(lesson)
            else:
                result.lessons.append(lesson)
                kept += 1
    return result


def _micro(entry: Json) -> Lesson | str:
    if not isinstance(entry, dict) or not _is_text(entry.get("lesson")):
        return "malformed"
    resource_type, operation = entry.get("resource_type"), find_operation(str(entry.get("operation")))
    if not isinstance(resource_type, str) or resource_type not in RESOURCE_TYPES:
        return "unknown resource type"
    return Lesson(entry["lesson"], resource_type, operation) if operation else "unknown operation"


def _macro(entry: Json) -> Lesson | str:
    text = entry.get("lesson") if isinstance(entry, dict) else entry
    return Lesson(text) if isinstance(text, str) and _is_text(text) else "malformed"


def _is_text(value: Json) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _object_with(text: str, keys: Iterable[str]) -> dict[str, Any] | str:
    """Return the last JSON object in a text that has one of the keys, or what is wrong."""
    decoder = json.JSONDecoder()
    at, longest = text.find("{"), None
    for _ in range(_MAX_TRIES):
        if at < 0:
            break
        end = at + 1
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and any(key in value for key in keys):
            longest = value
        at = text.find("{", end)
    return longest if longest is not None else f"it contains no JSON object with {' and '.join(keys)}"
