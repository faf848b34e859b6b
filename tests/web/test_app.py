"""The application: security headers, refused requests, static files and error pages."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from fhir_gym.errors import FhirGymError
from fhir_gym.web import serve_viewer

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
    ],
)
def test_forms_of_other_sites_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    assert client.post("/", headers=headers).status_code == 403
    assert client.post("/").status_code == 405


@pytest.mark.parametrize("path", ["/static/../app.py", "/static/%2e%2e%2fapp.py", "/static//etc/passwd", "/static/x"])
def test_static_files_are_only_those_of_the_viewer(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_the_viewer_listens_on_loopback_only() -> None:
    with pytest.raises(FhirGymError, match=r"^0\.0\.0\.0 is not a loopback address"):
        serve_viewer([], host="0.0.0.0")
