"""The base of the two FHIR tool sets: the tools of the action grammar, with a session id."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, Self, TypeVar
from weakref import WeakValueDictionary

from typing_extensions import override

from fhir_gym.actions import GRAMMAR
from fhir_gym.agents.tool_sources import check_arguments, error_text, unknown_tool
from fhir_gym.mcp_servers.sessions import Closable, SessionTable
from fhir_gym.mcp_servers.toolset import McpClient, ToolResult

S = TypeVar("S", bound=Closable)

FHIR_TOOLS = ("searchResources", "getResourceById", "createResource", "updateResource", "deleteResource")
"""The tools of the action grammar that send a request."""
_THREADS = 32
"""Maximum number of threads, and so of sessions whose calls run at the same time.

They live as long as the tool set, because a world keeps connections for each thread.
"""

Handler = Callable[[dict[str, Any], McpClient], ToolResult]
"""Function that performs a call with valid arguments."""


class FhirTools(AbstractContextManager[Any], Generic[S]):
    """FHIR tools with sessions.

    The tools are those of the action grammar, with one more argument: the id of the session. All calls run in threads:
    grading an episode can take seconds, in which the event loop answers other clients. Of each session, one call runs
    at a time; a call that waits for another call of its session takes no thread.

    Args:
        sessions: The sessions.
        id_name: Name of the argument with the session id.
        id_about: Description of this argument.
        id_required: Whether the argument is required.
        grammar_tools: Names of the grammar's tools to offer.
    """

    name = "fhir-gym-fhir"
    read_only = frozenset({"searchResources", "getResourceById"})

    def __init__(
        self,
        sessions: SessionTable[S],
        *,
        id_name: str,
        id_about: str,
        id_required: bool,
        grammar_tools: Collection[str],
    ) -> None:
        self.sessions = sessions
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="fhir-gym-mcp")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by session; of running calls
        self._id_name, self._id_required = id_name, id_required
        self._schemas: dict[str, dict[str, Any]] = {}
        self._handlers: dict[str, Handler] = {}
        for schema in GRAMMAR.tools():
            function = schema["function"]
            if function["name"] in grammar_tools:
                parameters = function["parameters"]
                id_schema = {id_name: {"type": "string", "description": id_about}}
                parameters["properties"] = id_schema | parameters["properties"]
                parameters["required"] = [id_name] * id_required + parameters["required"]
                self._schemas[function["name"]] = schema

    def offer(self, schema: dict[str, Any], handler: Handler) -> None:
        """Add a tool that is not in the grammar."""
        name = schema["function"]["name"]
        self._schemas[name], self._handlers[name] = schema, handler

    def schemas(self) -> list[dict[str, Any]]:
        """Return the OpenAI function schemas of the tools."""
        return list(self._schemas.values())

    async def call(self, name: str, arguments: Mapping[str, Any], client: McpClient) -> ToolResult:
        """Call a tool in a thread, after the earlier calls of its session; see `call_now`."""
        loop, id = asyncio.get_running_loop(), arguments.get(self._id_name)
        starts = id is None and name in self._handlers
        async with nullcontext() if starts else self._turns.setdefault(str(id), asyncio.Lock()):
            return await loop.run_in_executor(self._threads, self.call_now, name, arguments, client)

    def call_now(self, name: str, arguments: Mapping[str, Any], client: McpClient) -> ToolResult:
        """Call a tool in this thread.

        Raises:
            SessionError: There is no such session, it is over, or there are too many.
            FhirGymError: The call failed.
        """
        if name not in self._schemas:
            return ToolResult(unknown_tool(name, list(self._schemas)), error=True)
        if name in self._handlers:
            checked = check_arguments(self._schemas[name], arguments)
            return (
                ToolResult(checked, error=True) if isinstance(checked, str) else self._handlers[name](checked, client)
            )
        given = dict(arguments)
        id = given.pop(self._id_name, None)
        if not isinstance(id, str) and (self._id_required or id is not None):
            problem = "is missing" if id is None else "must have the type string"
            return ToolResult(error_text(f"the argument {self._id_name!r} {problem}"), error=True)
        return self.act(id, name, given)

    @abstractmethod
    def act(self, id: str | None, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool of the grammar in a session.

        Args:
            id: The session; None only if the id is optional.
            name: The tool.
            arguments: The arguments, possibly invalid.
        """

    def reap(self) -> None:
        """Close the idle sessions."""
        self.sessions.reap()

    def close(self) -> None:
        """Close all sessions."""
        self.sessions.close()
        self._threads.shutdown()

    async def aclose(self) -> None:
        """Close all sessions."""
        await asyncio.to_thread(self.close)

    @override
    def __enter__(self) -> Self:
        return self

    @override
    def __exit__(self, *_: object) -> None:
        self.close()
