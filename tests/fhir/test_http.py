"""The HTTP adapter."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from fhir_gym.errors import FhirGymError
from fhir_gym.fhir import Limits, World
from fhir_gym.fhir.adapters.http import create_app
from fhir_gym.http_server import bind

Send = Callable[..., httpx.Response]


@pytest.fixture
def send(empty_world: World) -> Iterator[Send]:
    """A function that sends one request to a new application."""
    app = create_app(empty_world, limits=Limits(body_bytes=1_000))

    def request(method: str, url: str, **more: Any) -> httpx.Response:
        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://ward.test:81") as client:
                return await client.request(method, url, **more)

        return asyncio.run(go())

    async def end() -> None:
        async with app.router.lifespan_context(app):
            pass

    yield request
    asyncio.run(end())


def create(send: Send) -> str:
    answer = send("POST", "/fhir/Patient", json={"resourceType": "Patient", "name": [{"family": "O'Zoë"}]})
    assert answer.status_code == 201
    return str(answer.json()["id"])


def test_writes_stay_and_urls_repeat_the_callers_host(send: Send) -> None:
    id = create(send)
    bundle = send("GET", "/fhir/Patient?family=O%27Zo%C3%AB").json()
    assert bundle["entry"][0]["fullUrl"] == f"http://ward.test:81/fhir/Patient/{id}"
    assert bundle["link"][0]["url"].startswith("http://ward.test:81/fhir/Patient?")


def test_answers_are_indented_unless_asked_otherwise(send: Send) -> None:
    id = create(send)
    assert send("GET", f"/fhir/Patient/{id}").text.startswith("{\n  ")
    assert "\n" not in send("GET", f"/fhir/Patient/{id}?_pretty=false").text


def test_headers_of_a_read(send: Send) -> None:
    answer = send("GET", f"/fhir/Patient/{create(send)}")
    assert answer.headers["content-type"] == "application/fhir+json;charset=UTF-8"
    assert answer.headers["etag"] == 'W/"1"'


def test_head_has_no_body(send: Send) -> None:
    answer = send("HEAD", f"/fhir/Patient/{create(send)}")
    assert (answer.status_code, answer.content) == (200, b"")


def test_search_by_form(send: Send) -> None:
    create(send)
    bundle = send("POST", "/fhir/Patient/_search", data={"family": "O'Zoë"}).json()
    assert bundle["total"] == 1


def test_path_is_not_decoded_twice(send: Send) -> None:
    answer = send("GET", "/fhir/Patient/a%2525b")
    assert answer.status_code == 404
    assert "a%25b" in answer.json()["issue"][0]["diagnostics"]


@pytest.mark.parametrize("path", ["/", "/Patient", "/fhirx/Patient"])
def test_other_paths_name_the_base_url(send: Send, path: str) -> None:
    answer = send("GET", path)
    assert answer.status_code == 404
    assert "http://ward.test:81/fhir" in answer.json()["issue"][0]["diagnostics"]


def test_too_large_a_body_is_refused(send: Send) -> None:
    body = b'{"resourceType": "Patient", "name": [{"family": "' + b"x" * 5_000 + b'"}]}'
    answer = send("POST", "/fhir/Patient", content=body, headers={"content-type": "application/fhir+json"})
    assert answer.status_code == 413
    assert answer.json()["resourceType"] == "OperationOutcome"


def test_port_in_use() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(FhirGymError, match=f"127.0.0.1:{port}"):
            bind("127.0.0.1", port)


def test_a_host_of_another_machine_is_refused() -> None:
    with pytest.raises(FhirGymError, match="cannot serve"):
        bind("192.0.2.1", 0)


def test_connections_send_at_once() -> None:
    """asyncio disables Nagle's algorithm only for sockets with an explicit protocol."""
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP
