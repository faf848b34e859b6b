"""All tasks are sound, and the harness is fair to honest agents."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fhir_gym.actions import Finish, Get, Put
from fhir_gym.errors import UnknownNameError
from fhir_gym.soundness import TaskReport, by_world, check, check_task, merge_reports
from fhir_gym.soundness.policy_groups import Group
from fhir_gym.soundness.policy_runner import Policy, PolicyRunner, script
from fhir_gym.soundness.task_check import VerdictChecker
from fhir_gym.tasks import Gold, TimedRequest, get_task, pack_ids, task_keys
from fhir_gym.tasks.authoring.bundles import entries
from fhir_gym.tasks.packs.appointment.t02_search_patient import SearchExistingPatient
from tests.soundness.checking import problems

if TYPE_CHECKING:
    from fhir_gym.fhir import World

PACK = "FHIRAgent/Appointment-v0"
PACKS = (PACK, "FHIRAgent/GeneticTesting-v0")
TASKS = [(env, key) for env in PACKS for key in task_keys(env)]
ALWAYS: tuple[Group, ...] = (
    "equivalent",
    "idle",
    "constant answer",
    "always create",
    "other variation",
    "wrong answer",
)


@pytest.mark.parametrize(("env", "key"), TASKS)
def test_tasks_are_sound(env: str, key: str, hospital: World) -> None:
    """This test covers one variation per task; slow tests cover more."""
    report = check_task(get_task(env, key), hospital, [1_000])
    assert not report.failures, problems(report)
    assert report.tallies["gold"].passed == report.variations == 1
    assert report.gold_steps <= 15
    assert all(report.tallies[group].runs > 0 for group in ALWAYS)
    if report.kind == "action":
        assert report.constants == {}


@pytest.mark.slow
@pytest.mark.parametrize(("env", "key"), TASKS)
def test_tasks_are_sound_in_a_small_world(env: str, key: str, tiny_world: World) -> None:
    report = check_task(get_task(env, key), tiny_world, [1])
    assert not report.failures, problems(report)
    assert report.tallies["gold"].passed == 1


@pytest.mark.slow
def test_two_variations_are_sound_and_every_check_is_needed(hospital: World) -> None:
    report = check(hospital, PACKS, variations=[0, 1_001], workers=2)
    assert report.whole == PACKS
    assert report.sound, "\n".join([*report.problems, *(problems(task) for task in report.tasks if not task.sound)])
    assert all(report.best_constant(env)[1] <= 0.01 for env in PACKS)


@pytest.mark.exhaustive
def test_many_variations_are_sound(hospital: World) -> None:
    report = check(hospital, PACKS, variations=[*range(200), *range(1_000, 1_100)], workers=2)
    assert report.sound, "\n".join([*report.problems, *(problems(task) for task in report.tasks if not task.sound)])


@pytest.mark.parametrize(
    "every", [pytest.param(3, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.exhaustive)]
)
def test_tasks_are_sound_on_real_patients(shared_dir: Any, tmp_path: Any, every: int) -> None:
    from fhir_gym import worlds

    keys = [key for _, key in TASKS[::every]]
    with worlds.import_files(shared_dir / "medagentbench", out=tmp_path / "real.world") as world:
        report = check(world, PACKS, tasks=keys, variations=[1_000], workers=2)
    failed = [problems(task) for task in report.tasks if task.failures]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize(("env", "key"), TASKS)
def test_setup_and_gold_are_strictly_valid(env: str, key: str, hospital: World) -> None:
    task = get_task(env, key)
    for k in (0, 1_001):
        variation = task.variation(k, hospital)
        with hospital.session(validation="strict") as session:
            session.load(variation.setup)
        with PolicyRunner(task, variation, hospital, validation="strict") as runner:
            assert runner.gold().verdict.success


@pytest.mark.parametrize(("env", "key"), TASKS)
def test_gold_takes_ids_only_from_prompt_and_responses(env: str, key: str, hospital: World) -> None:
    """The reference solution takes ids only from the prompt and responses: if searches find nothing, it has no id."""
    task = get_task(env, key)
    variation = task.variation(0, hospital)
    known = set(re.findall(r"[A-Za-z0-9-]+", variation.prompt))
    actions = task.gold(variation.params)
    action = next(actions)
    hidden = {resource["id"] for resource in variation.setup} - known
    assert not {id for id in hidden if id in action.text()}


def test_answers_differ_between_variations(hospital: World) -> None:
    answers = []
    for k in range(60):
        task = get_task(PACK, "02a")
        answers.append(task.variation(k, hospital).params.model_dump()["patient"]["id"])
    assert len(set(answers)) == len(answers)


class ManyIds(SearchExistingPatient):
    """A task whose solution reads all found patients at once; a hasty search finds too many for one URL."""

    gold_steps = 3

    def gold(self, p: Any) -> Gold:
        name = {"family:exact": p.patient.family, "given:exact": p.patient.given}
        bundle = yield Get("/Patient", {**name, "birthdate": p.patient.birth_date})
        ids = [str(entry["id"]) for entry in entries(bundle)]
        yield Get(f"/Patient?_id={','.join(ids if len(ids) == 1 else ids * 1_000)}")
        yield Finish([*ids[:1]])


def test_a_hasty_search_that_finds_too_many_records_is_a_failed_episode(tiny_world: World) -> None:
    task = ManyIds()
    task.pack = PACK
    report = check_task(task, tiny_world, range(1))
    assert not report.failures, problems(report)
    assert 0 < report.tallies["hasty search"].passed < report.tallies["hasty search"].runs


def test_a_wrong_write_may_pass_only_if_a_later_write_replaces_it(tiny_world: World) -> None:
    task = get_task(PACK, "15a")
    checker = VerdictChecker(task)
    with PolicyRunner(task, task.variation(0, tiny_world), tiny_world) as runner:
        gold = runner.gold()
        checker.gold(0, gold)
        *actions, finish = gold.actions
        place = next(number for number, action in enumerate(actions) if action.kind == "PUT")
        body = json.loads(actions[place].body or "")
        wrong = replace(actions[place], body=json.dumps(body | {"comment": "Not wanted"}))
        policy = Policy("wrong value", "replaced", script([*actions[:place], wrong, *actions[place:], finish]))
        (run,) = runner.run(policy)
        checker.policy(0, policy, run)
        assert run.verdict.success and not checker.report.failures
        other = replace(run, end=replace(run.end, changes=run.end.changes[1:]))
        checker.policy(0, policy, other)
    assert [failure.problem for failure in checker.report.failures] == ["accepted"]
    tally = checker.report.tallies["wrong value"]
    assert (tally.runs, tally.passed, tally.rightly) == (2, 2, 1)


@pytest.mark.parametrize("group", ["wrong value", "ignores decoys"])
def test_wrong_behaviour_may_pass_if_other_people_react_to_it(tiny_world: World, group: Group) -> None:
    task = get_task(PACK, "15a")
    checker = VerdictChecker(task)
    with PolicyRunner(task, task.variation(0, tiny_world), tiny_world) as runner:
        gold = runner.gold()
        checker.gold(0, gold)
        last = gold.end.requests[-1]
        withdrawn = TimedRequest(
            replace(last, action=Put("/Task/1", {"resourceType": "Task"})), tiny_world.now, "withdrawn"
        )
        policy = Policy(group, "another end", script(gold.actions[-1:]))
        answered = replace(gold, actions=gold.actions[:1], end=replace(gold.end, answer=["other"], changes=()))
        reacted = replace(answered, end=replace(answered.end, timeline=(withdrawn,)))
        checker.policy(0, policy, reacted)
        assert not checker.report.failures
        checker.policy(0, policy, answered)
    assert [failure.problem for failure in checker.report.failures] == ["accepted"]


@pytest.mark.slow
def test_workers_find_the_same_as_one_process(tiny_world: World) -> None:
    keys, numbers = ["02a", "02b"], [*range(3), 1_000]
    alone, together = (check(tiny_world, [PACK], tasks=keys, variations=numbers, workers=n) for n in (0, 2))
    for report in (alone, together):
        for task in report.tasks:
            task.setup_ms.clear()
    assert alone == together


def test_each_pack_is_checked_on_its_default_world() -> None:
    groups = by_world()
    assert {name: {task.pack for task in some} for name, some in groups.items()} == {
        "cohort-mini": {"FHIRAgent/ActionReasoning-v0"},
        "hospital-small": {*PACKS, "FHIRAgent/MedAgentBench-v0", "FHIRAgent/Shift-v0"},
    }
    assert sum(map(len, groups.values())) == sum(len(task_keys(env)) for env in pack_ids())
    assert list(by_world(world="elsewhere")) == ["elsewhere"]
    (shorter,) = by_world(["FHIRAgent/Shift-v0"], tasks=["day-3+minutes=30"])["hospital-small"]
    assert shorter.key == "day-3+minutes=30"
    assert [task.key for task in by_world([PACK], tasks=["02a", "01"])["hospital-small"]] == ["02a", "01"]
    shared = by_world(["FHIRAgent/ActionReasoning-v0", "FHIRAgent/MedAgentBench-v0"], tasks=["02"])
    assert {name: [task.key for task in some] for name, some in shared.items()} == {
        "cohort-mini": ["02"],
        "hospital-small": ["02"],
    }
    with pytest.raises(UnknownNameError, match="02a"):
        by_world(tasks=["02x"])


@pytest.mark.slow
def test_reports_of_several_worlds_are_merged(tiny_world: World, own_world: Callable[[str], World]) -> None:
    first = check(tiny_world, [PACK], tasks=["02a"], variations=1)
    second = check(own_world(PACK), ["FHIRAgent/MedAgentBench-v0"], variations=1)
    both = merge_reports([first, second])
    assert both.world == "tiny, hospital-small"
    assert both.tasks == (*first.tasks, *second.tasks)
    assert both.whole == ("FHIRAgent/MedAgentBench-v0",)
    assert set(both.to_json()) == set(first.to_json())
    assert merge_reports([first]) == first
    broken = replace(second, tasks=(TaskReport(PACK, "x", checks=["never needed"]),))
    assert not merge_reports([first, broken]).sound


def test_report_as_table_and_json(tiny_world: World) -> None:
    seen: list[tuple[str, int, int]] = []
    report = check(tiny_world, [PACK], tasks=["02a", "02b"], variations=2, progress=lambda *step: seen.append(step))
    assert report.sound
    assert seen == [(f"{PACK} 02a", 2, 4), (f"{PACK} 02b", 4, 4)]
    assert all(len(row) == len(report.columns) for row in report.rows())
    assert all(len(row) == len(report.group_columns) for row in report.group_rows())
    (whole,) = report.summary_rows()
    assert len(whole) == len(report.summary_columns)
    assert whole == (PACK, "2", "4", "100.0%", "7/7", "none", "0.00%", "yes")
    by_group = {row[1]: row[3:] for row in report.group_rows()}
    assert by_group["gold"] == ("pass", "4", "4", "100.00%")
    assert by_group["says none"] == ("fail unless gold's", "2", "4", "50.00%")
    assert [row[1] for row in report.rows()] == ["02a", "02b"]
    data = json.loads(json.dumps(report.to_json()))
    assert data["sound"] is True
    assert data["tasks"][0]["tallies"]["gold"] == {"runs": 2, "passed": 2, "rightly": 0, "lightly": 0}
    assert data["tasks"][0]["original_calls"] == [1, 1]
    assert data["best_constant"] == {PACK: {"policy": "none", "share": 0.0}}
    assert not replace(report, tasks=(TaskReport(PACK, "x", checks=["never needed"]),)).sound
