"""FHIRPath Patch: apply the operations of a Parameters resource, with HAPI's messages."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from fhir_gym.fhir.definitions import Element, children
from fhir_gym.fhir.fhirpath.locations import Node, PatchBudget, PatchPath, evaluate, parse_path, root
from fhir_gym.fhir.fhirpath.parser import PathError
from fhir_gym.fhir.limits import Limits
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.serialization import normalise
from fhir_gym.types import Json, Resource

_MAX_OPERATIONS = 1_000
_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class FhirPathPatch:
    """A FHIRPath Patch of a resource."""

    parameters: Resource

    def apply(self, resource: Resource, label: str, limits: Limits = _LIMITS) -> Resource:
        """Return the patched resource in normal form; the limits of a request body also apply to the added values."""
        if self.parameters.get("resourceType") != "Parameters":
            raise FhirError(
                400,
                f"A FHIRPath patch is a Parameters resource, not {self.parameters.get('resourceType')}; "
                "a JSON Patch has the Content-Type application/json-patch+json",
            )
        operations = self.parameters.get("parameter", [])
        if len(operations) > _MAX_OPERATIONS:
            raise FhirError(
                413, f"A patch may have at most {_MAX_OPERATIONS} operations, this one has {len(operations)}"
            )
        whole = root(resource, PatchBudget())
        for parameter in operations:
            _apply(whole, parameter)
        try:
            return normalise(resource)
        except FhirError as error:
            raise FhirError(400, f"Failed to apply FHIRPath patch to {label}: {error.diagnostics}") from None


def _refuse(text: str) -> FhirError:
    return FhirError(400, f"HAPI-1267: [{text}]")


# parameters


@dataclass(slots=True)
class _Operation:
    """The parts of one `operation` parameter."""

    parts: dict[str, dict[str, Any]]

    def text(self, name: str) -> str:
        value = _value(self.parts.get(name, {}))
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int:
        value = _value(self.parts.get(name, {}))
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise _refuse(f"The patch operation needs the part '{name}' with a valueInteger of 0 or more")
        return value

    def path(self, budget: PatchBudget) -> tuple[str, PatchPath]:
        text = self.text("path")
        budget.spend(2 * len(text))
        try:
            return text, parse_path(text)
        except PathError:
            raise FhirError(400, f"HAPI-2726:  {text} is not a valid fhir path") from None


def _value_key(part: dict[str, Any]) -> str | None:
    """Return the name of the property with a part's value (``valueCode``)."""
    return next((key for key in part if key.startswith("value")), None)


def _value(part: dict[str, Any]) -> Json:
    key = _value_key(part)
    return part[key] if key else None


def _apply(whole: Node, parameter: dict[str, Any]) -> None:
    if parameter.get("name") != "operation":
        raise _refuse(f"Unknown patch parameter name: {parameter.get('name', '')}")
    operation = _Operation({part["name"]: part for part in parameter.get("part", []) if "name" in part})
    match operation.text("type"):
        case "add":
            _add(whole, operation)
        case "insert":
            _insert(whole, operation)
        case "delete":
            _delete(whole, operation)
        case "replace":
            _replace(whole, operation)
        case "move":
            _move(whole, operation)
        case other:
            raise _refuse(f"Unknown patch operation type: {other}")


# values


def _element(content: str, name: str, part: dict[str, Any], where: str) -> tuple[str, Element]:
    """Return JSON name and definition of the element that a part sets; for a choice, the type of the value decides."""
    elements = children(content) if content else {}
    if name in elements:
        return name, elements[name]
    key = _value_key(part)
    chosen = name + key.removeprefix("value") if key else ""
    if chosen in elements and elements[chosen].choice == name:
        return chosen, elements[chosen]
    raise _refuse(f"Unknown element {name} at {where}")


def _new_value(part: dict[str, Any], content: str, where: str) -> Json:
    """Return the value of a part: a data type, a resource, or an object built from parts; None if there is no value."""
    if (key := _value_key(part)) is not None:
        return deepcopy(part[key])
    if "resource" in part:
        return deepcopy(part["resource"])
    if "part" not in part:
        return None
    built: dict[str, Any] = {}
    for inner in part["part"]:
        name = inner.get("name", "")
        key, element = _element(content, name, inner, where)
        value = _new_value(inner, element.content, f"{where}.{name}")
        if element.many:
            built.setdefault(key, []).append(value)
        else:
            built[key] = value
    return built


# operations


