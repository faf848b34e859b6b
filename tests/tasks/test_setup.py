"""A task's start state is already in stored form, because it is loaded without normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fhir_gym.errors import TaskError
from fhir_gym.fhir.serialization import is_normal
from fhir_gym.soundness import check_task
from fhir_gym.tasks import Task, get_task, task_keys
from fhir_gym.tasks.packs.appointment.t02_search_patient import SearchExistingPatient
from fhir_gym.types import Resource

if TYPE_CHECKING:
    from fhir_gym.fhir import World

PACKS = ("FHIRAgent/Appointment-v0", "FHIRAgent/GeneticTesting-v0", "FHIRAgent/MedAgentBench-v0")
PATIENT: Resource = {"resourceType": "Patient", "id": "p", "active": True, "birthDate": "1980-02-03"}


@pytest.mark.parametrize(
    ("resource", "normal"),
    [
        (PATIENT, True),
        ({"id": "p", "active": True, "resourceType": "Patient"}, True),
        ({"resourceType": "Patient", "birthDate": "1980-02-03", "active": True}, False),
        ({**PATIENT, "nickname": "Al"}, False),
        ({**PATIENT, "gender": ""}, False),
        ({**PATIENT, "gender": "x"}, False),
        ({**PATIENT, "name": []}, False),
        ({**PATIENT, "multipleBirthInteger": "2"}, False),
        ({"resourceType": "Person of no type"}, False),
    ],
)
def test_normal_form(resource: Resource, normal: bool) -> None:
    assert is_normal(resource) is normal


@pytest.mark.parametrize("env", PACKS)
def test_start_states_are_in_normal_form(env: str, hospital: World) -> None:
    for key in task_keys(env):
        task = get_task(env, key)
        setups = [task.variation(k, hospital).setup for k in (0, 1, 1_000)]
        assert all(is_normal(resource) for setup in setups for resource in setup), key


@pytest.mark.parametrize(("env", "key"), [("FHIRAgent/MedAgentBench-v0", "09"), ("FHIRAgent/Appointment-v0", "14a")])
def test_they_are_stored_as_if_they_were_read(env: str, key: str, hospital: World) -> None:
    variation = get_task(env, key).variation(1, hospital)
    with hospital.session() as session, hospital.session() as two:
        session.load(variation.setup)
        two.load(variation.setup, normal=True)
        assert session.changes()
        assert [str(change) for change in session.changes()] == [str(change) for change in two.changes()]
        for change in session.changes():
            url = f"/{change.resource_type}?_id={change.id}"
            assert session.get(url) == two.get(url)


class Nickname(SearchExistingPatient):
    """A task that gives a patient an element unknown to FHIR."""

    def setup(self, p: Any, world: World) -> list[Resource]:
        first, *rest = super().setup(p, world)
        return [{**first, "nickname": "Al"}, *rest]


def test_another_start_state_is_refused(tiny_world: World) -> None:
    task: Task[Any] = Nickname()
    task.pack = "FHIRAgent/Appointment-v0"
    with pytest.raises(TaskError, match="nickname"):
        check_task(task, tiny_world, range(1))
