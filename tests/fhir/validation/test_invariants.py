"""Invariants: all are evaluated, and functions that stand for FHIRPath give what FHIRPath gives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from fhir_gym.fhir.definitions import DATA_TYPES, RESOURCE_TYPES, Constraint, Element, children, constraints
from fhir_gym.fhir.validation import Issues, invariants
from fhir_gym.fhir.validation.invariants import in_order
from fhir_gym.fhir.validation.tree import Node, _Reader, read_tree

VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "integer": [0, 3],
    "unsignedInt": [0, 3],
    "positiveInt": [1, 3],
    "decimal": [-1, 2.5],
    "date": ["2020-01-02"],
    "dateTime": ["2020-01-02T10:00:00Z", "2020"],
    "instant": ["2020-01-02T10:00:00Z"],
    "time": ["10:00:00"],
    "code": ["C", "x"],
}
OTHER_VALUES: list[Any] = ["Name", "http://a.org/x"]


def paths() -> Iterator[str]:
    """Yield the types and backbone elements that have invariants."""
    for path in (*RESOURCE_TYPES, *DATA_TYPES):
        yield from _below(path)


def _below(path: str) -> Iterator[str]:
    if constraints(path):
        yield path
    for element in children(path).values():
        if element.content == element.path:
            yield from _below(element.content)


def drawn(path: str, rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """Draw an object with some of the elements of a path."""
    found: dict[str, Any] = {}
    chosen: set[str] = set()
    for element in children(path).values():
        if rng.random() < 0.4 or element.type == "Resource" or (element.choice or "") in chosen:
            continue
        if element.content:
            value: Any = drawn(element.content, rng, depth - 1) if depth else {}
        else:
            value = rng.choice(VALUES.get(element.type, OTHER_VALUES))
        if value != {}:
            found[element.name] = [value] * rng.choice((1, 2)) if element.many else value
            if element.choice:
                chosen.add(element.choice)
    return found


def nodes(path: str, number: int) -> Iterator[Node]:
    """Yield drawn elements of a path; a resource is one of its own, and all others are in a resource."""
    rng = random.Random(path)
    for _ in range(number):
        content, issues = drawn(path, rng), Issues(lambda _: None)
        kind = path.partition(".")[0]
        if path in RESOURCE_TYPES:
            root = read_tree({"resourceType": path, **content}, issues)
            assert root is not None
            yield root
            continue
        outer = kind if kind in RESOURCE_TYPES else "Basic"
        element = Element("it", kind, path, content=path)
        node = Node("it", kind, path, (), Node(outer, outer, outer, (), None, None), element)
        _Reader(issues).read_object(content, node, path)
        yield node


def evaluated(constraint: Constraint, node: Node) -> list[Any]:
    variables = {"resource": node.resource.json(), "rootResource": node.root.json()}
    result: list[Any] = invariants._compiled(invariants.expression_of(constraint))(invariants._typed(node), variables)
    return result


@pytest.mark.parametrize("number", [2, pytest.param(15, marks=pytest.mark.slow)])
def test_every_invariant_is_evaluated(number: int) -> None:
    """An exception would let a resource pass; none is due to what the library lacks."""
    seen = set()
    for path in paths():
        for constraint in constraints(path):
            if invariants.function_of(constraint) or constraint.key in invariants._SKIPPED:
                continue
            for node in nodes(path, number):
                seen.add(constraint.key)
                assert all(isinstance(value, bool) for value in evaluated(constraint, node)), constraint
    assert len(seen) == 164


@pytest.mark.parametrize("number", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_questions_about_presence_are_answered_as_by_fhirpath(number: int) -> None:
    seen = set()
    for path in paths():
        for constraint in constraints(path):
            function = invariants.presence(invariants.expression_of(constraint))
            if function is None or constraint.key in invariants.FUNCTIONS:
                continue
            for node in nodes(path, number):
                seen.add(constraint.key)
                assert [function(node)] == evaluated(constraint, node), (constraint, node.json())
    assert len(seen) == 48


@pytest.mark.parametrize("key", ["dom-2", "dom-4", "dom-5", "dom-6", "ref-1"])
def test_translated_invariants_agree_with_fhirpath(key: str) -> None:
    inner = [
        {"resourceType": "Patient", "id": "a"},
        {"resourceType": "Patient", "id": "b", "meta": {"versionId": "1"}},
        {"resourceType": "Patient", "id": "c", "meta": {"security": [{"code": "x"}]}},
        {"resourceType": "Patient", "id": "d", "contained": [{"resourceType": "Patient", "id": "e"}]},
    ]
    for number, reference in enumerate(["#a", "#gone", "Organization/1", "#d"]):
        text = {"text": {"status": "generated", "div": "<div/>"}} if number % 2 else {}
        resource = {"resourceType": "Patient", **text, "contained": inner[: number + 1]}
        root = read_tree({**resource, "managingOrganization": {"reference": reference}}, Issues(lambda _: None))
        assert root is not None
        node = root.find("managingOrganization") if key == "ref-1" else root
        assert node is not None
        constraint = next(c for c in constraints("Reference" if key == "ref-1" else "Patient") if c.key == key)
        assert [invariants.FUNCTIONS[key](node)] == evaluated(constraint, node)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("2020", "2021-05", True),
        ("2020-01", "2020-01-15", None),
        ("2020-01-15", "2020-01-15", True),
        ("2020-01-15", "2020-01-14", False),
        ("2020-01-01T10:00:00+02:00", "2020-01-01T09:00:00Z", True),
        ("2020-01-01T10:00:00Z", "2020-01-01T10:00:00.000Z", True),
        ("2020-01-01T10:00:00.5Z", "2020-01-01T10:00:00Z", False),
        ("2020-01-01", "2020-01-01T10:00:00Z", None),
        ("2019-12-31", "2020-01-01T10:00:00Z", True),
        ("0001-01-01T00:00:00+14:00", "2020", None),
        ("soon", "2020", None),
    ],
)
def test_times_are_compared_by_their_precision(first: str, second: str, expected: bool | None) -> None:
    assert in_order(first, second) is expected


def test_the_library_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """`trace()` in an expression would write to the standard output."""
    traced = [
        c
        for path in ("StructureDefinition", "Questionnaire.item")
        for c in constraints(path)
        if "trace" in c.expression
    ]
    assert traced
    for path in ("StructureDefinition", "Questionnaire.item"):
        for constraint in constraints(path):
            for node in nodes(path, 2):
                invariants.holds(constraint, node)
    assert capsys.readouterr().out == ""
