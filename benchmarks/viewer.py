"""Measure the viewer with 50,000 episodes: `python -m benchmarks.viewer [--episodes 50000]`.

Writes an experiment folder as `benchmarks.report` does, starts `fhir-gym view` on it in another process, and asks for
pages as a browser does. Prints one JSON line:

- ``megabytes``: size of the rollout files;
- ``start_seconds``: time from the start of the process, with imports, until the first page has arrived;
- ``first_page_seconds``: time of that page alone;
- ``slowest_seconds``: slowest of the pages that are asked for while the files are read;
- ``read_seconds``: time until all files are read;
- ``page_seconds``, ``filter_seconds``, ``sort_seconds``, ``compare_seconds``: pages after that, of which nothing is
  prepared;
- ``search_seconds``, ``search_again_seconds``: a search in the text of all episodes, and its next page;
- ``peak_mib``: the process's largest resident memory.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import httpx

from benchmarks.report import measure_experiment

_PAUSE = 0.2
"""Seconds between two pages while the files are read."""


@contextmanager
def _viewer(folder: Path) -> Iterator[str]:
    """Start the viewer, and yield its URL as soon as it listens."""
    command = [sys.executable, "-m", "fhir_gym", "view", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield process.stderr.readline().split()[0]
    finally:
        process.terminate()
        process.wait(30)
        process.stderr.close()


def _page(client: httpx.Client, path: str, **query: str) -> float:
    """Return the time of a page in seconds."""
    start = time.perf_counter()
    client.get(f"{path}?{urlencode(query)}").raise_for_status()
    return time.perf_counter() - start


def _measured(folder: Path) -> dict[str, float]:
    start = time.perf_counter()
    with _viewer(folder) as url, httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
        first = _page(client, "/")
        times = {"start_seconds": time.perf_counter() - start, "first_page_seconds": first, "slowest_seconds": first}
        while not client.get("/state").json()["complete"]:
            times["slowest_seconds"] = max(times["slowest_seconds"], _page(client, "/"))
            time.sleep(_PAUSE)
        times["read_seconds"] = time.perf_counter() - start
        times["page_seconds"] = _page(client, "/")
        times["filter_seconds"] = _page(client, "/", result="failed", page="20")
        times["sort_seconds"] = _page(client, "/", sort="-tokens")
        times["compare_seconds"] = _page(client, "/compare")
        times["search_seconds"] = _page(client, "/", text="Patient?family=")
        times["search_again_seconds"] = _page(client, "/", text="Patient?family=", page="2")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {**{name: round(seconds, 2) for name, seconds in times.items()}, "peak_mib": round(peak)}


if __name__ == "__main__":
    measure_experiment(__doc__, 50_000, _measured)
