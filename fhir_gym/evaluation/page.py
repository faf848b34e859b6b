"""Write a report as one HTML page that contains its figures and tables and loads no other files."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from fhir_gym.evaluation.figures import Drawing, Figure, Table, draw_svg, lettered, run_names, study_figures
from fhir_gym.evaluation.report import Report
from fhir_gym.evaluation.sections import sections
from fhir_gym.files import write_file
from fhir_gym.html_templates import html_templates

_TEMPLATES = Path(__file__).with_name("templates")
_NUMERIC = re.compile(r"[-+<]?\d[\d.,]*( ?%)?( to -?\d[\d.,]*)?|no data|no calls|")
_SIZE = re.compile(r'<svg [^>]*?width="([\d.]+)pt" height="([\d.]+)pt"')
_WIDE = 900
"""Width in CSS pixels from which a figure gets the whole width of the page."""
_MAX_TEXT = 400


@dataclass(frozen=True)
class _Content:
    """A table of the page: the first `heads` columns name the row; `numeric` columns are aligned to the right."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    heads: int
    numeric: frozenset[int]


@dataclass(frozen=True)
class _Picture:
    """A figure of the page with its tables."""

    name: str
    title: str
    caption: str
    alt: str
    source: str
    width: int
    height: int
    wide: bool
    tables: tuple[_Content, ...]


def write_page(report: Report, path: str | PathLike[str], drawings: Sequence[Drawing] | None = None) -> Path:
    """Write a report as an HTML page.

    The page contains no script, and its content security policy forbids scripts and requests.

    Args:
        report: The report.
        path: The file, which is replaced if it exists.
        drawings: The figures of the report, if they are drawn already.

    Raises:
        MissingExtraError: matplotlib or Jinja2 is not installed.
        FhirGymError: The file cannot be written.
    """
    write_file(Path(path), html(report, drawings))
    return Path(path)


def html(report: Report, drawings: Sequence[Drawing] | None = None) -> str:
    """Return a report as an HTML page; see `write_page`."""
    environment, markup = html_templates(_TEMPLATES, needed_by="the HTML page", extra="report")
    css = (_TEMPLATES / "report.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    report = report.brief()
    pooled = report.pooled()
    if drawings is None:
        pictures = [
            (study_figure, draw_svg(study_figure))
            for study_figure in study_figures(report, pooled)
            if not study_figure.empty
        ]
    else:
        pictures = [(drawing.figure, drawing.svg) for drawing in drawings]
    rendered: str = environment.get_template("report.html.j2").render(
        title="Evaluation report",
        about=_about(report),
        policy=f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        css=markup(css),
        remarks=report.remarks(),
        runs=_runs(pooled),
        pooled=len(pooled.runs) < len(report.runs),
        figures=[_picture(figure, svg, markup) for figure, svg in pictures],
        tables=[_content(section.title, Table(section.columns, section.rows)) for section in sections(report)],
    )
    return rendered


def _about(report: Report) -> str:
    episodes = sum(len(run.episodes) for run in report.runs)
    experiments = sorted({run.experiment for run in report.runs if run.experiment})
    runs = f"{len(report.runs)} run{'s' if len(report.runs) > 1 else ''}"
    where = f" in {len(experiments)} experiments" if len(experiments) > 1 else ""
    return f"{runs}{where} with {episodes:,} episodes, by fhir_gym. Tables contain the numbers of all figures."


def _runs(pooled: Report) -> _Content:
    """Return the table that explains the letters of the figures."""
    rows = []
    for name, run in zip(lettered(run_names(pooled)), pooled.runs, strict=True):
        model = run.settings.get("model")
        rows.append((name, run.agent, "" if model is None else str(model), str(len(run.episodes)), run.source))
    table = Table(("run", "agent", "model", "episodes", "files"), tuple(rows))
    return _content("Runs in the figures", table)


def _content(caption: str, table: Table) -> _Content:
    rows = tuple(tuple(_short(cell) for cell in row) for row in table.rows)
    numeric = frozenset(
        at
        for at in range(table.heads, len(table.columns))
        if any(row[at] for row in rows) and all(_NUMERIC.fullmatch(row[at]) for row in rows)
    )
    return _Content(caption, tuple(map(_short, table.columns)), rows, table.heads, numeric)


def _picture(figure: Figure, svg: str, markup: Any) -> _Picture:
    match = _SIZE.search(svg)
    # CSS has 4 pixels for 3 points.
    width, height = (round(float(size) * 4 / 3) for size in match.groups()) if match else (0, 0)
    shown = [chart for chart in figure.charts if not chart.empty]
    source = markup("data:image/svg+xml;base64," + base64.b64encode(svg.encode("utf-8", "backslashreplace")).decode())
    return _Picture(
        name=figure.name,
        title=figure.title,
        caption=figure.caption,
        alt=f"Chart: {figure.title}. {_tables_named(len(shown))}",
        source=source,
        width=width,
        height=height,
        wide=width > _WIDE,
        tables=tuple(_content(chart.title or figure.title, chart.table()) for chart in shown),
    )


def _tables_named(number: int) -> str:
    return "The table beside it has the same numbers." if number == 1 else "The tables beside it have the same numbers."


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
