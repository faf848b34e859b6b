"""Agents with habits, on the tasks of medical history and surgery plans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fhir_gym.actions import Finish, Get, Patch, Post
from fhir_gym.tasks import get_task
from fhir_gym.tasks.appointment.history import VERIFICATION_STATUS, condition, entered_in_error
from fhir_gym.tasks.appointment.surgery import on_day, plan_request
from tests.tasks.test_appointment import PACK, Desk

if TYPE_CHECKING:
    from fhir_gym.fhir import World

KEYS = ("03", "04a", "04b", "05", "06a", "06b")
DAY = "2024-02-29"


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    yield
    while Desk.opened:
        Desk.opened.pop().close()


def body(desk: Desk) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(desk.gold[0].body or "")
    return parsed


@pytest.mark.parametrize("key", KEYS)
def test_each_phrasing_says_all_that_is_checked(key: str, hospital: World) -> None:
    task = get_task(PACK, key)
    assert len(task.prompts) >= 3
    for phrasing in range(len(task.prompts)):
        variation = task.variation(2, hospital, phrasing)
        for value in task.words(variation.params, hospital).values():
            assert value in variation.prompt


@pytest.mark.parametrize("key", KEYS)
def test_only_the_patients_id_is_told(key: str, hospital: World) -> None:
    for k in range(5):
        variation = get_task(PACK, key).variation(k, hospital)
        params: Any = variation.params
        assert {one["id"] for one in variation.setup if one["id"] in variation.prompt} == {params.person.id}


# Medical history


def test_a_second_condition_is_one_too_many(hospital: World) -> None:
    desk = Desk("03", hospital)
    assert desk.failed([desk.gold[0], *desk.gold]) == ["nothing else changed"]


def test_reviving_what_was_entered_in_error_is_no_new_entry(hospital: World) -> None:
    desk = Desk("03", hospital)
    old = desk.p.decoys[0].id
    confirmed = {"coding": [{"system": VERIFICATION_STATUS, "code": "confirmed"}]}
    patch = [{"op": "replace", "path": "/verificationStatus", "value": confirmed}]
    failed = desk.failed([Patch(f"/Condition/{old}", patch), Finish([old])])
    assert {"Condition created", "nothing else changed"} <= set(failed)


@pytest.mark.parametrize("status", ["unconfirmed", "provisional", "differential", "confirmed"])
def test_the_degree_of_certainty_is_not_asked_for(status: str, hospital: World) -> None:
    desk = Desk("03", hospital)
    verification = {"coding": [{"system": VERIFICATION_STATUS, "code": status}]}
    create = Post("/Condition", {**body(desk), "verificationStatus": verification})
    assert not desk.failed([create, desk.gold[-1]])


def test_the_first_condition_is_neither_the_first_hit_nor_an_active_one(hospital: World) -> None:
    for k in range(10):
        desk = Desk("04a", hospital, k)
        subject = f"Patient/{desk.p.person.id}"
        with hospital.session() as session:
            session.load(desk.variation.setup)
            by_date = session.search("Condition", subject=subject, _sort="recorded-date")
            active = session.search("Condition", subject=subject, **{"clinical-status": "active"})
            everyone = session.search("Condition", _sort="recorded-date")
        assert by_date[0]["id"] == desk.p.mistaken.id and by_date[1]["id"] == desk.p.target.id
        assert desk.p.target.id not in [one["id"] for one in active]
        assert everyone[0]["id"] != desk.p.target.id


def test_the_latest_condition_is_not_the_first(hospital: World) -> None:
    desk = Desk("04a", hospital)
    assert desk.failed([*desk.gold[:-1], Finish([desk.p.others[0].id])]) == ["answer"]


def test_looking_at_active_conditions_only_does_not_show_an_empty_history(hospital: World) -> None:
    desk = Desk("04b", hospital)
    query = {"subject": f"Patient/{desk.p.person.id}"}
    assert not desk.failed([Get("/Condition", query), Finish()])
    assert not desk.failed([Get("/Condition", {"patient": desk.p.person.id}), Finish()])
    assert not desk.failed([Get("/Condition", {**query, "verification-status": "confirmed"}), Finish()])
    assert desk.failed([Get("/Condition", {**query, "clinical-status": "active"}), Finish()]) == ["evidence"]
    assert desk.failed([Get("/Condition", {"subject": f"Patient/{desk.p.namesake.id}"}), Finish()]) == ["evidence"]
    assert desk.failed([Get(f"/Patient/{desk.p.person.id}"), Finish()]) == ["evidence"]


def test_what_was_entered_in_error_is_no_history(hospital: World) -> None:
    desk = Desk("04b", hospital)
    assert desk.failed([*desk.gold[:-1], Finish([desk.p.mistaken.id])]) == ["answer"]
    assert entered_in_error(condition(desk.p.mistaken))
    assert not entered_in_error(condition(desk.p.target))
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


def test_a_plan_may_be_created_by_put_and_mended_by_patch(hospital: World) -> None:
    desk = Desk("05", hospital)
    id = (desk.gold[-1].answer or [""])[0]
    draft = Post("/ServiceRequest", {**body(desk), "status": "draft"})
    mend = Patch(f"/ServiceRequest/{id}", [{"op": "replace", "path": "/status", "value": "active"}])
    assert not desk.failed([draft, mend, desk.gold[-1]])
    assert desk.failed([draft, desk.gold[-1]]) == ["status"]


def test_the_window_is_half_open(hospital: World) -> None:
    seen = set()
    for k in range(40):
        desk = Desk("06a", hospital, k)
        today, p = date.fromisoformat(desk.p.today), desk.p
        end = (today + timedelta(days=p.days)).isoformat()
        days = [one.when[:10] for one in p.decoys if one.status == "active" and one.category == p.target.category]
        assert end in days and (today - timedelta(days=1)).isoformat() in days
        assert p.today <= p.target.when[:10] < end
        seen.add("first" if p.target.when[:10] == p.today else "")
        seen.add("last" if p.target.when[:10] == (today + timedelta(days=p.days - 1)).isoformat() else "")
    assert seen == {"first", "last", ""}


def test_every_condition_of_the_search_matters(hospital: World) -> None:
    for k in range(10):
        desk = Desk("06a", hospital, k)
        path, _, query = desk.gold[0].url.partition("?")
        pairs = query.split("&")
        with hospital.session() as session:
            session.load(desk.variation.setup)
            for left_out in range(len(pairs)):
                found = session.get(f"{path}?{'&'.join(pairs[:left_out] + pairs[left_out + 1 :])}")
                assert found["total"] > 1


def test_a_look_at_another_window_does_not_show_that_there_is_no_plan(hospital: World) -> None:
    desk = Desk("06b", hospital)
    end = date.fromisoformat(desk.p.today) + timedelta(days=desk.p.days)
    subject = {"subject": f"Patient/{desk.p.person.id}"}
    assert not desk.failed([Get("/ServiceRequest", subject), Finish()])
    assert not desk.failed([Get("/ServiceRequest", {**subject, "occurrence": f"le{end}"}), Finish()])
    assert desk.failed([Get("/ServiceRequest", {**subject, "occurrence": f"ge{end}"}), Finish()]) == ["evidence"]
    assert desk.failed([Get("/ServiceRequest", {**subject, "status": "draft"}), Finish()]) == ["evidence"]
    outside = next(one for one in desk.p.decoys if one.when[:10] == end.isoformat())
    assert plan_request(outside)["status"] == "active"
    assert "answer" in desk.failed([*desk.gold[:-1], Finish([outside.id])])
