"""The command `fhir-gym report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from fhir_gym.arguments import require_name
from fhir_gym.cli._console import note, print_json, print_raw, print_text, table
from fhir_gym.cli._options import PriceOptions, names, with_option_groups

if TYPE_CHECKING:
    from fhir_gym.evaluation import Report, TextFormat
    from fhir_gym.rollouts import Prices

_FORMATS = ("terminal", "markdown", "latex", "csv", "json")


@with_option_groups
def report(
    *,
    rollouts: Annotated[list[Path], typer.Argument(help="Rollout files, and folders of experiments.")],
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="Groups, separated by commas: agent, pack, kind, difficulty, category, class, task or split; default: "
            "all (except in JSON and CSV, task only if there are at most 60 tasks)."
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Show all tables on the terminal, not only the most important ones.")
    ] = False,
    format: Annotated[
        str | None, typer.Option(metavar="|".join(_FORMATS), help="Format of the output; default: terminal.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Same as --format markdown.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder in which all formats are written.")] = None,
    pool: Annotated[
        bool, typer.Option("--pool", help="Merge the runs of each configuration over experiments.")
    ] = False,
    token_prices: PriceOptions,
) -> None:
    """Report success rates with 95 % intervals, failure modes, tool calls, tokens and other statistics of rollouts.

    If there are several files, or several agents in one file, the report also compares them.

    Example: fhir-gym report small.jsonl large.jsonl --by task,kind

    Example: fhir-gym report experiment-1 experiment-2 --out report
    """
    wanted_format = _one_format(format, json, markdown)
    if out is not None and wanted_format is not None:
        raise typer.BadParameter("--out writes all formats: omit --format, --json and --markdown")
    groups = names(",".join(by or []))
    made_report = _report(rollouts, groups, token_prices.prices(), pool=pool)
    if out is not None:
        _write(made_report, out, brief=groups is None)
    else:
        _print(made_report, wanted_format or "terminal", brief=groups is None, full=full)


def report_experiments(folders: list[Path], out: Path, prices: Prices | None, *, pool: bool) -> None:
    """Write the report of experiments in all formats."""
    _write(_report(folders, None, prices, pool=pool), out, brief=True)


def _report(rollouts: list[Path], groups: tuple[str, ...] | None, prices: Prices | None, *, pool: bool) -> Report:
    from fhir_gym import evaluation
    from fhir_gym.suites import suite_remarks

    runs, remarks = evaluation.read_runs(rollouts), tuple(suite_remarks(rollouts))
    report = evaluation.Report(runs, evaluation.dimensions(groups), prices=prices, notes=remarks)
    return report.pooled() if pool else report


def _write(report: Report, folder: Path, *, brief: bool) -> None:
    from fhir_gym import evaluation

    for path in evaluation.write_report(report, folder, brief=brief):
        print_text(f"wrote {path}")


def _one_format(format: str | None, json: bool, markdown: bool) -> str | None:
    formats = [format, "json" if json else None, "markdown" if markdown else None]
    options = [option for option in formats if option is not None]
    if len(options) > 1:
        raise typer.BadParameter("only one of --format, --json and --markdown can be given")
    if format == "html":
        raise typer.BadParameter("--out DIR writes the page DIR/report.html, with its figures", param_hint="--format")
    return require_name("format", options[0], _FORMATS) if options else None


def _print(report: Report, format: str, *, brief: bool, full: bool) -> None:
    from fhir_gym import evaluation
    from fhir_gym.evaluation.text_table import LIGHT

    if format == "json":
        print_json(evaluation.plain(report))
        return
    if brief and format != "csv":
        report = report.brief()
    if format != "terminal":
        print_raw(evaluation.FORMATS[cast("TextFormat", format)](report))
        return
    tables = evaluation.sections(report)
    groups = [name for name in report.by if not brief or name in ("pack", "class", "task")]
    shown = tables if full else evaluation.headline(report, groups, brief=True)
    for section in shown:
        table(section.columns, section.rows, title=section.title)
        print_text()
    if any("light" in section.columns for section in shown):
        note(LIGHT)
    if len(shown) < len(tables):
        note(f"--full shows {len(tables)} tables with all columns; these are the first {len(shown)}")
    for remark in report.remarks():
        note(remark, style="yellow")
