from __future__ import annotations

from collections.abc import Callable

import pytest

from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.i1_medications.kind import MedicationContent, agrees, daily_dose
from fhir_gym.tasks.packs.shift.i1_medications.scene import (
    Dispense,
    DrugRecord,
    Letter,
    parse_dispense,
    parse_letter,
    parse_record,
)
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import NOT_TAKEN
from fhir_gym.types import Resource
from tests.tasks.packs.shift.playing import after_lookups, opened, params_of


@pytest.mark.slow
def test_a_value_needs_the_supply_that_lasts(hospital: World) -> None:
    with opened(hospital, "I1-2", 1) as episode:
        step = after_lookups(episode, lambda url: "/metadata" if url.startswith("/MedicationDispense") else url)
        assert 0 < step.reward < 1


def test_records_are_read_as_they_are_written(hospital: World) -> None:
    with opened(hospital, "I1-1") as episode:
        scene = params_of(episode).scene
        parsers: dict[str, Callable[[Resource], DrugRecord | Dispense | Letter]] = {
            "MedicationRequest": parse_record,
            "MedicationStatement": parse_record,
            "MedicationDispense": parse_dispense,
            "Communication": parse_letter,
        }
        known = {record.id: record for record in (*scene.records, *scene.dispenses, *scene.letters)}
        resources = [
            medication_resource
            for medication_resource in scene.resources()
            if medication_resource["resourceType"] in parsers
        ]
        assert len(resources) == len(known)
        for resource in resources:
            found, expected = parsers[resource["resourceType"]](resource), known[resource["id"]]
            assert shown(found) == shown(expected)


def shown(record: DrugRecord | Dispense | Letter) -> list[object]:
    """Return what counts in a record."""
    if isinstance(record, Dispense):
        return [record.drug, record.status, record.last_day]
    lists = [[record.mention]] if isinstance(record, DrugRecord) else [record.admission, record.discharge]
    doses = [
        [(mention.drug, daily_dose(mention.doses), len(mention.doses)) for mention in mentions] for mentions in lists
    ]
    return [record.status, record.when, *doses]


@pytest.mark.parametrize(
    ("measure", "outcome", "answer", "right"),
    [
        ("dose", "1500", "1500", True),
        ("dose", "1500", "1500.0 mg/day", True),
        ("dose", "1500", "1,500 mg", True),
        ("dose", "1500", "1.5 g", False),
        ("dose", "1500", NOT_TAKEN, False),
        ("dose", NOT_TAKEN, NOT_TAKEN, True),
        ("dose", NOT_TAKEN, "0", False),
        ("dose", "12.5", "12.5", True),
        ("number", "3", "3 drugs", True),
        ("number", "3", "3 mg", False),
        ("number", "3", "", False),
        ("names", "lisinopril, metformin", "lisinopril, metformin", True),
        ("names", "lisinopril, metformin", "metformin and lisinopril", True),
        ("names", "lisinopril, metformin", "lisinopril,metformin,", True),
        ("names", "lisinopril, metformin", "lisinopril", False),
        ("names", "lisinopril, metformin", "lisinopril, metformin, metformin", False),
        ("names", "metformin", "metformin", True),
        ("names", "metformin", "", False),
    ],
)
def test_answers(measure: str, outcome: str, answer: str, right: bool) -> None:
    who = Named(given="Ana", family="Diaz", birth_date="1980-01-01")
    ask = MedicationContent.model_validate({"patient": who, "measure": measure})
    assert agrees(ask, outcome, answer) is right
