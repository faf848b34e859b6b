"""Drive a headless Chromium over the WebDriver protocol, without a further dependency."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx

BROWSERS = ("chromium", "google-chrome", "chromium-browser")
_ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key of an element's id in the answers of WebDriver."""
_SECONDS = 15
"""How long `Browser.wait_until` waits."""
AXE = files("axe_playwright_python") / "axe.min.js"
_AUDIT = """
const done = arguments[arguments.length - 1];
axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]})
  .then(found => done(found.violations.map(one => one.id + ": " + one.nodes[0].html.slice(0, 300))));
"""


def missing() -> str | None:
    """Return why there is no browser; None if there is one."""
    if shutil.which("chromedriver") is None:
        return "needs chromedriver (Debian: apt install chromium chromium-driver)"
    return None if any(map(shutil.which, BROWSERS)) else f"needs one of {', '.join(BROWSERS)}"


class Key:
    """Keys of the keyboard, as WebDriver names them."""

    TAB, ENTER, ESCAPE, SPACE = "\ue004", "\ue007", "\ue00c", " "
    LEFT, UP, RIGHT, DOWN = "\ue012", "\ue013", "\ue014", "\ue015"
    HOME, END = "\ue011", "\ue010"
    SHIFT, CONTROL = "\ue008", "\ue009"


class Browser:
    """One window of a browser."""

    def __init__(self, client: httpx.Client, session: str) -> None:
        self._client = client
        self._path = f"/session/{session}"

    def open(self, url: str) -> None:
        self._post("url", {"url": url})

    @property
    def url(self) -> str:
        """The address of the page, with its fragment."""
        return str(self.run("return location.href"))

    def run(self, script: str) -> Any:
        """Return the value of a script, which runs outside of the page's security policy."""
        return self._post("execute/sync", {"script": script, "args": []})

    def wait(self, script: str) -> Any:
        """Return the value that a script gives to its callback, which is its last argument."""
        return self._post("execute/async", {"script": script, "args": []})

    def wait_until(self, expression: str) -> None:
        """Wait until the page is loaded and a JavaScript expression is true."""
        end = time.monotonic() + _SECONDS
        while not self.run(f"return document.readyState === 'complete' && Boolean({expression})"):
            assert time.monotonic() < end, f"not true after {_SECONDS} s: {expression}"
            time.sleep(0.05)

    def text(self, selector: str = "body") -> str:
        """Return the text of the first element that matches a CSS selector, as the page shows it."""
        return str(self._of(selector, "text"))

    def click(self, selector: str) -> None:
        """Click the first element that matches a CSS selector; it must be visible."""
        self._post(f"element/{self._element(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a form field by typing."""
        element = self._element(selector)
        self._post(f"element/{element}/clear", {})
        self._post(f"element/{element}/value", {"text": text})

    def choose(self, selector: str, value: str) -> None:
        """Choose the option with a value."""
        self.click(f'{selector} option[value="{value}"]')

    def press(self, *keys: str, held: str = "") -> None:
        """Press and release keys one after another, whatever has the focus; `held` is held down meanwhile."""
        down = [{"type": "keyDown", "value": held}] if held else []
        up = [{"type": "keyUp", "value": held}] if held else []
        pressed = [{"type": type, "value": key} for key in keys for type in ("keyDown", "keyUp")]
        self._post("actions", {"actions": [{"type": "key", "id": "keyboard", "actions": [*down, *pressed, *up]}]})

    def write(self, text: str) -> None:
        """Type a text into whatever has the focus."""
        self.press(*text.replace("\n", Key.ENTER))

    def tab_to(self, selector: str, most: int = 200) -> None:
        """Press Tab until an element that matches a CSS selector has the focus."""
        for _ in range(most):
            if self.run(f"return document.activeElement.matches({selector!r})"):
                return
            self.press(Key.TAB)
        raise AssertionError(f"the keyboard does not reach {selector} with {most} tabs")

    def emulate(self, width: int, scheme: str = "light", media: str = "screen", height: int = 900) -> None:
        """Set the size of the window in pixels, the colour scheme and the medium."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._command("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._command("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def allow_scripts(self, allowed: bool) -> None:
        """Set whether pages may run scripts."""
        self._command("Emulation.setScriptExecutionDisabled", {"value": not allowed})

    def screenshot(self, path: Path) -> None:
        """Write what the window shows to a PNG file."""
        path.write_bytes(base64.b64decode(self._get("screenshot")))

    def audit(self) -> list[str]:
        """Return the violations of WCAG AA and of good practice that axe-core finds on the page."""
        self.run(AXE.read_text("utf-8"))
        return list(self.wait(_AUDIT))

    def console(self) -> list[str]:
        """Return the messages of the console since the last call."""
        return [str(entry["message"]) for entry in self._post("se/log", {"type": "browser"})]

    def _element(self, selector: str) -> str:
        return str(self._post("element", {"using": "css selector", "value": selector})[_ELEMENT])

    def _of(self, selector: str, what: str) -> Any:
        return self._get(f"element/{self._element(selector)}/{what}")

    def _command(self, name: str, parameters: dict[str, Any]) -> None:
        self._post("goog/cdp/execute", {"cmd": name, "params": parameters})

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._value(self._client.post(f"{self._path}/{path}", json=body))

    def _get(self, path: str) -> Any:
        return self._value(self._client.get(f"{self._path}/{path}"))

    def _value(self, response: httpx.Response) -> Any:
        assert response.is_success, response.text[:500]
        return response.json()["value"]


@contextmanager
def browser() -> Iterator[Browser]:
    """Start chromedriver and a browser, and end both afterwards."""
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert driver.stdout is not None
    try:
        port = next(
            match[1] for line in driver.stdout if (match := re.search(r"started successfully on port (\d+)", line))
        )
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False) as client:
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": {"args": _ARGUMENTS},
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            response = client.post("/session", json={"capabilities": {"alwaysMatch": wanted}})
            assert response.is_success, response.text[:500]
            session = response.json()["value"]["sessionId"]
            try:
                yield Browser(client, session)
            finally:
                client.delete(f"/session/{session}")
    finally:
        driver.terminate()
        driver.wait(10)
        driver.stdout.close()
