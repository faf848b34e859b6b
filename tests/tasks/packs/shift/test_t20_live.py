from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from typing_extensions import override

from fhir_gym import Episode, get_task
from fhir_gym.actions import Action, Finish, Get, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks import register
from fhir_gym.tasks.authoring import instant, parse_instant
from fhir_gym.tasks.core import registry
from fhir_gym.tasks.packs.shift.live.gold import GoldDesk
from fhir_gym.tasks.packs.shift.live.kinds import live_kinds
from fhir_gym.tasks.packs.shift.live.plan import IS_AGREED, WHICH_PATIENT, DeskRequest, LiveParams
from fhir_gym.tasks.packs.shift.outcomes import DONE, NO_FREE_TIME, NOT_ALLOWED
from fhir_gym.tasks.packs.shift.t20_live import LiveLevel3
from fhir_gym.types import Json, Resource
from tests.tasks.packs.shift.live.playing import events, failed, now_of, params_of, play, results, task_of, worklist
from tests.tasks.packs.shift.playing import answer_of, opened, read_all

SMALL, WORLD = "Test/HalfHour-v0", "hospital-small"


@pytest.fixture(scope="module", autouse=True)
def half_hours() -> Iterator[None]:
    register_half_hours()
    yield
    registry._registered.pop(SMALL, None)


def register_half_hours() -> None:
    """Register shifts of half an hour."""
    dials: dict[str, dict[str, Any]] = {
        "plain": {"events": 0, "asking": 0},
        "eventful": {"events": 6, "asking": 0},
        "unclear": {"events": 0, "asking": 4},
        "crowded": {"events": 12, "asking": 0, "load": 2},
    }
    shifts = (LiveLevel3().with_dials(key, {"minutes": 30, "policies": 20, **dial}) for key, dial in dials.items())
    register(SMALL, *shifts, world=WORLD)


def half_hour(world: World, key: str, variation: int = 0) -> Episode:
    episode = Episode(SMALL, task=key, variation=variation, world=world, reward="dense", max_steps=500)
    episode.start()
    return episode


@pytest.mark.parametrize("key", ["plain", "eventful", "unclear"])
def test_gold_succeeds(hospital: World, key: str) -> None:
    with half_hour(hospital, key) as episode:
        step = play(episode)
        assert step.info["success"] and step.reward == 1, failed(episode)


@pytest.mark.parametrize(
    ("key", "fewest"),
    [pytest.param("day-3", 100, marks=pytest.mark.slow), pytest.param("day-4", 400, marks=pytest.mark.exhaustive)],
)
def test_gold_succeeds_at_the_levels(hospital: World, key: str, fewest: int) -> None:
    with opened(hospital, key=key) as episode:
        step = play(episode)
        assert step.info["success"] and step.reward == 1, failed(episode)
        assert len(episode.requests) >= fewest


def test_a_shift_that_ends_early_gets_the_score_of_what_was_closed(hospital: World) -> None:
    with half_hour(hospital, "plain") as episode:
        with pytest.raises(StopIteration):  # the solution ends with FINISH
            play(episode, lambda action: [] if action.kind == "FINISH" else [action])
        step = episode.truncate()
        assert not step.info["success"] and step.reward == 1 and not failed(episode)
    with half_hour(hospital, "plain") as episode:
        step = episode.truncate()
        assert not step.info["success"] and step.reward == 0


def test_an_idle_agent_gets_nothing(hospital: World) -> None:
    with half_hour(hospital, "plain") as episode:
        step = episode.step("FINISH([])")
        assert step.reward == 0 and not step.info["success"]
        assert failed(episode) == {request.id for request in params_of(episode).requests}


@pytest.mark.parametrize(
    ("status", "outcome"), [("completed", DONE), ("rejected", NOT_ALLOWED), ("rejected", NO_FREE_TIME)]
)
def test_who_only_closes_tasks_gets_nothing(hospital: World, status: str, outcome: str) -> None:
    with half_hour(hospital, "eventful") as episode:
        while tasks := worklist(episode):
            for task in tasks:
                closed = {**task, "status": status, "businessStatus": {"text": outcome}}
                episode.step(Put(f"/Task/{task['id']}", closed))
        step = episode.step("FINISH([])")
        assert not step.info["success"] and step.reward == 0


