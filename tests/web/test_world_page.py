"""The pages of worlds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from fhir_gym import worlds
from fhir_gym.fhir import World, WorldBuilder
from fhir_gym.web import export_viewer
from fhir_gym.web.app import create_viewer

HOSTILE = "<script>alert('x')</script>\x1b[31m{{ 7 * 7 }}"
SUBJECT = {"reference": "Patient/p1", "display": HOSTILE}


@pytest.fixture(scope="module")
def world_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world with a patient, 60 observations, an encounter and hostile texts."""
    path = tmp_path_factory.mktemp("worlds") / "ward.world"
    with WorldBuilder(path, name="ward", seed=None, now=datetime(2024, 2, 29, tzinfo=UTC)) as builder:
        builder.add({"resourceType": "Patient", "id": "p1", "name": [{"family": HOSTILE}], "birthDate": "1980-02-03"})
        visit = {"status": "finished", "class": {"code": "AMB"}, "type": [{"text": HOSTILE}], "subject": SUBJECT}
        builder.add({"resourceType": "Encounter", "id": "e1", **visit, "period": {"start": "2023-01-01"}})
        lab = {"status": "final", "code": {"text": HOSTILE}, "subject": SUBJECT}
        for number in range(60):
            of_visit = {
                "encounter": {"reference": "Encounter/e1"},
                "effectiveDateTime": f"2023-01-{number % 28 + 1:02}",
            }
            value = {"valueQuantity": {"value": number, "unit": HOSTILE}}
            builder.add({"resourceType": "Observation", "id": f"o{number}", **lab, **of_visit, **value})
    return path


@pytest.fixture(scope="module")
def ward(world_file: Path) -> Iterator[TestClient]:
    with TestClient(create_viewer([], world=World.open(world_file)), base_url="http://127.0.0.1") as opened:
        yield opened


def test_the_list_of_worlds_leads_to_the_world_and_its_types(ward: TestClient) -> None:
    assert '<a href="/worlds/ward">ward</a>' in ward.get("/worlds").text
    page = ward.get("/worlds/ward").text
    assert '<a href="/worlds/ward/search?request=Observation">Observation</a>' in page
    assert "62 resources" in page


@pytest.mark.parametrize(("name", "matches"), [("<SCRIPT>", 1), ("nobody&family=x", 0), ("a%", 0)])
def test_patients_are_found_by_name(ward: TestClient, name: str, matches: int) -> None:
    assert 'name="patient"' in ward.get("/worlds/ward").text
    page = ward.get("/worlds/ward/search", params={"patient": name}).text
    assert page.count('href="/worlds/ward/Patient/p1"') == matches and 'value="Patient?name:contains=' in page


def test_a_search_shows_a_page_and_links_to_the_next_one(ward: TestClient) -> None:
    first = ward.get("/worlds/ward/search", params={"request": "Observation?patient=p1"}).text
    assert first.count('href="/worlds/ward/Observation/o') == 50
    assert 'value="Observation?patient=p1"' in first
    link = first.split('">Next page</a>')[0].rpartition('href="')[2].replace("&amp;", "&")
    second = ward.get(link).text
    assert second.count('href="/worlds/ward/Observation/o') == 10
    assert "Previous page" in second and "Next page" not in second


@pytest.mark.parametrize(
    ("request_text", "shown"),
    [
        ("Patient?wrong=1", "HTTP 400"),
        ("Patient?name=%zz", "HTTP 400"),
        ("Patient/absent", "HTTP 404"),
        ("http://example.org/x", "only the server at"),
        ("", "write a search"),
    ],
)
def test_the_answer_to_a_wrong_search_says_why(ward: TestClient, request_text: str, shown: str) -> None:
    answer = ward.get("/worlds/ward/search", params={"request": request_text})
    assert answer.status_code == 200
    assert shown in answer.text


def test_a_resource_shows_its_references_in_both_directions(ward: TestClient) -> None:
    page = ward.get("/worlds/ward/Encounter/e1").text
    assert '<a href="/worlds/ward/Patient/p1">Patient/p1</a>' in page
    assert 'href="/worlds/ward/Patient/p1/timeline"' in page
    assert 'href="/worlds/ward/search?request=Observation%3Fencounter%3DEncounter%2Fe1"' in page


def test_a_timeline_names_the_source_of_general_ranges(ward: TestClient) -> None:
    with worlds.load("hospital-small") as world:
        adult = next(id for id in world.ids("Patient") if (world.read("Patient", id) or {})["birthDate"] < "1990")
    page = ward.get(f"/worlds/hospital-small/Patient/{adult}/timeline").text
    assert '60 /min to 100 /min<br><span class="soft">general range</span>' in page
    assert '<a href="https://medlineplus.gov/ency/article/002341.htm">MedlinePlus, Vital signs</a>' in page
    assert "Heart rate (LOINC 8867-4) · Vital Signs" in page
    assert "MedlinePlus" not in ward.get("/worlds/ward/Patient/p1/timeline").text


def test_a_timeline_shows_encounters_and_sparklines_with_text(ward: TestClient) -> None:
    page = ward.get("/worlds/ward/Patient/p1/timeline").text
    assert page.count('<svg class="sparkline"') == 1
    assert "60 values from 2023-01-01 to 2023-01-28, lowest 0, highest 59" in page
    assert ">60 Observation</a>" in page
    assert 'href="/worlds/ward/Encounter/e1"' in page


@pytest.mark.parametrize(
    "path",
    [
        "/worlds/ward",
        "/worlds/ward/search?request=Observation",
        "/worlds/ward/Patient/p1",
        "/worlds/ward/Patient/p1/timeline",
    ],
)
def test_hostile_texts_stay_texts(ward: TestClient, path: str) -> None:
    page = ward.get(path).text
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert "{{ 7 * 7 }}" in page or path == "/worlds/ward"


@pytest.mark.parametrize(
    "path",
    [
        "/worlds/absent",
        "/worlds/absent/search?request=Patient",
        "/worlds/ward/Patient/absent",
        "/worlds/ward/Nothing/p1",
        "/worlds/ward/Patient/absent/timeline",
        "/worlds/%2Fetc%2Fpasswd",
        "/worlds/..%2F..%2Fetc",
    ],
)
def test_what_does_not_exist_is_not_found(ward: TestClient, path: str) -> None:
    assert ward.get(path).status_code == 404


def test_an_export_contains_the_given_world_and_names_no_other(world_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    export_viewer([], folder, world=World.open(world_file))
    pages = {path.name: path.read_text("utf-8") for path in folder.glob("*.html")}
    own = {"worlds", "world-ward", "search-ward-Patient", "patient-ward-p1", "resource-ward-Patient-p1"}
    assert {f"{name}.html" for name in own} <= pages.keys()
    assert pages["worlds.html"].count('<th scope="row">') == 1
    for name in own:
        links = re.findall(r'href="([^"#]+)"', pages[f"{name}.html"])
        assert {link for link in links if link.endswith(".html")} <= pages.keys()
        assert not [link for link in links if link.startswith("/")]
        assert "<form" not in pages[f"{name}.html"] and "<script>alert" not in pages[f"{name}.html"]
