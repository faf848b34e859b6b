from __future__ import annotations

import pytest

from fhir_gym import Episode, tasks
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.static_task import ShiftParams, StaticShift
from tests.tasks.packs.shift.playing import ENV


def test_levels_select_tasks(hospital: World) -> None:
    assert {task.level for task in tasks.task_set(ENV).values()} == {1, 2, 3, 4}
    with Episode(ENV, task="Q1-2", world=hospital, level=2) as episode:
        assert {task.level for task in episode.config.task_set().values()} == {2}
    with pytest.raises(Exception, match="levels 1, 2, 3, 4, not level 5"):
        Episode(ENV, task="Q1-1", world=hospital, level=5)
    with pytest.raises(Exception, match="Appointment-v0 has no levels"):
        Episode("FHIRAgent/Appointment-v0", task="01", world=hospital, level=1)


def test_counterfactual_slots_suit_the_patient(hospital: World) -> None:
    found = 0
    for variation in range(4):
        task = tasks.get_task(ENV, "Q1-1")
        assert isinstance(task, StaticShift)
        params = task.variation(variation, hospital).params
        assert isinstance(params, ShiftParams)
        for request in params.requests:
            slots = task.requests.counterfactuals(request, params.scene)
            if len(request.patients) == 1:
                wanted = [doctor for doctor in params.scene.practitioners if request.ask.wants(doctor)]
                assert len(slots) == len(wanted), request.ask
                found += len(slots)
    assert found
