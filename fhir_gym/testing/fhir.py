"""Serve the embedded FHIR server, or any ASGI application, over HTTP for a `with` block."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

import uvicorn
from starlette.types import ASGIApp
from typing_extensions import override

from fhir_gym.errors import FhirGymError
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.http import create_app
from fhir_gym.http_server import HttpProtocol, bind


class AppServer(AbstractContextManager[Any]):
    """Context manager that serves an ASGI application on 127.0.0.1 from a thread.

    Args:
        app: The application.
        port: Port; 0 for a free port.
        config: Further settings of `uvicorn.Config`.

    Raises:
        FhirGymError: The port is in use.
    """

    def __init__(self, app: ASGIApp, port: int = 0, **config: Any) -> None:
        self._listener = bind("127.0.0.1", port)
        settings: dict[str, Any] = {"http": HttpProtocol, "log_level": "critical", "ws": "none"} | config
        self._server = uvicorn.Server(uvicorn.Config(app, **settings))
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],), daemon=True)

    @property
    def url(self) -> str:
        """The URL of the server, without a trailing slash."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @override
    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise FhirGymError("the server did not start")
            time.sleep(0.001)
        return self

    @override
    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()


@contextmanager
def serving(world: World, *, port: int = 0) -> Iterator[str]:
    """Serve a world on 127.0.0.1, in a thread of this process.

    Args:
        world: The initial content of the server.
        port: Port to listen on; 0 for a free port.

    Yields:
        The server's base URL.

    Raises:
        FhirGymError: The port is in use.

    Examples:
        >>> from fhir_gym import worlds
        >>> with worlds.load("empty") as world, serving(world) as url:
        ...     url.startswith("http://127.0.0.1:")
        True
    """
    with AppServer(create_app(world), port) as server:
        yield f"{server.url}/fhir"
