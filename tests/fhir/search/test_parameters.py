"""Matches of each parameter type, with resources in the base world, the overlay or both."""

from __future__ import annotations

import pytest

from fhir_gym.fhir import World

from .conftest import Client

CASES = [
    # tokens
    ("Observation?code=GLU", "B1 B2 B4"),
    ("Observation?code=glu", ""),
    ("Observation?code=|GLU", "B1 B2 B4"),
    ("Observation?code=http://loinc.org|L-GLU", "B1 B2 B4"),
    ("Observation?code=http://loinc.org|", "B1 B2 B3 B4 B5"),
    ("Observation?code=http://other|L-GLU", ""),
    ("Observation?code=K,GLU", "B1 B2 B3 B4 B5"),
    ("Observation?code=http://loinc.org|L-K,|GLU", "B1 B2 B3 B4 B5"),
    ("Observation?code=GLU&code=L-GLU", "B1 B2 B4"),
    ("Observation?code=GLU&code=K", ""),
    ("Observation?code:not=GLU", "B3 B5 B6"),
    ("Observation?code:not=GLU,K", "B6"),
    ("Observation?code:text=glu", "B1 B2 B4"),
    ("Observation?code:text=blood", "B6"),
    ("Observation?code=a|b|c", ""),
    ("Observation?code=GLU\\,K", ""),
    ("Observation?code=|", "B1 B2 B3 B4 B5 B6"),
    ("Observation?component-code=SYS", "B6"),
    ("Observation?status:above=final", "B1 B2 B4 B5 B6"),
    ("Observation?combo-code=SYS,K", "B3 B5 B6"),
    ("Observation?status=http://hl7.org/fhir/observation-status|amended", "B3"),
    ("Patient?identifier=http://mrn|P2", "P2"),
    ("Patient?gender=female", "P2 P3"),
    ("Patient?gender:missing=true", ""),
    ("Patient?deceased=true", "P3"),
    ("Patient?deceased=false", "P1 P2 P4"),
    ("Patient?phone=555", "P4"),
    ("Patient?telecom=phone|555", "P4"),
    ("Patient?telecom:missing=true", "P1 P2 P3"),
    ("Patient?telecom:missing=false", "P4"),
    ("Patient?_tag=vip", "P2"),
    ("Patient?_tag=|vip", "P2"),
    ("Patient?gender:in=http://hl7.org/fhir/ValueSet/administrative-gender", "P1 P2 P3 P4"),
    ("Patient?gender:not-in=http://hl7.org/fhir/ValueSet/administrative-gender", ""),
    ("Patient?gender:above=female", "P2 P3"),
    ("Patient?gender:below=http://hl7.org/fhir/administrative-gender|female", ""),
    # strings
    ("Patient?family=smith", "P1 P2"),
    ("Patient?family=sMi_h", "P1 P2"),
    ("Patient?family=mith", ""),
    ("Patient?family:contains=mith", "P1 P2"),
    ("Patient?family:exact=Smith", "P1"),
    ("Patient?family:exact=smith", ""),
    ("Patient?family=garcia", "P4"),
    ("Patient?family=GARCÍA", "P4"),
    ("Patient?family=OBrien", ""),
    ("Patient?family=o'b", "P3"),
    ("Patient?family=s%25", ""),
    ("Patient?given=zoe", "P2"),
    ("Patient?name=ana,mia", "P4 P3"),
    ("Patient?family=", "P4 P3 P1 P2"),
    # dates
    ("Observation?date=2023-11-13", "B2 B3"),
    ("Observation?date=ge2023-11-13", "B2 B3 B6"),
    ("Observation?date=gt2023-11-13", "B6"),
    ("Observation?date=lt2023-11-01", "B5 B4"),
    ("Observation?date=le2023-11-01", "B5 B4 B6"),
    ("Observation?date=sa2023-11-12", "B2 B3"),
    ("Observation?date=eb2023-11-12", "B5 B4"),
    ("Observation?date=ne2023-11-13", "B5 B4 B6 B1"),
    ("Observation?date=2023-11", "B6 B1 B2 B3"),
    ("Observation?date=ge2023", ""),
    ("Observation?date=2022-01-01", "B5"),
    ("Observation?date=2023-11-13T09:00:00Z", "B2"),
    ("Observation?date=ge2023-11-13T09:00:01Z&date=le2023-11-13T10:00:00Z", "B6 B3"),
    ("Observation?date=sa2023-11-13T08:59:59Z", "B2 B3"),
    ("Observation?date=sa2023-11-13T09:00:00Z", "B3"),
    ("Observation?date=sa2023-11-13T09:00Z", "B3"),
    ("Observation?date=sa2023-11-12&date=lt2023-11-13T09:10:00Z", "B2"),
    ("Observation?date=sa2023-11-13&date=lt2023-11-13T09:10:00Z", ""),
    ("Patient?birthdate=1990-12", "P4"),
    ("Patient?birthdate=gt1990-12-31", "P3"),
    ("Patient?_lastUpdated=ge2010", "P1 P2 P3 P4"),
    ("Patient?_lastUpdated=lt2010", ""),
    # references
    ("Observation?patient=P1", "B1 B2 B3"),
    ("Observation?patient=Patient/P1", "B1 B2 B3"),
    ("Observation?patient=/Patient/P1", "B1 B2 B3"),
    ("Observation?patient=Patient/P1/_history/1", "B1 B2 B3"),
    ("Observation?subject:Patient=P1", "B1 B2 B3"),
    ("Observation?subject=P1,P3", "B1 B2 B3 B5"),
    ("Observation?patient=Group/P1", ""),
    ("Observation?subject=Group/P1", ""),
    ("Observation?patient=http://x/Patient/P1", ""),
    ("Observation?patient=P1&code=GLU", "B1 B2"),
    ("Observation?subject=P1&code=GLU,K&status=amended", "B3"),
    ("Observation?patient=P1&date=ge2023-11-13", "B2 B3"),
    ("Observation?patient=P1&patient=P2", ""),
    ("Observation?encounter:missing=false", ""),
    ("Appointment?patient=P1", "A1"),
    ("Appointment?actor=D1", "A1"),
    ("Appointment?patient=D1", ""),
    # quantities
    ("Observation?value-quantity=100", "B1"),
    ("Observation?value-quantity=100.00", "B1"),
    ("Observation?value-quantity=gt90&code=GLU", "B1 B2"),
    ("Observation?value-quantity=le5.5", "B3 B5"),
    ("Observation?value-quantity=ap95||mg/dL", "B4 B1"),
    ("Observation?value-quantity=ne100", "B3 B5 B4 B2"),
    ("Observation?value-quantity=100|http://unitsofmeasure.org|mg/dL", "B1"),
    ("Observation?value-quantity=100||g", ""),
    ("Observation?combo-value-quantity=gt110", "B6 B2"),
    # positions
    ("Location?near=42.36|-71.05|2|km", "L1"),
    ("Location?near=42.37|-71.05", ""),
    ("Location?near=42.37|-71.05|1|mi", "L1"),
    # composites
    ("Observation?code-value-quantity=GLU$gt95", "B1 B2"),
    ("Observation?code-value-quantity=GLU$", ""),
    ("Observation?code-value-quantity:not=GLU$gt95", "B3 B4 B5 B6"),
    ("Observation?component-code-value-quantity=SYS$gt100", "B6"),
    # chains and _has
    ("Observation?patient.family=Smith", "B1 B2 B3 B4 B6"),
    ("Observation?patient.family:exact=Smith", "B1 B2 B3"),
    ("Observation?subject:Patient.gender=female", "B4 B6 B5"),
    ("Observation?patient.organization.name=acme", "B1 B2 B3"),
    ("Slot?schedule.actor:Practitioner.family=stone&status=free", "T1"),
    ("Observation?patient:Practitioner.family=Smith", ""),
    ("Observation?patient._id=P1", ""),
    ("Observation?subject:Patient._id=P1", "B1 B2 B3"),
    ("Observation?subject:patient.family=Stone", ""),
    ("Observation?subject:patient.family:exact=Smith", "B1 B2 B3"),
    ("Observation?patient._has:Encounter:subject:status=finished", "B1 B2 B3"),
    ("Observation?patient:Organization.name=Acme", ""),
    ("Patient?_has:Observation:code:status=final", ""),
    ("Patient?_has:Observation:patient:code=GLU", "P1 P2"),
    ("Patient?_has:Observation:patient:date=2022,2023-10-01", "P2 P3"),
    ("Patient?_id=|P2", "P2"),
    ("Observation?patient.type=person", ""),
    ("Observation?has-member:Patient=Observation/B1,B1", ""),
    ("Observation?focus._tag:not=x&focus.subject._profile=http://p", ""),
    ("Patient?_has:Observation:patient:code=", "P1 P2 P3"),
    ("Patient?_has:Observation:subject:code=GLU&_has:Observation:subject:code=K", "P1"),
    ("Practitioner?_has:Schedule:actor:_has:Slot:schedule:status=free", "D1"),
    ("Patient?_has:Observation:patient:performer.family=Stone", "P2"),
    # resource-level and others
    ("Patient?_id=P1", "P1"),
    ("Patient?_id=P3,P1,nope,Patient/P2,Group/P4", "P1 P2 P3"),
    ("Patient?_id:not=P1", "P2 P3 P4"),
    ("Patient?_id:not=P1,nope", "P2 P3 P4"),
    ("Patient?_id:not=nope", ""),
    ("Patient?_tag=vip,http://t|", "P2"),
    ("Patient?_tag:not=vip,http://t|", "P1 P3 P4"),
    ("Patient?_tag:text=http://t|", ""),
    ("Patient?_profile=http://p/StructureDefinition/a", "P3"),
    ("Patient?_profile:below=http://p", "P3"),
    ("Patient?_profile:above=http://p/StructureDefinition/a", "P3"),
    ("Patient?_profile:above=http://p/StructureDefinition/a/b", ""),
    ("Patient?gender:above=male,female", "P1 P2 P3"),
    ("Observation?value-quantity=gt150,lt5", "B3 B2"),
    ("Patient?_list=1", ""),
    ("Patient?_foo=1", "P1 P2 P3 P4"),
    ("Patient?gender=female&family=", "P3 P2"),
    ("Patient?_filter=family eq smith", "P1"),
    ("Patient?_filter=family sw smith and gender eq female", "P2"),
    ("Patient?_filter=(family eq smith or family co brien) and birthdate lt 1980-01-01", "P1"),
    ("Observation?_filter=value-quantity gt 95 and patient.family eq Smith", "B1 B2"),
]


