"""Measure the memory of `fhir-gym serve` under many random requests.

    python -m benchmarks.soak [--requests N] [--quick]

One client sends valid and invalid reads, searches, page requests, bundles, creates, updates, patches and deletes.
Prints one JSON line: memory of the server process at the start, half-way and at the end, requests per second, and the
number of responses by status. The server keeps all written versions in memory, so memory should be constant only with
`--writes 0`.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx

from benchmarks._measure import memory_mib
from benchmarks._serving import serving
from fhir_gym import worlds

__all__ = ["main"]

_FHIR = {"content-type": "application/fhir+json"}
_PATCH = {"content-type": "application/json-patch+json"}
_SEARCHES = (
    "Observation?patient={patient}&_count=5",
    "Observation?patient={patient}&code={code}&_sort=-date",
    "Observation?code={code}&_count=2&_include=Observation:subject",
    "Observation?value-quantity=gt{number}&_total=accurate&_count=1",
    "Patient?family={letter}&_revinclude=Appointment:patient",
    "Patient?birthdate=ge19{year}&gender=female&_elements=name",
    "Patient?_has:Observation:patient:code={code}&_count=3",
    "Appointment?status=booked&date=ge2023-{month}&_sort=date",
    "Slot?start=ge2023-{month}-01&_summary=count",
    "Patient/{patient}/$everything?_count=20",
    "Patient/{patient}/_history",
    "_history?_count=3",
    "metadata",
)
_WRONG = (
    "Patient?nonsense={number}",
    "Patient?birthdate={letter}{number}",
    "Nothing/{number}",
    "Patient/nobody-{number}",
    "Observation?_include={letter}",
    "Observation?_sort=-{letter}{number}",
    "Patient/%zz{number}",
    "?_getpages=none-{number}",
    "Patient?family=" + "x" * 900,
)


class Client:
    """Sends random requests.

    Args:
        base: Base URL of the server.
        seed: Seed of the requests.
        writes: Share of requests that write.
    """

    def __init__(self, base: str, seed: int, writes: float) -> None:
        self.base = base
        self.rng = random.Random(seed)
        self.writes = writes
        self.statuses: Counter[int] = Counter()
        self.pages: list[str] = []
        self.made: OrderedDict[str, None] = OrderedDict()
        self.http = httpx.Client(timeout=60)
        with worlds.load("hospital-small") as world:
            self.patients = world.ids("Patient")

    def step(self) -> None:
        """Send one request."""
        draw = self.rng.random()
        if draw < self.writes:
            self.write()
        elif self.pages and draw < self.writes + 0.2:
            self.get(self.pages.pop(), whole=True)
        elif draw > 0.9:
            self.get(self.fill(self.rng.choice(_WRONG)))
        elif draw > 0.85:
            self.batch_of_reads()
        else:
            self.get(self.fill(self.rng.choice(_SEARCHES)))

    def fill(self, template: str) -> str:
        """Fill a URL template with random values."""
        rng = self.rng
        return template.format(
            patient=rng.choice(self.patients),
            code=rng.choice(("GLU", "K", "A1C", "MG", "NA")),
            number=rng.randrange(1_000_000),
            letter=quote(rng.choice("ABCDEFGHIJKLMNÖ")),
            year=rng.randrange(40, 99),
            month=f"{rng.randrange(1, 13):02}",
        )

    def get(self, url: str, *, whole: bool = False) -> None:
        """Send a GET request and keep the link to the next page."""
        answer = self.send("GET", url if whole else f"{self.base}/{url}")
        if answer.status_code == 200 and "json" in answer.headers["content-type"]:
            links = answer.json().get("link", [])
            self.pages += [link["url"] for link in links if link["relation"] == "next"]
            del self.pages[:-50]

    def send(self, method: str, url: str, **more: Any) -> httpx.Response:
        """Send a request and count its status."""
        answer = self.http.request(method, url, **more)
        self.statuses[answer.status_code] += 1
        return answer

    def post(self, url: str, body: Any, **headers: str) -> httpx.Response:
        """POST a JSON body."""
        return self.send("POST", url, content=json.dumps(body).encode(), headers=_FHIR | headers)

    def batch_of_reads(self) -> None:
        """Send several searches as a batch."""
        entries = [{"request": {"method": "GET", "url": self.fill(self.rng.choice(_SEARCHES[:8]))}} for _ in range(3)]
        self.post(self.base, {"resourceType": "Bundle", "type": "batch", "entry": entries})

    def write(self) -> None:
        """Send a create, update, patch, delete or transaction, valid or invalid."""
        number = self.rng.randrange(500)
        body: dict[str, Any] = {"resourceType": "Patient", "name": [{"family": self.fill("{letter}{number}")}]}
        choices: list[Callable[[], httpx.Response]] = [
            lambda: self.created(self.post(f"{self.base}/Patient", body)),
            lambda: self.post(f"{self.base}/Patient", body, **{"if-none-exist": f"family=A{number}"}),
            lambda: self.put(body | {"id": f"soak-{number}"}),
            lambda: self.send(
                "PATCH",
                f"{self.base}/Patient/soak-{number}",
                content=json.dumps([{"op": "add", "path": "/active", "value": number % 2 == 0}]).encode(),
                headers=_PATCH,
            ),
            lambda: self.send("DELETE", f"{self.base}/Patient/{self.oldest() or f'soak-{number}'}"),
            lambda: self.post(self.base, self.transaction(number, body)),
            lambda: self.post(f"{self.base}/Patient", {"resourceType": "Patient", "gender": number}),
            lambda: self.send("POST", f"{self.base}/Patient", content=b'{"resourceType": ', headers=_FHIR),
        ]
        self.rng.choice(choices)()

    def created(self, answer: httpx.Response) -> httpx.Response:
        """Keep the id of a created resource, so that a later request can delete the resource."""
        self.made[answer.json()["id"]] = None
        return answer

    def oldest(self) -> str | None:
        """Remove and return the id of the oldest created resource."""
        return self.made.popitem(last=False)[0] if self.made else None

    def put(self, body: dict[str, Any]) -> httpx.Response:
        """Update a resource."""
        url = f"{self.base}/{body['resourceType']}/{body['id']}"
        return self.send("PUT", url, content=json.dumps(body).encode(), headers=_FHIR)

    def transaction(self, number: int, body: dict[str, Any]) -> dict[str, Any]:
        """Build a transaction that creates a resource and a reference to it. Every third transaction fails."""
        name = "urn:uuid:0a0b0c0d-1111-4222-8333-000000000001"
        note = {"resourceType": "Basic", "code": {"text": "soak"}, "subject": {"reference": name}}
        entries = [
            {"fullUrl": name, "resource": body, "request": {"method": "POST", "url": "Patient"}},
            {"resource": note, "request": {"method": "POST", "url": "Basic"}},
            {"request": {"method": "DELETE", "url": f"Patient/{'x' if number % 3 else self.patients[0]}"}},
        ]
        return {"resourceType": "Bundle", "type": "transaction", "entry": entries}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--quick", action="store_true", help="300 requests")
    parser.add_argument("--writes", type=float, default=0.3, help="share of requests that write (0.3)")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with serving() as (base, pid):
        client = Client(base, asked.seed, asked.writes)
        requests = 300 if asked.quick else asked.requests
        for _ in range(50 if asked.quick else 500):  # warm-up
            client.step()
        client.statuses.clear()
        memory = [memory_mib(pid)]
        begin = time.perf_counter()
        for number in range(requests):
            client.step()
            if number == requests // 2:
                memory.append(memory_mib(pid))
        seconds = time.perf_counter() - begin
        memory.append(memory_mib(pid))
    figures = {
        "name": "soak",
        "world": "hospital-small",
        "requests": requests,
        "writes": asked.writes,
        "rss_start_mib": memory[0],
        "rss_half_mib": memory[1],
        "rss_end_mib": memory[-1],
        "requests_per_s": round(requests / seconds),
        "statuses": {str(status): count for status, count in sorted(client.statuses.items())},
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
