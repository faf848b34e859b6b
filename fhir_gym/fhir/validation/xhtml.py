"""The XHTML of a narrative: a parser, and what FHIR allows in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

NAMESPACE = "http://www.w3.org/1999/xhtml"
_NAME = r"[A-Za-z_][\w.:-]*"
_ATTRIBUTE = re.compile(rf"\s*({_NAME})\s*=\s*(?:\"([^\"<]*)\"|'([^'<]*)')")
_ENTITY = re.compile(r"&(#x[0-9A-Fa-f]+|#[0-9]+|[A-Za-z][A-Za-z0-9]*);?")
_XML_ENTITIES = frozenset({"amp", "lt", "gt", "quot", "apos"})
_SKIPPED = (("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>"))
_MAX_DEPTH = 500


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ELEMENTS = _names(
    "p br div h1 h2 h3 h4 h5 h6 a span b em i strong small big tt dfn q var abbr acronym cite blockquote hr address "
    "bdo kbd sub sup ul ol li dl dt dd pre table caption colgroup col thead tr tfoot tbody th td code samp img map "
    "area"
)
"""The elements that FHIR allows in a narrative: chapters 7 to 11 and 15 of HTML 4.0."""

ATTRIBUTES = _names(
    "title style class id idref lang xml:lang dir accesskey tabindex span width align valign char charoff abbr axis "
    "headers scope rowspan colspan"
)
"""The attributes that FHIR allows on each element."""

_OWN_ATTRIBUTES = _names(
    "a.href a.name img.src img.border div.xmlns blockquote.cite q.cite a.charset a.type a.hreflang a.rel a.rev a.shape "
    "a.coords img.alt img.longdesc img.height img.width img.usemap img.ismap map.name area.shape area.coords area.href "
    "area.nohref area.alt table.summary table.width table.border table.frame table.rules table.cellspacing "
    "table.cellpadding pre.space td.nowrap"
)


class MarkupError(Exception):
    """The text is not well-formed XHTML."""


@dataclass(slots=True)
class Markup:
    """An element of XHTML.

    Attributes:
        children: The elements in it.
        has_text: Whether the element directly contains text other than white space.
    """

    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Markup] = field(default_factory=list)
    has_text: bool = False

    def walk(self, path: str = "") -> Iterator[tuple[str, Markup]]:
        """Yield each element with its path from the root, this one first."""
        here = f"{path}/{self.name}" if path else self.name
        yield here, self
        for child in self.children:
            yield from child.walk(here)

    def bad_attributes(self) -> list[str]:
        """Return the attributes that this element may not have."""
        return [
            name
            for name in self.attributes
            if not name.startswith("xmlns") and name not in ATTRIBUTES and f"{self.name}.{name}" not in _OWN_ATTRIBUTES
        ]


def has_content(root: Markup) -> bool:
    """Return whether there is text or an image."""
    return any(element.has_text or element.name == "img" for _, element in root.walk())


def is_basic(root: Markup) -> bool:
    """Return whether there are only elements and attributes that FHIR allows."""
    return all(element.name in ELEMENTS and not element.bad_attributes() for _, element in root.walk())


def parse_markup(text: str) -> tuple[Markup, list[str]]:
    """Return the root and the entities that XML does not define.

    Raises:
        MarkupError: The text is not well-formed.
    """
    start = len(text) - len(text.lstrip())
    if not text[start:].startswith("<"):
        character = text[start : start + 1]
        raise MarkupError(f"Unable to Parse HTML - does not start with tag. Found '{character}' {_place(text, start)}")
    reader = _Reader(text)
    root = reader.read(start)
    return root, reader.entities


def _place(text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    return f" at line {line} column {at - (text.rfind(chr(10), 0, at) + 1)}"


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.entities: list[str] = []

    def read(self, at: int) -> Markup:
        holder = Markup("")
        open_elements = [holder]
        while True:
            start = self.text.find("<", at)
            self._note_text(self.text[at : start if start >= 0 else len(self.text)], open_elements)
            if start < 0:
                break
            at = self._skip(start, open_elements[-1]) or self._tag(start, open_elements)
        if len(open_elements) > 1:
            raise MarkupError(f"Malformed XHTML: Unexpected end of text in <{open_elements[-1].name}>")
        if len(holder.children) != 1:
            raise MarkupError("Malformed XHTML: Found more than one root element")
        return holder.children[0]

    def _note_text(self, text: str, open_elements: list[Markup]) -> None:
        if text.strip():
            if len(open_elements) == 1:
                raise MarkupError("Malformed XHTML: Found text outside the root element")
            open_elements[-1].has_text = True
        self._note_entities(text)

    def _note_entities(self, text: str) -> None:
        for entity in _ENTITY.finditer(text):
            if not entity[1].startswith("#") and entity[1] not in _XML_ENTITIES:
                self.entities.append(entity[0])

    def _skip(self, start: int, inside: Markup) -> int:
        """Return the end of a comment, a CDATA section or an instruction; 0 if none starts here."""
        for opening, closing in _SKIPPED:
            if self.text.startswith(opening, start):
                end = self.text.find(closing, start + len(opening))
                if end < 0:
                    raise MarkupError(f"Malformed XHTML: Found no {closing}{_place(self.text, start)}")
                if opening == "<![CDATA[" and self.text[start + len(opening) : end].strip():
                    inside.has_text = True
                return end + len(closing)
        return 0

    def _tag(self, start: int, open_elements: list[Markup]) -> int:
        """Read an opening or closing tag, and return its end."""
        closing = re.compile(rf"</\s*({_NAME})\s*>").match(self.text, start)
        if closing:
            open_name = open_elements[-1].name
            if open_name != closing[1]:
                place = _place(self.text, closing.end())
                raise MarkupError(f'Malformed XHTML: Found "</{closing[1]}>" expecting "</{open_name}>"{place}')
            open_elements.pop()
            return closing.end()
        opening = re.compile(rf"<({_NAME})").match(self.text, start)
        if opening is None:
            raise MarkupError(f"Malformed XHTML: Found an unexpected character{_place(self.text, start + 1)}")
        element = Markup(opening[1])
        end = opening.end()
        while attribute := _ATTRIBUTE.match(self.text, end):
            element.attributes[attribute[1]] = attribute[2] if attribute[2] is not None else attribute[3]
            self._note_entities(element.attributes[attribute[1]])
            end = attribute.end()
        finish = re.compile(r"\s*(/?)>").match(self.text, end)
        if finish is None or len(open_elements) > _MAX_DEPTH:
            raise MarkupError(f"Malformed XHTML: Found an unexpected character{_place(self.text, end)}")
        open_elements[-1].children.append(element)
        if not finish[1]:
            open_elements.append(element)
        return finish.end()
