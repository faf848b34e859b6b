"""Parse and write FHIR's XML format; the output is indented by three spaces, like HAPI's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NoReturn
from xml.etree.ElementTree import Element as Node
from xml.etree.ElementTree import ParseError, TreeBuilder, XMLParser, fromstring, tostring

from typing_extensions import override

from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET, Element, children
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.serialization import MAX_DEPTH, normalise
from fhir_gym.fhir.serialization.primitives import Number
from fhir_gym.types import Resource, as_object

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
    members: dict[str, Any] = {name: node.attrib[name] for name in ("id", "url") if name in node.attrib}
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
        members[name] = listed if many else listed[0]
        if any(companions[name]):
            members[f"_{name}"] = companions[name] if many else companions[name][0]
    return members


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
    companion: dict[str, Any] = {"id": node.attrib["id"]} if "id" in node.attrib else {}
    extensions = [_object(child, "Extension") for child in node if _local(child) == "extension"]
    return companion | ({"extension": extensions} if extensions else {})


def _xhtml(node: Node) -> str:
    for inner in node.iter():
        if isinstance(inner.tag, str):
            inner.tag = inner.tag.rpartition("}")[2]
    node.set("xmlns", _XHTML)
    node.tail = None
    return tostring(node, encoding="unicode")


_NAMESPACE = ' xmlns="http://hl7.org/fhir"'
_EXTENSIONS = frozenset({"extension", "modifierExtension"})
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot contain, not even escaped."""
_SPECIAL = re.compile('[&<>"\t\n\r]')
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\t": "&#x9;", "\n": "&#xa;", "\r": "&#xd;"}


def write_xml(resource: Resource, *, indent: bool) -> bytes:
    """Return a decoded JSON resource as XML; its elements keep their order.

    Characters that XML does not allow become U+FFFD.
    """
    writer = _Writer(indent)
    writer.resource(resource)
    return "".join(writer.pieces).encode()


class _Writer:
    """Collects the pieces of one document."""

    def __init__(self, indent: bool) -> None:
        self.pieces: list[str] = []
        self._indent = indent
        self._lines = [""]
        self._depth = 0

    def resource(self, value: dict[str, Any]) -> None:
        name = str(value.get("resourceType"))
        inner = {key: item for key, item in value.items() if key != "resourceType"}
        self._element(name if _NAME.fullmatch(name) else "Resource", _NAMESPACE, inner)

    def _element(self, name: str, attributes: str, inner: dict[str, Any], *, is_extension: bool = False) -> None:
        """Write an element with the properties of an object as its children."""
        self._start_line()
        self.pieces.append(f"<{name}{attributes}")
        at = len(self.pieces)
        self._depth += 1
        for child, value, companion in _properties(inner):
            if not (is_extension and child == "url"):
                self._child(child, value, companion)
        self._depth -= 1
        if len(self.pieces) == at:
            self.pieces.append("/>")
            return
        self.pieces[at - 1] += ">"
        self._start_line()
        self.pieces.append(f"</{name}>")

    def _child(self, name: str, value: Any, companion: dict[str, Any]) -> None:
        is_extension = name in _EXTENSIONS
        if isinstance(value, dict):
            if "resourceType" in value:
                self._start_line()
                self.pieces.append(f"<{name}>")
                self._depth += 1
                self.resource(value)
                self._depth -= 1
                self._start_line()
                self.pieces.append(f"</{name}>")
                return
            attributes = _attribute("id", value.get("id"))
            if is_extension:
                attributes += _attribute("url", value.get("url"))
            inner = {key: item for key, item in value.items() if key != "id"} if "id" in value else value
            self._element(name, attributes, inner, is_extension=is_extension)
        elif name == "div" and isinstance(value, str):
            self._start_line()
            self.pieces.append(_narrative(value))
        else:
            attributes = _attribute("id", companion.get("id")) + _attribute("value", value)
            inner = {"extension": companion["extension"]} if "extension" in companion else {}
            self._element(name, attributes, inner)

    def _start_line(self) -> None:
        if self._indent and self.pieces:
            while len(self._lines) <= self._depth:
                self._lines.append("\n" + "   " * len(self._lines))
            self.pieces.append(self._lines[self._depth] or "\n")


def _properties(value: dict[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield the name of each child element with its value and the id and extensions of a primitive value."""
    for key, content in value.items():
        name = key.removeprefix("_")
        if not _NAME.fullmatch(name) or (key != name and name in value):
            continue
        values = content if isinstance(content, list) else [content]
        companions = value.get(f"_{name}")
        companions = companions if isinstance(companions, list) else [companions]
        if key != name:
            values = [None] * len(companions)
        for number in range(max(len(values), len(companions))):
            child = values[number] if number < len(values) else None
            extra = as_object(companions[number] if number < len(companions) else None)
            if extra or not (child is None or isinstance(child, list)):
                yield name, child, extra


def _attribute(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, Number):
        text = value.text
    else:
        text = _escaped(str(value))
    return f' {name}="{text}"'


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda match: _ESCAPES[match[0]], _NOT_XML.sub("\ufffd", text))


def _narrative(text: str) -> str:
    """Return a narrative's div; a text that is not one XHTML element becomes the text of a div."""
    text = _NOT_XML.sub("\ufffd", text)
    try:
        if fromstring(text).tag == f"{{{_XHTML}}}div":
            return text
    except (ParseError, ValueError):
        pass  # a world may contain any text
    return f'<div xmlns="{_XHTML}">{_escaped(text)}</div>'
