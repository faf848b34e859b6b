"""The page of an episode and the reference solution beside it, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import fhir_gym
from fhir_gym.agents.chat_messages import ModelReply
from fhir_gym.testing.servers import AppServer
from fhir_gym.web import create_viewer, export_viewer
from tests.browser import Browser, Key, missing

HOSTILE = "</pre><script>window.ran = 1</script><img src=x onerror='window.ran = 1'>\x1b[31m\u202e"
CURRENT = "document.querySelector('.turn.current')?.id"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=f"a test in a browser {missing()}")]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A success with two updates, a failure with an invalid action, and a record full of hostile texts."""
    path = tmp_path_factory.mktemp("episodes") / "rollouts.jsonl"
    env_id = "FHIRAgent/Appointment-v0"
    (gold,) = fhir_gym.run(env_id, "gold", tasks="15a", variations=0)
    (random,) = fhir_gym.run(env_id, "random", tasks="07", variations=0)
    reply = ModelReply(kind="action", message={"content": HOSTILE}, finish_reason=HOSTILE, reasoning=HOSTILE)
    turn = gold.turns[0].model_copy(update={"text": HOSTILE, "reply": reply, "shown": HOSTILE, "observation": HOSTILE})
    texts = {"prompt": HOSTILE, "error": HOSTILE, "turns": (turn, *gold.turns[1:]), "repeat": 1}
    fhir_gym.write_rollouts(path, [gold, random, gold.model_copy(update=texts)])
    return path


@pytest.fixture(scope="module")
def url(file: Path) -> Iterator[str]:
    with AppServer(create_viewer([file])) as server:
        yield server.url


def show(window: Browser, url: str, path: str = "/episodes/0/1", width: int = 1400, scheme: str = "light") -> None:
    window.emulate(width, scheme)
    window.open(f"{url}/")
    window.wait_until("document.querySelectorAll('.episodes tbody tr').length === 3")
    window.open(f"{url}{path}")
    window.console()


def test_the_keyboard_steps_through_the_turns(window: Browser, url: str) -> None:
    show(window, url)
    for key, turn in (("j", 1), ("j", 2), (Key.RIGHT, 3), ("k", 2), (Key.LEFT, 1), ("k", 1)):
        window.press(key)
        assert window.run(f"return {CURRENT}") == f"turn-{turn}"
        assert window.url.endswith(f"/episodes/0/1#turn-{turn}")
        assert window.run("return document.activeElement.id") == f"turn-{turn}"
    assert window.text(".turn-list [aria-current]").startswith("GET /Patient")
    window.press("o")
    assert window.run("return [...document.querySelectorAll('#turn-1 > details')].every(part => part.open)")
    window.press("n")
    window.wait_until("location.pathname === '/episodes/0/2'")
    window.press("p")
    window.wait_until("location.pathname === '/episodes/0/1'")
    assert window.console() == []


def test_a_link_leads_to_a_turn(window: Browser, url: str) -> None:
    show(window, url, "/episodes/0/1#turn-5")
    assert window.run(f"return {CURRENT}") == "turn-5"
    assert window.run("return document.querySelector('#turn-5').getBoundingClientRect().top < innerHeight")
    window.press("k")
    assert window.run(f"return {CURRENT}") == "turn-4"
    window.run("document.querySelector('details:has(> .scroll > .checks)').open = true")
    window.tab_to(".checks a")
    window.press(Key.ENTER)
    window.wait_until(f"{CURRENT} === 'turn-3'")
    window.run("navigator.clipboard.writeText = text => { window.copied = text; return Promise.resolve(); }")
    window.press("c")
    window.wait_until("window.copied === location.href && document.querySelector('.said').textContent")


def test_the_help_turns_the_shortcuts_off(window: Browser, url: str) -> None:
    show(window, url)
    window.press("?")
    assert window.run("return document.querySelector('dialog').open")
    window.press("j")  # keys of the page do nothing while the help is open
    window.tab_to("[data-shortcuts]")
    window.press(Key.SPACE, Key.ESCAPE, "j")
    assert window.run(f"return {CURRENT} ?? null") is None
    window.open(f"{url}/episodes/0/2")
    window.press("j")
    assert window.run(f"return {CURRENT} ?? null") is None
    window.click("[data-help]")
    window.click("[data-shortcuts]")
    window.press(Key.ESCAPE, "j")
    assert window.run(f"return {CURRENT}") == "turn-1"


def test_hostile_texts_run_nothing(window: Browser, url: str) -> None:
    for path in ("/episodes/0/3", "/episodes/0/3/gold"):
        show(window, url, path)
        window.run("document.querySelectorAll('details').forEach(part => { part.open = true; })")
        assert "<script>window.ran = 1</script>" in window.text("main")
        assert window.run("return window.ran ?? null") is None and window.console() == []
        assert window.run("return document.querySelectorAll('main script, main img').length") == 0


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
@pytest.mark.parametrize("path", ["/episodes/0/2", "/episodes/0/2/gold"])
def test_the_pages_are_accessible(window: Browser, url: str, path: str, width: int, scheme: str) -> None:
    show(window, url, path, width, scheme)
    assert window.audit() == []
    window.run("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    assert window.audit() == []
    assert window.run("return document.documentElement.scrollWidth <= innerWidth") and window.console() == []


def test_the_help_is_accessible(window: Browser, url: str) -> None:
    for scheme in ("light", "dark"):
        show(window, url, scheme=scheme)
        window.press("?")
        assert window.audit() == []


def test_an_exported_episode_works_without_a_server(window: Browser, file: Path, tmp_path: Path) -> None:
    export_viewer([file], tmp_path / "out")
    window.open((tmp_path / "out" / "episode-0-1.html").as_uri())
    window.console()
    window.press("j", "j")
    assert window.run(f"return {CURRENT}") == "turn-2"
    window.click(".facts a")
    assert window.url.endswith("/gold-0-1.html") and "Reference solution" in window.text("main")
    assert window.console() == []
