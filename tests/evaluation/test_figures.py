"""Figures contain the numbers of a report, are accessible, and survive hostile names and degenerate data."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fhir_gym.errors import FhirGymError, MissingExtraError
from fhir_gym.evaluation import Distribution, Report, write_figures
from fhir_gym.evaluation.figures import Figure, draw, draw_svg, study_figures
from fhir_gym.evaluation.figures.charts import Bar, Bars, Cell, HeatMap, Stacks, Violins
from fhir_gym.evaluation.figures.drawing import density
from tests.evaluation.synthetic import HOSTILE, report

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> str:
    return "\n".join("".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text"))


def figure(chart: Bars | Stacks | HeatMap | Violins) -> Figure:
    return Figure("name", "Title & more", "Caption < text", (chart,))


def one_violin(*samples: tuple[float, ...]) -> Violins:
    series = tuple(f"run {number}" for number in range(len(samples)))
    return Violins("", "tokens", ("",), series, tuple((Distribution.of(sample),) for sample in samples), "")


@pytest.fixture(scope="module")
def study() -> dict[str, Figure]:
    return {study_figure.name: study_figure for study_figure in study_figures(report(variations=2, repeats=2))}


def test_all_figures_of_the_study_have_data(study: dict[str, Figure]) -> None:
    assert list(study) == [
        *("success", "variance", "error_rates", "failure_modes", "tool_calls", "tokens", "tokens_by_task"),
        "token_variation",
    ]
    assert not any(figure.empty for figure in study.values())


def test_success_shows_every_experiment(study: dict[str, Figure]) -> None:
    made = report(variations=2, repeats=2)
    table = study["success"].charts[0].table()
    assert table.columns == ("experiment", "run", "success (%)", "95 % interval", "SD over repeats", "episodes")
    assert len(table.rows) == 20
    rate = made.statistics[1].success
    assert rate.value is not None and rate.sd is not None
    assert table.rows[1] == (
        *("experiment-1", "B spec", f"{100 * rate.value:.1f}"),
        *(f"{100 * rate.low:.1f} to {100 * rate.high:.1f}", f"{100 * rate.sd:.1f}", f"{rate.count} of {rate.of}"),
    )


def test_the_other_figures_pool_experiments(study: dict[str, Figure]) -> None:
    table = study["tokens"].charts[0].table()
    assert [(row[0], row[1]) for row in table.rows] == [
        (f"{letter} {name}", "192")
        for letter, name in zip(
            "ABCDE", ("baseline", "spec", "memory", "memory-spec", "memory-spec-runtime"), strict=True
        )
    ]


def test_shares_of_variance_add_up(study: dict[str, Figure]) -> None:
    shares, sizes = study["variance"].charts
    assert isinstance(shares, Stacks) and isinstance(sizes, Stacks)
    assert all(sum(values or ()) == pytest.approx(100) for values in shares.values)
    total = report(variations=2, repeats=2).pooled().statistics[0].success.value
    assert total is not None
    assert sum(sizes.values[0] or ()) == pytest.approx(1e4 * total * (1 - total))


def test_runs_of_two_models_keep_their_experiments() -> None:
    small, large = report(["baseline"], model="small"), report(["baseline"], model="large")
    both = Report((*small.runs, *(replace(run, name=f"{run.name} large") for run in large.runs)))
    chart = study_figures(both)[0].charts[0]
    assert isinstance(chart, Bars)
    assert len(chart.groups) == 4 and len(set(chart.series)) == 2
    assert all(bar is not None for bars in chart.bars for bar in bars)


def test_runs_without_experiment_are_one_group() -> None:
    chart = study_figures(report(["small", "large"], [""], repeats=1))[0].charts[0]
    assert isinstance(chart, Bars)
    assert chart.groups == ("",) and chart.series == ("small", "large")


def test_a_report_without_graded_episodes_has_no_figures(tmp_path: Path) -> None:
    made = report(["one"], [""])
    episodes = tuple(
        replace(episode, success=None, light=None, usage=None, tools=(), lookups=())
        for episode in made.runs[0].episodes
    )
    assert write_figures(Report((replace(made.runs[0], episodes=episodes),)), tmp_path) == []


@pytest.mark.slow
def test_written_files(tmp_path: Path) -> None:
    written = write_figures(report(["only"], [""], variations=1, repeats=1), tmp_path / "figures")
    assert {path.name for path in written} >= {"success.svg", "success.png", "tokens_by_task.svg"}
    assert {path.suffix for path in written} == {".svg", ".png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written if path.suffix == ".png")
    (tmp_path / "file").touch()
    with pytest.raises(FhirGymError, match="cannot be written"):
        write_figures(report(["only"], [""], variations=1, repeats=1), tmp_path / "file")


def test_an_svg_has_title_and_description_and_no_date() -> None:
    svg = draw_svg(figure(Bars("", "%", ("g",), ("run",), ((Bar(50, 40, 60),),), "")))
    root = ET.fromstring(svg)
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == root[0].get("id") and root[0].tag == f"{SVG}title"
    assert root[0].text == "Title & more" and root[1].text == "Caption < text"
    assert root.get("aria-describedby") == root[1].get("id") and root[1].tag == f"{SVG}desc"
    assert "A  run" in texts(svg) and "50.0" in texts(svg) and "metadata" not in svg


@pytest.mark.slow
def test_a_heat_map_of_hundreds_of_runs_is_drawn() -> None:
    names = tuple(f"run {number}" for number in range(300))
    svg, png = draw(figure(HeatMap("", "%", "tool", ("create",), names, ((Cell(1, 3),) * 300,))))
    assert "N11" in texts(svg) and png.startswith(b"\x89PNG")


def test_every_mark_has_its_letter() -> None:
    bars = tuple((Bar(50 + number), Bar(40)) for number in range(3))
    svg = draw_svg(figure(Bars("", "%", ("first", "second"), ("r", "s", "t"), bars, "group")))
    assert sorted(letter for letter in texts(svg).split("\n") if len(letter) == 1 and letter.isalpha()) == list(
        "AABBCC"
    )


def test_equal_data_give_equal_bytes() -> None:
    chart = one_violin((1, 2, 3, 4, 9), (2, 2))
    assert draw(figure(chart)) == draw(figure(chart))


@pytest.mark.slow
def test_equal_data_give_equal_bytes_in_other_processes() -> None:
    script = (
        "import hashlib; from fhir_gym.evaluation import html\n"
        "from tests.evaluation.synthetic import report\n"
        "print(hashlib.sha256(html(report(['a', 'b'], [''])).encode()).hexdigest())"
    )
    hashes = set()
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True
        )
        hashes.add(run.stdout)
    assert len(hashes) == 1


@pytest.mark.parametrize(
    "samples",
    [((),), ((5.0,),), ((0.0, 0.0, 0.0),), ((7.0,) * 50,), ((1.0, 2.0),), ((), (3.0,), tuple(range(20)))],
    ids=["none", "one", "zeros", "constant", "two", "mixed"],
)
def test_violins_of_few_or_equal_values(samples: tuple[tuple[float, ...], ...]) -> None:
    chart = one_violin(*samples)
    svg, _ = draw(figure(chart))
    assert "nan" not in svg.lower()
    assert svg.count("no data") == sum(not sample for sample in samples)
    assert len(chart.table().rows) == len(samples)


def test_a_density_is_highest_where_values_are() -> None:
    values = np.array([1.0] * 50 + [5.0] * 10 + [9.0])
    array = density(values, np.linspace(1, 9, 81))
    assert array.max() == 1 and array.argmax() == 0
    assert array[40] > array[80] > 0


@pytest.mark.parametrize(
    "chart",
    [
        Bars("", "%", ("a", "b"), ("r",), ((None, Bar(0, 0, 0)),), ""),
        Stacks("", "%", ("r", "s"), ("p", "q", "o"), ((0.0, 0.0, 0.0), None)),
        HeatMap("", "%", "tool", ("create",), ("r", "s"), ((Cell(1, 3), None),)),
    ],
    ids=["bars", "stacks", "heat map"],
)
def test_missing_and_zero_values_are_drawn(chart: Bars | Stacks | HeatMap) -> None:
    svg = draw_svg(figure(chart))
    assert "no data" in svg or "no calls" in svg
    assert any("no data" in row or "no calls" in row for row in chart.table().rows)


def test_hostile_names_are_text() -> None:
    svg, png = draw(figure(Bars("", "%", (HOSTILE,), (HOSTILE,), ((Bar(1),),), "")))
    assert png.startswith(b"\x89PNG")
    assert not list(ET.fromstring(svg).iter(f"{SVG}script")) and "<script" not in svg
    assert "<script>alert(1)</script> ]]> $x^{ \\frac$" in texts(svg)


def test_few_of_many_resource_types_are_drawn_and_the_title_says_so() -> None:
    made = report(["one"], [""], variations=1, repeats=1)
    first = made.runs[0].episodes[0]
    tools = tuple(first.tools[0]._replace(resource_type=f"Type{number:03}", calls=200 - number) for number in range(99))
    run = replace(made.runs[0], episodes=(replace(first, tools=tools),))
    chart = study_figures(Report((run,)))[2].charts[1]
    assert isinstance(chart, HeatMap)
    assert len(chart.rows) == 25 and chart.rows[0] == "Type000" and "25 of 99" in chart.title


@pytest.fixture
def _without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    yield


@pytest.mark.usefixtures("_without_matplotlib")
def test_without_matplotlib_the_error_names_the_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"\.\[report\]"):
        draw_svg(figure(one_violin((1.0,))))
