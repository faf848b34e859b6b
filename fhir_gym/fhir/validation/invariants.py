"""Invariants: those that nearly every element has as functions, all others by FHIRPath, with its comparisons."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any

from fhir_gym.fhir.definitions import Constraint
from fhir_gym.fhir.validation.report import Issues, Severity
from fhir_gym.fhir.validation.tree import Node
from fhir_gym.fhir.validation.xhtml import has_content, is_basic

_STRUCTURE = "http://hl7.org/fhir/StructureDefinition"
_ELE_1 = Constraint("ele-1", "error", "All FHIR elements must have a @value or children", "", f"{_STRUCTURE}/Element")
_EXT_1 = Constraint(
    "ext-1", "error", "Must have either extensions or value[x], not both", "", f"{_STRUCTURE}/Extension"
)
_TERM = re.compile(r"(\w+)\.(exists|empty)\(\)")
_LOOKS_AROUND = re.compile(r"%context\.|%resource\.\w+\.\w")
_STEPS_OF_AN_EVALUATION = 1_500
_STEPS_OF_AN_ELEMENT = 10
_SHOWN_IDS = 20
_SKIPPED = frozenset({"dom-3", "con-3"})
"""`references.check_orphans` checks dom-3. con-3 compares a concept with a text, which HAPI finds always true."""

_CORRECTED = {
    "que-12": "enableWhen.count() >= 2 implies enableBehavior.exists()",
    "ras-2": "probability.empty() or ((probability is decimal) implies ((probability as decimal) <= 100))",
    "bdl-8": "fullUrl.exists() implies fullUrl.contains('/_history/').not()",
    "name.matches('[A-Z]([A-Za-z0-9_]){0,254}')": "name.exists() implies name.matches('^[A-Z]([A-Za-z0-9_]){0,254}$')",
}
"""Expressions that R4 published with errors, by their key or text, as HL7 and HAPI correct them."""


def _has_content(node: Node) -> bool:
    """Return whether there is more than an id; an object that is empty is reported when it is read."""
    if node.text or (node.content and not node.children):
        return True
    return any(child.name != "id" or child.content for child in node.children)


def _is_value_or_parts(node: Node) -> bool:
    return bool(node.find_all("extension")) != (node.find("value") is not None)


def _leads_to_contained(node: Node) -> bool:
    reference = node.text_of("reference") or ""
    return not reference.startswith("#") or reference == "#" or reference[1:] in node.root.contained


def _contained_has_no(*path: str) -> Callable[[Node], bool]:
    def check(node: Node) -> bool:
        nodes = node.find_all("contained")
        for name in path:
            nodes = [inner for outer in nodes for inner in outer.find_all(name)]
        return not nodes

    return check


def _has_narrative(node: Node) -> bool:
    if node.name == "contained":
        return True
    text = node.find("text")
    return text is not None and text.find("div") is not None


def _in_order(first: str, second: str) -> Callable[[Node], bool]:
    """Return the check that a time is not after another; as in HAPI, it fails if their precision leaves this open."""

    def check(node: Node) -> bool:
        start, end = node.text_of(first), node.text_of(second)
        return start is None or end is None or bool(in_order(start, end))

    return check


def _range_in_order(node: Node) -> bool:
    low, high = node.find("low"), node.find("high")
    return low is None or high is None or quantities_in_order(low, high)


def _offset_fits(node: Node) -> bool:
    events = {event.text for event in node.find_all("when")}
    return node.find("offset") is None or bool(events - _MEALS)


_MEALS = frozenset({"C", "CM", "CD", "CV"})

FUNCTIONS: Mapping[str, Callable[[Node], bool]] = {
    "ele-1": _has_content,
    "ext-1": _is_value_or_parts,
    "ref-1": _leads_to_contained,
    "dom-2": _contained_has_no("contained"),
    "dom-4": lambda node: (
        _contained_has_no("meta", "versionId")(node) and _contained_has_no("meta", "lastUpdated")(node)
    ),
    "dom-5": _contained_has_no("meta", "security"),
    "dom-6": _has_narrative,
    "per-1": _in_order("start", "end"),
    "mdd-1": _in_order("whenPrepared", "whenHandedOver"),
    "lastModified.exists().not() or authoredOn.exists().not() or lastModified >= authoredOn": _in_order(
        "authoredOn", "lastModified"
    ),
    "rng-2": _range_in_order,
    "tim-9": _offset_fits,
    "txt-1": lambda node: node.markup is not None and is_basic(node.markup),
    "txt-2": lambda node: node.markup is not None and has_content(node.markup),
}
"""Invariants by key, or by expression where several have the key: those that are evaluated often, those whose functions
only FHIR's FHIRPath has, and those that compare times or quantities, which the library compares as texts."""


def check_element(node: Node, issues: Issues) -> None:
    """Check what every element must fulfil: it has a value or children."""
    _check(_ELE_1, node, "Element", issues)


def check_extension_content(node: Node, issues: Issues) -> None:
    """Check what every extension must fulfil: it has a value or extensions, not both."""
    _check(_EXT_1, node, "Extension", issues)


def check_constraints(constraints: tuple[Constraint, ...], node: Node, owner: str, issues: Issues) -> None:
    """Check the invariants of an element; `owner` is the type that defines them."""
    for constraint in constraints:
        if constraint.key not in _SKIPPED:
            _check(constraint, node, owner, issues)


