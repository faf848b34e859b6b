"""The judgement of live shifts refuses elements that change the meaning of a record."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fhir_gym import Episode, get_task
from fhir_gym.actions import Action
from fhir_gym.soundness.policy_runner import Policy, PolicyRunner, script
from fhir_gym.tasks import register
from fhir_gym.tasks.core import registry
from fhir_gym.tasks.packs.shift.live.plan import LiveParams
from fhir_gym.tasks.packs.shift.t20_live import LiveLevel3
from tests.tasks.packs.shift.live.playing import failed, handle_one_at_a_time, params_of, play, task_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fhir_gym.fhir import World
    from fhir_gym.types import Resource

SHORT = "Test/Judge-v0"
_UNKNOWN = [{"url": "urn:example:unknown", "valueBoolean": True}]


@pytest.fixture(scope="module", autouse=True)
def short_shift() -> Iterator[None]:
    values = {"minutes": 30, "policies": 20, "events": 0, "asking": 0}
    register(SHORT, LiveLevel3().with_dials("short", values), world="hospital-small")
    yield
    registry._registered.pop(SHORT, None)


def add_to_order(body: Resource) -> bool:
    """Add an element to a new order, appointment or registration; return whether it is one."""
    is_wanted = "id" not in body and body["resourceType"] != "Communication"
    body["implicitRules"] = "urn:example:rules"
    return is_wanted


def add_to_answer(body: Resource) -> bool:
    """Add an element to the answer to a question; return whether there is one."""
    outputs: list[Any] = body.get("output", [])
    for output in outputs:
        output["modifierExtension"] = _UNKNOWN
    return bool(outputs)


@pytest.mark.parametrize("add", [add_to_order, add_to_answer])
def test_an_element_that_changes_the_meaning_fails_its_request_alone(
    hospital: World, monkeypatch: pytest.MonkeyPatch, add: Any
) -> None:
    handle_one_at_a_time(monkeypatch)
    for variation in range(10):
        with Episode(SHORT, task="short", variation=variation, world=hospital, max_steps=500) as episode:
            episode.start()
            touched = play_with_addition(episode, add)
            if touched:
                assert touched in {request.id for request in params_of(episode).requests}
                assert failed(episode) == {touched}
                return
    pytest.fail("nothing was added")


def play_with_addition(episode: Episode, add: Any) -> str:
    """Play the reference solution with one addition; return the id of the Task for which the agent worked then."""
    current, touched = "", ""

    def change(action: Action) -> list[Action]:
        nonlocal current, touched
        current = task_of(action) or current
        if touched or action.kind not in ("POST", "PUT") or not action.body:
            return [action]
        body = json.loads(action.body)
        if not add(body):
            return [action]
        touched = current
        return [replace(action, body=json.dumps(body))]

    play(episode, change)
    return touched


@pytest.mark.slow
def test_the_check_plays_a_wrong_outcome_for_each_kind(hospital: World) -> None:
    task = get_task(SHORT, "short")
    variation = task.variation(2, hospital)
    assert isinstance(variation.params, LiveParams)
    with PolicyRunner(task, variation, hospital) as runner:
        wrong = list(task.near_misses(variation.params, runner.gold().actions))
        for name, actions in wrong:
            (run,) = runner.run(Policy("by hand", name, script(actions)))
            kind = name.rpartition(" ")[2]
            assert [check.name.rpartition(" ")[2] for check in run.verdict.failed] == [kind]
    assert len(wrong) == len({request.kind for request in variation.params.requests})
