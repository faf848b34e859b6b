"""A server of hostile replies, and every client of fhir_gym that such a server could fill or keep waiting."""

from __future__ import annotations

import asyncio
import socketserver
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from typing_extensions import override

from fhir_gym.agents.chat_messages import Opening
from fhir_gym.agents.memory import EndpointEmbedder
from fhir_gym.agents.provider import ChatModel, Provider
from fhir_gym.agents.tool_sources.mcp import McpTools
from fhir_gym.fhir.adapters.remote_client import RemoteClient
from fhir_gym.worlds.fhir_client import JsonClient

__all__ = ["CLIENTS", "REPLIES", "hostile_server"]

_MIB = 1024 * 1024
_ENDLESS = 512 * _MIB  # the replies end after all, so that a client without limits returns and a test can fail
_SLOW = 400  # bytes
_PAUSE = 0.02  # seconds between two bytes of a slow reply
_MESSAGE = b'{"choices": [{"message": {"content": "FINISH([])"}}]}'
_HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n"
_LENGTH = b"Content-Length: %d\r\n\r\n" % (_SLOW + len(_MESSAGE))


def _spaces() -> Iterator[bytes]:
    yield from (b" " * _MIB for _ in range(_ENDLESS // _MIB))
    yield _MESSAGE


def _compressed() -> Iterator[bytes]:
    gzip = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    yield from filter(None, map(gzip.compress, _spaces()))
    yield gzip.flush()


def _chunks(parts: Iterator[bytes], encoding: bytes = b"identity") -> Iterator[bytes]:
    yield _HEAD + b"Content-Encoding: " + encoding + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    for part in parts:
        yield b"%x\r\n%b\r\n" % (len(part), part)
    yield b"0\r\n\r\n"


def _slowly(before: bytes, byte: bytes, after: bytes) -> Iterator[bytes]:
    yield before
    for _ in range(_SLOW):
        time.sleep(_PAUSE)
        yield byte
    yield after


REPLIES: dict[str, Callable[[], Iterator[bytes]]] = {
    "endless": lambda: _chunks(_spaces()),
    "gzip bomb": lambda: _chunks(_compressed(), b"gzip"),
    "slow body": lambda: _slowly(_HEAD + _LENGTH, b" ", _MESSAGE),
    "slow headers": lambda: _slowly(_HEAD + b"X-Slow: ", b"x", b"\r\n" + _LENGTH + b" " * _SLOW + _MESSAGE),
}
"""The parts of hostile replies, by name."""


@contextmanager
def hostile_server(reply: str) -> Iterator[str]:
    """Serve one of `REPLIES` to every request; yield the server's URL."""

    class Handler(socketserver.StreamRequestHandler):
        @override
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            with suppress(OSError):  # the client has given up
                for part in REPLIES[reply]():
                    self.wfile.write(part)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def _chat(url: str, seconds: float) -> None:
    async def ask() -> None:
        provider = Provider(
            ChatModel(model="model", base_url=url, api_key="key", timeout=seconds, retries=0, backoff=0.0)
        )
        try:
            await provider.complete([{"role": "user", "content": "Hello"}], Opening(protocol="text", messages=()))
        finally:
            await provider.aclose()

    asyncio.run(ask())


CLIENTS: dict[str, Callable[[str, float], object]] = {
    "chat agent": _chat,
    "embedder": lambda url, seconds: EndpointEmbedder("model", url, timeout=seconds, retries=0).embed(["text"]),
    "import and upload": lambda url, seconds: JsonClient(url, timeout=seconds).exchange(url, b"{}"),
    "server elsewhere": lambda url, seconds: RemoteClient(url, timeout=seconds).page("/Patient"),
    "MCP tools": lambda url, seconds: McpTools(url, timeout=seconds),
}
"""Functions that send a request to a URL and wait for a number of seconds, by the name of the client."""
