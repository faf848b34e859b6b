"""Parse FHIRPath expressions, as used in search parameters and in FHIRPath Patch, to syntax trees."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from fhir_gym.types import Json

_MAX_DEPTH = 20
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<name>[A-Za-z_]\w*|`[^`]+`|\$this)
    | (?P<string>'(?:[^'\\]|\\.)*')
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<date>@[0-9T:.+\-Z]+)
    | (?P<sign>!=|[.=()\[\],|])
    )""",
    re.VERBOSE,
)


class PathError(ValueError):
    """An expression that is invalid, unsupported, or names unknown elements."""


@dataclass(frozen=True, slots=True)
class Member:
    """An element name."""

    name: str


@dataclass(frozen=True, slots=True)
class Position:
    """An indexer: ``[0]``."""

    number: int


@dataclass(frozen=True, slots=True)
class Call:
    """A function call with at most one argument."""

    name: str
    argument: Expression | None


Invocation: TypeAlias = Member | Position | Call


@dataclass(frozen=True, slots=True)
class Chain:
    """A path: a start and the steps from there.

    It starts at an expression in parentheses (`start`), at ``$this`` (if `this` is true) or at the context.
    """

    invocations: tuple[Invocation, ...]
    start: Expression | None = None
    this: bool = False


@dataclass(frozen=True, slots=True)
class Literal:
    """A boolean, string, number or date (as text)."""

    value: Json


@dataclass(frozen=True, slots=True)
class Equality:
    """``left = right`` or ``left != right``."""

    left: Expression
    right: Expression
    equal: bool


@dataclass(frozen=True, slots=True)
class TypeTest:
    """``operand is Type`` or ``operand as Type``."""

    operand: Expression
    operator: str
    type: str


@dataclass(frozen=True, slots=True)
class Logic:
    """Operands joined by ``and`` or ``or``."""

    operator: str
    operands: tuple[Expression, ...]


Expression: TypeAlias = Chain | Literal | Equality | TypeTest | Logic


def parse_alternatives(text: str) -> list[tuple[Expression, str]]:
    """Parse expressions joined by ``|``; return each with its text.

    Raises:
        PathError: The text is not valid.
    """
    return _Parser(text).alternatives()


class _Parser:
    """A recursive descent parser over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self._tokens: list[tuple[str, str]] = []
        self._ends = [0]
        position = 0
        while position < len(self._text):
            match = _TOKEN.match(self._text, position)
            if match is None or match.lastgroup is None:
                raise PathError(f"unexpected character at {position} in {text!r}")
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            position = match.end()
            self._ends.append(position)
        self._next = 0
        self._depth = 0

    def alternatives(self) -> list[tuple[Expression, str]]:
        parsed = []
        while True:
            start = self._ends[self._next]
            expression = self._logic("or")
            parsed.append((expression, self._text[start : self._ends[self._next]].strip()))
            if not self._accept("|"):
                break
        if self._next < len(self._tokens):
            raise PathError(f"unexpected {self._peek()!r} in {self._text!r}")
        return parsed

    def _logic(self, operator: str) -> Expression:
        operands = []
        while True:
            operands.append(self._logic("and") if operator == "or" else self._comparison())
            if not self._accept(operator):
                break
        return operands[0] if len(operands) == 1 else Logic(operator, tuple(operands))

    def _comparison(self) -> Expression:
        left = self._type_test()
        if self._peek() not in ("=", "!="):
            return left
        equal = self._take() == "="
        return Equality(left, self._type_test(), equal)

    def _type_test(self) -> Expression:
        operand = self._operand()
        if self._peek() in ("is", "as"):
            return TypeTest(operand, self._take(), self._take("name"))
        return operand

    def _operand(self) -> Expression:
        kind, text = self._tokens[self._next] if self._next < len(self._tokens) else ("", "")
        if kind == "sign" and text == "(":
            return self._chain(self._parenthesised())
        if kind == "name" and text not in ("true", "false"):
            return self._chain(None)
        self._take()
        match kind:
            case "name":
                return Literal(text == "true")
            case "string":
                return Literal(re.sub(r"\\(.)", r"\1", text[1:-1]))
            case "number":
                return Literal(float(text) if "." in text else int(text))
            case "date":
                return Literal(text[1:])
        raise PathError(f"unexpected {text!r} in {self._text!r}")

    def _parenthesised(self) -> Expression:
        self._take(text="(")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise PathError("nested too deeply")
        inner = self._logic("or")
        self._depth -= 1
        self._take(text=")")
        return inner

    def _chain(self, start: Expression | None) -> Chain:
        invocations: list[Invocation] = []
        this = start is None and self._accept("$this")
        if start is None and not this:
            invocations.append(self._invocation())
        while self._peek() in (".", "["):
            if self._take() == ".":
                invocations.append(self._invocation())
                continue
            number = self._take("number")
            if not number.isdecimal():
                raise PathError(f"{number} is not a position")
            invocations.append(Position(int(number)))
            self._take(text="]")
        return Chain(tuple(invocations), start, this)

    def _invocation(self) -> Invocation:
        name = self._take("name").strip("`")
        if self._peek() != "(":
            return Member(name)
        if self._next + 1 < len(self._tokens) and self._tokens[self._next + 1][1] == ")":
            self._next += 2
            return Call(name, None)
        return Call(name, self._parenthesised())

    def _peek(self) -> str:
        return self._tokens[self._next][1] if self._next < len(self._tokens) else ""

    def _accept(self, text: str) -> bool:
        is_next = self._peek() == text
        self._next += is_next
        return is_next

    def _take(self, kind: str = "", text: str = "") -> str:
        if self._next >= len(self._tokens):
            raise PathError(f"{self._text!r} ends too early")
        found_kind, token = self._tokens[self._next]
        if (kind and found_kind != kind) or (text and token != text):
            raise PathError(f"unexpected {token!r} in {self._text!r}")
        self._next += 1
        return token
