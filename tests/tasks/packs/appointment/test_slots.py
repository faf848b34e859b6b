"""Tasks that search for slots: the expected answer equals a full scan of all slots, and each condition matters."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fhir_gym.actions import Finish, Get
from fhir_gym.tasks import get_task
from fhir_gym.tasks.core.dates import WEEKDAYS
from fhir_gym.tasks.packs.appointment.slot_scenes import (
    NEVER,
    at_quarter,
    hours_on,
    quarter_of,
    scattered,
    time_windows,
)
from fhir_gym.types import Resource
from tests.tasks.test_appointment import PACK, Desk

if TYPE_CHECKING:
    from fhir_gym.fhir import World

EARLIEST = ("11a", "11b", "11d")
COUNTS = ("11c", "12a")
LISTS = ("12b", "12c", "12d")
ALL = (*EARLIEST, *COUNTS, *LISTS)
WORLDS = ("hospital", "tiny_world")


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


class Reader:
    """Reads every slot and applies the prompt's conditions, except those to ignore."""

    def __init__(self, key: str, world: World, k: int) -> None:
        self.key = key
        self.variation = get_task(PACK, key).variation(k, world)
        p: Any = self.variation.params
        self.p, self.asked = p, p.request
        with world.session() as session:
            session.load(self.variation.setup)
            everything = session.search("Slot")
            self.records: dict[str, Resource] = {
                f"{kind}/{resource['id']}": resource
                for kind in ("Schedule", "Practitioner")
                for resource in session.search(kind)
            }
        ordered = sorted(everything, key=lambda slot: moment(slot["start"]))
        self.slots = {str(slot["id"]): self.met(slot) for slot in ordered}

    def found(self, *without: str) -> list[str]:
        """Ids of the slots that meet all conditions except those to ignore, sorted by start."""
        ids = [
            id for id, conditions in self.slots.items() if all(conditions[name] for name in conditions.keys() - without)
        ]
        return ids[:1] if self.key in EARLIEST and "first" not in without else ids

    def met(self, slot: Resource) -> dict[str, bool]:
        start, asked = moment(slot["start"]), self.asked
        met = {"status": slot["status"] == "free", **self.actors(slot)}
        if self.key in EARLIEST:
            return {**met, "from": start >= moment(self.p.moment)}
        begin = moment(self.p.start)
        if self.key == "12b":
            is_one = start.weekday() == begin.weekday()
            return {**met, "weekday": is_one, "week": not is_one or start.date() == begin.date()}
        met["from"] = start >= begin
        if self.p.end:
            met["until"] = start < moment(self.p.end)
        if self.key == "12d":
            met |= {"weekday": start.weekday() == asked.weekday, "hour": start.hour < asked.hour}
        return met

    def actors(self, slot: Resource) -> dict[str, bool]:
        asked = self.asked
        schedule = self.records[slot["schedule"]["reference"]]
        actors = [actor["reference"] for actor in schedule["actor"]]
        person = self.records[next(actor for actor in actors if actor.startswith("Practitioner/"))]
        if self.key == "11d":
            name = person["name"][0]
            return {"given": name["given"] == [asked.doctor.given], "family": name["family"] == asked.doctor.family}
        if self.key == "11b":
            spoken = [communication["coding"][0]["code"] for communication in person["communication"]]
            return {
                "place": asked.service.reference in actors,
                "language": asked.language in spoken,
                "gender": person["gender"] == asked.gender,
                "city": person["address"][0]["city"] == asked.city,
            }
        met = {"place": asked.place.reference in actors}
        if self.key == "11c":
            met["service"] = asked.service.code in [
                specialty["coding"][0]["code"] for specialty in schedule["specialty"]
            ]
        return met


@pytest.mark.parametrize("world_name", WORLDS)
@pytest.mark.parametrize("key", ALL)
def test_each_condition_matters(key: str, world_name: str, request: pytest.FixtureRequest) -> None:
    world: World = request.getfixturevalue(world_name)
    for k in range(3):
        of = Reader(key, world, k)
        right = of.found()
        assert right == [of.p.target.partition("/")[2]] if key in EARLIEST else sorted(right) == sorted(of.p.right)
        for name in [*next(iter(of.slots.values())), *(["first"] if key in EARLIEST else [])]:
            assert of.found(name) != right, name