def test_who_waits_until_the_end_gets_nothing(hospital: World) -> None:
    with half_hour(hospital, "eventful") as episode:
        for _ in range(3):
            for task in worklist(episode):
                episode.step(Put(f"/Task/{task['id']}", {**task, "status": "on-hold"}))
        step = episode.step("FINISH([])")
        assert not step.info["success"] and step.reward == 0


def test_the_same_actions_get_the_same_bytes(hospital: World) -> None:
    runs = []
    with half_hour(hospital, "eventful") as episode:
        for _ in range(2):
            episode.start()
            play(episode)
            runs.append((episode._transcript.copy(), episode.verdict()))
    assert runs[0] == runs[1]


def test_time_passes_with_each_action(hospital: World) -> None:
    with half_hour(hospital, "plain") as episode:
        now = parse_instant(params_of(episode).now)
        ids = [request.id for request in params_of(episode).requests if request.arrives <= params_of(episode).now]
        task = read_all(episode, f"/Task?_id={ids[0]}")[0]
        bundle = {"resourceType": "Bundle", "type": "batch", "entry": []}
        reads = [{"request": {"method": "GET", "url": f"Task/{id}"}} for id in (ids[0], ids[0], ids[0])]
        outdated = {"method": "PUT", "url": f"Task/{task['id']}", "ifMatch": 'W/"7"'}
        refused = {"request": outdated, "resource": task}
        actions: list[tuple[Any, int]] = [
            ("nonsense", 20),
            (Get("/Patient?_count=1"), 20),
            (Get("/Patient/unknown"), 20),
            (Put(f"/Task/{task['id']}", {**task, "status": "in-progress"}), 60),
            (Post("/", bundle | {"entry": reads}), 3 * 20),
            (Post("/", bundle | {"type": "transaction", "entry": [*reads, refused]}), 20),
        ]
        spent = 20
        for action, seconds in actions:
            step = episode.step(action)
            spent += seconds
            assert step.info["invalid"] or f"({now + timedelta(seconds=spent):%H:%M:%S})" in step.observation
        changed = read_all(episode, f"/Task?_id={task['id']}")[0]
        assert changed["meta"]["lastUpdated"].startswith(f"{now + timedelta(seconds=81):%Y-%m-%dT%H:%M:%S}")


def test_without_open_tasks_the_worklist_waits_for_the_next_one(hospital: World) -> None:
    with half_hour(hospital, "plain") as episode:
        params = params_of(episode)
        for task in worklist(episode):
            episode.step(Put(f"/Task/{task['id']}", {**task, "status": "on-hold"}))
        now = now_of(episode)
        coming = min(
            parse_instant(request.arrives) for request in params.requests if parse_instant(request.arrives) > now
        )
        open_now = {request.id for request in params.requests if instant(now) >= request.arrives > params.now}
        found = worklist(episode)
        if not open_now:
            assert {parse_instant(resource["authoredOn"]) for resource in found} == {coming}
            assert now_of(episode) == coming + timedelta(seconds=20)
        else:
            assert {resource["id"] for resource in found} == open_now


def test_a_colleague_takes_the_next_free_slot(hospital: World) -> None:
    with half_hour(hospital, "eventful") as episode:
        booking = next(booking for booking in params_of(episode).bookings if len(booking.choices) > 1)
        (first, _), (second, _) = booking.choices[:2]
        slot = read_all(episode, f"/Slot?_id={first.id}")[0]
        episode.step(Put(f"/Slot/{first.id}", {**slot, "status": "busy"}))
        others = {colleague_booking.choices[0][0].id for colleague_booking in params_of(episode).bookings}
        assert first.id in others
        while parse_instant(booking.at) > now_of(episode):
            episode.step("nonsense")
        assert read_all(episode, f"/Slot?_id={second.id}")[0]["status"] == "busy"


