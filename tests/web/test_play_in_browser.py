"""Playing a task in a real browser: with the mouse, with the keyboard only, and without JavaScript's help."""

from __future__ import annotations

import json

import httpx
import pytest

import fhir_gym
from fhir_gym.rollouts import Rollout
from tests.browser import Browser, Key, missing

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=f"a test in a browser {missing()}")]
ENV = "FHIRAgent/Appointment-v0"
SEND, FINISH = "form:has(#url) button", "form:has(#answer) button"


def gold(task: str) -> Rollout:
    """Return the reference solution of variation 0."""
    [rollout] = fhir_gym.run(ENV, "gold", tasks=[task], variations=0)
    return rollout


def start(window: Browser, url: str, task: str) -> None:
    window.emulate(1400)
    window.open(f"{url}/play")
    window.choose("#pack", ENV)
    window.click("main form button")
    window.wait_until("document.querySelector('#task')")
    window.choose("#task", task)
    window.click("button.primary")
    window.wait_until("document.querySelector('#act')")


def test_a_person_plays_a_task_to_success(window: Browser, viewer: str) -> None:
    solution = gold("02a")
    window.console()
    start(window, viewer, "02a")
    assert solution.prompt.splitlines()[0] in window.text(".prompt")
    for number, turn in enumerate(solution.turns, start=1):
        if turn.action.startswith("GET "):
            window.type("#url", turn.action.removeprefix("GET "))
            window.click(SEND)
            window.wait_until(f"document.querySelector('#turn-{number}')")
            assert window.url.endswith(f"#turn-{number}")
        else:
            window.type("#answer", turn.action.removeprefix("FINISH(").removesuffix(")"))
            window.click(FINISH)
    window.wait_until("document.querySelector('#verdict')")
    assert "success" in window.text("#verdict")
    assert window.console() == []
    link = window.run("return document.querySelector('a[download]').href")
    line = httpx.get(link, trust_env=False).text
    assert Rollout.model_validate_json(line).success
    assert [turn["action"] for turn in json.loads(line)["turns"]][-1] == solution.turns[-1].action


def test_a_task_with_a_write_is_played_with_the_keyboard_only(window: Browser, viewer: str) -> None:
    solution = gold("01")
    window.emulate(1400)
    window.open(f"{viewer}/play")
    window.tab_to("#pack")
    window.write("FHIRAgent/App")
    window.press(Key.TAB, Key.ENTER)
    window.wait_until("document.querySelector('#task')")
    window.tab_to("#task")
    window.write("01")
    window.tab_to("button.primary")
    window.press(Key.ENTER)
    for number, turn in enumerate(solution.turns, start=1):
        window.wait_until("document.querySelector('#act')")
        window.tab_to(".acts > details > summary")
        window.press(Key.ENTER)
        window.tab_to("#text")
        window.write(turn.action)
        window.press(Key.TAB, Key.ENTER)
        window.wait_until(f"document.querySelector('#turn-{number}') || document.querySelector('#verdict')")
    assert "success" in window.text("#verdict")


def test_the_server_shows_what_a_form_lacks_and_keeps_it(window: Browser, viewer: str) -> None:
    start(window, viewer, "02a")
    window.type("#answer", '["unfinished')
    window.click(FINISH)
    window.wait_until("document.querySelector('[role=alert]')")
    assert "not sent" in window.text("[role=alert]")
    alert = "document.querySelector('[role=alert]').getBoundingClientRect()"
    assert window.run(f"return {alert}.top >= 0 && {alert}.bottom <= innerHeight")
    assert window.run("return document.querySelector('#answer').value") == '["unfinished'
    assert window.text("#act").startswith("Action 1 of")


def test_a_reference_fills_in_the_next_request(window: Browser, viewer: str) -> None:
    start(window, viewer, "02a")
    window.type("#url", "Appointment?_count=2")
    window.click(SEND)
    window.wait_until("document.querySelector('#turn-1')")
    window.click("#turn-1 table a")
    window.wait_until("location.search.includes('url=')")
    assert window.run("return document.querySelector('#url').value").split("/")[0] in (
        "Appointment",
        "Patient",
        "Practitioner",
    )
    assert window.text("#act").startswith("Action 2 of")


def test_the_resource_just_read_is_changed(window: Browser, viewer: str) -> None:
    start(window, viewer, "14a")
    for number, link in ((1, None), (2, "#turn-1 table a"), (3, 'a[href*="change"]')):
        if link is None:
            window.type("#url", "Slot?status=free&_count=1")
        else:
            window.click(link)
            window.wait_until("document.querySelector('#url').value")
        if number == 3:
            slot = json.loads(window.run("return document.querySelector('#body').value"))
            window.type("#body", json.dumps(slot | {"status": "busy"}))
        window.click(SEND)
        window.wait_until(f"document.querySelector('#turn-{number}')")
    assert window.run("return [...document.querySelectorAll('.differences td')].map(one => one.innerText)") == [
        "free",
        "busy",
    ]
