"""In scenes with similar doctors (13a to 14b), an agent needs name, day, hour and status to find the slot."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from fhir_gym.actions import Finish
from fhir_gym.tasks import get_task
from fhir_gym.tasks.authoring.people import Person
from fhir_gym.tasks.core.dates import instant, next_weekday, parse_instant
from fhir_gym.tasks.core.ids import IdAllocator
from fhir_gym.tasks.packs.appointment.similar_doctors import SIMILAR, SWAPPED, draw_doctor_times, every_detail_matters
from fhir_gym.tasks.packs.appointment.slot_scenes import ProviderSchedule
from fhir_gym.types import Resource
from tests.tasks.test_appointment import PACK, Desk

if TYPE_CHECKING:
    from fhir_gym.fhir import World

BOOKED, TO_BOOK = ("13a", "13b"), ("14a", "14b")
SWAP = ("13b", "14a")
VARIATIONS = range(15)


class Seen(NamedTuple):
    """A stored slot: its doctor, time and status, and the patients with active and with former bookings of it."""

    id: str
    doctor: tuple[str, str]
    start: datetime
    status: str
    booked: frozenset[str]
    over: frozenset[str]


def read(setup: Sequence[Resource]) -> list[Seen]:
    records = {f"{resource['resourceType']}/{resource['id']}": resource for resource in setup}

    def name(slot: Resource) -> tuple[str, str]:
        (actor,) = records[slot["schedule"]["reference"]]["actor"]
        (called,) = records[actor["reference"]]["name"]
        return called["given"][0], called["family"]

    def patients(slot: Resource, *, booked: bool) -> frozenset[str]:
        visits = [
            resource
            for resource in setup
            if resource["resourceType"] == "Appointment"
            and resource["slot"] == [{"reference": f"Slot/{slot['id']}"}]
            and (resource["status"] == "booked") == booked
        ]
        actors = [each["actor"]["reference"] for visit in visits for each in visit["participant"]]
        return frozenset(actor for actor in actors if actor.startswith("Patient/"))

    return [
        Seen(
            id=f"Slot/{resource['id']}",
            doctor=name(resource),
            start=parse_instant(resource["start"]),
            status=resource["status"],
            booked=patients(resource, booked=True),
            over=patients(resource, booked=False),
        )
        for resource in setup
        if resource["resourceType"] == "Slot"
    ]


def without_one(seen: list[Seen], given: str, family: str, start: datetime) -> dict[str, list[Seen]]:
    """For each condition of the prompt, the slots that meet all other conditions."""
    clock = [slot for slot in seen if slot.start == start]
    own = [slot for slot in seen if slot.doctor == (given, family)]
    return {
        "given name": [slot for slot in clock if slot.doctor[1] == family],
        "family name": [slot for slot in clock if slot.doctor[0] == given],
        "order of names": [slot for slot in clock if slot.doctor in ((given, family), (family, given))],
        "hour": [slot for slot in own if slot.start.date() == start.date()],
        "day": [slot for slot in own if slot.start.time() == start.time()],
    }


@pytest.mark.parametrize("key", BOOKED)
def test_the_booked_patient_differs_from_all_others(key: str, hospital: World) -> None:
    for k in VARIATIONS:
        variation = get_task(PACK, key).variation(k, hospital)
        p: Any = variation.params
        seen = read(variation.setup)
        start = parse_instant(p.visit.slot.start)
        (right,) = (slot for slot in seen if slot.doctor == (p.doctor.given, p.doctor.family) and slot.start == start)
        assert right.booked == {p.target}
        assert len(right.over) == 2
        assert p.target not in right.over
        for condition, found in without_one(seen, *right.doctor, start).items():
            others = frozenset[str]().union(*(slot.booked for slot in found)) - right.booked
            assert bool(others) == (condition != "order of names" or key in SWAP), condition


@pytest.mark.parametrize("key", TO_BOOK)
def test_the_free_slot_differs_from_all_others(key: str, hospital: World) -> None:
    for k in VARIATIONS:
        variation = get_task(PACK, key).variation(k, hospital)
        p: Any = variation.params
        seen = read(variation.setup)
        start = parse_instant(p.slot.start)
        doctor = (p.doctor.given, p.doctor.family)
        then = [slot for slot in seen if slot.doctor == doctor and slot.start == start]
        assert [slot.id for slot in then if slot.status == "free"] == [p.target]
        assert len(then) > 1
        for condition, found in without_one(seen, *doctor, start).items():
            others = [slot for slot in found if slot.status == "free" and slot.id != p.target]
            assert bool(others) == (condition != "order of names" or key in SWAP), condition


@pytest.mark.parametrize("key", TO_BOOK)
def test_the_patient_to_book_differs_from_all_others(key: str, hospital: World) -> None:
    asked = set()
    for k in VARIATIONS:
        p: Any = get_task(PACK, key).variation(k, hospital).params
        others = [other for other in p.scene.people if other != p.patient]
        me = p.patient
        assert any((other.given, other.family) == (me.given, me.family) for other in others)
        assert any((other.given, other.birth_date) == (me.given, me.birth_date) for other in others)
        assert any((other.family, other.birth_date) == (me.family, me.birth_date) for other in others)
        asked.add(p.scene.people.index(me))
    assert len(asked) > 3


@pytest.mark.parametrize("key", BOOKED)
def test_no_other_patient_is_the_answer(key: str, hospital: World) -> None:
    desk = Desk(key, hospital, 2)
    for other in desk.p.scene.patients:
        wrong = ["answer"] if other.id != desk.p.visit.patient else []
        assert desk.failed([*desk.gold[:-1], Finish([other.id])]) == wrong


@pytest.mark.parametrize("key", BOOKED)
def test_people_are_at_one_place_at_a_time(key: str, hospital: World) -> None:
    """No patient has two appointments at the same time, and no slot is booked twice."""
    for k in VARIATIONS:
        p: Any = get_task(PACK, key).variation(k, hospital).params
        booked = [visit for visit in p.scene.visits if visit.status == "booked"]
        assert len({(visit.patient, visit.slot.start) for visit in booked}) == len(booked)
        assert len({visit.slot.id for visit in booked}) == len(booked)
        assert {visit.slot.id for visit in p.scene.visits} == {visit.slot.id for visit in booked}


@pytest.mark.parametrize("key", (*BOOKED, *TO_BOOK))
def test_today_is_not_next(key: str, hospital: World) -> None:
    """The prompt asks about the first such weekday after today; the scene also has the same hour in another week."""
    today = hospital.now.date()
    weekdays, weeks = set(), set()
    for k in range(60):
        variation = get_task(PACK, key).variation(k, hospital)
        p: Any = variation.params
        slot = p.visit.slot if key in BOOKED else p.slot
        start = parse_instant(slot.start)
        assert start.date() == next_weekday(hospital.now, start.weekday()) > today
        own = {seen.start for seen in read(variation.setup) if seen.doctor == (p.doctor.given, p.doctor.family)}
        (other,) = {-7, 7} & {(moment - start).days for moment in own if moment.time() == start.time()}
        weekdays.add(start.weekday())
        weeks.add(other)
    assert weeks == {-7, 7}
    assert weekdays == set(range(7))


def person(given: str, family: str) -> Person:
    contact = {"phone": "", "line": "", "city": "", "state": ""}
    return Person(id=given + family, given=given, family=family, gender="female", birth_date="1980-01-01", **contact)


def test_each_condition_needs_another_time() -> None:
    names = [("Ada", "Byron"), ("Eve", "Byron"), ("Ada", "Clark"), ("Byron", "Ada")]
    schedules = [ProviderSchedule(id=given + family, provider=person(given, family)) for given, family in names]
    start = "2023-11-14T09:00:00Z"
    others = {
        ("EveByron", start),
        ("AdaClark", start),
        ("ByronAda", start),
        ("AdaByron", "2023-11-14T10:00:00Z"),
        ("AdaByron", "2023-11-21T09:00:00Z"),
    }
    assert every_detail_matters(schedules, "AdaByron", start, others)
    for name in others:
        assert not every_detail_matters(schedules, "AdaByron", start, others - {name}), name
    assert every_detail_matters(schedules[:3], "AdaByron", start, others - {("ByronAda", start)})


@pytest.mark.parametrize(("rows", "swapped"), [(SIMILAR, False), (SWAPPED, True)])
def test_every_askable_time_needs_all_conditions(rows: Any, swapped: bool, hospital: World) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        schedules, times = draw_doctor_times(rng, hospital, IdAllocator(rng, hospital), rows, swapped=swapped)
        there = {(time.schedule.id, instant(time.start)) for time in times}
        central = [time for time in times if time.kind == "central"]
        assert len(central) == 5
        for time in central:
            assert every_detail_matters(schedules, time.schedule.id, instant(time.start), there)
            assert timedelta(0) < time.start - hospital.now < timedelta(days=8)
        names = {(schedule.provider.given, schedule.provider.family) for schedule in schedules}
        assert len(names) == len(schedules)
        assert swapped == any((family, given) in names for given, family in names)
