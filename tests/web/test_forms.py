"""Forms need the token of this run of the viewer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.testclient import TestClient

from fhir_gym.web.context import PageTemplates, ViewerContext
from fhir_gym.web.links import Links
from fhir_gym.web.play_page import form_route
from fhir_gym.web.rollout_index import RolloutIndex
from fhir_gym.web.world_store import WorldStore


@pytest.fixture
def context() -> Iterator[ViewerContext]:
    with RolloutIndex([]) as index, WorldStore() as worlds:
        yield ViewerContext(index, worlds, Links(), PageTemplates())


@pytest.fixture
def client(context: ViewerContext) -> TestClient:
    def answer(_: Request, fields: dict[str, str]) -> Response:
        return PlainTextResponse(repr(fields))

    return TestClient(Starlette(routes=[form_route(context, "/form", answer)]), base_url="http://127.0.0.1")


def test_a_form_with_the_token_is_answered(client: TestClient, context: ViewerContext) -> None:
    answer = client.post("/form", data={"token": context.form_token, "name": "Zoë & co", "empty": ""})
    assert answer.text == "{'name': 'Zoë & co', 'empty': ''}"


@pytest.mark.parametrize("token", ["", "x", "ü"])
def test_another_token_is_refused(client: TestClient, token: str) -> None:
    assert client.post("/form", data={"token": token}).status_code == 403
    assert client.post("/form").status_code == 403


@pytest.mark.parametrize(
    ("content", "status"), [(b"\xff=1", 400), (b"a&" * 2_000, 400), (b"a" * (4 * 1024 * 1024 + 1), 413)]
)
def test_other_bodies_are_refused(client: TestClient, content: bytes, status: int) -> None:
    assert client.post("/form", content=content).status_code == status


def test_tokens_differ_and_are_not_shown() -> None:
    with RolloutIndex([]) as index, WorldStore() as worlds:
        first, second = (ViewerContext(index, worlds, Links(), PageTemplates()) for _ in range(2))
        assert first.form_token != second.form_token and first.form_token not in repr(first)
