"""Figures of a report: the figures of FHIR-AgentEval's study as SVG and PNG."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from fhir_gym.evaluation.figures.charts import Figure, Table, lettered
from fhir_gym.evaluation.figures.drawing import draw, draw_svg
from fhir_gym.evaluation.figures.study import run_names, study_figures
from fhir_gym.evaluation.report import Report
from fhir_gym.files import write_files

__all__ = ["Figure", "Table", "draw", "draw_svg", "lettered", "run_names", "study_figures", "write_figures"]


def write_figures(report: Report, directory: str | PathLike[str]) -> list[Path]:
    """Write each figure as ``NAME.svg`` and ``NAME.png``; a figure without data is not written.

    Args:
        report: The report.
        directory: Folder for the files; it is created if it does not exist.

    Returns:
        The files.

    Raises:
        MissingExtraError: matplotlib is not installed.
        FhirGymError: A file cannot be written.
    """
    files: dict[Path, str | bytes] = {}
    for figure in study_figures(report):
        if not figure.empty:
            svg, png = draw(figure)
            files |= {Path(directory) / f"{figure.name}.svg": svg, Path(directory) / f"{figure.name}.png": png}
    write_files(files)
    return list(files)
