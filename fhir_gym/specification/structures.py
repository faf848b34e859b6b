"""Resource types and data types as text: one line for each element."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir.definitions import PRIMITIVES, Element, children, modifiers
from fhir_gym.specification import texts
from fhir_gym.specification.texts import Codes, ElementText

MAX_CHARS = 16_000
"""Maximum number of characters of a definition; deeper elements are left out of longer ones."""
_MAX_MEANING = 160
_MAX_DEFINITION = 1_000
_MANY_TYPES = 20
_LEGEND = (
    "Lines: name cardinality type - meaning [binding: codes]. ! = modifier element, which can change the meaning of "
    "other elements. Indented = inside the element above. name[x] = use one of the names listed."
)
_JSON = {"boolean": "true or false", "decimal": "number", "integer": "number"} | dict.fromkeys(
    ("positiveInt", "unsignedInt"), "number"
)


class Node(NamedTuple):
    """One element of a type; a choice (``value[x]``) is one node.

    Attributes:
        name: JSON name, or the name with ``[x]`` of a choice.
        options: The element; for a choice, one element for each type.
        modifier: Whether R4 marks the element as a modifier.
    """

    name: str
    options: tuple[Element, ...]
    modifier: bool

    @property
    def first(self) -> Element:
        """The element, or the first type of a choice."""
        return self.options[0]

    @property
    def is_nested(self) -> bool:
        """Whether the element's own elements are defined here, and not by a data type."""
        return self.first.content == self.first.path

    @property
    def coded(self) -> Element:
        """The element to whose codes the binding applies."""
        coded = (e for e in self.options if e.type in ("code", "Coding", "CodeableConcept"))
        return next(coded, self.first)


def nodes(path: str) -> list[Node]:
    """Return the elements below a path, in the order of their definition."""
    marked = modifiers(path)
    listed = []
    for definition, group in groupby(children(path).values(), key=lambda e: e.path):
        options = tuple(group)
        name = definition.rpartition(".")[2]
        listed.append(Node(name, options, any(e.name in marked for e in options)))
    return listed


def of_type(name: str) -> str:
    """Return the definition of a resource type or complex data type."""
    own = [node for node in nodes(name) if not texts.is_inherited(node.first.path)]
    common = [node for node in nodes(name) if texts.is_inherited(node.first.path)]
    head = [f"{name}: {texts.about(name)}", _LEGEND, f"Common elements: {', '.join(_brief(node) for node in common)}"]
    if any(node.is_nested for node in own):
        head.append("Nested elements also have id, extension and modifierExtension!.")
    rules = [f"- {_within(path, name)}{text}" for path, text in texts.rules(name)]
    tail = ["Rules:", *rules] if rules else []
    return _fitted(name, name, head, tail)


def of_primitive(name: str) -> str:
    """Return the definition of a primitive type."""
    about, pattern = texts.about(name), texts.pattern(name)
    shown = f"{name}: {about}" if about else f"{name}: XHTML of a narrative, in a div element"
    return f"{shown}\nIn JSON: {_JSON.get(name, 'string')}" + (f"\nPattern: {pattern}" if pattern else "")


def of_path(resource_type: str, path: str) -> str:
    """Return the definition of one element and of the elements inside it.

    Raises:
        UnknownNameError: There is no element with this path.
    """
    node, names = _find(resource_type, path)
    shown, text = ".".join(names), texts.element(node.first.path)
    head = [f"{shown}{_line(node, shown, codes=False).removeprefix(node.name)}"]
    if len(text.definition) > len(_meaning(node)):
        head.append(f"Definition: {_cut(text.definition, _MAX_DEFINITION)}")
    codes = codes_in_full(text)
    if codes:
        head.append(codes)
    content = node.first.content
    if len(node.options) > 1:
        return "\n".join([*head, "Ask for one of the names listed, or for a data type, to see its elements."])
    if not content or content == "Resource":
        return "\n".join(head)
    if not node.is_nested and "." not in content:
        head.append(f"Elements of the data type {content}: {texts.about(content)}")
    return _fitted(content, shown.partition(".")[2], head, [])


