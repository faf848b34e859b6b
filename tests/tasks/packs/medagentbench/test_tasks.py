"""The ten generated tasks modelled on MedAgentBench."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fhir_gym.soundness import TaskReport, check_task
from fhir_gym.soundness.policy_runner import PolicyRunner
from fhir_gym.tasks import get_task, task_keys
from fhir_gym.tasks.core.dates import parse_instant
from fhir_gym.tasks.core.scene import SceneTask
from fhir_gym.tasks.packs.medagentbench import ENV_ID
from fhir_gym.tasks.packs.medagentbench.internist_task import ItemsAnswer, number_check, same_minute
from fhir_gym.tasks.packs.medagentbench.lab_task import LabTask
from fhir_gym.tasks.packs.medagentbench.labs import DAY, GLU, MG, VOID_STATUSES, counted_results
from fhir_gym.tasks.packs.medagentbench.t04_t05_magnesium import grams
from fhir_gym.tasks.packs.medagentbench.t09_potassium_replacement import milliequivalents
from fhir_gym.tasks.packs.medagentbench.t10_hemoglobin_a1c import is_due, year_before
from tests.soundness.checking import unnoticed

if TYPE_CHECKING:
    from fhir_gym.fhir import World
    from fhir_gym.tasks import Task

KEYS = task_keys(ENV_ID)


def problems(report: TaskReport) -> str:
    lines = [f"{f.variation} {f.group} {f.policy!r}: {f.problem}\n{f.explanation}" for f in report.failures[:3]]
    return "\n".join([f"uncovered: {report.uncovered}", *lines])


def test_the_pack() -> None:
    assert KEYS == ("01", "02", "03", "04", "05", "06", "07", "08", "09", "10")
    tasks = [get_task(ENV_ID, key) for key in KEYS]
    assert [task.kind for task in tasks].count("query") == 5
    assert Counter(task.difficulty for task in tasks) == {1: 3, 2: 4, 3: 3}
    assert len({task.category for task in tasks}) == 7
    assert all(len(set(task.prompts)) >= 3 for task in tasks)
    assert all(task.gold_steps <= 4 for task in tasks)


@pytest.mark.parametrize("key", KEYS)
def test_tasks_are_sound(key: str, hospital: World) -> None:
    report = check_task(get_task(ENV_ID, key), hospital, range(2))
    assert report.sound, problems(report)


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_tasks_are_sound_on_a_tiny_world(key: str, tiny_world: World) -> None:
    """The tasks are sound on a world whose current time is just before midnight on a leap day."""
    report = check_task(get_task(ENV_ID, key), tiny_world, [1])
    assert not report.failures, problems(report)


@pytest.mark.exhaustive
@pytest.mark.parametrize("key", KEYS)
def test_many_variations_are_sound(key: str) -> None:
    from fhir_gym import worlds

    with worlds.load("cohort-mini") as world:
        report = check_task(get_task(ENV_ID, key), world, range(300))
    assert report.sound, problems(report)


def birthday(p: Any) -> str:
    """Whether the patient's birthday of this year has passed."""
    (born,) = [person.birth_date[5:] for person in p.scene if person.id == p.mrn]
    today = p.today[5:]
    return "over" if born < today else "ahead" if born > today else "today"


def replaced(p: Any) -> bool:
    """Whether there is another result of the same specimen as a result that determines the answer."""
    alike = [(r.owner, r.code, r.taken) for r in p.results if r.status not in VOID_STATUSES]
    return any(alike.count((r.owner, r.code, r.taken)) > 1 for r in p.results if r.id in p.deciding)


def at_the_edge(p: Any) -> bool:
    """Whether a result that determines the answer is exactly 24 hours old."""
    return any(parse_instant(p.now) - parse_instant(r.taken) == DAY for r in p.results if r.id in p.deciding)


def in_other_unit(p: Any) -> bool:
    return any(r.unit not in ("mg/dL", "mmol/L" if r.code == "K" else "") for r in p.results if r.id in p.deciding)


def not_just_final(p: Any) -> bool:
    return any(r.status != "final" for r in p.results if r.id in p.deciding)


def more_than_a_page(p: Any) -> bool:
    return len(p.results) > 20


Rule = Callable[[Any], object]
RULES: dict[Rule, tuple[str, ...]] = {
    replaced: ("04", "05", "07", "09", "10"),
    at_the_edge: ("04", "05", "06"),
    in_other_unit: ("04", "06", "07", "09"),
    not_just_final: ("04", "05", "06", "07", "09", "10"),
    more_than_a_page: ("04", "05", "06", "07", "09", "10"),
    birthday: ("02",),
    lambda p: p.mrn is None: ("01",),
    lambda p: p.level is None: ("04", "06", "07"),
    lambda p: "none" if p.level is None else grams(p.level): ("05",),
    lambda p: "none" if p.level is None else milliequivalents(p.level) is None: ("09",),
    lambda p: "none" if p.level is None else is_due(p): ("10",),
    lambda p: p.taken is not None and parse_instant(p.taken) == year_before(p.now): ("10",),
}


