"""The application: security headers, refused requests, static files and error pages."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from fhir_gym.errors import FhirGymError, MissingExtraError
from fhir_gym.web import create_viewer, episode_list, serve_viewer
from fhir_gym.web.context import PageTemplates
from tests.web.episodes import wait_until_read

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


@pytest.mark.parametrize(
    ("path", "status"), [("/", 200), ("/static/viewer.css", 200), ("/state", 200), ("/nothing", 404)]
)
def test_every_answer_has_the_security_headers(client: TestClient, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert HEADERS.items() <= dict(answer.headers).items()


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "[::1]:8765", "localhost"])
def test_loopback_names_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["example.org", "127.0.0.1.example.org", "", "localhost@example.org", "[::1", "10.0.0.1"]
)
def test_other_hosts_are_refused(client: TestClient, host: str) -> None:
    answer = client.get("/", headers={"Host": host})
    assert answer.status_code == 403
    assert HEADERS.items() <= dict(answer.headers).items()


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://example.org"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "null"},
    ],
)
def test_forms_of_other_sites_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    assert client.post("/", headers=headers).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://127.0.0.1"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "null"},  # a browser, from a page that sends no referrer
    ],
)
def test_forms_of_own_pages_are_accepted(client: TestClient, headers: dict[str, str]) -> None:
    assert client.post("/", headers=headers).status_code == 405


@pytest.mark.parametrize("path", ["/static/../app.py", "/static/%2e%2e%2fapp.py", "/static//etc/passwd", "/static/x"])
def test_static_files_are_only_those_of_the_viewer(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_the_viewer_listens_on_loopback_only() -> None:
    with pytest.raises(FhirGymError, match=r"^0\.0\.0\.0 is not a loopback address"):
        serve_viewer([], host="0.0.0.0")


def test_a_bug_is_a_page_with_the_headers_and_a_log_entry(
    rollout_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> str:
        raise RuntimeError("secret \x1b[31m")

    monkeypatch.setattr(episode_list, "render", fail)
    with TestClient(create_viewer([rollout_file]), base_url="http://127.0.0.1") as client:
        answer = client.get("/")
    assert answer.status_code == 500 and HEADERS.items() <= dict(answer.headers).items()
    assert "RuntimeError: a bug in fhir_gym" in answer.text and "secret" not in answer.text
    [entry] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "secret \\x1b[31m" in entry.getMessage() and "\x1b" not in entry.getMessage()


def test_without_jinja_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"the viewer needs Jinja2: pip install '\.\[web\]'"):
        create_viewer([])


def test_the_first_page_says_why_it_is_empty(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "folder").mkdir()
    said = ("No rollout files were given", "files have no episodes yet", "folders have no rollout files yet")
    for given, text in zip(([], [tmp_path / "empty.jsonl"], [tmp_path / "folder"]), said, strict=True):
        with TestClient(create_viewer(given), base_url="http://127.0.0.1") as client:
            wait_until_read(client)
            assert text in client.get("/").text


def test_short_times_are_in_milliseconds() -> None:
    seconds = PageTemplates().environment.filters["seconds"]
    assert [seconds(duration) for duration in (None, 0, 0.0123, 1.25, 75)] == [
        "",
        "0 ms",
        "12 ms",
        "1.2 s",
        "1 min 15 s",
    ]
