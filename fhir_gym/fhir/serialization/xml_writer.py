"""Write resources in FHIR's XML format, indented by three spaces like HAPI's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from xml.etree.ElementTree import ParseError, fromstring

from fhir_gym.fhir.serialization.numbers import Number
from fhir_gym.types import Resource

_NAMESPACE = ' xmlns="http://hl7.org/fhir"'
_XHTML = "http://www.w3.org/1999/xhtml"
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
    for key, given in value.items():
        name = key.removeprefix("_")
        if not _NAME.fullmatch(name) or (key != name and name in value):
            continue
        values = given if isinstance(given, list) else [given]
        companions = value.get(f"_{name}")
        companions = companions if isinstance(companions, list) else [companions]
        if key != name:
            values = [None] * len(companions)
        for number in range(max(len(values), len(companions))):
            one = values[number] if number < len(values) else None
            extra = companions[number] if number < len(companions) else None
            extra = extra if isinstance(extra, dict) else {}
            if extra or not (one is None or isinstance(one, list)):
                yield name, one, extra


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
    return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], _NOT_XML.sub("\ufffd", text))


def _narrative(text: str) -> str:
    """Return a narrative's div; a text that is not one XHTML element becomes the text of a div."""
    text = _NOT_XML.sub("\ufffd", text)
    try:
        if fromstring(text).tag == f"{{{_XHTML}}}div":
            return text
    except (ParseError, ValueError):
        pass  # a world may contain any text
    return f'<div xmlns="{_XHTML}">{_escaped(text)}</div>'
