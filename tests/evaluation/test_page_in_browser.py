"""The HTML page in a real browser: accessible, quiet, and without running any text of a record."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fhir_gym.evaluation import write_page
from tests.browser import Browser, browser, missing
from tests.evaluation.test_page import SHOWN, hostile_report

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=f"a test in a browser {missing()}")]


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_page(hostile_report(2, 2), tmp_path_factory.mktemp("page") / "report.html").as_uri()


@pytest.fixture
def opened(window: Browser, url: str) -> Browser:
    window.emulate(1400)
    window.open(url)
    return window


def test_the_page_is_quiet_and_complete(opened: Browser) -> None:
    assert opened.console() == []
    assert opened.run("return document.readyState") == "complete"
    assert opened.run("return document.scripts.length") == 0
    assert opened.run("return performance.getEntriesByType('resource').map(one => one.name)") == []
    assert opened.run("return [...document.images].map(one => one.naturalWidth > 0)") == [True] * 8


def test_hostile_texts_are_shown_as_texts(opened: Browser) -> None:
    assert SHOWN in opened.run("return document.body.textContent")
    assert opened.run("return document.querySelectorAll('table script, b, iframe').length") == 0


def test_the_policy_forbids_scripts_and_requests(opened: Browser) -> None:
    opened.run(
        "const added = document.createElement('script'); added.textContent = 'window.ran = 1';"
        "document.body.append(added);"
        "const image = new Image(); image.src = 'http://127.0.0.1:9/x.png'; document.body.append(image)"
    )
    assert opened.run("return window.ran === undefined")
    messages = opened.console()
    assert len([message for message in messages if "Content Security Policy" in message]) == 2, messages


@pytest.mark.parametrize("width", [320, 400, 800, 1400, 2000])
def test_only_charts_and_tables_scroll_sideways(window: Browser, url: str, width: int) -> None:
    window.emulate(width)
    window.open(url)
    assert window.run("return document.documentElement.scrollWidth <= window.innerWidth")


def test_print_shows_everything_on_white(window: Browser, url: str) -> None:
    window.emulate(800, "dark", "print")
    window.open(url)
    assert window.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    boxes = "[...document.querySelectorAll('.scroll, .chart')]"
    assert window.run(f"return {boxes}.filter(one => one.scrollHeight > one.clientHeight + 1).length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_accessibility(window: Browser, url: str, scheme: str, width: int) -> None:
    window.emulate(width, scheme)
    window.open(url)
    assert window.audit() == []
