"""The synthetic hospital: valid, consistent, plausible and deterministic."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from functools import cache
from typing import Any

import pytest
from fhir.resources.R4B import get_fhir_model_class

from fhir_gym.fhir.serialization import normalise
from fhir_gym.types import Resource
from fhir_gym.worlds.hospital import NOW, PATIENTS, generate
from fhir_gym.worlds.hospital.labs import LABS
from tests.worlds.references import dates, targets

PRESENT = NOW.isoformat()


@cache
def hospital(seed: int = 0) -> tuple[Resource, ...]:
    return tuple(generate(seed))


def of(kind: str, seed: int = 0) -> list[Resource]:
    return [resource for resource in hospital(seed) if resource["resourceType"] == kind]


def test_counts() -> None:
    counts = Counter(resource["resourceType"] for resource in hospital())
    assert 4_500 <= counts.total() <= 6_000
    assert counts["Patient"] == PATIENTS
    wanted = {
        "Observation": 2_000, "Slot": 800, "Appointment": 350, "Encounter": 200, "Procedure": 200, "Condition": 150,
        "MedicationRequest": 150, "DiagnosticReport": 100, "ServiceRequest": 100, "Coverage": 60, "Account": 50,
        "RelatedPerson": 50, "AllergyIntolerance": 40, "FamilyMemberHistory": 40, "Organization": 12,
        "Practitioner": 12, "PractitionerRole": 12, "Schedule": 12, "Location": 8,
    }  # fmt: skip
    too_few = {kind: counts[kind] for kind, least in wanted.items() if counts[kind] < least}
    assert not too_few


@pytest.mark.parametrize("seed", [0, pytest.param(7, marks=pytest.mark.slow)])
def test_every_resource_is_valid_r4(seed: int) -> None:
    for resource in hospital(seed):
        get_fhir_model_class(resource["resourceType"]).model_validate(resource)


def test_the_server_keeps_all_of_it() -> None:
    for resource in hospital():
        assert normalise(json.loads(json.dumps(resource))) == resource


@pytest.mark.parametrize("seed", [0, -1, pytest.param(7, marks=pytest.mark.slow)])
def test_references_point_to_earlier_resources(seed: int) -> None:
    created: set[str] = set()
    for resource in hospital(seed):
        assert set(targets(resource)) <= created, resource
        identity = f"{resource['resourceType']}/{resource['id']}"
        assert identity not in created
        created.add(identity)


@pytest.mark.parametrize("seed", [0, pytest.param(7, marks=pytest.mark.slow)])
def test_nothing_happens_before_birth_or_in_the_future(seed: int) -> None:
    born = {patient["id"]: patient["birthDate"] for patient in of("Patient", seed)}
    planned = {"Appointment", "Slot", "Schedule", "Coverage", "ServiceRequest"}
    for resource in hospital(seed):
        kind = resource["resourceType"]
        if kind not in planned:
            assert all(date <= PRESENT for date in dates(resource)), resource
        if kind == "RelatedPerson":
            continue
        owner = resource.get("subject", resource.get("patient", resource.get("beneficiary")))
        for patient in targets(owner):
            if patient.startswith("Patient/"):
                assert all(date[:10] >= born[patient.removeprefix("Patient/")] for date in dates(resource)), resource


def test_patients_are_as_in_the_cohort() -> None:
    patients = of("Patient")
    for patient in patients:
        mrn = patient["id"]
        assert len(mrn) == 8 and mrn[0] == "S" and mrn[1:].isdigit()
        assert patient["identifier"][0]["value"] == mrn
        assert patient["identifier"][0]["type"]["coding"][0]["code"] == "MR"
        assert patient["name"][0]["use"] == "official"
        assert patient["telecom"] and patient["address"][0]["city"]
    assert {patient["gender"] for patient in patients} == {"male", "female"}


@pytest.mark.parametrize("seed", [0, -1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_names_as_a_register_has_them(seed: int) -> None:
    names = [(p["name"][0]["family"], tuple(p["name"][0]["given"]), p["birthDate"]) for p in of("Patient", seed)]
    families = [family for family, _, _ in names]
    assert any("'" in family for family in families)
    assert any("-" in family for family in families)
    assert any(not family.isascii() for family in families)
    full = Counter((family, given) for family, given, _ in names)
    assert max(full.values()) >= 2, "namesakes"
    assert len(set(names)) == len(names), "namesakes have different birth dates"


def test_laboratory_is_as_real_data() -> None:
    results = [o for o in of("Observation") if o["category"][0]["coding"][0]["code"] == "laboratory"]
    by_name: dict[str, list[float]] = defaultdict(list)
    for result in results:
        lab = LABS[result["code"]["text"]]
        assert [c["code"] for c in result["code"]["coding"]] == [lab.base, lab.loinc[0]]
        if "valueQuantity" in result:
            assert result["valueQuantity"]["code"] == lab.unit[1]
            by_name[lab.base].append(result["valueQuantity"]["value"])
        else:
            assert result["status"] == "cancelled" and result["dataAbsentReason"]
        assert result["issued"] > result["effectiveDateTime"]
    assert set(by_name) == set(LABS)
    assert 3.5 < sorted(by_name["K"])[len(by_name["K"]) // 2] < 5.1
    assert max(by_name["A1C"]) > 6.5 and min(by_name["A1C"]) < 5.7
    moments = Counter((o["subject"]["reference"], o["code"]["text"], o["effectiveDateTime"]) for o in results)
    assert max(moments.values()) > 1, "duplicates"
    assert any(o["effectiveDateTime"] >= "2023-11-12T10:15" for o in results), "someone is on the ward now"


def test_a_doctors_day() -> None:
    slots = {slot["id"]: slot for slot in of("Slot")}
    assert {slot["status"] for slot in slots.values()} == {"free", "busy", "busy-unavailable"}
    assert any(s["start"] < PRESENT for s in slots.values()) and any(s["start"] > PRESENT for s in slots.values())
    held = [a for a in of("Appointment") if a["status"] in ("booked", "pending", "fulfilled", "noshow")]
    taken = Counter(a["slot"][0]["reference"].removeprefix("Slot/") for a in held)
    assert max(taken.values()) == 1
    assert set(taken) == {ident for ident, slot in slots.items() if slot["status"] == "busy"}
    busy: Counter[tuple[str, str]] = Counter()
    schedules = {schedule["id"]: schedule for schedule in of("Schedule")}
    for appointment in held:
        slot = slots[appointment["slot"][0]["reference"].removeprefix("Slot/")]
        assert (appointment["start"], appointment["end"]) == (slot["start"], slot["end"])
        people = [participant["actor"]["reference"] for participant in appointment["participant"]]
        schedule = schedules[slot["schedule"]["reference"].removeprefix("Schedule/")]
        assert schedule["actor"][0]["reference"] in people
        busy.update((person, slot["start"]) for person in people if person.startswith("Patient/"))
        assert (appointment["status"] in ("booked", "pending")) == (slot["end"] >= PRESENT)
    assert max(busy.values()) == 1, "a patient is at two places"
    waiting = [a for a in of("Appointment") if a["status"] == "waitlist"]
    assert waiting and all("slot" not in a and a["requestedPeriod"] for a in waiting)


def test_doctors_differ() -> None:
    doctors = of("Practitioner")
    assert len({(d["name"][0]["family"], d["name"][0]["given"][0]) for d in doctors}) == len(doctors)
    assert len({d["name"][0]["family"] for d in doctors}) < len(doctors), "two share a family name"
    assert {d["gender"] for d in doctors} == {"male", "female"}
    assert len({c["coding"][0]["code"] for d in doctors for c in d["communication"]}) >= 4
    assert len({d["address"][0]["city"] for d in doctors}) >= 2
    specialties = {role["specialty"][0]["coding"][0]["display"] for role in of("PractitionerRole")}
    assert {"Cardiology", "Clinical genetics", "General practice"} <= specialties
    assert all(_luhn("80840" + doctor["identifier"][0]["value"]) for doctor in doctors)


def _luhn(number: str) -> bool:
    digits = [int(d) for d in reversed(number)]
    return sum(d if n % 2 == 0 else d * 2 - 9 * (d > 4) for n, d in enumerate(digits)) % 10 == 0


def test_seeds_differ_and_repeat() -> None:
    assert hospital(0) == tuple(generate(0))
    ids: list[set[Any]] = [{patient["id"] for patient in of("Patient", seed)} for seed in (0, 7)]
    assert len(ids[0] & ids[1]) < 3


@pytest.mark.parametrize("count", [1, 2, 10, 300])
def test_any_number_of_patients(count: int) -> None:
    patients = [r for r in generate(3, count) if r["resourceType"] == "Patient"]
    assert len({patient["id"] for patient in patients}) == count
