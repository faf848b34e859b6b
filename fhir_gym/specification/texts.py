"""HL7's texts about FHIR R4: descriptions, bindings, displays of codes, rules.

`scripts/derive_specification.py` derives the data file from HL7's official package, whose definitions are CC0. The file
is read on first use. Elements, types, cardinalities and codes come from `fhir_gym.fhir.definitions`, which the server
uses too.
"""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from fhir_gym.fhir.definitions import value_set

_FILE = Path(__file__).with_name("data") / "texts.json.gz"
_BASES = ("Resource", "DomainResource", "Element", "BackboneElement")


class ElementText(NamedTuple):
    """HL7's text about an element.

    Attributes:
        short: What the element means, in a few words; for many codes, the list of codes.
        definition: The definition; empty if it only repeats `short`.
        strength: The strength of the binding: ``required``, ``extensible``, ``preferred`` or ``example``.
        value_set: URL of the bound value set.
    """

    short: str
    definition: str = ""
    strength: str = ""
    value_set: str = ""


class Codes(NamedTuple):
    """The codes of a value set that are known, by system.

    Attributes:
        by_system: The codes of each system, in the order of the value set.
        complete: Whether the value set has no other codes.
    """

    by_system: dict[str, tuple[str, ...]]
    complete: bool

    def __len__(self) -> int:
        return sum(len(codes) for codes in self.by_system.values())


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = orjson.loads(gzip.decompress(_FILE.read_bytes()))
    return table


def file_bytes() -> bytes:
    """Return the uncompressed data file."""
    return gzip.decompress(_FILE.read_bytes())


def category(resource_type: str) -> str:
    """Return HL7's category of a resource type (``Base.Workflow``)."""
    name: str = _table()["resources"][resource_type][0]
    return name


def about(name: str) -> str:
    """Return the description of a resource type or data type; empty if there is none."""
    table = _table()
    if name in table["resources"]:
        return str(table["resources"][name][1])
    return str(table["types"].get(name) or table["primitives"].get(name, [""])[0])


def pattern(primitive: str) -> str:
    """Return the regular expression of a primitive type; empty if there is none."""
    return str(_table()["primitives"][primitive][1])


def is_inherited(path: str) -> bool:
    """Return whether a base type (`Resource`, `Element` …) defines the element."""
    return path not in _table()["elements"]


def element(path: str) -> ElementText:
    """Return the text about an element, given the path of its definition (``Observation.value[x]``)."""
    table, name = _table()["elements"], path.rpartition(".")[2]
    paths = (path, *(f"{base}.{name}" for base in _BASES))
    return ElementText(*next((table[candidate] for candidate in paths if candidate in table), [""]))


def rules(name: str) -> list[tuple[str, str]]:
    """Return the path and text of the rules for instances of a resource type or data type."""
    return [(path, text) for path, text in _table()["rules"].get(name, [])]


def display(system: str, code: str) -> str:
    """Return the display of a code; empty if it is unknown or only repeats the code."""
    return str(_table()["displays"].get(system, {}).get(code, ""))


def codes(url: str) -> Codes | None:
    """Return the known codes of a value set; None if there are none."""
    listed = value_set(url)
    if listed is not None:
        return Codes(dict(listed), complete=True)
    partial = _table()["partial"].get(url)
    return Codes({system: tuple(listed) for system, listed in partial.items()}, complete=False) if partial else None


def systems(url: str) -> tuple[str, ...]:
    """Return the code systems of a value set whose codes are not listed (``http://snomed.info/sct``)."""
    return tuple(_table()["systems"].get(url, ()))


def search_parameter(definition: str, resource_type: str) -> str:
    """Return what a search parameter means for a resource type.

    Args:
        definition: The id of the SearchParameter definition.
        resource_type: The resource type, for definitions that describe the parameter by type.
    """
    text = _table()["search"][definition]
    return text if isinstance(text, str) else str(text.get(resource_type, ""))
