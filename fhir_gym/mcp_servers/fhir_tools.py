"""The FHIR tool sets: the tools of the action grammar with a session id, and their use on a world."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, Self, TypeVar
from weakref import WeakValueDictionary

from typing_extensions import override

from fhir_gym.actions import GRAMMAR, Invalid, to_request
from fhir_gym.agents.tool_sources import check_arguments, error_text, function_schema, unknown_tool
from fhir_gym.fhir import Session, World
from fhir_gym.fhir.context import Validation
from fhir_gym.mcp_servers.sessions import Closable, Ending, SessionTable
from fhir_gym.mcp_servers.toolset import McpClient, ToolResult
from fhir_gym.observations import format_response

_ID = {"type": "string", "description": "Id that start_session returned."}


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
    grading can take seconds, and the event loop must answer other clients meanwhile. Each session runs one call at a
    time. A call that waits for another call of its session takes no thread.

    Args:
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
        self._id_name, self._id_about, self._id_required = id_name, id_about, id_required
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
        copied = dict(arguments)
        id = copied.pop(self._id_name, None)
        if not isinstance(id, str) and (self._id_required or id is not None):
            problem = "is missing" if id is None else "must have the type string"
            return ToolResult(error_text(f"the argument {self._id_name!r} {problem}: {self._id_about}"), error=True)
        return self.act(id, name, copied)

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


class WorldTools(FhirTools[Session]):
    """The five FHIR tools on a world.

    The world itself never changes. Without a session id, all clients share one copy of the world, which lasts until
    the server stops. `start_session` makes a copy that only the clients with its id see.

    Args:
        validation: The validation mode; see `Session`.
        max_sessions: Maximum number of own copies.
        idle_timeout: Seconds without a call after which a copy is closed.
        seed: Seed of the session ids; None for ids that clients cannot guess.
        clock: Clock in seconds.
    """

    def __init__(
        self,
        world: World,
        *,
        validation: Validation = "hapi",
        max_sessions: int = 128,
        idle_timeout: float = 1_800.0,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            SessionTable("session", most=max_sessions, idle_seconds=idle_timeout, seed=seed, clock=clock),
            id_name="session_id",
            id_about="Id that start_session returned; without an id, the copy that all clients share.",
            id_required=False,
            grammar_tools=FHIR_TOOLS,
        )
        self._world, self._validation = world, validation
        self._shared, self._shared_lock = self._session(), threading.Lock()
        self.instructions = (
            f"Health records on a FHIR R4 server with the synthetic world {world.name}; its present is "
            f"{world.now.isoformat()}. Changes are kept in memory and are lost when the server stops. All clients "
            "share one copy of the records, unless they pass the session_id of a copy that start_session made."
        )
        self.offer(function_schema("start_session", "Start a private copy of the records.", {}), self._start)
        about = "Discard a private copy of the records."
        self.offer(function_schema("end_session", about, {"session_id": _ID}, ("session_id",)), self._end)

    @override
    def act(self, id: str | None, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        action = GRAMMAR.from_tool_call(name, arguments, {} if id is None else {self._id_name: id})
        if isinstance(action, Invalid):
            return ToolResult(action.text(), error=True)
        with self._use_shared() if id is None else self.sessions.use(id) as session:
            request = to_request(action, session.base_url)
            if isinstance(request, Invalid):
                return ToolResult(request.text(), error=True)
            return ToolResult(format_response(session.handle(request)))

    @override
    def close(self) -> None:
        super().close()
        with self._shared_lock:
            self._shared.close()

    def _session(self) -> Session:
        return self._world.session(validation=self._validation)

    @contextmanager
    def _use_shared(self) -> Iterator[Session]:
        with self._shared_lock:
            yield self._shared

    def _start(self, arguments: Mapping[str, Any], client: McpClient) -> ToolResult:
        id, _ = self.sessions.add(self._session)
        return ToolResult(f"session_id: {id}", data={"session_id": id})

    def _end(self, arguments: Mapping[str, Any], client: McpClient) -> ToolResult:
        id = arguments["session_id"]
        with self.sessions.use(id):
            self.sessions.end(id, Ending("has ended"))
        return ToolResult(f"session {id} has ended")
