"""Serve the embedded FHIR server over HTTP for a `with` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.http import create_app
from fhir_gym.testing.app_server import AppServer


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
