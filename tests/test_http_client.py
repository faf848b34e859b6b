"""No server can fill a client's memory or keep it waiting for ever."""

from __future__ import annotations

import gzip
import tracemalloc

import httpx
import mcp.client.streamable_http
import openai
import pytest

from fhir_gym.errors import FhirGymError
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.http_client import ReplyTooLargeError, RetryPolicy, limit_replies, limit_size, retry_after
from tests.hostile_replies import CLIENTS, REPLIES, hostile_server

assert mcp and openai  # imported now, because a test measures memory
MIB = 1024 * 1024
SIZES = sorted({"endless", "gzip bomb"})
SLOW = sorted(REPLIES.keys() - SIZES)


def client(content: bytes, most: int = 100_000, encoding: str = "identity") -> httpx.Client:
    """A client of a server that always sends this reply."""
    headers, stream = {"content-encoding": encoding}, httpx.ByteStream(content)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, stream=stream))
    client = httpx.Client(base_url="http://x", transport=transport)
    limit_size(client, most)
    return client


@pytest.mark.parametrize("reply", SIZES)
@pytest.mark.parametrize("name", CLIENTS)
def test_a_reply_without_end_needs_little_memory(name: str, reply: str) -> None:
    with hostile_server(reply) as url:
        tracemalloc.start()
        try:
            with pytest.raises((FhirGymError, FhirError), match=r"exceeds|TooLarge"):
                CLIENTS[name](url, 60.0)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 64 * MIB


@pytest.mark.parametrize("reply", SLOW)
@pytest.mark.parametrize("name", CLIENTS)
def test_a_reply_of_a_byte_now_and_then_comes_too_late(name: str, reply: str) -> None:
    late = "Timeout|did not answer|no answer within"  # after some seconds, the reply would be complete
    with hostile_server(reply) as url, pytest.raises(FhirGymError, match=late):
        CLIENTS[name](url, 0.5)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 100_000])
@pytest.mark.parametrize("byte", [b"a", b"\n"])
def test_a_compressed_reply_arrives_as_it_was(size: int, byte: bytes) -> None:
    text = (b"0123456789" + byte * 300) * (size // 310 + 1)
    with client(gzip.compress(text[:size]), encoding="GZIP") as limited:
        reply = limited.get("/")
    assert reply.content == text[:size] and "content-encoding" not in reply.headers


def test_the_limit_is_exact() -> None:
    text = b"a" * 100_001
    for content, encoding in ((text, "identity"), (gzip.compress(text), "gzip")):
        with client(content, 100_001, encoding) as limited:
            assert limited.get("/").content == text
        with (
            client(content, 100_000, encoding) as limited,
            pytest.raises(ReplyTooLargeError, match="exceeds 100,000 bytes"),
        ):
            limited.get("/")


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "zstd"])
def test_only_gzip_is_requested_and_accepted(encoding: str) -> None:
    with client(b"x", encoding=encoding) as limited:
        assert limited.headers["accept-encoding"] == "gzip"
        with pytest.raises(httpx.DecodingError, match=f"unsupported encoding: {encoding}"):
            limited.get("/")


def test_a_reply_that_is_not_gzip_is_refused() -> None:
    with client(b"text", encoding="gzip") as limited, pytest.raises(httpx.DecodingError, match="not valid gzip"):
        limited.get("/")


def test_the_proxies_of_the_environment_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with hostile_server("slow body") as url:
        monkeypatch.setenv("HTTP_PROXY", url)
        with httpx.Client() as limited:
            limit_replies(limited, 0.2)
            with pytest.raises(httpx.ReadTimeout):
                limited.get("http://fhir.example/")


def test_pauses_double_unless_the_server_asks_for_another() -> None:
    policy = RetryPolicy(retries=9, backoff=0.5)
    assert [policy.pause(attempt) for attempt in (0, 1, 2, 8, 9)] == [0.5, 1.0, 2.0, 60.0, None]
    assert [policy.pause(0, asked) for asked in (0.0, 7.0, 1e9)] == [0.0, 7.0, 60.0]
    assert policy.pause(9, 7.0) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3", 3.0), ("0.5", 0.5), ("-1", None), ("nan", None), ("٣", None), ("Sat, 28 Nov 2026 19:00:00 GMT", None)],
)
def test_the_pause_that_a_reply_asks_for(text: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": text}) == seconds
    assert retry_after({}) is None
