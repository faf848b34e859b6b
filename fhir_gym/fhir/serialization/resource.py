"""Convert a body or decoded JSON to a resource as HAPI stores it: elements in order, and none that are invalid.

Like HAPI's parser, this parser reads elements in the order of the body and raises at the first invalid value. Then it
sorts the elements in the order of the definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from typing import Any
from uuid import UUID

from fhir_gym.fhir import definitions
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.serialization.json_text import dumps, read_object, too_deep
from fhir_gym.fhir.serialization.primitives import (
    ParseError,
    Scalar,
    check_for,
    invalid_value,
    is_blank,
    refusal,
    text_of,
)
from fhir_gym.types import Json, Resource

MAX_BYTES = 16 * 1024 * 1024
"""Maximum size of a body."""

_SCALARS = (str, int, float)
_PRIMITIVE, _COMPLEX, _EXTENSION, _RESOURCE = range(4)
# Maximum nesting of objects; each level takes up to four frames of Python's stack of 1,000.
_MAX_OBJECTS = 100
_IGNORED = frozenset(["resourceType", "fhir_comments"])
_EXTENSION_PATH = "Extension"


class _Field:
    """The properties of an element that the parser needs."""

    __slots__ = ("alternate", "check", "choice", "content", "kind", "many", "name", "order", "plain")

    def __init__(self, order: int, element: definitions.Element) -> None:
        self.order = order
        self.name = element.name
        self.alternate = f"_{element.name}"
        self.many = element.many
        self.choice = element.choice
        self.content = element.content
        self.kind = _kind(element)
        self.plain = self.kind == _PRIMITIVE and not element.many
        self.check = check_for(element)


def _kind(element: definitions.Element) -> int:
    if not element.content:
        return _PRIMITIVE
    if element.type == "Extension":
        return _EXTENSION
    return _RESOURCE if element.type == "Resource" else _COMPLEX


@cache
def _fields(path: str) -> Mapping[str, _Field]:
    return {e.name: _Field(order, e) for order, e in enumerate(definitions.children(path).values())}


# One property to write: position in the definition, name, value, and the value of the sibling property "_name".
_Entry = tuple[int, str, Any, Any]


class ResourceParser:
    """Converts decoded JSON to resources.

    Args:
        strict: Whether to raise for elements that HAPI's lenient parser would drop. HAPI itself raises for them in the
            result of a patch.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self.depth = 0

    # Resources

    def resource(self, body: Mapping[str, Any], expected: str | None) -> Resource:
        """Convert the resource in a request body.

        Raises:
            ParseError: HAPI would refuse the resource.
        """
        kind = body.get("resourceType")
        if not isinstance(kind, str) or is_blank(kind):
            raise ParseError("HAPI-1838: Invalid JSON content detected, missing required element: 'resourceType'")
        if expected is not None and kind != expected:
            raise ParseError(f'HAPI-1814: Incorrect resource type found, expected "{expected}" but found "{kind}"')
        return self._typed(kind, body)

    def _typed(self, kind: str, body: Mapping[str, Any]) -> Resource:
        if kind not in definitions.RESOURCE_TYPE_SET:
            similar = next((name for name in definitions.RESOURCE_TYPES if name.lower() == kind.lower()), None)
            if similar is not None:
                raise ParseError(
                    f"HAPI-1815: Unknown resource type '{kind}': Resource names are case sensitive, "
                    f"found similar name: '{similar}'"
                )
            raise ParseError(f'HAPI-1684: Unknown resource name "{kind}" (this name is not known in FHIR version "R4")')
        resource: Resource = {"resourceType": kind}
        content = self._complex(kind, body)
        if content is not None:
            resource.update(content)
        if "id" in resource:
            resource["id"] = _id_part(resource["id"])
        if "meta" in resource:
            _drop_nameless_tags(resource)
        if "contained" in resource:
            resource["contained"] = _contained(resource)
        return resource

    def _inner(self, value: Any) -> Resource | None:
        """Convert a resource inside another resource."""
        if not isinstance(value, dict):
            return None
        kind = value.get("resourceType")
        if not isinstance(kind, str):
            raise ParseError(
                "HAPI-1843: Missing required element 'resourceType' from JSON resource object, unable to parse"
            )
        return self._typed(kind, value)

    # Objects

    def _complex(self, path: str, source: Mapping[str, Any]) -> dict[str, Any] | None:
        """Convert the elements of an object; None if no element remains."""
        self._descend()
        fields = _fields(path)
        entries: list[_Entry] = []
        choices: set[str] | None = None
        lone: list[str] | None = None
        for name, value in source.items():
            field = fields.get(name)
            if field is None:
                if name[:1] == "_":
                    lone = [*(lone or ()), name]
                else:
                    self._unknown(name, value)
                continue
            if field.choice is not None:
                if choices is None:
                    choices = set()
                if field.choice in choices:
                    continue
                choices.add(field.choice)
            if field.plain and isinstance(value, _SCALARS) and field.alternate not in source and not self.strict:
                stored = field.check(name, value)
                if stored is not None:
                    entries.append((field.order, name, stored, None))
                continue  # a shortcut for elements with a single value, which are frequent
            self._element(field, value, source, entries)
        if lone is not None:
            self._lone_alternates(lone, fields, source, entries)
        self.depth -= 1
        return _assembled(entries) if entries else None

    def _descend(self) -> None:
        self.depth += 1
        if self.depth > _MAX_OBJECTS:
            raise ParseError(too_deep(self.depth, _MAX_OBJECTS))

    def _unknown(self, name: str, value: Any) -> None:
        if not name:
            raise ParseError("String index out of range: 0")
        if name == "modifierExtension" and not isinstance(value, list):
            self._extensions(name, value)  # refuses it, although HAPI drops it where it may not be
        if self.strict and name not in _IGNORED:
            raise ParseError(f"HAPI-1825: Unknown element '{name}' found during parse")

    def _element(self, field: _Field, value: Any, source: Mapping[str, Any], entries: list[_Entry]) -> None:
        kind = field.kind
        if kind == _PRIMITIVE:
            alternate = source.get(field.alternate)
            if alternate is None and not field.many and isinstance(value, Scalar):
                stored = self._scalar(field, value)
                if stored is not None:
                    entries.append((field.order, field.name, stored, None))
                return
            self._primitive(field, value, alternate, entries)
            return
        if kind == _EXTENSION:
            extensions = self._extensions(field.name, value)
            if extensions:
                entries.append((field.order, field.name, extensions, None))
            return
        items = value if isinstance(value, list) else (value,)
        if (
            self.strict
            and field.many != isinstance(value, list)
            and value is not None
            and not isinstance(value, Scalar)
        ):
            self._misfit(field.name, "ARRAY" if field.many else "OBJECT", value)
        if not field.many:
            items = items[:1]
        values = [built for item in items if (built := self._object(field, item)) is not None]
        if values:
            entries.append((field.order, field.name, values if field.many else values[0], None))

    def _object(self, field: _Field, value: Any) -> Any:
        if not isinstance(value, dict):
            if self.strict and value is not None:
                self._misfit(field.name, "OBJECT", value)
            return None
        return self._inner(value) if field.kind == _RESOURCE else self._complex(field.content, value)

    def _misfit(self, name: str, expected: str, value: Any) -> None:
        raise ParseError(
            f"HAPI-1820: Found incorrect type for element {name} - Expected {expected} and found {_shape(value)}"
        )

    # Primitives

    def _scalar(self, field: _Field, value: Any) -> Scalar | None:
        if not isinstance(value, Scalar):
            # HAPI fails with a 5xx for a narrative that is an object, and drops other values of the wrong type.
            if value is not None and (self.strict or field.name == "div"):
                self._misfit(field.name, "SCALAR", value)
            return None
        stored = field.check(field.name, value)
        if stored is None and self.strict:
            raise invalid_value(field.name, text_of(value), 'Attribute value must not be empty ("")')
        return stored

    def _primitive(self, field: _Field, value: Any, alternate: Any, entries: list[_Entry]) -> None:
        """Convert a primitive element that repeats, or has extensions or an id."""
        if not isinstance(value, list):
            values, alternates = [value], [alternate]
        else:
            values = _flat(value)
            alternates = alternate if isinstance(alternate, list) else []
        if not field.many:
            values = values[:1]
        stored: list[Any] = []
        beside: list[Any] = []
        for index, item in enumerate(values):
            scalar = self._scalar(field, item)
            extra = self._alternate(alternates[index]) if index < len(alternates) else None
            if scalar is not None or extra is not None:
                stored.append(scalar)
                beside.append(extra)
        if not stored:
            return
        extras = beside if any(extra is not None for extra in beside) else None
        if field.many:
            kept = stored if any(item is not None for item in stored) else None
            entries.append((field.order, field.name, kept, extras))
        else:
            entries.append((field.order, field.name, stored[0], extras[0] if extras else None))

    def _lone_alternates(
        self, names: list[str], fields: Mapping[str, _Field], source: Mapping[str, Any], entries: list[_Entry]
    ) -> None:
        """Convert the extensions of primitives that have no value."""
        for name in names:
            field = fields.get(name[1:])
            if field is None or field.kind != _PRIMITIVE or name[1:] in source:
                continue
            extra = self._alternate(source[name])
            if extra is not None:
                entries.append((field.order, field.name, None, [extra] if field.many else extra))

    def _alternate(self, value: Any) -> dict[str, Any] | None:
        """Convert the id and extensions of a primitive."""
        if isinstance(value, list):
            if len(value) > 1:
                raise ParseError(f"HAPI-1842: Unexpected array of length {len(value)} (expected 0 or 1)")
            value = value[0] if value else None
        if not isinstance(value, dict):
            return None
        alternate: dict[str, Any] = {}
        identifier = value.get("id")
        if isinstance(identifier, str) and not is_blank(identifier):
            alternate["id"] = identifier
        extensions = self._extensions("extension", value.get("extension"))
        if extensions:
            alternate["extension"] = extensions
        return alternate or None

    # Extensions

    def _extensions(self, name: str, value: Any) -> list[dict[str, Any]] | None:
        if value is None:
            return None
        if not isinstance(value, list):
            raise ParseError(
                f"HAPI-1841: Syntax error parsing JSON FHIR structure: Expected ARRAY at element '{name}', "
                f"found '{_shape(value).split(' ')[0]}'"
            )
        return [extension for item in value if (extension := self._extension(name, item)) is not None]

    def _extension(self, name: str, source: Any) -> dict[str, Any] | None:
        """Convert an extension: its URL, then its value or nested extensions; None if both are missing."""
        if not isinstance(source, dict):
            raise ParseError(
                f"HAPI-1841: Syntax error parsing JSON FHIR structure: Expected OBJECT at element '{name}', "
                f"found '{_shape(source).split(' ')[0]}'"
            )
        self._descend()
        url = source.get("url")
        shown = text_of(url) if isinstance(url, Scalar) else None
        entry = self._extension_value(source)
        nested = [
            extension
            for key in ("extension", "modifierExtension")
            for extension in self._extensions(key, source.get(key)) or ()
        ]
        if entry is not None and nested:
            raise ParseError(
                f"HAPI-1811: Extension (URL='{shown}') must not have both a value and other contained extensions"
            )
        self.depth -= 1
        identifier = source.get("id")
        built: dict[str, Any] = {}
        if isinstance(identifier, str) and not is_blank(identifier):
            built["id"] = identifier
        built["url"] = shown
        if nested:
            built["extension"] = nested
        elif entry is not None:
            built.update(_assembled([entry]))
        return built if nested or entry is not None else None

    def _extension_value(self, source: Mapping[str, Any]) -> _Entry | None:
        """Convert the value of an extension; the last value if there are several."""
        fields = _fields(_EXTENSION_PATH)
        entries: list[_Entry] = []
        alternates = [name for name in source if name[:1] == "_"]
        for name, value in source.items():
            field = fields.get(name)
            if field is not None and field.choice is not None:
                self._element(field, value, source, entries)
            elif name not in fields and name not in alternates:
                self._unknown(name, value)
        self._lone_alternates(alternates, fields, source, entries)
        return entries[-1] if entries else None


