"""The table of episodes, the comparison and the export in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fhir_gym.testing.servers import AppServer
from fhir_gym.web import create_viewer, export_viewer
from tests.browser import Browser, Key, missing
from tests.web.episodes import edited

HOSTILE = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>\x1b[31m"
ROWS = "document.querySelectorAll('table.episodes tbody tr').length"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=f"a test in a browser {missing()}")]


@pytest.fixture(scope="module")
def files(rollout_file: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A file with four episodes, and one with hostile texts that a run is still writing."""
    path = tmp_path_factory.mktemp("browser") / "growing.jsonl"
    record = json.loads(rollout_file.read_text().splitlines()[0])
    hostile = {**record, "task": {**record["task"], "title": HOSTILE}, "error": HOSTILE, "stop_reason": "unfinished"}
    path.write_text(f"{json.dumps(hostile)}\nno rollout {HOSTILE}\n")
    return [rollout_file, path]


@pytest.fixture(scope="module")
def url(files: list[Path]) -> Iterator[str]:
    with AppServer(create_viewer(files)) as server:
        yield server.url


@pytest.fixture(scope="module")
def index_file(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("export") / "out"
    export_viewer(files, folder)
    return (folder / "index.html").as_uri()


@pytest.fixture
def opened(window: Browser, url: str) -> Browser:
    window.emulate(1400)
    window.open(f"{url}/")
    window.wait_until(f"{ROWS} >= 5")  # live updates show the rows that the first answer lacks
    window.console()
    return window


def test_filters_and_search_with_the_keyboard_only(opened: Browser) -> None:
    opened.press(Key.TAB)
    assert opened.text(":focus") == "Skip to the content"
    opened.tab_to("#filter-result")
    opened.write("success")
    opened.tab_to("#filter-text")
    opened.write("patient\n")
    opened.wait_until("location.search.includes('text=patient')")
    assert opened.run(f"return {ROWS}") == 3
    assert "result=success" in opened.url
    assert opened.run("return document.querySelector('#filter-text').value") == "patient"
    opened.tab_to("thead th:nth-child(6) a")
    opened.press(Key.ENTER)
    opened.wait_until("document.querySelector('[aria-sort=ascending]')")
    opened.tab_to(".filters .buttons a")
    opened.press(Key.ENTER)
    opened.wait_until(f"{ROWS} >= 5")
    opened.tab_to("tbody a")
    opened.press(Key.ENTER)
    opened.wait_until("location.pathname === '/episodes/0/1'")
    assert opened.console() == []


def test_the_table_is_live_and_keeps_the_focus(opened: Browser, files: list[Path]) -> None:
    before = opened.run(f"return {ROWS}")
    opened.tab_to("tbody tr:nth-child(2) a")
    focused = opened.run("return document.activeElement.href")
    record = json.loads(files[0].read_text().splitlines()[0])
    with files[1].open("a") as file:
        file.write(json.dumps(edited(record, variation=100 + before)) + "\n")
    opened.wait_until(f"{ROWS} === {before + 1}")
    assert opened.run("return document.activeElement.href") == focused
    assert opened.console() == []


def test_hostile_texts_are_texts(opened: Browser) -> None:
    assert "<script>window.ran = 1</script>" in opened.text("main") and "\\x1b[31m" in opened.text("main")
    opened.click(".remark summary")
    assert "no rollout" not in opened.text(".remark") and "growing.jsonl:2: not JSON" in opened.text(".remark")
    assert opened.run(
        "return window.ran === undefined && document.scripts.length === 1 && !document.querySelector('img')"
    )
    opened.run(
        "const one = document.createElement('script'); one.textContent = 'window.ran = 1'; document.body.append(one)"
    )
    assert opened.run("return window.ran === undefined")
    assert all("Content Security Policy" in message for message in opened.console())


def test_two_runs_side_by_side(opened: Browser) -> None:
    opened.click("main p a")
    opened.wait_until("location.pathname === '/compare'")
    second, first, *_ = opened.run("return [...document.querySelectorAll('#run-first option')].map(({value}) => value)")
    for side, run in (("first", first), ("second", second)):
        opened.choose(f"#run-{side}", run)  # a choice submits the form
        opened.wait_until(f"new URLSearchParams(location.search).get('{side}') === '{run}'")
    opened.click("table.narrow tbody tr:nth-child(3) a")
    opened.wait_until("location.search.includes('show=second')")
    assert opened.run("return document.querySelectorAll('.pairs tbody tr').length") == 2
    assert opened.console() == []


@pytest.mark.parametrize("path", ["/", "/compare"])
def test_only_tables_scroll_sideways(window: Browser, url: str, path: str) -> None:
    for width in (320, 400, 1400, 2000):
        window.emulate(width)
        window.open(url + path)
        assert window.run("return document.documentElement.scrollWidth <= window.innerWidth"), width


def test_filters_work_without_scripts(window: Browser, url: str) -> None:
    window.allow_scripts(False)
    try:
        window.open(f"{url}/")
        window.choose("#filter-result", "failed")
        window.click(".filters button")
        window.wait_until("location.search.includes('result=failed')")
        assert "2 of " in window.text("main")
    finally:
        window.allow_scripts(True)


def test_the_export_works_without_a_server(window: Browser, index_file: str) -> None:
    window.emulate(1400)
    window.console()
    window.open(index_file)
    assert window.run("return getComputedStyle(document.querySelector('.top')).display") == "flex"
    window.click(".facets details:nth-child(3) summary")
    window.click(".facets details:nth-child(3) a")
    window.wait_until("location.pathname.endsWith('.html') && !location.pathname.endsWith('index.html')")
    assert window.text(".facets > a") == "Show all episodes"
    window.click("tbody a")
    window.wait_until("location.pathname.includes('episode-0-')")
    assert "<script>" not in window.url and window.run("return window.ran === undefined")
    assert window.console() == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 400)])
@pytest.mark.parametrize(
    "page",
    [
        "/",
        "/?result=failed&sort=-steps&text=patient",
        "/?stop=none",
        "/compare",
        "/episodes/0/1/beside/0/3",
        "/nothing",
        "export",
    ],
)
def test_accessibility(window: Browser, url: str, index_file: str, page: str, scheme: str, width: int) -> None:
    window.emulate(width, scheme)
    window.open(index_file if page == "export" else url + page)
    assert window.audit() == []
