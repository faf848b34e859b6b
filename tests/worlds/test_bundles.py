"""Importing Bundles in Synthea's layout."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from fhir_gym import worlds
from fhir_gym.errors import WorldError
from fhir_gym.types import Resource

UUID = "urn:uuid:8c95253e-8ee8-9ae8-6d40-021d702dc78e"


def entry(url: str, resource: Resource, method: str | None = "POST") -> dict[str, Any]:
    request = {"request": {"method": method, "url": resource["resourceType"]}} if method else {}
    return {"fullUrl": url, "resource": resource, **request}


def bundle(*entries: Any, kind: str = "transaction") -> Resource:
    return {"resourceType": "Bundle", "type": kind, "entry": list(entries)}


def write(folder: Path, **bundles: Any) -> Path:
    folder.mkdir()
    for name, content in bundles.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


DOCTOR = {
    "resourceType": "Practitioner",
    "id": "d1",
    "identifier": [{"system": "http://hl7.org/fhir/sid/us-npi", "value": "9999"}],
}


def test_references_are_rewritten(tmp_path: Path) -> None:
    visit = {
        "resourceType": "Encounter",
        "id": "e1",
        "status": "finished",
        "class": {"code": "AMB"},
        "subject": {"reference": UUID},
        "participant": [{"individual": {"reference": "Practitioner?identifier=http://hl7.org/fhir/sid/us-npi|9999"}}],
        "reasonReference": [{"reference": "urn:uuid:not-there"}],
    }
    folder = write(
        tmp_path / "synthea",
        a_person=bundle(entry(UUID, {"resourceType": "Patient"}), entry("urn:uuid:e1", visit)),
        practitioners=bundle(entry("urn:uuid:d1", DOCTOR), kind="collection"),
    )
    with worlds.import_files(folder, out=tmp_path / "w.sqlite") as world:
        assert world.manifest.counts == {"Encounter": 1, "Patient": 1, "Practitioner": 1}
        assert world.ids("Patient") == [UUID.removeprefix("urn:uuid:")]
        stored = world.read("Encounter", "e1")
    assert stored is not None
    assert stored["subject"]["reference"] == f"Patient/{UUID.removeprefix('urn:uuid:')}"
    assert stored["participant"][0]["individual"]["reference"] == "Practitioner/d1"
    assert stored["reasonReference"][0]["reference"] == "urn:uuid:not-there"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"resourceType": "Patient", "id": "a"}, "x.json: a Patient, not a Bundle"),
        ([1], "x.json: not a Bundle"),
        (bundle(kind="transaction-response"), "not a Bundle of resources: type 'transaction-response'"),
        (
            bundle(entry("urn:uuid:1", {"resourceType": "Patient", "id": "a"}, "DELETE")),
            r"entry\[0\]: only POST and PUT",
        ),
        (bundle({"fullUrl": "urn:uuid:1"}), r"entry\[0\]: no resource"),
        ({"resourceType": "Bundle", "type": "batch", "entry": {"a": 1}}, "not a Bundle of resources"),
        (bundle({"resource": {"resourceType": "Patient"}}), "Patient without an id"),
        (bundle(1), r"entry\[0\]: no resource"),
    ],
)
def test_invalid_imports(tmp_path: Path, content: Any, complaint: str) -> None:
    folder = write(tmp_path / "in", x=content)
    with pytest.raises(WorldError, match=complaint):
        worlds.import_files(folder, out=tmp_path / "w.sqlite")
    assert not (tmp_path / "w.sqlite").exists()


def test_broken_file(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(WorldError, match=r"x\.json: not JSON"):
        worlds.import_files(tmp_path)


def test_a_document_too_long_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fhir_gym.worlds.files._DOCUMENT_BYTES", 1000)
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(b"[" + b" " * 5000))
    with pytest.raises(WorldError, match=r"x\.json\.gz: longer than the limit of 1,000 bytes per Bundle"):
        worlds.import_files(tmp_path)


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(b"[" + b" " * 100_000_000))
    tracemalloc.start()
    with pytest.raises(WorldError, match=r"x\.json\.gz: cannot be read: it expands to more than"):
        worlds.import_files(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * 1024 * 1024
