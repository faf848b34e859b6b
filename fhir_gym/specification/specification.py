"""`Specification`: what a model can ask about FHIR R4."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from itertools import groupby

from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir.definitions import (
    DATA_TYPES,
    PRIMITIVES,
    RESOURCE_TYPE_SET,
    RESOURCE_TYPES,
    SearchParameter,
    children,
    search_parameters,
)
from fhir_gym.printable import one_line
from fhir_gym.specification import structures, texts

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
        return search_parameter_text(resource_type)

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
        digest.update(f"{_structure(name)}\n{search_parameter_text(name)}\n".encode())
    for name in DATA_TYPES:
        digest.update(f"{_structure(name)}\n".encode())
    return digest.hexdigest()


@cache
def _structure(name: str) -> str:
    return structures.of_type(name)


@cache
def _list_resources() -> str:
    types = sorted((texts.category(name), name) for name in RESOURCE_TYPES)
    lines = [f"The {len(types)} resource types of FHIR R4, by category:"]
    for category, group in groupby(types, key=lambda row: row[0]):
        lines.append(f"{category.replace('.', ' - ')}:")
        lines += [f"  {name}: {structures.first_sentence(texts.about(name))}" for _, name in group]
    return "\n".join(lines)


def _unknown_resource(name: str, tool: str) -> str:
    if name in _TYPES and tool == "getStructureDefinition":
        return f"Error: {name} is a data type; use getDataTypeDefinition."
    return _unknown("resource type", name, RESOURCE_TYPES, otherwise="listResources tells all names.")


def _unknown(kind: str, name: str, valid: Iterable[str], otherwise: str = "") -> str:
    """Return an error text that suggests similar names; if there are none, it ends with `otherwise` or known names."""
    names = {resource_type.lower(): resource_type for resource_type in valid}
    text = name[:_MAX_NAME].lower()
    near = [text] if text in names else get_close_matches(text, names, n=3)
    if near:
        hint = f"Did you mean {' or '.join(names[close_match] for close_match in near)}?"
    else:
        hint = otherwise or f"Known: {', '.join(list(names.values())[:_MAX_KNOWN])}"
    return f"Error: unknown {kind}: {one_line(name, _MAX_NAME)!r}. {hint}"


_LEGEND = "Lines: name type(targets) on the searched elements - meaning. Names are case-sensitive."
_HINTS = {
    "token": "code, system|code (exact), system| (any code of the system), |code (no system). "
    "Modifiers :not, :text (start of the display), :in (URL of a value set).",
    "string": "start of the text; case and accents do not matter. Modifiers :exact, :contains.",
    "date": "2024-05-01, 2024-05 or 2024-05-01T09:30:00Z. Prefixes eq ne gt ge lt le sa eb ap: ge2024-05-01. "
    "For a range, give the parameter twice.",
    "number": "a number. Prefixes eq ne gt ge lt le: gt5.",
    "quantity": "number or number|system|unit. Prefixes eq ne gt ge lt le: gt5.4|http://unitsofmeasure.org|mmol/L.",
    "reference": "Type/id or id. With several target types, name:Type=id. Chains search by the target's parameters: "
    "name:Type.parameter=value.",
    "uri": "the exact URI. Modifiers :above, :below.",
    "composite": "the values of the named parameters in this order, joined with $.",
    "special": "latitude|longitude|distance|unit, for example 42.25|-83.69|11|km.",
}
# Without `_source`, which HAPI and this server refuse by default.
_COMMON = {
    "_id": "id",
    "_lastUpdated": "date of the last change, as for date",
    "_tag": "tag of the meta element, as for token",
    "_profile": "profile, as for uri",
    "_security": "security label, as for token",
}
_RESULTS = """\
Results: _count=50 (page size; more matches: next link of the Bundle) | _sort=-NAME,NAME (- = descending) | \
_include={type}:NAME (adds the targets of a reference) | \
_revinclude=Type:NAME (adds resources that refer to the matches) | \
_elements=id,NAME | _summary=count (only the number of matches) | _total=accurate
Reverse chain: _has:Type:NAME:parameter=value (matches to which a Type refers with NAME).
All: name=a,b means a or b; a repeated name means and; name:missing=true|false."""
_CHOICE = re.compile(r"\(?([\w.]+)(?: as |\.as\()(\w+)\)")


def search_parameter_text(resource_type: str) -> str:
    """Return the search parameters of a resource type."""
    parameters = search_parameters(resource_type)
    own = [parameter for name, parameter in parameters.items() if not name.startswith("_")]
    kinds = dict.fromkeys(sorted({parameter.type for parameter in own}))
    common = " | ".join(f"{name} ({_COMMON[name]})" for name in parameters if name in _COMMON)
    return "\n".join(
        [
            f"Search parameters of {resource_type}. {_LEGEND}",
            *(_line(parameter, resource_type) for parameter in own),
            f"Common: {common}",
            "Values by type:",
            *(f"- {kind}: {_HINTS[kind]}" for kind in kinds),
            _RESULTS.format(type=resource_type),
        ]
    )


def _line(parameter: SearchParameter, resource_type: str) -> str:
    inside = ""
    if parameter.type == "reference":
        everything = len(parameter.targets) >= len(RESOURCE_TYPES) - 1
        inside = "any" if everything else " | ".join(parameter.targets)
    elif parameter.components:
        inside = ", ".join(name for name, _ in parameter.components)
    kind = f"{parameter.type}({inside})" if inside else parameter.type
    line = f"{parameter.name} {kind} on {_searched(parameter.expression, resource_type)}"
    meaning = texts.search_parameter(parameter.definition, resource_type)
    return f"{line} - {meaning.removesuffix('.')}" if meaning else line


def _searched(expression: str, resource_type: str) -> str:
    """Return an expression with JSON names and without the resource type (``valueQuantity | valueSampledData``)."""
    shown = _CHOICE.sub(lambda match: match[1] + match[2][0].upper() + match[2][1:], expression)
    shown = re.sub(r"\.where\(resolve\(\) is (\w+)\)", r" (\1 only)", shown)
    shown = re.sub(rf"\b{resource_type}\.[\w.]+", lambda match: _with_choice(match[0]), shown)
    return re.sub(rf"\b{resource_type}\.", "", shown)


def _with_choice(path: str) -> str:
    """Return a path, with ``[x]`` at its end if it is a choice (``Observation.effective``)."""
    parent, _, name = path.rpartition(".")
    try:
        is_choice = any(element.choice == name for element in children(parent).values())
    except UnknownNameError:
        return path
    return f"{path}[x]" if is_choice else path
