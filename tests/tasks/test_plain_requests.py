"""On which resource types the response to a read or search depends."""

from __future__ import annotations

import pytest

from fhir_gym.fhir.messages import Request
from fhir_gym.tasks.grading.plain_requests import types_of


@pytest.mark.parametrize(
    ("url", "types"),
    [
        ("/Patient/1", {"Patient"}),
        ("Patient?family=Lee&_count=200&_sort=-birthdate", {"Patient"}),
        ("/Task?owner=Organization%2F1&_revinclude=Communication:based-on", {"Task", "Communication"}),
        ("/Task?_revinclude=Communication%3Abased-on%3ATask&_revinclude=Task:part-of", {"Task", "Communication"}),
    ],
)
def test_a_plain_request_depends_on_its_types(url: str, types: set[str]) -> None:
    path, _, query = url.partition("?")
    assert types_of(Request("GET", path, query)) == frozenset(types)


@pytest.mark.parametrize(
    "url",
    [
        "/",
        "/?_getpages=1",
        "/Patient/1/$everything",
        "/Patient/1/_history",
        "/Slot?schedule.actor=Location/1",
        "/Slot?_has:Appointment:slot:status=booked",
        "/Schedule?_include=Schedule:actor",
        "/Task?_revinclude=*",
        "/Task?_revinclude=Communication:*",
        "/Task?_revinclude:iterate=Communication:based-on",
    ],
)
def test_another_request_may_depend_on_every_type(url: str) -> None:
    path, _, query = url.partition("?")
    assert types_of(Request("GET", path, query)) is None


def test_a_write_may_depend_on_every_type() -> None:
    assert types_of(Request("POST", "/Patient/_search")) is None
