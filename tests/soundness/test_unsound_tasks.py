"""The harness detects unsound tasks, unneeded checks and common answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from fhir_gym.actions import Action, Finish, Get, parse
from fhir_gym.soundness import SoundnessReport, TaskReport, check_task
from fhir_gym.soundness.policy_runner import Policy, PolicyRunner, script
from fhir_gym.soundness.task_check import VerdictChecker
from fhir_gym.tasks import Check, ExpectedChange, FinishedEpisode, Gold, Task, get_task, task_keys
from fhir_gym.tasks.authoring.bundles import entries
from fhir_gym.tasks.grading.answers import CountAnswer
from fhir_gym.tasks.grading.checks import equal
from fhir_gym.tasks.packs.appointment.t01_new_patient import NewPatient
from fhir_gym.tasks.packs.appointment.t02_search_patient import SearchExistingPatient, SearchNonexistentPatient
from fhir_gym.tasks.packs.appointment.t11_find_slots import EarliestSlot
from fhir_gym.tasks.packs.appointment.t14_make_appointment import MakeAppointment
from fhir_gym.tasks.packs.appointment.t15_cancel_appointment import CancelAppointment
from tests.soundness.checking import problems, unnoticed

if TYPE_CHECKING:
    from fhir_gym.fhir import World
    from fhir_gym.types import Resource

PACK = "FHIRAgent/Appointment-v0"
TASKS = [(env, key) for env in (PACK, "FHIRAgent/GeneticTesting-v0") for key in task_keys(env)]


class AnyAnswer(NewPatient):
    """Task 01 as published: the answer is not checked."""

    def checks(self, p: Any, end: FinishedEpisode) -> Iterator[Check]:
        yield from (check for check in super().checks(p, end) if check.name != "answer")


class NoPhone(NewPatient):
    def checks(self, p: Any, end: FinishedEpisode) -> Iterator[Check]:
        yield from (check for check in super().checks(p, end) if check.name != "phone")


class FirstNameOnly(NewPatient):
    """A task with a check that refuses a right solution: the family name must come first in the body."""

    def checks(self, p: Any, end: FinishedEpisode) -> Iterator[Check]:
        yield from super().checks(p, end)
        bodies = [request.action.body or "" for request in end.requests]
        yield Check(name="key order", passed=all(b.find("name") < b.find("birthDate") for b in bodies if b))


class NoEvidence(SearchNonexistentPatient):
    """Task 02b as published: the answer "none" suffices without a search."""

    def requires_evidence(self, p: Any) -> bool:
        return False


class AnySlot(EarliestSlot):
    def checks(self, p: Any, end: FinishedEpisode) -> Iterator[Check]:
        (answer,) = end.answer_ids("Slot")
        yield Check(name="answer", passed=end.after.read("Slot", answer or "") is not None)


class OwnAnswer(CancelAppointment):
    """Task 15a as published: the answer is compared with itself."""

    def checks(self, p: Any, end: FinishedEpisode) -> Iterator[Check]:
        yield from (check for check in super().checks(p, end) if check.name != "answer")


class AnyAppointment(CancelAppointment):
    """A task that accepts any cancelled appointment and any freed slot."""

    def expected_changes(self, p: Any) -> tuple[ExpectedChange, ...]:
        return (ExpectedChange("updated", "Appointment"), ExpectedChange("updated", "Slot"))

    def checks(self, p: Any, end: FinishedEpisode) -> Iterator[Check]:
        statuses = {change.after.get("status") for change in end.changes if change.after}
        yield Check(name="cancelled", passed={"cancelled", "free"} <= statuses)


class Twice(NewPatient):
    def expected_changes(self, p: Any) -> tuple[ExpectedChange, ...]:
        return (ExpectedChange("created", "Patient"), ExpectedChange("created", "Patient"))


class GuessedPhone(SearchExistingPatient):
    """A task that accepts the first word of the prompt as the answer."""

    def checks(self, p: Any, end: FinishedEpisode) -> Iterator[Check]:
        (check,) = super().checks(p, end)
        yield check.model_copy(update={"passed": check.passed or end.answer == ["Present"]})


class RefusedQuestions(NewPatient):
    """A task that says that its new patients are questions, but refuses a second one."""

    def is_question(self, resource: Resource) -> bool:
        return True


class SlotMayChange(MakeAppointment):
    def checks(self, p: Any, end: FinishedEpisode) -> Iterator[Check]:
        yield from (check for check in super().checks(p, end) if check.name != "rest of slot unchanged")


class Tangled(NewPatient):
    """A task with a check that never fails alone."""

    def checks(self, p: Any, end: FinishedEpisode) -> Iterator[Check]:
        checks = list(super().checks(p, end))
        yield from checks
        by_name = {check.name: check.passed for check in checks}
        yield Check(name="name again", passed=by_name["name"])


class WrongGold(SearchExistingPatient):
    def gold(self, p: Any) -> Gold:
        yield Finish([next(patient.id for patient in p.scene.patients if patient.id != p.patient.id)])


class SlowGold(SearchExistingPatient):
    gold_steps = 1


@pytest.mark.parametrize(
    ("broken", "group"),
    [
        (AnyAnswer, "wrong answer"),
        (NoPhone, "missing value"),
        (FirstNameOnly, "equivalent"),
        (NoEvidence, "idle"),
        (AnySlot, "ignores decoys"),
        (OwnAnswer, "wrong answer"),
        (SlotMayChange, "missing value"),
        (AnyAppointment, "ignores decoys"),
        (Twice, "twice"),
        (RefusedQuestions, "equivalent"),
        (GuessedPhone, "constant answer"),
        (WrongGold, "gold"),
        (SlowGold, "gold"),
    ],
)
def test_a_broken_task_is_caught(broken: type[Task[Any]], group: str, tiny_world: World) -> None:
    task = broken()
    task.pack = PACK
    report = check_task(task, tiny_world, range(1))
    assert not report.sound
    assert group in {failure.group for failure in report.failures}


@pytest.mark.parametrize("key", ["01", "02b"])
def test_every_check_is_needed(key: str, tiny_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unnoticed(get_task(PACK, key), tiny_world, monkeypatch, range(1)) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize(("env", "key"), TASKS)
def test_every_check_of_every_task_is_needed(
    env: str, key: str, hospital: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert unnoticed(get_task(env, key), hospital, monkeypatch, range(3)) == []


def test_an_unneeded_check_is_named(tiny_world: World) -> None:
    task = Tangled()
    task.pack = PACK
    report = check_task(task, tiny_world, range(2))
    assert set(report.uncovered) == {"name", "name again"}
    assert not report.sound


def test_a_failure_can_be_replayed(tiny_world: World) -> None:
    task = NoPhone()
    task.pack = PACK
    failure = next(
        f for f in check_task(task, tiny_world, range(1)).failures if "phone" in f.policy or "telecom" in f.policy
    )
    actions = [parse(text) for text in failure.actions]
    assert all(isinstance(action, Action) for action in actions)
    with PolicyRunner(task, task.variation(failure.variation, tiny_world), tiny_world) as runner:
        played = script([action for action in actions if isinstance(action, Action)])
        (run,) = runner.run(Policy("by hand", "again", played))
    assert run.verdict.success


class HowMany(SearchExistingPatient):
    """A task whose answer is the same number in all variations."""

    key = "count"
    answer: ClassVar[Any] = CountAnswer()

    def gold(self, p: Any) -> Gold:
        name = {"family:exact": p.patient.family, "given:exact": p.patient.given}
        bundle = yield Get("/Patient", {**name, "birthdate": p.patient.birth_date})
        yield Finish([2 + len(list(entries(bundle)))])

    def checks(self, p: Any, end: FinishedEpisode) -> Iterator[Check]:
        yield equal("count", end.answer_count(), 3)


def test_a_number_may_be_guessed_only_rarely(tiny_world: World) -> None:
    task = HowMany()
    task.pack = PACK
    report = check_task(task, tiny_world, range(3))
    assert report.sound, problems(report)
    assert report.constants == {"answers [3]": 3}
    assert report.common_answer == 1.0
    everything = SoundnessReport("tiny", (report,), whole=(PACK,))
    assert everything.best_constant(PACK) == ("answers [3]", 1.0)
    assert not everything.sound
    assert "succeeds in 100.0%" in everything.problems[0]
    assert SoundnessReport("tiny", (report,)).sound


def test_a_repeated_answer_is_noticed() -> None:
    report = TaskReport(PACK, "02a", variations=9, gold_steps=2, sufficient={'["e12"]': 3, '["e13"]': 1, "[4]": 5})
    assert report.problems == ['3 variations have the answer ["e12"]']


@pytest.mark.slow
def test_outcomes_by_letter_may_be_repeated(hospital: World) -> None:
    task = get_task("FHIRAgent/Shift-v0", "P4-1")
    checker = VerdictChecker(task)
    for number in (0, 1, 3):
        with PolicyRunner(task, task.variation(number, hospital), hospital) as runner:
            checker.gold(number, runner.gold())
    assert checker.report.answers == {'["A: done"]': 3} and not checker.report.sufficient


def test_a_solution_much_longer_than_the_published_one_is_noticed() -> None:
    assert TaskReport(PACK, "02a", gold_steps=3).sound
    problem = "the solution needs 3 requests, the published task 1 to 1"
    assert TaskReport(PACK, "02a", gold_steps=4).problems == [problem]
    assert TaskReport("FHIRAgent/MedAgentBench-v0", "02", gold_steps=9).sound


class AsGood(SearchExistingPatient):
    """A task that declares every decoy as an equally right alternative."""

    def alternatives(self, p: Any) -> frozenset[str]:
        return frozenset(f"Patient/{patient.id}" for patient in p.scene.patients)


def test_alternatives_are_not_decoys(tiny_world: World) -> None:
    assert check_task(get_task(PACK, "02a"), tiny_world, range(1)).tallies["ignores decoys"].runs > 7
    task = AsGood()
    task.pack = PACK
    assert "ignores decoys" not in check_task(task, tiny_world, range(1)).tallies
