from __future__ import annotations

import pytest

from fhir_gym.fhir import World
from fhir_gym.rollouts import Rollout, Turn, run
from fhir_gym.tasks import Check
from fhir_gym.web.episode_replay import Difference, EpisodeTrace, play_gold, trace_episode

APPOINTMENT = "FHIRAgent/Appointment-v0"
OTHER_WORLD = "the world is not installed"


@pytest.fixture(scope="module")
def cancelled(hospital: World) -> Rollout:
    """The solution of "Cancel the next appointment": three reads, two updates and the answer."""
    (rollout,) = run(APPOINTMENT, "gold", tasks="15a", variations=0, world=hospital)
    return rollout


@pytest.fixture(scope="module")
def trace(cancelled: Rollout, hospital: World) -> EpisodeTrace:
    return trace_episode(cancelled, hospital)


def check(trace: EpisodeTrace, rollout: Rollout, name: str) -> list[int]:
    assert rollout.verdict is not None
    return trace.turns_behind(next(check for check in rollout.verdict.checks if check.name == name))


def test_a_replay_shows_what_each_write_changed(trace: EpisodeTrace) -> None:
    assert trace.problem is None and trace.differing == [] and trace.writing == [3, 5]
    [cancelled] = trace.turns[2].writes
    assert (cancelled.effect, cancelled.target.resource_type, cancelled.by_agent) == ("updated", "Appointment", True)
    assert Difference("status", "booked", "cancelled") in cancelled.differences
    [freed] = trace.turns[4].writes
    assert freed.differences == (Difference("status", "busy", "free"),)
    assert trace.turns[0].writes == () and trace.turns[0].returned


def test_created_and_deleted_resources_are_shown_completely(hospital: World) -> None:
    (rollout,) = run(APPOINTMENT, "gold", tasks="01", variations=0, world=hospital)
    assert rollout.verdict is not None and rollout.verdict.answer is not None
    created, [answer] = rollout.turns[0], rollout.verdict.answer
    deleted = created.model_copy(update={"action": f"DELETE /Patient/{answer}"})
    trace = trace_episode(rollout.model_copy(update={"turns": (created, deleted)}), hospital)
    for turn, effect in zip(trace.turns, ("created", "deleted"), strict=True):
        [write] = turn.writes
        assert (write.effect, write.target.text, write.differences) == (effect, f"Patient/{answer}", ())
        assert write.content is not None and "name" in {child.name for child in write.content.children}
    assert trace.differing == [2]


def test_checks_name_the_turns_that_they_are_about(trace: EpisodeTrace, cancelled: Rollout) -> None:
    assert check(trace, cancelled, "appointment status") == [3, 5]
    assert check(trace, cancelled, "answer") == [6]
    slot = trace.turns[4].writes[0].target
    named = Check(name="other", passed=False, expected=[slot.text], actual=None)
    assert trace.turns_behind(named) == [5]
    by_id = Check(name="other", passed=False, expected={"slot": slot.id})
    assert trace.turns_behind(by_id) == [5]
    patient = Check(name="other", passed=False, expected=next(iter(trace.turns[0].returned)))
    assert trace.turns_behind(patient) == [1, 3, 5]


def test_required_records_name_the_turns_that_returned_them(hospital: World) -> None:
    (rollout,) = run(APPOINTMENT, "gold", tasks="04a", variations=0, world=hospital)
    [(reference, turns)] = trace_episode(rollout, hospital).required_records()
    assert reference.startswith("Condition/") and turns == [1]


def test_the_start_state_begins_with_what_the_agent_must_read(trace: EpisodeTrace) -> None:
    assert trace.start_state is not None and trace.timeline is not None
    first = {table.rows[0][0].target for table in trace.start_state.tables[:2]}
    assert {target.text for target in first if target} == set(trace.timeline.required_records)


def test_without_a_replay_the_record_tells_what_was_read_and_written(
    cancelled: Rollout, trace: EpisodeTrace, tiny_world: World
) -> None:
    other_world = trace_episode(cancelled, tiny_world)
    assert other_world.problem is not None and "recorded in another world" in other_world.problem
    for episode_trace in (other_world, trace_episode(cancelled, OTHER_WORLD)):
        assert (
            episode_trace.timeline is None
            and episode_trace.required_records() == []
            and episode_trace.writing == [3, 5]
        )
        assert [turn.touched for turn in episode_trace.turns] == [turn.touched for turn in trace.turns]
        assert not any(turn.writes for turn in episode_trace.turns)


def test_a_record_of_a_deletion_names_the_deleted_resource(cancelled: Rollout) -> None:
    observation = 'HTTP 200 OK\n{"resourceType": "OperationOutcome", "id": "1"}'
    turn = Turn(action="DELETE https://fhir.example/r4/Slot/s-1", observation=observation, status=200)
    [traced] = trace_episode(cancelled.model_copy(update={"turns": (turn,)}), OTHER_WORLD).turns
    assert traced.written == {"Slot/s-1"} and traced.returned == frozenset()


def test_another_answer_in_the_record_is_reported(cancelled: Rollout, hospital: World) -> None:
    edited = cancelled.turns[1].model_copy(update={"observation": "HTTP 200 OK\n{}"})
    turns = (cancelled.turns[0], edited, *cancelled.turns[2:])
    assert trace_episode(cancelled.model_copy(update={"turns": turns}), hospital).differing == [2]


def test_what_the_record_read_counts_where_the_replay_differs(cancelled: Rollout, hospital: World) -> None:
    other = 'HTTP 200 OK\n{"resourceType": "Patient", "id": "elsewhere"}'
    turns = tuple(turn.model_copy(update={"observation": other}) for turn in cancelled.turns[:3])
    episode_trace = trace_episode(cancelled.model_copy(update={"turns": turns}), hospital)
    assert [turn.returned for turn in episode_trace.turns] == [{"Patient/elsewhere"}, {"Patient/elsewhere"}, set()]
    assert "Patient/elsewhere" in episode_trace.turns[2].written and episode_trace.differing == [1, 2, 3]


def test_turns_after_the_end_are_refused(cancelled: Rollout, hospital: World) -> None:
    episode_trace = trace_episode(cancelled.model_copy(update={"turns": cancelled.turns * 2}), hospital)
    assert episode_trace.problem is not None and "turns after the end of the episode" in episode_trace.problem
    assert len(episode_trace.turns) == 2 * len(cancelled.turns)


@pytest.mark.parametrize(
    "observation",
    [
        "HTTP 200 OK\n" + "[" * 10_000,
        'HTTP 200 OK\n{"resourceType": 1, "id": 2, "entry": 3}',
        'HTTP 200 OK\n{"entry": [1, {"resource": []}]}',
        "HTTP 201 Created\nLocation: nowhere",
        "HTTP 999999",
    ],
)
def test_malformed_records_are_traced(cancelled: Rollout, observation: str) -> None:
    turn = cancelled.turns[0].model_copy(update={"observation": observation})
    [traced] = trace_episode(cancelled.model_copy(update={"turns": (turn,)}), OTHER_WORLD).turns
    assert traced.touched == frozenset()


def test_the_reference_solution_is_played_on_the_same_variation(hospital: World) -> None:
    (idle,) = run(APPOINTMENT, "idle", tasks="01", variations=3, world=hospital)
    gold = play_gold(idle, hospital)
    assert gold.success and gold.task == idle.task and gold.prompt == idle.prompt
