"""Tasks that ask for slots: what is right is what a reader of all slots finds, at the edges of every time too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fhir_gym.actions import Finish, Get
from fhir_gym.fhir import Session
from fhir_gym.tasks import get_task
from fhir_gym.tasks.appointment.openings import quarter_hours
from fhir_gym.types import Resource
from tests.tasks.test_appointment import PACK, Desk

if TYPE_CHECKING:
    from fhir_gym.fhir import World

EARLIEST = ("11a", "11b", "11d")
COUNTS = ("11c", "12a")
LISTS = (*COUNTS, "12b", "12c", "12d")
BOOKED = ("13a", "13b")
NEVER = datetime.max.replace(tzinfo=UTC)


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    yield
    while Desk.opened:
        Desk.opened.pop().close()


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


class Reader:
    """Reads every slot on the server, one by one, and goes by the prompt's definitions."""

    def __init__(self, key: str, world: World, k: int) -> None:
        self.variation = get_task(PACK, key).variation(k, world)
        self.p: Any = self.variation.params
        self.now = world.now.replace(microsecond=0)
        self.today = self.now.date()
        self.session: Session = world.session()
        self.session.load(self.variation.setup)

    def slots(self, first: datetime, end: datetime = NEVER) -> list[Resource]:
        """Free slots that start within, and whose actors and specialties suit."""
        free = [one for one in self.session.search("Slot") if one["status"] == "free"]
        return [one for one in free if first <= moment(one["start"]) < end and self.suits(one)]

    def suits(self, slot: Resource) -> bool:
        kind, _, id = slot["schedule"]["reference"].partition("/")
        schedule = self.session.read(kind, id) or {}
        actors = [one["reference"] for one in schedule["actor"]]
        codes = [one["coding"][0]["code"] for one in schedule["specialty"]]
        if hasattr(self.p, "service") and self.p.service.code not in codes:
            return False
        if hasattr(self.p, "doctor"):
            return f"Practitioner/{self.p.doctor.id}" in actors
        return self.p.place.reference in actors and (not hasattr(self.p, "language") or self.speaks(actors))

    def speaks(self, actors: list[str]) -> bool:
        (id,) = (actor.partition("/")[2] for actor in actors if actor.startswith("Practitioner/"))
        one = self.session.read("Practitioner", id) or {}
        languages = [spoken["coding"][0]["code"] for spoken in one["communication"]]
        found = (one["gender"], one["address"][0]["city"], self.p.language in languages)
        return found == (self.p.gender, self.p.city, True)


def urgent(of: Reader) -> list[Resource]:
    return of.slots(of.now, moment(of.p.until))


def next_weekday(of: Reader) -> list[Resource]:
    day = next(d for n in range(1, 8) if (d := of.today + timedelta(days=n)).weekday() == of.p.weekday)
    return of.slots(midnight(day), midnight(day + timedelta(days=1)))


def follow_up(of: Reader) -> list[Resource]:
    first = midnight(of.today + timedelta(days=of.p.wait))
    return of.slots(first, first + timedelta(days=of.p.days))


def mornings(of: Reader) -> list[Resource]:
    found = []
    for n in range(1, of.p.days + 1):
        day = of.today + timedelta(days=n)
        if day.weekday() == of.p.weekday:
            found += of.slots(midnight(day), midnight(day) + timedelta(hours=of.p.hour))
    return found


RIGHT: dict[str, Callable[[Reader], list[Resource]]] = {
    "11c": lambda of: of.slots(of.now),
    "12a": urgent,
    "12b": next_weekday,
    "12c": follow_up,
    "12d": mornings,
}


@pytest.mark.parametrize("world_name", ["hospital", "tiny_world"])
@pytest.mark.parametrize("key", LISTS)
def test_right_is_what_a_reader_of_all_slots_finds(key: str, world_name: str, request: pytest.FixtureRequest) -> None:
    world: World = request.getfixturevalue(world_name)
    for k in range(8):
        of = Reader(key, world, k)
        with of.session:
            assert sorted(one["id"] for one in RIGHT[key](of)) == sorted(one.id for one in of.p.slots.right)


@pytest.mark.parametrize("world_name", ["hospital", "tiny_world"])
@pytest.mark.parametrize("key", EARLIEST)
def test_the_earliest_is_alone_at_its_time(key: str, world_name: str, request: pytest.FixtureRequest) -> None:
    world: World = request.getfixturevalue(world_name)
    for k in range(8):
        of = Reader(key, world, k)
        with of.session:
            first, second, *_ = sorted(of.slots(of.now), key=lambda one: moment(one["start"]))
        assert first["id"] == of.p.target.id
        assert moment(first["start"]) < moment(second["start"])


