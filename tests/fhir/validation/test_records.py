"""All records of our worlds, all start states and all reference solutions are valid R4."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import pytest

from fhir_gym import worlds
from fhir_gym.fhir import World
from fhir_gym.fhir.serialization import loads
from fhir_gym.fhir.validation import validate
from fhir_gym.soundness.policy_runner import PolicyRunner
from fhir_gym.tasks import get_task, pack_ids, task_keys
from fhir_gym.types import Resource

PACKAGE = os.environ.get("FHIR_R4_PACKAGE", "")
TASKS = [(env, key) for env in pack_ids() for key in task_keys(env)]
IMPOSSIBLE = ("I4-", "day-")
"""Tasks about records that cannot be right, such as an encounter that ends before it starts."""


def invalid(records: Iterable[Resource]) -> list[str]:
    return [
        f"{record['resourceType']}/{record.get('id')} {issue.path}: {issue.text}"
        for record in records
        for issue in validate(record).errors
    ]


def test_every_tenth_record_of_the_hospital_is_valid(hospital: World) -> None:
    assert invalid(loads(body) for body in islice(hospital.resources(), 0, None, 10)) == []


@pytest.mark.parametrize(
    ("name", "every"),
    [
        pytest.param("hospital-small", 1, marks=pytest.mark.slow),
        pytest.param("cohort-mini", 10, marks=pytest.mark.slow),
        pytest.param("cohort-mini", 1, marks=pytest.mark.exhaustive),
        pytest.param("cohort", 1, marks=pytest.mark.exhaustive),
    ],
)
def test_records_of_worlds_are_valid(name: str, every: int) -> None:
    with worlds.load(name) as world:
        assert invalid(loads(body) for body in islice(world.resources(), 0, None, every)) == []


@pytest.mark.slow
@pytest.mark.skipif(not PACKAGE, reason="FHIR_R4_PACKAGE does not name the official package")
@pytest.mark.parametrize("kind", ["CodeSystem", "ConceptMap", "SearchParameter", "ValueSet"])
def test_records_of_hl7_are_valid(kind: str) -> None:
    """Except for HL7's own mistakes.

    Comments on concepts of DICOM are where their definition does not allow them; search parameters of extensions
    name no base, and one has an id of 67 characters.
    """
    from scripts.derive_definitions import read_package

    mistakes = ("valueset-concept-comments", "SearchParameter.base: minimum", "Too long (67 chars)")
    records = read_package(Path(PACKAGE)).by_kind[kind].values()
    assert [text for text in invalid(records) if not any(mistake in text for mistake in mistakes)] == []


@pytest.mark.parametrize(
    ("env", "key", "numbers"),
    [
        # The records of day-4 are of the kinds of day-3.
        *(pytest.param(*task, (1,), marks=pytest.mark.slow) for task in TASKS if task[1] != "day-4"),
        *(pytest.param(*task, (*range(10), *range(1_000, 1_010)), marks=pytest.mark.exhaustive) for task in TASKS),
    ],
)
def test_start_states_and_solutions_are_valid(
    env: str, key: str, numbers: tuple[int, ...], own_world: Callable[[str], World]
) -> None:
    task, world = get_task(env, key), own_world(env)
    for number in numbers:
        variation = task.variation(number, world)
        found = invalid(variation.setup)
        if key.startswith(IMPOSSIBLE):
            assert [text for text in found if "per-1" not in text] == []
            validation = "hapi"
        else:
            assert found == []
            validation = "strict"
        with PolicyRunner(task, variation, world, validation=validation) as runner:
            assert runner.gold().verdict.success
