"""The command `fhir-gym dataset`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fhir_gym.cli._console import note, print_text
from fhir_gym.cli._options import names, read_chosen
from fhir_gym.files import resolve


def dataset(
    rollouts: Annotated[list[Path], typer.Argument(help="Files that `fhir-gym rollout` wrote.")],
    out: Annotated[
        Path, typer.Option(help="Output file with one JSON line per example; with --hub or minari, a new folder.")
    ],
    format: Annotated[
        Literal["messages", "tools", "completion", "minari"],
        typer.Option(
            help="messages: chats with text actions; tools: chats with tool calls; completion: one row per turn; "
            "minari: episodes of one environment for Minari."
        ),
    ] = "messages",
    hub: Annotated[
        bool, typer.Option("--hub", help="Write a folder for the Hugging Face Hub: a file per split, a dataset card.")
    ] = False,
    tasks: Annotated[str | None, typer.Option(help="Use only these tasks (keys separated by commas).")] = None,
    min_reward: Annotated[float | None, typer.Option(help="Use only episodes with at least this reward.")] = None,
    failures: Annotated[bool, typer.Option("--failures", help="Include failed episodes.")] = False,
    invalid: Annotated[bool, typer.Option("--invalid", help="Include episodes with invalid actions.")] = False,
    duplicates: Annotated[bool, typer.Option("--duplicates", help="Include repeated episodes.")] = False,
    author: Annotated[
        list[str] | None, typer.Option(help="Author of a Minari dataset, for Minari's lists; may be repeated.")
    ] = None,
) -> None:
    """Turn rollouts into examples for supervised fine-tuning or offline RL.

    By default, the examples come only from successful episodes without invalid actions, and repeated episodes count
    once.

    Example: fhir-gym dataset rollouts.jsonl --format messages --out train.jsonl

    Example: fhir-gym dataset rollouts.jsonl --format tools --hub --out my-dataset

    Example: fhir-gym dataset rollouts.jsonl --format minari --failures --out appointment-random-v0
    """
    from fhir_gym.rollouts import Selection, write_dataset, write_hub_folder

    if any(resolve(out) == resolve(source) for source in rollouts):
        raise typer.BadParameter(f"{out} is also an input file; choose another output file", param_hint="--out")
    selection = Selection(
        success_only=not failures,
        min_reward=min_reward,
        tasks=names(tasks),
        valid_only=not invalid,
        dedupe=not duplicates,
    )
    if author and format != "minari":
        raise typer.BadParameter("only a Minari dataset names its authors", param_hint="--author")
    chosen = read_chosen(rollouts, names(tasks) or ())
    if format == "minari":
        if hub:
            raise typer.BadParameter("--hub needs another format than minari")
        from fhir_gym.integrations.minari import write_minari

        summary = write_minari(chosen, out, selection=selection, authors=author or ())
    else:
        summary = (write_hub_folder if hub else write_dataset)(chosen, out, format, selection=selection)
    print_text(f"{summary.rows} examples of {summary.rollouts} episodes written to {out}")
    for reason, count in summary.left_out.most_common():
        note(f"left out {count} episodes: {reason}")
