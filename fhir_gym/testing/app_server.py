"""Serve an ASGI application in a thread."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from typing import Any, Self

import uvicorn
from starlette.types import ASGIApp
from typing_extensions import override

from fhir_gym.errors import FhirGymError
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
