"""Read the JSON of a resource into a tree of elements, and report where its shape differs from the definitions.

Unreadable content (an unknown property, a list in place of an object) is reported and left out of the tree. Later
checks treat it as missing, as HAPI does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET, Element, children
from fhir_gym.fhir.serialization import Number
from fhir_gym.fhir.validation.report import Issues, Steps
from fhir_gym.fhir.validation.xhtml import Markup, MarkupError, parse_markup

_NUMBERS = frozenset({"integer", "unsignedInt", "positiveInt", "decimal"})
_PRIMITIVE_CHILDREN = "Element"
_STEM = "[x]"
_STEPS_OF_AN_ELEMENT = 40
_ABSENT: Any = object()


MAX_DEPTH = 60
"""The deepest nesting of objects that is read; valid records have about ten levels."""


class Node:
    """An element of a resource as it was sent.

    Attributes:
        name: The name of the element, without the type of a choice (``value``).
        type: The FHIR type; the resource type of a resource.
        definition: The path of its definition (``Observation.value[x]``).
        content: The type or path whose elements are its children; empty for a primitive.
        element: The definition; None for the resource itself.
        path: FHIRPath of the element (``Observation.value.ofType(Quantity)``).
        steps: The position in the JSON.
        parent: The element around it.
        children: The elements in it, in the order of their definition.
        text: The text of a primitive value; None without a value.
        value: The JSON scalar of a primitive.
        markup: The markup of a narrative that could be parsed.
    """

    __slots__ = (
        "cache", "children", "content", "definition", "element", "markup", "name", "parent", "path", "steps", "text",
        "type", "value",
    )  # fmt: skip

    def __init__(self, name: str, kind: str, path: str, steps: Steps, parent: Node | None, element: Element | None):
        self.name = name
        self.type = kind
        self.path = path
        self.steps = steps
        self.parent = parent
        self.element = element
        self.definition = element.path if element else kind
        self.content = element.content if element else kind
        self.children: list[Node] = []
        self.text: str | None = None
        self.value: Any = None
        self.markup: Markup | None = None
        self.cache: dict[str, Any] = {}

    @property
    def cached_json(self) -> Any:
        """The element as JSON; cached, because many invariants look at the whole resource."""
        if "json" not in self.cache:
            self.cache["json"] = self.json()
        return self.cache["json"]

    @property
    def size(self) -> int:
        """The number of elements, including this element."""
        if "size" not in self.cache:
            self.cache["size"] = 1 + sum(child.size for child in self.children)
        size: int = self.cache["size"]
        return size

    @property
    def contained(self) -> Mapping[str, Node]:
        """The contained resources by id; if several have the same id, the first."""
        if "contained" not in self.cache:
            nodes: dict[str, Node] = {}
            for node in self.find_all("contained"):
                if (id := node.text_of("id")) is not None:
                    nodes.setdefault(id, node)
            self.cache["contained"] = nodes
        contained: Mapping[str, Node] = self.cache["contained"]
        return contained

    @property
    def root(self) -> Node:
        """The resource that was sent."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    @property
    def is_resource(self) -> bool:
        """Whether this is a resource: the sent resource, a contained resource, or a resource of a Bundle."""
        return self.element is None or self.element.type == "Resource"

    @property
    def resource(self) -> Node:
        """The resource around this element, or this resource."""
        node = self
        while not node.is_resource and node.parent is not None:
            node = node.parent
        return node

    @property
    def parent_type(self) -> str:
        """The type of the element around it; empty for the resource itself."""
        return self.parent.type if self.parent else ""

    def find(self, name: str) -> Node | None:
        """Return the first child of a name."""
        for child in self.children:
            if child.name == name:
                return child
        return None

    def find_all(self, name: str) -> list[Node]:
        """Return the children of a name."""
        return [child for child in self.children if child.name == name]

    def text_of(self, name: str) -> str | None:
        """Return the text of a primitive child."""
        child = self.find(name)
        return child.text if child else None

    def walk(self) -> Iterator[Node]:
        """Yield this element and all elements in it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def json(self) -> Any:
        """Return the element as JSON, without what could not be read."""
        if not self.content:
            return self.value
        element: dict[str, Any] = {"resourceType": self.type} if self.is_resource else {}
        for child in self.children:
            key, many = (child.element.name, child.element.many) if child.element else (child.name, False)
            if child.content or not (child.children or child.value is None):
                _put(element, key, child.json(), many)
            else:  # the id and extensions of a primitive are beside its value
                _put(element, key, child.value, many)
                _put(element, f"_{key}", {inner.name: inner.json() for inner in child.children}, many)
        return element


def _put(target: dict[str, Any], key: str, value: Any, many: bool) -> None:
    if many:
        target.setdefault(key, []).append(value)
    elif value is not None:
        target[key] = value


@cache
def _fields(path: str) -> tuple[tuple[str, tuple[Element, ...]], ...]:
    """Return the elements of an object by their name or stem, in the order of the definition."""
    groups: dict[str, list[Element]] = {}
    for element in children(path).values():
        groups.setdefault(element.choice or element.name, []).append(element)
    return tuple((name, tuple(elements)) for name, elements in groups.items())


def describe(value: Any) -> str:
    """Return the kind of a JSON value, for a message."""
    if isinstance(value, list):
        return "an Array"
    if isinstance(value, dict):
        return "an Object"
    return "a Null" if value is None else "a Primitive property"


def read_tree(resource: Mapping[str, Any], issues: Issues) -> Node | None:
    """Return the tree of a resource; None if its type is unknown."""
    kind = resource.get("resourceType")
    if "resourceType" not in resource:
        issues.add("error", "$", "Unable to find resourceType property")
    elif not isinstance(kind, str):
        names = {bool: "Boolean", dict: "Object", list: "Array", type(None): "Null"}
        text = f"The JSON element 'resourceType' has the wrong JSON type: {names.get(type(kind), 'Number')}"
        issues.add("error", "$", text)
    elif kind not in RESOURCE_TYPE_SET:
        issues.add("error", kind, f"This content cannot be parsed (unknown or unrecognized resource name '{kind}')")
    else:
        node = Node(kind, kind, kind, (), None, None)
        _Reader(issues).read_object(resource, node, kind, resource_type=True)
        return node
    return None


class _Reader:
    """Reads one resource.

    Args:
        issues: The list that receives the issues.
    """

    def __init__(self, issues: Issues) -> None:
        self.issues = issues
        self.depth = 0

    def error(self, path: str, text: str, steps: Steps, message: str = "") -> None:
        self.issues.add("error", path, text, message, steps)

    def read_object(
        self, source: Mapping[str, Any], node: Node, where: str, *, resource_type: bool = False, path: str = ""
    ) -> None:
        """Read the properties of an object; `where` is the path that messages show."""
        if not source:
            self.error(where, "Object must have some content", node.steps)
        left = dict.fromkeys(source)
        for name, elements in _fields(path or node.content):
            element, names = self._choose(name, elements, left)
            if element is None:
                continue
            present = [key for key in names if key in source]
            for key in present:
                left.pop(key, None)
            if present:
                self._read_element(source, present, element, node, f"{where}.{name}{_STEM if element.choice else ''}")
        if resource_type:
            left.pop("resourceType", None)
        for key in left:
            self.error(where, f"Unrecognized property '{key}'", (*node.steps, key))

    @staticmethod
    def _choose(
        name: str, elements: tuple[Element, ...], left: Mapping[str, Any]
    ) -> tuple[Element | None, tuple[str, ...]]:
        """Return the element that is there, and the properties that may hold it; a choice takes the first property."""
        if not elements[0].choice:
            return elements[0], (name, f"_{name}")
        value = next((key for key in left if key.startswith(name)), "")
        beside = next((key for key in left if key.startswith(f"_{name}")), "")
        for element in elements:
            if element.name == value or f"_{element.name}" == beside:
                names = (value, beside) if not element.content else (value,)
                return element, tuple(key for key in names if key)
        return None, ()

    def _read_element(
        self, source: Mapping[str, Any], present: list[str], element: Element, parent: Node, where: str
    ) -> None:
        main = next((key for key in present if not key.startswith("_")), "")
        beside = next((key for key in present if key.startswith("_")), "")
        if element.content:
            if main:
                self._read_complex(source[main], element, parent, where, (*parent.steps, main))
            if beside:
                self.error(where.rpartition(".")[0], f"Unrecognized property '{beside}'", (*parent.steps, beside))
            return
        steps = (*parent.steps, main or beside)
        if not element.many:
            value = source[main] if main else _ABSENT
            extra = source[beside] if beside else _ABSENT
            self._read_primitive(value, extra, element, parent, where, steps, None)
            return
        shown = where.rpartition(".")[0]
        for key in filter(None, (main, beside)):
            if not isinstance(source[key], list):
                what = "The property" if key == main else "The base property"
                text = f"{what} {element.name} must be a JSON Array, not {describe(source[key])} (at {shown})"
                self.error(where, text, steps)
                return
        values, extras = source[main] if main else [], source[beside] if beside else []
        for index in range(max(len(values), len(extras))):
            value, extra = (  # in a list, null is no value
                items[index] if index < len(items) and items[index] is not None else _ABSENT
                for items in (values, extras)
            )
            self._read_primitive(value, extra, element, parent, where, (*steps, index), index)

    def _read_complex(self, value: Any, element: Element, parent: Node, where: str, steps: Steps) -> None:
        if not element.many:
            self._read_item(value, element, parent, where, steps, None)
        elif isinstance(value, list):
            if not value:
                text = "Array cannot be empty - the property should not be present if it has no values"
                self.error(where, text, steps)
            for index, item in enumerate(value):
                self._read_item(item, element, parent, f"{where}[{index}]", (*steps, index), index)
        else:
            text = f"The property {element.name} must be a JSON Array, not {describe(value)}"
            self.error(where, f"{text} (at {where.rpartition('.')[0]})", steps)
            self._read_item(value, element, parent, where, steps, 0)

    def _read_item(
        self, value: Any, element: Element, parent: Node, where: str, steps: Steps, index: int | None
    ) -> None:
        if not isinstance(value, dict):
            expected = "an Array" if element.many else "an Object"
            text = f"The property {element.name} must be {expected}, not {describe(value)} (at {where})"
            self.error(where, text, steps)
            return
        if self.depth == MAX_DEPTH:
            self.error(where, f"The element is nested deeper than {MAX_DEPTH} levels", steps)
            return
        self.issues.spend(_STEPS_OF_AN_ELEMENT)
        node = _child(element, parent, steps, index)
        parent.children.append(node)
        self.depth += 1
        if element.type == "Resource":
            self._read_resource(value, node, where)
        else:
            self.read_object(value, node, where)
        self.depth -= 1

    def _read_resource(self, value: Mapping[str, Any], node: Node, where: str) -> None:
        if not value:
            self.error(where, "Object must have some content", node.steps)
        kind = value.get("resourceType")
        if "resourceType" not in value:
            self.error(where, "Unable to find resourceType property", node.steps)
        elif not isinstance(kind, str):
            self.error(where, "The JSON element 'resourceType' has the wrong JSON type", node.steps)
        elif kind not in RESOURCE_TYPE_SET:
            text = f"Contained resource does not appear to be a FHIR resource (unknown name '{kind}')"
            self.error(where, text, node.steps)
        else:
            id = value.get("id")
            node.type = node.content = kind
            node.path = f"{node.path}/*{kind}/{id if isinstance(id, str) else 'null'}*/"
            self.read_object(value, node, where, resource_type=True)

    def _read_primitive(
        self, value: Any, extra: Any, element: Element, parent: Node, where: str, steps: Steps, index: int | None
    ) -> None:
        """Read a primitive: its value, and its id and extensions `extra`; one of them may be absent."""
        if value is None or isinstance(value, list | dict):
            text = f"This property must be a simple value, not {describe(value)} ({element.name} at {where})"
            self.error(where, text, steps)
            return
        if extra is not _ABSENT and not isinstance(extra, dict):
            text = f"This property must be an object, not {describe(extra)} ({element.name} at {where})"
            self.error(where, text, steps)
            return
        self.issues.spend(_STEPS_OF_AN_ELEMENT)
        node = _child(element, parent, steps, index)
        parent.children.append(node)
        if value is not _ABSENT:
            node.value, node.text = value, _text(value)
            self._check_scalar(value, node, where)
        if extra is not _ABSENT:
            self.read_object(extra, node, where, path=_PRIMITIVE_CHILDREN)

    def _check_scalar(self, value: Any, node: Node, where: str) -> None:
        if node.type == "xhtml":
            self._read_markup(node, where)
        if node.type == "boolean":
            right, expected = isinstance(value, bool), "a boolean"
        elif node.type in _NUMBERS:
            right, expected = isinstance(value, int | float) and not isinstance(value, bool), "a number"
        else:
            right, expected = isinstance(value, str), "a string"
        if not right:
            self.error(where, f"Error parsing JSON: the primitive value must be {expected}", node.steps)

    def _read_markup(self, node: Node, where: str) -> None:
        try:
            node.markup, entities = parse_markup(node.text or "")
        except MarkupError as error:
            self.error(where, f"Error parsing XHTML: {error}", node.steps)
            return
        for entity in entities:
            self.error(where, f"Invalid entity in the XHTML ('{entity}')", node.steps)


def _child(element: Element, parent: Node, steps: Steps, index: int | None) -> Node:
    name = element.choice or element.name
    label = f"{name}.ofType({element.type})" if element.choice else name
    place = "" if index is None else f"[{index}]"
    return Node(name, element.type, f"{parent.path}.{label}{place}", steps, parent, element)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.text if isinstance(value, Number) else str(value)
