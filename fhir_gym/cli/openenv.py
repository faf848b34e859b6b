"""The command `fhir-gym openenv serve`."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from typing import Annotated

import typer

from fhir_gym.cli._console import note
from fhir_gym.cli._options import EpisodeOptions, OwnWorldOption, one_pack, with_option_groups

app = typer.Typer(no_args_is_help=True, help="Serve tasks as an OpenEnv environment (extra openenv).")


@app.callback()
def _group() -> None:
    """Make `serve` a subcommand, although it is the only one."""


@app.command("serve")
@with_option_groups
def serve(
    *,
    env_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ENV_ID]...", help="Environments to serve; default: all that are installed."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every interface.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    world: OwnWorldOption = None,
    episodes: EpisodeOptions,
    max_sessions: Annotated[int, typer.Option(min=1, help="Maximum number of sessions at the same time.")] = 64,
    session_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds without a call after which a session is closed.")
    ] = 600.0,
) -> None:
    """Serve tasks to OpenEnv clients.

    Each WebSocket connection is a session with its own episode and records.

    Example: fhir-gym openenv serve FHIRAgent/Appointment-v0 --port 8000
    """
    from fhir_gym.http_server import bind
    from fhir_gym.tasks import pack_ids

    bind(host, port).close()  # if the port is in use, fail before building a world
    ids = [one_pack(text) for text in env_ids or pack_ids()]
    with ExitStack() as stack:
        configs = episodes.configs(ids, world, stack)
        from fhir_gym.integrations import openenv  # needs an extra, so wrong arguments are named first

        stack.callback(gc.freeze)  # visiting all objects of OpenEnv's modules at exit would take 0.8 seconds
        openenv.serve(
            configs,
            host=host,
            port=port,
            max_sessions=max_sessions,
            session_timeout=session_timeout,
            ready=lambda url: note(f"OpenEnv server at {url} (stop with Ctrl-C)"),
        )
