"""`fhir-gym serve`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from fhir_gym.cli._console import note, progress
from fhir_gym.cli._options import WorldOption

Level = Literal["hapi", "strict"]


def serve(
    world: WorldOption = "hospital-small",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every interface.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8080,
    validation: Annotated[
        Level, typer.Option(help="hapi: as lenient as HAPI FHIR; strict: reject invalid resources.")
    ] = "hapi",
    identifier_of_type: Annotated[
        bool, typer.Option("--identifier-of-type", help="Enable the search modifier :of-type on identifiers.")
    ] = False,
) -> None:
    """Serve a world over HTTP as a FHIR R4 server with the base path /fhir.

    Writes are kept in memory until the process ends; the world file never changes.

    Example: fhir-gym serve --world hospital-small --port 8080
    """
    from fhir_gym import http_server, worlds
    from fhir_gym.fhir.adapters import http

    http_server.bind(host, port).close()  # if the port is in use, fail before building a world
    with progress(f"Building {world}") as update:
        opened = worlds.load(world, progress=update)
    with opened:
        where = f"http://{host}:{port}/fhir"
        note(f"{opened.name}: {opened.manifest.total:,} resources at {where} (stop with Ctrl-C)")
        http.serve(opened, host=host, port=port, validation=validation, identifier_of_type=identifier_of_type)
