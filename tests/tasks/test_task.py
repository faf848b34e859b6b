from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fhir_gym.errors import ArgumentError, TaskError, UnknownNameError
from fhir_gym.tasks import get_task, pack_ids, register, split_numbers, split_of, task_keys
from fhir_gym.tasks.core.task import Task
from fhir_gym.types import Resource

from .fakes import Greeting, GreetingParams, fake_world

PACK = "FHIRAgent/Appointment-v0"
TASKS = [get_task(PACK, key) for key in task_keys(PACK)]
KEYS = ("01", "02a", "02b", "11a", "14a", "15a")


def test_splits() -> None:
    assert (split_of(0), split_of(999), split_of(1_000)) == ("train", "train", "test")
    assert split_numbers("train") == range(1_000)
    assert split_numbers("test") == range(1_000, 2_000)
    assert split_numbers(None) == range(2_000)
    with pytest.raises(UnknownNameError, match="train"):
        split_numbers("trian")


def test_the_pack_holds_its_tasks_in_order() -> None:
    assert PACK in pack_ids()
    assert [key for key in task_keys(PACK) if key in KEYS] == list(KEYS)


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=PACK):
        task_keys("FHIRAgent/Apointment-v0")
    with pytest.raises(UnknownNameError, match="02a"):
        get_task(PACK, "02")


def test_a_task_belongs_to_one_pack_and_a_key_to_one_task() -> None:
    with pytest.raises(TaskError, match="belongs"):
        register("Other/Pack-v0", get_task(PACK, "01"))

    class Impostor(Greeting):
        key = "01"
        pack = ""

    with pytest.raises(TaskError, match="already"):
        register(PACK, Impostor())


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.key)
def test_metadata_is_complete(task: Task[Any]) -> None:
    assert task.title and task.category and task.answer_instructions and task.__doc__
    assert task.difficulty in (1, 2, 3)
    assert len(task.prompts) >= 3
    assert task.required_tools and task.required_resources
    assert task.gold_steps <= 15


def test_params_are_frozen_and_closed() -> None:
    params = GreetingParams(id="1", text="hello")
    with pytest.raises(ValidationError):
        params.__setattr__("text", "bye")
    with pytest.raises(ValidationError):
        GreetingParams.model_validate({"id": "1", "text": "hello", "more": 1})


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.key)
def test_a_variation_depends_on_its_number_and_the_world_only(task: Task[Any]) -> None:
    world = fake_world()
    assert task.variation(3, world) == task.variation(3, fake_world())
    assert task.variation(3, world) != task.variation(4, world)
    assert task.variation(3, world) != task.variation(3, fake_world(content_hash="1" * 64))
    with pytest.raises(ArgumentError, match="-1"):
        task.variation(-1, world)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.key)
def test_variations_use_every_phrasing_and_fill_it(task: Task[Any]) -> None:
    variations = [task.variation(k, fake_world()) for k in range(24)]
    assert {variation.phrasing for variation in variations} == set(range(len(task.prompts)))
    for variation in variations:
        assert variation.prompt.startswith("Present: 2023-11-13T10:15:00Z, a Monday; all times are UTC.")
        assert "{" not in variation.prompt
        assert "FINISH([" in variation.prompt


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.key)
@pytest.mark.parametrize("now", ["2023-11-13T10:15:00+00:00", "2024-02-29T23:59:59+00:00", "2023-12-30T00:00:00+00:00"])
def test_setup_ids_are_new_and_unique(task: Task[Any], now: str) -> None:
    world = fake_world(now=datetime.fromisoformat(now).astimezone(UTC))
    for k in range(3):
        references = [(resource["resourceType"], resource["id"]) for resource in task.variation(k, world).setup]
        assert len(set(references)) == len(references)
        assert not any(world.read(kind, id) for kind, id in references)


