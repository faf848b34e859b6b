"""Parse request bodies in FHIR's XML format."""

from __future__ import annotations

from typing import Any, NoReturn
from xml.etree.ElementTree import Element as Node
from xml.etree.ElementTree import ParseError, TreeBuilder, XMLParser, tostring

from typing_extensions import override

from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET, Element, children
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.serialization import MAX_DEPTH, normalise
from fhir_gym.types import Resource

_FHIR = "{http://hl7.org/fhir}"
_XHTML = "http://www.w3.org/1999/xhtml"
_PREFIX = "HAPI-0450: Failed to parse request body as XML resource. Error was: "
_CONTENT = f"{_PREFIX}HAPI-1852: Failed to parse XML content: "


class _Builder(TreeBuilder):
    """A tree builder that refuses document types, and thus entities, and tracks open elements."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def doctype(self, name: str, pubid: str | None, system: str | None) -> NoReturn:
        """Refuse a document type declaration (called by the parser)."""
        raise FhirError(400, f"{_CONTENT}a document type declaration (DOCTYPE {name}) is not accepted")

    @override
    def start(self, tag: str, attrs: dict[str, str]) -> Node:
        self.open.append(tag)
        if len(self.open) > MAX_DEPTH:
            raise FhirError(400, f"{_CONTENT}elements are nested more than {MAX_DEPTH} levels deep")
        return super().start(tag, attrs)

    @override
    def end(self, tag: str) -> Node:
        self.open.pop()
        return super().end(tag)


def parse_xml(body: bytes, expected_type: str | None) -> Resource:
    """Parse an XML request body.

    Raises:
        FhirError: 400, with HAPI's message if that is known.
    """
    root = _tree(body)
    name = _local(root)
    if expected_type is not None and name != expected_type:
        text = f'HAPI-1814: Incorrect resource type found, expected "{expected_type}" but found "{name}"'
        raise FhirError(400, _PREFIX + text)
    if name not in RESOURCE_TYPE_SET:
        text = f'HAPI-1684: Unknown resource name "{name}" (this name is not known in FHIR version "R4")'
        raise FhirError(400, _PREFIX + text)
    try:
        return normalise(_resource(root))
    except FhirError as error:
        raise FhirError(400, _PREFIX + error.diagnostics) from None


def _tree(body: bytes) -> Node:
    first = body.lstrip()[:1]
    if first and first < b"\x80" and first != b"<":
        raise FhirError(
            400,
            f"{_CONTENT}Unexpected character '{first.decode()}' (code {ord(first)}) in prolog; expected '<'"
            "\n at [row,col {unknown-source}]: [1,1]",
        )
    builder = _Builder()
    parser = XMLParser(target=builder)
    try:
        parser.feed(body)
        root: Node = parser.close()
    except ParseError as error:
        raise FhirError(400, _CONTENT + _reason(body, builder, error)) from None
    except (LookupError, ValueError) as error:  # an unknown encoding, or bytes that are not in the encoding
        raise FhirError(400, f"{_CONTENT}{error}") from None
    return root


def _reason(body: bytes, builder: _Builder, error: ParseError) -> str:
    row, column = error.position
    text = str(error).partition(":")[0]
    if builder.open and text == "no element found":
        text = f"Unexpected EOF; was expecting a close tag for element <{builder.open[-1].rpartition('}')[2]}>"
        row, column = body.count(b"\n") + 1, len(body) - body.rfind(b"\n") - 2
    return f"{text}\n at [row,col {{unknown-source}}]: [{row},{column + 1}]"


def _local(node: Node) -> str:
    return str(node.tag).removeprefix(_FHIR).removeprefix(f"{{{_XHTML}}}")


def _resource(node: Node) -> Resource:
    name = _local(node)
    return {"resourceType": name, **(_object(node, name) if name in RESOURCE_TYPE_SET else {})}


def _object(node: Node, content: str) -> dict[str, Any]:
    """Convert a complex value; undefined elements are dropped."""
    found: dict[str, Any] = {name: node.attrib[name] for name in ("id", "url") if name in node.attrib}
    elements = children(content)
    values: dict[str, list[Any]] = {}
    companions: dict[str, list[Any]] = {}
    for child in node:
        name = _local(child)
        element = elements.get(name)
        if element is None:
            continue
        values.setdefault(name, []).append(_value(child, element))
        extra = {} if element.content or element.type == "xhtml" else _companion(child)
        companions.setdefault(name, []).append(extra or None)
    for name, listed in values.items():
        many = elements[name].many
        found[name] = listed if many else listed[0]
        if any(companions[name]):
            found[f"_{name}"] = companions[name] if many else companions[name][0]
    return found


def _value(node: Node, element: Element) -> Any:
    if element.type == "xhtml":
        return _xhtml(node)
    if element.content == "Resource":
        return next((_resource(child) for child in node), None)
    if element.content:
        return _object(node, element.content)
    return node.get("value")


def _companion(node: Node) -> dict[str, Any]:
    """Convert the id and extensions of a primitive value."""
    found: dict[str, Any] = {"id": node.attrib["id"]} if "id" in node.attrib else {}
    extensions = [_object(child, "Extension") for child in node if _local(child) == "extension"]
    return found | ({"extension": extensions} if extensions else {})


def _xhtml(node: Node) -> str:
    for inner in node.iter():
        if isinstance(inner.tag, str):
            inner.tag = inner.tag.rpartition("}")[2]
    node.set("xmlns", _XHTML)
    node.tail = None
    return tostring(node, encoding="unicode")