@pytest.mark.parametrize("key", EARLIEST)
def test_three_more_slots_qualify_but_are_later(key: str, hospital: World) -> None:
    """An agent that does not sort may choose a later slot."""
    for k in range(3):
        of = Reader(key, hospital, k)
        alternatives = of.found("first")
        times = {slot.start for slot in of.p.scene.slots if slot.id in alternatives}
        assert len(times) == len(alternatives) >= 4


@pytest.mark.parametrize("key", ALL)
def test_the_scene_does_not_depend_on_the_request(key: str, hospital: World) -> None:
    """The prompt of a scene could ask many questions."""
    task: Any = get_task(PACK, key)
    scene = task.draw_scene(random.Random(5), hospital)
    before = task.scene_resources(scene, hospital)
    asked: set[str] = set()
    for found in task.candidates(scene).values():
        for n, candidate in enumerate(found):
            p = task.params_for(random.Random(n), hospital, scene, candidate)
            assert p.scene is scene
            assert task.scene_resources(p.scene, hospital) == before
            asked.add(task.prompt(p, hospital, 0))
    assert len(asked) >= 4


@pytest.mark.parametrize("key", ALL)
def test_targets_are_drawn_fairly_from_enough_candidates(key: str, hospital: World) -> None:
    task: Any = get_task(PACK, key)
    drawn = [task.variation(k, hospital) for k in range(30)]
    for variation in drawn:
        p: Any = variation.params
        assert bool(p.target) == (key in EARLIEST or (key in ("12b", "12c") and bool(p.right)))
        assert p.target in p.qualifying or not p.target
    sizes = [len(variation._qualifying) for variation in drawn if variation._qualifying]
    assert not sizes or sum(sizes) / len(sizes) >= 5
    assert key not in EARLIEST or min(sizes) >= 4


@pytest.mark.parametrize("key", (*COUNTS, *LISTS))
def test_no_answer_is_too_common(key: str, hospital: World) -> None:
    task = get_task(PACK, key)
    drawn: list[Any] = [task.variation(k, hospital).params for k in range(150)]
    numbers = Counter(len(p.right) for p in drawn)
    most = {"11c": 5, "12a": 5, "12b": 3, "12c": 5, "12d": 3}[key]
    assert set(numbers) == set(range(most + 1))
    none = numbers.pop(0) / len(drawn)
    assert 0.4 < none < 0.6 if key in ("12b", "12c") else 0.05 < none < 0.33
    # An agent that answers only the first match is right only if exactly one slot qualifies.
    assert numbers[1] / len(drawn) < 0.17
    assert all(len(set(p.right)) == len(p.right) for p in drawn)


@pytest.mark.parametrize("key", (*COUNTS, *LISTS))
def test_totals_do_not_reveal_the_number(key: str, hospital: World) -> None:
    """In each scene, every possible number of slots could be the answer."""
    task: Any = get_task(PACK, key)
    for seed in range(5):
        found = task.candidates(task.draw_scene(random.Random(seed), hospital))
        assert all(found[stratum] for stratum in task.strata)


def test_edges_of_the_time_are_met(hospital: World) -> None:
    """A slot that starts at the start of the window counts; a slot that starts at the end does not."""
    for key in ("11a", "11c", "12a", "12c"):
        drawn: list[Any] = [get_task(PACK, key).variation(k, hospital).params for k in range(60)]
        first = [p.moment if key == "11a" else p.start for p in drawn]
        assert any(start in {slot.start for slot in p.scene.slots} for start, p in zip(first, drawn, strict=True))
        if key in ("12a", "12c"):
            assert any(p.end in {slot.start for slot in p.scene.slots} for p in drawn)
            assert any(slot.id in p.right and slot.start == p.start for p in drawn for slot in p.scene.slots)
    days: list[Any] = [get_task(PACK, "12b").variation(k, hospital).params for k in range(60)]
    hours = {slot.start[11:16] for p in days for slot in p.scene.slots if slot.id in p.right}
    assert {"00:00", "23:45"} <= hours