@pytest.mark.parametrize("key", LISTS)
def test_a_quarter_has_none_and_edges_are_met(key: str, hospital: World) -> None:
    task = get_task(PACK, key)
    drawn: list[Any] = [task.variation(k, hospital).params for k in range(150)]
    none = sum(not p.slots.right for p in drawn)
    assert 20 <= none <= 57
    numbers = {len(p.slots.right) for p in drawn}
    assert numbers == set(range(9))
    assert all(len({one.start for one in p.slots.right}) == len(p.slots.right) for p in drawn)
    if key == "12b":
        hours = {one.start[11:16] for p in drawn for one in p.slots.right}
        assert {"00:00", "23:45"} <= hours
    if key == "12c":
        assert any(one.start == p.start for p in drawn for one in p.slots.right)
        assert all(any(one.start == p.end for one in p.slots.decoys) for p in drawn)
    if key in COUNTS:
        assert any(one.start == p.now for p in drawn for one in p.slots.right)


@pytest.mark.parametrize("key", (*EARLIEST, *LISTS, *BOOKED))
def test_each_phrasing_says_what_is_asked_and_no_hidden_id(key: str, hospital: World) -> None:
    task = get_task(PACK, key)
    assert len(task.prompts) >= 3
    for phrasing in range(len(task.prompts)):
        variation = task.variation(3, hospital, phrasing)
        asked = task.words(variation.params, hospital)
        said = {id for one in variation.setup if (id := one["id"]) in variation.prompt}
        assert said == ({asked["clinic"]} if "clinic" in asked else set())
        # The follow-up's length and wait are the same as its first and last instant.
        left_out = {"days", "wait"} if key == "12c" else {"doctor"}
        assert not {name for name, value in asked.items() if value not in variation.prompt} - left_out


def positive(key: str, world: World) -> Desk:
    """A variation with some slots."""
    return next(desk for k in range(20) if (desk := Desk(key, world, k)).p.slots.right)


def none(key: str, world: World) -> Desk:
    """A variation without."""
    return next(desk for k in range(40) if not (desk := Desk(key, world, k)).p.slots.right)


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("variation", [positive, none])
def test_a_total_is_evidence_if_it_is_of_the_right_slots(
    key: str, variation: Callable[[str, World], Desk], hospital: World
) -> None:
    desk = variation(key, hospital)
    (search, finish) = desk.gold
    total = Get(f"{search.url}&_summary=count")
    assert not desk.failed([total, finish])
    assert not desk.failed([Get(f"{search.url}&_count=1&_elements=id"), finish])
    wider = Get("/Slot", {"schedule.actor": desk.p.place.reference, "_summary": "count"})
    assert desk.failed([wider, finish]) == ["evidence"]
    assert desk.failed([finish]) == ["evidence"]
    assert "count" in desk.failed([total, Finish([len(desk.p.slots.right) + 1])])


@pytest.mark.parametrize("key", COUNTS)
def test_totals_of_one_schedule_after_another_are_evidence(key: str, hospital: World) -> None:
    desk = positive(key, hospital)
    right = [one.id for one in desk.p.diaries if one.id in {slot.schedule for slot in desk.p.slots.right}]
    start = desk.p.now if key == "11c" else [desk.p.now, desk.p.until]
    bounds = [f"ge{start}"] if isinstance(start, str) else [f"ge{start[0]}", f"lt{start[1]}"]
    schedules = right if desk.p.slots.further.schedule in right else [*right, desk.p.slots.further.schedule]
    totals = [
        Get("/Slot", {"schedule": f"Schedule/{id}", "status": "free", "start": bounds, "_summary": "count"})
        for id in schedules
    ]
    assert not desk.failed([*totals, desk.gold[-1]])


@pytest.mark.parametrize("key", ("12b", "12c", "12d"))
def test_none_without_a_look_or_beside_it_is_refused(key: str, hospital: World) -> None:
    desk = none(key, hospital)
    finish = desk.gold[-1]
    assert desk.failed([finish]) == ["evidence"]
    annex = {"schedule.actor": desk.p.places[1].reference}
    assert desk.failed([Get("/Slot", annex), finish]) == ["evidence"]
    assert desk.failed([Get("/Schedule", {"actor": desk.p.place.reference}), finish]) == ["evidence"]
    assert desk.failed([Get("/Slot", {"schedule.actor": desk.p.place.reference, "status": "busy"}), finish]) == [
        "evidence"
    ]


@pytest.mark.parametrize("key", ("12b", "12c", "12d"))
def test_an_end_that_is_taken_for_part_of_the_time_is_refused(key: str, hospital: World) -> None:
    desk = positive(key, hospital)
    extra = next(one.id for one in desk.p.slots.decoys if one.status == "free")
    right = [one.id for one in desk.p.slots.right]
    counted = [len(right) + 1] if key == "12d" else []
    assert "slots" in desk.failed([desk.gold[0], Finish([*counted, *right, extra])])
    shown = [f" Slot/{id} " for id in reversed(right)]
    assert not desk.failed([desk.gold[0], Finish([*([len(right)] if key == "12d" else []), *shown])])


