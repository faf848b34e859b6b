"""What plain reads and searches can return."""

from __future__ import annotations

import random
from urllib.parse import quote

import pytest

from fhir_gym.fhir import Session
from fhir_gym.fhir.index import index_rows, index_spec
from fhir_gym.fhir.messages import Request
from fhir_gym.tasks.grading.plain_requests import SearchedResource, parse_plain
from fhir_gym.types import Resource


def _get(url: str) -> Request:
    path, _, query = url.partition("?")
    return Request("GET", path, query)


@pytest.mark.parametrize(
    ("url", "types"),
    [
        ("/Patient/1", {"Patient"}),
        ("Patient?family=Lee&_count=200&_sort=-birthdate", {"Patient"}),
        ("/Task?owner=Organization%2F1&_revinclude=Communication:based-on", {"Task", "Communication"}),
        ("/Task?_revinclude=Communication%3Abased-on%3ATask&_revinclude=Task:part-of", {"Task", "Communication"}),
        ("/Appointment?_include=Appointment:slot", {"Appointment", "Slot"}),
        ("/Schedule?_include=Schedule:actor:Practitioner", {"Schedule", "Practitioner"}),
        ("/Schedule?_include=Schedule:no-such", {"Schedule"}),
        ("/Slot?schedule.actor=Location/1", {"Slot", "Schedule"}),
        ("/Schedule?actor:Practitioner.family=Lee", {"Schedule", "Practitioner"}),
        ("/Unknown?actor.family=Lee", {"Unknown"}),
    ],
)
def test_a_plain_request_depends_on_its_types(url: str, types: set[str]) -> None:
    plain = parse_plain(_get(url))
    assert plain is not None
    assert plain.types == types


@pytest.mark.parametrize(
    "url",
    [
        "/",
        "/?_getpages=1",
        "/Patient/1/$everything",
        "/Patient/1/_history",
        "/Slot?schedule.actor.name=Lee",
        "/Slot?schedule.actor:Practitioner.family=Lee",
        "/Slot?_has:Appointment:slot:status=booked",
        "/Schedule?_include=*",
        "/Schedule?_include=Schedule:*",
        "/Schedule?_include:iterate=Schedule:actor",
        "/Task?_revinclude=*",
        "/Task?_revinclude=Communication:*",
        "/Task?_revinclude:iterate=Communication:based-on",
        "/Patient?family=%zz",
        "/Patient?family=%41\udc80",
    ],
)
def test_another_request_may_depend_on_every_type(url: str) -> None:
    assert parse_plain(_get(url)) is None


def test_a_write_may_depend_on_every_type() -> None:
    assert parse_plain(Request("POST", "/Patient/_search")) is None


_PATIENT: Resource = {
    "resourceType": "Patient",
    "id": "p1",
    "name": [{"family": "O'Brien", "given": ["Zoë"]}],
    "birthDate": "1980-02-03",
    "identifier": [{"system": "urn:mrn", "value": "M,1"}],
    "active": True,
    "managingOrganization": {"reference": "Organization/o1"},
}


@pytest.mark.parametrize(
    "url",
    [
        "/Patient/p2",
        "/Patient?family=Lee",
        "/Patient?family=Lee,Ray&given=zoe",
        "/Patient?active=false",
        "/Patient?organization=Organization/o2",
        "/Patient?organization=o2,Organization/o3",
        "/Patient?identifier=urn:mrn|2",
        "/Coverage?beneficiary=Patient/p1",
        "/Patient?family=Lee&_revinclude=Coverage:beneficiary",
    ],
)
def test_a_search_with_another_value_cannot_return_a_resource(url: str) -> None:
    plain = parse_plain(_get(url))
    assert plain is not None
    assert not SearchedResource(_PATIENT).may_be_returned(plain)


@pytest.mark.parametrize(
    "url",
    [
        "/Patient/p1",
        "/Patient?family=o'b&given=ZOE&birthdate=2001-01-01",
        "/Patient?family=Lee,O_Br",
        "/Patient?family=",
        "/Patient?identifier=M\\,1",
        "/Patient?identifier=urn:mrn|",
        "/Patient?organization=o1",
        "/Patient?organization=http://other.example/fhir/Organization/o2",
        "/Patient?family=Lee&_revinclude=Patient:link",
        "/Coverage?beneficiary=Patient/p2&_revinclude=Patient:general-practitioner",
        "/Patient?unknown=1",
    ],
)
def test_a_search_may_return_a_resource(url: str) -> None:
    plain = parse_plain(_get(url))
    assert plain is not None
    assert SearchedResource(_PATIENT).may_be_returned(plain)


def test_an_included_resource_is_one_that_others_refer_to() -> None:
    plain = parse_plain(_get("/Appointment?patient=Patient/p1&_include=Appointment:patient"))
    assert plain is not None
    assert SearchedResource(_PATIENT).may_be_returned(plain)
    assert not SearchedResource(_PATIENT, lambda: False).may_be_returned(plain)


def _searches(rng: random.Random, resources: list[Resource], number: int) -> list[str]:
    """Return searches by values that occur in resources of the same type, spelled in various ways."""
    found: list[str] = []
    while len(found) < number:
        resource = rng.choice(resources)
        kind = resource["resourceType"]
        rows = index_rows(resource, 0)
        name, field = rng.choice([*index_spec(kind).fields.items()])
        values = [row[1:] for row in rows[field.table] if row[0] in field.pids] if field.table != "date" else []
        if not values:
            continue
        value = rng.choice(values)
        spellings = {
            "reference": [value[0], f"{value[1]}/{value[0]}" if len(value) > 1 else value[0]],
            "token": [value[0], f"|{value[0]}", f"{value[4]}|{value[0]}" if len(value) > 4 else value[0]],
            "string": [value[0], str(value[0]).lower(), str(value[0])[:3], f"{str(value[0])[:1]}_"],
        }
        text = rng.choice(spellings.get(field.kind, [str(value[0])]))
        text = rng.choice([text, f"{text},other", f" {text}"])
        found.append(f"/{kind}?{name}={quote(text)}&_count=200")
    return found


def test_no_search_returns_a_resource_that_it_cannot_return(session: Session) -> None:
    """Searches by the values of a resource, and by those of others, are sent to the server."""
    rng = random.Random(1)
    excluded = returned = 0
    for kind in _TYPES:
        bundle = session.handle(Request("GET", f"/{kind}", "_count=60")).json()
        resources = [entry["resource"] for entry in bundle.get("entry", ())]
        searched = [SearchedResource(resource) for resource in resources]
        for url in _searches(rng, resources, 60) if resources else ():
            answer = session.handle(_get(url)).json()
            ids = {entry["resource"]["id"] for entry in answer.get("entry", ())}
            plain = parse_plain(_get(url))
            assert plain is not None
            for resource, searched_resource in zip(resources, searched, strict=True):
                if searched_resource.may_be_returned(plain):
                    continue
                assert resource["id"] not in ids, (url, resource)
                excluded += 1
            returned += len(ids)
    assert excluded > 5_000
    assert returned > 1_000


_TYPES = (
    "Patient",
    "Observation",
    "Encounter",
    "Condition",
    "Slot",
    "Appointment",
    "Practitioner",
    "DocumentReference",
)
