"""Figures of a report: the figures of FHIR-AgentEval's study as SVG and PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from fhir_gym.evaluation.figures.charts import Figure, Table, lettered
from fhir_gym.evaluation.figures.drawing import draw, draw_svg
from fhir_gym.evaluation.figures.study import run_names, study_figures
from fhir_gym.evaluation.report import Report
from fhir_gym.files import write_files

__all__ = [
    "Drawing",
    "Figure",
    "Table",
    "draw",
    "draw_figures",
    "draw_svg",
    "lettered",
    "run_names",
    "study_figures",
    "write_figures",
]


@dataclass(frozen=True)
class Drawing:
    """A figure with its two images."""

    figure: Figure
    svg: str
    png: bytes


def draw_figures(report: Report) -> tuple[Drawing, ...]:
    """Draw all figures of a report that have data.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    return tuple(Drawing(figure, *draw(figure)) for figure in study_figures(report) if not figure.empty)


def write_figures(
    report: Report, directory: str | PathLike[str], drawings: Sequence[Drawing] | None = None
) -> list[Path]:
    """Write each figure as ``NAME.svg`` and ``NAME.png``; a figure without data is not written.

    Args:
        report: The report.
        directory: Folder for the files; it is created if it does not exist.
        drawings: The figures, if they are drawn already.

    Returns:
        The files.

    Raises:
        MissingExtraError: matplotlib is not installed.
        FhirGymError: A file cannot be written.
    """
    files: dict[Path, str | bytes] = {}
    for figure in draw_figures(report) if drawings is None else drawings:
        stem = Path(directory) / figure.figure.name
        files |= {stem.with_suffix(".svg"): figure.svg, stem.with_suffix(".png"): figure.png}
    write_files(files)
    return list(files)
