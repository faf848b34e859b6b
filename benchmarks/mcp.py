"""Measure the speed of `fhir-gym mcp fhir`: `python -m benchmarks.mcp [--calls N] [--sessions N] [--quick]`.

Measures reads and searches through an MCP client: in process and over HTTP, from one client and from many clients, each
of which plays an episode of its own. Then measures whole episodes (start, search, finish), the memory of the server
process, and how long a client waits while others end live shifts. Prints one JSON line per measurement. `cpu_us` is the
processor time of a call in this process, which contains the client, and for calls in process the server too;
`server_cpu_us` is that of the server process (Linux); `benchmarks._measure` explains `unit_us`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import mcp
from mcp.server import Server

from benchmarks._measure import Report, machine_unit, memory_mib, timed
from fhir_gym import EpisodeConfig, worlds
from fhir_gym.fhir import World
from fhir_gym.mcp_servers import TaskTools, make_server

__all__ = ["main"]

_ENV_ID = "FHIRAgent/Appointment-v0"
_TASK = {"env_id": _ENV_ID, "task": "02a"}
_WARM_UP = 20
_SHIFT = "FHIRAgent/Shift-v0"
_ROUNDS = 10
"""Number of times that each client plays an episode to its end."""


class Client:
    """An MCP client with one episode at a time.

    Args:
        client: The connected client.
        patients: Patient ids to read and to search for.
    """

    def __init__(self, client: mcp.Client, patients: Sequence[str]) -> None:
        self._client, self._patients = client, patients
        self._episode = ""

    async def start(self, variation: int, task: Mapping[str, str] = _TASK) -> None:
        """Start an episode."""
        started = await self._client.call_tool("start_task", {**task, "variation": variation})
        if started.structured_content is None:
            raise RuntimeError(f"start_task failed: {started.content}")
        self._episode = started.structured_content["episode_id"]

    async def read(self, call: int) -> None:
        """Read a patient."""
        patient = self._patients[call % len(self._patients)]
        await self._act("getResourceById", resourceType="Patient", resourceId=patient)

    async def search(self, call: int) -> None:
        """Search observations of a patient."""
        patient = self._patients[call % len(self._patients)]
        await self._act("searchResources", resourceType="Observation", params_json={"patient": patient, "_count": 5})

    async def finish(self) -> None:
        """Finish the episode."""
        await self._act("finish", answer=[])

    async def _act(self, tool: str, **arguments: Any) -> None:
        result = await self._client.call_tool(tool, {"episode_id": self._episode, **arguments})
        if result.is_error:
            raise RuntimeError(f"{tool} failed: {result.content}")


async def calls(
    server: str | Server[Any], report: Report, where: str, number: int, patients: Sequence[str], pid: int | None = None
) -> None:
    """Measure calls of one client; `pid` is the id of the server process."""
    async with mcp.Client(server) as connected:
        client = Client(connected, patients)
        for name, work in (("read", client.read), ("search, 5 of a page", client.search)):
            await client.start(0)
            for call in range(_WARM_UP):
                await work(call)
            start, cpu, before = time.perf_counter(), time.process_time(), processor_time(pid)
            for call in range(number):
                await work(call)
            seconds, spent = time.perf_counter() - start, time.process_time() - cpu
            unit = median(timed(machine_unit, time.process_time_ns) for _ in range(5))
            figures = {
                "calls_a_second": round(number / seconds),
                "cpu_us": round(spent / number * 1e6),
                "unit_us": unit,
            }
            if pid is not None:
                figures["server_cpu_us"] = round((processor_time(pid) - before) / number * 1e6)
            report.line(f"{where}: {name}", n=number, clients=1, **figures)


async def concurrent_calls(
    server: str | Server[Any], report: Report, where: str, number: int, clients: int, patients: Sequence[str]
) -> None:
    """Measure calls of several clients at the same time."""

    async def work(variation: int) -> None:
        async with mcp.Client(server) as connected:
            client = Client(connected, patients)
            await client.start(variation)
            await ready.wait()
            for call in range(number // clients):
                await client.read(variation + call)
            done.append(time.perf_counter())
            await client.finish()

    ready, done = asyncio.Barrier(clients + 1), list[float]()
    tasks = [asyncio.create_task(work(variation)) for variation in range(clients)]
    await ready.wait()
    start = time.perf_counter()
    await asyncio.gather(*tasks)
    rate = round(number // clients * clients / (max(done) - start))
    report.line(f"{where}: read", n=number // clients * clients, clients=clients, calls_a_second=rate)


async def episodes(url: str, report: Report, clients: int, pid: int, patients: Sequence[str]) -> None:
    """Measure whole episodes of several clients, and the server's memory after each round."""

    async def work(variation: int) -> None:
        client = Client(connected, patients)
        await client.start(variation)
        await client.search(variation)
        await client.finish()

    memory = [memory_mib(pid, own=True)]
    async with mcp.Client(url) as connected:
        start = time.perf_counter()
        for _ in range(_ROUNDS):
            await asyncio.gather(*(work(variation) for variation in range(clients)))
            memory.append(memory_mib(pid, own=True))
        rate = round(_ROUNDS * clients / (time.perf_counter() - start), 1)
    figures = {"memory_mib_before": memory[0], "after_one_round": memory[1], "at_the_end": memory[-1]}
    report.line("HTTP: episodes of start, search, finish", n=_ROUNDS * clients, per_second=rate, **figures)


