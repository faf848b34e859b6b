"""Each request in docs/server.md gets the status that the page states."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.fhir import Request, Session, World

PAGE = Path(__file__).resolve().parents[1] / "docs" / "server.md"
ROW = re.compile(r"\| .* \| `([A-Z-]+) (/\S*)` \| (\d{3}) \|")
FHIR = {"content-type": "application/fhir+json"}
PATCHES = {
    "PATCH": ("application/json-patch+json", b'[{"op": "add", "path": "/active", "value": false}]'),
    "PATCH-XML": ("application/xml-patch+xml", b"<diff/>"),
}


def examples() -> list[tuple[str, str, int]]:
    return [(method, url, int(status)) for method, url, status in ROW.findall(PAGE.read_text(encoding="utf-8"))]


def body(method: str, url: str) -> Any:
    """Return a suitable request body for a URL."""
    kind = url.removeprefix("/").partition("/")[0].partition("?")[0]
    if not kind:
        entry = {"request": {"method": "GET", "url": "Patient?_count=1"}}
        return {"resourceType": "Bundle", "type": "batch", "entry": [entry]}
    if url.endswith("?gender=unknown"):
        return {"resourceType": kind, "gender": "unknown"}
    return {"resourceType": kind, "gender": "female", **({"id": url.rpartition("/")[2]} if method == "PUT" else {})}


@pytest.fixture(scope="module")
def session(hospital: World) -> Iterator[Session]:
    with hospital.session() as session:
        yield session


def test_the_page_has_its_tables() -> None:
    assert len(examples()) > 30
    assert PAGE.read_text(encoding="utf-8").count("` | ") == len(examples())


@pytest.mark.parametrize(("method", "url", "status"), examples())
def test_an_example_gets_its_status(session: Session, method: str, url: str, status: int) -> None:
    path, _, query = url.partition("?")
    headers, data = FHIR, json.dumps(body(method, url)).encode()
    if method in PATCHES:
        kind, data = PATCHES[method]
        headers = {"content-type": kind}
    if path.endswith("_search"):
        headers, data = {"content-type": "application/x-www-form-urlencoded"}, b"code=GLU&_count=1"
    answer = session.handle(Request(method.partition("-")[0], path, query, headers, b"" if method == "GET" else data))
    assert answer.status == status, answer.text[:300]
