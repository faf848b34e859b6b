from __future__ import annotations

import pytest

from fhir_gym import Episode
from fhir_gym.actions import Action, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import parse_instant
from fhir_gym.tasks.packs.shift.outcomes import DONE
from fhir_gym.tasks.packs.shift.p4_critical_results.kind import CriticalRequest, results_due
from fhir_gym.tasks.packs.shift.p4_critical_results.scene import CriticalScene, target_id
from fhir_gym.tasks.packs.shift.static_task import ShiftParams
from tests.tasks.packs.shift.playing import failed, has_outcomes, opened_where, params_of, play


def requests_of(episode: Episode) -> tuple[CriticalRequest, ...]:
    return params_of(episode).requests


def scene_of(episode: Episode) -> CriticalScene:
    scene = params_of(episode).scene
    assert isinstance(scene, CriticalScene)
    return scene


def due_of(episode: Episode) -> list[str]:
    """Return the ids of the results that need a Task, of the first request."""
    scene = scene_of(episode)
    return [*results_due(scene, requests_of(episode)[0].ask, parse_instant(scene.now))]


def one_department(world: World) -> Episode:
    return opened_where(world, "P4-1", has_outcomes(DONE))


def test_the_score_is_the_share_of_results_right_minus_the_share_of_wrong_tasks(hospital: World) -> None:
    with one_department(hospital) as episode:
        due, scene = due_of(episode), scene_of(episode)
        posted: list[Action] = []

        def change(action: Action) -> list[Action]:
            """Leave out the first Task, and create one for a result that needs none."""
            if action.kind != "POST":
                return [action]
            posted.append(action)
            if len(posted) > 1:
                return [action]
            department = scene.department(requests_of(episode)[0].ask.department)
            other = next(result.id for result in scene.results_of[department.id] if result.id not in due)
            return [Post("/Task", {"resourceType": "Task", "focus": {"reference": f"Observation/{other}"}})]

        step = play(episode, change)
        assert len(posted) == len(due)
        assert step.reward == pytest.approx((len(due) - 2) / len(due))
        assert failed(step) == ["request A"]


@pytest.mark.slow
def test_existing_tasks_stay_as_they_are(hospital: World) -> None:
    def cancelled(params: ShiftParams) -> list[str]:
        scene = params.scene
        results = {result.id for result in scene.results_of[scene.department(params.requests[0].ask.department).id]}
        focused = [task for task in scene.tasks if target_id(task["focus"]) in results]
        return [task["id"] for task in focused if task["status"] == "cancelled"]

    with opened_where(
        hospital, "P4-1", lambda params: has_outcomes(DONE)(params) and bool(cancelled(params))
    ) as episode:
        old = cancelled(params_of(episode))[0]

        def reopened(action: Action) -> list[Action]:
            patch = [Put(f"/Task/{old}", {"resourceType": "Task", "id": old, "status": "requested"})]
            return [*patch, action] if action.kind == "FINISH" else [action]

        assert failed(play(episode, reopened)) == ["request A"]
