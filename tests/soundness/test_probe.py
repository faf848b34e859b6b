"""Without a leak, the probe finds targets only by chance; it finds a planted leak."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fhir_gym.errors import MissingExtraError
from fhir_gym.soundness.probe import (
    QUICK,
    SLOW,
    BlindReport,
    Effort,
    ProbeReport,
    RankerReport,
    TaskProbe,
    probe,
    probe_pool,
)
from fhir_gym.soundness.probe.features import Background, days, flatten
from fhir_gym.soundness.probe.models import (
    Group,
    Table,
    build_table,
    count_records,
    hits,
    predict_answers,
    rule_hits,
    scores,
    single_features,
)
from fhir_gym.soundness.probe.run import max_lucky_hits
from fhir_gym.soundness.probe.scenes import Scene, reference_of, scenes_of
from fhir_gym.tasks import SceneParams, get_task, pack_ids, task_keys
from fhir_gym.tasks.core.ids import IdAllocator, id_number
from fhir_gym.types import Resource
from tests.tasks.fakes import fake_world

if TYPE_CHECKING:
    from fhir_gym.fhir import World

PACK = "FHIRAgent/Appointment-v0"
TASKS = [(env, key) for env in pack_ids() for key in task_keys(env)]
TRAIN, TEST = 150, 200
Choose = Callable[[list[Resource], list[Resource]], Resource]


def people(rng: random.Random) -> list[Resource]:
    """Six people, some of them with visits; names and birth dates may repeat."""
    ids = IdAllocator(rng, fake_world())
    records: list[Resource] = []
    for _ in range(6):
        name = {"family": rng.choice(("Lee", "Kim", "Diaz")), "given": [rng.choice(("Ana", "Bo", "Cy"))]}
        born = f"19{rng.randrange(40, 44)}-01-0{rng.randrange(1, 4)}"
        person = {"resourceType": "Patient", "id": ids.new(), "name": [name], "birthDate": born}
        records.append(person)
        for _ in range(rng.randrange(3)):
            status = rng.choice(("planned", "finished"))
            subject = {"reference": f"Patient/{person['id']}"}
            records.append({"resourceType": "Encounter", "id": ids.new(), "status": status, "subject": subject})
    rng.shuffle(records)
    return records


def scene(number: int) -> Scene:
    """A scene with six people. Five of them qualify, and one of these is the random target."""
    rng = random.Random(number)
    records = people(rng)
    qualifying = rng.sample([record for record in records if record["resourceType"] == "Patient"], 5)
    names = tuple(map(reference_of, qualifying))
    return Scene(number, tuple(records), rng.choice(names), names, "some", "some", declared=True)


@cache
def lots() -> tuple[Scene, ...]:
    """Many scenes with random targets."""
    return tuple(scene(number) for number in range(TRAIN + TEST))


@cache
def table() -> Table:
    return build_table(lots(), "Patient", Background(fake_world()))


def halves(choose: Choose | None = None) -> tuple[Table, Table]:
    """Training and test scenes. The targets are random, or chosen by `choose`; no feature depends on the target."""
    groups = list(table().groups)
    if choose is not None:
        groups = [replace(group, target=planted(choose, lots()[at], group)) for at, group in enumerate(groups)]
    return table().part(groups[:TRAIN]), table().part(groups[TRAIN:])


def planted(choose: Choose, drawn: Scene, group: Group) -> int:
    patients = [record for record in drawn.records if record["resourceType"] == "Patient"]
    qualifying = [patients[at] for at in group.qualifying]
    return patients.index(choose(qualifying, list(drawn.records)))


def bound(test: Table) -> int:
    return max_lucky_hits(group.fair for group in test.groups)


def likeness(resource: Resource, others: list[Resource]) -> int:
    values = {str(value) for value in flatten(resource).items()}
    return sum(len(values & {str(value) for value in flatten(other).items()}) for other in others)


def visits(resource: Resource, records: list[Resource]) -> int:
    return sum(other.get("subject", {}).get("reference") == reference_of(resource) for other in records)


LEAKS: dict[str, Choose] = {
    "lowest id": lambda people, records: min(people, key=lambda person: id_number(person["id"]) or 0),
    "third in order": lambda people, records: sorted(people, key=records.index)[2],
    "second oldest": lambda people, records: sorted(people, key=lambda person: (person["birthDate"], person["id"]))[1],
    "medoid": lambda people, records: max(people, key=lambda person: (likeness(person, people), person["id"])),
    "most visits": lambda people, records: max(people, key=lambda person: (visits(person, records), person["id"])),
}


def with_random_targets(table: Table) -> Table:
    """Replace each scene's target with a random qualifying candidate."""
    rng = np.random.default_rng(0)
    return table.part([replace(group, target=int(rng.choice(group.qualifying))) for group in table.groups])


