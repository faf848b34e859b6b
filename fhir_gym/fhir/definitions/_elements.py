"""Elements of resources, data types and backbone elements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir.definitions import _codes
from fhir_gym.fhir.definitions._files import PRIMITIVES, read

_ALWAYS_MODIFIERS = ("implicitRules", "modifierExtension")


@dataclass(frozen=True, slots=True)
class Element:
    """One JSON property of a resource or data type.

    Attributes:
        name: JSON name. A choice has one element for each type (``valueQuantity``).
        type: FHIR type: ``Quantity``, ``string``, ``BackboneElement``, ``Resource`` …
        path: The path of the element's definition (``Observation.value[x]``).
        content: The type or backbone path with which `children` returns the elements of the value; empty for a
            primitive value.
        choice: The stem of the choice to which the element belongs (``value``), or None.
        many: Whether the element repeats (as a JSON array).
        required: Whether the element must be present; for a choice, whether one of its types must be.
        summary: Whether `_summary=true` includes the element.
        binding: The required binding, if its codes are known; else None.
        system: The code system of a bound ``code``, if it is unique.
        targets: Allowed target types of a Reference; empty if all types are allowed.
    """

    name: str
    type: str
    path: str
    content: str = ""
    choice: str | None = None
    many: bool = False
    required: bool = False
    summary: bool = False
    binding: str | None = None
    system: str | None = None
    targets: tuple[str, ...] = ()


@cache
def _table() -> dict[str, Any]:
    return read("elements")


@cache
def children(path: str) -> Mapping[str, Element]:
    """Return the elements below a path in the order of their definition.

    Args:
        path: A resource type or data type, or such a type followed by element names (``Patient.contact``). A
            `contentReference` to another element is followed.
    """
    table = _table()
    if path not in table:
        return _below(path)
    return MappingProxyType({e.name: e for row in table[path] for e in _expand(path, *row)})


@cache
def _modifiers() -> dict[str, Any]:
    return read("modifiers")


@cache
def modifiers(path: str) -> frozenset[str]:
    """Return the JSON names of the modifier elements (``isModifier``) directly below a path.

    Args:
        path: A resource type or data type, or such a type followed by element names.
    """
    return frozenset((*_ALWAYS_MODIFIERS, *_modifiers().get(path, ())))


def _below(path: str) -> Mapping[str, Element]:
    parent, _, name = path.rpartition(".")
    content = children(parent)[name].content if parent and name in children(parent) else ""
    if not content:
        raise UnknownNameError("path", path, _table())
    return children(content)


def _expand(
    parent: str, name: str, types: str, flags: str = "", binding: str = "", targets: str = "", reference: str = ""
) -> Iterator[Element]:
    path = f"{parent}.{name}"
    stem = name.removesuffix("[x]")
    for type_ in types.split() or ["BackboneElement"]:
        inner = path if path in _table() else type_
        is_code = type_ == "code" and binding
        yield Element(
            name=stem + type_[0].upper() + type_[1:] if stem != name else name,
            type=type_,
            path=path,
            content=reference or ("" if type_ in PRIMITIVES else inner),
            choice=stem if stem != name else None,
            many="m" in flags,
            required="r" in flags,
            summary="s" in flags,
            binding=binding or None,
            system=_codes.system(binding) if is_code else None,
            targets=tuple(targets.split()) if type_ == "Reference" else (),
        )
