"""Measure the speed of `fhir-gym serve`: `python -m benchmarks.http [--world NAME_OR_PATH] [--requests N] [--quick]`.

First compares single requests in process, over HTTP and on HAPI FHIR, then measures one client and eight concurrent
clients. Each client uses a persistent connection. The lines of clients also compare their median with that of the same
requests made in process. The last lines compare runs of reference solutions on one server and on four, without and with
a delay of each request.
"""

from __future__ import annotations

import argparse
import http.client
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import repeat
from unittest.mock import patch
from urllib.parse import urlsplit

import httpx

from benchmarks._measure import Report, measure, percentile
from benchmarks._serving import serving
from benchmarks.server import Workload
from fhir_gym import EpisodeConfig, run, worlds
from fhir_gym.fhir import Request, Session, World

__all__ = ["main"]

_CLIENTS = (1, 8)
_DELAYS = (0.0, 0.027)
"""Delays of each request in seconds: none, and what HAPI FHIR takes for a search."""
_FHIR = {"content-type": "application/fhir+json"}
_HAPI_MS = {"read": 2.7, "search patient+code": 8.9, "search patient+code, sorted": 20, "search _count=5000": 484}
_HAPI_MS |= {"create": 3.8}
"""Medians of HAPI FHIR 8.8.0 (starter project with its defaults) with hospital-small and one client, measured once."""
_HAPI_RATE = 203
"""Requests per second of eight clients on the same server."""
_TASKS = ("01", "02a", "05", "08a", "11a", "15a")


def urls(world: World) -> dict[str, list[str]]:
    """Return request paths below the base URL, by name of the measurement."""
    with world.session() as session:
        pairs = Workload(session).pairs
    plain = [f"/Observation?patient={patient}&code={code}&_count=20" for patient, code in pairs]
    return {
        "read": [f"/Patient/{patient}" for patient, _ in pairs],
        "search patient+code": plain,
        "search patient+code+date, sorted": [f"{url}&date=ge2019-06-01&_sort=-date" for url in plain],
    }


def ask(session: Session, paths: list[str], call: int) -> None:
    """Send one request in process."""
    session.get(paths[call % len(paths)])


def compare_with_hapi(report: Report, session: Session, base: str, requests: int) -> None:
    """Print the medians of single requests in process, over HTTP and on HAPI in milliseconds."""
    load = Workload(session)
    found = [f"/Observation?patient={patient}&code={code}&_count=20" for patient, code in load.pairs]
    paths = {
        "read": [f"/Observation/{id}" for id in load.observations],
        "search patient+code": found,
        "search patient+code, sorted": [f"{path}&date=ge2019-06-01&_sort=-date" for path in found],
        "search _count=5000": ["/Observation?_count=5000"],
    }
    load.close()
    patient = b'{"resourceType":"Patient","name":[{"family":"Example"}]}'
    with httpx.Client() as over_http:

        def send(name: str, call: int) -> None:
            if name == "create":
                answer = over_http.post(f"{base}/Patient", content=patient, headers=_FHIR)
            else:
                answer = over_http.get(base + paths[name][call % len(paths[name])])
            answer.raise_for_status()

        def handle(name: str, call: int) -> None:
            if name == "create":
                session.handle(Request("POST", "/Patient", headers=_FHIR, body=patient))
            else:
                path, _, query = paths[name][call % len(paths[name])].partition("?")
                session.handle(Request("GET", path, query))

        for name, hapi in _HAPI_MS.items():
            number = max(10, requests // (20 if "5000" in name else 1))
            inside, outside = (
                round(percentile(measure(partial(work, name), number), 0.5) / 1_000, 2) for work in (handle, send)
            )
            report.line(f"{name}, beside HAPI", n=number, in_process_ms=inside, http_ms=outside, hapi_ms=hapi)


def client(base: str, paths: list[str], requests: int) -> list[float]:
    """Send requests over one connection and return their times in microseconds."""
    parts = urlsplit(base)
    connection = http.client.HTTPConnection(parts.netloc)
    times = []
    for call in range(requests):
        start = time.perf_counter_ns()
        connection.request("GET", parts.path + paths[call % len(paths)])
        answer = connection.getresponse()
        answer.read()
        times.append((time.perf_counter_ns() - start) / 1_000)
        if answer.status != 200:
            raise RuntimeError(f"{paths[call % len(paths)]} answered {answer.status}")
    connection.close()
    return times


@contextmanager
def delayed(seconds: float) -> Iterator[None]:
    """Delay each request of sessions on running servers, for a `with` block."""
    original = httpx.HTTPTransport.handle_request

    def handle(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        time.sleep(seconds)
        return original(transport, request)

    with patch.object(httpx.HTTPTransport, "handle_request", handle):
        yield


def episodes_a_second(world: World, servers: Sequence[str], variations: int) -> float:
    """Run reference solutions on servers and return the number of episodes per second."""
    start = time.perf_counter()
    config = EpisodeConfig("FHIRAgent/Appointment-v0", world=world, fhir_server=servers)
    rollouts = list(run(config, "gold", tasks=_TASKS, variations=range(variations)))
    if any(rollout.reward != 1 for rollout in rollouts):
        raise RuntimeError("a reference solution failed")
    return len(rollouts) / (time.perf_counter() - start)


def compare_servers(report: Report, world: World, options: argparse.Namespace) -> None:
    """Print the episodes per second on one server and on several."""
    with ExitStack() as stack:
        urls = [stack.enter_context(serving(options.world))[0] for _ in range(2 if options.quick else 4)]
        for delay in _DELAYS[:1] if options.quick else _DELAYS:
            with delayed(delay):
                variations = 1 if options.quick else 8
                episodes_a_second(world, urls, 1)  # warm-up
                single = episodes_a_second(world, urls[:1], variations)
                several = episodes_a_second(world, urls, variations)
            report.line(
                "episodes, HTTP",
                delay_ms=round(delay * 1000),
                one_server=round(single, 1),
                servers=len(urls),
                several_servers=round(several, 1),
                ratio=round(several / single, 2),
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", default="hospital-small")
    parser.add_argument("--requests", type=int, default=1_000, help="requests per measurement, summed over all clients")
    parser.add_argument("--quick", action="store_true", help="few requests, two servers")
    options = parser.parse_args()
    options.requests = 24 if options.quick else options.requests
    with worlds.load(options.world) as world, serving(options.world) as (base, _), world.session() as session:
        report = Report(world.manifest.name, world.manifest.total)
        compare_with_hapi(report, session, base, options.requests)
        for name, paths in urls(world).items():
            inside = percentile(measure(partial(ask, session, paths), options.requests), 0.5)
            for clients in _CLIENTS:
                each = options.requests // clients
                shares = [paths[k::clients] for k in range(clients)]
                start = time.perf_counter()
                with ThreadPoolExecutor(clients) as pool:
                    runs = pool.map(client, repeat(base), shares, repeat(each))
                    times = sorted(t for run in runs for t in run)
                rate = round(len(times) / (time.perf_counter() - start))
                ratio = round(percentile(times, 0.5) / inside, 1)
                figures = {"requests_a_second": rate, "times_in_process": ratio}
                if clients > 1:
                    figures["hapi_requests_a_second"] = _HAPI_RATE
                report.times(f"{name}, HTTP", times, clients=clients, **figures)
        if world.name.startswith("hospital"):
            compare_servers(report, world, options)


if __name__ == "__main__":
    main()