def test_withdrawn_requests_must_not_be_done(hospital: World) -> None:
    with half_hour(
        hospital, "eventful", first_with(hospital, "eventful", lambda request: bool(request.withdrawn))
    ) as episode:
        play(episode)
        assert {"colleague booked", "request"} <= {*events(episode)}
        gone = [
            request for request in params_of(episode).requests if results(episode)[request.id][1].actual == "withdrawn"
        ]
        assert len(gone) == events(episode).count("withdrawn") and not failed(episode)


def first_with(world: World, key: str, condition: Callable[[DeskRequest], bool]) -> int:
    """Return the number of the first variation in which a request satisfies a condition."""
    task = get_task(SMALL, key)
    for number in range(30):
        params = task.variation(number, world).params
        assert isinstance(params, LiveParams)
        if any(map(condition, params.requests)):
            return number
    raise AssertionError("no variation has such a request")


class _Guesser(GoldDesk):
    """Knows the answers to all questions without asking."""

    @override
    def _answer_about(self, task: Resource) -> Generator[Action, Json, str]:
        request = next(request for request in self._p.requests if request.id == task["id"])
        yield Get(f"/Task/{task['id']}")
        if request.asks == IS_AGREED:
            return "Yes." if request.agreed else "No."
        return f"born {request.request.ask.patient.birth_date}." if request.asks == WHICH_PATIENT else ""


@pytest.mark.parametrize("code", [WHICH_PATIENT, IS_AGREED])
def test_who_never_asks_fails_these_requests_alone(hospital: World, code: str) -> None:
    with half_hour(
        hospital, "unclear", first_with(hospital, "unclear", lambda request: request.asks == code)
    ) as episode:
        params = params_of(episode)
        solution = _Guesser(params, live_kinds()).play()
        action = next(solution)
        while not (step := episode.step(action)).done:
            action = solution.send(answer_of(step))
        wrong = {id for id, (_, check) in results(episode).items() if "problem" in str(check.actual)}
        late = {id for id, (_, check) in results(episode).items() if "late" in str(check.actual)}
        assert wrong == {request.id for request in params.requests if request.asks} and failed(episode) <= wrong | late


def test_needless_questions_only_cost_time(hospital: World) -> None:
    with half_hour(hospital, "plain") as episode:

        def ask_too(action: Action) -> list[Action]:
            task = task_of(action)
            about = {"basedOn": [{"reference": f"Task/{task}"}], "status": "completed"}
            question = {"resourceType": "Communication", **about, "reasonCode": [{"text": WHICH_PATIENT}]}
            return (
                [action, Post("/Communication", question)] if task and '"in-progress"' in str(action.body) else [action]
            )

        step = play(episode, ask_too)
        late = {id for id, (_, check) in results(episode).items() if "late" in str(check.actual)}
        assert failed(episode) == late and (step.reward or 0) > 0.5
        assert events(episode).count("answer") > 2


def test_a_task_that_is_put_on_hold_after_the_answer_does_not_stay_there(hospital: World) -> None:
    with half_hour(hospital, "plain") as episode:
        task = worklist(episode)[0] | {"status": "in-progress"}
        about = {"basedOn": [{"reference": f"Task/{task['id']}"}], "status": "completed"}
        episode.step(Put(f"/Task/{task['id']}", task))
        question = {"resourceType": "Communication", **about, "reasonCode": [{"text": WHICH_PATIENT}]}
        episode.step(Post("/Communication", question))
        while "answer" not in events(episode):
            episode.step(Get("/Patient?_count=1"))
        episode.step(Put(f"/Task/{task['id']}", task | {"status": "on-hold"}))
        assert task["id"] in {resource["id"] for resource in worklist(episode) if resource["status"] == "in-progress"}


