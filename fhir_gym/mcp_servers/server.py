"""Serve a set of tools with the Model Context Protocol, over standard input and output or over HTTP."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fhir_gym.errors import FhirGymError, missing_extra, pip_install
from fhir_gym.http_server import bind, make_http_server
from fhir_gym.mcp_servers.toolset import McpClient, ToolResult, ToolSet

if TYPE_CHECKING:
    from mcp.server import Server, ServerRequestContext
    from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, Tool
    from starlette.applications import Starlette

_log = logging.getLogger(__name__)

HTTP_PATH = "/mcp"
"""Path of the streamable HTTP endpoint."""
_REAP_SECONDS = 10.0
"""Seconds between two searches for idle sessions."""


def require_sdk() -> None:
    """Check that the MCP SDK is installed.

    Raises:
        MissingExtraError: It is not, or it is too old.
    """
    with missing_extra(f"MCP needs: {pip_install('mcp')}"):
        import_module("mcp_types")  # version 1 of the SDK does not have this package


def make_server(tools: ToolSet) -> Server[Any]:
    """Return an MCP server with these tools.

    The tools' own JSON schemas are served as they are, and the tools check their arguments themselves.

    Args:
        tools: The tools. The caller closes them after the server.

    Raises:
        MissingExtraError: The MCP SDK is not installed.

    Examples:
        >>> from fhir_gym import worlds
        >>> from fhir_gym.mcp_servers import WorldTools
        >>> with worlds.load("empty") as world, WorldTools(world) as tools:
        ...     make_server(tools).name
        'fhir-gym-fhir'
    """
    require_sdk()
    from mcp.server import Server
    from mcp_types import ListToolsResult

    listed = [_tool(schema["function"], tools) for schema in tools.schemas()]
    input_schemas = {tool.name: tool.input_schema for tool in listed}

    async def list_tools(ctx: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=listed)

    async def call_tool(ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        return _wire_result(await _call(tools, params.name, params.arguments or {}, _client(ctx)))

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[dict[str, Any]]:
        reaper = asyncio.create_task(_reap(tools))
        try:
            yield {}
        finally:
            reaper.cancel()

    return Server(
        tools.name,
        version=version("fhir-gym"),
        instructions=tools.instructions,
        get_tool_input_schema=input_schemas.get,  # otherwise the SDK lists the tools for each HTTP request
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        lifespan=lifespan,
    )


def make_app(tools: ToolSet, host: str = "127.0.0.1") -> Starlette:
    """Return an ASGI application that serves the tools by streamable HTTP under `HTTP_PATH`.

    Args:
        tools: The tools. The caller closes them after the server.
        host: The address that the application will listen on. On a loopback address, requests with a foreign Host or
            Origin header are refused.

    Raises:
        MissingExtraError: The MCP SDK is not installed.
    """
    return make_server(tools).streamable_http_app(streamable_http_path=HTTP_PATH, json_response=True, host=host)


def serve_stdio(tools: ToolSet) -> None:
    """Serve one client over standard input and output until the client closes the input; then close the tools.

    This function handles signals, so it must run in the main thread.

    Raises:
        KeyboardInterrupt: The process got SIGINT or SIGTERM. The tools are closed in this case too.
        MissingExtraError: The MCP SDK is not installed.
    """
    require_sdk()
    from mcp.server.stdio import stdio_server

    async def serve() -> None:
        server = make_server(tools)
        async with stdio_server() as (requests, responses):
            await server.run(requests, responses, server.create_initialization_options())

    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as failure:
            failures.append(failure)

    # A thread that waits for input cannot be stopped. As a daemon, it does not keep an interrupted process alive.
    thread = threading.Thread(target=run, daemon=True)
    with _closed_when_stopped(tools):
        thread.start()
        thread.join()
        for failure in failures:
            raise failure


def serve_http(
    tools: ToolSet, host: str = "127.0.0.1", port: int = 8000, *, ready: Callable[[str], object] | None = None
) -> None:
    """Serve clients by streamable HTTP until the process is interrupted; then close the tools.

    Like `serve_stdio`, this function handles signals, so it must run in the main thread.

    Args:
        tools: The tools.
        host: The address to bind.
        port: The port to bind; 0 selects a free port.
        ready: Function that is called with the server's URL as soon as clients can connect.

    Raises:
        FhirGymError: The address cannot be bound.
    """
    server = make_http_server(make_app(tools, host))
    with bind(host, port) as listener:
        if ready is not None:
            shown = f"[{host}]" if ":" in host else host
            ready(f"http://{shown}:{listener.getsockname()[1]}{HTTP_PATH}")
        with _closed_when_stopped(tools):
            server.run(sockets=[listener])


@contextmanager
def _closed_when_stopped(tools: ToolSet) -> Iterator[None]:
    """Close the tools at the end, also after SIGINT and SIGTERM; both raise KeyboardInterrupt."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        asyncio.run(tools.aclose())
        signal.signal(signal.SIGTERM, before)


async def _call(tools: ToolSet, name: str, arguments: dict[str, Any], client: McpClient) -> ToolResult:
    """Call a tool; whatever fails becomes a result that the client's model can read."""
    try:
        return await tools.call(name, arguments, client)
    except FhirGymError as error:
        return ToolResult(f"Error: {error}", error=True)
    except Exception:
        _log.exception("the tool %r failed", name)
        return ToolResult(f"Error: the tool {name[:60]!r} failed; the server's log has the reason", error=True)


async def _reap(tools: ToolSet) -> None:
    while True:
        await asyncio.sleep(_REAP_SECONDS)
        await asyncio.to_thread(tools.reap)


def _tool(function: dict[str, Any], tools: ToolSet) -> Tool:
    from mcp_types import Tool, ToolAnnotations

    return Tool(
        name=function["name"],
        description=function["description"],
        input_schema=function["parameters"],
        annotations=ToolAnnotations(read_only_hint=function["name"] in tools.read_only),
    )


def _wire_result(result: ToolResult) -> CallToolResult:
    from mcp_types import CallToolResult, TextContent

    text = result.text.encode("utf-8", "backslashreplace").decode()  # invalid arguments may have lone surrogates
    data = None if result.data is None else dict(result.data)
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=data, is_error=result.error)


def _client(ctx: ServerRequestContext[Any, Any]) -> McpClient:
    params = ctx.session.client_params
    return McpClient() if params is None else McpClient(params.client_info.name, params.client_info.version)
