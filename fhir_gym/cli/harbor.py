"""The commands `fhir-gym research harbor …`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from fhir_gym.arguments import parse_phrasing
from fhir_gym.cli._console import note, progress
from fhir_gym.cli._options import EnvArgument, OwnWorldOption, PhrasingOption, names
from fhir_gym.errors import pip_install

app = typer.Typer(
    no_args_is_help=True,
    help="Use tasks in Harbor, which runs agents in containers. `export` writes its task folders; `serve` and "
    "`verdict` run in the container of the server.",
)

RewardOption = Annotated[
    Literal["sparse", "dense"], typer.Option(help="sparse: 1 for success, else 0; dense: share of passed checks.")
]
MaxStepsOption = Annotated[
    int | None, typer.Option(min=1, help="Number of requests after which an episode is truncated.")
]
SocketOption = Annotated[
    Path, typer.Option(help="Unix socket over which the server sends the result; the agent cannot reach it.")
]
_SOCKET, _VERDICT_FOLDER = Path("/tmp/fhir-gym.sock"), Path("/tmp/fhir-gym-verdict")


@app.command("export")
def export(
    env_id: EnvArgument,
    out: Annotated[Path, typer.Option(help="Folder for the task folders.")],
    suite: Annotated[
        str | None, typer.Option(help="Export the suite's episodes of this environment; see `suites list`.")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="Task keys separated by commas; default: all.")] = None,
    variations: Annotated[
        str | None,
        typer.Option(help="Numbers of variations, such as 0-9 or 1000-1004; default: the split's first ten."),
    ] = None,
    split: Annotated[
        Literal["train", "test", "heldout_tasks"] | None,
        typer.Option(help="Export only variations of this split; default: test, or all if --variations is given."),
    ] = None,
    phrasing: PhrasingOption = None,
    grading: Annotated[
        Literal["state", "evidence"] | None,
        typer.Option(
            help="What to grade. state (default): the end state and the answer; evidence: also whether the agent read "
            "the records."
        ),
    ] = None,
    reward: RewardOption = "sparse",
    max_steps: MaxStepsOption = None,
    image: Annotated[
        str, typer.Option(help="Image of the server, built from docker/Dockerfile of this version with the extra mcp.")
    ] = "fhir-gym-harbor",
    no_mcp: Annotated[
        bool,
        typer.Option("--no-mcp", help="Leave the MCP server out, for agents without MCP, which Harbor would refuse."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace task folders that exist.")] = False,
) -> None:
    """Write one Harbor task folder for each episode.

    Example: fhir-gym research harbor export FHIRAgent/Appointment-v0 --tasks 01,02a --variations 1000-1004 --out tasks

    Example: fhir-gym research harbor export FHIRAgent/MedAgentBench-v0 --suite core-v1 --out tasks
    """
    if suite is not None and any(option is not None for option in (tasks, variations, split, phrasing, grading)):
        raise typer.BadParameter(
            "a suite has its own episodes: leave --tasks, --variations, --split, --phrasing and --grading out",
            param_hint="--suite",
        )
    from fhir_gym import rollouts, worlds
    from fhir_gym.episode_config import EpisodeConfig
    from fhir_gym.integrations.harbor import write_task_folders
    from fhir_gym.suites import get_suite
    from fhir_gym.tasks import get_pack

    if suite is not None:
        plan = get_suite(suite).plan(env_id, reward=reward, max_steps=max_steps)
    else:
        config = EpisodeConfig(
            env_id,
            phrasing=parse_phrasing(phrasing),
            grading=grading or "state",
            reward=reward,
            max_steps=max_steps,
            split="test" if split is None and variations is None else split,
        )
        plan = rollouts.plan(config, tasks=names(tasks), variations=variations)
    world = get_pack(env_id).world
    with progress(f"Building {world}") as update:
        opened = worlds.load(world, progress=update)
    with opened, progress("Playing the reference solutions") as update:
        plan = replace(plan, config=replace(plan.config, world=opened))
        total, written = len(plan.episodes), 0
        for written, _ in enumerate(write_task_folders(plan, out, image=image, mcp=not no_mcp, overwrite=overwrite), 1):
            update(written, total)
    note(f"{written} task folders written to {out}; to run them: {pip_install('harbor')}; harbor run -p {out}")


@app.command("serve")
def serve(
    env_id: EnvArgument,
    task: Annotated[str, typer.Option(help="Key of the task.")],
    variation: Annotated[int, typer.Option(min=0, help="Number of the variation.")],
    phrasing: PhrasingOption = None,
    world: OwnWorldOption = None,
    grading: Annotated[
        Literal["state", "evidence"], typer.Option(help="What to grade; see `research harbor export`.")
    ] = "state",
    reward: RewardOption = "sparse",
    max_steps: MaxStepsOption = None,
    task_hash: Annotated[str | None, typer.Option(help="Refuse to serve if the variation's content differs.")] = None,
    world_hash: Annotated[str | None, typer.Option(help="Refuse to serve if the world's content differs.")] = None,
    base_url: Annotated[str | None, typer.Option(help="Base URL under which clients reach the FHIR server.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every interface.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8080,
    socket: SocketOption = _SOCKET,
) -> None:
    """Serve one episode: FHIR under /fhir and MCP under /mcp; POST /finish takes the answer (extra mcp).

    The task folders of `research harbor export` run this command in a container. The episode cannot be restarted, and
    no HTTP request returns its verdict.

    Example: fhir-gym research harbor serve FHIRAgent/Appointment-v0 --task 02a --variation 1000
    """
    from fhir_gym import worlds
    from fhir_gym.episode_config import EpisodeConfig
    from fhir_gym.integrations.harbor import open_recorder, serve_episode
    from fhir_gym.mcp_servers import require_sdk
    from fhir_gym.tasks import get_pack

    require_sdk()
    config = EpisodeConfig(
        env_id,
        base_url=base_url or f"http://{host}:{port}/fhir",
        phrasing=parse_phrasing(phrasing),
        grading=grading,
        reward=reward,
        max_steps=max_steps,
    )
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
