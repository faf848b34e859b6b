"""Write a report to a folder in all formats."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from fhir_gym.errors import MissingExtraError, RecordError
from fhir_gym.evaluation.figures import draw_figures, write_figures
from fhir_gym.evaluation.formats import FORMATS
from fhir_gym.evaluation.page import write_page
from fhir_gym.evaluation.report import Report
from fhir_gym.files import write_files

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
