"""Agents with habits, on the tasks that make, cancel, wait for and move appointments."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym.actions import Action, Finish, Get, Patch, Post, Put
from fhir_gym.tasks import get_task
from fhir_gym.tasks.appointment.clinic import slot
from fhir_gym.tasks.appointment.waitlist import day_of, waitlisted, window_checks
from fhir_gym.tasks.clock import next_weekday, parse_instant
from tests.tasks.test_appointment import PACK, Desk

if TYPE_CHECKING:
    from fhir_gym.fhir import World

KEYS = ("14a", "14b", "15a", "15b", "15c", "16a", "16b", "16c", "17a", "17b")
BY_ID = ("16a", "16b", "16c", "17a", "17b")
"""Tasks that name the patient by id."""


def body(action: Action) -> dict[str, Any]:
    assert action.body is not None
    parsed: dict[str, Any] = json.loads(action.body)
    return parsed


def replace(url: str, path: str, value: Any) -> Action:
    return Patch(url, [{"op": "replace", "path": path, "value": value}])


@pytest.mark.parametrize("key", KEYS)
def test_what_is_asked_for_is_said(key: str, hospital: World) -> None:
    task = get_task(PACK, key)
    assert len(task.prompts) >= 3
    for phrasing in range(len(task.prompts)):
        variation = task.variation(3, hospital, phrasing)
        for name, value in task.words(variation.params, hospital).items():
            assert value in variation.prompt or (key not in BY_ID and name == "patient"), name


@pytest.mark.parametrize("key", KEYS)
def test_ids_are_told_only_where_the_ask_names_them(key: str, hospital: World) -> None:
    task = get_task(PACK, key)
    for k in range(5):
        variation = task.variation(k, hospital)
        p: Any = variation.params
        told = {one["id"] for one in variation.setup if one["id"] in variation.prompt}
        named = {p.patient.id} if key in BY_ID else set()
        assert told == named | ({p.places[0].id} if key == "17b" else set())


@pytest.mark.parametrize("key", KEYS)
def test_times_are_those_of_the_slot(key: str, hospital: World) -> None:
    """What is on file could be: an appointment's times are its slot's, and a slot that is free has none that stands."""
    for k in range(20):
        setup = get_task(PACK, key).variation(k, hospital).setup
        slots = {f"Slot/{one['id']}": one for one in setup if one["resourceType"] == "Slot"}
        for one in setup:
            for taken in one.get("slot", []):
                place = slots[taken["reference"]]
                assert (place["start"], place["end"]) == (one["start"], one["end"])
                assert (place["status"] == "free") == (one["status"] == "cancelled")


# 14


def test_both_doctors_are_free_and_have_names_of_their_own(hospital: World) -> None:
    task = get_task(PACK, "14b")
    for k in range(10):
        variation = task.variation(k, hospital)
        p: Any = variation.params
        assert p.diaries[0].provider.name != p.diaries[1].provider.name
        with hospital.session() as session:
            session.load(variation.setup)
            assert len(session.search("Practitioner", family=p.doctor.family)) >= 2
            assert len(session.search("Patient", family=p.patient.family, birthdate=p.patient.birth_date)) >= 2
            free = session.search("Slot", status="free", start=p.target.start)
            assert {one["id"] for one in free} >= {p.target.id, p.decoys[0].id}


def test_an_appointment_may_be_put_with_an_id_of_ones_own(hospital: World) -> None:
    desk = Desk("14b", hospital)
    *_, made, take, _ = desk.gold
    put = Put("/Appointment/visit-1", {**body(made), "id": "visit-1"})
    assert not desk.failed([put, take, Finish(["Appointment/visit-1"])])
    assert desk.failed([put, take, Finish([desk.p.target.id])]) == ["answer"]
    assert desk.failed([put, replace("/Appointment/visit-1", "/status", "proposed"), take, Finish(["visit-1"])]) == [
        "appointment status"
    ]


# 15


@pytest.mark.parametrize("key", ["15a", "15b"])
def test_the_next_appointment_is_not_the_first_one_found(key: str, hospital: World) -> None:
    for k in range(20):
        p: Any = get_task(PACK, key).variation(k, hospital).params
        mine = [one for one in p.decoys if one.patient == p.patient.id]
        assert {one.status for one in mine} == {"booked", "cancelled", "proposed"}
        coming = sorted(
            one.opening.start
            for one in (p.target, *mine)
            if one.status == "booked" and one.opening.start > p.now and one.practitioner == p.doctor.id
        )
        assert coming[0] == p.target.opening.start < coming[1]
        assert sum(one.opening.start < p.target.opening.start for one in p.decoys) >= 4


def test_one_booked_appointment_is_on_the_next_monday(hospital: World) -> None:
    monday = next_weekday(hospital.now, 0)
    days = set()
    for k in range(20):
        p: Any = get_task(PACK, "15c").variation(k, hospital).params
        booked = [one for one in (p.target, *p.decoys) if one.status == "booked" and one.patient == p.patient.id]
        on = [date.fromisoformat(one.opening.start[:10]) for one in booked]
        assert on.count(monday) == 1
        assert on[0] == monday
        days |= {(day - monday).days for day in on}
    assert days == {-7, -1, 0, 1, 7}


def test_the_slot_must_be_that_of_the_appointment(hospital: World) -> None:
    desk = Desk("15c", hospital)
    p = desk.p
    cancel = replace(f"/Appointment/{p.target.id}", "/status", "cancelled")
    free = replace(f"/Slot/{p.target.opening.id}", "/status", "free")
    assert not desk.failed([cancel, free, Finish([p.target.id, p.target.opening.id])])
    other = p.decoys[-1].opening.id
    wrong = desk.failed([cancel, replace(f"/Slot/{other}", "/status", "free"), Finish([p.target.id, other])])
    assert {"slot updated", "answer", "nothing else changed"} <= set(wrong)
    assert desk.failed([cancel, free, Finish([p.target.id, p.free.id])]) == ["answer"]


# 16


DAYS = st.dates(date(1950, 1, 1), date(2100, 1, 1))


@given(DAYS, st.times(), st.integers(-12, 12))
def test_the_day_of_a_moment_is_that_in_utc(day: date, time: Any, offset: int) -> None:
    moment = datetime.combine(day, time, timezone(timedelta(hours=offset)))
    assert day_of(moment.isoformat()) == moment.astimezone(UTC).date().isoformat()
    assert day_of(day.isoformat()) == day.isoformat()


@given(st.one_of(st.text(), st.none(), st.integers(), st.lists(st.text())))
def test_what_is_no_day_has_none(value: Any) -> None:
    assert day_of(value) is None or isinstance(value, str)


@pytest.mark.parametrize(
    ("periods", "right"),
    [
        ([{"start": "2023-11-20", "end": "2023-11-21"}], [True, True]),
        ([{"start": "2023-11-20", "end": "2023-11-20"}], [True, True]),
        ([{"start": "2023-11-20T23:00:00-01:00", "end": "2023-11-21"}], [False, True]),
        ([{"start": "2023-11-20", "end": "2023-11-22"}], [True, False]),
        ([{"start": "2023-11", "end": "2023-11-21"}], [False, True]),
        ([{"end": "2023-11-21"}], [False, True]),
        ([{"start": "2023-11-20"}], [True, False]),
        ([{"start": "2023-11-20", "end": "2023-11-21"}] * 2, [False, False]),
        ([], [False, False]),
        (None, [False, False]),
        (["2023-11-20"], [False, False]),
    ],
)
def test_windows(periods: Any, right: list[bool]) -> None:
    checks = window_checks(periods, "2023-11-20", ("2023-11-20", "2023-11-21"))
    assert [check.passed for check in checks] == right


def test_a_window_is_as_long_as_it_was_said(hospital: World) -> None:
    today = hospital.now.date()
    seen = set()
    for k in range(60):
        p: Any = get_task(PACK, "16a").variation(k, hospital).params
        first, until = date.fromisoformat(p.first), date.fromisoformat(p.until)
        assert (first - today).days == p.ahead
        assert (until - first).days == p.days >= 1
        seen.add(p.ahead)
    assert len(seen) > 20


def test_a_practitioner_may_come_first_on_the_waitlist(hospital: World) -> None:
    desk = Desk("16a", hospital)
    entry = body(desk.gold[-2])
    put = Put("/Appointment/w1", {**entry, "id": "w1", "participant": entry["participant"][::-1]})
    assert not desk.failed([put, Finish(["w1"])])
    for one in desk.p.waiting:
        taken = {**waitlisted(one), "status": "waitlist", "requestedPeriod": entry["requestedPeriod"]}
        assert desk.failed([Put(f"/Appointment/{one.id}", taken), Finish([one.id])])


def test_one_free_slot_is_within_the_requested_period(hospital: World) -> None:
    edges = set()
    for k in range(40):
        p: Any = get_task(PACK, "16b").variation(k, hospital).params
        start, end = parse_instant(p.entry.start), parse_instant(p.entry.end)
        free = [
            one
            for one in (p.target, *p.decoys)
            if one.schedule == p.diaries[0].id
            and one.status == "free"
            and start <= parse_instant(one.start)
            and parse_instant(one.end) <= end
        ]
        assert free == [p.target]
        edges |= {parse_instant(p.target.start) == start, "end" if parse_instant(p.target.end) == end else "before"}
    assert edges == {True, False, "end", "before"}


def test_a_waitlist_entry_is_booked_by_patches(hospital: World) -> None:
    desk = Desk("16b", hospital)
    p = desk.p
    target, url = slot(p.target), f"/Appointment/{p.entry.id}"
    operations = [
        {"op": "replace", "path": "/status", "value": "booked"},
        {"op": "replace", "path": "/participant/1/status", "value": "accepted"},
        {"op": "add", "path": "/slot", "value": [{"reference": f"Slot/{p.target.id}"}]},
        {"op": "add", "path": "/start", "value": target["start"]},
        {"op": "add", "path": "/end", "value": target["end"]},
    ]
    book, take = Patch(url, operations), replace(f"/Slot/{p.target.id}", "/status", "busy")
    finish = Finish([p.entry.id, p.target.id])
    assert not desk.failed([book, take, finish])
    gone = Patch(url, [{"op": "remove", "path": "/requestedPeriod"}])
    assert not desk.failed([book, gone, take, finish])
    more = Patch(url, [{"op": "remove", "path": "/requestedPeriod/0/end"}])
    assert desk.failed([book, more, take, finish]) == ["rest of appointment unchanged"]
    assert set(desk.failed([book, finish])) == {"slot updated", "slot status", "rest of slot unchanged"}


def test_leaving_the_waitlist_leaves_the_rest_booked(hospital: World) -> None:
    desk = Desk("16c", hospital)
    p = desk.p
    off = replace(f"/Appointment/{p.entry.id}", "/status", "cancelled")
    assert not desk.failed([off, Finish([p.entry.id])])
    also = replace(f"/Appointment/{p.bookings[0].id}", "/status", "cancelled")
    assert desk.failed([off, also, Finish([p.entry.id])]) == ["nothing else changed"]
    assert desk.failed([off, Finish([p.bookings[0].id])]) == ["answer"]
    with hospital.session() as session:
        session.load(desk.variation.setup)
        assert len(session.search("Appointment", patient=p.patient.id, status="waitlist")) == 1
        assert len(session.search("Appointment", status="waitlist")) > 1


# 17


def test_an_appointment_moves_by_patches_in_any_order(hospital: World) -> None:
    desk = Desk("17a", hospital)
    p = desk.p
    target, url = slot(p.target), f"/Appointment/{p.booking.id}"
    operations = [
        {"op": "replace", "path": "/slot/0/reference", "value": f"Slot/{p.target.id}"},
        {"op": "replace", "path": "/start", "value": target["start"]},
        {"op": "replace", "path": "/end", "value": target["end"]},
    ]
    move = Patch(url, operations)
    take = replace(f"/Slot/{p.target.id}", "/status", "busy")
    free = replace(f"/Slot/{p.booking.opening.id}", "/status", "free")
    finish = Finish([p.booking.id, p.target.id])
    assert not desk.failed([free, take, move, finish])
    both = Patch(url, [{"op": "add", "path": "/slot/-", "value": {"reference": f"Slot/{p.booking.opening.id}"}}])
    assert desk.failed([free, take, move, both, finish]) == ["appointment slot"]
    pending = replace(url, "/status", "pending")
    assert desk.failed([free, take, move, pending, finish]) == ["rest of appointment unchanged"]
    assert {one.removeprefix("old slot ") for one in desk.failed([take, move, finish])} == {
        *("updated", "status", "rest of old slot unchanged")
    }


def test_the_appointment_to_move_is_one_of_several(hospital: World) -> None:
    for k in range(20):
        p: Any = get_task(PACK, "17a").variation(k, hospital).params
        mine = [one for one in (p.booking, *p.others) if one.patient == p.patient.id]
        coming = [one for one in mine if one.status == "booked" and one.opening.start > p.now]
        assert [one.id for one in coming if one.practitioner == p.doctor.id] == [p.booking.id]
        assert len(coming) == 2
        assert p.booking.opening.start[:10] != p.target.start[:10]


def test_another_provider_by_a_new_appointment(hospital: World) -> None:
    desk = Desk("17b", hospital)
    p = desk.p
    moved = body(next(action for action in desk.gold if action.url.startswith("/Appointment/")))
    fresh = {name: value for name, value in moved.items() if name not in ("id", "meta", "description")}
    off = replace(f"/Appointment/{p.booking.id}", "/status", "cancelled")
    take, free = (action for action in desk.gold if action.kind == "PUT" and action.url.startswith("/Slot/"))
    entry = [
        {"resource": fresh, "request": {"method": "POST", "url": "Appointment"}},
        {"resource": body(take), "request": {"method": "PUT", "url": take.url[1:]}},
        {"resource": body(free), "request": {"method": "PUT", "url": free.url[1:]}},
    ]
    bundle = Post("/", {"resourceType": "Bundle", "type": "transaction", "entry": entry})
    new = str(desk.variation.next_id)
    assert not desk.failed([bundle, off, Finish([new, p.target.id])])
    assert not desk.failed([off, Post("/Appointment", fresh), take, free, Finish([new, p.target.id])])
    assert "old appointment does not stand too" in desk.failed([bundle, Finish([new, p.target.id])])
    assert desk.failed([bundle, off, Finish([p.booking.id, p.target.id])]) == ["answer"]
    twice = [bundle, off, Post("/Appointment", fresh), Finish([new, p.target.id])]
    assert desk.failed(twice) == ["nothing else changed"]


def test_one_other_provider_of_the_clinic_is_free(hospital: World) -> None:
    for k in range(10):
        variation = get_task(PACK, "17b").variation(k, hospital)
        p: Any = variation.params
        with hospital.session() as session:
            session.load(variation.setup)
            query = {"schedule.actor": p.places[0].reference, "start": p.target.start, "status": "free"}
            found = {one["id"]: one["schedule"]["reference"] for one in session.search("Slot", **query)}
            assert len(found) == 2
            assert found.pop(p.target.id) == f"Schedule/{p.diaries[1].id}"
            assert set(found.values()) == {f"Schedule/{p.diaries[0].id}"}
            assert len(session.search("Slot", start=p.target.start, status="free")) > 2


def test_evidence_is_the_appointment_and_the_slots(hospital: World) -> None:
    for key in ("17a", "17b"):
        desk = Desk(key, hospital)
        writes = [action for action in desk.gold if action.kind in ("PUT", "FINISH")]
        assert desk.verdict(writes).success
        assert not desk.verdict(writes, grading="evidence").success
        looks = [Get(f"/{one}") for one in get_task(PACK, key).rests_on(desk.p)]
        assert desk.verdict([*looks, *writes], grading="evidence").success
