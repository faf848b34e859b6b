"""Check the class attributes that every task must define."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fhir_gym.errors import TaskError


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_is_text, value))


_REQUIRED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "key": (lambda value: _is_text(value) and value != "", "a non-empty string"),
    "title": (_is_text, "a string"),
    "category": (_is_text, "a string"),
    "difficulty": (lambda value: value in (1, 2, 3), "1, 2 or 3"),
    "kind": (lambda value: value in ("query", "action"), "'query' or 'action'"),
    "required_tools": (
        lambda value: isinstance(value, tuple) and all(map(_are_texts, value)),
        "a tuple of tuples of tool names",
    ),
    "required_resources": (_are_texts, "a tuple of resource types"),
    "prohibited_tools": (_are_texts, "a tuple of tool names"),
    "prompts": (lambda value: _are_texts(value) and value != (), "a tuple of at least one string"),
    "answer_instructions": (_is_text, "a string"),
    "answer": (
        lambda value: callable(getattr(value, "problem", None)),
        "an answer form, such as IdAnswer(('Patient',))",
    ),
    "brief": (lambda value: value is None or (_is_text(value) and value != ""), "a non-empty string or None"),
    "gold_steps": (lambda value: isinstance(value, int) and value > 0, "a positive integer"),
}


def require_attributes(task: type[Any]) -> None:
    """Check the class attributes of a task class.

    Raises:
        TaskError: An attribute is missing or has an invalid value.
    """
    missing = [name for name in _REQUIRED if not hasattr(task, name)]
    if missing:
        raise TaskError(
            f"task class {task.__name__} must define {', '.join(missing)} (base classes pass abstract=True)"
        )
    for name, (is_valid, wanted) in _REQUIRED.items():
        value = getattr(task, name)
        if not is_valid(value):
            raise TaskError(f"{name} of task class {task.__name__} must be {wanted}, not {value!r}")
