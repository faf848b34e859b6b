"""A small world, and the operations and requests of the property tests."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from hypothesis import strategies as st

from fhir_gym.fhir import Request, Response, Session, World, WorldBuilder
from fhir_gym.types import Json, Resource
from tests.property.model import Criteria, Model, Op, Version

NOW = datetime(2023, 11, 13, 10, 15, tzinfo=UTC)
FHIR = "application/fhir+json"
JSON_PATCH = "application/json-patch+json"

FAMILIES = ("Alpha", "Alba", "Ärm", "beta")
GENDERS = ("female", "male", "unknown")
DATES = ("1980-01-31", "1980-02-01", "2001-12-31")
CODES = ("GLU", "K")
VERBS = ("POST", "PUT", "PATCH", "DELETE", "GET")
NEW_IDS = ("new-1", "new-2", "77", "a.b")
PROBES = (
    "Patient?_count=2",
    "Patient?family=al&_sort=-birthdate",
    "Patient?gender:not=male&_summary=true",
    "Observation?patient=S1&code=GLU&_include=Observation:subject",
    "Observation?value-quantity=gt3&_sort=-value-quantity&_total=accurate",
    "Patient?_has:Observation:patient:code=GLU&_revinclude=Observation:subject",
    "Patient/S1",
    "Patient/new-1",
    "Patient/S1/_history",
    "Observation/_history?_count=3",
    "_history",
    "Patient/S2/$everything",
    "$meta",
)


def resources() -> list[Resource]:
    patients: list[Resource] = [
        {"resourceType": "Patient", "id": "S1", "name": [{"family": "Alpha"}], "gender": "female"},
        {"resourceType": "Patient", "id": "S2", "name": [{"family": "Alba"}], "birthDate": "1980-02-01"},
        {"resourceType": "Patient", "id": "5", "name": [{"family": "beta"}], "gender": "male"},
    ]
    return patients + [_observation(f"o{n}", f"Patient/S{n % 2 + 1}", CODES[n % 2], n) for n in range(5)]


def _observation(id: str, subject: str, code: str, value: int | None) -> Resource:
    return {"resourceType": "Observation", "id": id} | observation_content(subject, code, value)


def observation_content(subject: str, code: str, value: int | None) -> Resource:
    content: Resource = {"status": "final", "code": {"coding": [{"code": code}]}, "subject": {"reference": subject}}
    return content | ({} if value is None else {"valueQuantity": {"value": value}})


def build_world(folder: Path) -> World:
    path = folder / "small.sqlite"
    with WorldBuilder(path, name="small", seed=None, now=NOW) as builder:
        for resource in resources():
            builder.add(resource)
    return World.open(path)


# operations

PATIENTS = st.fixed_dictionaries(
    {"name": st.sampled_from(FAMILIES).map(lambda family: [{"family": family}])},
    optional={"gender": st.sampled_from(GENDERS), "birthDate": st.sampled_from(DATES)},
)
CRITERIA: st.SearchStrategy[tuple[str, str]] = st.one_of(
    st.tuples(st.just("family"), st.sampled_from((*FAMILIES, "al", "ÄR", "zz"))),
    st.tuples(st.just("family:exact"), st.sampled_from((*FAMILIES, "alpha"))),
    st.tuples(st.just("family:contains"), st.sampled_from(("a", "lb", "R"))),
    st.tuples(st.just("gender"), st.sampled_from((*GENDERS, "male,female"))),
    st.tuples(st.just("gender:not"), st.sampled_from(GENDERS)),
    st.tuples(st.just("gender:missing"), st.sampled_from(("true", "false"))),
    st.tuples(st.just("birthdate"), st.sampled_from((*DATES, "1980", "ge1980-02", "lt2001", "gt1980-01-31", "le1980"))),
    st.tuples(st.just("_id"), st.sampled_from(("S1", "S2,5", "new-1", "a.b,new-2"))),
    st.tuples(st.just("_tag"), st.sampled_from(("red", "blue"))),
    st.tuples(st.just("_has:Observation:patient:code"), st.sampled_from(CODES)),
)
OBSERVATION_CRITERIA: st.SearchStrategy[tuple[str, str]] = st.one_of(
    st.tuples(st.just("code"), st.sampled_from(CODES)),
    st.tuples(st.just("value-quantity"), st.sampled_from(("gt1", "gt3"))),
    st.tuples(st.just("subject"), st.sampled_from(("Patient/S1", "Patient/5", "Patient/new-1"))),
    st.tuples(st.just("patient.family"), st.sampled_from(("al", "beta", "ar"))),
    st.tuples(st.just("_tag"), st.sampled_from(("red", "blue"))),
)


def parameter(criterion: tuple[str, str]) -> str:
    return criterion[0].partition(":")[0]


@st.composite
def contents(draw: st.DrawFn, model: Model, type: str) -> Resource:
    if type == "Patient":
        return draw(PATIENTS)
    subjects = [f"Patient/{id}" for kind, id in model.versions if kind == "Patient"] + ["Patient/nobody"]
    value = draw(st.none() | st.integers(0, 5))
    return observation_content(draw(st.sampled_from(subjects)), draw(st.sampled_from(CODES)), value)


@st.composite
def operations(draw: st.DrawFn, model: Model, verbs: tuple[str, ...]) -> Op:
    verb = draw(st.sampled_from(verbs))
    type = "Patient" if verb == "PATCH" else draw(st.sampled_from(("Patient", "Patient", "Observation")))
    known = [key[1] for key in model.versions if key[0] == type]
    content: Any = None
    if verb == "PATCH":
        content = draw(st.sampled_from((*GENDERS, None)))
    elif verb in ("POST", "PUT"):
        content = draw(contents(model, type))
    conditional = verb != "GET" and draw(st.integers(0, 3)) == 0
    if conditional:
        criterion = draw(CRITERIA if type == "Patient" else OBSERVATION_CRITERIA)
        return Op(verb, type, criteria=(criterion,), content=content)
    if verb == "POST":
        return Op(verb, type, content=content)
    id = draw(st.sampled_from((*known, *NEW_IDS)))
    if_match = draw(st.sampled_from((0, 0, 0, 1, 2))) if verb in ("PUT", "PATCH") else 0
    return Op(verb, type, id, content=content, if_match=if_match)


# requests


def encoded(url: str) -> str:
    path, mark, query = url.partition("?")
    return path + mark + quote(query, safe="=&,:$.")


def body_of(op: Op) -> Resource:
    id = {"id": op.id or "any"} if op.verb == "PUT" else {}
    return {"resourceType": op.type, **id, **op.content}


def json_patch(gender: str | None) -> list[dict[str, str]]:
    if gender is None:
        return [{"op": "remove", "path": "/gender"}]
    return [{"op": "add", "path": "/gender", "value": gender}]


def criteria_text(criteria: Criteria) -> str:
    return quote("&".join(f"{name}={value}" for name, value in criteria), safe="=&,:")


def send(session: Session, method: str, url: str, body: Json = None, **headers: str) -> Response:
    parts = urlsplit(encoded(url))
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    data = b"" if body is None else json.dumps(body).encode()
    return session.handle(Request(method, f"/{parts.path}", parts.query, sent, data))


def request_of(op: Op) -> dict[str, Any]:
    headers = {"content_type": JSON_PATCH if op.verb == "PATCH" else FHIR}
    if op.verb == "POST" and op.criteria:
        headers["if_none_exist"] = criteria_text(op.criteria)
    if op.if_match:
        headers["if_match"] = f'W/"{op.if_match}"'
    body = json_patch(op.content) if op.verb == "PATCH" else body_of(op) if op.content is not None else None
    return {"method": op.verb, "url": op.url, "body": body, **headers}


def entry_of(op: Op) -> dict[str, Any]:
    request: dict[str, Any] = {"method": op.verb, "url": encoded(op.url)}
    if op.verb == "POST" and op.criteria:
        request["ifNoneExist"] = criteria_text(op.criteria)
    if op.if_match:
        request["ifMatch"] = f'W/"{op.if_match}"'
    if op.verb == "PATCH":
        data = base64.b64encode(json.dumps(json_patch(op.content)).encode()).decode()
        return {"resource": {"resourceType": "Binary", "contentType": JSON_PATCH, "data": data}, "request": request}
    return ({"resource": body_of(op)} if op.content is not None else {}) | {"request": request}


def content_of(resource: Resource) -> Resource:
    return {name: value for name, value in resource.items() if name not in ("resourceType", "id", "meta")}


def tags_of(resource: Resource) -> tuple[str, ...]:
    return tuple(tag["code"] for tag in resource["meta"].get("tag", []))


def version_of(resource: Resource) -> Version:
    key = (resource["resourceType"], resource["id"])
    return Version(key, int(resource["meta"]["versionId"]), content_of(resource), tags_of(resource))


def probe(session: Session) -> list[Response]:
    """Return the responses to fixed requests, and all pages of the first request."""
    answers = [send(session, "GET", url) for url in PROBES]
    following = next((link["url"] for link in answers[0].json()["link"] if link["relation"] == "next"), None)
    if following:
        answers.append(session.handle(Request("GET", "", urlsplit(following).query)))
    return answers


def bare(answers: list[Response]) -> list[Json]:
    """Return the responses without times and page tokens."""
    said = []
    for answer in answers:
        body = answer.json()
        for name in ("id", "link") if body["resourceType"] == "Bundle" else ():
            body.pop(name, None)
        if body["resourceType"] == "Bundle":
            body.get("meta", {}).pop("lastUpdated", None)
        said.append((answer.status, body))
    return said
