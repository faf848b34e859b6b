"""Slots: the rules that fill one leaf of an action from the prompt or from the server's answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

Value = str | int | float | bool | None
"""The value of one leaf."""


@dataclass(frozen=True, eq=False)
class Slot:
    """A rule that fills one leaf.

    Attributes:
        kind: ``const``, ``text``, ``word_value``, ``reference``, ``date``, ``number``, ``pointer``, ``total``,
            ``count``, ``ids`` or ``refs``.
        args: Arguments of the kind, such as an index or a pattern.
        prefix: Constant text before the value, such as ``ge`` or ``http://loinc.org|``.
        capital: Whether the first letter of the value becomes a capital.
    """

    kind: str
    args: tuple[Any, ...] = ()
    prefix: str = ""
    capital: bool = False

    @cached_property
    def name(self) -> str:
        """A text that is equal for equal slots only."""
        return json.dumps([self.kind, self.args, self.prefix, self.capital], ensure_ascii=False, default=repr)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slot) and self.name == other.name  # 1 and true are equal in Python only

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.name)

    @cached_property
    def dynamic(self) -> bool:
        """Whether the value depends on the server's answers."""
        return self.kind in ("pointer", "total", "count", "ids", "refs")

    def write(self, value: Any) -> Any:
        """Return the value with the prefix and the capital letter."""
        if isinstance(value, str):
            if self.capital:
                value = value[:1].upper() + value[1:]
            return self.prefix + value
        return value

    @property
    def description(self) -> str:
        """The kind, the arguments and the prefix as a short text."""
        return " ".join([*([self.prefix] if self.prefix else []), self.kind, *map(str, self.args)])

    def dump(self) -> list[Any]:
        """Return the slot as JSON data."""
        return [self.kind, _plain(self.args), self.prefix, self.capital]

    @classmethod
    def load(cls, data: list[Any]) -> Self:
        """Return the slot of JSON data."""
        kind, args, prefix, capital = data
        return cls(str(kind), _tuples(args), str(prefix), bool(capital))


@dataclass(frozen=True)
class Variable:
    """A pointer that a template leaves open.

    Attributes:
        type: The type of the resource that is pointed to, or that holds the reference.
        path: Path of the reference in the resource; empty for a pointer to the resource itself.
        target: The type that the reference refers to; empty for a pointer to the resource itself.
    """

    type: str
    path: str = ""
    target: str = ""

    def __hash__(self) -> int:
        return hash(self.name)

    @cached_property
    def name(self) -> str:
        """A text that is equal for equal variables only."""
        return f"{self.type}.{self.path}:{self.target}" if self.path else self.type


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
