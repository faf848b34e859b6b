"""The FHIRPath subset of search parameters."""

from __future__ import annotations

import pytest

from fhir_gym.fhir.definitions import RESOURCE_TYPES, search_parameters
from fhir_gym.fhir.fhirpath.parser import PathError
from fhir_gym.fhir.fhirpath.search_paths import compile_below, compile_expression
from fhir_gym.fhir.index import index_spec


def _shown(expression: str, root: str) -> list[tuple[str, str]]:
    return [(".".join(s.key for s in p.steps), p.type) for p in compile_expression(expression, root)]


def test_choices_expand_to_their_types() -> None:
    assert ("valueQuantity", "Quantity") in _shown("Observation.value", "Observation")
    assert _shown("(Observation.value as Quantity)", "Observation") == [("valueQuantity", "Quantity")]
    assert _shown("Condition.onset.as(Age) | Condition.onset.as(Range)", "Condition") == [
        ("onsetAge", "Age"),
        ("onsetRange", "Range"),
    ]
    assert _shown("(Observation.value as CodeableConcept).text", "Observation") == [
        ("valueCodeableConcept.text", "string")
    ]


def test_conditions_are_kept() -> None:
    (path,) = compile_expression("Patient.telecom.where(system='email')", "Patient")
    assert path.steps[0].where == ("system", "email")
    (path,) = compile_expression("Appointment.participant.actor.where(resolve() is Patient)", "Appointment")
    assert (path.target, path.many, path.source) == ("Patient", True, "Appointment.participant.actor")
    assert compile_expression("Bundle.entry[0].resource", "Bundle")[0].steps[0].first
    assert all(
        p.truth for p in compile_expression("Patient.deceased.exists() and Patient.deceased != false", "Patient")
    )


def test_codes_know_their_system() -> None:
    (path,) = compile_expression("Patient.gender", "Patient")
    assert path.system == "http://hl7.org/fhir/administrative-gender"


def test_below_another_path() -> None:
    (base,) = compile_expression("Observation.component", "Observation")
    (path,) = compile_below("value.as(Quantity)", base)
    assert [s.key for s in path.steps] == ["component", "valueQuantity"]


@pytest.mark.parametrize(
    "expression",
    ["Patient.nope", "Observation.value", "Patient.name +", "Patient.name where", "(Patient.name", "Patient[1]", ""],
)
def test_unsupported_expressions_are_refused(expression: str) -> None:
    with pytest.raises(PathError):
        compile_expression(expression, "Patient")


def test_every_parameter_of_every_type_compiles_to_distinct_numbers() -> None:
    seen: set[int] = set()
    for resource_type in RESOURCE_TYPES:
        spec = index_spec(resource_type)
        simple = {n for n, p in search_parameters(resource_type).items() if p.type not in ("composite", "special")}
        assert set(spec.fields) == simple - {"_id", "_lastUpdated", "_source"}
        numbers = {pid for _, _, pid in spec.indexed}
        assert not numbers & seen
        assert all(0 < n < 2**15 for n in numbers)
        seen |= numbers


def test_paths_are_shared_between_parameters() -> None:
    fields = index_spec("Observation").fields
    assert fields["patient"].pids == fields["subject"].pids
    assert set(fields["code"].pids) < set(fields["combo-code"].pids)
    assert len(fields["value-quantity"].pids) == 1
    assert index_spec("Observation").when == fields["date"]
    assert index_spec("Observation").compartment_pid == fields["subject"].pids[0]
    assert index_spec("Appointment").compartment is None  # an appointment may have several participants