async def waits(url: str, report: Report, task: str, ending: int, patients: Sequence[str]) -> None:
    """Measure the calls of one client while another client ends several live shifts at the same time."""
    async with mcp.Client(url) as connected, mcp.Client(url) as other:
        shifts = [Client(connected, patients) for _ in range(ending)]
        for variation, shift in enumerate(shifts):
            await shift.start(variation, {"env_id": _SHIFT, "task": task})
        client = Client(other, patients)
        await client.start(0, {"env_id": _SHIFT, "task": task})
        calls: dict[str, Callable[[], Awaitable[object]]] = {"ping": other.list_tools, "read": partial(client.read, 0)}
        longest = dict.fromkeys(calls, 0.0)
        start = time.perf_counter()
        finished = asyncio.gather(*(shift.finish() for shift in shifts))
        while not finished.done():
            for name, call in calls.items():
                before = time.perf_counter()
                await call()
                longest[name] = max(longest[name], time.perf_counter() - before)
        seconds = round(time.perf_counter() - start, 2)
    figures = {f"longest_{name}_ms": round(1_000 * wait) for name, wait in longest.items()}
    report.line("HTTP: calls beside the end of live shifts", task=task, n=ending, end_seconds=seconds, **figures)


def processor_time(pid: int | None) -> float:
    """Return the processor time that a process has used, in seconds; 0 without a process."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(max_steps: int, env_id: str = _ENV_ID) -> Iterator[tuple[str, int]]:
    """Serve tasks from a process of its own; yield the URL and the process id."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "fhir_gym",
        "mcp",
        "fhir",
        env_id,
        "--http",
        str(port),
        "--max-steps",
        str(max_steps),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as server:
        assert server.stderr is not None
        try:
            server.stderr.readline()  # the server is ready
            yield f"http://127.0.0.1:{port}/mcp", server.pid
        finally:
            server.terminate()


def measure(world: World, number: int, clients: int, shifts: Mapping[str, int]) -> None:
    """Print all measurements."""
    report = Report(world.name, world.manifest.total)
    patients = world.ids("Patient")
    config = EpisodeConfig(_ENV_ID, world=world, max_steps=10 * (number + _WARM_UP))
    with TaskTools([config]) as tools:
        server = make_server(tools)
        asyncio.run(calls(server, report, "in process", number, patients))
        asyncio.run(concurrent_calls(server, report, "in process", number, clients, patients))
    with serving(config.step_limit) as (url, pid):
        asyncio.run(calls(url, report, "HTTP", number // 4, patients, pid))
        asyncio.run(concurrent_calls(url, report, "HTTP", number // 2, clients, patients))
        asyncio.run(episodes(url, report, clients, pid, patients))
    with serving(1_000, _SHIFT) as (url, _):
        for task, ending in shifts.items():
            asyncio.run(waits(url, report, task, ending, patients))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mcp", description=__doc__)
    parser.add_argument("--calls", type=int, default=4_000, help="calls per measurement in process; fewer over HTTP")
    parser.add_argument("--sessions", type=int, default=64, help="number of clients at the same time")
    parser.add_argument("--quick", action="store_true", help="few calls and clients")
    options = parser.parse_args()
    with worlds.load("hospital-small") as world:
        if options.quick:
            measure(world, 40, 4, {"Q1-1": 1})
        else:
            measure(world, options.calls, options.sessions, {"day-4": 8})


if __name__ == "__main__":
    main()
