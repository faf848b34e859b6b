"""The cost of a verdict is bounded, even for episodes made to stall it; honest agents are not affected."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import orjson
import pytest

from fhir_gym.actions import Action, Get, Post, to_request
from fhir_gym.fhir import Limits, Request, Response, Session, World
from fhir_gym.fhir.messages import Interaction
from fhir_gym.tasks import FinishedEpisode, LoggedRequest, get_task, grade
from fhir_gym.tasks.core.grader import find_evidence
from fhir_gym.tasks.grading.counterfactuals import BudgetedSession
from fhir_gym.tasks.grading.end_state import BeforeView, read_by_verdicts, returned_resources

TASK = get_task("FHIRAgent/Appointment-v0", "12a")
"""A task with a numeric answer, for which grading replays every request."""


def sent(session: Session, action: Action) -> LoggedRequest:
    request = to_request(action, session.base_url)
    assert isinstance(request, Request)
    return LoggedRequest(action, request, session.handle(request))


def batch(size: int) -> Action:
    entry = {"request": {"method": "GET", "url": "Slot?_count=1&_sort=-start"}}
    return Post("/", {"resourceType": "Bundle", "type": "batch", "entry": [entry] * size})


def ended(world: World, actions: list[Action], repeats: int = 1) -> tuple[Any, FinishedEpisode]:
    variation = TASK.variation(1, world)
    session = world.session()
    session.load(variation.setup, next_id=variation.next_id, normal=True)
    logged = tuple(sent(session, action) for action in actions) * repeats
    before = BeforeView(world, variation.setup, session, ())
    return variation, FinishedEpisode([0], logged, before, session, (), world, session.base_url)


@pytest.mark.parametrize(
    "action",
    [Get("/Observation?_count=1000"), Get("/Slot?schedule.actor:Practitioner.name:contains=a&_count=1"), batch(50)],
    ids=["pages", "chains", "batches"],
)
def test_a_verdict_is_bounded_whatever_was_asked(hospital: World, action: Action) -> None:
    variation, end = ended(hospital, [action], repeats=200)
    start = time.process_time()
    grade(TASK, variation, end)
    assert time.process_time() - start < 3  # CPU time, usually about 0.3 s


def test_a_verdict_takes_bounded_memory() -> None:
    def page(first: int) -> LoggedRequest:
        found = [{"resourceType": "Slot", "id": f"s{n}", "comment": "x" * 60} for n in range(first, first + 8_000)]
        body = orjson.dumps({"resourceType": "Bundle", "entry": [{"resource": slot} for slot in found]})
        done = (Interaction("search", "Slot", status=200),)
        return LoggedRequest(Get(f"/Slot?page={first}"), Request("GET", "/Slot"), Response(200, body=body, done=done))

    log = [page(n * 8_000) for n in range(24)]
    assert sum(len(request.response.body) for request in log) > 20 * 2**20
    tracemalloc.start()
    assert returned_resources(log)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 64 * 2**20


def test_large_answers_are_left_out_and_later_small_ones_are_read() -> None:
    def logged(size: int) -> LoggedRequest:
        return LoggedRequest(Get("/Slot"), Request("GET", "/Slot"), Response(200, body=b" " * size))

    large, small = logged(4 * 2**20), logged(2**20)
    assert read_by_verdicts([large, large, small]) == [large, small]


def test_many_small_searches_in_batches_are_all_read() -> None:
    done = tuple(Interaction("search", "Slot", status=200, entry=entry) for entry in range(20))
    batch = LoggedRequest(Post("/", {}), Request("POST", "/"), Response(200, body=b"{}", done=done))
    assert read_by_verdicts([batch] * 40) == [batch] * 40
    large = LoggedRequest(Post("/", {}), Request("POST", "/"), Response(200, body=b"{}", done=done * 100))
    assert read_by_verdicts([large] * 40) == []


def test_a_look_after_too_much_reading_counts_if_it_is_small(hospital: World) -> None:
    variation, _ = ended(hospital, [])
    much, look = Get("/Observation?_count=1000"), next(TASK.gold(variation.params))
    assert not find_evidence(TASK, *ended(hospital, [much] * 9)).sufficient
    assert find_evidence(TASK, *ended(hospital, [*[much] * 9, look])).sufficient


def test_requests_that_are_sent_again_share_the_work_of_a_few(hospital: World) -> None:
    request = Request("GET", "/Slot", "schedule.actor:Practitioner.name:contains=a&_count=1")
    with hospital.session(limits=Limits(sql_steps=600_000)) as session:
        assert session.handle(request).status == 200
        sparing = BudgetedSession(session)
        statuses = [sparing.handle(request).status for _ in range(20)]
        assert statuses[0] == 200
        assert statuses[-1] == 400
        assert session.handle(request).status == 200
