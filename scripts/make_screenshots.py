"""Write the viewer's screenshots for the docs into docs/images: `python -m scripts.make_screenshots`.

Two agents play some tasks, and headless Chromium (Debian: apt install chromium chromium-driver) opens the pages.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import fhir_gym
from fhir_gym import worlds
from fhir_gym.testing.servers import AppServer
from fhir_gym.web import create_viewer
from tests.browser import Browser, browser

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
ENV = "FHIRAgent/Appointment-v0"
TASKS = ("01", "02a", "04a", "08a", "14a", "16a")
WORLD = "hospital-small"
WIDTH, HEIGHT = 1200, 760


def play_tasks(path: Path) -> None:
    """Write the rollouts of two agents to a file."""
    for task in TASKS:
        for agent in ("gold", "random"):
            fhir_gym.write_rollouts(path, fhir_gym.run(ENV, agent, tasks=[task], variations=range(2), world=WORLD))


def save(window: Browser, name: str) -> None:
    """Write what the window shows."""
    window.screenshot(IMAGES / f"viewer_{name}.png")


def take(window: Browser, url: str) -> None:
    """Open the pages and write the screenshots."""
    window.emulate(WIDTH, height=HEIGHT)
    window.open(url)
    window.wait_until("document.querySelectorAll('.episodes tbody tr').length > 10")
    save(window, "episodes")
    window.open(f"{url}/?task=14a&result=success")
    window.click(".episodes tbody a")
    window.wait_until("document.querySelector('.differences')")
    window.run("document.querySelector('.differences').scrollIntoView({block: 'center'})")
    save(window, "episode")
    with worlds.load(WORLD) as world:
        patient = max(world.ids("Patient"), key=lambda id: len(world.search("Observation", patient=id)))
    window.open(f"{url}/worlds/{WORLD}/Patient/{patient}/timeline")
    save(window, "timeline")
    window.open(f"{url}/play?pack={ENV}")
    window.choose("#task", "14a")
    window.click("button.primary")
    window.wait_until("document.querySelector('#act')")
    window.type("#url", "Slot?status=free&_count=3")
    window.click("form:has(#url) button")
    window.wait_until("document.querySelector('#turn-1')")
    window.run("document.querySelector('.acts').scrollIntoView({block: 'end'})")
    save(window, "play")


def main() -> None:
    """Play the tasks, serve the viewer and write the screenshots."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollouts.jsonl"
        play_tasks(path)
        with AppServer(create_viewer([path])) as server, browser() as window:
            take(window, server.url)


if __name__ == "__main__":
    main()