@pytest.mark.slow
def test_random_targets_are_not_found() -> None:
    train, test = halves()
    for within in (False, True):
        assert sum(hits(test, scores(train, test, within=within))) <= bound(test)
    assert sum(rule_hits(train, test)) <= bound(test)


QUICK_LEAKS = ("lowest id", "most visits")


@pytest.mark.parametrize(
    "leak", [pytest.param(leak, marks=() if leak in QUICK_LEAKS else pytest.mark.slow) for leak in LEAKS]
)
def test_planted_targets_are_found(leak: str) -> None:
    train, test = halves(LEAKS[leak])
    found = sum(hits(test, scores(train, test)))
    assert found > 1.3 * bound(test)
    assert sum(rule_hits(train, test)) > 1.3 * bound(test)
    lot_train, lot_test = with_random_targets(train), with_random_targets(test)
    assert sum(hits(lot_test, scores(lot_train, lot_test))) <= bound(test)


def test_the_leaking_feature_is_named() -> None:
    train, _ = halves(LEAKS["most visits"])
    (name, share), *_ = single_features(train)
    assert "Encounter" in name or "referrers" in name
    assert share > 0.5


def test_ties_do_not_favour_the_first_record() -> None:
    _, test = halves(lambda people, records: people[0])
    blank = np.zeros(len(test.values))
    assert abs(sum(hits(test, blank)) - TEST / 5) < bound(test) - TEST / 5
    assert sum(hits(test, blank, among_all=True)) < sum(hits(test, test.labels().astype(float)))


def test_ids_names_and_prompt_text_are_not_features() -> None:
    """Scenes that differ only in their targets have equal features."""
    original = scene(1)
    other = replace(original, target=next(name for name in original.qualifying if name != original.target))
    tables = [build_table([some], "Patient", Background(fake_world())) for some in (original, other)]
    assert tables[0].names == tables[1].names
    assert np.array_equal(tables[0].values, tables[1].values, equal_nan=True)
    assert tables[0].groups[0].target != tables[1].groups[0].target


def blindly(scenes: list[Scene], learnt: int) -> list[str]:
    rows = count_records(scenes)
    return predict_answers(rows[:learnt], [scene.answer for scene in scenes[:learnt]], rows[learnt:])


