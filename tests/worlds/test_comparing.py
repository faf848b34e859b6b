"""A comparison names every resource that differs, and ignores what servers set themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fhir_gym import worlds
from fhir_gym.errors import WorldError
from fhir_gym.fhir import Credentials
from fhir_gym.types import Resource
from fhir_gym.worlds import Difference
from fhir_gym.worlds.batches import BatchClient, Record
from fhir_gym.worlds.comparing import first_difference
from tests.worlds.linked_world import linked_resources, write_world
from tests.worlds.strict_server import strict_server

BASE = "http://127.0.0.1:1/fhir"


def test_missing_extra_and_different(tmp_path: Path) -> None:
    resources = linked_resources()
    other = [linked_resource for linked_resource in linked_resources() if linked_resource["id"] != "x4"]
    other[0]["name"] = "Another name"
    other += [{"resourceType": "Patient", "id": f"e{at}"} for at in range(3)]
    other.append({"resourceType": "Basic", "id": "unrelated", "code": {"text": "x"}})
    seen: list[tuple[int, int]] = []
    with (
        write_world(tmp_path / "w", resources) as world,
        write_world(tmp_path / "o", other) as theirs,
        strict_server(theirs) as (url, _),
    ):
        comparison = worlds.compare(world, url, progress=lambda done, total: seen.append((done, total)))
        assert worlds.compare(world, url, most=1).differences == comparison.differences[:1]
        assert not worlds.compare(world, url, extra=False).counts["extra"]
    assert not comparison.equal and comparison.counts == {"missing": 1, "extra": 3, "different": 1}
    assert comparison.differences == (
        Difference("different", "Organization/o0", "Organization.name"),
        Difference("missing", "Observation/x4"),
        *(Difference("extra", f"Patient/e{at}") for at in range(3)),
    )
    assert seen[-1] == (len(resources), len(resources))


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (
            lambda resource: (
                resource | {"meta": {"versionId": "7", "lastUpdated": "2020-01-01T00:00:00Z", "source": "a#x"}}
            ),
            None,
        ),
        (lambda resource: resource | {"subject": {"reference": f"{BASE}/Patient/p"}}, None),
        (lambda resource: dict(reversed(resource.items())), None),
        (
            lambda resource: resource | {"subject": {"reference": "http://elsewhere/Patient/p"}},
            "Observation.subject.reference",
        ),
        (lambda resource: resource | {"meta": {}}, "Observation.meta"),
        (lambda resource: resource | {"component": [{}]}, "Observation.component"),
        (lambda resource: resource | {"category": [{"text": "a"}]}, "Observation.category[1]"),
        (lambda resource: resource | {"category": [{"text": "a"}, {"text": "c"}]}, "Observation.category[1].text"),
        (lambda resource: resource | {"valueInteger": True}, "Observation.valueInteger"),
        (
            lambda resource: {name: value for name, value in resource.items() if name != "subject"},
            "Observation.subject",
        ),
    ],
)
def test_paths(change: Callable[[Resource], Resource], path: str | None) -> None:
    body = (
        b'{"resourceType":"Observation","id":"x","meta":{"source":"a"},"subject":{"reference":"Patient/p"},'
        b'"category":[{"text":"a"},{"text":"b"}],"valueInteger":1}'
    )
    resource: Resource = {
        **{"resourceType": "Observation", "id": "x", "meta": {"source": "a"}, "subject": {"reference": "Patient/p"}},
        **{"category": [{"text": "a"}, {"text": "b"}], "valueInteger": 1},
    }
    client = BatchClient(BASE)
    assert first_difference(client, Record("Observation", "x", body), change(resource)) == path
    client.close()


def test_a_server_without_a_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchClient, "types", lambda _: ["Patient"])
    with (
        write_world(tmp_path / "w", linked_resources()) as world,
        pytest.raises(WorldError, match="does not support Observation, Organization"),
    ):
        worlds.compare(world, BASE)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ({"response": {"status": "404 Not Found"}}, "equal"),
        ({"response": {"status": "410"}}, "equal"),
        ({"response": {"status": "200"}, "resource": {"resourceType": "Patient", "id": "b"}}, "another resource"),
        ({"response": {"status": "200"}, "resource": []}, r"cannot read Patient/a: status 200$"),
        ({"response": {"status": "403", "outcome": "<script>"}}, r"cannot read Patient/a: status 403$"),
        ({"response": {"status": "²00\n\x1b"}}, r"cannot read Patient/a: status ²00\?\?$"),
        ({"response": []}, "cannot read Patient/a: status None$"),
        (
            {"response": {"status": 401, "outcome": {"issue": [{"diagnostics": "unknown: s3cret\nx"}]}}},
            r"status 401: unknown: …\?x$",
        ),
    ],
)
def test_answers_that_are_none(answer: Any, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = BatchClient(BASE, credentials=Credentials.bearer("s3cret"))
    monkeypatch.setattr(client, "exchange", lambda *_: {"resourceType": "Bundle", "entry": [answer]})
    if complaint == "equal":
        assert client.read_all([Record("Patient", "a", b"")]) == [None]
    else:
        with pytest.raises(WorldError, match=complaint):
            client.read_all([Record("Patient", "a", b"")])
    with pytest.raises(WorldError, match="did not answer a batch"):
        client.read_all([Record("Patient", "a", b"")] * 2)
    client.close()