def _find(resource_type: str, path: str) -> tuple[Node, list[str]]:
    """Return the element with a path such as ``participant.actor``, and the names on the way, resource type first."""
    parts = [re.sub(r"\[\w*\]$", "", part.strip()) for part in path.strip().split(".")]
    if parts[0] == resource_type:
        parts = parts[1:]
    at, names = resource_type, [resource_type]
    node = None
    for part in parts:
        if not at:
            raise UnknownNameError(f"element of {'.'.join(names)}", part, ())
        node = _named(at, part, names)
        at = node.first.content if len(node.options) == 1 else ""
        names.append(node.name)
    if node is None:
        raise UnknownNameError(
            f"element of {resource_type}", path, [element_node.name for element_node in nodes(resource_type)]
        )
    return node, names


def _named(at: str, part: str, names: list[str]) -> Node:
    listed = nodes(at)
    for node in listed:
        if part in (node.name, node.name.removesuffix("[x]")):
            return node
        for option in node.options:
            if part == option.name:
                return Node(part, (option,), node.modifier)
    raise UnknownNameError(f"element of {'.'.join(names)}", part, [n for e in listed for n in _json_names(e)])


def _json_names(node: Node) -> list[str]:
    return [option.name for option in node.options] if len(node.options) <= _MANY_TYPES else [node.name]


def _fitted(path: str, prefix: str, head: list[str], tail: list[str]) -> str:
    """Return the text with as many levels of nested elements as fit."""
    base = "" if prefix == path else prefix
    for levels in (9, 3, 2, 1, 0):
        text = "\n".join([*head, *_lines(path, base, levels), *tail])
        if len(text) <= MAX_CHARS:
            break
    return text


def _lines(path: str, prefix: str, levels: int, indent: str = "") -> Iterator[str]:
    for node in nodes(path):
        if texts.is_inherited(node.first.path):
            continue
        place = f"{prefix}.{node.name}" if prefix else node.name
        line = f"{indent}{_line(node, place)}"
        if not node.is_nested:
            yield line
        elif levels == 0:
            yield f'{line} ({_count(node.first.content)} elements; path="{place}")'
        else:
            yield line
            yield from _lines(node.first.content, place, levels - 1, f"{indent}  ")


def _count(path: str) -> int:
    """Return the number of elements below a path, nested ones included."""
    own = [node for node in nodes(path) if not texts.is_inherited(node.first.path)]
    return sum(1 + (_count(node.first.content) if node.is_nested else 0) for node in own)


def _line(node: Node, place: str, *, codes: bool = True) -> str:
    meaning = _meaning(node)
    text = f"{_brief(node)} - {meaning}" if meaning else _brief(node)
    return text + codes_inline(node.coded, texts.element(node.first.path), place) if codes else text


def _brief(node: Node) -> str:
    element = node.first
    cardinality = f"{int(element.required)}..{'*' if element.many else '1'}"
    return f"{node.name}{'!' if node.modifier else ''} {cardinality} {_types(node)}"


def _types(node: Node) -> str:
    if len(node.options) > _MANY_TYPES:
        stem = node.name.removesuffix("[x]")
        return f"{stem} + any type: " + " | ".join(e.name.removeprefix(stem) for e in node.options)
    if node.name.endswith("[x]"):
        return " | ".join(f"{e.name}{_targets(e)}" for e in node.options)
    element = node.first
    if element.type in ("BackboneElement", "Element") and not node.is_nested and element.content not in PRIMITIVES:
        return f"same as {element.content}"
    return f"{element.type}{_targets(element)}"


def _targets(element: Element) -> str:
    if element.type != "Reference":
        return ""
    return f"({' | '.join(element.targets)})" if element.targets else "(any)"


