"""The export: static pages whose links lead to files of the export."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from fhir_gym import worlds
from fhir_gym.errors import FhirGymError
from fhir_gym.web import export, export_viewer
from fhir_gym.web.links import FileLinks, Links
from tests.web.episodes import edited

LINK = re.compile(r'(?:href|src)="([^"]*)"')


@pytest.fixture(scope="module")
def pages(rollout_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages of an export with two runs, a hostile task and a damaged line."""
    folder = tmp_path_factory.mktemp("export")
    good = json.loads(rollout_file.read_text().splitlines()[0])
    hostile = {**good, "task": {**good["task"], "key": "../../<b>\x1b"}}
    damaged = {**edited(good, variation=9), "unknown": 1}
    source = folder / "hostile.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in (hostile, damaged)))
    written = export_viewer([rollout_file, source], folder / "out")
    found = {path.name: path.read_text("utf-8") for path in (folder / "out").iterdir()}
    assert len([name for name in found if name.endswith(".html")]) == written
    assert sorted(path.name for path in folder.iterdir()) == ["hostile.jsonl", "out"]
    return found


def test_every_link_leads_to_a_file_of_the_export(pages: dict[str, str]) -> None:
    assert {"index.html", "viewer.css", "viewer.js"} <= pages.keys()
    for name, page in pages.items():
        for link in LINK.findall(page) if name.endswith(".html") else ():
            target = html.unescape(link).partition("#")[0]
            assert target in pages or target in ("", "data:,"), f"{name} links to {target}"


def test_pages_have_a_policy_and_no_form(pages: dict[str, str]) -> None:
    for name, page in pages.items():
        if name.endswith(".html"):
            assert (
                "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'self';" in page
            )
            assert not re.search("<form (?!method=.dialog)", page), name
            assert "<b>" not in page and "\x1b" not in page, name


def test_filters_are_pages(pages: dict[str, str]) -> None:
    page = pages["episodes-result_failed.html"]
    assert "<strong>2</strong> of 6 episodes" in page and "Show all episodes" in page
    hostile = [name for name in pages if name.startswith("episodes-task_") and "<strong>1</strong>" in pages[name]]
    assert len(hostile) == 1 and re.fullmatch(r"[A-Za-z0-9._-]+", hostile[0])


def test_runs_are_compared(pages: dict[str, str]) -> None:
    assert "Two runs side by side" in pages["compare.html"]
    assert pages["compare-first_1-second_2.html"] == pages["compare.html"]


def test_a_folder_with_files_is_not_touched(rollout_file: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FhirGymError, match="not an empty folder"):
        export_viewer([rollout_file], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    pages = export_viewer([], tmp_path / "out", progress=lambda done, total: told.append((done, total)))
    assert told == [(number, pages) for number in range(1, pages + 1)]


def test_names_of_files_are_unique_and_harmless() -> None:
    links = FileLinks()
    names = [links.resource("w", "Patient", id) for id in ("1", "a/b", "a_b", "a?b", "../x", "", "é" * 200, "\ud800")]
    assert len(set(names)) == len(names)
    assert all(name is not None and re.fullmatch(r"[A-Za-z0-9._-]{1,200}", name) for name in names)
    assert FileLinks({"world-x.html"}).world("y") is None and FileLinks({"world-x.html"}).world("x") == "world-x.html"


def test_paths_of_the_server_are_one_segment() -> None:
    links = Links()
    assert links.resource("a/b", "Patient", "..") == "/worlds/a%2Fb/Patient/%2E%2E"
    assert links.world("\ud800 ?#") == "/worlds/%3F%20%3F%23"
    assert links.episodes(text="ü&x", page=None, task="") == "/?text=%C3%BC%26x"


@pytest.mark.slow
def test_worker_processes_write_the_same_pages(
    rollout_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_ALONE", 0)
    found = []
    for workers in (0, 1):
        folder = tmp_path / str(workers)
        export_viewer([rollout_file], folder, world=worlds.load("empty"), workers=workers)
        found.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert found[0] == found[1] and {"episode-0-1.html", "gold-0-1.html", "world-empty.html"} <= found[0].keys()
