"""The HTML page is accessible, loads nothing, and shows hostile texts as texts."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fhir_gym.errors import FhirGymError, MissingExtraError
from fhir_gym.evaluation import AgentRun, Report, html, sections, write_page
from tests.evaluation.html_checks import check_safety, check_structure, parse, text
from tests.evaluation.synthetic import HOSTILE, report

SHOWN = HOSTILE.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e").replace("\ud800", "\\ud800")


def hostile_report(variations: int = 1, repeats: int = 1) -> Report:
    """Return a report of two runs that put hostile texts wherever a record may contain text."""
    made = report(["one", "two"], [""], variations=variations, repeats=repeats, model=HOSTILE)
    return Report((_hostile(made.runs[0]), *made.runs[1:]))


def _hostile(run: AgentRun) -> AgentRun:
    first, *others = run.episodes
    changed = replace(
        first,
        task=first.task.model_copy(update={"title": HOSTILE, "category": HOSTILE}),
        tools=(first.tools[0]._replace(resource_type=HOSTILE), *first.tools),
        invalid=(HOSTILE,),
        stop=HOSTILE,
        conditions=(("world", HOSTILE),),
    )
    return replace(run, name=HOSTILE, configuration=HOSTILE, agent=HOSTILE, episodes=(changed, *others))


@pytest.fixture(scope="module")
def small_figures() -> Iterator[None]:
    """Replace figures by small ones: these tests are about the page, and figures take long to draw."""
    svg = '<svg role="img" width="400pt" height="300pt"></svg>'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fhir_gym.evaluation.page.draw_svg", lambda figure: svg)
        yield


@pytest.fixture(scope="module")
def page(small_figures: None) -> str:
    return html(hostile_report())


def test_structure(page: str) -> None:
    check_structure(parse(page))


def test_nothing_is_loaded_or_run(page: str) -> None:
    root = parse(page)
    check_safety(root)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"style-src &#39;sha256-{digest}&#39;" in page


def test_hostile_texts_are_shown(page: str) -> None:
    root = parse(page)
    cells = {text(cell) for cell in root.iter() if cell.tag in ("td", "th")}
    assert f"A {SHOWN}" in cells and SHOWN in cells
    assert not [hostile for hostile in ("<script", "\x1b", "\u202e", "\ud800") if hostile in page]


def test_remarks_come_first(page: str) -> None:
    root = parse(page)
    headings = [text(element) for element in root.iter() if element.tag in ("h1", "h2", "h3")]
    assert headings[1].startswith("Remarks")
    assert any("different world" in text(element) for element in root.iter("li"))


def test_every_figure_has_a_caption_and_its_numbers_beside_it(page: str) -> None:
    root = parse(page)
    elements = [element for element in root.iter("section") if element.find(".//figure") is not None]
    assert [text(element[0]) for element in elements][:2] == ["Success by run and experiment", "Variance of success"]
    assert len(elements) == 8
    for element in elements:
        assert element.find(".//table") is not None
        assert "data:image/svg+xml" in next(element.iter("img")).get("src", "")


def test_the_tables_of_the_report_follow(page: str) -> None:
    captions = [text(element) for element in parse(page).iter("caption")]
    assert captions[-len(sections(hostile_report())) :] == [section.title for section in sections(hostile_report())]


@pytest.mark.usefixtures("small_figures")
def test_pages_of_one_and_of_ten_runs() -> None:
    for names in (["only"], [f"run {number}" for number in range(10)]):
        root = parse(html(report(names, [""], variations=1, repeats=1)))
        check_structure(root)
        check_safety(root)


@pytest.mark.usefixtures("small_figures")
def test_a_page_without_data_says_so(tmp_path: Path) -> None:
    made = report(["one"], [""], variations=1, repeats=1)
    episodes = tuple(
        replace(episode, success=None, light=None, usage=None, tools=(), lookups=())
        for episode in made.runs[0].episodes
    )
    path = write_page(Report((replace(made.runs[0], episodes=episodes),)), tmp_path / "new" / "report.html")
    root = parse(path.read_text("utf-8"))
    check_structure(root)
    assert "No figure has data." in text(root) and "not graded" in text(root)
    with pytest.raises(FhirGymError, match="cannot be written"):
        write_page(made, tmp_path)


def test_without_jinja_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"\.\[report\]"):
        html(report(["one"], [""], variations=1, repeats=1))


@pytest.mark.slow
def test_a_whole_page(tmp_path: Path) -> None:
    root = parse(write_page(hostile_report(2, 2), tmp_path / "report.html").read_text("utf-8"))
    check_structure(root)
    check_safety(root)
    for image in root.iter("img"):
        svg = base64.b64decode(image.get("src", "").partition(",")[2]).decode()
        assert ET.fromstring(svg).get("role") == "img" and "<script" not in svg
