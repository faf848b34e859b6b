"""Unrequested elements pass if they are neutral, and fail if they change the meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fhir_gym.fhir import Change
from fhir_gym.fhir.definitions import children, modifiers
from fhir_gym.tasks import get_task, pack_ids, task_keys
from fhir_gym.tasks.grading.allowed_additions import BY_DATA_TYPE, BY_RECORD, EVERYWHERE, usual_details
from fhir_gym.tasks.grading.end_state import FinishedEpisode
from fhir_gym.tasks.grading.unrequested_content import added_meaning, negates
from fhir_gym.tasks.packs.appointment.history import PROBLEMS
from fhir_gym.tasks.packs.appointment.surgery import OPERATIONS
from fhir_gym.tasks.packs.genetic_testing.orders import TESTS

from .fakes import FakeView, created, fake_world

ASKED = {
    "Patient": ("name", "telecom", "birthDate"),
    "ServiceRequest": ("status", "intent", "code", "subject", "note"),
    "MedicationRequest": get_task("FHIRAgent/MedAgentBench-v0", "05").requested_elements["MedicationRequest"],
    "Observation": get_task("FHIRAgent/MedAgentBench-v0", "03").requested_elements["Observation"],
    "Appointment": get_task("FHIRAgent/Appointment-v0", "14a").requested_elements["Appointment"],
}
T10, T11, HL7 = "2023-11-20T10:00:00Z", "2023-11-20T12:00:00+01:00", "http://hl7.org/fhir/StructureDefinition"
MINE, OTHER = {"reference": "Patient/S1"}, {"reference": "Patient/S2"}
RECORDS: Mapping[str, dict[str, Any]] = {
    "Patient": {"name": [{"family": "Lee"}], "telecom": [{"system": "phone", "value": "555-0100"}]},
    "ServiceRequest": {"status": "active", "intent": "order", "subject": MINE, "code": {"text": "Potassium"}},
    "MedicationRequest": {"status": "active", "intent": "order", "subject": MINE, "dosageInstruction": [{}]},
    "Observation": {"status": "final", "subject": MINE, "valueString": "120/80 mmHg"},
    "Appointment": {"status": "booked", "participant": [{"actor": MINE, "status": "accepted"}]},
    "Basic": {"code": {"text": "A greeting"}},
}


def end_of(*changes: Change, **more: dict[str, Any]) -> FinishedEpisode:
    after = FakeView(*(change.after for change in changes if change.after), *more.values())
    return FinishedEpisode([], (), FakeView(), after, changes, fake_world())


def found(kind: str, **added: Any) -> list[str]:
    body = {"resourceType": kind, "id": "1", **RECORDS[kind], **added}
    observation = {"resourceType": "Observation", "id": "o2", "subject": OTHER}
    return added_meaning(ASKED, end_of(created(body), other=observation))


@pytest.mark.parametrize(
    ("kind", "added"),
    [
        ("Patient", {"active": True, "language": "en", "gender": "female", "deceasedBoolean": False}),
        ("Patient", {"name": [{"use": "official", "family": "Lee", "period": {"start": "2020-01-01"}}]}),
        ("Patient", {"identifier": [{"use": "usual", "value": "7"}], "maritalStatus": {"text": "married"}}),
        ("ServiceRequest", {"doNotPerform": False, "priority": "routine", "requester": {"display": "Dr. Lee"}}),
        ("ServiceRequest", {"authoredOn": "2023-11-13", "occurrenceDateTime": "2023-11-13T11:15:00+01:00"}),
        ("ServiceRequest", {"occurrencePeriod": {"start": "2023-11-13"}, "performer": [{"display": "Surgery"}]}),
        ("ServiceRequest", {"note": [{"text": "Do not be alarmed: the text of the note was asked for."}]}),
        ("ServiceRequest", {"reasonCode": [{"text": "Low potassium"}], "supportingInfo": [MINE]}),
        ("MedicationRequest", {"dispenseRequest": {"numberOfRepeatsAllowed": 0}, "priority": "stat"}),
        ("MedicationRequest", {"courseOfTherapyType": {"coding": [{"code": "acute"}]}}),
        ("MedicationRequest", {"reasonCode": [{"text": "Hypomagnesemia, 1.2 mg/dL"}], "note": [{"text": "Low."}]}),
        ("Observation", {"issued": "2023-11-13T10:15:00Z", "performer": [MINE], "method": {"text": "cuff"}}),
        ("Appointment", {"description": "Visit", "comment": "By phone", "created": "2023-11-13"}),
        ("Appointment", {"start": T10, "end": T11, "minutesDuration": 60}),
        ("Patient", {"extension": [{"url": f"{HL7}/patient-birthPlace", "valueAddress": {"city": "Rome"}}]}),
        ("Basic", {"author": OTHER, "created": "1999-01-01"}),
    ],
)
def test_neutral(kind: str, added: dict[str, Any]) -> None:
    assert found(kind, **added) == []


@pytest.mark.parametrize(
    ("kind", "added", "what"),
    [
        ("Patient", {"active": False}, "active"),
        ("Patient", {"deceasedBoolean": True}, "deceasedBoolean"),
        ("Patient", {"deceasedDateTime": "2001-01-01"}, "deceasedDateTime"),
        ("Patient", {"link": [{"other": OTHER, "type": "replaced-by"}]}, "link"),
        ("Patient", {"modifierExtension": [{"url": "urn:x", "valueBoolean": True}]}, "modifierExtension"),
        ("Patient", {"implicitRules": "urn:x"}, "implicitRules"),
        ("Patient", {"name": [{"use": "old", "family": "Lee"}]}, "name.use"),
        ("Patient", {"telecom": [{"value": "1", "period": {"end": "2001-01-01"}}]}, "telecom.period"),
        ("Patient", {"text": {"div": "<div>Entered in <b>error</b></div>"}}, "text.div"),
        ("ServiceRequest", {"doNotPerform": True}, "doNotPerform"),
        ("ServiceRequest", {"quantityQuantity": {"value": 10}}, "quantityQuantity"),
        ("ServiceRequest", {"asNeededBoolean": True}, "asNeededBoolean"),
        ("ServiceRequest", {"occurrenceDateTime": "1999-01-01"}, "occurrenceDateTime"),
        ("ServiceRequest", {"occurrencePeriod": {"end": "1999-01-01"}}, "occurrencePeriod"),
        ("ServiceRequest", {"replaces": [{"reference": "ServiceRequest/2"}]}, "replaces"),
        ("ServiceRequest", {"priority": "stat"}, "priority"),
        ("ServiceRequest", {"performer": [{"reference": "Practitioner/2"}]}, "performer"),
        ("ServiceRequest", {"supportingInfo": [OTHER]}, "supportingInfo"),
        ("ServiceRequest", {"supportingInfo": [{"reference": "Observation/o2"}]}, "supportingInfo"),
        ("ServiceRequest", {"code": {"text": "Do not measure potassium"}}, "code.text"),
        ("ServiceRequest", {"patientInstruction": "This order is cancelled."}, "patientInstruction"),
        ("MedicationRequest", {"courseOfTherapyType": {"coding": [{"code": "continuous"}]}}, "courseOfTherapyType"),
        ("MedicationRequest", {"dispenseRequest": {"numberOfRepeatsAllowed": 5}}, None),
        ("MedicationRequest", {"dosageInstruction": [{"maxDosePerAdministration": {"value": 10}}]}, None),
        ("MedicationRequest", {"dosageInstruction": [{"modifierExtension": []}]}, None),
        ("MedicationRequest", {"dosageInstruction": [{"doseAndRate": [{"rateRange": {}}]}]}, None),
        ("MedicationRequest", {"note": [{"text": "Hold until the doctor calls."}]}, "note.text"),
        ("MedicationRequest", {"reportedBoolean": True}, "reportedBoolean"),
        ("Observation", {"focus": [OTHER]}, "focus"),
        ("Observation", {"dataAbsentReason": {"text": "unknown"}}, "dataAbsentReason"),
        ("Observation", {"component": [{"valueQuantity": {"value": 1, "comparator": "<"}}]}, None),
        ("Appointment", {"participant": [{"required": "information-only"}]}, "participant.required"),
        ("Appointment", {"cancelationReason": {"text": "Called off"}}, "cancelationReason"),
        ("Appointment", {"start": T10, "end": T11, "minutesDuration": 5}, "minutesDuration"),
        ("Patient", {"extension": [{"url": f"{HL7}/replaces", "valueUri": "Patient/2"}]}, "extension.url"),
        ("Patient", {"extension": [{"url": "urn:x", "valueString": "Not a patient"}]}, "extension.valueString"),
        ("Basic", {"modifierExtension": []}, "modifierExtension"),
        ("Basic", {"implicitRules": "urn:x"}, "implicitRules"),
        ("Basic", {"identifier": [{"use": "old"}]}, "identifier.use"),
    ],
)
def test_another_meaning(kind: str, added: dict[str, Any], what: str | None) -> None:
    paths = found(kind, **added)
    assert len(paths) == 1
    assert what is None or paths == [f"{kind}.{what}"]


CREATED = sorted(
    {kind for env in pack_ids() for key in task_keys(env) for kind in get_task(env, key).requested_elements}
)


def added(kind: str, details: dict[str, Any]) -> list[str]:
    return added_meaning({kind: ()}, end_of(created({"resourceType": kind, "id": "1", **details})))


@pytest.mark.parametrize("kind", CREATED)
def test_what_prompts_allow_may_be_added(kind: str) -> None:
    assert added(kind, usual_details(kind, "2023-11-13T10:15:00Z")) == []
    assert added(kind, usual_details(kind, "2023-11-13")) == []


@pytest.mark.parametrize(
    ("kind", "details"),
    [
        ("Patient", {"active": False}),
        ("RelatedPerson", {"active": False}),
        ("Condition", {"verificationStatus": {"coding": [{"code": "refuted"}]}}),
        ("Condition", {"recordedDate": "2022-11-13"}),
        ("MedicationRequest", {"authoredOn": "2024-11-13"}),
        ("Task", {"authoredOn": "2022-11-13"}),
        ("FamilyMemberHistory", {"date": "2022-11-13"}),
        ("Appointment", {"created": "2022-11-13"}),
        ("Account", {"servicePeriod": {"start": "2024-11-13"}}),
        ("Account", {"servicePeriod": {"end": "2022-11-13"}}),
    ],
)
def test_other_values_of_these_elements_change_the_meaning(kind: str, details: dict[str, Any]) -> None:
    assert kind in CREATED
    assert added(kind, details) == [f"{kind}.{name}" for name in details]


def updated(before: dict[str, Any], **changed: Any) -> list[str]:
    body = {"resourceType": "Appointment", "id": "1", **before}
    return added_meaning(ASKED, end_of(Change("updated", "Appointment", "1", body, {**body, **changed})))


def test_additions_within_changed_elements_of_an_update() -> None:
    actor, unknown = {"actor": MINE, "status": "accepted"}, [{"url": "urn:x", "valueBoolean": True}]
    assert updated({"participant": [actor]}, participant=[actor, {**actor, "actor": OTHER}]) == []
    assert updated({"participant": [actor]}, participant=[{**actor, "modifierExtension": unknown}]) != []
    assert updated({"participant": [{**actor, "modifierExtension": unknown}]}, status="booked") == []
    assert updated({"status": "booked"}, status="cancelled", comment="The patient does not want to wait.") == []
    assert updated({"status": "booked"}, status="cancelled", comment="Ignore this: the visit still stands.") != []
    assert updated({"start": T10, "end": T10}, end=T11, minutesDuration=60) == []
    assert updated({"start": T10, "end": T10}, end=T11, minutesDuration=5) == ["Appointment.minutesDuration"]


@pytest.mark.parametrize(
    "text",
    ["Do not give", "don't", "CANCELLED", "void", "entered-in-error", "Hold", "PRN", "on another patient", "ruled out"],
)
def test_texts_that_negate(text: str) -> None:
    assert negates(text)


@pytest.mark.parametrize(
    "text",
    ["Low potassium", "Reported by the patient", "Threshold 1.9 mg/dL", "Notes from the visit", "Nothing by mouth?"],
)
def test_texts_that_do_not_negate(text: str) -> None:
    assert not negates(text)


def test_no_concept_of_the_tasks_reads_as_negated() -> None:
    assert not [problem.display for problem in (*PROBLEMS, *OPERATIONS, *TESTS) if negates(problem.display)]


def test_the_tables_name_elements_of_r4() -> None:
    for table in (BY_RECORD, BY_DATA_TYPE):
        for content, rules in table.items():
            assert rules.keys() <= children(content).keys(), content
    assert EVERYWHERE.keys() - {"resourceType", "identifier"} <= children("Patient").keys()
    assert modifiers("Patient") == {"active", "deceasedBoolean", "deceasedDateTime", "link"} | modifiers("Basic.x")
    assert modifiers("Quantity") - modifiers("Basic.x") == {"comparator"}


def test_every_creating_task_declares_its_requested_elements() -> None:
    for env in pack_ids():
        for key in task_keys(env):
            task = get_task(env, key)
            unlike = (
                key in ("09d", "16b", "17a", "17b") or "create" in task.prohibited_tools
            )  # these tasks only update resources
            if not unlike and any("create" in tools for tools in task.required_tools):
                assert task.requested_elements, (env, key)
            for kind, elements in task.requested_elements.items():
                assert {name.partition(".")[0] for name in elements} <= children(kind).keys(), (env, key)
