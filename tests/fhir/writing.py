"""A session with one-line requests, for tests of writes."""

from __future__ import annotations

import json
from typing import Any

from fhir_gym.fhir.messages import Request, Response
from fhir_gym.fhir.session import Session
from fhir_gym.types import Json, Resource

FHIR = "application/fhir+json"
JSON_PATCH = "application/json-patch+json"


class Client:
    """Sends requests to a session and remembers the last response."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.last = Response(0)

    def send(self, method: str, url: str, body: Json = None, /, **headers: str) -> Json:
        """Send a request and return the parsed response. In header names, write underscores for hyphens."""
        path, _, query = url.partition("?")
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        if raw:
            sent.setdefault("content-type", FHIR)
        self.last = self.session.handle(Request(method, path, query, sent, raw))
        return self.last.json() if self.last.body else None

    @property
    def status(self) -> int:
        """Status of the last response."""
        return self.last.status

    @property
    def text(self) -> str:
        """Diagnostics of the last response."""
        return str(self.last.json()["issue"][0]["diagnostics"])

    def header(self, name: str) -> str:
        """A header of the last response; empty if absent."""
        return self.last.headers.get(name, "")

    def put(self, resource: Resource, **headers: str) -> Json:
        """PUT a resource to its own URL."""
        return self.send("PUT", f"/{resource['resourceType']}/{resource['id']}", resource, **headers)

    def bundle(self, kind: str, *entries: dict[str, Any], **headers: str) -> Json:
        """POST a batch or transaction."""
        return self.send("POST", "/", {"resourceType": "Bundle", "type": kind, "entry": list(entries)}, **headers)


def patient(id: str | None = None, /, family: str = "Doe", **more: Any) -> Resource:
    """A patient."""
    return {"resourceType": "Patient", **({"id": id} if id else {}), "name": [{"family": family}], **more}


def observation(subject: str, id: str | None = None) -> Resource:
    """An observation of a subject."""
    base: Resource = {"resourceType": "Observation", "status": "final", "code": {"text": "x"}}
    return base | ({"id": id} if id else {}) | {"subject": {"reference": subject}}


def entry(
    method: str, url: str, resource: Resource | None = None, /, full_url: str = "", **more: str
) -> dict[str, Any]:
    """A bundle entry."""
    found: dict[str, Any] = {"fullUrl": full_url} if full_url else {}
    if resource is not None:
        found["resource"] = resource
    return found | {"request": {"method": method, "url": url, **more}}
