"""Measure an upload that is killed and resumed: `python -m benchmarks.upload [--world cohort] [--kill 0.5]`.

The server is a stand-in that keeps resources in memory and refuses unknown references, so that the figures are those of
the upload. The first upload is killed when the given share of the resources has arrived. The second upload reads what
has arrived, sends the rest and compares everything. Prints one JSON line about the second upload:

- ``held``: number of resources that had arrived;
- ``requests``: number of its requests;
- ``seconds`` and ``processor_seconds``: wall time and processor time, imports included;
- ``peak_mib``: its largest resident memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from typing import Any

import httpx
import orjson
from starlette.types import Receive, Scope, Send

from fhir_gym import worlds
from fhir_gym.fhir.definitions import RESOURCE_TYPES
from fhir_gym.testing.servers import AppServer
from fhir_gym.worlds.cache import VARIABLE

_REFERENCE = re.compile(rb'"reference":"([^"]+)"')


class StandIn:
    """An ASGI application that stores the resources of batches."""

    def __init__(self) -> None:
        self._stored: dict[str, bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request: ``/metadata``, ``/received`` or a batch."""
        if scope["type"] != "http":
            return
        body, more = bytearray(), True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if scope["path"].endswith("/metadata"):
            types = [{"type": name} for name in RESOURCE_TYPES]
            answer: Any = {"resourceType": "CapabilityStatement", "rest": [{"mode": "server", "resource": types}]}
        elif scope["path"].endswith("/received"):
            answer = len(self._stored)
        else:
            answer = {"resourceType": "Bundle", "entry": self._batch(orjson.loads(bytes(body))["entry"])}
        headers = [(b"content-type", b"application/fhir+json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": orjson.dumps(answer)})

    def _batch(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        written: dict[str, bytes] = {}
        for entry in entries:
            url, _, query = entry["request"]["url"].partition("?")
            status = "200 OK"
            found: Any = None
            if query:
                found = {"total": sum(key.startswith(f"{url}/") for key in self._stored)}
            elif entry["request"]["method"] == "GET":
                found = orjson.Fragment(self._stored[url]) if url in self._stored else None
                status = status if found else "404 Not Found"
            else:
                text = orjson.dumps(entry["resource"])
                known = all(target.decode() in self._stored for target in _REFERENCE.findall(text))
                status = "201 Created" if known else "400 Bad Request"
                written |= {url: text} if known else {}
            answers.append({"response": {"status": status}, "resource": found})
        self._stored.update(written)
        return answers


def _upload(world: str, url: str) -> None:
    """Upload in this process, and print one JSON line."""
    start = time.monotonic()
    with worlds.load(world) as opened:
        report = worlds.upload(opened, url)
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "seconds": round(time.monotonic() - start, 1),
        "processor_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_mib": used.ru_maxrss // 1024,
    }
    print(json.dumps({"measure": "upload", **asdict(report), **figures}))


def main() -> None:
    """Run the benchmark."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--world", default="cohort")
    options.add_argument("--kill", type=float, default=0.5, help="share of the resources after which to kill")
    options.add_argument("--to", help="only upload to this server, without a kill")
    given = options.parse_args()
    if given.to:
        return _upload(given.world, given.to)
    with worlds.load(given.world) as world:
        path, total = str(world.path), world.manifest.total
    with AppServer(StandIn()) as server, tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.upload", "--world", path, "--to", f"{server.url}/fhir"]
        environment = {**os.environ, VARIABLE: folder}
        first = subprocess.Popen(command, env=environment)
        while httpx.get(f"{server.url}/received", timeout=60).json() < given.kill * total and first.poll() is None:
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
        first.wait()
        subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main()
