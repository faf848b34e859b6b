"""Drive a headless Chromium over the WebDriver protocol, without a further dependency."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

BROWSERS = ("chromium", "google-chrome", "chromium-browser")
_ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def missing() -> str | None:
    """Return why there is no browser; None if there is one."""
    if shutil.which("chromedriver") is None:
        return "needs chromedriver (Debian: apt install chromium chromium-driver)"
    return None if any(map(shutil.which, BROWSERS)) else f"needs one of {', '.join(BROWSERS)}"


class Browser:
    """One window of a browser."""

    def __init__(self, client: httpx.Client, session: str) -> None:
        self._client = client
        self._path = f"/session/{session}"

    def open(self, url: str) -> None:
        self._post("url", {"url": url})

    def run(self, script: str) -> Any:
        """Return the value of a script, which runs outside of the page's security policy."""
        return self._post("execute/sync", {"script": script, "args": []})

    def wait(self, script: str) -> Any:
        """Return the value that a script gives to its callback, which is its last argument."""
        return self._post("execute/async", {"script": script, "args": []})

    def emulate(self, width: int, scheme: str = "light", media: str = "screen") -> None:
        """Set the width of the window in pixels, the colour scheme and the medium."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._command("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._command("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def console(self) -> list[str]:
        """Return the messages of the console since the last call."""
        return [str(entry["message"]) for entry in self._post("se/log", {"type": "browser"})]

    def _command(self, name: str, parameters: dict[str, Any]) -> None:
        self._post("goog/cdp/execute", {"cmd": name, "params": parameters})

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        response = self._client.post(f"{self._path}/{path}", json=body)
        assert response.is_success, response.text
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
            found[1] for line in driver.stdout if (found := re.search(r"started successfully on port (\d+)", line))
        )
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False) as client:
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": {"args": _ARGUMENTS},
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            response = client.post("/session", json={"capabilities": {"alwaysMatch": wanted}})
            assert response.is_success, response.text
            session = response.json()["value"]["sessionId"]
            try:
                yield Browser(client, session)
            finally:
                client.delete(f"/session/{session}")
    finally:
        driver.terminate()
        driver.wait(10)
        driver.stdout.close()
