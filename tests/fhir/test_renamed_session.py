"""A session under another base URL: agents never see the server's own URL."""

from __future__ import annotations

import json
from unittest.mock import Mock
from urllib.parse import quote

from fhir_gym.fhir import FhirSession, Request, Response, World
from fhir_gym.fhir.adapters.running_server import RenamedSession

SHOWN, OWN = "http://shown.test/fhir", "http://own.test:8080/fhir"


def test_urls_are_renamed_in_both_directions(hospital: World) -> None:
    session = RenamedSession(hospital.session(base_url=OWN), SHOWN)
    response = session.handle(Request("GET", "/Patient", "_count=1"))
    assert OWN.encode() not in response.body and response.json()["link"][0]["url"].startswith(f"{SHOWN}/Patient?")
    next_page = response.json()["link"][1]["url"]
    assert session.get(next_page)["entry"][0]["fullUrl"].startswith(f"{SHOWN}/Patient/")
    encoded, own = (quote(f"{url}/Patient/x", safe="") for url in (SHOWN, OWN))
    inner = Mock(FhirSession, base_url=OWN)
    inner.handle.return_value = Response(200)
    session = RenamedSession(inner, SHOWN)
    session.handle(Request("GET", "/Patient", f"a={SHOWN}/Patient/x&b={encoded}", body=f"<{SHOWN}>".encode()))
    sent = inner.handle.call_args.args[0]
    assert (sent.query, sent.body) == (f"a={OWN}/Patient/x&b={own}", f"<{OWN}>".encode())


def test_only_the_whole_base_url_is_renamed(hospital: World) -> None:
    session = RenamedSession(hospital.session(base_url=OWN), SHOWN)
    sources = [f"{SHOWN}2/x", f"{SHOWN}/x", f"{SHOWN}%2Fx", f"{SHOWN}.org"]
    body = {"resourceType": "Basic", "code": {"coding": [{"system": source} for source in sources]}}
    headers = {"content-type": "application/fhir+json"}
    created = session.handle(Request("POST", "/Basic", "", headers, json.dumps(body).encode()))
    assert created.status == 201 and created.headers["Location"].startswith(f"{SHOWN}/Basic/")
    stored = session.read("Basic", created.headers["Location"].split("/")[5]) or {}
    systems = [coding["system"] for coding in stored["code"]["coding"]]
    assert systems == [sources[0], f"{OWN}/x", f"{OWN}%2Fx", sources[3]]
    assert [change.kind for change in session.changes()] == ["created"]
    session.rollback()
    assert not session.changes() and session.now == hospital.now
    session.close()
