from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fhir_gym import worlds
from fhir_gym.fhir import Request
from fhir_gym.fhir import definitions as d
from fhir_gym.specification import Specification, structures, texts

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = os.environ.get("FHIR_R4_PACKAGE", "")
SPEC = Specification()
MAX_CHARS = 20_000
LINE = re.compile(
    r"(?P<indent> *)(?P<name>\w+(?:\[x\])?)(?P<modifier>!?) (?P<min>[01])\.\.(?P<max>[1*]) (?P<types>.*?)"
    r"(?: - (?P<meaning>.*?))?(?: \[(?P<strength>required|extensible|preferred|example): (?P<codes>.*)\])?"
    r'(?: \((?P<left_out>\d+) elements; path="(?P<path>[^"]*)"\))?'
)


class Line(NamedTuple):
    """An element as the text tells it; a choice has one line for each type."""

    type: str
    required: bool
    many: bool
    modifier: bool
    targets: tuple[str, ...]


def _parsed(text: str, prefix: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield the path and match of each element's line."""
    open_names: list[str] = []
    for row in text.splitlines():
        if row.startswith("Common elements: "):
            for part in row.removeprefix("Common elements: ").split(", "):
                yield f"{prefix}.{part.split()[0].rstrip('!')}", _match(part)
            continue
        if row == "Rules:":
            return
        if not re.match(r" *\w+(\[x\])?!? [01]\.\.", row):
            continue
        match = _match(row)
        depth = len(match["indent"]) // 2
        open_names = [*open_names[:depth], match["name"]]
        yield ".".join([prefix, *open_names]), match


def _match(text: str) -> re.Match[str]:
    match = LINE.fullmatch(text)
    assert match is not None, text
    return match


def _told(name: str) -> dict[str, Line]:
    """Return the elements that the texts about a type tell, by path with JSON names."""
    text = SPEC.structure_definition(name) if name in d.RESOURCE_TYPE_SET else SPEC.data_type_definition(name)
    rows = list(_parsed(text, name))
    for path, match in rows:
        if match["path"]:
            rows += _parsed(SPEC.structure_definition(name, match["path"]).partition("\n")[2], path)
    return {f"{path.rpartition('.')[0]}.{child}": line for path, match in rows for child, line in _lines(match)}


def _lines(match: re.Match[str]) -> Iterator[tuple[str, Line]]:
    types, stem = match["types"], match["name"].removesuffix("[x]")
    shared = (match["min"] == "1", match["max"] == "*", bool(match["modifier"]))
    if not match["name"].endswith("[x]"):
        kind, targets = _with_targets(types)
        yield stem, Line(kind, *shared, targets)
        return
    any_type = f"{stem} + any type: "
    named = stem if types.startswith(any_type) else ""
    for option in re.split(r" \| (?![^(]*\))", types.removeprefix(any_type)):
        name, targets = _with_targets(named + option)
        yield name, Line(name.removeprefix(stem), *shared, targets)


def _with_targets(text: str) -> tuple[str, tuple[str, ...]]:
    name, _, inside = text.removesuffix(")").partition("(")
    return name, () if inside in ("", "any") else tuple(inside.split(" | "))


def _defined(path: str) -> Iterator[tuple[str, Line]]:
    """Yield the elements that the server's definitions have, by path with JSON names."""
    marked = d.modifiers(path)
    for name, element in d.children(path).items():
        kind = element.type[0].upper() + element.type[1:] if element.choice else element.type
        if element.content and "." in element.content and element.content != element.path:
            kind = f"same as {element.content}"
        line = Line(kind, element.required, element.many, name in marked, element.targets)
        nested_base = element.path.count(".") > 1 and name in ("id", "extension", "modifierExtension")
        if not nested_base:
            yield f"{path}.{name}", line
        if element.content == element.path:
            yield from _defined(element.path)


@pytest.mark.parametrize("initial", sorted({name[0] for name in d.RESOURCE_TYPES + d.DATA_TYPES}))
def test_elements_types_cardinality_modifiers_and_targets_are_those_of_the_server(initial: str) -> None:
    for name in d.RESOURCE_TYPES + d.DATA_TYPES:
        if name.startswith(initial):
            told, defined = _told(name), dict(_defined(name))
            unmarked = {path: line._replace(modifier=False) for path, line in told.items()}
            assert list(told) == list(defined) or set(told) == set(defined), name
            assert unmarked == {path: line._replace(modifier=False) for path, line in defined.items()}, name
            choices = {path for path, line in told.items() if line.modifier != defined[path].modifier}
            assert not choices, name


def test_codes_on_lines_are_those_of_the_terminology() -> None:
    listed = 0
    for name in d.RESOURCE_TYPES + d.DATA_TYPES:
        text = SPEC.structure_definition(name) if name in d.RESOURCE_TYPE_SET else SPEC.data_type_definition(name)
        for path, match in _parsed(text, name):
            if match["types"] != "code" or not match["codes"] or "codes of" in match["codes"]:
                continue
            parent, _, last = path.rpartition(".")
            element = d.children(parent)[last]
            if element.binding:
                assert set(match["codes"].split(" | ")) == d.codes(element.binding), path
                listed += 1
    assert listed > 200


def test_bound_codes_are_those_of_the_server_s_value_sets() -> None:
    compared = 0
    for name in d.RESOURCE_TYPES + d.DATA_TYPES:
        for path in _paths(name):
            url = d.bound_value_set(path)
            if url is not None:
                assert texts.element(path).value_set == url
                known = texts.codes(url)
                assert known is not None and known.complete and known.by_system == d.value_set(url)
                compared += 1
    assert compared > 700


def _paths(path: str) -> Iterator[str]:
    for element in d.children(path).values():
        yield element.path
        if element.content == element.path:
            yield from _paths(element.path)


def test_search_parameters_are_those_of_the_server() -> None:
    for name in d.RESOURCE_TYPES:
        text = SPEC.search_params(name)
        body, _, rest = text.partition("\nCommon: ")
        rows = [row.split(" ")[:2] for row in body.splitlines()[1:]]
        known = d.search_parameters(name)
        assert [row[0] for row in rows] == [parameter for parameter in known if not parameter.startswith("_")]
        assert [row[1].partition("(")[0] for row in rows] == [known[row[0]].type for row in rows]
        common = re.findall(r"(?:^| \| )(_\w+) \(", rest.partition("\n")[0])
        assert common == [parameter for parameter in known if parameter.startswith("_") and parameter != "_source"]


def test_the_server_accepts_the_values_that_the_text_describes() -> None:
    """Each query uses one form of a value or a result parameter of the text."""
    queries = {
        "Patient": (
            "gender=male gender:not=male gender=http://hl7.org/fhir/administrative-gender|male "
            "gender:in=http://hl7.org/fhir/ValueSet/administrative-gender family=A family:exact=A family:contains=a "
            "birthdate=ge2000-01-01 birthdate=2000-05 family:missing=true _id=x _lastUpdated=ge2000 _tag=x "
            "_profile=x _security=x _count=50 _sort=-birthdate,family _elements=id,name _summary=count "
            "_total=accurate _has:Observation:patient:code=GLU family=a,b"
        ),
        "Observation": (
            "patient=x subject=Patient/x subject:Patient=x subject:Patient.family=a value-quantity=gt5.4 "
            "code:text=a value-quantity=gt5.4|http://unitsofmeasure.org|mmol/L code-value-quantity=GLU$gt5 code=a|b "
            "code=|b code=a| _include=Observation:patient date=2024-05-01T09:30:00Z"
        ),
        "Location": "near=42.25|-83.69|11|km",
        "Organization": "_revinclude=Location:organization",
        "ValueSet": "url=http://x url:below=http://x url:above=http://x",
        "RiskAssessment": "probability=gt0.5",
    }
    with worlds.load("hospital-small") as world, world.session() as session:
        for name, listed in queries.items():
            for query in listed.split():
                response = session.handle(Request("GET", f"/{name}", query.replace("|", "%7C")))
                assert response.status == 200, (name, query, response.body)


def test_every_text_is_short_enough() -> None:
    assert len(SPEC.list_resources()) < MAX_CHARS
    for name in d.RESOURCE_TYPES:
        assert len(SPEC.search_params(name)) < MAX_CHARS
        assert len(SPEC.structure_definition(name)) <= structures.MAX_CHARS
    for name in d.DATA_TYPES:
        assert len(SPEC.data_type_definition(name)) <= structures.MAX_CHARS
    longest = SPEC.structure_definition("ImplementationGuide", "license")  # 346 codes with displays
    assert "346 codes" in longest and len(longest) < MAX_CHARS


def test_the_docs_tell_the_length_of_the_texts() -> None:
    page = (ROOT / "docs" / "specification.md").read_text("utf-8").partition("## How long the texts are")[2]
    rows = re.findall(r"^\| (.*?) \| [\d,]+ \| [\d,]+ \| ([\d,]+) \|$", page, flags=re.MULTILINE)
    named = [(row.rpartition(" ")[2], int(length.replace(",", ""))) for row, length in rows if row.startswith("… ")]
    kinds = {name: [length for row, length in named if row == name] for name in ("Patient", "Appointment", "Slot")}
    for name, lengths in kinds.items():
        assert lengths == [len(SPEC.structure_definition(name)), len(SPEC.search_params(name))]
    assert rows[0] == ("`listResources`", f"{len(SPEC.list_resources()):,}")


def test_list_of_resources() -> None:
    listed = re.findall(r"^  (\w+): \S", SPEC.list_resources(), flags=re.MULTILINE)
    assert sorted(listed) == list(d.RESOURCE_TYPES)


def test_lines_of_an_appointment() -> None:
    text = SPEC.structure_definition("Appointment")
    assert (
        "\nstatus! 1..1 code - The overall status of the Appointment [required: proposed | pending | booked | " in text
    )
    assert "\nparticipant 1..* BackboneElement - Participants involved in appointment\n  type 0..* " in text
    assert "\n  actor 0..1 Reference(Device | HealthcareService | Location | Patient | " in text
    assert 'system http://terminology.hl7.org/CodeSystem/v2-0276 codes CHECKUP "A routine check-up, such as' in text
    assert "\n- Either start and end are specified, or neither\n" in text


def test_choices_have_json_names() -> None:
    assert "value[x] 0..1 valueQuantity | valueCodeableConcept | " in SPEC.structure_definition("Observation")
    assert "medicationReference(Medication)" in SPEC.structure_definition("MedicationRequest")
    assert "onset-date date on onsetDateTime | onsetPeriod" in SPEC.search_params("Condition")
    assert "\ndate date on effective[x] - " in SPEC.search_params("Observation")


def test_a_path_narrows_the_definition_and_lists_all_codes() -> None:
    text = SPEC.structure_definition("Appointment", "cancelationReason")
    assert 'pat-lt "Patient: Lack of Transportation"' in text and "\nOther codes are possible.\n" in text
    assert "\ncoding 0..* Coding - " in text
    for path in ("participant.actor", "Appointment.participant.actor", " participant[0].actor "):
        assert SPEC.structure_definition("Appointment", path).startswith(
            "Appointment.participant.actor 0..1 Reference("
        )
    assert SPEC.structure_definition("Appointment", "Appointment") == SPEC.structure_definition("Appointment")
    assert SPEC.structure_definition("Observation", "value").startswith("Observation.value[x] 0..1 valueQuantity | ")
    assert "\nunit 0..1 string" in SPEC.structure_definition("Observation", "valueQuantity")
    nested = SPEC.structure_definition("Questionnaire", "item.item.item.enableWhen")
    assert nested.startswith("Questionnaire.item.item.item.enableWhen! 0..* BackboneElement - ")


def test_data_types() -> None:
    assert "\nstart 0..1 dateTime - " in SPEC.data_type_definition("Period")
    assert "\nIn JSON: number\nPattern: " in SPEC.data_type_definition("positiveInt")
    assert SPEC.data_type_definition("BackboneElement").startswith("BackboneElement: ")
    assert SPEC.data_type_definition("Extension").count("value + any type: Base64Binary | Boolean | ") == 1


@pytest.mark.parametrize(
    ("name", "path", "expected"),
    [
        ("patient", "", "Error: unknown resource type: 'patient'. Did you mean Patient?"),
        ("Observations", "", "Error: unknown resource type: 'Observations'. Did you mean Observation or "),
        ("\x1b[31m\n", "", "Error: unknown resource type: '?[31m?'. listResources tells all names."),
        ("", "", "Error: unknown resource type: ''. listResources tells all names."),
        ("Period", "", "Error: Period is a data type; use getDataTypeDefinition."),
        ("Slot", "state", "Error: unknown element of Slot: 'state'. Did you mean start or status?"),
        ("Slot", "status.x", "Error: unknown element of Slot.status: 'x'. It has no elements."),
        ("Slot", "Patient", "Error: unknown element of Slot: 'Patient'. Known: id, meta, implicitRules"),
        ("Slot", ".", "Error: unknown element of Slot: ''. Known: id, meta, implicitRules"),
        ("Slot", "x" * 10_000, "Error: the path has more than 200 characters."),
        ("\ud800" * 10_000, "", "Error: unknown resource type: '????"),
    ],
)
def test_hostile_names(name: str, path: str, expected: str) -> None:
    found = SPEC.structure_definition(name, path)
    assert found.startswith(expected) and len(found) < 1_000
    if not path:
        assert SPEC.search_params(name).startswith("Error: ")


def test_data_type_mistakes() -> None:
    assert SPEC.data_type_definition("datetime") == "Error: unknown data type: 'datetime'. Did you mean dateTime?"
    assert SPEC.data_type_definition("Slot") == "Error: Slot is a resource type; use getStructureDefinition."


def test_version_and_hash() -> None:
    assert SPEC.version == "4.0.1"
    assert re.fullmatch("[0-9a-f]{64}", SPEC.hash) and Specification().hash == SPEC.hash


@pytest.mark.skipif(not PACKAGE, reason="FHIR_R4_PACKAGE does not name the official package")
def test_the_file_is_derived_from_the_official_package() -> None:
    from scripts import derive_specification as script
    from scripts.derive_definitions import read_package

    derived = script.to_bytes(script.derive(read_package(Path(PACKAGE))))
    assert gzip.decompress(script.FILE.read_bytes()) == derived
