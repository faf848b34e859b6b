"""The commands `fhir-gym research harbor …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fhir_gym.cli._console import note, progress
from fhir_gym.cli._options import EnvArgument, EpisodeOptions, OwnWorldOption, with_option_groups

app = typer.Typer(
    no_args_is_help=True,
    help="Serve and grade an episode in the container of the server of a Harbor task; `publish harbor` writes such "
    "tasks.",
)

SocketOption = Annotated[
    Path, typer.Option(help="Unix socket over which the server sends the result; the agent cannot reach it.")
]
_SOCKET, _VERDICT_FOLDER = Path("/tmp/fhir-gym.sock"), Path("/tmp/fhir-gym-verdict")


@app.command("serve")
@with_option_groups
def serve(
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
    from fhir_gym import worlds
    from fhir_gym.integrations.harbor import open_recorder, serve_episode
    from fhir_gym.mcp_servers import require_sdk
    from fhir_gym.tasks import get_pack

    require_sdk()
    config = episodes.config(env_id, base_url=base_url or f"http://{host}:{port}/fhir")
    name = world or get_pack(env_id).world
    with progress(f"Building {name}") as update:
        opened = worlds.load(name, progress=update)
    with opened:
        recorder = open_recorder(config, task, variation, opened, task_hash=task_hash, world_hash=world_hash)
        about = f"task {task}, variation {variation} of {env_id}"
        serve_episode(
            recorder,
            host=host,
            port=port,
            socket=socket,
            ready=lambda origin: note(f"{about} at {origin}/fhir and {origin}/mcp (stop with Ctrl-C)"),
        )


@app.command("verdict")
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
