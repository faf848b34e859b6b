"""Validate the elements and extensions of a resource against their definitions, in the order of HAPI."""

from __future__ import annotations

import re
from functools import cache

from fhir_gym.fhir.definitions import ExtensionDefinition, children, constraints, extension, profiled_type
from fhir_gym.fhir.validation import invariants
from fhir_gym.fhir.validation.narrative import check_narrative
from fhir_gym.fhir.validation.primitives import check_primitive, is_absolute, is_id
from fhir_gym.fhir.validation.references import check_bundle, check_duplicates, check_orphans, check_reference, needs_id
from fhir_gym.fhir.validation.report import Issues
from fhir_gym.fhir.validation.terminology import check_code, check_coding, check_concept
from fhir_gym.fhir.validation.tree import Node

_ANYWHERE = frozenset({"Element", "Any"})
_VALUE = "value"
_STRUCTURE = "http://hl7.org/fhir/StructureDefinition"
_CORRECTED = {
    f"{_STRUCTURE}/structuredefinition-fhir-type": ("ElementDefinition.type",),
    f"{_STRUCTURE}/regex": ("ElementDefinition", "ElementDefinition.type"),
    f"{_STRUCTURE}/structuredefinition-normative-version": ("Element",),
    f"{_STRUCTURE}/capabilitystatement-expectation": ("Element",),
    f"{_STRUCTURE}/capabilitystatement-prohibited": ("Element",),
}
"""Places of extensions that R4 published with errors, as HL7 uses them and HAPI allows them."""


def check_extension(node: Node, issues: Issues) -> None:
    """Check an extension or modifier extension."""
    url = node.text_of("url")
    holder = node.parent
    nested = holder is not None and holder.type == "Extension"
    if not url:
        text = "Extension.url is required in order to identify, use and validate the extension"
        issues.add("error", node.path, text, "Extension_EXT_Url_NotFound", node.steps)
        return
    if not nested and not is_absolute(url):
        issues.add(
            "error", node.path, "Extension.url must be an absolute URL", "Extension_EXT_URL_Absolute", node.steps
        )
        return
    definition = extension(url.partition("|")[0]) if is_absolute(url) else None
    if definition is not None:
        _check_known(node, url, definition, issues)
    elif is_absolute(url) or not nested:
        issues.add("information", node.path, f"Unknown extension {url}", "Extension_EXT_Unknown", node.steps)


def _check_known(node: Node, url: str, definition: ExtensionDefinition, issues: Issues) -> None:
    if node.parent is not None:
        _check_place(node, node.parent, url, definition, issues)
    place = f"{node.path}[url='{url}']"
    if definition.modifier and node.name == "extension":
        text = f"The Extension '{url}' must be used as a modifierExtension"
        issues.add("error", place, text, "Extension_EXT_Modifier_N", node.steps)
    if not definition.modifier and node.name == "modifierExtension":
        text = f"The Extension '{url}' must not be used as an extension (it's a modifierExtension)"
        issues.add("error", place, text, "Extension_EXT_Modifier_Y", node.steps)
    _check_value(node, url, definition.types, issues)
    if definition.parts:
        _check_parts(node, url, definition, issues)


def _check_value(node: Node, url: str, types: tuple[str, ...], issues: Issues) -> None:
    value = node.find(_VALUE)
    if value is not None:
        if value.type not in types:
            allowed = ", ".join(types)
            text = f"The Extension '{url}' definition allows for the types [{allowed}] but found type {value.type}"
            issues.add("error", node.path, text, "Extension_EXT_Type", node.steps)
    elif types and node.find_all("extension"):
        text = f"The Extension '{url}' definition is for a simple extension, so it must contain a value, not extensions"
        issues.add("error", node.path, text, "Extension_EXT_Simple_Wrong", node.steps)
    elif types:
        text = f"The Extension '{url}' definition is for a simple extension, so it must contain a value"
        issues.add("error", node.path, text, "Extension_EXT_Simple_Absent", node.steps)


def _check_parts(node: Node, url: str, definition: ExtensionDefinition, issues: Issues) -> None:
    counts: dict[str, int] = {}
    for part in node.find_all("extension"):
        name = part.text_of("url") or ""
        nested = definition.parts.get(name)
        if nested is not None:
            counts[name] = counts.get(name, 0) + 1
            _check_value(part, name, nested.types, issues)
        elif name and not is_absolute(name):
            text = f"Sub-extension url '{name}' is not defined by the Extension {url}|4.0.1"
            where = f"{part.path}[url='{name}']"
            issues.add("error", where, text, "Extension_EXT_SubExtension_Invalid", part.steps)
    for name, nested in definition.parts.items():
        count, label = counts.get(name, 0), f"Extension.extension:{name}"
        if count < nested.least:
            text = f"{label}: minimum required = {nested.least}, but only found {count} (from {url}|4.0.1)"
            issues.add("error", node.path, text, "Validation_VAL_Profile_Minimum", node.steps)
        if nested.most != "*" and count > int(nested.most):
            text = f"{label}: max allowed = {nested.most}, but found {count} (from {url}|4.0.1)"
            issues.add("error", node.path, text, "Validation_VAL_Profile_Maximum", node.steps)


def _check_place(node: Node, holder: Node, url: str, definition: ExtensionDefinition, issues: Issues) -> None:
    places = _places(holder)
    for context in _CORRECTED.get(url, definition.contexts):
        if context in _ANYWHERE or context in places:
            return
        if context in ("Resource", "DomainResource") and holder.is_resource:
            return
    kind = "M" if node.name == "modifierExtension" else "P"
    allowed = ", ".join(f"e:{context}" for context in definition.contexts)
    text = f"The extension {url} is not allowed to be used at this point "
    text += f"(this element is [{', '.join(sorted(places))}]; allowed for this version = {allowed})"
    issues.add("error", holder.path, text, f"Extension_EXT{kind}_Context_Wrong", holder.steps)


def _places(holder: Node) -> set[str]:
    """Return the paths by which a definition may name an element: from its resource, and from each type around it."""
    places = {holder.content} if "." in holder.content else set()  # of another element, for a reference to its content
    node, below = holder, ""
    while True:
        places.add(f"{node.type}{below}")
        if node.is_resource or node.parent is None or node.element is None:
            break
        step = node.element.path.rpartition(".")[2]
        below = f".{step}{below}"
        node = node.parent
    return {re.sub(r"^BackboneElement\..*|^Element\..*", holder.definition, place) for place in places}


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
            mismatch = f"profile '{profile.text}|4.0.1', but found type '{node.type}'"
            text = f"Specified profile type was '{kind}' in {mismatch}"
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
    required = {
        (element.choice or element.name): element.path for element in children(path).values() if element.required
    }
    return tuple(required.items())


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
    """Check HAPI's additional rules for a data type."""
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
