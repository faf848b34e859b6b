"""The commands `fhir-gym publish …`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from fhir_gym.cli._console import note, progress
from fhir_gym.cli._options import EnvArgument, EpisodeOptions, names, one_pack, with_option_groups
from fhir_gym.errors import pip_install

app = typer.Typer(
    no_args_is_help=True,
    help="Write folders that publish tasks for other frameworks. The frameworks need not be installed.",
)

OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")]


@app.command("openenv")
@with_option_groups
def openenv(
    *,
    env_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ENV_ID]...", help="Environments to publish; default: all that are installed."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder; its name is the name of the environment.")],
    episodes: EpisodeOptions,
    wheel: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Wheel of fhir-gym that the folder contains; default: from PyPI."
        ),
    ] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Write an OpenEnv environment with openenv.yaml, which is a Hugging Face Space too.

    Example: fhir-gym publish openenv FHIRAgent/Appointment-v0 --out fhir-appointment
    """
    from fhir_gym.integrations.publish import write_openenv_folder
    from fhir_gym.tasks import pack_ids

    ids = dict.fromkeys(one_pack(text) for text in env_ids or pack_ids())
    write_openenv_folder([episodes.config(env_id) for env_id in ids], out, wheel=wheel, overwrite=overwrite)
    note(f"written to {out}; to check and upload it: {pip_install('openenv')}; openenv validate {out}")


@app.command("verifiers")
@with_option_groups
def verifiers(
    *,
    env_id: EnvArgument,
    out: Annotated[Path, typer.Option(help="The folder; its name is the id of the environment.")],
    episodes: EpisodeOptions,
    classic: Annotated[
        bool, typer.Option("--classic", help="For verifiers before 0.4, and trainers that call load_environment.")
    ] = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Write an environment for verifiers, as vf-init does. The options are its defaults.

    Example: fhir-gym publish verifiers FHIRAgent/Appointment-v0 --out fhir-appointment
    """
    from fhir_gym.integrations.publish import write_verifiers_folder

    write_verifiers_folder(episodes.config(env_id), out, classic=classic, overwrite=overwrite)
    note(f"written to {out}; to use it: pip install {out}; vf-eval {out.resolve().name} -m MODEL")


@app.command("harbor")
@with_option_groups
def harbor(
    *,
    env_id: EnvArgument,
    out: Annotated[Path, typer.Option(help="Folder for the task folders; its name is the name of the dataset.")],
    suite: Annotated[
        str | None, typer.Option(help="Write the suite's episodes of this environment; see `suites list`.")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="Task keys separated by commas; default: all.")] = None,
    variations: Annotated[
        str | None,
        typer.Option(help="Numbers of variations, such as 0-9 or 1000-1004; default: the split's first ten."),
    ] = None,
    split: Annotated[
        Literal["train", "test", "heldout_tasks"] | None,
        typer.Option(help="Write only variations of this split; default: test, or all if --variations is given."),
    ] = None,
    episodes: EpisodeOptions,
    organization: Annotated[
        str, typer.Option("--org", help="Organization in the names of the tasks and the dataset.")
    ] = "fhir-gym",
    image: Annotated[
        str, typer.Option(help="Image of the server, built from docker/Dockerfile of this version with the extra mcp.")
    ] = "fhir-gym-harbor",
    no_mcp: Annotated[
        bool,
        typer.Option("--no-mcp", help="Leave the MCP server out, for agents without MCP, which Harbor would refuse."),
    ] = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Write one Harbor task folder for each episode, and dataset.toml, which names all task folders of the folder.

    Example: fhir-gym publish harbor FHIRAgent/Appointment-v0 --tasks 01,02a --variations 1000-1004 --out tasks

    Example: fhir-gym publish harbor FHIRAgent/MedAgentBench-v0 --suite core-v1 --out tasks
    """
    ending = EpisodeOptions(reward=episodes.reward, max_steps=episodes.max_steps)
    if suite is not None and (tasks, variations, split, episodes) != (None, None, None, ending):
        raise typer.BadParameter(
            "a suite has its own episodes: only --reward and --max-steps can be combined with it", param_hint="--suite"
        )
    from fhir_gym import rollouts, worlds
    from fhir_gym.integrations.harbor import write_dataset, write_task_folders
    from fhir_gym.suites import get_suite
    from fhir_gym.tasks import get_pack

    if suite is not None:
        plan = get_suite(suite).plan(env_id, reward=episodes.reward, max_steps=episodes.max_steps)
    else:
        config = episodes.config(env_id, split="test" if split is None and variations is None else split)
        plan = rollouts.plan(config, tasks=names(tasks), variations=variations)
    world = get_pack(env_id).world
    with progress(f"Building {world}") as update:
        opened = worlds.load(world, progress=update)
    with opened, progress("Playing the reference solutions") as update:
        plan = replace(plan, config=replace(plan.config, world=opened))
        total, written = len(plan.episodes), 0
        folders = write_task_folders(
            plan, out, image=image, mcp=not no_mcp, organization=organization, overwrite=overwrite
        )
        for written, _ in enumerate(folders, 1):
            update(written, total)
    write_dataset(out, organization)
    note(f"{written} task folders written to {out}; to run them: {pip_install('harbor')}; harbor run -p {out}")