def _add(whole: Node, operation: _Operation) -> None:
    text, path = operation.path(whole.budget)
    name, part = operation.text("name"), operation.parts.get("value", {})
    node = _one_object(evaluate(path.steps, whole), text, "adding")
    key, element = _element(node.content, name, part, text)
    value = _new_value(part, element.content, f"{text}.{name}")
    if value is None:
        raise _refuse(f"No content found at {text}.{name} when adding")
    if element.many:
        node.value.setdefault(key, []).append(value)
    else:
        _clear_choice(node, element)
        node.value[key] = value


def _one_object(nodes: list[Node], text: str, doing: str) -> Node:
    """Return the only object at a path; raise if there are none or several."""
    objects = [node for node in nodes if isinstance(node.value, dict)]
    if not objects:
        raise FhirError(400, f"HAPI-2761: No element matches the specified path: {text}")
    if len(objects) > 1:
        raise _refuse(f"Multiple elements found at {text} when {doing}")
    return objects[0]


def _clear_choice(node: Node, element: Element) -> None:
    """Remove the values that the choice has in other types."""
    for name, other in children(node.content).items():
        if element.choice is not None and other.choice == element.choice:
            node.value.pop(name, None)
            node.value.pop(f"_{name}", None)


def _replace(whole: Node, operation: _Operation) -> None:
    text, path = operation.path(whole.budget)
    nodes = evaluate(path.steps, whole)
    if not nodes:
        raise FhirError(400, f"HAPI-2761: No element matches the specified path: {text}")
    if len(nodes) > 1:
        raise _refuse(f"Multiple elements found at {text} when replacing")
    node, part = nodes[0], operation.parts.get("value", {})
    value = _new_value(part, node.content, text)
    if value is None:
        raise _refuse(" No valid replacement value for patch operation.")
    if node.holder is None or node.element is None:
        raise _refuse(f"The resource itself cannot be replaced: {text}")
    if node.position is not None:
        node.holder[node.name][node.position] = value
        return
    key, name = _value_key(part), node.name
    if node.element.choice and key:
        renamed = node.element.choice + key.removeprefix("value")
        if renamed != name and _sibling_exists(node, renamed):
            _drop(node)
            name = renamed
    node.holder[name] = value


def _sibling_exists(node: Node, name: str) -> bool:
    """Return whether the node's parent has an element `name`, such as another type of the same choice."""
    return node.element is not None and name in children(node.element.path.rpartition(".")[0])


def _drop(node: Node) -> None:
    """Remove a value from its object."""
    holder = node.holder
    if holder is None:
        return
    if node.position is None:
        holder.pop(node.name, None)
        holder.pop(f"_{node.name}", None)
        return
    for name in (node.name, f"_{node.name}"):
        values = holder.get(name)
        if isinstance(values, list) and node.position < len(values):
            del values[node.position]
            if not values:
                del holder[name]


def _delete(whole: Node, operation: _Operation) -> None:
    text, path = operation.path(whole.budget)
    nodes = evaluate(path.steps, whole)
    if len(nodes) > 1:
        raise _refuse(f"Multiple elements found at {text} when deleting")
    for node in nodes:
        _drop(node)


def _list_at(whole: Node, text: str, path: PatchPath, doing: str) -> tuple[dict[str, Any], str, Element]:
    """Return object, property and definition of the list at a path, even if the list does not exist yet."""
    if not path.member or len(path.steps) < 2:
        raise FhirError(400, f"HAPI-2761: No element matches the specified path: {text}")
    holder = _one_object(evaluate(path.steps[:-1], whole), text, doing)
    key, element = _element(holder.content, path.member, {}, text)
    if not element.many:
        raise _refuse(f"{text} is not a list")
    return holder.value, key, element


def _insert(whole: Node, operation: _Operation) -> None:
    text, path = operation.path(whole.budget)
    index = operation.number("index")
    holder, key, element = _list_at(whole, text, path, "inserting")
    values = holder.setdefault(key, [])
    if index > len(values):
        raise _refuse(f"Invalid insert index {index} for path {text} - Only have {len(values)} existing entries")
    value = _new_value(operation.parts.get("value", {}), element.content, text)
    if value is None:
        raise _refuse(f"No content found at {text} when inserting")
    values.insert(index, value)


def _move(whole: Node, operation: _Operation) -> None:
    text, path = operation.path(whole.budget)
    source, destination = operation.number("source"), operation.number("destination")
    holder, key, _ = _list_at(whole, text, path, "moving")
    values = holder.get(key, [])
    for name, index in (("source", source), ("destination", destination)):
        if index >= len(values):
            raise FhirError(
                400,
                f"HAPI-1268: Invalid move {name} index {index} for path {text} - "
                f"Only have {len(values)} existing entries",
            )
    values.insert(destination, values.pop(source))
