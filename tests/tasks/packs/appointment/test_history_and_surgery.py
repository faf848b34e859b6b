"""Tasks about medical history and surgery plans: careful agents succeed, careless agents fail."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fhir_gym.actions import Finish, Get, Patch, Post
from fhir_gym.tasks import get_task
from fhir_gym.tasks.packs.appointment.history import (
    VERIFICATION_STATUS,
    HistoryScene,
    Problem,
    condition_resource,
    entered_in_error,
)
from fhir_gym.tasks.packs.appointment.surgery import SURGICAL, SurgeryOrder, SurgeryScene, on_day
from tests.tasks.test_appointment import PACK, Desk, body

if TYPE_CHECKING:
    from fhir_gym.fhir import World

DAY = "2024-02-29"


def problems_of(scene: HistoryScene, patient: str) -> list[Problem]:
    return [problem for problem in scene.problems if problem.patient == patient]


def orders_of(scene: SurgeryScene, patient: str) -> list[SurgeryOrder]:
    return [order for order in scene.orders if order.patient == patient]


# Medical history


def test_a_second_condition_fails(hospital: World) -> None:
    desk = Desk("03", hospital)
    assert desk.failed([desk.gold[0], *desk.gold]) == ["nothing else changed"]


def test_reviving_an_entry_in_error_is_no_new_entry(hospital: World) -> None:
    desk = Desk("03", hospital)
    old = next(decoy.id for decoy in desk.p.decoys if decoy.mistaken)
    confirmed = {"coding": [{"system": VERIFICATION_STATUS, "code": "confirmed"}]}
    patch = [{"op": "replace", "path": "/verificationStatus", "value": confirmed}]
    failed = desk.failed([Patch(f"/Condition/{old}", patch), Finish([old])])
    assert {"Condition created", "nothing else changed"} <= set(failed)


@pytest.mark.parametrize("status", ["unconfirmed", "provisional", "differential", "confirmed"])
def test_any_degree_of_certainty_is_accepted(status: str, hospital: World) -> None:
    desk = Desk("03", hospital)
    verification = {"coding": [{"system": VERIFICATION_STATUS, "code": status}]}
    create = Post("/Condition", {**body(desk.gold[0]), "verificationStatus": verification})
    assert not desk.failed([create, desk.gold[-1]])


def test_the_new_entry_exists_in_error_and_for_a_namesake(hospital: World) -> None:
    for k in range(20):
        p = Desk("03", hospital, k).p
        own = [decoy for decoy in p.decoys if decoy.patient == p.patient.id]
        assert [decoy.what == p.what for decoy in own] == [decoy.mistaken for decoy in own]
        assert {decoy.mistaken for decoy in own} == {True, False}
        assert any(decoy.patient != p.patient.id and not decoy.mistaken for decoy in p.decoys)


def test_the_first_condition_is_neither_the_first_hit_nor_an_active_one(hospital: World) -> None:
    seen = set()
    for k in range(20):
        desk = Desk("04a", hospital, k)
        p, subject = desk.p, f"Patient/{desk.p.patient.id}"
        name = {"subject:Patient.family": p.patient.family, "subject:Patient.given": p.patient.given}
        with hospital.session() as session:
            session.load(desk.variation.setup)
            by_date = session.search("Condition", subject=subject, _sort="recorded-date")
            active = session.search("Condition", subject=subject, **{"clinical-status": "active"})
            namesakes = session.search("Condition", **name, _sort="recorded-date")
            everyone = session.search("Condition", _sort="recorded-date")
        before = [condition["id"] for condition in by_date].index(p.first.id)
        assert before > 0 and all(entered_in_error(condition) for condition in by_date[:before])
        assert len([condition for condition in by_date if not entered_in_error(condition)]) > 2
        assert p.first.id not in [condition["id"] for condition in active]
        for others in (namesakes, everyone):
            assert next(resource["id"] for resource in others if not entered_in_error(resource)) != p.first.id
        seen.add(before)
    assert seen == {1, 2}


def test_all_scenes_have_patients_with_and_without_a_history(hospital: World) -> None:
    for key in ("04a", "04b"):
        task: Any = get_task(PACK, key)
        for k in range(20):
            scene = task.variation(k, hospital).params.scene
            offered = task.candidates(scene)
            assert min(len(found) for found in offered.values()) > 3
            for absent in offered["absent"]:
                assert problems_of(scene, absent.patient) and all(
                    p.mistaken for p in problems_of(scene, absent.patient)
                )


def test_the_latest_condition_is_not_the_first(hospital: World) -> None:
    desk = Desk("04a", hospital)
    assert desk.failed(
        [
            *desk.gold[:-1],
            Finish([max(problems_of(desk.p.scene, desk.p.patient.id), key=lambda problem: problem.recorded).id]),
        ]
    ) == ["answer"]


def test_looking_at_active_conditions_only_does_not_show_an_empty_history(hospital: World) -> None:
    desk = Desk("04b", hospital)
    query = {"subject": f"Patient/{desk.p.patient.id}"}
    assert not desk.failed([Get("/Condition", query), Finish()])
    assert not desk.failed([Get("/Condition", {"patient": desk.p.patient.id}), Finish()])
    assert not desk.failed([Get("/Condition", {**query, "verification-status": "confirmed"}), Finish()])
    assert desk.failed([Get("/Condition", {**query, "clinical-status": "active"}), Finish()]) == ["evidence"]
    other = next(patient.id for patient in desk.p.scene.patients if patient.id != desk.p.patient.id)
    assert desk.failed([Get("/Condition", {"subject": f"Patient/{other}"}), Finish()]) == ["evidence"]
    assert desk.failed([Get(f"/Patient/{desk.p.patient.id}"), Finish()]) == ["evidence"]


def test_an_entry_in_error_is_no_history(hospital: World) -> None:
    desk = Desk("04b", hospital)
    mistaken = problems_of(desk.p.scene, desk.p.patient.id)[0]
    assert desk.failed([*desk.gold[:-1], Finish([mistaken.id])]) == ["answer"]
    assert entered_in_error(condition_resource(mistaken))
    assert not entered_in_error(condition_resource(desk.p.first))
    assert not entered_in_error({})


# Surgery plans


@pytest.mark.parametrize(
    ("request_", "right"),
    [
        ({"occurrenceDateTime": DAY}, True),
        ({"occurrenceDateTime": f"{DAY}T23:30:00Z"}, True),
        ({"occurrenceDateTime": f"{DAY}T08:00:00-05:00"}, True),
        ({"occurrenceDateTime": "2024-02"}, False),
        ({"occurrenceDateTime": "2024-03-01"}, False),
        ({"occurrencePeriod": {"start": DAY, "end": DAY}}, True),
        ({"occurrencePeriod": {"start": f"{DAY}T08:00:00Z", "end": f"{DAY}T10:00:00Z"}}, True),
        ({"occurrencePeriod": {"start": DAY}}, False),
        ({"occurrencePeriod": {"end": DAY}}, False),
        ({"occurrencePeriod": {"start": DAY, "end": "2024-03-01"}}, False),
        ({"occurrenceDateTime": None}, False),
        ({}, False),
    ],
)
def test_the_day_of_a_plan(request_: dict[str, Any], right: bool) -> None:
    assert on_day(request_, DAY) is right


def test_a_draft_may_be_activated_by_patch(hospital: World) -> None:
    desk = Desk("05", hospital)
    id = (desk.gold[-1].answer or [""])[0]
    draft = Post("/ServiceRequest", {**body(desk.gold[0]), "status": "draft"})
    mend = Patch(f"/ServiceRequest/{id}", [{"op": "replace", "path": "/status", "value": "active"}])
    assert not desk.failed([draft, mend, desk.gold[-1]])
    assert desk.failed([draft, desk.gold[-1]]) == ["status"]


def test_the_window_is_half_open(hospital: World) -> None:
    for key, expected in (("06a", {"before", "first", "last", "end", ""}), ("06b", {"before", "end", ""})):
        seen: set[str] = set()
        for k in range(60):
            p: Any = get_task(PACK, key).variation(k, hospital).params
            today = date.fromisoformat(p.scene.today)
            named = {-1: "before", 0: "first", p.days - 1: "last", p.days: "end"}
            days = [
                (date.fromisoformat(order.when[:10]) - today).days
                for order in orders_of(p.scene, p.patient.id)
                if order.status == "active" and order.category == SURGICAL
            ]
            assert [0 <= day < p.days for day in days].count(True) == (key == "06a")
            assert min(days) < 0 and max(days) >= p.days
            seen.update(named.get(day, "") for day in days)
        assert seen == expected


def test_the_new_plan_exists_as_revoked_and_for_a_namesake(hospital: World) -> None:
    for k in range(20):
        p = Desk("05", hospital, k).p
        own = [decoy for decoy in p.decoys if decoy.patient == p.patient.id]
        assert [decoy.what == p.what for decoy in own] == [decoy.status == "revoked" for decoy in own]
        assert p.day not in [decoy.when for decoy in own if decoy.what == p.what]
        assert {decoy.status for decoy in own} == {"revoked", "active"}
        assert any(
            decoy.patient != p.patient.id and decoy.status == "active" and decoy.when == p.day for decoy in p.decoys
        )


@pytest.mark.parametrize("key", ["06a", "06b"])
def test_every_condition_of_the_search_matters(key: str, hospital: World) -> None:
    for k in range(10):
        desk = Desk(key, hospital, k)
        path, _, query = desk.gold[0].url.partition("?")
        pairs = query.split("&")
        with hospital.session() as session:
            session.load(desk.variation.setup)
            right = session.get(desk.gold[0].url)["total"]
            assert right == (key == "06a")
            for left_out in range(len(pairs)):
                found = session.get(f"{path}?{'&'.join(pairs[:left_out] + pairs[left_out + 1 :])}")
                assert found["total"] > right
            family = Get("", {"subject:Patient.family": desk.p.patient.family}).url
            assert session.get(f"{path}{family}&{'&'.join(pairs[1:])}")["total"] > right


def test_a_search_of_another_window_is_no_evidence(hospital: World) -> None:
    desk = Desk("06b", hospital)
    end = date.fromisoformat(desk.p.scene.today) + timedelta(days=desk.p.days)
    subject = {"subject": f"Patient/{desk.p.patient.id}"}
    assert not desk.failed([Get("/ServiceRequest", subject), Finish()])
    assert not desk.failed([Get("/ServiceRequest", {**subject, "occurrence": f"le{end}"}), Finish()])
    assert desk.failed([Get("/ServiceRequest", {**subject, "occurrence": f"ge{end}"}), Finish()]) == ["evidence"]
    assert desk.failed([Get("/ServiceRequest", {**subject, "status": "draft"}), Finish()]) == ["evidence"]
    plans = [order for order in orders_of(desk.p.scene, desk.p.patient.id) if order.category == SURGICAL]
    outside = next(plan for plan in plans if plan.status == "active" and plan.when[:10] >= end.isoformat())
    assert "answer" in desk.failed([*desk.gold[:-1], Finish([outside.id])])
