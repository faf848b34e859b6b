"""`fhir-gym serve`."""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from fhir_gym.cli._console import err, progress
from fhir_gym.errors import FhirGymError, UnknownNameError

__all__ = ["serve"]

_LEVELS = ("hapi", "strict")


def serve(
    world: Annotated[str, typer.Option(help="Name of a world (see `worlds list`) or path of a world file.")] = "hospital-small",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every interface.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8080,
    validation: Annotated[str, typer.Option(help="hapi: lenient as HAPI FHIR is; strict: refuse invalid resources.")] = "hapi",
) -> None:
    """Serve a world over HTTP as a FHIR R4 server, base path /fhir.

    What clients write stays in memory until the process ends; the world's file never changes.

    Example: fhir-gym serve --world hospital-small --port 8080
    """
    if validation not in _LEVELS:
        raise UnknownNameError("validation", validation, _LEVELS)
    _check_port(host, port)
    from fhir_gym import worlds
    from fhir_gym.fhir import http

    with progress(f"Building {world}") as update:
        opened = worlds.load(world, progress=update)
    with opened:
        total = sum(opened.manifest.counts.values())
        err.print(f"{opened.manifest.name}: {total:,} resources at http://{host}:{port}/fhir (Ctrl-C ends)", markup=False)
        http.serve(opened, host=host, port=port, validation=validation)


def _check_port(host: str, port: int) -> None:
    """Say in one line that the address cannot be used, before anything is built."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FhirGymError(f"cannot listen on {host} port {port}: {reason}; choose another with --port") from error
