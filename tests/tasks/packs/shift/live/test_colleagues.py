"""Appointments of an agent and of its colleagues."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from fhir_gym import Episode
from fhir_gym.actions import Action, Get, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.live.gold import GoldDesk
from fhir_gym.tasks.packs.shift.live.kinds import live_kinds
from fhir_gym.types import Json
from tests.tasks.packs.shift.live.playing import failed, params_of, play, results, sent_for, shift_of
from tests.tasks.packs.shift.playing import answer_of, read_all


@pytest.fixture
def episode(hospital: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Episode]:
    """A shift with appointments alone, and with many bookings of colleagues."""
    with shift_of(["Q1"], hospital, monkeypatch, "bookings", 1, minutes=60, events=8, asking=0) as found:
        found.start()
        yield found


@pytest.mark.slow
def test_a_slot_that_a_colleague_took_meanwhile_is_lost(episode: Episode) -> None:
    """An agent that looks for slots only once books slots that are taken."""
    remembered: dict[str, Json] = {}
    assert play(episode).info["success"]
    episode.start()
    solution = GoldDesk(params_of(episode), live_kinds()).play()
    action = next(solution)
    while not (step := episode.step(action)).done:
        seen = answer_of(step)
        if action.kind == "GET" and "/Slot?" in action.url:
            seen = remembered.setdefault(action.url, seen)
        action = solution.send(seen)
    assert 0 < len(failed(episode)) < len(params_of(episode).requests)


@pytest.mark.slow
def test_a_slot_that_the_agent_left_free_is_wrong_even_if_a_colleague_takes_it(
    hospital: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variation in range(20):
        with shift_of(["Q1"], hospital, monkeypatch, "bookings", variation, minutes=60, events=8, asking=0) as episode:
            booked, taken = play_without_taking_slots(episode)
            if booked & taken:
                assert len(failed(episode)) >= len(booked)
                return
    pytest.fail("no colleague took a slot that the agent left free")


def play_without_taking_slots(episode: Episode) -> tuple[set[str], set[str]]:
    """Play the reference solution without its updates of slots; return the slots of the agent and of its colleagues."""

    def only_reads(action: Action) -> list[Action]:
        return [Get(action.url)] if action.kind == "PUT" and "/Slot/" in action.url else [action]

    episode.start()
    play(episode, only_reads)
    own, others = (
        [request.logged.action for request in sent_for(episode, event)] for event in ("", "colleague booked")
    )
    booked = {json.loads(action.body or "{}")["slot"][0]["reference"] for action in own if action.kind == "POST"}
    return booked, {action.url.removeprefix("/") for action in others}


@pytest.mark.slow
def test_a_colleague_may_take_a_slot_that_the_agent_gave_back(episode: Episode) -> None:
    """The agent books a wrong slot and moves the appointment; then a colleague books the wrong slot."""
    episode.start()
    play(episode)
    taken = [request.logged.action.url for request in sent_for(episode, "colleague booked")]
    wrong = next(url for url in reversed(taken) if url.startswith("/Slot/"))
    episode.start()
    slot = read_all(episode, wrong.replace("/Slot/", "/Slot?_id="))[0]
    patient: set[str] = set()

    def correct(action: Action) -> list[Action]:
        if patient or action.kind != "POST" or action.url != "/Appointment":
            return [action]
        right = json.loads(action.body or "{}")
        times = {"start": slot["start"], "end": slot["end"], "slot": [{"reference": wrong.removeprefix("/")}]}
        patient.add(right["participant"][0]["actor"]["reference"].removeprefix("Patient/"))
        made = answer_of(episode.step(Post("/Appointment", right | times)))
        for status in ("busy", "free"):
            episode.step(Put(wrong, {**slot, "status": status}))
        return [Put(f"/Appointment/{made['id']}", {**right, "id": made["id"]})]

    play(episode, correct)
    assert wrong in [request.logged.action.url for request in sent_for(episode, "colleague booked")]
    (check,) = [check for result, check in results(episode).values() if patient.intersection(result.request.patients)]
    assert "judged" not in str(check.actual)
