"""The command `fhir-gym rollout`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from fhir_gym.arguments import parse_phrasing
from fhir_gym.cli._console import note, progress
from fhir_gym.cli._options import (
    AgentOptions,
    BudgetOptions,
    CredentialOptions,
    EnvArgument,
    OwnWorldOption,
    PhrasingOption,
    RunOptions,
    names,
    numbers_by_name,
    with_option_groups,
)
from fhir_gym.cli._summary import Summary
from fhir_gym.errors import FhirGymError
from fhir_gym.files import require_writable


@with_option_groups
def rollout(
    *,
    env_id: EnvArgument,
    options: AgentOptions,
    tasks: Annotated[str | None, typer.Option(help="Task keys separated by commas; default: all.")] = None,
    variations: Annotated[
        str | None, typer.Option(help="Numbers of variations, such as 0-9 or 3,1000-1004; default: the first ten.")
    ] = None,
    split: Annotated[
        Literal["train", "test", "heldout_tasks"] | None,
        typer.Option(help="Run only variations of this split; default: train, or all if --variations is given."),
    ] = None,
    phrasing: PhrasingOption = None,
    running: RunOptions,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run on a Ray cluster: auto (the running cluster), local (start Ray here), HOST:PORT or "
            "ray://HOST:PORT. --workers is then the number of actors; default: one per CPU.",
        ),
    ] = None,
    limits: BudgetOptions,
    world: OwnWorldOption = None,
    fhir_server: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Base URL of a running FHIR server that contains the world; default: the embedded server. If "
            "repeated, episodes run on all these servers at the same time.",
        ),
    ] = None,
    access: CredentialOptions,
    level: Annotated[int | None, typer.Option(min=1, help="Only tasks of this level, in packs with levels.")] = None,
    dial: Annotated[
        list[str] | None,
        typer.Option("--dial", metavar="NAME=NUMBER", help="Dial of the tasks, such as minutes=60; may be repeated."),
    ] = None,
    grading: Annotated[
        Literal["state", "evidence", "official"],
        typer.Option(
            help="What to grade. state: the end state and the answer; evidence: also whether the agent read the "
            "records; official: as the benchmark of the task file does."
        ),
    ] = "state",
    reward: Annotated[
        Literal["sparse", "dense"], typer.Option(help="sparse: 1 for success, else 0; dense: share of passed checks.")
    ] = "sparse",
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="Number of actions after which an episode is truncated.")
    ] = None,
    observations: Annotated[
        Literal["http", "compact"],
        typer.Option(help="Form of the observations. compact: status, total and one resource a line; fewer tokens."),
    ] = "http",
    task_file: Annotated[
        Path | None, typer.Option(help="Task file of a benchmark; its tasks replace the tasks of the pack.")
    ] = None,
    funcs_file: Annotated[Path | None, typer.Option(help="Function list of the task file's benchmark.")] = None,
    out: Annotated[Path, typer.Option(help="Output file with one JSON line per episode.")] = Path("rollouts.jsonl"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue a file: run only the missing episodes.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Run an agent on episodes (by default gold, the reference solution), and write a record of each episode.

    After Ctrl-C, finished episodes are kept; `--resume` continues the run.

    Example: fhir-gym rollout FHIRAgent/Appointment-v0 --agent gold --tasks 01,02a --variations 0-9 --workers 2

    Example: fhir-gym rollout FHIRAgent/Appointment-v0 --model qwen3 --base-url http://localhost:8000/v1

    Example: fhir-gym rollout FHIRAgent/Appointment-v0 --model qwen3 --config spec

    Example: fhir-gym rollout FHIRAgent/Appointment-v0 --agent random --ray auto --workers 64
    """
    _check_file(out, resume=resume, overwrite=overwrite)
    from fhir_gym import rollouts, worlds
    from fhir_gym.agents import make_agent
    from fhir_gym.episode_config import EpisodeConfig
    from fhir_gym.tasks import get_pack

    crew = running.workers if ray is None else rollouts.RayCluster(ray, running.workers or None)
    config = EpisodeConfig(
        env_id,
        fhir_server=fhir_server or None,
        fhir_credentials=access.credentials(),
        phrasing=parse_phrasing(phrasing),
        level=level,
        dials=numbers_by_name(dial),
        grading=grading,
        reward=reward,
        max_steps=max_steps,
        observations=observations,
        task_file=task_file,
        funcs_file=funcs_file,
    )
    every = rollouts.plan(
        config, tasks=names(tasks), variations=variations, split=split, repeats=running.repeats, seed=running.seed
    )
    budget, name = limits.budget(), options.name(default="gold")
    actor = make_agent(name, **options.settings())  # after all other checks, because it may load a model
    world = get_pack(env_id).world if world is None else world
    with progress(f"Building {world}") as update:
        opened = worlds.load(world, progress=update)
    summary = Summary(budget.prices)
    todo = 0
    try:
        with opened, progress(f"Agent {name}") as update:
            plan = replace(every, config=replace(config, world=opened)).supported(opened)
            if left_out := sorted(
                {episode.task for episode in every.episodes} - {episode.task for episode in plan.episodes}
            ):
                note(f"left out {', '.join(left_out)} of {env_id}, which the world {opened.name} does not support")
            if resume:
                plan = plan.unfinished(out, actor, opened)
            todo = len(plan.episodes)
            episodes = rollouts.run_plan(
                plan, actor, workers=crew, concurrency=running.concurrency, budget=budget, on_retired=summary.retire
            )
            update(0, todo)
            watched = summary.watch(episodes, lambda done: update(done, todo, summary.standing()))
            written = rollouts.write_rollouts(out, watched, overwrite=overwrite)
    except KeyboardInterrupt:
        note(summary.interrupted(todo, out, overwrite))
        raise typer.Exit(130) from None
    summary.print()
    summary.require_verdict(out, written)
    _print_ending(summary, todo, out, written)


def _check_file(out: Path, *, resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise typer.BadParameter("--resume and --overwrite cannot be combined")
    require_writable(out)
    if out.is_file() and out.stat().st_size and not (resume or overwrite):
        raise FhirGymError(f"{out} exists; use --resume to continue it or --overwrite to replace it")


def _print_ending(summary: Summary, todo: int, out: Path, written: int) -> None:
    note(f"{written} episodes written to {out}")
    if summary.seen < todo:
        note(f"the budget is used up and {todo - summary.seen} episodes remain; use --resume to continue")
    elif summary.not_graded:
        note(f"{summary.not_graded} episodes have no verdict ({summary.first_failure}); use --resume to repeat them")
