"""`Specification`: what a model can ask about FHIR R4."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from itertools import groupby

from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir.definitions import DATA_TYPES, PRIMITIVES, RESOURCE_TYPE_SET, RESOURCE_TYPES
from fhir_gym.printable import one_line
from fhir_gym.specification import searching, structures, texts

VERSION = "4.0.1"
"""The version of FHIR that `Specification` describes."""

_MAX_NAME = 60
_MAX_PATH = 200
_MAX_KNOWN = 80
_TYPES = (*DATA_TYPES, *sorted(PRIMITIVES))
_NESTED = ("BackboneElement", "Element")


class Specification:
    """FHIR R4 as text for a model.

    Every method returns text of bounded length. An unknown name gives a text that begins with ``Error:`` and suggests
    similar names; no argument raises an exception.
    """

    version = VERSION

    @property
    def hash(self) -> str:
        """SHA-256 of everything that a model can read here, except the definitions of single elements."""
        return _hash()

    def list_resources(self) -> str:
        """Return the resource types with a short description, by category."""
        return _list_resources()

    def structure_definition(self, resource_type: str, path: str = "") -> str:
        """Return the elements of a resource type.

        Args:
            resource_type: The resource type (``Appointment``).
            path: An element (``participant`` or ``participant.actor``), to get only this element, with its full
                definition, all known codes and the elements inside it; empty for the whole resource type.
        """
        if resource_type not in RESOURCE_TYPE_SET:
            return _unknown_resource(resource_type, "getStructureDefinition")
        if path.strip() in ("", resource_type):
            return _structure(resource_type)
        if len(path) > _MAX_PATH:
            return f"Error: the path has more than {_MAX_PATH} characters."
        try:
            return structures.of_path(resource_type, path)
        except UnknownNameError as error:
            return _unknown(
                error.kind, str(error.name), error.known, otherwise="" if error.known else "It has no elements."
            )

    def search_params(self, resource_type: str) -> str:
        """Return the search parameters of a resource type, and how to write their values."""
        if resource_type not in RESOURCE_TYPE_SET:
            return _unknown_resource(resource_type, "getSearchParams")
        return searching.text(resource_type)

    def data_type_definition(self, name: str) -> str:
        """Return the elements of a data type (``Period``), or the format of a primitive type (``dateTime``)."""
        if name in PRIMITIVES:
            return structures.of_primitive(name)
        if name in _TYPES:
            return _structure(name)
        if name in _NESTED:
            return (
                f"{name}: an element with its own elements, which getStructureDefinition shows for each resource type."
            )
        if name in RESOURCE_TYPE_SET:
            return f"Error: {name} is a resource type; use getStructureDefinition."
        return _unknown("data type", name, _TYPES)


@cache
def _hash() -> str:
    digest = hashlib.sha256(texts.file_bytes())
    digest.update(_list_resources().encode())
    for name in RESOURCE_TYPES:
        digest.update(f"{_structure(name)}\n{searching.text(name)}\n".encode())
    for name in DATA_TYPES:
        digest.update(f"{_structure(name)}\n".encode())
    return digest.hexdigest()


@cache
def _structure(name: str) -> str:
    return structures.of_type(name)


@cache
def _list_resources() -> str:
    found = sorted((texts.category(name), name) for name in RESOURCE_TYPES)
    lines = [f"The {len(found)} resource types of FHIR R4, by category:"]
    for category, group in groupby(found, key=lambda row: row[0]):
        lines.append(f"{category.replace('.', ' - ')}:")
        lines += [f"  {name}: {structures.first_sentence(texts.about(name))}" for _, name in group]
    return "\n".join(lines)


def _unknown_resource(name: str, tool: str) -> str:
    if name in _TYPES and tool == "getStructureDefinition":
        return f"Error: {name} is a data type; use getDataTypeDefinition."
    return _unknown("resource type", name, RESOURCE_TYPES, otherwise="listResources tells all names.")


def _unknown(kind: str, name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return an error text that suggests similar names; if there are none, it ends with `otherwise` or known names."""
    names = {one.lower(): one for one in known}
    given = name[:_MAX_NAME].lower()
    near = [given] if given in names else get_close_matches(given, names, n=3)
    if near:
        hint = f"Did you mean {' or '.join(names[one] for one in near)}?"
    else:
        hint = otherwise or f"Known: {', '.join(list(names.values())[:_MAX_KNOWN])}"
    return f"Error: unknown {kind}: {one_line(name, _MAX_NAME)!r}. {hint}"
