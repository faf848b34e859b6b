from __future__ import annotations

import pytest

from fhir_gym.agents import ScriptedAgent
from fhir_gym.errors import RecordError
from fhir_gym.fhir import World
from fhir_gym.rollouts import Rollout, run
from fhir_gym.rollouts.timeline import base_url_of, replay

SHIFT = "FHIRAgent/Shift-v0"


def recorded(world: World, env_id: str, task: str, variation: int = 0) -> Rollout:
    (rollout,) = run(env_id, "gold", tasks=[task], variations=variation, world=world)
    return rollout


def test_a_replay_shows_the_requests_and_the_verdict(hospital: World) -> None:
    rollout = recorded(hospital, "FHIRAgent/Appointment-v0", "01")
    timeline = replay(rollout, hospital)
    assert timeline.verdict.success and len(timeline.entries) == len(rollout.turns) - 1
    assert {entry.who for entry in timeline.entries} == {"agent"} and {entry.time for entry in timeline.entries} == {""}
    assert any(
        entry.action == "POST /Patient" and "201, created Patient/" in entry.result for entry in timeline.entries
    )


def test_a_live_shift_shows_times_and_events(hospital: World) -> None:
    rollout = recorded(hospital, SHIFT, "day-3", variation=1)
    timeline = replay(rollout, hospital)
    assert timeline.verdict.success and timeline.verdict.score == 1
    times = [entry.time for entry in timeline.entries]
    assert times == sorted(times) and times[0] == "10:15:00"
    events = {entry.who: entry.result for entry in timeline.entries if entry.who != "agent"}
    assert {"request", "colleague booked", "answer"} <= events.keys()
    assert events["request"].startswith("requested, ") and "created Appointment/" not in events["request"]
    assert events["answer"]
    assert len(timeline.turns) == len(rollout.turns)
    assert sum(len(turn.events) for turn in timeline.turns) == sum(entry.who != "agent" for entry in timeline.entries)
    colleagues = next(turn for turn in timeline.turns if "colleague booked" in {event.who for event in turn.events})
    assert any(
        other_change.kind == "created" and other_change.resource_type == "Appointment"
        for other_change in colleagues.other_changes
    )
    assert not any(turn.changes for turn in timeline.turns if turn.request and turn.request.action.kind == "GET")


def test_an_unfinished_episode_is_graded_as_it_is(hospital: World) -> None:
    rollout = recorded(hospital, SHIFT, "Q1-1")
    timeline = replay(rollout.model_copy(update={"turns": rollout.turns[:3]}), hospital)
    assert not timeline.verdict.success and len(timeline.entries) == 3


def test_records_of_other_worlds_and_versions_are_refused(hospital: World, tiny_world: World) -> None:
    rollout = recorded(hospital, "FHIRAgent/Appointment-v0", "01")
    with pytest.raises(RecordError, match="variation 0: the episode was recorded in another world than"):
        replay(rollout, tiny_world)
    with pytest.raises(RecordError, match="another version of fhir_gym recorded the episode"):
        replay(rollout.model_copy(update={"prompt": "Do something else."}), hospital)


def test_the_text_of_an_invalid_action_is_not_performed(hospital: World) -> None:
    rollout = recorded(hospital, "FHIRAgent/Appointment-v0", "01")
    invalid = rollout.turns[-1].model_copy(update={"error": "the model called no tool"})
    timeline = replay(rollout.model_copy(update={"turns": (invalid, *rollout.turns)}), hospital)
    assert timeline.verdict.success and timeline.turns[0].request is None


def test_hostile_records_do_not_raise(hospital: World) -> None:
    rollout = recorded(hospital, SHIFT, "Q1-1")
    odd = rollout.turns[0].model_copy(update={"action": "GET /Patient?\x1b[31m<script>"})
    timeline = replay(rollout.model_copy(update={"turns": (odd, *rollout.turns)}), hospital)
    assert timeline.verdict.success


def test_the_replay_has_the_base_url_of_the_record(hospital: World) -> None:
    agent = ScriptedAgent("GET https://fhir.example/r4/Patient?_count=1")
    base_url = "https://fhir.example/r4"
    (rollout,) = run("FHIRAgent/Appointment-v0", agent, tasks=["01"], variations=0, world=hospital, base_url=base_url)
    assert base_url_of(rollout) == base_url and rollout.turns[0].status == 200
    assert [turn.observation for turn in replay(rollout, hospital).turns] == [
        turn.observation for turn in rollout.turns
    ]
    assert base_url_of(rollout.model_copy(update={"action_format": "?"})) == "http://localhost:8080/fhir"
