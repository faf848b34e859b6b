"""Write a report to a folder in all formats."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from fhir_gym.errors import RecordError
from fhir_gym.evaluation.formats import FORMATS
from fhir_gym.evaluation.report import Report
from fhir_gym.files import write_files

_SUFFIXES = {"markdown": "md", "latex": "tex", "csv": "csv", "json": "json"}


def write_report(report: Report, directory: str | PathLike[str]) -> list[Path]:
    """Write ``report.md``, ``report.tex``, ``report.csv`` and ``report.json``, and return their paths.

    Args:
        report: The report.
        directory: The folder, which is created if it is missing. Existing files of these names are replaced.

    Raises:
        RecordError: A file cannot be written.
    """
    folder = Path(directory)
    files: dict[Path, str | bytes] = {
        folder / f"report.{_SUFFIXES[name]}": write(report) for name, write in FORMATS.items()
    }
    write_files(files, RecordError)
    return list(files)