def _assembled(entries: list[_Entry]) -> dict[str, Any]:
    """Return an object with its entries in the order of the definition."""
    last = -1
    for entry in entries:
        if entry[0] < last:
            entries.sort(key=_order)
            break
        last = entry[0]
    elements: dict[str, Any] = {}
    for _, name, value, extra in entries:
        if value is not None:
            elements[name] = value
        if extra is not None:
            elements[f"_{name}"] = extra
    return elements


def _order(entry: _Entry) -> int:
    return entry[0]


def _flat(values: list[Any]) -> list[Any]:
    """Flatten nested lists."""
    if not any(isinstance(value, list) for value in values):
        return values
    return [inner for value in values for inner in (_flat(value) if isinstance(value, list) else (value,))]


def _shape(value: Any) -> str:
    """Return the name of a JSON value's type in HAPI's messages."""
    if isinstance(value, dict):
        return "OBJECT"
    if isinstance(value, list):
        return "ARRAY"
    if isinstance(value, bool):
        return "SCALAR (BOOLEAN)"
    return "SCALAR (STRING)" if isinstance(value, str) else "SCALAR (NUMBER)"


def _id_part(identifier: str) -> str:
    """Return the id at the end of a relative or absolute reference; return other ids unchanged."""
    if "/" not in identifier:
        return identifier
    return identifier.split("/_history/")[0].rsplit("/", 1)[-1]


