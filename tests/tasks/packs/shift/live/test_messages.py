"""Messages of requesters while the agent works on their requests."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from typing_extensions import override

from benchmarks.shift_live_agents import AGENTS
from fhir_gym import Episode
from fhir_gym.actions import Action, Finish, Get, Patch, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.live.plan import DeskRequest, LiveParams
from fhir_gym.tasks.packs.shift.outcomes import DONE
from fhir_gym.tasks.packs.shift.t20_live import LiveLevel3
from fhir_gym.types import Resource
from tests.tasks.packs.shift.live.playing import (
    Change,
    additions,
    failed,
    handle_one_at_a_time,
    now_of,
    params_of,
    play,
    results,
    sent_for,
    shift_of,
    task_of,
    worklist,
)
from tests.tasks.packs.shift.playing import follow

KINDS = ("Q1", "Q3")


class _LateMessages(LiveLevel3):
    """A shift in which messages come long after the usual work."""

    @override
    def sample(self, rng: random.Random, world: World) -> LiveParams:
        drawn = super().sample(rng, world)
        later = (request.model_copy(update={"message_after": 10 * request.message_after}) for request in drawn.requests)
        return drawn.model_copy(update={"requests": tuple(later)})


@pytest.fixture(params=[LiveLevel3])
def corrected(hospital: World, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Episode]:
    """A shift with two kinds; most requesters change their minds. Agents handle one Task at a time."""
    handle_one_at_a_time(monkeypatch)
    dials = {"minutes": 45, "load": 2, "events": 3, "asking": 0}
    for variation in range(20):
        with shift_of(KINDS, hospital, monkeypatch, "messages", variation, task=request.param, **dials) as episode:
            episode.start()
            if has_all_messages(episode):
                yield episode
                return
    pytest.fail("no shift has all messages")


def has_all_messages(episode: Episode) -> bool:
    """Return whether a shift has both kinds of message about requests to do, and an unchanged Task at the start."""
    requests = params_of(episode).requests
    told = {request.message_withdraws for request in requests if request.message_after and decides(request)}
    return len(told) == 2 and first_unchanged(episode) is not None


def decides(request: DeskRequest) -> bool:
    """Return whether a message about a request would change what is right."""
    return not request.withdrawn and request.request.outcome == DONE


def first_unchanged(episode: Episode) -> Resource | None:
    """Return the first Task of the worklist that never changes."""
    changed = {
        request.id
        for request in params_of(episode).requests
        if request.withdrawn or request.hurried or request.reworded
    }
    return next((task for task in worklist(episode) if task["id"] not in changed), None)


def play_without_messages(episode: Episode, change: Change = lambda action: [action]) -> None:
    """Play an agent that works like the reference solution, but takes no notice of messages."""
    solution, _ = AGENTS["reads no messages"]
    follow(episode, solution(params_of(episode)), change)


def messages(episode: Episode) -> dict[str, datetime]:
    """Return the times of the messages by Task id."""
    sent = ((json.loads(request.logged.action.body or "{}"), request.at) for request in sent_for(episode, "message"))
    return {body["basedOn"][0]["reference"].rpartition("/")[2]: at for body, at in sent}


def test_who_reads_the_messages_succeeds(corrected: Episode) -> None:
    play(corrected)
    withdrawn = [id for id, (_, check) in results(corrected).items() if check.expected == "withdrawn"]
    assert not failed(corrected) and withdrawn and len(messages(corrected)) > 3


def test_who_reads_no_messages_fails_these_requests_alone(corrected: Episode) -> None:
    play_without_messages(corrected)
    assert failed(corrected) and failed(corrected) <= messages(corrected).keys()
    request, check = next(
        result for id, result in results(corrected).items() if id in failed(corrected) and withdraws(result[0])
    )
    assert check.expected == "withdrawn" and request.id in messages(corrected)


def first_with_message(episode: Episode, *, is_withdrawal: bool) -> str:
    """Return the id of a Task about which its requester sends a message that changes what is right."""
    return next(
        request.id
        for request in params_of(episode).requests
        if request.message_after and request.message_withdraws is is_withdrawal and decides(request)
    )


def is_right(episode: Episode, task: str) -> bool:
    """Whether a request is right, apart from its time."""
    found = results(episode)[task][1].actual
    return not {"judged", "problem"} & found.keys()


def withdraws(request: DeskRequest) -> bool:
    return bool(request.message_after) and request.message_withdraws


def waiting(episode: Episode, chosen: str, seconds: int, *, before_looks: bool = False) -> Change:
    """Return a function that delays the decision about a request until some seconds after its message.

    Args:
        episode: The episode.
        chosen: Id of the Task.
        seconds: Minimum age of the message.
        before_looks: Whether the agent waits before it looks at the worklist, too.
    """
    current = ""

    def wait(action: Action) -> list[Action]:
        nonlocal current
        if task_of(action) and '"in-progress"' in str(action.body):
            current = task_of(action)
        elif current == chosen and (action.kind != "GET" or (before_looks and "/Task?" in action.url)):
            current = ""
            while not (sent := messages(episode).get(chosen)) or now_of(episode) < sent + timedelta(seconds=seconds):
                episode.step("nonsense")
        return [action]

    return wait


@pytest.mark.parametrize("corrected", [_LateMessages], indirect=True)
@pytest.mark.parametrize(("seconds", "passes"), [(0, True), (90, False)])
@pytest.mark.parametrize("is_withdrawal", [False, True])
def test_a_message_may_be_ignored_for_a_minute(
    corrected: Episode, seconds: int, passes: bool, is_withdrawal: bool
) -> None:
    chosen = first_with_message(corrected, is_withdrawal=is_withdrawal)
    play_without_messages(corrected, waiting(corrected, chosen, seconds))
    assert is_right(corrected, chosen) is passes, results(corrected)[chosen]


@pytest.mark.parametrize("corrected", [_LateMessages], indirect=True)
def test_a_withdrawal_may_be_followed_at_once(corrected: Episode) -> None:
    chosen = first_with_message(corrected, is_withdrawal=True)
    play(corrected, waiting(corrected, chosen, 0, before_looks=True))
    assert is_right(corrected, chosen) and results(corrected)[chosen][1].expected == "withdrawn"


@pytest.mark.parametrize("reads", [False, True])
def test_who_rejects_every_request_as_withdrawn_must_have_read_the_messages(corrected: Episode, reads: bool) -> None:
    while tasks := worklist(corrected):
        for task in tasks:
            corrected.step(Put(f"/Task/{task['id']}", {**task, "status": "in-progress"}))
            for _ in range(9):
                corrected.step("nonsense")
            if reads:
                corrected.step(Get(f"/Communication?based-on=Task/{task['id']}"))
            closing = additions({"status": "rejected", "businessStatus": {"text": "withdrawn"}})
            corrected.step(Patch(f"/Task/{task['id']}", closing))
    corrected.step(Finish([]))
    open_requests = [request for request in params_of(corrected).requests if not (request.withdrawn or request.hurried)]
    right = {open_request.id for open_request in open_requests if is_right(corrected, open_request.id)}
    told = {open_request.id for open_request in open_requests if withdraws(open_request)} & messages(corrected).keys()
    assert told and right == (told if reads else set())


def test_a_task_must_be_in_progress_before_it_is_closed(corrected: Episode) -> None:
    def only_read(action: Action) -> list[Action]:
        begins = task_of(action) and '"in-progress"' in str(action.body)
        return [Get(f"/Task/{task_of(action)}")] if begins else [action]

    step = play(corrected, only_read)
    cancelled = {request.id for request in params_of(corrected).requests if request.withdrawn}
    assert step.reward == 0 and failed(corrected) | cancelled >= results(corrected).keys()


@pytest.mark.parametrize(("reads", "passes"), [(2, False), (3, True)])
def test_the_requester_has_two_minutes_to_object(corrected: Episode, reads: int, passes: bool) -> None:
    """A write takes one minute, a read 20 seconds."""
    task = first_unchanged(corrected)
    assert task is not None
    corrected.step(Put(f"/Task/{task['id']}", {**task, "status": "in-progress"}))
    for _ in range(reads):
        corrected.step(Get("/Patient?_count=1"))
    closed = {**task, "status": "rejected", "businessStatus": {"text": "no such patient"}}
    corrected.step(Put(f"/Task/{task['id']}", closed))
    corrected.step(Finish([]))
    assert ("for 2 minutes" not in str(results(corrected)[task["id"]][1].actual)) is passes


@pytest.mark.parametrize("corrected", [_LateMessages], indirect=True)
def test_a_withdrawn_request_that_is_changed_harms_whether_its_task_is_closed_or_not(corrected: Episode) -> None:
    chosen = first_with_message(corrected, is_withdrawal=True)

    def leave_open(action: Action) -> list[Action]:
        if task_of(action) != chosen or "businessStatus" not in str(action.body):
            return [action]
        return [Put(action.url, {**json.loads(action.body or "{}"), "status": "on-hold"})]

    play_without_messages(corrected, waiting(corrected, chosen, 90))
    closed = corrected.verdict().score
    corrected.start()
    wait = waiting(corrected, chosen, 90)
    play_without_messages(corrected, lambda action: [each for waited in wait(action) for each in leave_open(waited)])
    assert "not closed" in str(results(corrected)[chosen][1].actual)
    assert closed == corrected.verdict().score
