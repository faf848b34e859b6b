"""The commands `fhir-gym serve`, `fhir-gym openenv serve` and `fhir-gym research harbor …`."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import typer

from fhir_gym.cli._console import note
from fhir_gym.cli._options import EnvArgument, EpisodeOptions, OwnWorldOption, WorldOption, one_pack, with_option_groups
from fhir_gym.cli.worlds import open_world

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
    from fhir_gym import http_server
    from fhir_gym.fhir.adapters import http

    http_server.bind(host, port).close()  # if the port is in use, fail before building a world
    with open_world(world) as opened:
        where = f"http://{host}:{port}/fhir"
        note(f"{opened.name}: {opened.manifest.total:,} resources at {where} (stop with Ctrl-C)")
        http.serve(opened, host=host, port=port, validation=validation, identifier_of_type=identifier_of_type)


openenv = typer.Typer(no_args_is_help=True, help="Serve tasks as an OpenEnv environment (extra openenv).")


@openenv.callback()
def _group() -> None:
    """Make `serve` a subcommand, although it is the only one."""


@openenv.command("serve")
@with_option_groups
def serve_openenv(
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
        from fhir_gym.integrations.openenv import (
            serve as serve_environments,  # needs an extra, so wrong arguments are named first
        )

        stack.callback(gc.freeze)  # visiting all objects of OpenEnv's modules at exit would take 0.8 seconds
        serve_environments(
            configs,
            host=host,
            port=port,
            max_sessions=max_sessions,
            session_timeout=session_timeout,
            ready=lambda url: note(f"OpenEnv server at {url} (stop with Ctrl-C)"),
        )


harbor = typer.Typer(
    no_args_is_help=True,
    help="Serve and grade an episode in the container of the server of a Harbor task; `publish harbor` writes such "
    "tasks.",
)

SocketOption = Annotated[
    Path, typer.Option(help="Unix socket over which the server sends the result; the agent cannot reach it.")
]
_SOCKET, _VERDICT_FOLDER = Path("/tmp/fhir-gym.sock"), Path("/tmp/fhir-gym-verdict")


@harbor.command("serve")
@with_option_groups
def serve_harbor(
    *,
    env_id: EnvArgument,
    task: Annotated[str, typer.Option(help="Key of the task.")],
    variation: Annotated[int, typer.Option(min=0, help="Number of the variation.")],
    world: OwnWorldOption = None,
    episodes: EpisodeOptions,
    task_hash: Annotated[str | None, typer.Option(help="Refuse to serve if the variation's content differs.")] = None,
    world_hash: Annotated[str | None, typer.Option(help="Refuse to serve if the world's content differs.")] = None,
    base_url: Annotated[str | None, typer.Option(help="Base URL under which clients reach the FHIR server.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every interface.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8080,
    socket: SocketOption = _SOCKET,
) -> None:
    """Serve one episode: FHIR under /fhir and MCP under /mcp; POST /finish takes the answer (extra mcp).

    The task folders of `publish harbor` run this command in a container. The episode cannot be restarted, and no HTTP
    request returns its verdict.

    Example: fhir-gym research harbor serve FHIRAgent/Appointment-v0 --task 02a --variation 1000
    """
    from fhir_gym.integrations.harbor import open_recorder, serve_episode
    from fhir_gym.mcp_servers import require_sdk
    from fhir_gym.tasks import get_pack

    require_sdk()
    config = episodes.config(env_id, base_url=base_url or f"http://{host}:{port}/fhir")
    with open_world(world or get_pack(env_id).world) as opened:
        recorder = open_recorder(config, task, variation, opened, task_hash=task_hash, world_hash=world_hash)
        about = f"task {task}, variation {variation} of {env_id}"
        serve_episode(
            recorder,
            host=host,
            port=port,
            socket=socket,
            ready=lambda origin: note(f"{about} at {origin}/fhir and {origin}/mcp (stop with Ctrl-C)"),
        )


@harbor.command("verdict")
def verdict(
    socket: SocketOption = _SOCKET,
    out: Annotated[
        Path, typer.Option(help="Folder for reward.json, verdict.json and rollout.jsonl.")
    ] = _VERDICT_FOLDER,
) -> None:
    """End the episode of a `research harbor serve` process, and write its reward, verdict and record.

    Harbor runs this command in the server's container after the agent's container has stopped. Without a verdict,
    because the server failed, there is no reward file, and the exit code is 1.

    Example: fhir-gym research harbor verdict --out verdict
    """
    from fhir_gym.integrations.harbor import fetch_result, write_verdict_files

    write_verdict_files(fetch_result(socket), out)
    note(f"verdict written to {out}")
