"""Measure the speed of `fhir-gym serve`: `python -m benchmarks.http [--world NAME_OR_PATH] [--requests N] [--quick]`.

Measures one client, then eight concurrent clients. Each client uses a persistent connection. Each line of output
also compares its median with that of the same requests made in process.
"""

from __future__ import annotations

import argparse
import http.client
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import repeat
from urllib.parse import urlsplit

from benchmarks._measure import Report, measure, percentile
from benchmarks._serving import serving
from benchmarks.server import Workload
from fhir_gym import worlds
from fhir_gym.fhir import Session, World

__all__ = ["main"]

_CLIENTS = (1, 8)


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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", default="hospital-small")
    parser.add_argument("--requests", type=int, default=1_000, help="requests per measurement, summed over all clients")
    parser.add_argument("--quick", action="store_true", help="100 requests per measurement")
    options = parser.parse_args()
    options.requests = 100 if options.quick else options.requests
    with worlds.load(options.world) as world, serving(options.world) as (base, _), world.session() as session:
        report = Report(world.manifest.name, world.manifest.total)
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
                report.times(f"{name}, HTTP", times, clients=clients, requests_a_second=rate, times_in_process=ratio)


if __name__ == "__main__":
    main()
