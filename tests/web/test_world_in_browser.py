"""The pages of worlds and plays in a real browser: accessible, quiet, and as narrow as a telephone."""

from __future__ import annotations

import httpx
import pytest

from tests.browser import Browser, Key, missing

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=f"a test in a browser {missing()}")]
PAGES = {
    "worlds": "/worlds",
    "world": "/worlds/hospital-small",
    "search": "/worlds/hospital-small/search?request=Encounter%3F_count%3D5",
    "refused search": "/worlds/hospital-small/search?request=Encounter%3Fwrong%3D1",
    "play": "/play?pack=FHIRAgent%2FAppointment-v0",
    "error": "/worlds/nothing",
}


@pytest.fixture(scope="module")
def patient(viewer: str) -> str:
    """The path of a patient's page."""
    from fhir_gym import worlds

    with worlds.load("hospital-small") as world:
        return f"/worlds/hospital-small/Patient/{world.ids('Patient')[3]}"


def look_at(window: Browser, url: str, scheme: str) -> None:
    """Check a page: nothing on the console, no sideways scrolling, nothing that axe-core finds."""
    window.emulate(1400 if scheme == "light" else 400, scheme)
    window.console()
    window.open(url)
    messages = [line for line in window.console() if "status of 404" not in line]
    assert messages == []
    assert window.run("return document.documentElement.scrollWidth <= window.innerWidth")
    assert window.audit() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_pages_are_accessible(window: Browser, viewer: str, page: str, scheme: str) -> None:
    look_at(window, f"{viewer}{PAGES[page]}", scheme)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", ["", "/timeline"])
def test_pages_of_patients_are_accessible(window: Browser, viewer: str, patient: str, page: str, scheme: str) -> None:
    look_at(window, f"{viewer}{patient}{page}", scheme)


def test_a_running_and_a_finished_play_are_accessible(window: Browser, viewer: str) -> None:
    window.emulate(1400)
    window.open(f"{viewer}/play?pack=FHIRAgent/Appointment-v0")
    window.click("button.primary")
    window.wait_until("document.querySelector('#act')")
    window.type("#url", "Patient?_count=3")
    window.click("form:has(#url) button")
    window.wait_until("document.querySelector('#turn-1')")
    here = window.url.partition("#")[0]
    for scheme in ("light", "dark"):
        look_at(window, here, scheme)
    window.click(".acts > details > summary")
    window.click("button.quiet")
    window.wait_until("document.querySelector('#verdict')")
    for scheme in ("light", "dark"):
        look_at(window, here, scheme)
    look_at(window, f"{here}/gold", "light")


def test_the_keyboard_reaches_a_patients_timeline(window: Browser, viewer: str) -> None:
    window.emulate(1400)
    window.open(f"{viewer}/worlds/hospital-small")
    window.tab_to("#request")
    window.write("Patient?gender=female\n")
    window.wait_until("location.pathname.endsWith('/search')")
    window.tab_to("tbody a")
    window.press(Key.ENTER)
    window.wait_until("location.pathname.includes('/Patient/')")
    window.tab_to('a[href$="/timeline"]')
    window.press(Key.ENTER)
    window.wait_until("document.querySelector('svg.sparkline')")


def test_the_first_tab_leads_to_the_content(window: Browser, viewer: str) -> None:
    window.emulate(1400)
    window.open(f"{viewer}/worlds")
    window.press(Key.TAB, Key.ENTER)
    assert window.run("return document.activeElement.id") == "content"


def test_foreign_scripts_do_not_run(window: Browser, viewer: str) -> None:
    window.open(f"{viewer}/worlds")
    window.console()
    window.run(
        "const added = document.createElement('script'); added.textContent = 'window.ran = 1';"
        "document.body.append(added);"
    )
    assert window.run("return window.ran === undefined")
    assert any("Content Security Policy" in line for line in window.console())
    assert "unsafe" not in httpx.get(f"{viewer}/worlds", trust_env=False).headers["content-security-policy"]
