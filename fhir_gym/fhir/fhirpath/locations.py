"""Find the values in a resource that the paths of a FHIRPath Patch select.

The supported paths consist of element names (for a choice, its stem), indexers, `where`, `first`, `single`, `last`,
`ofType`, `as` and `extension`. Criteria may also contain `exists`, `empty`, ``=``, ``!=``, ``and`` and ``or``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET, Element, children
from fhir_gym.fhir.fhirpath.parser import (
    Call,
    Chain,
    Equality,
    Expression,
    Invocation,
    Literal,
    Logic,
    Member,
    PathError,
    Position,
    parse_alternatives,
)
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.types import Json, Resource

_MAX_CHARS = 2_000


@dataclass(slots=True)
class PatchBudget:
    """The number of values that all paths of a patch together may visit; parsing the paths counts too."""

    left: int = 500_000

    def spend(self, values: int) -> None:
        """Count visited values; refuse a patch that visits too many."""
        self.left -= values
        if self.left < 0:
            raise FhirError(400, "This patch is too costly for this server: it looks at too many values")


@dataclass(slots=True)
class Node:
    """A value in a resource and its place.

    `holder` is the object that has the value in its property `name`; `position` is the index if the property is a list.
    """

    value: Json
    budget: PatchBudget
    content: str
    holder: dict[str, Any] | None = None
    name: str = ""
    position: int | None = None
    element: Element | None = None


Step: TypeAlias = Callable[[list[Node]], list[Node]]


@dataclass(frozen=True, slots=True)
class PatchPath:
    """A compiled path.

    `member` is the name of the last step, if that step is an element name.
    """

    steps: tuple[Step, ...]
    member: str | None = None


def root(resource: Resource, budget: PatchBudget) -> Node:
    """Return the node of a whole resource."""
    return Node(resource, budget, resource["resourceType"])


def evaluate(steps: tuple[Step, ...], start: Node) -> list[Node]:
    """Return the nodes to which a path leads."""
    nodes = [start]
    for step in steps:
        start.budget.spend(1 + len(nodes))
        nodes = step(nodes)
    return nodes


# steps


def _members(node: Node, name: str) -> list[Node]:
    """Return the values of a node's property; for a choice, `name` may be the stem."""
    if not isinstance(node.value, dict) or not node.content:
        return []
    nodes: list[Node] = []
    for key, element in _named(node, name):
        value = node.value.get(key)
        if isinstance(value, list):
            nodes += [
                Node(item, node.budget, _content(element, item), node.value, key, position, element)
                for position, item in enumerate(value)
            ]
        elif value is not None:
            nodes.append(Node(value, node.budget, _content(element, value), node.value, key, None, element))
    node.budget.spend(len(nodes))
    return nodes


def _named(node: Node, name: str) -> list[tuple[str, Element]]:
    elements = children(node.content)
    if name in elements:
        return [(name, elements[name])]
    return [(key, element) for key, element in elements.items() if element.choice == name and key in node.value]


def _content(element: Element, value: Json) -> str:
    if element.content != "Resource":
        return element.content
    kind = value.get("resourceType") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) and kind in RESOURCE_TYPE_SET else ""


def _start(name: str) -> Step:
    """Return the step for the first name of a path: the resource's type or one of its elements."""

    def step(nodes: list[Node]) -> list[Node]:
        if name in RESOURCE_TYPE_SET:
            return [node for node in nodes if node.content == name]
        return [inner for node in nodes for inner in _members(node, name)]

    return step


def _member(name: str) -> Step:
    return lambda nodes: [inner for node in nodes for inner in _members(node, name)]


def _at(position: int) -> Step:
    return lambda nodes: nodes[position : position + 1]


def _last(nodes: list[Node]) -> list[Node]:
    return nodes[-1:]


def _of_type(name: str) -> Step:
    lower = name[0].lower() + name[1:]
    return lambda nodes: [n for n in nodes if n.element is not None and n.element.type in (name, lower)]


def _extension(url: str) -> Step:
    return lambda nodes: [
        inner
        for node in nodes
        for inner in _members(node, "extension")
        if isinstance(inner.value, dict) and inner.value.get("url") == url
    ]


# criteria


Test: TypeAlias = Callable[[Node], bool]
Values: TypeAlias = Callable[[Node], list[Json]]


def _where(test: Test) -> Step:
    return lambda nodes: [node for node in nodes if test(node)]


def _equal(value: Json, other: Json) -> bool:
    """Return whether scalars are equal; codes, dates and strings compare as text, numbers by value."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    return bool(value == other)


def _compare(left: Values, right: Values, *, equal: bool) -> Test:
    def test(node: Node) -> bool:
        ours, theirs = left(node), right(node)
        if not ours or not theirs:
            return False
        same = len(ours) == len(theirs) and all(map(_equal, ours, theirs))
        return same is equal

    return test


def _truth(values: Values) -> Test:
    """Return the test for a criterion without a comparison. The test passes if a value exists and is not false."""

    def test(node: Node) -> bool:
        results = values(node)
        return bool(results) and results[0] is not False

    return test


# compiling


def parse_path(text: str) -> PatchPath:
    """Parse and compile a path.

    Raises:
        PathError: The path is invalid or unsupported.
    """
    if len(text) > _MAX_CHARS:
        raise PathError(f"longer than {_MAX_CHARS} characters")
    alternatives = parse_alternatives(text)
    chain = alternatives[0][0]
    if len(alternatives) > 1 or not isinstance(chain, Chain):
        raise PathError(f"{text} is not a path")
    last = chain.invocations[-1] if chain.invocations else None
    return PatchPath(_chain(chain), last.name if isinstance(last, Member) else None)


def _chain(chain: Chain) -> tuple[Step, ...]:
    if chain.start is not None:
        raise PathError("parentheses are not supported here")
    return tuple(
        _step(invocation, first=not number and not chain.this) for number, invocation in enumerate(chain.invocations)
    )


def _step(invocation: Invocation, *, first: bool) -> Step:
    match invocation:
        case Member(name):
            return _start(name) if first else _member(name)
        case Position(number):
            return _at(number)
        case Call("where", criterion) if criterion is not None:
            return _where(_test(criterion))
        case Call("first" | "single", None):
            return _at(0)
        case Call("last", None):
            return _last
        case Call("ofType" | "as", Chain((Member(name),), None, False)):
            return _of_type(name)
        case Call("extension", Literal(str(url))):
            return _extension(url)
    raise PathError(f"{invocation} is not supported here")


def _test(expression: Expression) -> Test:
    match expression:
        case Logic(operator, operands):
            tests = [_test(operand) for operand in operands]
            combine = any if operator == "or" else all
            return lambda node: combine(test(node) for test in tests)
        case Equality(left, right, equal):
            return _compare(_values(left), _values(right), equal=equal)
    return _truth(_values(expression))


def _values(expression: Expression) -> Values:
    """Return a function that evaluates a literal or a path; the path may end in `exists()` or `empty()`."""
    match expression:
        case Literal(value):
            return lambda _node: [value]
        case Chain((*invocations, Call("exists" | "empty" as name, None)), None):
            steps = _chain(Chain(tuple(invocations), this=expression.this))
            return lambda node: [bool(evaluate(steps, node)) is (name == "exists")]
        case Chain():
            path = _chain(expression)
            return lambda node: [child.value for child in evaluate(path, node)]
    raise PathError("this form of expression is not supported here")