def _drop_nameless_tags(resource: Resource) -> None:
    """Remove tags that have neither system nor code, as HAPI does."""
    meta = resource["meta"]
    for key in ("tag", "security"):
        if key in meta:
            meta[key] = [tag for tag in meta[key] if "system" in tag or "code" in tag]
            if not meta[key]:
                del meta[key]
    if not meta:
        del resource["meta"]


def _contained(resource: Resource) -> list[Resource]:
    """Return the contained resources as HAPI stores them: in one flat list, each resource with its own id."""
    resources: dict[str, Resource] = {}
    for position, inner in enumerate(resource["contained"]):
        for item in (*inner.pop("contained", ()), inner):
            identifier = item.get("id", "").removeprefix("#") or _minted_id(item, position)
            meta = item.get("meta")
            if meta is not None:
                meta.pop("versionId", None)
            named = {"resourceType": item["resourceType"], "id": identifier, **item, **({"id": identifier})}
            resources.setdefault(identifier, named)
    return list(resources.values())


def _minted_id(resource: Resource, position: int) -> str:
    """Return a UUID for a contained resource without an id, derived from its content (HAPI's UUIDs are random)."""
    digest = blake2b(dumps(resource) + position.to_bytes(4, "big"), digest_size=16).digest()
    return str(UUID(bytes=digest, version=4))


