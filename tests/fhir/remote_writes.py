"""Writes of all kinds to a remote server, and the content of the server before and after them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx

from fhir_gym.fhir import Request, Response, Session
from fhir_gym.fhir.adapters.remote import RemoteSession
from fhir_gym.types import Resource
from tests.fhir.writing import entry, patient
from tests.property.scene import FHIR, JSON_PATCH, observation_content

CLIENT = httpx.Client(verify=False)  # all servers are on this machine
AnySession = Session | RemoteSession


def request(method: str, url: str, body: Any = None, **headers: str) -> Request:
    path, _, query = url.partition("?")
    sent = {"content-type": FHIR} | {name.replace("_", "-"): value for name, value in headers.items()}
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    return Request(method, path, query, sent, data)


def send(session: AnySession, method: str, url: str, body: Any = None, **headers: str) -> Response:
    return session.handle(request(method, url, body, **headers))


def state(server: str) -> dict[str, Any]:
    """Return the server's content with exact decimals and sorted labels, and without versions and times."""
    kinds = ("Patient", "Observation", "Basic", "Binary", "Bundle")
    searches = bundle("batch", *(entry("GET", f"{kind}?_count=1000") for kind in kinds))
    answer = CLIENT.post(server, json=searches, headers={"content-type": FHIR})
    found = {}
    for searched in json.loads(answer.content, parse_float=str)["entry"]:
        for match in searched["resource"].get("entry", []):
            resource = match["resource"]
            meta = {k: v for k, v in resource.pop("meta").items() if k not in ("versionId", "lastUpdated")}
            for labels in meta.values():
                labels.sort(key=repr)
            found[f"{resource['resourceType']}/{resource['id']}"] = resource | {"meta": meta}
    return found


def tags(*codes: str) -> Resource:
    meta = {"tag": [{"system": "urn:x", "code": code} for code in codes]}
    return {"resourceType": "Parameters", "parameter": [{"name": "meta", "valueMeta": meta}]}


def bundle(kind: str, *entries: dict[str, Any]) -> Resource:
    return {"resourceType": "Bundle", "type": kind, "entry": list(entries)}


URN = "urn:uuid:0a0b0c0d-1111-4222-8333-000000000001"
NOTE = {"resourceType": "Observation", **observation_content("Patient/S1", "NOTE", 1)}
GENDER = [{"op": "add", "path": "/gender", "value": "other"}]
XML = (
    b'<Bundle xmlns="http://hl7.org/fhir"><type value="transaction"/><entry><resource><Patient><id value="S2"/>'
    b'<active value="true"/></Patient></resource><request><method value="PUT"/><url value="Patient/S2"/></request>'
    b"</entry></Bundle>"
)

WRITES: dict[str, Callable[[AnySession], list[Response]]] = {
    "create": lambda s: [send(s, "POST", "/Patient", patient(None, "New"))],
    "conditional create": lambda s: [
        send(s, "POST", "/Patient", patient(None, "Neu"), if_none_exist="family=Neu"),
        send(s, "POST", "/Patient", patient(None, "Alpha"), if_none_exist="family=Alpha"),
    ],
    "update": lambda s: [send(s, "PUT", "/Patient/S1", patient("S1", "Changed"))],
    "update twice": lambda s: [send(s, "PUT", "/Patient/S1", patient("S1", name)) for name in ("One", "Two")],
    "update as create": lambda s: [send(s, "PUT", "/Patient/mine", patient("mine", "Mine"))],
    "update through a longer path": lambda s: [send(s, "PUT", "//Patient/S1/longer", patient("S1", "Longer"))],
    "update through an encoded id": lambda s: [send(s, "PUT", "/Patient/%531", patient("S1", "Encoded"))],
    "conditional update": lambda s: [
        send(s, "PUT", "/Patient?family=Alba&_summary=true&_count=0", patient(None, "Alba", active=True)),
        send(s, "PUT", "/Patient?family=Unheard", patient(None, "Unheard")),
    ],
    "patch": lambda s: [send(s, "PATCH", "/Patient/S2", GENDER, content_type=JSON_PATCH)],
    "conditional patch": lambda s: [send(s, "PATCH", "/Patient?family=Alba", GENDER, content_type=JSON_PATCH)],
    "delete": lambda s: [send(s, "DELETE", "/Observation/o1")],
    "delete an id of digits": lambda s: [send(s, "DELETE", "/Patient/5")],
    "conditional delete": lambda s: [send(s, "DELETE", "/Observation?code=K&value-quantity=gt2&_elements=id")],
    "delete and create again": lambda s: [
        send(s, "DELETE", "/Observation/o1"),
        send(s, "PUT", "/Observation/o1", {**NOTE, "id": "o1"}),
    ],
    "create and delete": lambda s: [
        send(s, "PUT", "/Patient/short", patient("short")),
        send(s, "DELETE", "/Patient/short"),
    ],
    "create, refer to it": lambda s: [
        send(s, "PUT", "/Patient/mine", patient("mine")),
        send(s, "POST", "/Observation", NOTE | {"subject": {"reference": "Patient/mine"}}),
    ],
    "delete with all that refers to it": lambda s: [
        *(send(s, "DELETE", f"/Observation/o{n}") for n in (1, 3)),
        send(s, "DELETE", "/Patient/S2"),
    ],
    "labels added": lambda s: [send(s, "POST", "/Patient/S1/$meta-add", tags("a", "b"))],
    "labels taken": lambda s: [send(s, "POST", "/Patient/tagged/$meta-delete", tags("first"))],
    "labels by update": lambda s: [
        send(s, "PUT", "/Patient/tagged", patient("tagged", meta={"tag": [{"code": "third"}], "profile": ["urn:p"]}))
    ],
    "transaction": lambda s: [
        send(
            s,
            "POST",
            "/",
            bundle(
                "transaction",
                entry("POST", "Patient", patient(None, "Both"), full_url=URN),
                entry("POST", "Observation", NOTE | {"subject": {"reference": URN}}),
                entry("PUT", "Patient/S2", patient("S2", "Changed")),
                entry("PUT", "Patient?family=beta", patient(None, "beta", active=False)),
                entry("DELETE", "Observation/o2"),
                entry("DELETE", "Observation?code=NOTHING"),
            ),
        )
    ],
    "batch": lambda s: [
        send(
            s,
            "POST",
            "",
            bundle(
                "batch",
                entry("DELETE", "Patient/S1"),
                entry("PUT", "Patient/S1", patient("S1", "Changed")),
                entry("POST", "Basic", {"resourceType": "Basic", "code": {"text": "x"}}),
                entry("GET", "Patient/S2"),
            ),
        )
    ],
    "xml": lambda s: [send(s, "POST", "/", XML, content_type="application/fhir+xml")],
    "decimals": lambda s: [send(s, "PUT", "/Observation/exact", {**NOTE, "id": "exact"})],
}


def furnish(server: str) -> None:
    """Add resources with labels and exact decimals to a server."""
    exact = (
        b'{"resourceType":"Observation","id":"exact","status":"final","code":{"text":"x"},"valueQuantity":{"value":1.50'
    )
    exact += b"}}"
    tagged = patient("tagged", meta={"tag": [{"system": "urn:x", "code": code} for code in ("first", "second")]})
    for url, body in (("Observation/exact", exact), ("Patient/tagged", json.dumps(tagged).encode())):
        assert httpx.put(f"{server}/{url}", content=body, headers={"content-type": FHIR}).status_code == 201
    assert "1.50" in httpx.get(f"{server}/Observation/exact").text
