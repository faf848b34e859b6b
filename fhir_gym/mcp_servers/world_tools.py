"""The FHIR tools on a world, for clients without a task."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from typing_extensions import override

from fhir_gym.actions import GRAMMAR, Invalid, to_request
from fhir_gym.agents.tool_sources import function_schema
from fhir_gym.episode import format_response
from fhir_gym.fhir import Session, World
from fhir_gym.fhir.context import Validation
from fhir_gym.mcp_servers.fhir_tools import FHIR_TOOLS, FhirTools
from fhir_gym.mcp_servers.sessions import Ending, SessionTable
from fhir_gym.mcp_servers.toolset import McpClient, ToolResult

_ID = {"type": "string", "description": "Id that start_session returned."}


class WorldTools(FhirTools[Session]):
    """The five FHIR tools on a world.

    The world itself never changes. Without a session id, all clients share one copy of the world, which lasts until
    the server stops. `start_session` makes a copy that only the clients with its id see.

    Args:
        world: The world.
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
        action = GRAMMAR.from_tool_call(name, arguments)
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