def test_a_wrong_number_beside_the_right_slots_is_refused(hospital: World) -> None:
    desk = positive("12d", hospital)
    right = [one.id for one in desk.p.slots.right]
    assert desk.failed([desk.gold[0], Finish([len(right) + 1, *right])]) == ["count"]


def test_next_weekday_is_never_today(hospital: World) -> None:
    """The present is a Monday; next Monday is in a week, and today's slots are decoys."""
    task = get_task(PACK, "12b")
    drawn: list[Any] = [task.variation(k, hospital).params for k in range(40)]
    mondays = [p for p in drawn if p.weekday == hospital.now.weekday()]
    assert mondays
    for p in mondays:
        assert p.date == (hospital.now.date() + timedelta(days=7)).isoformat()
        today = hospital.now.date().isoformat()
        assert any(one.start.startswith(today) and one.status == "free" for one in p.slots.decoys)


def test_a_quarter_hour_is_on_the_grid_and_within_working_time() -> None:
    start = datetime(2024, 2, 28, 18, 20, tzinfo=UTC)
    found = quarter_hours(start, start + timedelta(hours=13))
    assert [one.isoformat()[11:16] for one in found] == ["18:30", "18:45", "07:00", "07:15"]


def test_a_service_has_two_schedules_one_of_them_for_two_services(hospital: World) -> None:
    desk = Desk("11c", hospital)
    here = [one for one in desk.p.diaries if one.place == desk.p.place.reference]
    offering = [one for one in here if desk.p.service in one.specialties]
    assert len(here) == 3
    assert sorted(len(one.specialties) for one in offering) == [1, 2]


def test_two_providers_have_all_that_is_asked_for(hospital: World) -> None:
    """The earliest of one alone is not always the earliest of both."""
    later = 0
    for k in range(20):
        of = Reader("11b", hospital, k)
        with of.session:
            found = sorted(of.slots(of.now), key=lambda one: moment(one["start"]))
        schedules = [one["schedule"]["reference"] for one in found]
        later += schedules[0] != schedules[1]
        assert len({one.provider.id for one in of.p.diaries}) == 6
    assert later > 3


def test_a_doctor_is_found_by_name_and_then_by_schedules(hospital: World) -> None:
    desk = Desk("11d", hospital)
    doctor = desk.p.doctor
    people = Get("/Practitioner", {"family:exact": doctor.family, "given:exact": doctor.given})
    slots = Get(
        "/Slot",
        {"schedule.actor": f"Practitioner/{doctor.id}", "status": "free", "start": f"ge{desk.p.now}", "_sort": "start"},
    )
    finish = Finish([desk.p.target.id])
    assert desk.verdict([people, slots, finish], grading="evidence").success
    with hospital.session() as session:
        session.load(desk.variation.setup)
        lazy = session.search("Slot", **{"schedule.actor:Practitioner.family": doctor.family, "status": "free"})
        assert min(lazy, key=lambda one: moment(one["start"]))["id"] != desk.p.target.id


@pytest.mark.parametrize("key", BOOKED)
def test_a_booking_is_told_from_all_others_at_that_time(key: str, hospital: World) -> None:
    for k in range(12):
        desk = Desk(key, hospital, k)
        p = desk.p
        with hospital.session() as session:
            session.load(desk.variation.setup)
            at_that_time = session.search("Appointment", date=p.target.opening.start)
        booked = [one for one in at_that_time if one["status"] == "booked"]
        in_slot = [one for one in at_that_time if one["slot"][0]["reference"] == f"Slot/{p.target.opening.id}"]
        assert len(booked) >= 3
        assert len(in_slot) == 4
        others = {one.patient for one in p.decoys}
        assert p.target.patient not in others
        for other in sorted(others):
            assert desk.failed([*desk.gold[:-1], Finish([other])]) == ["answer"]


def test_the_doctor_of_swapped_names_is_busy_at_that_time(hospital: World) -> None:
    p = Desk("13b", hospital).p
    (mirror,) = (
        one for one in p.diaries if (one.provider.given, one.provider.family) == (p.doctor.family, p.doctor.given)
    )
    assert any(one.opening.schedule == mirror.id and one.opening.start == p.target.opening.start for one in p.decoys)


@pytest.mark.parametrize("key", BOOKED)
def test_today_is_not_next(key: str, hospital: World) -> None:
    """Where the day is a Monday, as the present is, there is a booking today at that hour too, by someone else."""
    task = get_task(PACK, key)
    drawn: list[Any] = [task.variation(k, hospital).params for k in range(40)]
    mondays = [p for p in drawn if p.weekday == hospital.now.weekday()]
    assert mondays
    for p in mondays:
        target = moment(p.target.opening.start)
        assert target.date() == hospital.now.date() + timedelta(days=7)
        assert any(moment(one.opening.start) == target - timedelta(days=7) for one in p.decoys)
