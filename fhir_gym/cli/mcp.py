"""The commands `fhir-gym mcp …`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fhir_gym.cli._console import note
from fhir_gym.cli._options import EpisodeOptions, OwnWorldOption, one_pack, open_worlds, with_option_groups

if TYPE_CHECKING:
    from fhir_gym.mcp_servers import ToolSet

app = typer.Typer(
    no_args_is_help=True,
    help="Serve tools to agents and assistants with the Model Context Protocol (extra mcp).\n\n"
    "By default, a server talks to the one client that started it, over standard input and output.",
)

_DEFAULT_WORLD = "hospital-small"


def parse_address(text: str | None) -> tuple[str, int] | None:
    """Return the host and the port of ``HOST:PORT`` or of a port alone, which is reachable from this machine only.

    Raises:
        typer.BadParameter: The text is something else.
    """
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536 or (colon and not host):
        raise typer.BadParameter(f"{text!r} is not an address such as 127.0.0.1:8000, or a port such as 8000")
    return host.strip("[]") or "127.0.0.1", int(port)


HttpOption = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="[HOST:]PORT",
        help="Serve by streamable HTTP at this address, under /mcp; a port alone is reachable from this machine only.",
    ),
]


@app.command("fhir")
@with_option_groups
def fhir(
    *,
    env_ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENV_ID]...", help="Environments whose tasks clients may start; without one, serve a world."
        ),
    ] = None,
    world: OwnWorldOption = None,
    http: HttpOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Rollout file to which each episode is appended when it is over.")
    ] = None,
    feedback: Annotated[
        Literal["explained", "checks", "none"],
        typer.Option(
            help="What finish returns. explained: success, reward and checks, and for training variations the "
            "explanation; checks: the same without explanations; none: nothing."
        ),
    ] = "explained",
    episodes: EpisodeOptions,
    max_sessions: Annotated[
        int, typer.Option(min=1, help="Maximum number of running episodes, or of private copies of the world.")
    ] = 128,
    idle_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds without a call after which an episode or a copy is closed.")
    ] = 1_800.0,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the session ids; by default, clients cannot guess ids of others.")
    ] = None,
) -> None:
    """Serve the five FHIR tools, on a world or on tasks.

    On a world, writes are kept in memory until the server stops. On tasks, start_task and finish begin and end an
    episode, and each episode has its own records.

    Example: fhir-gym mcp fhir --world hospital-small

    Example: fhir-gym mcp fhir FHIRAgent/Appointment-v0 --http 8000 --out rollouts.jsonl
    """
    address = parse_address(http)
    if env_ids is None and (out is not None or episodes != EpisodeOptions()):
        raise typer.BadParameter(
            "--out and the options of episodes, such as --level, need an ENV_ID", param_hint="ENV_ID"
        )
    from fhir_gym.mcp_servers import TaskTools, WorldTools, require_sdk

    require_sdk()
    with ExitStack() as stack:
        if not env_ids:
            (only,) = open_worlds([world or _DEFAULT_WORLD], stack).values()
            tools: ToolSet = WorldTools(only, max_sessions=max_sessions, idle_timeout=idle_timeout, seed=seed)
        else:
            ids = [one_pack(text) for text in env_ids]
            configs = episodes.configs(ids, world, stack)
            tools = TaskTools(
                configs, out=out, feedback=feedback, max_sessions=max_sessions, idle_timeout=idle_timeout, seed=seed
            )
        _serve(tools, address)


@app.command("spec")
def spec(http: HttpOption = None) -> None:
    """Serve look-ups in the FHIR R4 specification: resource types, elements, search parameters and data types.

    Example: fhir-gym mcp spec
    """
    address = parse_address(http)
    from fhir_gym.agents.tool_sources.specification import SpecificationTools
    from fhir_gym.mcp_servers import SourceTools, require_sdk

    require_sdk()
    _serve(SourceTools(SpecificationTools(), "Look up FHIR R4: elements, search parameters and data types."), address)


@app.command("memory")
def memory(
    file: Annotated[Path, typer.Argument(metavar="MEMORY", help="Memory file that `fhir-gym train memory` wrote.")],
    http: HttpOption = None,
) -> None:
    """Serve the reflections of a memory: about operations on a resource type, and about similar tasks.

    Example: fhir-gym mcp memory memory.jsonl
    """
    address = parse_address(http)
    from fhir_gym.agents.tool_sources.memory import MemoryTools
    from fhir_gym.mcp_servers import SourceTools, require_sdk

    require_sdk()
    _serve(SourceTools(MemoryTools(file), "Lessons from earlier tasks on FHIR servers."), address)


def _serve(tools: ToolSet, address: tuple[str, int] | None) -> None:
    from fhir_gym.mcp_servers import serve_http, serve_stdio

    if address is None:
        serve_stdio(tools)
        return
    serve_http(tools, *address, ready=lambda url: note(f"{tools.name} at {url} (stop with Ctrl-C)"))