def test_answers_that_depend_on_counts_are_guessed() -> None:
    scenes = lots()
    telling = [replace(lot, answer=str(len(lot.records) // 3)) for lot in scenes]
    tossed = [replace(lot, answer=random.Random(-lot.number).choice("ab")) for lot in scenes]
    for drawn, low, high in ((telling, 0.8, 1.0), (tossed, 0.35, 0.65)):
        guessed = blindly(drawn, TRAIN)
        right = sum(scene.answer == guess for scene, guess in zip(drawn[TRAIN:], guessed, strict=True)) / TEST
        assert low <= right <= high


def test_rare_answers_are_never_guessed() -> None:
    scenes = [replace(lots()[number], answer=f"{number % 20 if number % 3 else 'usual'}") for number in range(80)]
    guessed = blindly(scenes, 60)
    assert set(guessed) <= {scene.answer for scene in scenes}


@pytest.mark.parametrize(
    ("chances", "expected"), [([0.5] * 300, 177), ([0.2] * 300, 82), ([1.0] * 10, 10), ([0.0] * 10, 0), ([], 0)]
)
def test_bound_of_a_fair_guess(chances: list[float], expected: int) -> None:
    """The expected bounds are SciPy's binomial quantiles at 0.999."""
    assert max_lucky_hits(chances) == expected


def test_values_as_numbers() -> None:
    assert days("1970-01-02") == 1
    assert days("1970-01-01T12:00:00Z") == 0.5
    assert days("Monday") is None
    assert days("2024-13-01") is None


@pytest.mark.slow
def test_tasks_with_shared_prompts_are_probed_together(hospital: World) -> None:
    """Tasks 02a and 02b share their prompts, so their answers are probed together."""
    (task,) = probe(hospital, [get_task(PACK, "02a")], Effort(train=40, test=40)).tasks
    assert task.declared
    assert task.blind.tasks == ("02a", "02b")
    assert task.blind.tried == 80
    assert task.blind.share == pytest.approx(0.5)
    assert task.ranker is not None
    assert task.ranker.kind == "Patient"
    assert task.ranker.tried == 40
    assert task.ranker.fair < 0.25
    assert task.mismatches == ()
    _, without = probe_pool(hospital, [get_task(PACK, "02a"), get_task(PACK, "02b")], Effort(train=20, test=20))
    assert without.ranker is None


@pytest.mark.slow
def test_workers_find_the_same(hospital: World) -> None:
    chosen, effort = [get_task(PACK, "02a")], Effort(train=20, test=20)
    assert probe(hospital, chosen, effort, workers=1) == probe(hospital, chosen, effort)


def test_the_answer_classes_hold_no_ids(hospital: World) -> None:
    answers = {
        key: {scene.answer for scene in scenes_of(get_task(PACK, key), hospital, range(6))} for key in ("02a", "02b")
    }
    assert answers == {"02a": {"some"}, "02b": {"none"}}
    (made,) = {scene.answer for scene in scenes_of(get_task(PACK, "01"), hospital, range(3))}
    assert made == "created Patient"


def test_each_request_of_a_prompt_has_a_scene(hospital: World) -> None:
    task = get_task("FHIRAgent/Shift-v0", "Q1-1")
    params = task.variation(0, hospital).params
    assert isinstance(params, SceneParams)
    scenes = list(scenes_of(task, hospital, [0]))
    assert [(scene.target, scene.qualifying, scene.answer) for scene in scenes] == [*params.labelled_requests]
    assert all(scene.is_part and not scene.mismatch and scene.records is scenes[0].records for scene in scenes)
    assert all(scene.target in scene.qualifying for scene in scenes if scene.target)


def test_requests_of_a_prompt_share_their_candidates() -> None:
    original = scene(0)
    other = replace(original, target=next(name for name in original.qualifying if name != original.target))
    both = build_table([original, other, scene(1)], "Patient", Background(fake_world()))
    assert len(both.values) == 12
    assert list(both.rows()) == list(range(12))
    assert [group.rows for group in both.groups] == [slice(0, 6), slice(0, 6), slice(6, 12)]
    assert both.labels().sum() == 3


def test_problems_of_a_report() -> None:
    fair = RankerReport("Patient", 300, 0.2, 0.2, 0.2, 0.1, fair=0.2, qualifying=5.0, bound=0.28)
    blind = BlindReport(
        ("x",), "the answer", 300, right=0.5, majority="some", share=0.5, share_of_all=0.5, classes=2, bound=0.6
    )
    sound = TaskProbe("E", "x", True, fair, blind)
    wrong = {
        "found": replace(sound, ranker=replace(fair, top=0.3)),
        "found within": replace(sound, ranker=replace(fair, top_within=0.3)),
        "found by a rule": replace(sound, ranker=replace(fair, top_rule=0.3)),
        "above the ceiling": replace(sound, ranker=replace(fair, top=0.27, ceiling=0.26)),
        "guessed": replace(sound, blind=replace(blind, right=0.7)),
        "lopsided": replace(sound, blind=replace(blind, share_of_all=0.7)),
        "mismatch": replace(sound, mismatches=("variation 0: another",)),
    }
    assert sound.sound
    assert not any(task.sound for task in wrong.values())
    assert replace(sound, blind=replace(blind, classes=1, share_of_all=1.0)).sound
    report = ProbeReport((sound, *wrong.values()))
    assert not report.sound
    assert all(len(row) == len(report.columns) for row in report.rows())
    assert report.to_json()["tasks"][1]["problems"] == ["the target is found without the prompt"]


def test_a_missing_scikit_learn_names_the_package_to_install(hospital: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(MissingExtraError, match="pip install"):
        probe(hospital, [get_task(PACK, "02a")])


def test_slow_effort_is_strict() -> None:
    assert SLOW.strict
    assert len(SLOW.numbers) == 1_400
    assert SLOW.numbers[400] == 1_000


def probed(world: World, env_id: str, key: str, effort: Effort) -> None:
    (task,) = probe(world, [get_task(env_id, key)], effort).tasks
    assert task.sound, f"{task.problems}: {task.ranker}, {task.blind}"


@pytest.mark.slow
def test_a_task_cannot_be_won_without_the_prompt(own_world: Callable[[str], World]) -> None:
    """This test covers one task; the exhaustive tests cover all tasks."""
    probed(own_world(PACK), PACK, "11a", QUICK)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("env_id", "key"), TASKS)
def test_no_task_can_be_won_without_the_prompt(env_id: str, key: str, own_world: Callable[[str], World]) -> None:
    probed(own_world(env_id), env_id, key, QUICK)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("env_id", "key"), TASKS)
def test_no_task_is_won_slightly_too_often_without_the_prompt(
    env_id: str, key: str, own_world: Callable[[str], World]
) -> None:
    probed(own_world(env_id), env_id, key, SLOW)
