"""Looks that ignore the prompt are no evidence that a record is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from fhir_gym import worlds
from fhir_gym.actions import GRAMMAR, Action, Finish, Get, Post
from fhir_gym.fhir import World
from fhir_gym.soundness.generic_looks import generic_looks, measure_looks
from fhir_gym.soundness.policy_runner import Policy, PolicyRunner, script
from fhir_gym.tasks import Task, get_pack, get_task, pack_ids, task_keys
from fhir_gym.tasks.authoring import instant
from fhir_gym.tasks.core.variation import Variation
from fhir_gym.types import Resource

APPOINTMENT, SHIFT = "FHIRAgent/Appointment-v0", "FHIRAgent/Shift-v0"
NONE = ("02b", "04b", "06b", "08b", "10b")


def news(types: Iterable[str], world: World) -> list[list[Action]]:
    """Looks at what is new on the server, each for all types."""
    now = instant(world.now)
    queries = (f"_lastUpdated=ge{now}", "_sort=-_lastUpdated&_count=3", "_sort=-_id&_count=3")
    return [[Get("/_history?_count=20")], *([Get(f"/{kind}?{query}") for kind in types] for query in queries)]


def successes(task: Task[Any], world: World, numbers: Iterable[int]) -> int:
    """The number of variations in which an agent succeeds that looks at what is new and answers what is right."""
    found = 0
    for number in numbers:
        with PolicyRunner(task, task.variation(number, world), world) as runner:
            answer = runner.gold().actions[-1]
            for looks in news(task.required_resources, world):
                (run,) = runner.run(Policy("looks at what is new", "news", script([*looks, answer])))
                found += run.verdict.success
    return found


@pytest.mark.parametrize("key", NONE)
def test_a_look_at_what_is_new_is_no_evidence(key: str, hospital: World) -> None:
    assert successes(get_task(APPOINTMENT, key), hospital, range(4)) == 0


@pytest.mark.parametrize("key", [NONE[0], *(pytest.param(key, marks=pytest.mark.exhaustive) for key in NONE[1:])])
def test_an_update_time_or_an_id_of_their_own_gives_counterfactuals_away(
    key: str, hospital: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unplaced(self: Variation, world: World, records: Iterable[Resource], draw: int = 0) -> dict[str, Resource]:
        return {f"{record['resourceType']}/{record['id']}": record for record in records}

    monkeypatch.setattr(Variation, "placed", unplaced)
    task = get_task(APPOINTMENT, key)
    assert successes(task, hospital, range(4)) >= 4
    leaks = {leak.look for leak in measure_looks(hospital, task, range(20)).leaks}
    assert any("_lastUpdated" in look or "_history" in look for look in leaks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pack", "key"), [(APPOINTMENT, "02b"), (APPOINTMENT, "06b"), (SHIFT, "Q3-1"), (SHIFT, "S4-1")]
)
def test_looks_that_ignore_the_prompt_show_no_counterfactual_more_often_than_its_siblings(
    pack: str, key: str, hospital: World
) -> None:
    task = get_task(pack, key)
    numbers = [number for number in range(60) if task.counterfactual(task.variation(number, hospital).params, hospital)]
    measured = measure_looks(hospital, task, numbers[:25])
    assert len(measured.looks) > 50 and not measured.leaks


@pytest.mark.exhaustive
@pytest.mark.parametrize("pack", pack_ids())
def test_no_task_has_a_look_that_ignores_the_prompt_and_shows_what_is_missing(pack: str) -> None:
    with worlds.load(get_pack(pack).world) as world:
        for key in task_keys(pack):
            task = get_task(pack, key)
            if not task.is_live:
                assert not measure_looks(world, task, range(200)).leaks, key


def declined_rightly(runner: PolicyRunner, looks: Sequence[Action]) -> tuple[int, int]:
    """The number of declined requests that count as right after some looks, and the number of declined requests."""
    answer = runner.gold().actions[-1]
    (run,) = runner.run(Policy("looks at what is new", "news", script([*looks, answer])))
    declined = {f"request {said[0]}" for said in answer.answer or () if not said.endswith(": done")}
    found = [check.passed for check in run.verdict.checks if check.name in declined]
    return sum(found), len(found)


def test_a_look_at_what_is_new_declines_no_request_of_a_shift(hospital: World) -> None:
    """By chance, what is missing may be among the latest records, as often as any other record."""
    counts = []
    for key in ("Q1-1", "Q2-1", "Q3-1", "Q4-1", "S4-1", "I2-1", "P3-1"):
        task = get_task(SHIFT, key)
        with PolicyRunner(task, task.variation(3, hospital), hospital) as runner:
            counts += [declined_rightly(runner, looks) for looks in news(task.required_resources, hospital)]
    right, tried = (sum(column) for column in zip(*counts, strict=True))
    assert tried > 30 and right <= tried / 20


PERSON = "family={family}&given={given}&birthdate={birth_date}"
FORMS = {
    "02b": (
        f"/Patient?{PERSON}",
        f"/Patient?{PERSON}&_elements=name,birthDate",
        f"/Patient?{PERSON}&_count=1",
        f"/Patient?{PERSON.replace('family', 'family:exact', 1)}&_summary=count",
        "/Patient?name={family}&name={given}&birthdate={birth_date}",
    ),
    "04b": (
        "/Condition?subject={id}&_elements=recordedDate,verificationStatus",
        "/Condition?subject={id}&_sort=-recorded-date&_count=2",
        "/Condition?patient.name={family}&patient.given={given}&patient.birthdate={birth_date}",
        "/Patient?_id={id}&_has:Condition:patient:verification-status=confirmed",
        "/Patient?_id={id}&_revinclude=Condition:subject",
        "/Patient/{id}/$everything",
    ),
    "10b": (
        "/Account?patient={id}&status=active&_elements=guarantor,status",
        "/Patient?_id={id}&_revinclude=Account:subject",
    ),
}


@pytest.mark.parametrize(("key", "form"), [(key, form) for key, forms in FORMS.items() for form in forms])
def test_a_narrow_look_is_evidence_whatever_its_form(key: str, form: str, hospital: World) -> None:
    task = get_task(APPOINTMENT, key)
    for number in range(3):
        variation = task.variation(number, hospital)
        params: Any = variation.params
        url = form.format_map(params.patient.model_dump())
        entry = {"request": {"method": "GET", "url": url.removeprefix("/")}}
        batch = Post("/", {"resourceType": "Bundle", "type": "batch", "entry": [entry]})
        with PolicyRunner(task, variation, hospital) as runner:
            for look in (Get(url), batch):
                (run,) = runner.run(Policy("equivalent", form, script([look, Finish([])])))
                assert run.verdict.success, (number, look)


def test_generic_looks_depend_on_the_type_and_the_world_alone(hospital: World) -> None:
    looks = [*generic_looks("Patient", hospital)]
    assert len(looks) == len({*looks}) > 50 and looks == [*generic_looks("Patient", hospital)]
    assert all(isinstance(GRAMMAR.parse(f"GET {look}"), Action) for look in looks)