def _meaning(node: Node) -> str:
    text = texts.element(node.first.path)
    short = without_codes(text.short, text) if is_inline(text) else text.short
    if not short:
        return first_sentence(text.definition)
    return "" if short == "Todo" else _cut(short, _MAX_MEANING)


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, without its full stop and shortened to the length of an element's line."""
    return _cut(re.split(r"(?<=[a-z)])\. ", text, maxsplit=1)[0].removesuffix("."), _MAX_MEANING)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length].rpartition(" ")[0] + " …"


def _within(path: str, name: str) -> str:
    return "" if path == name else f"{path.removeprefix(name + '.')}: "


_MOST_REQUIRED = 40
"""Most codes of a required binding that an element's line lists."""
_MOST_OTHERS = 12
"""Most codes of an extensible or preferred binding that an element's line lists."""
_MAX_LISTED = 10_000
"""Maximum number of characters of the codes of one element, for which the model asked."""


def codes_inline(element: Element, text: ElementText, path: str) -> str:
    """Return an element's binding in brackets, for its line; empty if the element has none.

    Args:
        element: The element; for a choice, its coded type.
        text: The text about the element.
        path: The `path` with which a model can ask for the codes that the line does not list.
    """
    if not text.strength:
        return ""
    codes = texts.codes(text.value_set)
    if codes is None:
        return f" [{text.strength}: {_unlisted(text)}]"
    if not is_inline(text):
        others = "" if codes.complete else " and others"
        return f' [{text.strength}: {len(codes)} codes of {", ".join(codes.by_system)}{others}; list: path="{path}"]'
    return f" [{text.strength}: {_by_system(codes) if element.type != 'code' else _without_systems(codes)}]"


def is_inline(text: ElementText) -> bool:
    """Return whether the element's line lists its codes."""
    codes = texts.codes(text.value_set) if text.strength else None
    if codes is None or text.strength == "example" or not codes.complete:
        return False
    return len(codes) <= (_MOST_REQUIRED if text.strength == "required" else _MOST_OTHERS)


def codes_in_full(text: ElementText) -> str:
    """Return an element's binding with all known codes; empty if the element has none."""
    if not text.strength:
        return ""
    codes = texts.codes(text.value_set)
    if codes is None:
        return f"Binding: {text.strength}, {_unlisted(text)}"
    listed = _by_system(codes)
    if len(listed) > _MAX_LISTED:
        listed = listed[:_MAX_LISTED].rpartition(" | ")[0] + f" | … ({len(codes)} codes)"
    others = "" if codes.complete else "\nOther codes are possible."
    return f"Binding: {text.strength}, value set {text.value_set}\n{listed}{others}"


def _unlisted(text: ElementText) -> str:
    if not text.value_set:
        return "codes that the context defines"
    systems = texts.systems(text.value_set)
    return f"codes of {', '.join(systems)}" if systems else f"value set {text.value_set}"


def _by_system(allowed: Codes) -> str:
    """Return the codes with their systems and displays."""
    parts = allowed.by_system.items()
    return "; ".join(
        f"system {system} codes {' | '.join(_code(system, code) for code in codes)}" for system, codes in parts
    )


def _without_systems(allowed: Codes) -> str:
    """Return the codes as they stand in an element of the type `code`."""
    return " | ".join(code for codes in allowed.by_system.values() for code in codes)


def _code(system: str, code: str) -> str:
    display = texts.display(system, code)
    return f'{code} "{display}"' if display else code


def without_codes(short: str, text: ElementText) -> str:
    """Return a short description without its list of codes (``home | work - purpose of this address``)."""
    inline_codes = texts.codes(text.value_set) if text.strength else None
    if inline_codes is None or "|" not in short:
        return short
    codes = {code for listed in inline_codes.by_system.values() for code in listed}
    *parts, last = (part.strip() for part in short.split("|"))
    code, _, rest = last.partition(" ")
    if any(part not in codes for part in parts) or code not in codes:
        return short
    return re.sub(r"^[-+ ]+", "", rest)