@pytest.mark.slow
@pytest.mark.parametrize("key", [key for key in KEYS if key not in ("03", "08")])
def test_every_branch_of_every_rule_is_reached(key: str, hospital: World) -> None:
    """Tasks 03 and 08 have no branches, unlike the other tasks."""
    drawn: list[Any] = [get_task(ENV_ID, key).variation(k, hospital).params for k in range(300)]
    for rule, keys in RULES.items():
        if key in keys:
            counts = Counter(map(rule, drawn))
            assert len(counts) > 1, rule
            rare = 2 if rule is more_than_a_page else 30
            assert min(counts.values()) >= rare, (rule, counts)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(key, marks=pytest.mark.slow if key in ("01", "05", "10") else pytest.mark.exhaustive)
        for key in KEYS
    ],
)
def test_every_check_is_needed(key: str, hospital: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unnoticed(get_task(ENV_ID, key), hospital, monkeypatch, range(2)) == []


def test_orders_are_due_about_half_the_time(tiny_world: World) -> None:
    due = {
        "05": lambda p: grams(p.level) is not None,
        "09": lambda p: milliequivalents(p.level) is not None,
        "10": is_due,
    }
    for key, is_one in due.items():
        params = [get_task(ENV_ID, key).variation(k, tiny_world).params for k in range(120)]
        assert 0.35 < sum(map(is_one, params)) / 120 < 0.65


@pytest.mark.slow
def test_edges_are_reached(tiny_world: World) -> None:
    """Scenes contain values at the limits of the dosing rules, and results at the ends of the windows."""

    def params(key: str) -> list[Any]:
        return [get_task(ENV_ID, key).variation(k, tiny_world).params for k in range(300)]

    assert {1.0, 1.4, 1.5, 1.9} <= {p.level for p in params("05")}
    assert {3.4, 3.5} <= {p.level for p in params("09")}
    for p in params("10"):
        if p.taken and abs(parse_instant(p.taken) - year_before(p.now)) <= timedelta(minutes=1):
            assert is_due(p) is (parse_instant(p.taken) < year_before(p.now))
    exact = [p for p in params("04") if p.taken and parse_instant(p.now) - parse_instant(p.taken) == DAY]
    just_before = [p for p in params("04") for r in p.results if parse_instant(p.now) - parse_instant(r.taken) > DAY]
    assert exact
    assert just_before


def drawn(task: Task[Any], k: int, world: World) -> Any:
    return task.variation(k, world).params


LABS = ("04", "05", "06", "07", "09", "10")


@pytest.mark.parametrize("key", LABS)
def test_every_possible_target_has_near_misses(key: str, tiny_world: World) -> None:
    """For each target, results of another test or of a namesake do not count, but would change the answer."""
    task = get_task(ENV_ID, key)
    assert isinstance(task, LabTask)
    for k in range(20):
        scene = drawn(task, k, tiny_world).scene
        cases = [case for some in task.candidates(scene).values() for case in some]
        names = Counter(chart.person.name for chart in scene.charts)
        assert len(cases) == len(task.branches), "everyone but the newcomer"
        for case in cases:
            results = case.chart.results
            assert names[case.chart.person.name] > 1
            assert any(r.status in VOID_STATUSES and r.code == task.test.code for r in results)
            assert any(r.code == task.test.neighbour for r in results)
            if case.found.taken:
                newer = [r for r in results if r.taken > case.found.taken]
                assert {r.code for r in newer if r.status in VOID_STATUSES} == {task.test.code}
                assert all(r.status in VOID_STATUSES for r in newer if r.code == task.test.code)


def test_results_are_of_all_kinds(tiny_world: World) -> None:
    """The result that determines the answer may be at any position in the chart."""
    ranks: Counter[int] = Counter()
    charts: list[Any] = []
    for k in range(40):
        p = drawn(get_task(ENV_ID, "07"), k, tiny_world)
        charts += p.scene.charts
        times = sorted((r.taken for r in p.results if r.code == "GLU"), reverse=True)
        ranks[times.index(p.taken) if p.taken else -1] += 1
    assert len(ranks) >= 4 and max(ranks.values()) <= 30, ranks
    results = [r for chart in charts for r in chart.results]
    assert {r.unit for r in results} == {"mg/dL", "mmol/L"}
    assert {r.status for r in results} == {"final", "corrected", "amended", *VOID_STATUSES}
    assert any(len(chart.results) > 20 for chart in charts), "more than a page"


@pytest.mark.parametrize("key", KEYS)
def test_the_records_do_not_depend_on_the_target(key: str, tiny_world: World) -> None:
    task = get_task(ENV_ID, key)
    assert isinstance(task, SceneTask)
    several: list[int] = []
    for k in range(10):
        scene = drawn(task, k, tiny_world).scene
        on_file = task.scene_resources(scene, tiny_world)
        chosen = [candidate for some in task.candidates(scene).values() for candidate in some]
        asked = [task.params_for(random.Random(k), tiny_world, scene, candidate) for candidate in chosen]
        assert all(task.setup(p, tiny_world) == on_file for p in asked)
        assert len({str(task.prompt_values(p, tiny_world)) for p in asked}) == len(asked), "no two prompts are alike"
        several.append(len({candidate.target for candidate in chosen if candidate.target}))
    assert sum(several) / len(several) >= 5


@pytest.mark.parametrize("key", ["05", "09", "10"])
def test_scenes_do_not_reveal_whether_an_order_is_due(key: str, tiny_world: World) -> None:
    """All scenes of a task have patients with the same outcomes."""
    task = get_task(ENV_ID, key)
    assert isinstance(task, LabTask)
    mixtures = set()
    for k in range(20):
        scene = drawn(task, k, tiny_world).scene
        cases = [case for some in task.candidates(scene).values() for case in some]
        asked = [task.params_for(random.Random(k), tiny_world, scene, case) for case in cases]
        mixtures.add(sum(bool(task.expected_changes(p)) for p in asked))
    assert mixtures == {3}


@pytest.mark.parametrize("key", KEYS)
def test_setup_and_gold_are_strictly_valid(key: str, hospital: World) -> None:
    task = get_task(ENV_ID, key)
    for k in range(3):
        variation = task.variation(k, hospital)
        with PolicyRunner(task, variation, hospital, validation="strict") as arena:
            assert arena.gold().verdict.success


def test_rules() -> None:
    assert [grams(level) for level in (None, 2.0, 1.9, 1.5, 1.49, 1.0, 0.99)] == [None, None, 1, 1, 2, 2, 4]
    assert [milliequivalents(level) for level in (None, 3.5, 3.4, 2.8, 3.45)] == [None, None, 10, 70, 5]
    assert year_before("2024-02-29T10:00:00Z").isoformat() == "2023-02-28T10:00:00+00:00"


def test_reading_results_like_a_careful_person() -> None:
    def entry(value: Any, taken: str, *, unit: str = "mg/dL", status: str = "final", issued: str = "") -> Any:
        quantity = {"valueQuantity": {"value": value, "unit": unit}} if value is not None else {}
        resource = {"status": status, "effectiveDateTime": taken, "issued": issued or taken, **quantity}
        return {"resource": resource}

    early, late = "2023-11-13T08:00:00Z", "2023-11-13T09:00:00Z"
    bundle = {
        "entry": [
            entry(5.0, early, unit="mmol/L"),
            entry(120, late, issued=late),
            entry(140, late, issued="2023-11-13T09:30:00Z"),
            entry(999, "2023-11-13T10:00:00Z", status="entered-in-error"),
            entry(None, "2023-11-13T10:00:00Z"),
        ]
    }
    results = counted_results(bundle, GLU)
    assert [result.value for result in results] == [140, 120, pytest.approx(5.0 * GLU.factor)]
    assert counted_results({"resourceType": "OperationOutcome"}, MG) == []


def test_answers() -> None:
    form = ItemsAnswer("[number] or []", (("number",), ()))
    assert form.problem([1], "") is None
    assert form.problem([], "") is None
    assert form.problem([" 3.1 "], "") is None
    assert all(form.problem(answer, "") for answer in (None, ["one"], ["1 mg"], ["nan"], [True], [None], [1, 2]))
    assert number_check("x", 1.0, 1).passed
    assert number_check("x", -1, None).passed
    assert not number_check("x", True, 1).passed
    assert number_check("x", "1", 1).passed and number_check("x", " 1.0", 1).passed
    assert not number_check("x", "1 mg", 1).passed
    assert not number_check("x", 1.01, 1).passed
    assert number_check("x", 1.04, 1, 0.05).passed


@pytest.mark.parametrize(
    ("said", "same"),
    [
        ("2023-11-13T10:15:00Z", True),
        ("2023-11-13T10:15:59+00:00", True),
        ("2023-11-13T02:15:00-08:00", True),
        ("2023-11-13T10:16:00Z", False),
        ("2023-11-13", False),
        ("soon", False),
        (None, False),
    ],
)
def test_same_minute(said: Any, same: bool) -> None:
    assert same_minute(said, "2023-11-13T10:15:00Z") is same