def _check(constraint: Constraint, node: Node, owner: str, issues: Issues) -> None:
    function = function_of(constraint)
    if function is None:
        issues.spend(_steps(constraint, node))
    if function(node) if function else holds(constraint, node):
        return
    source = constraint.source or f"{_STRUCTURE}/{owner}"
    text = f"Constraint failed: {constraint.key}: '{constraint.human}'"
    if constraint.source:
        text += f" (defined in {constraint.source})"
    if constraint.key == "ref-1":
        ids = ", ".join(list(node.root.contained)[:_SHOWN_IDS])
        log = f" (url: {(node.text_of('reference') or '')[1:]}; ids: {ids})"
        text += f"{log} (log: {log})"
    if constraint.advice:
        text += " (Best Practice Recommendation)"
    severity: Severity = "warning" if constraint.advice or constraint.severity == "warning" else "error"
    issues.add(severity, node.path, text, f"{source}#{constraint.key}", node.steps)


def _steps(constraint: Constraint, node: Node) -> int:
    """Return the work of an evaluation; some expressions look through the resource for each of many elements."""
    steps = _STEPS_OF_AN_EVALUATION + _STEPS_OF_AN_ELEMENT * node.size
    return steps + node.resource.size**2 if _LOOKS_AROUND.search(constraint.expression) else steps


def function_of(constraint: Constraint) -> Callable[[Node], bool] | None:
    """Return the function that evaluates an invariant, if it is not evaluated by FHIRPath."""
    function = FUNCTIONS.get(constraint.key) or FUNCTIONS.get(constraint.expression)
    return function or presence(constraint.expression)


@cache
def presence(expression: str) -> Callable[[Node], bool] | None:
    """Return a function for an expression that only asks whether elements are there, such as most of them are."""
    terms = [_TERM.fullmatch(term) for term in expression.split(" or ")]
    paths = [(term[1], term[2] == "exists") for term in terms if term]
    if len(paths) < len(terms):
        return None
    return lambda node: any((node.find(name) is not None) == there for name, there in paths)


def expression_of(constraint: Constraint) -> str:
    """Return the FHIRPath of an invariant, without the errors of its publication."""
    published = constraint.expression
    return _CORRECTED.get(constraint.key) or _CORRECTED.get(published) or published


def holds(constraint: Constraint, node: Node) -> bool:
    """Evaluate an invariant by FHIRPath: as in HAPI, it must be true, and empty is not true.

    Values of the wrong type, which are reported elsewhere, may make the evaluation fail; the invariant then holds.
    """
    variables = {"resource": node.resource.cached_json, "rootResource": node.root.cached_json}
    try:
        result = _compiled(expression_of(constraint))(_typed(node), variables)
    except Exception:  # the library raises many kinds
        return True
    return result == [True]


def _typed(node: Node) -> Any:
    if node.is_resource:
        return node.cached_json
    from fhirpathpy.engine import nodes

    make: Any = nodes.ResourceNode
    return make(node.json(), node.content or node.type)


@cache
def _compiled(expression: str) -> Callable[[Any, Mapping[str, Any]], list[Any]]:
    import fhirpathpy
    from fhirpathpy.models import models

    options = {"userInvocationTable": _FHIR_FUNCTIONS, "traceFn": lambda label, value: None}
    compiled: Callable[[Any, Mapping[str, Any]], list[Any]] = fhirpathpy.compile(expression, models["r4"], options)
    return compiled


def _has_value(inputs: list[Any]) -> list[bool]:
    return [len(inputs) == 1 and not isinstance(inputs[0], dict)]


def _resolve(inputs: list[Any]) -> list[Any]:
    return []  # references to other resources are not followed


_FHIR_FUNCTIONS = {"hasValue": {"fn": _has_value, "arity": {0: []}}, "resolve": {"fn": _resolve, "arity": {0: []}}}
"""The functions that FHIR adds to FHIRPath and that the library does not have."""


_DATE_TIME = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:T(\d\d):(\d\d):(\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)?)?)?)?")


def in_order(first: str, second: str) -> bool | None:
    """Return whether a date or time is not after another; None if their precision leaves it open, or one is malformed.

    >>> in_order("2020-01-01T10:00:00+02:00", "2020-01-01T09:00:00Z"), in_order("2020-01", "2020-01-15")
    (True, None)
    """
    left, right = _parts(first), _parts(second)
    if left is None or right is None:
        return None
    for number, other in zip(left, right, strict=False):
        if number != other:
            return number < other
    return True if len(left) == len(right) else None


def _parts(text: str) -> tuple[Decimal, ...] | None:
    """Return year, month, day, hour, minute and second as far as they are given; with a zone, those of UTC."""
    match = _DATE_TIME.fullmatch(text)
    if match is None:
        return None
    *numbers, fraction, zone = match.groups()
    parts = [int(number) for number in numbers if number is not None]
    if zone not in (None, "Z"):
        hours, minutes = int(zone[1:3]), int(zone[4:6])
        offset = timedelta(hours=hours, minutes=minutes)
        try:
            moment = datetime.fromisoformat(text[:19]) - (offset if zone[0] == "+" else -offset)
        except (ValueError, OverflowError):
            return None
        parts = [moment.year, moment.month, moment.day, moment.hour, moment.minute, moment.second]
    values = [Decimal(part) for part in parts]
    if fraction:
        values[-1] += Decimal(f"0{fraction}")
    return tuple(values)


def quantities_in_order(low: Node, high: Node) -> bool:
    """Return whether a quantity is not more than another; true if their units differ, as units are not converted."""
    if low.text_of("unit") != high.text_of("unit") or low.text_of("code") != high.text_of("code"):
        return True
    try:
        return Decimal(low.text_of("value") or "") <= Decimal(high.text_of("value") or "")
    except InvalidOperation:
        return True