@pytest.mark.parametrize(("url", "expected"), CASES, ids=[c[0] for c in CASES])
def test_matches(client: Client, url: str, expected: str) -> None:
    assert client.ids(f"/{url}") == expected.split()


SORTS = [
    ("Patient?_sort=birthdate", "P1 P2 P4 P3"),
    ("Patient?_sort=-birthdate", "P3 P4 P2 P1"),
    ("Patient?_sort=gender,-_id", "P3 P2 P1 P4"),
    ("Patient?_sort=telecom", "P4 P1 P2 P3"),
    ("Patient?_sort=-telecom", "P4 P1 P2 P3"),
    ("Patient?_sort:desc=family", "P2 P1 P3 P4"),
    ("Patient?_sort=,family,", "P4 P3 P1 P2"),
    ("Observation?patient=P1&code=GLU&_sort=-date", "B2 B1"),
    ("Observation?patient=P1&code=GLU&date=ge2023-11-13&_sort=-date", "B2"),
    ("Observation?_sort=-value-quantity,_id", "B2 B1 B4 B5 B3 B6"),
    ("Observation?_sort=code-value-quantity&code=GLU", "B4 B1 B2"),
    ("Patient?_sort=organization.name,_id", "P1 P2 P3 P4"),
]


@pytest.mark.parametrize(("url", "expected"), SORTS, ids=[s[0] for s in SORTS])
def test_sort(client: Client, url: str, expected: str) -> None:
    assert client.ids(f"/{url}") == expected.split()


@pytest.mark.parametrize("prefix", ["gt", "sa"])
@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("2023-11-12T07:59:59Z", "A"),
        ("2023-11-12T08:00:00Z", ""),
        ("2023-11-11", "A B"),
        ("2023-11-12", "A B"),  # as in HAPI, a day is included
        ("2023-11-13", ""),
        ("2023", ""),
    ],
)
def test_resources_updated_after_a_time(empty_world: World, prefix: str, time: str, expected: str) -> None:
    times = {"A": "2023-11-12T08:00:00Z", "B": "2023-11-12T00:00:00Z"}
    with empty_world.session() as session:
        session.load([{"resourceType": "Patient", "id": id, "meta": {"lastUpdated": at}} for id, at in times.items()])
        assert Client(session).ids(f"Patient?_lastUpdated={prefix}{time}&_sort=_id") == expected.split()
