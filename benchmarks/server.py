"""Measure the speed of the FHIR server in process.

    python -m benchmarks.server [--observations N | --world W] [--quick]

Prints one JSON line per measurement: name, world, records, n, p50_us, p95_us, the machine unit (`unit_us`) and the
median in units. The baseline of reads and searches uses only SQL and orjson: `baseline_us` is its median,
`times_baseline` the ratio. The patients, codes and ids of the requests vary, so that no response comes from a cache.
A "first read" includes the check that a process makes when it reads a resource for the first time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from benchmarks._baseline import Baseline
from benchmarks._measure import Report, measure
from benchmarks.large_world import large_world
from fhir_gym import worlds
from fhir_gym.fhir import Request, Response, Session, World

__all__ = ["main"]

_SINCE = datetime(2019, 6, 1, tzinfo=UTC)
_IMPORT = "import time; t = time.perf_counter(); import fhir_gym; print((time.perf_counter() - t) * 1e6)"


class Workload:
    """Requests for the patients and Observations of one world.

    Args:
        session: An open session on the world.
        patients: Number of different patients in the requests.
    """

    def __init__(self, session: Session, patients: int = 50) -> None:
        self.session = session
        self.observations = session.world.ids("Observation")
        self.pairs: list[tuple[str, str]] = []
        for patient in session.world.ids("Patient")[:patients]:
            page = session.get(f"/Observation?patient={patient}&_count=40")
            codes = {entry["resource"]["code"]["coding"][0]["code"]: None for entry in page.get("entry", [])}
            self.pairs.extend((patient, code) for code in codes)
        self.pairs = self.pairs[::7] + self.pairs  # so that the first calls cover many patients
        self._baseline = Baseline(session.world.path)

    def close(self) -> None:
        """Close the baseline's connection."""
        self._baseline.close()

    def read(self, call: int) -> str:
        """Read one Observation."""
        return _ok(self.session, "GET", f"/Observation/{self._observation(call)}").text

    def read_baseline(self, call: int) -> str:
        """Read the Observation of `read` with the baseline."""
        return self._baseline.read("Observation", self._observation(call))

    def _observation(self, call: int) -> str:
        return self.observations[call * 7919 % len(self.observations)]

    def search(self, call: int) -> str:
        """Search for the first 20 of a patient's Observations with one code."""
        return self._searched(call, "_count=20")

    def search_baseline(self, call: int) -> str:
        """Do the search of `search` with the baseline."""
        return self._baseline.search(*self.pairs[call % len(self.pairs)], 20)

    def search_sorted(self, call: int) -> str:
        """Search for a patient's Observations with one code since a date, newest first."""
        return self._searched(call, f"date=ge{_SINCE:%Y-%m-%d}&_sort=-date&_count=20")

    def search_sorted_baseline(self, call: int) -> str:
        """Do the search of `search_sorted` with the baseline."""
        patient, code = self.pairs[call % len(self.pairs)]
        return self._baseline.search_sorted(patient, code, int(_SINCE.timestamp() * 1000), 20)

    def search_5000(self, call: int) -> str:
        """Search for all of a patient's Observations with one code."""
        return self._searched(call, "_count=5000")

    def search_5000_baseline(self, call: int) -> str:
        """Do the search of `search_5000` with the baseline."""
        return self._baseline.search(*self.pairs[call % len(self.pairs)], 5000)

    def _searched(self, call: int, rest: str) -> str:
        patient, code = self.pairs[call % len(self.pairs)]
        return _ok(self.session, "GET", "/Observation", f"patient={patient}&code={code}&{rest}").text

    def validate(self, call: int) -> Response:
        """Validate one Observation."""
        body = self.session.handle(Request("GET", f"/Observation/{self._observation(call)}")).body
        return _ok(self.session, "POST", "/Observation/$validate", body=body)

    def create(self, call: int) -> Response:
        """Create a vital sign."""
        patient, code = self.pairs[call % len(self.pairs)]
        body = {
            "resourceType": "Observation",
            "status": "final",
            "code": {"coding": [{"system": "http://loinc.org", "code": code}]},
            "subject": {"reference": f"Patient/{patient}"},
            "effectiveDateTime": "2023-11-13T10:15:00+00:00",
            "valueQuantity": {"value": 98.6, "unit": "degF"},
        }
        return _ok(self.session, "POST", "/Observation", body=json.dumps(body).encode())


