"""The tools of any server that speaks the Model Context Protocol, for a chat agent."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from fhir_gym.agents.protocol import EpisodeContext
from fhir_gym.agents.tool_sources import ERROR, decode_arguments, error_text, function_schema, unknown_tool
from fhir_gym.arguments import require_url
from fhir_gym.concurrency import run_coroutine
from fhir_gym.errors import ArgumentError, InfraError, in_one_line, missing_extra, pip_install
from fhir_gym.http_client import limit_size
from fhir_gym.printable import one_line
from fhir_gym.types import Json

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client._transport import TransportStreams
    from mcp_types import CallToolResult, Tool

_T = TypeVar("_T")

_MAX_PAGES = 100
"""Maximum number of pages of a server's list of tools."""
_CLOSE_SECONDS = 10.0
"""Seconds that a server has to end."""
_CONNECT_SECONDS = 30.0
_REPLY_BYTES = 16 * 1024 * 1024
_MAX_NAME = 60
_INVALID_PARAMS = -32_602
"""JSON-RPC's error code for arguments that the server refuses."""


class McpTools:
    """A `ToolSource` with the tools of an MCP server. It needs the extra ``mcp``.

    The server's list of tools is read once, when the source is made. The first call connects to the server again, and
    after a failure the next call does. For each event loop there is one connection, which all episodes share.

    Args:
        server: The URL of a server with streamable HTTP, or the command that starts a server with standard input and
            output, as a text or as a list of words.
        env: Environment variables for the command, in addition to a few basic ones such as PATH.
        timeout: Seconds until a call, or the start of the server, counts as failed.

    Raises:
        MissingExtraError: The MCP SDK is not installed.
        ArgumentError: `server` is empty, or `timeout` is not positive.
        InfraError: The server does not start or does not answer.
    """

    def __init__(
        self, server: str | Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> None:
        with missing_extra(f"tools of MCP servers need: {pip_install('mcp')}"):
            import_module("mcp_types")  # version 1 of the SDK does not have this package
        self._url, self._command = _parse(server)
        self._env = dict(env or {})
        if not timeout > 0:
            raise ArgumentError(f"timeout must be positive, not {timeout}")
        self._timeout = timeout
        self._connection: _Connection | None = None
        self._connections: list[_Connection] = []  # also those that failed and still close
        self._where = _describe(self._url, self._command)
        listed, name, version = run_coroutine(self._list())
        self._schemas = {tool.name: _schema(tool) for tool in listed}
        self.name = f"mcp:{name}" if name else "mcp"
        self.settings: Mapping[str, Json] = {
            "server": self._where,
            "server_version": version,
            "tools": list(self._schemas),
            "hash": _hash(list(self._schemas.values())),
        }

    def schemas(self) -> list[dict[str, Any]]:
        """Return the function schemas of the server's tools."""
        return list(self._schemas.values())

    async def call(self, name: str, arguments: Mapping[str, Any] | str, context: EpisodeContext | None = None) -> str:
        """Return the text of the server's result."""
        if name not in self._schemas:
            return unknown_tool(name, list(self._schemas))
        decoded = decode_arguments(arguments)
        if isinstance(decoded, str):
            return decoded
        connection = self._connected()
        try:
            return _text(await connection.run(lambda client: client.call_tool(name, decoded), self._timeout))
        except Exception as error:
            if getattr(error, "code", None) == _INVALID_PARAMS:
                return error_text(str(error))
            self._connection = None
            connection.retire()
            raise self._failure(error) from error

    async def aclose(self) -> None:
        """Disconnect from the server; a server that this source started ends."""
        connections, self._connections, self._connection = self._connections, [], None
        for connection in connections:
            if connection.loop is asyncio.get_running_loop():
                await connection.close()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the source without its connections."""
        return self.__dict__ | {"_connection": None, "_connections": []}

    def _connected(self) -> _Connection:
        if self._connection is None or self._connection.loop is not asyncio.get_running_loop():
            self._connection = _Connection(self._client())
            self._connections = [connection for connection in self._connections if not connection.closed] + [
                self._connection
            ]
        return self._connection

    def _client(self) -> Client:
        from mcp import Client, StdioServerParameters

        if self._url is not None:
            return Client(_http_transport(self._url))
        program, *words = self._command
        return Client(StdioServerParameters(command=program, args=words, env=self._env))

    async def _list(self) -> tuple[list[Tool], str, str]:
        """Return the server's tools, its name and its version."""
        connection = _Connection(self._client())
        try:
            return await connection.run(_list_tools, self._timeout)
        except Exception as error:
            raise self._failure(error) from error
        finally:
            await connection.close()

    def _failure(self, error: Exception) -> InfraError:
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup):  # the SDK's task groups wrap every error
            cause = cause.exceptions[0]
        if isinstance(cause, TimeoutError):
            return InfraError(f"the MCP server {self._where} did not answer within {self._timeout:g} seconds")
        return InfraError(f"the MCP server {self._where} failed: {one_line(in_one_line(cause))}")


