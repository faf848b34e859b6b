"""Tasks about genetic test orders: careful agents succeed, careless agents fail."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from fhir_gym.actions import Action, Finish, Get, Patch, Post, Put
from fhir_gym.tasks import get_task, task_keys
from fhir_gym.tasks.packs.genetic_testing.orders import attach_references, order_request
from fhir_gym.tasks.packs.genetic_testing.reports import GENETICS, diagnostic_report
from tests.tasks.test_appointment import Desk, body

if TYPE_CHECKING:
    from fhir_gym.fhir import World

PACK = "FHIRAgent/GeneticTesting-v0"
KEYS = task_keys(PACK)


def desk_of(key: str, world: World, k: int = 0) -> Desk:
    return Desk(key, world, k, pack=PACK)


def test_the_pack() -> None:
    assert KEYS == ("20", "21a", "21b", "21c", "22")


@pytest.mark.parametrize("key", KEYS)
def test_each_phrasing_contains_everything_that_is_checked(key: str, hospital: World) -> None:
    task = get_task(PACK, key)
    assert len(task.prompts) >= 3
    for phrasing in range(len(task.prompts)):
        variation = task.variation(1, hospital, phrasing)
        words = dict(task.prompt_values(variation.params, hospital))
        words.pop("patient")  # the name consists of the given name and the family name
        for value in words.values():
            assert value in variation.prompt


@pytest.mark.parametrize("key", KEYS)
def test_prompts_contain_no_id(key: str, hospital: World) -> None:
    for k in range(5):
        variation = get_task(PACK, key).variation(k, hospital)
        assert not [resource["id"] for resource in variation.setup if resource["id"] in variation.prompt]


# 20


def test_a_promoted_draft_is_no_new_order(hospital: World) -> None:
    desk = desk_of("20", hospital)
    old = next(order.id for order in desk.p.scene.orders if order.status != desk.p.status)
    patch = [{"op": "replace", "path": "/status", "value": desk.p.status}]
    failed = desk.failed([Patch(f"/ServiceRequest/{old}", patch), Finish([old])])
    assert {"ServiceRequest created", "nothing else changed"} <= set(failed)


def test_the_test_in_words_only_is_not_ordered(hospital: World) -> None:
    desk = desk_of("20", hospital)
    create = Post("/ServiceRequest", {**body(desk.gold[-2]), "code": {"text": desk.p.test.display}})
    assert desk.failed([create, desk.gold[-1]]) == ["test code"]


def test_a_patient_and_a_practitioner_may_be_found_otherwise(hospital: World) -> None:
    desk = desk_of("20", hospital)
    actions = [Get(f"/Patient/{desk.p.person.id}"), Get(f"/Practitioner/{desk.p.doctor.id}")]
    assert desk.verdict([*actions, *desk.gold[2:]], grading="evidence").success


# 21a, 21b


def with_references(desk: Desk, references: list[str]) -> list[Action]:
    order = order_request(desk.p.order)
    changed = {**order, "supportingInfo": [{"reference": reference, "display": "Report"} for reference in references]}
    return [Put(f"/ServiceRequest/{order['id']}", changed), desk.gold[-1]]


def expected(desk: Desk) -> list[str]:
    return sorted({*desk.p.order.attached, *(report.reference for report in desk.p.wanted)})


@pytest.mark.parametrize("key", ["21a", "21b"])
def test_entries_in_any_order_with_displays(key: str, hospital: World) -> None:
    for k in range(12):
        desk = desk_of(key, hospital, k)
        if desk.p.wanted:
            assert not desk.failed(with_references(desk, expected(desk)))
            assert not desk.failed(with_references(desk, expected(desk)[::-1]))
            base = desk.arena.gold().end.base_url
            assert not desk.failed(with_references(desk, [f"{base}/{reference}" for reference in expected(desk)]))


def test_adding_entry_by_entry_is_fine(hospital: World) -> None:
    desk = next(d for d in (desk_of("21a", hospital, k) for k in range(50)) if d.p.order.attached)
    url = f"/ServiceRequest/{desk.p.order.id}"
    new = [d for d in expected(desk) if d not in desk.p.order.attached]
    patches = [Patch(url, [{"op": "add", "path": "/supportingInfo/-", "value": {"reference": d}}]) for d in new]
    assert not desk.failed([*patches, desk.gold[-1]])
    assert desk.failed([*patches, patches[-1], desk.gold[-1]]) == ["supporting information"]


def test_an_order_signed_on_the_way_is_not_as_it_was(hospital: World) -> None:
    desk = desk_of("21a", hospital)
    url = f"/ServiceRequest/{desk.p.order.id}"
    sign = Patch(url, [{"op": "replace", "path": "/status", "value": "active"}])
    assert desk.failed([*desk.gold[:-1], sign, desk.gold[-1]]) == ["rest of order unchanged"]


def test_all_reports_are_more_than_the_genetic_ones_and_the_final_ones(hospital: World) -> None:
    kinds, statuses, numbers, attached = set(), set(), set(), set()
    for k in range(40):
        p: Any = get_task(PACK, "21a").variation(k, hospital).params
        kinds |= {report.category.code for report in p.wanted}
        statuses |= {report.status for report in p.wanted}
        numbers.add(len(p.wanted))
        there = [report for report in p.wanted if report.reference in p.order.attached]
        attached.add(len(there))
        assert len(there) < len(p.wanted)
    assert len(kinds) > 3 and len(statuses) == 4 and numbers == {1, 2, 3} and attached == {0, 1}


def test_none_to_three_reports_are_relevant_among_others(hospital: World) -> None:
    numbers = []
    for k in range(60):
        p: Any = get_task(PACK, "21b").variation(k, hospital).params
        numbers.append(len(p.wanted))
        own = [decoy for decoy in p.decoys if decoy.patient == p.person.id]
        assert any(decoy.category == GENETICS and decoy.status != "final" for decoy in own)
        assert any(decoy.category != GENETICS and decoy.status == "final" for decoy in own)
        assert all(report.category == GENETICS and report.status == "final" for report in p.wanted)
    assert {*numbers} == {0, 1, 2, 3}
    assert 20 < numbers.count(0) < 40


def test_the_records_do_not_reveal_whether_a_report_is_relevant(hospital: World) -> None:
    task: Any = get_task(PACK, "21b")
    for k in range(10):
        scene = task.variation(k, hospital).params.scene
        asked = [
            task.params_for(random.Random(k), hospital, scene, candidate) for candidate in task.candidates(scene)[""]
        ]
        assert 2 * sum(1 for p in asked if p.wanted) == len(asked)


@pytest.fixture
def nothing_relevant(hospital: World) -> Desk:
    for k in range(50):
        params: Any = get_task(PACK, "21b").variation(k, hospital).params
        if not params.wanted:
            return desk_of("21b", hospital, k)
    raise AssertionError("no variation without relevant reports")


def test_where_nothing_is_relevant_looking_is_the_work(nothing_relevant: Desk) -> None:
    desk = nothing_relevant
    find_patient, _, find_order, finish = desk.gold
    subject = {"subject": f"Patient/{desk.p.person.id}"}
    looks: list[tuple[dict[str, str], list[str]]] = [
        ({}, []),
        ({"status": "final"}, []),
        ({"category": "GE"}, []),
        ({"status": "cancelled"}, ["evidence"]),
        ({"category": "RAD"}, ["evidence"]),
    ]
    for query, failed in looks:
        look = Get("/DiagnosticReport", {**subject, **query})
        assert desk.failed([find_patient, look, find_order, finish]) == failed
    somebody = next(person for person in desk.p.scene.people if person != desk.p.person)
    other = Get("/DiagnosticReport", {"subject": f"Patient/{somebody.id}"})
    assert desk.failed([find_patient, other, find_order, finish]) == ["evidence"]


def test_where_nothing_is_relevant_nothing_is_attached(nothing_relevant: Desk) -> None:
    desk = nothing_relevant
    order = order_request(desk.p.order)
    for report in desk.p.decoys:
        attach = attach_references(order, [report.reference])
        assert desk.failed([*desk.gold[:-1], attach, desk.gold[-1]]) == ["nothing else changed"]
    unchanged = Put(f"/ServiceRequest/{order['id']}", order)
    assert not desk.failed([*desk.gold[:-1], unchanged, desk.gold[-1]])
    assert desk.verdict(desk.gold).light is None


def test_a_relevant_report_is_final_and_genetic(hospital: World) -> None:
    p: Any = desk_of("21b", hospital).p
    report = diagnostic_report(p.missed)
    assert (report["status"], report["category"][0]["coding"][0]["code"]) == ("final", "GE")
