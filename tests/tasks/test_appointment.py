"""Verdicts on careful and careless agents in the appointment tasks."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

from fhir_gym.actions import Action, Finish, Get, Patch, Post, Put
from fhir_gym.soundness.policy_runner import Policy, PolicyRunner, script
from fhir_gym.tasks import Verdict, get_task
from fhir_gym.tasks.packs.appointment.clinic import slot_resource

if TYPE_CHECKING:
    from fhir_gym.fhir import World

PACK = "FHIRAgent/Appointment-v0"


class Desk:
    """Plays one variation by hand."""

    def __init__(self, key: str, world: World, k: int = 0, *, pack: str = PACK) -> None:
        task = get_task(pack, key)
        self.variation = task.variation(k, world)
        self.p: Any = self.variation.params
        self.arena = PolicyRunner(task, self.variation, world)
        weakref.finalize(self, self.arena.close)
        self.gold = list(self.arena.gold().actions)

    def verdict(self, actions: Iterable[Action], **settings: Any) -> Verdict:
        (run,) = self.arena.run(Policy("by hand", "by hand", script(actions), **settings))
        return run.verdict

    def failed(self, actions: Iterable[Action]) -> list[str]:
        return [check.name for check in self.verdict(actions).failed]


def body(action: Action) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(action.body or "")
    return parsed


def name_query(person: Any, *, birth_date: bool = True) -> dict[str, str]:
    query = {"family": person.family, "given": person.given}
    return {**query, "birthdate": person.birth_date} if birth_date else query


@pytest.fixture
def absent(hospital: World) -> Desk:
    return Desk("02b", hospital)


@pytest.mark.parametrize("more", [{}, {"_summary": "count"}, {"_elements": "id"}, {"_count": "1"}])
def test_an_exact_look_up_is_evidence_of_absence(absent: Desk, more: dict[str, str]) -> None:
    person = absent.p.patient
    query = {"family:exact": person.family, "given:exact": person.given, "birthdate": person.birth_date}
    assert not absent.failed([Get("/Patient", {**query, **more}), Finish()])


@pytest.mark.parametrize("more", [{"_summary": "count"}, {"_elements": "id"}])
def test_a_hit_that_was_not_looked_at_may_be_the_person(hospital: World, more: dict[str, str]) -> None:
    """The search also matches a longer family name, so a response without names is no evidence of absence."""
    for k in range(20):
        desk = Desk("02b", hospital, k)
        person = desk.p.patient
        longer = [patient for patient in desk.p.scene.patients if patient.family.startswith(f"{person.family}-")]
        if any((patient.given, patient.birth_date) == (person.given, person.birth_date) for patient in longer):
            look_up = Get("/Patient", {**name_query(person), **more})
            assert desk.failed([look_up, Finish()]) == ["evidence"]
            return
    pytest.fail("no variation has somebody of the same given name, date of birth and a longer family name")


def test_looking_through_all_of_that_name_is_evidence(absent: Desk) -> None:
    assert not absent.failed([Get("/Patient", name_query(absent.p.patient, birth_date=False)), Finish()])
    assert not absent.failed([Get("/Patient", {"birthdate": absent.p.patient.birth_date}), Finish()])


def test_a_batch_of_look_ups_is_evidence(absent: Desk) -> None:
    url = Get("/Patient", name_query(absent.p.patient)).url.lstrip("/")
    entry = [{"request": {"method": "GET", "url": url}}]
    assert not absent.failed([Post("/", {"resourceType": "Bundle", "type": "batch", "entry": entry}), Finish()])


def test_a_lookup_that_does_not_distinguish_people_is_no_evidence(absent: Desk) -> None:
    by_name = name_query(absent.p.patient, birth_date=False)
    assert absent.failed([Get("/Patient", {**by_name, "_elements": "id"}), Finish()]) == ["evidence"]
    assert absent.failed([Get("/Patient", {**by_name, "_elements": "name"}), Finish()]) == ["evidence"]
    assert not absent.failed([Get("/Patient", {**by_name, "_elements": "name,birthDate"}), Finish()])
    assert absent.failed([Get("/Patient", {**by_name, "_summary": "count"}), Finish()]) == ["evidence"]


def test_reading_each_of_that_name_is_evidence(hospital: World) -> None:
    tried = 0
    for k in range(20):
        desk = Desk("02b", hospital, k)
        person = desk.p.patient
        names = (person.given, person.family)
        same_name = [patient.id for patient in desk.p.scene.patients if (patient.given, patient.family) == names]
        look_up = Get("/Patient", {**name_query(person, birth_date=False), "_elements": "name"})
        assert not desk.failed([look_up, *(Get(f"/Patient/{id}") for id in same_name), Finish()])
        if len(same_name) > 1:
            tried += 1
            assert desk.failed([look_up, Get(f"/Patient/{same_name[0]}"), Finish()]) == ["evidence"]
    assert tried


def test_all_pages_of_all_patients_are_evidence_and_one_page_is_not(absent: Desk) -> None:
    assert absent.failed([Get("/Patient?_count=20"), Finish()]) == ["evidence"]
    assert not absent.failed([Get("/Patient?_count=100000"), Finish()])


@pytest.mark.parametrize("far", ["_offset=5000", "_count=1&_offset=200", "_sort=-_id&_offset=999"])
def test_a_far_page_is_no_evidence(absent: Desk, far: str) -> None:
    assert absent.failed([Get(f"/Patient?{far}"), Finish()]) == ["evidence"]
    everyone = sum(1 for resource in absent.variation.setup if resource["resourceType"] == "Patient") + len(
        absent.arena.world.ids("Patient")
    )
    assert absent.failed([Get(f"/Patient?_offset={everyone}"), Finish()]) == ["evidence"]
    name = {"family": absent.p.patient.family}
    assert absent.failed([Get("/Patient", {**name, "_offset": "20"}), Finish()]) == ["evidence"]


def test_reading_other_records_is_no_evidence(absent: Desk) -> None:
    decoy = next(patient for patient in absent.p.scene.patients if patient.birth_date != absent.p.patient.birth_date)
    assert absent.failed([Get("/Practitioner", name_query(absent.p.patient, birth_date=False)), Finish()]) == [
        "evidence"
    ]
    assert absent.failed([Get(f"/Patient/{decoy.id}"), Finish()]) == ["evidence"]
    assert absent.failed([Get("/Patient", name_query(decoy)), Finish()]) == ["evidence"]


def test_hedging_is_refused(absent: Desk) -> None:
    look_up = Get("/Patient", name_query(absent.p.patient))
    hedged: list[list[Any]] = [[""], [None], ["none"], [absent.p.scene.patients[0].id], [[]]]
    for answer in hedged:
        assert absent.failed([look_up, Finish(answer)])


def test_a_bare_name_search_finds_several(hospital: World) -> None:
    """A search that omits a condition of task 02a finds several people."""
    for k in range(10):
        desk = Desk("02a", hospital, k)
        person = desk.p.patient
        with hospital.session() as session:
            session.load(desk.variation.setup)
            for query in (
                name_query(person, birth_date=False),
                {"family": person.family},
                {"name": person.family},
                {"given": person.given, "birthdate": person.birth_date},
                {"family": person.family, "birthdate": person.birth_date},
            ):
                assert len(session.search("Patient", **query)) > 1


@pytest.mark.parametrize("key", ["11a", "14a"])
def test_free_slots_alone_do_not_decide(key: str, hospital: World) -> None:
    desk = Desk(key, hospital)
    with hospital.session() as session:
        session.load(desk.variation.setup)
        free = session.search("Slot", status="free", _sort="start")
        assert f"Slot/{free[0]['id']}" != desk.p.target
        if key == "14a":
            assert len(session.search("Slot", status="free", start=desk.p.slot.start)) > 1


def test_evidence_grading_wants_the_slot_seen(hospital: World) -> None:
    desk = Desk("11a", hospital)
    lucky = [desk.gold[-1]]
    assert desk.verdict(lucky).success
    assert not desk.verdict(lucky, grading="evidence").success
    assert desk.verdict(desk.gold, grading="evidence").success


def test_a_reverted_change_is_a_change(hospital: World) -> None:
    desk = Desk("14a", hospital)
    other = next(slot for slot in desk.p.scene.slots if slot.status == "free" and slot != desk.p.slot)
    url = f"/Slot/{other.id}"
    mistake = Put(url, {**slot_resource(other), "status": "busy"})
    for changes in ([mistake], [mistake, Put(url, slot_resource(other))]):
        assert desk.failed([*changes, *desk.gold]) == ["nothing else changed"]
    assert not desk.failed([Put(url, slot_resource(other)), *desk.gold])


def test_an_appointment_needs_both_participants_accepted(hospital: World) -> None:
    desk = Desk("14a", hospital)
    (position,) = (n for n, action in enumerate(desk.gold) if action.kind == "POST")
    id = desk.gold[-1].answer
    later = Patch(f"/Appointment/{(id or [''])[0]}", [{"op": "remove", "path": "/participant/1"}])
    assert desk.failed([*desk.gold[:-1], later, desk.gold[-1]]) == ["participants"]
    assert position == 3


def test_cancelling_by_patch_of_a_search_is_fine_and_other_statuses_are_not(hospital: World) -> None:
    desk = Desk("15a", hospital)
    p = desk.p
    free = Patch(f"/Slot/{p.booking.slot.id}", [{"op": "replace", "path": "/status", "value": "free"}])

    def ending(status: str) -> list[Action]:
        patch = [{"op": "replace", "path": "/status", "value": status}]
        return [Patch(f"/Appointment/{p.booking.id}", patch), free, Finish([p.booking.id, p.booking.slot.id])]

    assert not desk.failed(ending("cancelled"))
    for status in ("noshow", "entered-in-error", "proposed"):
        assert desk.failed(ending(status)) == ["appointment status"]


def test_right_writes_without_an_answer_pass_only_light_validation(hospital: World) -> None:
    desk = Desk("15a", hospital)
    verdict = desk.verdict(desk.gold[:-1])
    assert not verdict.success
    assert verdict.light
    assert 0 < verdict.reward("dense") < 1
