"""Compile the FHIRPath expressions of search parameters to JSON paths with types.

The compiler supports paths, ``[0]``, ``as`` and ``.as()``, ``where(name='text')``, ``where(resolve() is Type)`` and the
only expression of the form ``X.exists() and X != false``. The FHIR definitions give the type at the end of each path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cache

from fhir_gym.fhir.definitions import children
from fhir_gym.fhir.fhirpath.parser import (
    Call,
    Chain,
    Equality,
    Expression,
    Literal,
    Logic,
    Member,
    PathError,
    Position,
    TypeTest,
    parse_alternatives,
)

_BESIDE_PATH = re.compile(r"\.where\(resolve\(\) is \w+\)|\.exists\(\) and .*")


@dataclass(frozen=True, slots=True)
class PathStep:
    """One step of a path.

    Attributes:
        key: The JSON property.
        first: Whether the path continues only from the first value (``[0]``).
        where: ``(property, text)``: the path continues only from values with this text in this property.
    """

    key: str
    first: bool = False
    where: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class SearchPath:
    """The path from a resource to an indexed element.

    Attributes:
        type: The FHIR type of the element.
        content: The type or path with which `definitions.children` returns the elements of its value; empty for a
            primitive value.
        system: The code system of a bound code.
        target: The type that a reference must point to; None if the expression does not restrict it.
        truth: Whether the index stores a boolean instead of the value: true if the value exists and is not false.
        many: Whether a resource may have several values.
        source: The text of this alternative of the expression, without its ``resolve()`` part.
    """

    steps: tuple[PathStep, ...]
    type: str
    content: str
    system: str | None = None
    target: str | None = None
    truth: bool = False
    many: bool = False
    source: str = field(default="", compare=False)


@cache
def compile_expression(expression: str, root: str) -> tuple[SearchPath, ...]:
    """Compile an expression about one resource type.

    Raises:
        PathError: The expression is invalid or unsupported.
    """
    return _compile(expression, SearchPath((), root, root), relative=False)


def compile_below(expression: str, base: SearchPath) -> tuple[SearchPath, ...]:
    """Compile an expression that starts at a path, such as the expression of a composite's component."""
    return _compile(expression, base, relative=True)


def _compile(expression: str, start: SearchPath, *, relative: bool) -> tuple[SearchPath, ...]:
    paths: dict[SearchPath, None] = {}
    for alternative, text in parse_alternatives(expression):
        source = _BESIDE_PATH.sub("", text)
        for path in _alternative(alternative, start, relative=relative):
            paths[replace(path, source=source)] = None
    return tuple(paths)


def _alternative(expression: Expression, start: SearchPath, *, relative: bool) -> list[SearchPath]:
    match expression:
        case TypeTest(operand, "as", type_):
            return [path for path in _alternative(operand, start, relative=relative) if path.type == type_]
        case Logic("and", (Chain((*steps, Call("exists", None))), Equality(Chain() as value, Literal(False), False))):
            if value == Chain(tuple(steps)):
                return [replace(path, truth=True) for path in _alternative(value, start, relative=relative)]
        case Chain(invocations, None, False):
            if relative:
                paths = [start]
            elif invocations[0] == Member(start.type):
                paths, invocations = [start], invocations[1:]
            else:
                raise PathError(f"a path of {start.type} starts with {start.type}")
            return _follow(paths, invocations)
        case Chain(invocations, inner, False) if inner is not None:
            return _follow(_alternative(inner, start, relative=relative), invocations)
    raise PathError("this form of expression is not supported in search parameters")


def _follow(paths: list[SearchPath], invocations: tuple[Member | Position | Call, ...]) -> list[SearchPath]:
    for invocation in invocations:
        match invocation:
            case Member(name):
                paths = [child for path in paths for child in _enter(path, name)]
                if not paths:
                    raise PathError(f"there is no element {name!r}")
            case Position(0):
                paths = [_with_last_step(path, first=True) for path in paths]
            case Call("as", Chain((Member(type_),))):
                paths = [path for path in paths if path.type == type_]
            case Call("where", TypeTest(Chain((Call("resolve", None),)), "is", type_)):
                paths = [replace(path, target=type_) for path in paths]
            case Call("where", Equality(Chain((Member(name),)), Literal(str(text)), True)):
                paths = [_with_last_step(path, where=(name, text)) for path in paths]
            case _:
                raise PathError(f"{invocation} is not supported in search parameters")
    return paths


def _with_last_step(path: SearchPath, *, first: bool = False, where: tuple[str, str] | None = None) -> SearchPath:
    last = path.steps[-1]
    step = PathStep(last.key, first=last.first or first, where=where or last.where)
    return replace(path, steps=(*path.steps[:-1], step))


def _enter(path: SearchPath, name: str) -> list[SearchPath]:
    """Return the path to the element with this name; for a choice, return the paths to all its types."""
    if not path.content:
        return []
    elements = [e for e in children(path.content).values() if name in (e.name, e.choice)]
    return [
        SearchPath((*path.steps, PathStep(e.name)), e.type, e.content, system=e.system, many=path.many or e.many)
        for e in elements
    ]
