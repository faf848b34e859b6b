"""All tasks are sound; and the harness that says so notices when one is not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fhir_gym.actions import Action, Finish, parse
from fhir_gym.tasks import Check, EndState, Fhir, Gold, Task, get_task, task_keys
from fhir_gym.tasks.appointment.t01_new_patient import NewPatient
from fhir_gym.tasks.appointment.t02_search_patient import SearchExistingPatient, SearchNonexistentPatient
from fhir_gym.tasks.appointment.t11a_earliest_slot import EarliestSlot
from fhir_gym.tasks.appointment.t14a_make_appointment import MakeAppointment
from fhir_gym.tasks.appointment.t15a_cancel_appointment import CancelAppointment
from fhir_gym.tasks.soundness import TaskReport, check, check_task
from fhir_gym.tasks.soundness.arena import Arena, Policy, script

if TYPE_CHECKING:
    from fhir_gym.fhir import World

PACK = "FHIRAgent/Appointment-v0"
KEYS = task_keys(PACK)


def problems(report: TaskReport) -> str:
    shown = [f"{f.task}/{f.variation} {f.group}: {f.policy}: {f.problem}\n{f.explanation}" for f in report.failures[:5]]
    return "\n".join([*shown, f"uncovered checks: {report.uncovered}"])


@pytest.mark.parametrize("world_name", ["hospital", "tiny_world"])
@pytest.mark.parametrize("key", KEYS)
def test_tasks_are_sound(key: str, world_name: str, request: pytest.FixtureRequest) -> None:
    world: World = request.getfixturevalue(world_name)
    report = check_task(get_task(PACK, key), world, [*range(5), *range(1_000, 1_005)])
    assert report.sound, problems(report)
    assert report.tallies["gold"].passed == report.variations == 10
    for group in ("equivalent", "idle", "constant answer", "always create", "other variation", "near miss"):
        assert report.tallies[group].runs > 0


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_many_variations_are_sound(key: str, hospital: World) -> None:
    report = check_task(get_task(PACK, key), hospital, range(200))
    assert report.sound, problems(report)


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_tasks_are_sound_on_real_patients(key: str, shared_dir: Any, tmp_path: Any) -> None:
    from fhir_gym import worlds

    with worlds.import_ndjson(shared_dir / "medagentbench", out=tmp_path / "real.world") as world:
        report = check_task(get_task(PACK, key), world, range(20))
    assert report.sound, problems(report)


@pytest.mark.parametrize("key", KEYS)
def test_setup_and_gold_are_strictly_valid(key: str, hospital: World) -> None:
    task = get_task(PACK, key)
    for k in range(3):
        variation = task.variation(k, hospital)
        with hospital.session(validation="strict") as session:
            session.load(variation.setup)
        with Arena(task, variation, hospital, validation="strict") as arena:
            assert arena.gold().verdict.success


@pytest.mark.parametrize("key", KEYS)
def test_gold_needs_what_the_server_answers(key: str, hospital: World) -> None:
    """Gold may use the prompt and the answers only: where nothing is found, it knows no id."""
    task = get_task(PACK, key)
    variation = task.variation(0, hospital)
    known = set(re.findall(r"[A-Za-z0-9-]+", variation.prompt))
    actions = task.gold(variation.params, Fhir())
    action = next(actions)
    hidden = {resource["id"] for resource in variation.setup} - known
    assert not {id for id in hidden if id in action.text()}


def test_answers_differ_between_variations(hospital: World) -> None:
    answers = []
    for k in range(60):
        task = get_task(PACK, "02a")
        answers.append(task.variation(k, hospital).params.model_dump()["person"]["id"])
    assert len(set(answers)) == len(answers)


class AnyAnswer(NewPatient):
    """Task 01 as its authors had it: the answer is not looked at."""

    def checks(self, p: Any, end: EndState) -> Iterator[Check]:
        yield from (check for check in super().checks(p, end) if check.name != "answer")


class NoPhone(NewPatient):
    def checks(self, p: Any, end: EndState) -> Iterator[Check]:
        yield from (check for check in super().checks(p, end) if check.name != "phone")


class FirstNameOnly(NewPatient):
    """Refuses what is right: it wants the family name to come first in the body."""

    def checks(self, p: Any, end: EndState) -> Iterator[Check]:
        yield from super().checks(p, end)
        bodies = [one.action.body or "" for one in end.requests]
        yield Check(name="key order", passed=all(b.find("name") < b.find("birthDate") for b in bodies if b))


class NoEvidence(SearchNonexistentPatient):
    """Task 02b as its authors had it: saying there is none suffices."""

    def must_look(self, p: Any) -> bool:
        return False


class AnySlot(EarliestSlot):
    def checks(self, p: Any, end: EndState) -> Iterator[Check]:
        (answer,) = end.answer_ids("Slot")
        yield Check(name="answer", passed=end.after.read("Slot", answer or "") is not None)


class OwnAnswer(CancelAppointment):
    """Task 15a as its authors had it: the answer is compared with itself."""

    def checks(self, p: Any, end: EndState) -> Iterator[Check]:
        yield from (check for check in super().checks(p, end) if check.name != "answer")


class SlotMayChange(MakeAppointment):
    def checks(self, p: Any, end: EndState) -> Iterator[Check]:
        yield from (check for check in super().checks(p, end) if check.name != "rest of the slot unchanged")


class Tangled(NewPatient):
    """A check that can never be the only one to fail."""

    def checks(self, p: Any, end: EndState) -> Iterator[Check]:
        checks = list(super().checks(p, end))
        yield from checks
        by_name = {check.name: check.passed for check in checks}
        yield Check(name="name again", passed=by_name["name"])


class WrongGold(SearchExistingPatient):
    def gold(self, p: Any, fhir: Fhir) -> Gold:
        yield Finish([p.decoys[0].id])


class SlowGold(SearchExistingPatient):
    gold_steps = 1


@pytest.mark.parametrize(
    ("broken", "group"),
    [
        (AnyAnswer, "near miss"),
        (NoPhone, "near miss"),
        (FirstNameOnly, "equivalent"),
        (NoEvidence, "idle"),
        (AnySlot, "near miss"),
        (OwnAnswer, "near miss"),
        (SlotMayChange, "near miss"),
        (WrongGold, "gold"),
        (SlowGold, "gold"),
    ],
)
def test_a_broken_task_is_caught(broken: type[Task[Any]], group: str, tiny_world: World) -> None:
    task = broken()
    task.pack = PACK
    report = check_task(task, tiny_world, range(2))
    assert not report.sound
    assert group in {failure.group for failure in report.failures}


def test_a_check_nobody_needs_is_named(tiny_world: World) -> None:
    task = Tangled()
    task.pack = PACK
    report = check_task(task, tiny_world, range(2))
    assert set(report.uncovered) == {"name", "name again"}
    assert not report.sound


def test_a_failure_can_be_played_again(tiny_world: World) -> None:
    task = NoPhone()
    task.pack = PACK
    failure = next(
        f for f in check_task(task, tiny_world, range(1)).failures if "phone" in f.policy or "telecom" in f.policy
    )
    actions = [parse(text) for text in failure.actions]
    assert all(isinstance(action, Action) for action in actions)
    with Arena(task, task.variation(failure.variation, tiny_world), tiny_world) as arena:
        played = script([action for action in actions if isinstance(action, Action)])
        (run,) = arena.run(Policy("near miss", "again", played))
    assert run.verdict.success


def test_report_as_table_and_json(tiny_world: World) -> None:
    seen: list[tuple[str, int, int]] = []
    report = check(tiny_world, [PACK], tasks=["02a", "02b"], variations=2, progress=lambda *step: seen.append(step))
    assert report.sound
    assert seen[-1] == (f"{PACK} 02b", 4, 4)
    assert all(len(row) == len(report.columns) for row in report.rows())
    assert [row[1] for row in report.rows()] == ["02a", "02b"]
    data = json.loads(json.dumps(report.to_json()))
    assert data["sound"] is True
    assert data["tasks"][0]["tallies"]["gold"] == {"runs": 2, "passed": 2}
    assert not replace(report, tasks=(TaskReport(PACK, "x", checks=["never needed"]),)).sound
