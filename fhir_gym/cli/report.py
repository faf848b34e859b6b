"""The command `fhir-gym report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fhir_gym.cli._console import note, print_json, print_raw, print_text, table
from fhir_gym.cli._options import names


def report(
    rollouts: Annotated[list[Path], typer.Argument(help="Files that `fhir-gym rollout` wrote.")],
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="Groups, separated by commas: agent, pack, kind, difficulty, category, task or split; default: all "
            "(without --json, task only if there are at most 60 tasks)."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Report the success rates (with 95 % intervals), steps, requests, tokens and failures of rollouts.

    If there are two files, or two agents in one file, the report also compares them.

    Example: fhir-gym report small.jsonl large.jsonl --by task,kind
    """
    if json and markdown:
        raise typer.BadParameter("--json and --markdown cannot be combined")
    from fhir_gym import evaluation

    wanted = names(",".join(by or []))
    found = evaluation.Report(evaluation.read_runs(rollouts), evaluation.dimensions(wanted))
    if json:
        print_json(evaluation.plain(found))
        return
    if wanted is None:
        found = found.brief()
    if markdown:
        print_raw(evaluation.markdown(found))
        return
    for section in evaluation.sections(found):
        table(section.columns, section.rows, title=section.title)
        print_text()
    for remark in found.remarks():
        note(remark, style="yellow")
