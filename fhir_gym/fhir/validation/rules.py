"""Validate the elements of a resource against their definitions, in HAPI's order."""

from __future__ import annotations

import re
from functools import cache

from fhir_gym.fhir.definitions import children, constraints, profiled_type
from fhir_gym.fhir.validation import invariants
from fhir_gym.fhir.validation.extensions import check_extension
from fhir_gym.fhir.validation.narrative import check_narrative
from fhir_gym.fhir.validation.primitives import check_primitive, is_absolute, is_id
from fhir_gym.fhir.validation.references import check_bundle, check_duplicates, check_orphans, check_reference, needs_id
from fhir_gym.fhir.validation.report import Issues
from fhir_gym.fhir.validation.terminology import check_code, check_coding, check_concept
from fhir_gym.fhir.validation.tree import Node

_STRUCTURE = "http://hl7.org/fhir/StructureDefinition"
_LONGEST_ID = 64
# Elements without FHIR type in the definitions; HAPI checks the invariants of their primitive type last.
_UNTYPED = frozenset({"id", "url"})
_RECOMMENDED = (
    ("subject", "a_subject", "a subject"),
    ("performer", "a_performer", "a performer"),
    ("effective", "an_effectiveDateTime_or_an_effectivePeriod", "an effective[x] ()"),
)
"""Elements that an Observation should have, with the ends of the message's id and of its text."""


def check_resource(node: Node, issues: Issues) -> None:
    """Check a resource, and the resources in it."""
    if _is_profiled_for_another_type(node, issues):
        return
    _check_id(node, issues)
    check_duplicates(node, issues)
    _check_elements(node, issues)
    if node.type == "Observation":
        _recommend(node, issues)
    elif node.type == "Bundle":
        check_bundle(node, issues)
    check_orphans(node, issues)


def _check_id(node: Node, issues: Issues) -> None:
    id = node.find("id")
    if id is None or id.text is None:
        if id is None and needs_id(node):
            text = "Resource requires an id, but none is present"
            issues.add("error", node.path, text, "Resource_RES_ID_Missing", node.steps)
        return
    if len(id.text) > _LONGEST_ID:
        text = f"Invalid Resource id: Too long ({len(id.text)} chars)"
        issues.add("error", id.path, text, "Resource_RES_ID_Malformed_Length", id.steps)
    elif not is_id(id.text):
        text = f"Invalid Resource id: Invalid Characters ('{id.text}')"
        issues.add("error", id.path, text, "Resource_RES_ID_Malformed_Chars", id.steps)


def _is_profiled_for_another_type(node: Node, issues: Issues) -> bool:
    """Report profiles that are made for another type; HAPI then checks nothing else. Their rules are not checked."""
    meta = node.find("meta")
    before = len(issues)
    for profile in meta.find_all("profile") if meta else []:
        kind = profiled_type((profile.text or "").partition("|")[0])
        if kind is not None and kind != node.type:
            found = f"profile '{profile.text}|4.0.1', but found type '{node.type}'"
            text = f"Specified profile type was '{kind}' in {found}"
            issues.add("error", node.path, text, "Validation_VAL_Profile_WrongType", node.steps)
    return len(issues) > before


def _recommend(node: Node, issues: Issues) -> None:
    for name, message, what in _RECOMMENDED:
        if node.find(name) is None:
            text = f"Best Practice Recommendation: In general, all observations should have {what}"
            issues.add("warning", node.path, text, f"All_observations_should_have_{message}", node.steps)


# elements


def _check_elements(node: Node, issues: Issues) -> None:
    """Check the children of an element, then the invariants of its type."""
    _check_missing(node, issues)
    for child in node.children:
        _check_child(child, issues)
    if node.content and "." not in node.content:
        invariants.check_constraints(constraints(node.content), node, node.content, issues)


@cache
def _required(path: str) -> tuple[tuple[str, str], ...]:
    """Return the name and the path of each mandatory element."""
    found = {(element.choice or element.name): element.path for element in children(path).values() if element.required}
    return tuple(found.items())


def _check_missing(node: Node, issues: Issues) -> None:
    if not node.content:
        return
    present = {child.name for child in node.children}
    for name, path in _required(node.content):
        if name not in present:
            owner = path.partition(".")[0]
            text = f"{path}: minimum required = 1, but only found 0 (from {_STRUCTURE}/{owner}|4.0.1)"
            issues.add("error", node.path, text, "Validation_VAL_Profile_Minimum", node.steps)


def _check_child(node: Node, issues: Issues) -> None:
    untyped = node.name in _UNTYPED and not node.content and (node.name == "id" or node.parent_type == "Extension")
    if not untyped and not node.is_resource:
        invariants.check_element(node, issues)
    invariants.check_constraints(constraints(node.definition), node, node.definition.partition(".")[0], issues)
    if node.is_resource:
        check_resource(node, issues)
        return
    if node.type == "Extension":
        invariants.check_extension_content(node, issues)
    if not node.content:
        if check_primitive(node, issues):
            check_code(node, issues)
        check_narrative(node, issues)
    else:
        _check_type(node, issues)
    _check_elements(node, issues)
    if untyped:
        invariants.check_element(node, issues)


def _check_type(node: Node, issues: Issues) -> None:
    """Check what HAPI knows of a data type beyond its definition."""
    if node.type == "CodeableConcept":
        check_concept(node, issues)
    elif (node.type == "Coding" and node.parent_type != "CodeableConcept") or node.type == "Quantity":
        check_coding(node, issues)
    elif node.type == "Reference":
        check_reference(node, issues)
    elif node.type == "Extension":
        check_extension(node, issues)
    elif node.type == "Identifier":
        system = node.text_of("system")
        if system is not None and not is_absolute(re.sub(r"\s", "", system)):
            text = "Identifier.system must be an absolute reference, not a local reference"
            issues.add("error", node.path, text, "Type_Specific_Checks_DT_Identifier_System", node.steps)
