"""Helpers for tests with rollout files."""

from __future__ import annotations

import time
from typing import Any

from starlette.testclient import TestClient


def edited(record: dict[str, Any], *, variation: int, **changes: Any) -> dict[str, Any]:
    """Return a copy of a record with another variation and other elements."""
    return {**record, "task": {**record["task"], "variation": variation}, **changes}


def wait_until_read(client: TestClient, episodes: int | None = None) -> None:
    """Wait until the viewer has read its files."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        state = client.get("/state").json()
        if state["complete"] and episodes in (None, state["episodes"]):
            return
        time.sleep(0.01)
    raise TimeoutError("the viewer has not read its files")
