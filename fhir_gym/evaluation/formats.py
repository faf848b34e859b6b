"""Write a report as Markdown, LaTeX, CSV or JSON. Texts of records are escaped in each format."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from fhir_gym.errors import MissingExtraError, RecordError
from fhir_gym.evaluation.figures import draw_figures, write_figures
from fhir_gym.evaluation.page import write_page
from fhir_gym.evaluation.plain import LongRow, long_rows, plain
from fhir_gym.evaluation.report import Report
from fhir_gym.evaluation.sections import sections
from fhir_gym.evaluation.text_table import Section
from fhir_gym.files import write_files
from fhir_gym.printable import JSON_ESCAPES, markdown_text, visible

TextFormat = Literal["markdown", "latex", "csv", "json"]
"""Name of a text format."""

_TITLE = "Rollout report"
_MAX_CELL = 200
_NUMERIC = re.compile(r"[-+<]?\d.*|")
_NEGATIVE = re.compile(r"(?<![^ ])-(\d)")
"""The sign of a negative number."""
_LATEX = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "{}$&#_%"},
        **{"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"},
        **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}"},
        **{"…": r"\ldots{}", "`": r"\textasciigrave{}"},
    }
)


def markdown(report: Report) -> str:
    """Return the report as Markdown."""
    parts = [f"# {_TITLE}"]
    if report.remarks():
        parts.append("\n".join(f"- {markdown_text(remark, _MAX_CELL)}" for remark in report.remarks()))
    parts += [f"## {section.title}\n\n{section.markdown(_MAX_CELL)}" for section in sections(report)]
    return "\n\n".join(parts) + "\n"


def latex(report: Report) -> str:
    """Return the tables of the report in LaTeX, to be included in a document that uses ``booktabs``."""
    parts = [f"% {_TITLE}: needs \\usepackage{{booktabs}} and \\usepackage[T1]{{fontenc}}"]
    parts += [f"% {_latex(remark)}" for remark in report.remarks()]
    for section in sections(report):
        head, *rows = (" & ".join(map(_latex, line)) + r" \\" for line in (section.columns, *section.rows))
        lines = [
            *(r"\begin{table}", r"  \centering", rf"  \caption{{{_latex(section.title)}}}"),
            *(rf"  \begin{{tabular}}{{{_alignment(section)}}}", r"    \toprule", f"    {head}", r"    \midrule"),
            *(f"    {row}" for row in rows),
            *(r"    \bottomrule", r"  \end{tabular}", r"\end{table}"),
        ]
        parts.append("\n" + "\n".join(lines))
    return "\n".join(parts) + "\n"


def long_csv(report: Report) -> str:
    """Return every number of the report as a CSV table in long form: one number in each row.

    A text that a spreadsheet could take for a formula starts with an apostrophe.
    """
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    table.writerow(LongRow._fields)
    for row in long_rows(report):
        table.writerow([_csv(cell) if isinstance(cell, str) else cell for cell in row])
    return file.getvalue()


def as_json(report: Report) -> str:
    """Return the report's plain data as JSON."""
    return json.dumps(plain(report), indent=2, ensure_ascii=False).translate(JSON_ESCAPES) + "\n"


FORMATS: Mapping[TextFormat, Callable[[Report], str]] = MappingProxyType(
    {"markdown": markdown, "latex": latex, "csv": long_csv, "json": as_json}
)
"""The function for each text format."""


def _latex(text: str) -> str:
    return _NEGATIVE.sub(r"$-$\1", _cell(text).translate(_LATEX))


def _alignment(section: Section) -> str:
    """Return LaTeX's letter for each column: the first and columns with texts are left-aligned."""
    columns = [*zip(*section.rows, strict=True)][1:]
    return "l" + "".join("r" if all(map(_NUMERIC.fullmatch, cells)) else "l" for cells in columns)


def _csv(text: str) -> str:
    cell = _cell(text)
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@")) else cell


def _cell(text: str) -> str:
    """Return a text on one line, with escaped control characters, truncated if it is long."""
    shown = text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}…"
    return visible(shown.replace("\r", " ").replace("\n", " "))


_SUFFIXES = {"markdown": "md", "latex": "tex", "csv": "csv", "json": "json"}


def write_report(report: Report, directory: str | PathLike[str], *, brief: bool = True) -> list[Path]:
    """Write a report in all formats, and return the paths of the files.

    The files are ``report.md``, ``report.tex``, ``report.csv``, ``report.json``, and then ``report.html`` and the
    figures in the folder ``figures``, which need the extra ``report``.

    Args:
        report: The report.
        directory: The folder, which is created if it is missing. Existing files of these names are replaced.
        brief: Whether the tables of Markdown and LaTeX leave out groups that have too many rows; see `Report.brief`.

    Raises:
        RecordError: A file cannot be written.
        MissingExtraError: The extra ``report`` is not installed. The first four files are written.
    """
    folder = Path(directory)
    files: dict[Path, str | bytes] = {}
    tables = report.brief() if brief else report
    for name, write in FORMATS.items():
        files[folder / f"report.{_SUFFIXES[name]}"] = write(tables if name in ("markdown", "latex") else report)
    write_files(files, RecordError)
    try:
        drawings = draw_figures(report)
        page = write_page(report, folder / "report.html", drawings)
        return [*files, page, *write_figures(report, folder / "figures", drawings)]
    except MissingExtraError as error:
        raise MissingExtraError(f"{error}; the report without figures is in {folder}") from error
