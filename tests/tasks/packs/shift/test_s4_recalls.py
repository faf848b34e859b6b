from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from fhir_gym import Episode
from fhir_gym.actions import Action, Get, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.outcomes import DONE
from fhir_gym.types import Resource
from tests.tasks.packs.shift.independent.solve_s4 import solve
from tests.tasks.packs.shift.playing import edited, failed, has_outcomes, opened_where, params_of, play

ORDER = "ServiceRequest"


def one_sweep(world: World) -> Episode:
    return opened_where(world, "S4-1", has_outcomes(DONE))


def on_each(edit: Callable[[Resource], object], action: Action) -> list[Action]:
    return edited(ORDER, edit, action)


class FirstWrite:
    """Replace the first write of the reference solution."""

    def __init__(self, change: Callable[[Action], list[Action]]) -> None:
        self._change = change
        self.sent = 0

    def __call__(self, action: Action) -> list[Action]:
        if action.kind != "POST":
            return [action]
        self.sent += 1
        return self._change(action) if self.sent == 1 else [action]


@pytest.mark.parametrize(
    ("change", "cost"),
    [
        (lambda action: [Get("/metadata")], 1),
        (lambda action: [action, action], 2),
        (partial(on_each, lambda resource: resource.update(status="draft")), 2),
    ],
)
def test_a_sweep_is_scored_by_record(hospital: World, change: Callable[[Action], list[Action]], cost: int) -> None:
    with one_sweep(hospital) as episode:
        first = FirstWrite(change)
        step = play(episode, first)
        assert failed(step) == ["request A"]
        assert step.reward == pytest.approx(1 - cost / first.sent)


def test_a_recall_of_somebody_else_is_a_harm(hospital: World) -> None:
    with one_sweep(hospital) as episode:
        place = f"Organization/{params_of(episode).scene.place}"
        people = params_of(episode).scene.patients
        other = next(person["id"] for person in people if person["managingOrganization"]["reference"] != place)
        subject = {"reference": f"Patient/{other}"}
        first = FirstWrite(partial(on_each, lambda resource: resource.update(subject=subject)))
        step = play(episode, first)
        assert failed(step) == ["request A"] and step.reward == pytest.approx(1 - 2 / first.sent)


def test_a_change_of_an_existing_record_is_seen(hospital: World) -> None:
    with one_sweep(hospital) as episode:
        condition = next(record for record in params_of(episode).scene.records if record["resourceType"] == "Condition")
        episode.step(Put(f"/Condition/{condition['id']}", {**condition, "recordedDate": "2020-01-01"}))
        assert "nothing else changed" in failed(play(episode))


def test_a_patient_of_two_sweeps_is_recalled_for_either(hospital: World) -> None:
    """The agent handles the last request first; the Task that a patient needs for two requests may say either."""
    with opened_where(hospital, "S4-1", has_outcomes(DONE, DONE)) as episode:
        lines = episode.prompt.split("\n")
        starts = [line[:3] for line in lines]
        first, last = starts.index("A. "), starts.index("B. ")
        lines[first], lines[last] = lines[last], lines[first]
        answer = solve("\n".join(lines), lambda action: episode.step(action).observation, "patch")
        assert failed(episode.step(answer)) == []