def parse_resource(body: bytes, expected_type: str | None) -> Resource:
    """Parse a request body.

    As in HAPI, unknown elements and values of the wrong type are dropped. The elements are ordered as in the
    definition, and decimals keep their digits.

    Raises:
        FhirError: 400 with HAPI's message, 413 for a body longer than `MAX_BYTES`.
    """
    if len(body) > MAX_BYTES:
        raise FhirError(413, f"The request body has {len(body)} bytes; the most this server reads is {MAX_BYTES}")
    try:
        return ResourceParser().resource(read_object(body), expected_type)
    except ParseError as error:
        raise refusal(error) from None


def read_body(body: bytes) -> Json:
    """Decode the JSON of a request body without putting anything right.

    Raises:
        FhirError: 400; HAPI would refuse the text.
    """
    try:
        return read_object(body)
    except ParseError as error:
        raise refusal(error) from None


def normalise(resource: Json, *, strict: bool = False) -> Resource:
    """Normalise decoded JSON like a request body (for a bundle's entry, an import or a patched resource).

    Args:
        resource: Decoded JSON; `Number` keeps the digits of a decimal.
        strict: Whether to raise for elements that would otherwise be dropped. HAPI itself raises for them in the result
            of a patch.

    Raises:
        FhirError: 400; the message does not have the prefix about a request body.
    """
    try:
        return ResourceParser(strict=strict).resource(resource if isinstance(resource, dict) else {}, None)
    except ParseError as error:
        raise FhirError(400, str(error)) from None


def is_normal(resource: Resource) -> bool:
    """Return whether `normalise` would change nothing except the positions of ``resourceType`` and ``id``."""
    head = {name: resource[name] for name in ("resourceType", "id") if name in resource}
    try:
        return dumps(normalise(resource)) == dumps({**head, **resource})
    except FhirError:
        return False
