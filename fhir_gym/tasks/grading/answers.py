"""Forms of the answer in ``FINISH(…)``.

A form validates an answer (`AnswerForm.problem`). `FinishedEpisode` extracts the content of the answer (`answer_ids`,
`answer_id_set`, `answer_count`) and accepts all spellings of ids and numbers.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import override

from fhir_gym.tasks.grading.comparison import parse_reference, plain
from fhir_gym.types import Json

_ID = re.compile(r"[A-Za-z0-9\-.]{1,64}\Z")
_NUMBER = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,30})?\Z")
_UNFINISHED = "the episode ended without FINISH"


def answer_id(value: Json, resource_type: str, base_url: str = "") -> str | None:
    """Extract an id from ``"12"``, ``12``, ``"Patient/12"`` or an absolute URL; None for other values.

    Args:
        value: One item of the answer.
        resource_type: The requested resource type. References to other types are not accepted.
        base_url: Base URL of the server.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return None
    text = value.strip()
    if _ID.match(text):
        return text
    reference = parse_reference(text, base_url)
    return reference[1] if reference is not None and reference[0] == resource_type else None


def answer_number(value: Json) -> float | None:
    """Read a number: ``3.1`` or ``"3.1"``; None for other values."""
    if isinstance(value, str) and _NUMBER.match(value.strip()):
        return float(value) if "." in value else int(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def answer_count(value: Json) -> int | None:
    """Read a count: ``3``, ``3.0``, ``"3"`` or ``"3.0"``; None for other values."""
    number = answer_number(value)
    return None if number is None or number < 0 or number != number // 1 else int(number)


def answer_flag(value: Json) -> bool | None:
    """Read a boolean: ``true`` or ``"true"``; None for other values."""
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.strip().casefold())
    return value if isinstance(value, bool) else None


class AnswerForm(Protocol):
    """The form that a task requests for the answer. It validates the form, not the content."""

    @property
    def description(self) -> str:
        """A description of the form for checks and documentation."""
        ...

    def problem(self, answer: list[Json] | None, base_url: str) -> str | None:
        """Return why an answer does not have this form; None if the answer has it."""
        ...


class _Form(AnswerForm, ABC):
    @override
    def problem(self, answer: list[Json] | None, base_url: str) -> str | None:
        return _UNFINISHED if answer is None else self._problem(answer, base_url)

    @abstractmethod
    def _problem(self, answer: list[Json], base_url: str) -> str | None: ...


@dataclass(frozen=True, slots=True)
class IdAnswer(_Form):
    """One id for each of the types, in the order of the types.

    Attributes:
        types: The resource types.
        or_empty: Whether the empty list, which means "there is none", is also valid.
    """

    types: tuple[str, ...]
    or_empty: bool = False

    @property
    @override
    def description(self) -> str:
        ids = ", ".join(f"{resource_type} id" for resource_type in self.types)
        return f"[{ids}]" + (" or []" if self.or_empty else "")

    @override
    def _problem(self, answer: list[Json], base_url: str) -> str | None:
        if not answer and self.or_empty:
            return None
        if len(answer) != len(self.types):
            return f"{len(answer)} items"
        wrong = [
            item for item, type_ in zip(answer, self.types, strict=True) if answer_id(item, type_, base_url) is None
        ]
        return f"no id: {wrong[0]!r}" if wrong else None


@dataclass(frozen=True, slots=True)
class IdSetAnswer(_Form):
    """Any number of distinct ids of one type, in any order; the empty list means "there are none".

    Attributes:
        type: The resource type.
    """

    type: str

    @property
    @override
    def description(self) -> str:
        return f"[{self.type} ids in any order] or []"

    @override
    def _problem(self, answer: list[Json], base_url: str) -> str | None:
        ids = [answer_id(item, self.type, base_url) for item in answer]
        if None in ids:
            return f"no id: {answer[ids.index(None)]!r}"
        twice = [id for id, count in Counter(ids).items() if count > 1]
        return f"{twice[0]} twice" if twice else None


@dataclass(frozen=True, slots=True)
class CountAnswer(_Form):
    """One integer, 0 or greater."""

    @property
    @override
    def description(self) -> str:
        return "[number]"

    @override
    def _problem(self, answer: list[Json], base_url: str) -> str | None:
        if len(answer) != 1:
            return f"{len(answer)} items"
        return None if answer_count(answer[0]) is not None else f"no number from 0: {answer[0]!r}"


@dataclass(frozen=True, slots=True)
class CountedIdsAnswer(_Form):
    """A count, followed by that many distinct ids of one type in any order; ``[0]`` means "there are none".

    The task checks that the count equals the number of ids.

    Attributes:
        type: The resource type.
    """

    type: str

    @property
    @override
    def description(self) -> str:
        return f"[number, {self.type} ids in any order] or [0]"

    @override
    def _problem(self, answer: list[Json], base_url: str) -> str | None:
        if not answer:
            return "0 items"
        if answer_count(answer[0]) is None:
            return f"no number from 0: {answer[0]!r}"
        return IdSetAnswer(self.type).problem(answer[1:], base_url)


@dataclass(frozen=True, slots=True)
class EmptyAnswer(_Form):
    """The empty list, for tasks without an answer."""

    @property
    @override
    def description(self) -> str:
        return "[]"

    @override
    def _problem(self, answer: list[Json], base_url: str) -> str | None:
        return f"{len(answer)} items" if answer else None


_LETTERED = re.compile(r"\s*(?:request\s+)?([A-Za-z])\s*[:.)=-]\s*(.*\S)\s*\Z", re.IGNORECASE | re.DOTALL)


def answers_by_letter(answer: Sequence[Json] | None) -> dict[str, str]:
    """Return the texts of a lettered answer by upper-case letter, in lower case and without a final full stop.

    Unreadable items are left out, and so are further items with the same letter.
    """
    answers: dict[str, str] = {}
    for item in answer or ():
        match = _LETTERED.match(item) if isinstance(item, str) else None
        if match:
            answers.setdefault(match[1].upper(), plain(match[2]).rstrip(".").casefold())
    return answers


@dataclass(frozen=True, slots=True)
class LetteredAnswer(_Form):
    """One text for each request, which starts with the letter of the request (``"A: done"``), in any order.

    The task checks which letters are answered, and the texts.
    """

    @property
    @override
    def description(self) -> str:
        return '["A: …", "B: …"] in any order'

    @override
    def _problem(self, answer: list[Json], base_url: str) -> str | None:
        read: set[str] = set()
        for item in answer:
            match = _LETTERED.match(item) if isinstance(item, str) else None
            if match is None:
                return f"no letter and text: {item!r}"
            if match[1].upper() in read:
                return f"{match[1].upper()} twice"
            read.add(match[1].upper())
        return None