@pytest.mark.parametrize("key", (*ALL, "13a", "13b"))
def test_each_phrasing_contains_the_request_and_no_hidden_id(key: str, hospital: World) -> None:
    task = get_task(PACK, key)
    assert len(task.prompts) >= 3
    for phrasing in range(len(task.prompts)):
        variation = task.variation(3, hospital, phrasing)
        asked = task.prompt_values(variation.params, hospital)
        said = {id for resource in variation.setup if (id := resource["id"]) in variation.prompt}
        assert said == ({asked["clinic"]} if "clinic" in asked else set())
        # Some prompts state the delay and the length of the window instead of its limits.
        left_out = {"12b": {"start", "end"}, "12c": {"days", "wait"}, "12d": {"start", "end"}}.get(key, {"doctor"})
        assert not {name for name, value in asked.items() if value not in variation.prompt} - left_out


def positive(key: str, world: World) -> Desk:
    """A variation in which slots match."""
    return next(desk for k in range(30) if len((desk := Desk(key, world, k)).p.right) > 1)


def none(key: str, world: World) -> Desk:
    """A variation in which no slot matches."""
    return next(desk for k in range(60) if not (desk := Desk(key, world, k)).p.right)


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
    wider = Get("/Slot", {"schedule.actor": desk.p.request.place.reference, "_summary": "count"})
    assert desk.failed([wider, finish]) == ["evidence"]
    assert desk.failed([finish]) == ["evidence"]
    assert "count" in desk.failed([total, Finish([len(desk.p.right) + 1])])


@pytest.mark.parametrize("key", COUNTS)
def test_totals_of_one_schedule_after_another_are_evidence(key: str, hospital: World) -> None:
    desk = positive(key, hospital)
    bounds = [f"ge{desk.p.start}", *([f"lt{desk.p.end}"] if desk.p.end else [])]
    totals = [
        Get("/Slot", {"schedule": f"Schedule/{id}", "status": "free", "start": bounds, "_summary": "count"})
        for id in desk.p.request.matching
    ]
    assert not desk.failed([*totals, desk.gold[-1]])


@pytest.mark.parametrize("key", LISTS)
def test_none_is_refused_without_evidence(key: str, hospital: World) -> None:
    desk = none(key, hospital)
    finish = desk.gold[-1]
    place = desk.p.request.place.reference
    assert desk.failed([finish]) == ["evidence"]
    (other,) = (other_place.reference for other_place in desk.p.scene.clinic.places if other_place.reference != place)
    assert desk.failed([Get("/Slot", {"schedule.actor": other}), finish]) == ["evidence"]
    assert desk.failed([Get("/Schedule", {"actor": place}), finish]) == ["evidence"]
    assert desk.failed([Get("/Slot", {"schedule.actor": place, "status": "busy"}), finish]) == ["evidence"]


@pytest.mark.parametrize("key", LISTS)
def test_one_too_many_is_refused(key: str, hospital: World) -> None:
    desk = positive(key, hospital)
    right = list(desk.p.right)
    own = [slot for slot in desk.p.scene.slots if slot.schedule in desk.p.request.matching and slot.status == "free"]
    extra = next(slot.id for slot in own if slot.id not in right)
    counted = [len(right) + 1] if key == "12d" else []
    assert "slots" in desk.failed([desk.gold[0], Finish([*counted, *right, extra])])
    shown = [f" Slot/{id} " for id in reversed(right)]
    assert not desk.failed([desk.gold[0], Finish([*([len(right)] if key == "12d" else []), *shown])])


def test_a_wrong_number_beside_the_right_slots_is_refused(hospital: World) -> None:
    desk = positive("12d", hospital)
    right = list(desk.p.right)
    assert desk.failed([desk.gold[0], Finish([len(right) + 1, *right])]) == ["count"]


def test_next_weekday_is_never_today_and_the_one_after_next_is_a_week_later(hospital: World) -> None:
    """If today is a Monday, next Monday is in a week and today's slots are decoys."""
    task = get_task(PACK, "12b")
    today = hospital.now.date()
    mondays = 0
    for k in range(150):
        variation = task.variation(k, hospital)
        p: Any = variation.params
        day = moment(p.start).date()
        ahead = (day - today).days
        assert 1 <= ahead <= 14
        weekday = WEEKDAYS[day.weekday()]
        assert (f"next {weekday}" in variation.prompt) == (ahead <= 7)
        assert (f"{weekday} after next" in variation.prompt) == (ahead > 7)
        if ahead == 7:
            mondays += 1
            own = [slot for slot in p.scene.slots if slot.schedule in p.request.matching and slot.status == "free"]
            assert any(slot.start.startswith(today.isoformat()) for slot in own)
    assert mondays


