from __future__ import annotations

import gzip
import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir import definitions as d

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = os.environ.get("FHIR_R4_PACKAGE", "")


def _script() -> ModuleType:
    path = ROOT / "scripts" / "derive_definitions.py"
    spec = importlib.util.spec_from_file_location("derive_definitions", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_type_of_the_official_package_is_there() -> None:
    assert len(d.RESOURCE_TYPES) == 146
    assert list(d.RESOURCE_TYPES) == sorted(d.RESOURCE_TYPES)
    assert len(d.DATA_TYPES) == 39
    for name in (*d.RESOURCE_TYPES, *d.DATA_TYPES):
        assert d.children(name)


def test_every_search_parameter_definition_is_there() -> None:
    assert len({row[1] for rows in d._table("search").values() for row in rows}) == 1400
    assert sum(len(d.search_parameters(name)) for name in d.RESOURCE_TYPES) == 2573


def test_numbers_of_search_parameters_are_unique() -> None:
    numbers = [p.id for name in d.RESOURCE_TYPES for p in d.search_parameters(name).values()]
    assert len(set(numbers)) == len(numbers)


def test_an_expression_is_restricted_to_its_resource_type() -> None:
    assert d.search_parameters("Patient")["birthdate"].expression == "Patient.birthDate"
    assert d.search_parameters("Person")["birthdate"].expression == "Person.birthDate"
    assert d.search_parameters("Patient")["_lastUpdated"].expression == "Patient.meta.lastUpdated"
    assert d.search_parameters("InsurancePlan")["name"].expression == "InsurancePlan.name | InsurancePlan.alias"
    code = d.search_parameters("MedicationRequest")["code"]
    assert code.expression == "(MedicationRequest.medication as CodeableConcept)"


def test_every_expression_starts_at_its_type() -> None:
    for name in d.RESOURCE_TYPES:
        for parameter in d.search_parameters(name).values():
            for part in parameter.expression.split(" | "):
                assert part.lstrip("(").startswith(name), (name, parameter)


def test_components_name_parameters_of_the_same_type() -> None:
    for name in d.RESOURCE_TYPES:
        known = d.search_parameters(name)
        for parameter in known.values():
            assert (parameter.type == "composite") == bool(parameter.components)
            assert all(part in known for part, _ in parameter.components)


def test_parameters_over_extensions_and_examples_are_not_offered() -> None:
    assert "mothersMaidenName" not in d.search_parameters("Patient")
    assert "part-agree" not in d.search_parameters("Patient")
    assert d.search_parameters("Condition")["subject"].targets == ("Group", "Patient")


def test_elements_keep_the_order_of_the_definition_and_expand_choices() -> None:
    names = list(d.children("Observation"))
    assert names[:6] == ["id", "meta", "implicitRules", "language", "text", "contained"]
    assert names.index("effectiveDateTime") < names.index("issued") < names.index("valueQuantity")
    value = d.children("Observation")["valueQuantity"]
    assert (value.choice, value.type, value.path) == ("value", "Quantity", "Observation.value[x]")
    assert value.summary and not value.many and not value.required


def test_paths_follow_types_backbones_and_content_references() -> None:
    assert "family" in d.children("Patient.contact.name")
    assert "low" in d.children("Observation.component.referenceRange")
    assert d.children("Questionnaire.item.item.item") == d.children("Questionnaire.item")


@pytest.mark.parametrize("path", ["Foo", "Patient.foo", "Patient.gender", "Patient.gender.x", ""])
def test_a_wrong_path_names_itself(path: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown path"):
        d.children(path)


def test_required_codes() -> None:
    gender = d.children("Patient")["gender"]
    assert gender.binding == "AdministrativeGender"
    assert d.codes("AdministrativeGender") == {"male", "female", "other", "unknown"}
    assert d.enum_name("AdministrativeGender") == "AdministrativeGender"
    assert gender.system == "http://hl7.org/fhir/administrative-gender"
    assert d.enum_name("ConditionClinicalStatus") is None
    with pytest.raises(UnknownNameError, match="AdministrativeGender"):
        d.codes("AdministrativeGende")


def test_value_sets_without_listed_codes_are_not_bindings() -> None:
    assert d.children("Attachment")["contentType"].binding is None


def test_references_name_their_targets() -> None:
    assert d.children("Patient")["managingOrganization"].targets == ("Organization",)
    assert d.children("Observation")["focus"].targets == ()


def test_patient_compartment() -> None:
    assert d.patient_parameters("Observation") == ("subject", "performer")
    assert d.patient_parameters("Organization") == ()


@pytest.mark.skipif(not PACKAGE, reason="FHIR_R4_PACKAGE does not name the official package")
def test_the_files_are_derived_from_the_official_package() -> None:
    script = _script()
    for name, text in script.derive(script.read_package(Path(PACKAGE))).items():
        assert (script.DATA / name).read_text(encoding="utf-8") == text


@pytest.mark.skipif(not PACKAGE, reason="FHIR_R4_PACKAGE does not name the official package")
def test_the_file_of_validation_is_derived_from_the_official_package() -> None:
    from scripts import derive_validation as script
    from scripts.derive_definitions import read_package

    derived = script.to_bytes(script.derive(read_package(Path(PACKAGE))))
    assert gzip.decompress(script.FILE.read_bytes()) == derived


def test_invariants_bindings_and_code_systems() -> None:
    assert [c.key for c in d.constraints("Period")] == ["per-1"]
    (advice,) = [c for c in d.constraints("Patient") if c.advice]
    assert (advice.key, advice.severity) == ("dom-6", "warning")
    bound = d.binding("Condition.clinicalStatus")
    assert bound is not None and bound.strength == "required" and not bound.missing
    assert str(bound) == "'Condition Clinical Status Codes' (http://hl7.org/fhir/ValueSet/condition-clinical|4.0.1)"
    assert d.binding("Observation.bodySite") is None, "an example is no binding"
    system = d.code_system("http://hl7.org/fhir/administrative-gender")
    assert system is not None and "male" in system and "Male" not in system
    assert d.code_system("http://loinc.org") is None


def test_extensions_and_profiles() -> None:
    nationality = d.extension("http://hl7.org/fhir/StructureDefinition/patient-nationality")
    assert nationality is not None and nationality.types == () and nationality.contexts == ("Patient",)
    assert nationality.parts["code"].types == ("CodeableConcept",)
    assert d.extension("http://example.org/x") is None
    assert d.profiled_type("http://hl7.org/fhir/StructureDefinition/vitalsigns") == "Observation"
    assert d.profiled_type("http://hl7.org/fhir/StructureDefinition/Patient") is None


def test_alternatives_are_split_outside_parentheses_only() -> None:
    script = _script()
    assert script.split_alternatives("A.x.where(a | b) | B.y") == ["A.x.where(a | b) ", " B.y"]
    assert script.restrict("(A.v as Quantity) | B.y | z", "A") == "(A.v as Quantity) | A.z"