@pytest.mark.parametrize("key", ["02a", "03", "14a"])
def test_the_order_of_creation_reveals_nothing(key: str) -> None:
    """Resources of a start state are created in an order that is independent of the order in `setup`."""
    task, places = get_task(PACK, key), set()
    for k in range(30):
        variation = task.variation(k, fake_world())
        first = task.setup(variation.params, fake_world())[0]
        places.add([_reference(resource) for resource in variation.setup].index(_reference(first)))
    assert len(places) >= 4


def _reference(resource: Resource) -> tuple[str, str]:
    return resource["resourceType"], resource["id"]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.key)
def test_ids_are_not_shared_between_variations(task: Task[Any]) -> None:
    seen = [resource["id"] for k in range(10) for resource in task.variation(k, fake_world()).setup]
    assert len(set(seen)) > 0.95 * len(seen)


def test_awkward_names_occur() -> None:
    task = get_task(PACK, "02a")
    names = " ".join(str(task.variation(k, fake_world()).params.model_dump()["patient"]["family"]) for k in range(200))
    for character in "'-é":
        assert character in names
    assert any(ord(character) > 0xFF for character in names)


_DUMP = """
import json, sys
from tests.tasks.fakes import fake_world
from fhir_gym.tasks import get_task, task_keys
pack = "FHIRAgent/Appointment-v0"
for key in task_keys(pack):
    for k in (0, 7, 1000):
        v = get_task(pack, key).variation(k, fake_world())
        values = v.params.model_dump(mode="json")
        print(json.dumps([v.task_key, v.number, v.split, v.phrasing, values, v.prompt, v.setup]))
"""


@pytest.mark.slow
def test_the_same_bytes_in_any_process() -> None:
    root = Path(__file__).resolve().parent.parent.parent
    outputs = []
    for seed, zone, locale in (("1", "UTC", "C"), ("2", "Asia/Kathmandu", "C.UTF-8")):
        env = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": locale, "PYTHONPATH": str(root)}
        run = subprocess.run([sys.executable, "-c", _DUMP], env=env, cwd=root, capture_output=True, check=True)
        outputs.append(run.stdout)
    assert outputs[0] == outputs[1]
    assert len([json.loads(line) for line in outputs[0].splitlines()]) == 3 * len(TASKS)


def test_ids_of_new_resources_start_differently_in_each_variation() -> None:
    from tests.tasks.fakes import Greeting

    world = fake_world()
    variations = [Greeting().variation(k, world) for k in range(100)]
    assert len({variation.next_id for variation in variations}) > 95
    for variation in variations:
        assert world.manifest.next_id < variation.next_id < 12_000_000


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "task class Incomplete must define key, title, category"),
        ({"gold_steps": 0}, "gold_steps of task class Incomplete must be a positive integer, not 0"),
        ({"prompts": "Say it."}, "prompts of task class Incomplete must be a tuple of at least one string"),
        ({"prompts": ()}, "prompts of task class Incomplete"),
        ({"kind": "search"}, "kind of task class Incomplete must be 'query' or 'action', not 'search'"),
        ({"difficulty": 4}, "difficulty of task class Incomplete must be 1, 2 or 3"),
        ({"required_tools": ("read",)}, "required_tools of task class Incomplete must be a tuple of tuples"),
        ({"answer": "an id"}, "answer of task class Incomplete must be an answer form"),
    ],
)
def test_a_task_class_without_valid_attributes_is_refused(attributes: dict[str, object], message: str) -> None:
    methods = {name: value for name, value in vars(Greeting).items() if callable(value)}
    bases = (Greeting,) if attributes else (Task,)
    with pytest.raises(TaskError, match=message):
        type("Incomplete", bases, methods | attributes)


def test_base_classes_of_tasks_may_lack_attributes() -> None:
    class Base(Task[GreetingParams], abstract=True):
        key = "base"

    type("_Base", (Greeting,), {"prompts": ()})
    type("Unfinished", (Task,), {"key": "unfinished"})
    methods = {name: value for name, value in vars(Greeting).items() if callable(value)}
    with pytest.raises(TaskError, match="task class Derived must define title"):
        type("Derived", (Base,), methods)
