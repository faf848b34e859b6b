"""Tasks that book, cancel, waitlist and reschedule appointments: careful agents succeed, careless agents fail."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace as replace_in
from datetime import UTC, date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym.actions import Action, Finish, Get, Patch, Post, Put
from fhir_gym.soundness.policy_runner import PolicyRunner
from fhir_gym.tasks import get_task
from fhir_gym.tasks.core.dates import next_weekday, parse_instant
from fhir_gym.tasks.packs.appointment.appointment_scene import day_of, waitlist_resource, window_checks
from fhir_gym.tasks.packs.appointment.bookings import earliest_match, unique_match
from fhir_gym.tasks.packs.appointment.clinic import slot_resource
from tests.tasks.test_appointment import PACK, Desk, body

if TYPE_CHECKING:
    from fhir_gym.fhir import World

KEYS = ("14a", "14b", "15a", "15b", "15c", "16a", "16b", "16c", "17a", "17b")
BY_ID = ("16a", "16b", "16c", "17a", "17b")
"""Tasks whose prompts identify the patient by id."""


def replace(url: str, path: str, value: Any) -> Action:
    return Patch(url, [{"op": "replace", "path": path, "value": value}])


@pytest.mark.parametrize("key", KEYS)
def test_prompts_contain_the_request(key: str, hospital: World) -> None:
    task = get_task(PACK, key)
    assert len(task.prompts) >= 3
    for phrasing in range(len(task.prompts)):
        variation = task.variation(3, hospital, phrasing)
        for name, value in task.prompt_values(variation.params, hospital).items():
            assert value in variation.prompt or (key not in BY_ID and name == "patient"), name


@pytest.mark.parametrize("key", KEYS)
def test_prompts_name_only_the_ids_they_need(key: str, hospital: World) -> None:
    task = get_task(PACK, key)
    for k in range(5):
        variation = task.variation(k, hospital)
        p: Any = variation.params
        told = {resource["id"] for resource in variation.setup if resource["id"] in variation.prompt}
        named = {p.patient.id} if key in BY_ID else set()
        assert told == named | ({p.place.id} if key == "17b" else set())


@pytest.mark.parametrize("key", KEYS)
def test_times_equal_those_of_the_slot(key: str, hospital: World) -> None:
    """In every scene, appointments agree with their slots, and free slots have no active appointment."""
    for k in range(20):
        setup = get_task(PACK, key).variation(k, hospital).setup
        slots = {f"Slot/{resource['id']}": resource for resource in setup if resource["resourceType"] == "Slot"}
        for resource in setup:
            for taken in resource.get("slot", []):
                place = slots[taken["reference"]]
                assert (place["start"], place["end"]) == (resource["start"], resource["end"])
                assert (place["status"] == "free") == (resource["status"] == "cancelled")
        assert key.startswith("14") or any(resource.get("slot") for resource in setup) == (key != "16b")


# 14


def test_an_appointment_may_be_put_with_an_id_of_ones_own(hospital: World) -> None:
    desk = Desk("14b", hospital)
    *_, made, take, _ = desk.gold
    put = Put("/Appointment/visit-1", {**body(made), "id": "visit-1"})
    assert not desk.failed([put, take, Finish(["Appointment/visit-1"])])
    assert desk.failed([put, take, Finish([desk.p.slot.id])]) == ["answer"]
    assert desk.failed([put, replace("/Appointment/visit-1", "/status", "proposed"), take, Finish(["visit-1"])]) == [
        "appointment status"
    ]


# 15


SCENES = ("13a", "13b", "14a", "14b", "15a", "15b", "15c", "16a", "16b", "16c", "17a", "17b")


@pytest.mark.parametrize("key", SCENES)
def test_the_scene_does_not_depend_on_the_target(key: str, hospital: World) -> None:
    """The prompt of a scene could ask about every qualifying record."""
    task: Any = get_task(PACK, key)
    sizes = []
    for k in range(12):
        variation = task.variation(k, hospital)
        p: Any = variation.params
        (found,) = task.candidates(p.scene).values()
        assert p.qualifying == tuple(candidate.target for candidate in found)
        assert len(set(p.qualifying)) == len(found)
        assert p.target in p.qualifying
        sizes.append(len(found))
        for candidate in found:
            asked = task.params_for(random.Random(0), hospital, p.scene, candidate)
            assert task.setup(asked, hospital) == task.setup(p, hospital)
            assert (task.prompt_values(asked, hospital) == task.prompt_values(p, hospital)) <= (
                candidate.target == p.target
            )
    assert sum(sizes) / len(sizes) > 4


@pytest.mark.parametrize("key", SCENES)
def test_every_candidate_can_be_found(key: str, hospital: World) -> None:
    """The reference solution succeeds for each candidate. Except in 14a, 14b and 16a, its answers all differ."""
    task: Any = get_task(PACK, key)
    variation = task.variation(3, hospital)
    p: Any = variation.params
    (found,) = task.candidates(p.scene).values()
    answers = set()
    for candidate in found:
        asked = task.params_for(random.Random(5), hospital, p.scene, candidate).model_copy(
            update={"target": candidate.target}
        )
        with closing(PolicyRunner(task, replace_in(variation, params=asked), hospital)) as arena:
            run = arena.gold()
        assert run.verdict.success
        answers.add(tuple(run.actions[-1].answer or ()))
    assert key in ("14a", "14b", "16a") or len(answers) == len(found)


class Dated(NamedTuple):
    start: str
    patient: str
    status: str


def test_a_unique_match_needs_every_condition() -> None:
    conditions = (lambda booking: booking.patient == "a", lambda booking: booking.status == "booked")
    right, other_patient, other_status = Dated("2", "a", "booked"), Dated("1", "b", "booked"), Dated("1", "a", "noshow")
    assert unique_match([other_patient, right, other_status], *conditions) == right
    assert unique_match([other_patient, right], *conditions) is None
    assert unique_match([other_patient, right, other_status, right], *conditions) is None
    assert unique_match([other_patient, other_status], *conditions) is None


def test_an_earliest_match_needs_every_condition() -> None:
    conditions = (lambda booking: booking.patient == "a", lambda booking: booking.status == "booked")
    right, other_patient, other_status = Dated("2", "a", "booked"), Dated("1", "b", "booked"), Dated("1", "a", "noshow")
    later = Dated("3", "a", "booked")
    assert earliest_match([later, other_patient, right, other_status], *conditions) == right
    assert earliest_match([other_patient, right, other_status], *conditions) is None
    assert earliest_match([later, right, other_status], *conditions) is None
    assert earliest_match([later, other_patient, right, other_status._replace(start="4")], *conditions) is None


# 15


@pytest.mark.parametrize("key", ["15a", "15b"])
def test_the_next_appointment_is_not_the_first_one_found(key: str, hospital: World) -> None:
    for k in range(20):
        p: Any = get_task(PACK, key).variation(k, hospital).params
        booked = [booking for booking in p.scene.bookings if booking.status == "booked"]
        mine = [booking for booking in p.scene.bookings if booking.patient == p.patient.id]
        assert {booking.status for booking in mine} > {"booked"}
        coming = sorted(
            booking.start
            for booking in booked
            if booking in mine and booking.start > p.scene.now and (key == "15a" or booking.practitioner == p.doctor.id)
        )
        assert coming[0] == p.booking.start < coming[1]
        assert any(booking.start < p.scene.now for booking in booked if booking in mine)
        assert any(p.scene.now < booking.start < coming[0] for booking in mine if booking.status != "booked")
        assert any(p.scene.now < booking.start < coming[0] for booking in booked if booking not in mine)
        assert any(p.scene.now < booking.start < coming[0] for booking in booked if booking in mine) == (key == "15b")


def test_one_booked_appointment_is_on_the_next_monday(hospital: World) -> None:
    monday = next_weekday(hospital.now, 0)
    edges = set()
    for k in range(20):
        p: Any = get_task(PACK, "15c").variation(k, hospital).params
        mine = [
            booking for booking in p.scene.bookings if booking.patient == p.patient.id and booking.status == "booked"
        ]
        on = [date.fromisoformat(booking.start[:10]) for booking in mine]
        assert sorted((day - monday).days for day in on) == [-7, -1, 0, 1, 7]
        assert p.booking.start.startswith(monday.isoformat())
        edges |= {booking.start[11:16] for booking in mine if booking != p.booking}
    assert {"23:30", "00:00"} < edges


def test_the_slot_must_be_that_of_the_appointment(hospital: World) -> None:
    desk = Desk("15c", hospital)
    p = desk.p
    cancel = replace(f"/Appointment/{p.booking.id}", "/status", "cancelled")
    free = replace(f"/Slot/{p.booking.slot.id}", "/status", "free")
    assert not desk.failed([cancel, free, Finish([p.booking.id, p.booking.slot.id])])
    other = next(booking.slot.id for booking in p.scene.bookings if booking != p.booking and booking.slot.id)
    wrong = desk.failed([cancel, replace(f"/Slot/{other}", "/status", "free"), Finish([p.booking.id, other])])
    assert {"slot updated", "answer", "nothing else changed"} <= set(wrong)
    assert desk.failed([cancel, free, Finish([p.booking.id, other])]) == ["answer"]


# 16


DAYS = st.dates(date(1950, 1, 1), date(2100, 1, 1))


@given(DAYS, st.times(), st.integers(-12, 12))
def test_the_day_of_a_moment_is_its_utc_day(day: date, time: Any, offset: int) -> None:
    moment = datetime.combine(day, time, timezone(timedelta(hours=offset)))
    assert day_of(moment.isoformat()) == moment.astimezone(UTC).date().isoformat()
    assert day_of(day.isoformat()) == day.isoformat()


@given(st.one_of(st.text(), st.none(), st.integers(), st.lists(st.text())))
def test_invalid_days(value: Any) -> None:
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


def test_a_window_has_the_requested_length(hospital: World) -> None:
    today = hospital.now.date()
    seen = set()
    for k in range(60):
        p: Any = get_task(PACK, "16a").variation(k, hospital).params
        first, until = date.fromisoformat(p.first), date.fromisoformat(p.until)
        assert (first - today).days == p.ahead
        assert (until - first).days == p.days >= 1
        assert p.until <= p.booking.start[:10]
        seen.add(p.ahead)
    assert len(seen) > 12


def test_a_practitioner_may_come_first_on_the_waitlist(hospital: World) -> None:
    desk = Desk("16a", hospital)
    entry = body(desk.gold[-2])
    put = Put("/Appointment/w1", {**entry, "id": "w1", "participant": entry["participant"][::-1]})
    assert not desk.failed([put, Finish(["w1"])])
    for entry_record in desk.p.scene.waiting:
        taken = {**waitlist_resource(entry_record), "status": "waitlist", "requestedPeriod": entry["requestedPeriod"]}
        assert desk.failed([Put(f"/Appointment/{entry_record.id}", taken), Finish([entry_record.id])])


def test_one_free_slot_is_within_the_requested_period(hospital: World) -> None:
    edges = set()
    for k in range(40):
        p: Any = get_task(PACK, "16b").variation(k, hospital).params
        start, end = parse_instant(p.entry.start), parse_instant(p.entry.end)
        within = [
            slot for slot in p.scene.slots if start <= parse_instant(slot.start) and parse_instant(slot.end) <= end
        ]
        mine = [slot for slot in within if slot.schedule == p.slot.schedule]
        assert [slot for slot in mine if slot.status == "free"] == [p.slot]
        assert len(mine) > 1
        assert any(slot.status == "free" for slot in within if slot not in mine)
        edges |= {parse_instant(p.slot.start) == start, "end" if parse_instant(p.slot.end) == end else "before"}
    assert edges == {True, False, "end", "before"}


def test_a_waitlist_entry_is_booked_by_patches(hospital: World) -> None:
    desk = Desk("16b", hospital)
    p = desk.p
    slot, url = slot_resource(p.slot), f"/Appointment/{p.entry.id}"
    operations = [
        {"op": "replace", "path": "/status", "value": "booked"},
        {"op": "replace", "path": "/participant/1/status", "value": "accepted"},
        {"op": "add", "path": "/slot", "value": [{"reference": f"Slot/{p.slot.id}"}]},
        {"op": "add", "path": "/start", "value": slot["start"]},
        {"op": "add", "path": "/end", "value": slot["end"]},
    ]
    book, take = Patch(url, operations), replace(f"/Slot/{p.slot.id}", "/status", "busy")
    finish = Finish([p.entry.id, p.slot.id])
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
    other = next(booking for booking in p.scene.bookings if booking.patient == p.patient.id)
    also = replace(f"/Appointment/{other.id}", "/status", "cancelled")
    assert desk.failed([off, also, Finish([p.entry.id])]) == ["nothing else changed"]
    assert desk.failed([off, Finish([other.id])]) == ["answer"]
    with hospital.session() as session:
        session.load(desk.variation.setup)
        assert len(session.search("Appointment", patient=p.patient.id, status="waitlist")) == 1
        assert len(session.search("Appointment", status="waitlist")) > 1


# 17


def test_an_appointment_moves_by_patches_in_any_order(hospital: World) -> None:
    desk = Desk("17a", hospital)
    p = desk.p
    slot, url = slot_resource(p.slot), f"/Appointment/{p.booking.id}"
    operations = [
        {"op": "replace", "path": "/slot/0/reference", "value": f"Slot/{p.slot.id}"},
        {"op": "replace", "path": "/start", "value": slot["start"]},
        {"op": "replace", "path": "/end", "value": slot["end"]},
    ]
    move = Patch(url, operations)
    take = replace(f"/Slot/{p.slot.id}", "/status", "busy")
    free = replace(f"/Slot/{p.booking.slot.id}", "/status", "free")
    finish = Finish([p.booking.id, p.slot.id])
    assert not desk.failed([free, take, move, finish])
    both = Patch(url, [{"op": "add", "path": "/slot/-", "value": {"reference": f"Slot/{p.booking.slot.id}"}}])
    assert desk.failed([free, take, move, both, finish]) == ["appointment slot"]
    pending = replace(url, "/status", "pending")
    assert desk.failed([free, take, move, pending, finish]) == ["rest of appointment unchanged"]
    assert {check.removeprefix("old slot ") for check in desk.failed([take, move, finish])} == {
        *("updated", "status", "rest of old slot unchanged")
    }


def test_the_appointment_to_move_is_one_of_several(hospital: World) -> None:
    for k in range(20):
        p: Any = get_task(PACK, "17a").variation(k, hospital).params
        mine = [booking for booking in p.scene.bookings if booking.patient == p.patient.id]
        coming = [booking for booking in mine if booking.status == "booked" and booking.start > p.scene.now]
        assert [booking.id for booking in coming if booking.practitioner == p.doctor.id] == [p.booking.id]
        assert len(coming) > 1
        assert p.booking.start[:10] != p.slot.start[:10]
        then = [slot for slot in p.scene.slots if slot.start == p.slot.start]
        assert [slot for slot in then if slot.schedule == p.slot.schedule and slot.status == "free"] == [p.slot]
        assert len({slot.schedule for slot in then if slot.status == "free"}) > 1
        assert len({slot.status for slot in then if slot.schedule == p.slot.schedule}) > 1


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
    assert not desk.failed([bundle, off, Finish([new, p.slot.id])])
    assert not desk.failed([off, Post("/Appointment", fresh), take, free, Finish([new, p.slot.id])])
    assert "old appointment does not stand too" in desk.failed([bundle, Finish([new, p.slot.id])])
    assert desk.failed([bundle, off, Finish([p.booking.id, p.slot.id])]) == ["answer"]
    twice = [bundle, off, Post("/Appointment", fresh), Finish([new, p.slot.id])]
    assert desk.failed(twice) == ["nothing else changed"]


def test_one_other_provider_of_the_clinic_is_free(hospital: World) -> None:
    for k in range(10):
        variation = get_task(PACK, "17b").variation(k, hospital)
        p: Any = variation.params
        with hospital.session() as session:
            session.load(variation.setup)
            query = {"schedule.actor": p.place.reference, "start": p.slot.start, "status": "free"}
            found = {slot["id"]: slot["schedule"]["reference"] for slot in session.search("Slot", **query)}
            assert found == {p.slot.id: f"Schedule/{p.slot.schedule}"}
            assert p.slot.schedule != p.booking.slot.schedule
            assert len(session.search("Slot", start=p.slot.start, status="free")) > 1


def test_evidence_is_the_appointment_and_the_slots(hospital: World) -> None:
    for key in ("17a", "17b"):
        desk = Desk(key, hospital)
        writes = [action for action in desk.gold if action.kind in ("PUT", "FINISH")]
        assert desk.verdict(writes).success
        assert not desk.verdict(writes, grading="evidence").success
        looks = [Get(f"/{required_record}") for required_record in get_task(PACK, key).required_records(desk.p)]
        assert desk.verdict([*looks, *writes], grading="evidence").success
