"""What a task wants between the parentheses of ``FINISH``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from fhir_gym.tasks.compare import parse_reference
from fhir_gym.types import Json

__all__ = ["AnswerForm", "Ids", "answer_id"]

_ID = re.compile(r"[A-Za-z0-9\-.]{1,64}\Z")


def answer_id(value: Json, resource_type: str, base_url: str = "") -> str | None:
    """The id an answer names: ``"12"``, ``12``, ``"Patient/12"`` or the absolute url; None if it names none.

    Args:
        value: One item of the answer.
        resource_type: The type that was asked for; a reference to another type is not an answer.
        base_url: The server's base.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return None
    text = value.strip()
    if _ID.match(text):
        return text
    found = parse_reference(text, base_url)
    return found[1] if found is not None and found[0] == resource_type else None


class AnswerForm(Protocol):
    """Says whether an answer has the form the prompt names, whatever its content."""

    @property
    def words(self) -> str:
        """The form in words, for checks and documents."""
        ...

    def problem(self, answer: list[Json] | None, base_url: str) -> str | None:
        """What is wrong with the form of an answer; None if nothing is."""
        ...


@dataclass(frozen=True, slots=True)
class Ids:
    """A list with one id for each type, in that order.

    Attributes:
        types: The resource types.
        or_empty: Whether the empty list is an answer too ("there is none").
    """

    types: tuple[str, ...]
    or_empty: bool = False

    @property
    def words(self) -> str:
        """The form in words."""
        ids = ", ".join(f"{resource_type} id" for resource_type in self.types)
        return f"[{ids}]" + (" or []" if self.or_empty else "")

    def problem(self, answer: list[Json] | None, base_url: str) -> str | None:
        """What is wrong with the form of an answer; None if nothing is."""
        if answer is None:
            return "the episode ended without FINISH"
        if not answer and self.or_empty:
            return None
        if len(answer) != len(self.types):
            return f"{len(answer)} items"
        wrong = [
            item for item, wanted in zip(answer, self.types, strict=True) if answer_id(item, wanted, base_url) is None
        ]
        return f"no id: {wrong[0]!r}" if wrong else None
