"""Narratives: the namespace, the elements and attributes, and where links and images lead."""

from __future__ import annotations

from collections.abc import Iterator

from fhir_gym.fhir.validation.report import Issues
from fhir_gym.fhir.validation.tree import Node
from fhir_gym.fhir.validation.xhtml import ELEMENTS, NAMESPACE, Markup

_BLOCKS = frozenset({"div", "blockquote", "table", "ol", "ul", "p"})
_ACTIVE = frozenset({"javascript", "vbscript"})


def check_narrative(node: Node, issues: Issues) -> None:
    """Check the `div` of a narrative that could be parsed."""
    root = node.markup
    if root is None:
        return
    if root.attributes.get("xmlns") != NAMESPACE:
        _report_namespace(node, root, issues)
    for _, element in list(root.walk())[1:]:
        if element.attributes.get("xmlns", NAMESPACE) != NAMESPACE:
            _report_namespace(node, element, issues)
    if root.name != "div":
        text = f"Wrong name on the XHTML ('{root.name}') - must start with div"
        issues.add("error", node.path, text, "XHTML_XHTML_Name_Invalid", node.steps)
    for child in root.children:
        _check_names(node, child, False, issues)
    for path, element in root.walk():
        _check_link(node, path, element, issues)


def _report_namespace(node: Node, element: Markup, issues: Issues) -> None:
    namespace = element.attributes.get("xmlns", "null")
    text = f"Wrong namespace on the XHTML ('{namespace}', should be '{NAMESPACE}')"
    issues.add("error", node.path, text, "XHTML_XHTML_NS_InValid", node.steps)


def _check_names(node: Node, element: Markup, in_paragraph: bool, issues: Issues) -> None:
    if element.name not in ELEMENTS:
        text = f"Invalid element name in the XHTML ('{element.name}')"
        issues.add("error", node.path, text, "XHTML_XHTML_Element_Illegal", node.steps)
    for name in element.bad_attributes():
        text = f"Invalid attribute name in the XHTML ('{name}' on '{element.name}')"
        issues.add("error", node.path, text, "XHTML_XHTML_Attribute_Illegal", node.steps)
    if in_paragraph and element.name in _BLOCKS:
        text = f"Invalid element name inside in a paragraph in the XHTML ('{element.name}')"
        issues.add("error", node.path, text, "XHTML_XHTML_Element_Illegal_In_Para", node.steps)
    for child in element.children:
        _check_names(node, child, in_paragraph or element.name == "p", issues)


def _check_link(node: Node, path: str, element: Markup, issues: Issues) -> None:
    href, source = element.attributes.get("href"), element.attributes.get("src", "")
    if element.name == "a" and href is not None:
        if href.startswith("#") and href != "#" and not _resolves(node, href[1:]):
            text = f"Hyperlink '{href}' at '{path}' does not resolve"
            issues.add("error", node.path, text, "Type_Specific_Checks_DT_XHTML_Resolve", node.steps)
        if href.partition(":")[0].lower() in _ACTIVE:
            text = f"Hyperlink '{href}' at '{path}' is a script"
            issues.add("error", node.path, text, "Type_Specific_Checks_DT_XHTML_Active_Href", node.steps)
    if element.name == "img" and source.startswith("#") and not _resolves(node, source[1:]):
        text = f"Image source '{source}' at '{node.path}{path.removeprefix('div')}' does not resolve"
        issues.add("error", node.path, text, "Type_Specific_Checks_DT_XHTML_Resolve_Img", node.steps)


def _resolves(node: Node, fragment: str) -> bool:
    """Return whether an element of the resource or of its narrative has an id."""
    resource = node.resource
    if "fragments" not in resource.cache:
        resource.cache["fragments"] = frozenset(_fragments(resource))
    return fragment in resource.cache["fragments"]


def _fragments(resource: Node) -> Iterator[str]:
    for inner in resource.walk():
        if inner.name == "id" and inner.text:
            yield inner.text
        elif inner.markup is not None:
            for _, element in inner.markup.walk():
                yield from (element.attributes[name] for name in ("id", "name") if name in element.attributes)