def _ok(session: Session, method: str, path: str, query: str = "", body: bytes = b"") -> Response:
    headers = {"content-type": "application/fhir+json"} if body else {}
    response = session.handle(Request(method, path, query, headers, body))
    if response.status >= 300:
        raise RuntimeError(f"{method} {path}?{query} was answered {response.status}: {response.text[:300]}")
    return response


def _mean_size(search: Callable[[int], str], calls: int = 50) -> dict[str, float]:
    """Return the mean number of entries and the mean number of bytes of a search's pages."""
    answers = [search(call) for call in range(calls)]
    entries = sum(len(json.loads(answer).get("entry", [])) for answer in answers)
    return {
        "entries": round(entries / calls, 1),
        "bytes": round(sum(len(answer.encode()) for answer in answers) / calls),
    }


def run(world: World, *, quick: bool) -> None:
    """Run all measurements on one world."""
    n = 50 if quick else 2_000
    report = Report(world.manifest.name, sum(world.manifest.counts.values()))
    session = world.session()
    load = Workload(session)
    report.times("first read", measure(load.read, n, baseline=load.read_baseline))
    report.times("read", measure(load.read, n, baseline=load.read_baseline))
    for name, search, baseline, calls in (
        ("search patient+code", load.search, load.search_baseline, n),
        ("search patient+code+date, sorted", load.search_sorted, load.search_sorted_baseline, n),
        ("search _count=5000", load.search_5000, load.search_5000_baseline, max(10, n // 40)),
    ):
        report.times(name, measure(search, calls, baseline=baseline), **_mean_size(search))
    report.times("validate", measure(load.validate, n // 4))
    report.times("create", measure(load.create, n))
    session.rollback()
    session.validation = "strict"
    report.times("create, strict", measure(load.create, n // 4))
    session.validation = "hapi"
    session.rollback()
    report.times("rollback of one create", measure(lambda _: session.rollback(), n, prepare=load.create))
    start = session.checkpoint()
    report.times("rollback to a checkpoint", measure(lambda _: session.rollback(start), n, prepare=load.create))
    load.close()
    session.close()
    # Measured first, because later sessions reuse memory freed by closed ones.
    own = session_kib(world, max(10, n // 20))
    opened: list[Session] = []
    report.times("open a session", measure(lambda _: opened.append(world.session()), max(10, n // 20)))
    for opened_session in opened:
        opened_session.close()
    report.times("open the next session", measure(lambda _: world.session().close(), max(10, n // 20)))
    report.times("open the world", measure(lambda _: World.open(world.path).close(), max(10, n // 20)))
    report.line("size", session_kib=own, file_bytes=world.path.stat().st_size)


def session_kib(world: World, sessions: int) -> float:
    """Return the memory in KiB that one more session with a write takes, without the shared pages of the world."""
    patient = world.ids("Patient")[0]
    body = json.dumps({"resourceType": "Flag", "subject": {"reference": f"Patient/{patient}"}}).encode()
    before = anonymous_kib()
    opened = [world.session() for _ in range(sessions)]
    for session in opened:
        session.handle(Request("POST", "/Flag", headers={"content-type": "application/fhir+json"}, body=body))
    grown = anonymous_kib() - before
    for session in opened:
        session.close()
    return round(grown / sessions, 1)


def anonymous_kib() -> int:
    """Return the anonymous memory of this process in KiB (Linux)."""
    rollup = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Anonymous:"))


def import_time(runs: int) -> list[float]:
    """Time `import fhir_gym` in new processes, in microseconds."""
    command = [sys.executable, "-c", _IMPORT]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(runs)]
    return sorted(float(output) for output in outputs)


def main() -> None:
    """Print all measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server", description=__doc__)
    parser.add_argument("--observations", type=int, default=200_000, help="size of the large world")
    parser.add_argument("--world", help="measure this world (name or path) instead of the large one")
    parser.add_argument("--quick", action="store_true", help="few calls, no large world")
    options = parser.parse_args()
    Report("none", 0).times("import fhir_gym", import_time(3 if options.quick else 10))
    with worlds.load("hospital-small") as small:
        run(small, quick=options.quick)
    if not options.quick:
        with worlds.load(options.world or large_world(observations=options.observations)) as large:
            run(large, quick=False)


if __name__ == "__main__":
    main()
