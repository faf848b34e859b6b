"""JSON Patch (RFC 6902), with the messages of the library that HAPI uses."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from fhir_gym.fhir.limits import Limits
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.serialization import MAX_DEPTH, dumps, loads, normalise
from fhir_gym.types import Json, Resource

_PACKAGE = "com.github.fge.jsonpatch.operation"
_POINTER = "com.github.fge.jackson.jsonpointer.JsonPointer"
_SOURCE = "\n at [Source: UNKNOWN; byte offset: #UNKNOWN]"
_NAMES = ("add", "copy", "move", "remove", "replace", "test")
_WITH_VALUE = ("add", "replace", "test")
_WITH_FROM = ("copy", "move")
_MAX_OPERATIONS = 1_000
_LIMITS = Limits()

_NO_PATH = "no such path in target JSON document"
_NO_INDEX = "no such index in target array"
_NO_PARENT = "parent of node to add does not exist"
_NO_CONTAINER = "parent of path to add to is not a container"
_NOT_AN_INDEX = "reference token is not an array index"
_DIFFERS = "value differs from expectations"


@dataclass(frozen=True, slots=True)
class PatchOperation:
    """One operation; pointers are split into their unescaped tokens."""

    op: str
    path: tuple[str, ...]
    value: Json = None
    source: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JsonPatch:
    """A JSON Patch of a resource."""

    operations: list[PatchOperation]

    def apply(self, resource: Resource, label: str, limits: Limits = _LIMITS) -> Resource:
        """Return the patched resource in normal form; the strict parser must accept it."""
        was = resource["resourceType"]
        patched = apply_json_patch(resource, self.operations, limits)
        now = patched.get("resourceType") if isinstance(patched, dict) else None
        try:
            if isinstance(now, str) and now and now != was:
                raise FhirError(400, f'HAPI-1814: Incorrect resource type found, expected "{was}" but found "{now}"')
            return normalise(patched, strict=True)
        except FhirError as error:
            text = f"HAPI-1271: Failed to apply JSON patch to {label}: {error.diagnostics}"
            raise FhirError(400, text) from None


def _refuse(text: str) -> FhirError:
    return FhirError(400, f"HAPI-1272: {text}")


# parsing


def parse_json_patch(body: bytes) -> list[PatchOperation]:
    """Parse a patch document and check its form.

    Raises:
        FhirError: 400 with HAPI's message.
    """
    try:
        document = loads(body)
    except (ValueError, RecursionError) as error:
        raise _refuse(f"The patch is not valid JSON: {error}") from None
    if isinstance(document, dict):
        token = "FIELD_NAME" if document else "END_OBJECT"
        raise _refuse(
            f"Cannot deserialize value of type `java.util.ArrayList<{_PACKAGE}.JsonPatchOperation>` "
            f"from Object value (token `JsonToken.{token}`){_SOURCE}"
        )
    if not isinstance(document, list):
        raise _refuse("A JSON Patch is an array of operations")
    if len(document) > _MAX_OPERATIONS:
        raise FhirError(
            413, f"A JSON Patch may have at most {_MAX_OPERATIONS} operations, this one has {len(document)}"
        )
    return [_operation(item, position) for position, item in enumerate(document)]


def _operation(item: Json, position: int) -> PatchOperation:
    chain = f"{_SOURCE} (through reference chain: java.util.ArrayList[{position}])"
    name = item.get("op") if isinstance(item, dict) else None
    if name is None:
        raise _refuse(
            f"Could not resolve subtype of [simple type, class {_PACKAGE}.JsonPatchOperation]: "
            f"missing type id property 'op' (for POJO property '#temporary-name'){chain}"
        )
    if name not in _NAMES:
        raise _refuse(
            f"Could not resolve type id '{name}' as a subtype of `{_PACKAGE}.JsonPatchOperation`: "
            f"known type ids = [{', '.join(_NAMES)}] (for POJO property '#temporary-name'){chain}"
        )
    kind = f"{_PACKAGE}.{name.capitalize()}Operation"
    path = _pointer(item, "path", kind, position)
    if name in _WITH_VALUE and "value" not in item:
        raise _refuse(
            f"Cannot construct instance of `{kind}`, problem: Cannot invoke "
            f'"com.fasterxml.jackson.databind.JsonNode.deepCopy()" because "value" is null{chain}'
        )
    source = _pointer(item, "from", kind, position) if name in _WITH_FROM else ()
    return PatchOperation(name, path, item.get("value"), source)


def _pointer(item: dict[str, Any], key: str, kind: str, position: int) -> tuple[str, ...]:
    text = item.get(key)
    chain = f'{_SOURCE} (through reference chain: java.util.ArrayList[{position}]->{kind}["{key}"])'
    if text is None:
        raise _refuse(f'Operation {position} ("{item["op"]}") has no "{key}"')
    if isinstance(text, int | float) and not isinstance(text, bool):
        number = "int/Int" if isinstance(text, int) else "double/Double"
        raise _refuse(
            f"Cannot construct instance of `{_POINTER}` (although at least one Creator exists): "
            f"no {number}-argument constructor/factory method to deserialize from Number value ({text}){chain}"
        )
    if not isinstance(text, str):
        raise _refuse(f'"{key}" of operation {position} must be a JSON Pointer in a string')
    if not text:
        return ()
    if not text.startswith("/"):
        raise _refuse(
            f"Cannot construct instance of `{_POINTER}`, problem: "
            f"illegal pointer: expected a slash to separate tokens{chain}"
        )
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in text[1:].split("/"))


# applying


def apply_json_patch(document: Json, operations: list[PatchOperation], limits: Limits = _LIMITS) -> Json:
    """Apply a patch to a copy of a document.

    Raises:
        FhirError: 400 with HAPI's message; 413 if the patch adds too much (repeated `copy` grows exponentially).
    """
    result = deepcopy(document)
    values = size = 0
    for operation in operations:
        if operation.op in ("copy", "add", "replace"):
            added = _find(result, operation.source) if operation.op == "copy" else operation.value
            values += _size(added)
            if values > limits.json_values:
                raise FhirError(413, f"The patch adds more than {limits.json_values} values")
            size += len(dumps(added))
            if size > limits.resource_bytes:
                raise FhirError(413, f"The patch adds more than {limits.resource_bytes} bytes")
        result = _apply(result, operation)
    return result


def _size(value: Json, depth: int = 0) -> int:
    """Count a value and all values inside it; raise if the nesting is too deep (a `copy` into itself adds levels)."""
    if depth > MAX_DEPTH:
        raise _refuse(f"The patch nests values more than {MAX_DEPTH} levels deep")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(_size(item, depth + 1) for item in inner)


def _apply(document: Json, operation: PatchOperation) -> Json:
    match operation.op:
        case "add":
            return _add(document, operation.path, deepcopy(operation.value))
        case "copy":
            return _add(document, operation.path, deepcopy(_find(document, operation.source)))
        case "move":
            value = _find(document, operation.source)
            if operation.path == operation.source:
                return document
            return _add(_remove(document, operation.source), operation.path, value)
        case "remove":
            return _remove(document, operation.path)
        case "replace":
            _find(document, operation.path)
            return _set(document, operation.path, deepcopy(operation.value))
        case _:
            if not _same(_find(document, operation.path), operation.value):
                raise _refuse(_DIFFERS)
            return document


def _step(node: Json, token: str) -> Json:
    """Return the child that a token names; raise if there is no such child."""
    if isinstance(node, dict) and token in node:
        return node[token]
    if isinstance(node, list):
        position = _index(token)
        if position is not None and position < len(node):
            return node[position]
    raise _refuse(_NO_PATH)


def _index(token: str) -> int | None:
    """Parse an array index (RFC 6901: no sign, no leading zero); None if it is invalid."""
    if token.isascii() and token.isdigit() and (token == "0" or token[0] != "0") and len(token) < 10:
        return int(token)
    return None


def _find(document: Json, path: tuple[str, ...]) -> Json:
    for token in path:
        document = _step(document, token)
    return document


def _add(document: Json, path: tuple[str, ...], value: Json) -> Json:
    if not path:
        return value
    try:
        parent = _find(document, path[:-1])
    except FhirError:
        raise _refuse(_NO_PARENT) from None
    token = path[-1]
    if isinstance(parent, dict):
        parent[token] = value
    elif isinstance(parent, list):
        position = len(parent) if token == "-" else _index(token)
        if position is None:
            raise _refuse(_NOT_AN_INDEX)
        if position > len(parent):
            raise _refuse(_NO_INDEX)
        parent.insert(position, value)
    else:
        raise _refuse(_NO_CONTAINER)
    return document


def _remove(document: Json, path: tuple[str, ...]) -> Json:
    if not path:
        return None
    _find(document, path)
    parent, token = _find(document, path[:-1]), path[-1]
    if isinstance(parent, dict):
        del parent[token]
    else:
        del parent[int(token)]
    return document


def _set(document: Json, path: tuple[str, ...], value: Json) -> Json:
    if not path:
        return value
    parent, token = _find(document, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[token] = value
    else:
        parent[int(token)] = value
    return document


def _same(first: Json, other: Json) -> bool:
    """Return whether JSON values are equal; numbers compare by value and never equal booleans."""
    if isinstance(first, dict) and isinstance(other, dict):
        return first.keys() == other.keys() and all(_same(value, other[key]) for key, value in first.items())
    if isinstance(first, list) and isinstance(other, list):
        return len(first) == len(other) and all(map(_same, first, other))
    if isinstance(first, bool) or isinstance(other, bool):
        return first is other
    return bool(first == other)
