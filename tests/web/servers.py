"""Serve the viewer for tests in a browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp

from fhir_gym.http_server import bind, make_http_server


@contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """Serve an application in a thread; yields its URL without a slash at the end."""
    server = make_http_server(app)
    with bind("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
