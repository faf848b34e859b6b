"""What a server's history tells about its writes, on servers with a clock that runs and with one that stands still."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from fhir_gym.fhir.adapters.remote_client import RemoteClient
from fhir_gym.fhir.adapters.version_history import Version, present, state_before, versions_since
from fhir_gym.fhir.outcome import FhirError

NOW = "2026-11-25T01:00:00.500+00:00"
ZULU = "2026-11-25T01:00:00.5Z"
BEFORE = "2026-11-25T00:59:59.000+00:00"
LATER = "2026-11-25T01:00:00.501+00:00"


def version(number: int, time: str | None = BEFORE, id: str = "p") -> dict[str, Any]:
    """An entry of a history; without a time, a deletion."""
    asked = {"request": {"method": "PUT", "url": f"Patient/{id}/_history/{number}"}}
    meta = {"versionId": str(number), "lastUpdated": time}
    return asked | ({"resource": {"resourceType": "Patient", "id": id, "meta": meta}} if time else {})


def history(*entries: Any, now: str | None = NOW, next: str = "") -> dict[str, Any]:
    links = [{"relation": "next", "url": next}] if next else []
    meta = {"meta": {"lastUpdated": now}} if now else {}
    return {"resourceType": "Bundle", "type": "history", "entry": [*entries], "link": links, **meta}


def client(*answers: Any) -> tuple[RemoteClient, list[str]]:
    asked: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        answer = answers[len(asked) - 1]
        return httpx.Response(answer) if isinstance(answer, int) else httpx.Response(200, json=answer)

    return RemoteClient("http://x/fhir", client=httpx.Client(transport=httpx.MockTransport(respond))), asked


@pytest.mark.parametrize(
    ("answer", "time"),
    [
        (history(version(1)), NOW),
        (history(version(1), now=ZULU), NOW),
        (history(), NOW),
        (history(version(1, NOW)), LATER),
        (history(version(1, ZULU)), LATER),
        (history(version(2, None)), LATER),
        (history(version(1, NOW), now=None), LATER),
        (history(version(1, LATER)), None),
        (history(now="yesterday"), None),
        (history(now=None), None),
        ({"resourceType": "Bundle", "entry": 1, "meta": []}, None),
        (404, None),
        (501, None),
    ],
)
def test_the_present_is_after_the_newest_version(answer: Any, time: str | None) -> None:
    assert present(client(answer)[0]) == time


def test_versions_are_read_on_all_pages() -> None:
    first = history(version(3, NOW), version(2), next="http://x/fhir?page=2")
    server, asked = client(first, history(version(1, id="q"), "nothing", now="2030-01-01T00:00:00Z"))
    told = versions_since(server, BEFORE)
    assert told == ([Version("Patient", "p", "3"), Version("Patient", "p", "2"), Version("Patient", "q", "1")], LATER)
    assert "_since=2026-11-25T00%3A59%3A59.000%2B00%3A00" in asked[0]


def test_the_present_never_goes_back() -> None:
    assert versions_since(client(history(version(1), now=BEFORE))[0], NOW) == ([Version("Patient", "p", "1")], NOW)
    assert versions_since(client(501)[0], NOW) is None


@pytest.mark.parametrize(
    ("answer", "id"),
    [
        (history(version(3), version(2), version(1)), "p"),
        (history(version(3), version(2)), None),
        (history(version(3), version(2), version(1, None)), None),
    ],
)
def test_the_state_before_some_versions(answer: Any, id: str | None) -> None:
    versions = [Version("Patient", "p", number) for number in ("3", "2")]
    before = state_before(client(answer)[0], versions)
    assert (before and before["id"]) == id


def test_a_long_history_does_not_tell_the_state_before() -> None:
    with pytest.raises(FhirError, match="too many versions"):
        state_before(client(history(version(3), next="http://x/fhir?page=2"))[0], [Version("Patient", "p", "3")])