def test_a_late_request_counts_half(hospital: World) -> None:
    with half_hour(hospital, "plain") as episode:
        last = params_of(episode).requests[-1]

        step = play(episode, rank=lambda task: (task["id"] == last.id, task["restriction"]["period"]["end"]))
        assert step.info["success"]
        episode.start()

        def too_late(action: Action) -> list[Action]:
            if task_of(action) == last.id and '"in-progress"' not in str(action.body):
                missing = (parse_instant(last.due) - now_of(episode)).total_seconds()
                for _ in range(int(missing // 20) + 2):
                    episode.step("nonsense")
            return [action]

        step = play(episode, too_late, rank=lambda task: (task["id"] == last.id, task["restriction"]["period"]["end"]))
        weights = {"routine": 1, "urgent": 2, "stat": 3}
        total = sum(weights[request.priority] for request in params_of(episode).requests)
        assert failed(episode) == {last.id}
        assert step.reward == pytest.approx(1 - weights[last.priority] / 2 / total)


def _random(rng: random.Random, _: Resource) -> float:
    return rng.random()


@pytest.mark.slow
def test_the_order_of_independent_requests_does_not_matter(hospital: World) -> None:
    with half_hour(hospital, "plain") as episode:
        for seed in range(20):
            rng = random.Random(seed)
            episode.start()
            play(episode, rank=partial(_random, rng))
            wrong = [check.actual for _, check in results(episode).values() if not check.passed]
            assert all("late" in str(actual) and "judged" not in str(actual) for actual in wrong), wrong


@pytest.mark.parametrize(
    "body",
    [
        {"status": "completed", "basedOn": "Task/1", "reasonCode": "which-patient"},
        {"status": "completed", "basedOn": [None, {"reference": 3}], "reasonCode": [{"coding": [None]}]},
        {"status": "completed", "basedOn": [{"reference": "Task/unknown"}]},
    ],
)
def test_odd_questions_are_ignored(hospital: World, body: Resource) -> None:
    with half_hour(hospital, "plain") as episode:
        episode.step(Post("/Communication", {"resourceType": "Communication", **body}))
        task = worklist(episode)[0]
        for odd in (
            {"businessStatus": "done"},
            {"businessStatus": {"text": 3}, "output": [None, {"valueString": None}]},
        ):
            episode.step(Put(f"/Task/{task['id']}", {**task, "status": "completed", **odd}))
        step = episode.step(Finish([]))
        assert step.reward == 0


@pytest.mark.parametrize(
    ("change", "right"),
    [
        ({"restriction": None}, False),
        ({"priority": "routine", "description": "Nothing."}, False),
        ({"doNotPerform": True, "modifierExtension": [{"url": "http://example.org/x", "valueBoolean": True}]}, False),
        ({"note": [{"text": "Done at once."}], "lastModified": "2023-11-13T10:30:00Z"}, True),
    ],
)
def test_other_elements_of_a_task_must_stay(hospital: World, change: dict[str, Any], right: bool) -> None:
    with half_hour(hospital, "plain") as episode:
        first = params_of(episode).requests[0].id

        def close_differently(action: Action) -> list[Action]:
            if task_of(action) != first or '"businessStatus"' not in str(action.body):
                return [action]
            body = {
                name: value for name, value in (json.loads(action.body or "{}") | change).items() if value is not None
            }
            return [Put(action.url, body)]

        play(episode, close_differently)
        assert failed(episode) == (set() if right else {first})


def test_deletions_end_the_score(hospital: World) -> None:
    with half_hour(hospital, "plain") as episode:
        task = worklist(episode)[0]
        episode.step(f"DELETE /Task/{task['id']}")
        assert not play(episode).info["success"]


@pytest.mark.slow
def test_another_process_draws_and_plays_the_same(hospital: World) -> None:
    code = (
        "from tests.tasks.packs.shift.test_t20_live import *\n"
        "register_half_hours()\n"
        "import hashlib\n"
        "with Episode(SMALL, task='eventful') as episode:\n"
        "    episode.start()\n"
        "    play(episode)\n"
        "    print(hashlib.sha256(repr(episode._transcript).encode()).hexdigest())\n"
    )
    found = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
        for env in (os.environ | {"PYTHONHASHSEED": seed} for seed in "12")
    }
    assert len(found) == 1
