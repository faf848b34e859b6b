"""The OpenEnv server: an ASGI application, and `serve` for `fhir-gym openenv serve`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.types import ConcurrencyConfig
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse

from fhir_gym.arguments import require_whole
from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import FhirGymError, InfraError
from fhir_gym.http_server import bind
from fhir_gym.integrations.openenv.catalog import TaskCatalog
from fhir_gym.integrations.openenv.environment import FHIREnvironment
from fhir_gym.integrations.openenv.models import ENV_NAME, FHIRAction, FHIRObservation, FHIRState

_SHUTDOWN_SECONDS = 2
"""Time that running requests have to finish when the server stops."""
_MAX_CONNECTIONS = 1_024


def make_app(catalog: TaskCatalog, *, max_sessions: int = 64, session_timeout: float = 600.0) -> Starlette:
    """Return OpenEnv's ASGI application for the tasks of a catalogue.

    Args:
        catalog: The tasks. The caller closes the catalogue after the server.
        max_sessions: Maximum number of sessions at the same time.
        session_timeout: Seconds without a call after which a session is closed. OpenEnv looks for idle sessions every
            5 seconds, or every quarter of this time if that is longer.

    Raises:
        FhirGymError: A limit is not positive, or sessions would share a FHIR server.
    """
    require_whole("max_sessions", max_sessions, 1)
    if not session_timeout > 0:
        raise FhirGymError(f"session_timeout must be positive, not {session_timeout}")
    if max_sessions > 1 and any(config.fhir_server for config in catalog.configs.values()):
        raise FhirGymError("a running FHIR server can serve only one episode at a time: set max_sessions to 1")
    app: Starlette = create_app(
        partial(FHIREnvironment, catalog),
        FHIRAction,
        FHIRObservation,
        env_name=ENV_NAME,
        state_cls=FHIRState,
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=max_sessions, session_timeout=session_timeout),
    )
    app.add_exception_handler(FhirGymError, _refusal)
    return app


def serve(
    configs: Sequence[EpisodeConfig],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    max_sessions: int = 64,
    session_timeout: float = 600.0,
    ready: Callable[[str], object] | None = None,
) -> None:
    """Serve tasks to OpenEnv clients until the process is interrupted.

    Args:
        configs: The settings of the episodes, one config for each pack.
        host: The address to bind.
        port: The port to bind; 0 selects a free port.
        max_sessions: Maximum number of sessions at the same time.
        session_timeout: Seconds without a call after which a session is closed.
        ready: Function that is called with the server's URL as soon as clients can connect.

    Raises:
        FhirGymError: An argument is invalid, or the address cannot be bound.
    """
    with TaskCatalog(configs) as catalog, bind(host, port) as listener:
        app = make_app(catalog, max_sessions=max_sessions, session_timeout=session_timeout)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            limit_concurrency=_MAX_CONNECTIONS,
        )
        if ready is not None:
            shown = f"[{host}]" if ":" in host else host
            ready(f"http://{shown}:{listener.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[listener])


def _refusal(request: Request, error: Exception) -> JSONResponse:
    """Answer a plain HTTP request that failed; errors in WebSocket sessions are OpenEnv's own messages."""
    return JSONResponse({"detail": str(error)}, 503 if isinstance(error, InfraError) else 400)
