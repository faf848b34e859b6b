"""Sessions on one world file, in several threads and processes, do not affect each other."""

from __future__ import annotations

import json
import multiprocessing
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import pytest

from fhir_gym.fhir import Request, Response, Session, World
from fhir_gym.fhir.store import WorldFile

WORKERS = 8
HEADERS = {"content-type": "application/fhir+json"}


def requests(world: WorldFile, seed: int, count: int = 30) -> Iterator[Request]:
    """Draw reads, searches, pages, writes and Bundles for a world."""
    rng = random.Random(seed)
    patients, observations = world.ids("Patient"), world.ids("Observation")
    for number in range(count):
        patient, observation = rng.choice(patients), rng.choice(observations)
        body = {"resourceType": "Patient", "id": f"p-{number % 7}", "name": [{"family": rng.choice(("Ash", "Birch"))}]}
        note = {"resourceType": "Observation", "status": "final", "code": {"text": str(seed)}}
        note["subject"] = {"reference": f"Patient/{patient}"}
        bundle = {
            "resourceType": "Bundle",
            "type": rng.choice(("batch", "transaction")),
            "entry": [
                {"resource": note, "request": {"method": "POST", "url": "Observation"}},
                {"request": {"method": "GET", "url": f"Observation?patient={patient}&_count=3&_sort=-date"}},
            ],
        }
        yield rng.choice(
            (
                Request("GET", f"/Observation/{observation}"),
                Request("GET", f"/Patient/{patient}/_history/{number}"),
                Request("GET", "/Observation", f"patient={patient}&_count=5&_sort=-date"),
                Request("GET", "/Patient", "family=Ash,Birch,S&_sort=birthdate&_include=*&_total=accurate"),
                Request("GET", f"/Patient/{patient}/$everything", "_count=20"),
                Request("GET", "/_history", "_count=3"),
                Request("PUT", f"/Patient/{body['id']}", "", HEADERS, json.dumps(body).encode()),
                Request("POST", "/Observation", "", HEADERS, json.dumps(note).encode()),
                Request("DELETE", f"/Observation/{observation}"),
                Request("POST", "/", "", HEADERS, json.dumps(bundle).encode()),
            )
        )


def answers(session: Session, seed: int) -> list[Response]:
    """Return the responses to one worker's requests, including the second page of each search."""
    found = []
    for request in requests(session.world, seed):
        response = session.handle(request)
        found.append(response)
        body: Any = response.json() if response.body else {}
        for link in body.get("link", []):
            if link["relation"] == "next" and "_getpages" in link["url"]:
                found.append(session.handle(Request("GET", "", link["url"].partition("?")[2])))
    return found


def work(world: World, seed: int) -> list[Response]:
    """Run one worker's session."""
    with world.session() as session:
        first = answers(session, seed)
        session.rollback()
        assert answers(session, seed) == first
        return first


def plain(found: list[Response]) -> list[tuple[int, dict[str, str], bytes]]:
    return [(response.status, dict(response.headers), response.body) for response in found]


def work_elsewhere(path: str, seed: int) -> list[tuple[int, dict[str, str], bytes]]:
    """Run a worker in another process. It returns plain values, because a mappingproxy cannot be pickled."""
    with World.open(path) as world:
        return plain(work(world, seed))


def test_threads_answer_as_one_alone(hospital: World) -> None:
    serial = [work(hospital, seed) for seed in range(WORKERS)]
    assert len({response.status for found in serial for response in found}) >= 4
    barrier = Barrier(WORKERS)

    def together(seed: int) -> list[Response]:
        barrier.wait(timeout=60)
        return work(hospital, seed)

    with ThreadPoolExecutor(WORKERS) as pool:
        assert list(pool.map(together, range(WORKERS))) == serial


@pytest.mark.slow
def test_processes_answer_as_one_alone(hospital: World) -> None:
    serial = [plain(work(hospital, seed)) for seed in range(WORKERS)]
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(WORKERS, mp_context=context) as pool:
        assert list(pool.map(partial(work_elsewhere, str(hospital.path)), range(WORKERS))) == serial


def test_sessions_of_one_thread_do_not_disturb_each_other(hospital: World) -> None:
    """Interleave the workers' requests."""
    serial = []
    for seed in range(3):
        with hospital.session() as session:
            serial.append(answers(session, seed))
    sessions = [hospital.session() for _ in range(3)]
    turns = [list(requests(hospital, seed)) for seed in range(3)]
    found: list[list[Response]] = [[] for _ in sessions]
    for asked in zip(*turns, strict=True):
        for number, request in enumerate(asked):
            response = sessions[number].handle(request)
            found[number].append(response)
            for link in (response.json() if response.body else {}).get("link", []):
                if link["relation"] == "next" and "_getpages" in link["url"]:
                    found[number].append(sessions[number].handle(Request("GET", "", link["url"].partition("?")[2])))
    assert found == serial
    for session in sessions:
        session.close()


def test_the_world_itself_may_be_read_by_threads(hospital: World) -> None:
    patients = hospital.ids("Patient")[:40]

    def look(patient: str) -> tuple[Any, list[Any]]:
        return hospital.read("Patient", patient), hospital.search("Observation", patient=patient, _sort="-date")

    serial = [look(patient) for patient in patients]
    with ThreadPoolExecutor(WORKERS) as pool:
        assert list(pool.map(look, patients)) == serial


def test_a_session_may_move_to_another_thread(hospital: World) -> None:
    session = hospital.session()
    point = session.checkpoint()
    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(answers, session, 1).result()
    session.rollback(point)
    assert answers(session, 1) == elsewhere
    session.close()
