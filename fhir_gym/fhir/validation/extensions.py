"""Extensions: their URL, the place where HL7 allows them, and the type of their value."""

from __future__ import annotations

import re

from fhir_gym.fhir.definitions import ExtensionDefinition, extension
from fhir_gym.fhir.validation.primitives import is_absolute
from fhir_gym.fhir.validation.report import Issues
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
    given: dict[str, int] = {}
    for part in node.find_all("extension"):
        name = part.text_of("url") or ""
        known = definition.parts.get(name)
        if known is not None:
            given[name] = given.get(name, 0) + 1
            _check_value(part, name, known.types, issues)
        elif name and not is_absolute(name):
            text = f"Sub-extension url '{name}' is not defined by the Extension {url}|4.0.1"
            where = f"{part.path}[url='{name}']"
            issues.add("error", where, text, "Extension_EXT_SubExtension_Invalid", part.steps)
    for name, known in definition.parts.items():
        count, label = given.get(name, 0), f"Extension.extension:{name}"
        if count < known.least:
            text = f"{label}: minimum required = {known.least}, but only found {count} (from {url}|4.0.1)"
            issues.add("error", node.path, text, "Validation_VAL_Profile_Minimum", node.steps)
        if known.most != "*" and count > int(known.most):
            text = f"{label}: max allowed = {known.most}, but found {count} (from {url}|4.0.1)"
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
    found = {holder.content} if "." in holder.content else set()  # of another element, for a reference to its content
    node, below = holder, ""
    while True:
        found.add(f"{node.type}{below}")
        if node.is_resource or node.parent is None or node.element is None:
            break
        step = node.element.path.rpartition(".")[2]
        below = f".{step}{below}"
        node = node.parent
    return {re.sub(r"^BackboneElement\..*|^Element\..*", holder.definition, place) for place in found}