def test_an_hour_begins_on_the_quarter_and_within_working_time() -> None:
    day = datetime(2024, 2, 28, tzinfo=UTC)
    hours = hours_on(day.date())
    assert [at_quarter(quarter).isoformat()[11:16] for quarter in (hours[0], hours[-1])] == ["07:00", "18:45"]
    assert quarter_of(day + timedelta(hours=7, minutes=14)) == hours[0]


def test_scattered_slots_are_as_many_for_each_and_start_apart() -> None:
    days = [datetime(2024, 2, day).date() for day in range(1, 6)]
    drawn = list(scattered(random.Random(1), days, [("a", "b"), ("c",)], 6, 3, 0.25))
    assert len({draft.quarter for draft in drawn}) == len(drawn) == 18
    assert Counter((draft.schedule == "c", draft.status == "free") for draft in drawn) == {
        (False, True): 6,
        (False, False): 3,
        (True, True): 6,
        (True, False): 3,
    }
    assert sum(draft.quarter % 96 in (0, 95) for draft in drawn) == 4


def test_windows_hold_some_of_each_and_end_before_the_next() -> None:
    matching, failing_one = [2, 5, 9, 12, 20], [[4, 10], [3, 11, 14]]
    windows = list(time_windows(matching, failing_one, (0, 1, 2)))
    assert [(window.first, window.size) for window in windows] == [
        (1, 0),
        (3, 0),
        (1, 1),
        (2, 1),
        (3, 1),
        (1, 2),
        (2, 2),
    ]
    for window in windows:
        for seed in range(20):
            begin, end = window.bounds(random.Random(seed))
            within = [moment for moment in matching if begin <= moment < end]
            assert within == matching[window.first : window.first + window.size]
            assert all(any(begin <= time < end for time in times) for times in failing_one)
    assert not list(time_windows(matching, [[1, 21]], (0, 1, 2)))
    assert not list(time_windows([1, 1, 1], [[1]], (0, 1)))
    assert [time_window.first for time_window in time_windows([2, 5, NEVER], [[6]], (1,))] == [1]


def test_a_service_has_two_schedules_one_of_them_for_two_services(hospital: World) -> None:
    desk = Desk("11c", hospital)
    clinic, asked = desk.p.scene.clinic, desk.p.request
    here = [schedule for schedule in clinic.schedules if schedule.place == asked.place.reference]
    offering = [schedule for schedule in here if asked.service in schedule.specialties]
    assert len(here) == 3
    assert sorted(len(schedule.specialties) for schedule in offering) == [1, 2]


def test_a_provider_may_speak_more_than_the_requested_language(hospital: World) -> None:
    desk = Desk("11b", hospital)
    asked = desk.p.request
    assert len({schedule.provider.id for schedule in desk.p.scene.clinic.schedules}) == 4
    both = [schedule for schedule in desk.p.scene.clinic.schedules if schedule.also_at]
    assert len(both) == 2
    assert all(asked.language in schedule.languages for schedule in both)


def test_a_doctor_is_found_by_name_and_then_by_schedules(hospital: World) -> None:
    desk = Desk("11d", hospital)
    doctor = desk.p.request.doctor
    people = Get("/Practitioner", {"family:exact": doctor.family, "given:exact": doctor.given})
    free = {"status": "free", "start": f"ge{desk.p.moment}", "_sort": "start"}
    slots = Get("/Slot", {"schedule.actor": f"Practitioner/{doctor.id}", **free})
    assert desk.verdict([people, slots, desk.gold[-1]], grading="evidence").success
    with hospital.session() as session:
        session.load(desk.variation.setup)
        lazy = session.search("Slot", **{"schedule.actor:Practitioner.family": doctor.family, **free})
        assert f"Slot/{lazy[0]['id']}" != desk.p.target