@asynccontextmanager
async def _http_transport(url: str) -> AsyncIterator[TransportStreams]:
    """Connect to a server by HTTP, with a limit on the size of its replies."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    timeout = httpx2.Timeout(_CONNECT_SECONDS, read=None)  # each call has a timeout of its own
    async with httpx2.AsyncClient(timeout=timeout) as client:
        limit_size(client, _REPLY_BYTES)
        async with streamable_http_client(url, http_client=client) as streams:
            yield streams


class _Connection:
    """A connection that a task of its own opens and closes, because the SDK requires one task for both.

    Args:
        client: The client, not yet entered.
    """

    def __init__(self, client: Client) -> None:
        self.loop = asyncio.get_running_loop()
        self._client = client
        self._calls = 0
        self._retired = False
        self._failure: BaseException | None = None
        self._open, self._stop = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._hold())

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self._task.done()

    async def run(self, work: Callable[[Client], Coroutine[Any, Any, _T]], timeout: float) -> _T:
        """Wait for the connection and use it.

        Raises:
            Exception: The connection or the work failed; `TimeoutError` if it took too long.
        """
        self._calls += 1
        working = asyncio.create_task(self._work(work))
        try:
            done, _ = await asyncio.wait([working, self._task], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if working in done:
                return working.result()
            if not done:
                raise TimeoutError
            raise self._failure or ConnectionError("the connection was closed")
        finally:
            working.cancel()
            self._calls -= 1
            if self._retired and not self._calls:
                self._end()

    def retire(self) -> None:
        """Close the connection as soon as no call uses it."""
        self._retired = True
        if not self._calls:
            self._end()

    async def close(self) -> None:
        """Close the connection; give up after a while."""
        self._end()
        await asyncio.wait([self._task], timeout=_CLOSE_SECONDS)
        self._task.cancel()

    def _end(self) -> None:
        self._stop.set()
        if not self._open.is_set():  # it still connects, which a server can make last for ever
            self._task.cancel()

    async def _work(self, work: Callable[[Client], Coroutine[Any, Any, _T]]) -> _T:
        await self._open.wait()
        return await work(self._client)

    async def _hold(self) -> None:
        try:
            async with self._client:
                self._open.set()
                await self._stop.wait()
        except BaseException as failure:
            self._failure = failure


async def _list_tools(client: Client) -> tuple[list[Tool], str, str]:
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    info = client.server_info
    return tools, one_line(info.name, _MAX_NAME) if info else "", one_line(info.version, _MAX_NAME) if info else ""


def _parse(server: str | Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the URL or the words of the command."""
    if isinstance(server, str) and server.startswith(("http://", "https://")):
        require_url("the URL of an MCP server", server)
        return server, []
    try:
        words = shlex.split(server) if isinstance(server, str) else list(server)
    except ValueError as error:
        raise ArgumentError(f"the command {server!r} cannot be read: {error}") from error
    if not words or not words[0]:
        raise ArgumentError("an MCP server needs a URL such as http://localhost:8000/mcp, or a command")
    return None, words


def _describe(url: str | None, command: list[str]) -> str:
    """Return where a server is, without parts that may be secret: user names, queries and arguments."""
    if url is None:
        return PurePath(command[0]).name
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _schema(tool: Tool) -> dict[str, Any]:
    schema = function_schema(tool.name, tool.description or "", {})
    schema["function"]["parameters"] = dict(tool.input_schema)
    return schema


def _hash(schemas: list[dict[str, Any]]) -> str:
    return blake2b(json.dumps(schemas, sort_keys=True).encode(), digest_size=16).hexdigest()


def _text(result: CallToolResult) -> str:
    """Return the text of a result; other content is only named."""
    parts = [content.text if content.type == "text" else f"[{content.type}]" for content in result.content]
    text = "\n".join(parts)
    return text if not result.is_error or text.startswith(ERROR) else error_text(text or "the tool failed")
