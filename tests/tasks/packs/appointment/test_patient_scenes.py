"""Scenes of tasks about one patient do not reveal the target; parts of scenes (namesakes, relatives, day ranges)."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from fhir_gym.tasks import get_task
from fhir_gym.tasks.core.ids import IdAllocator
from fhir_gym.tasks.packs.appointment.billing import (
    day_range,
    draw_consecutive,
    draw_day,
    draw_spanning,
    gaps_between,
    intersection,
    iso_day,
)
from fhir_gym.tasks.packs.appointment.patient_scenes import draw_namesakes, draw_relatives, draw_similar_relatives
from fhir_gym.tasks.packs.appointment.relatives import ONLY_ONE, RELATIONS
from tests.tasks.fakes import NOW, fake_world
from tests.tasks.test_appointment import PACK

if TYPE_CHECKING:
    from fhir_gym.fhir import World

HISTORY = ("03", "04a", "04b", "05", "06a", "06b")
BILLING = ("07", "08a", "08b", "09a", "09b", "09c", "09d", "10a", "10b")
ONLY_DESCRIBES = {("09c", "id"), ("09c", "patient")}
"""Prompt values that some phrasings omit because another value identifies the record."""


@pytest.mark.parametrize("key", (*HISTORY, *BILLING))
def test_each_phrasing_states_all_values(key: str, hospital: World) -> None:
    task = get_task(PACK, key)
    assert len(task.prompts) >= 3
    for phrasing in range(len(task.prompts)):
        variation = task.variation(2, hospital, phrasing)
        for name, value in task.prompt_values(variation.params, hospital).items():
            assert value in variation.prompt or (key, name) in ONLY_DESCRIBES


@pytest.mark.parametrize("key", (*HISTORY, *BILLING))
def test_prompts_name_only_the_ids_they_need(key: str, hospital: World) -> None:
    for k in range(5):
        variation = get_task(PACK, key).variation(k, hospital)
        p: Any = variation.params
        named = {resource["id"] for resource in variation.setup if resource["id"] in variation.prompt}
        further = {p.account.id, p.guarantor.person.id} if key == "09c" else set()
        assert named <= {p.patient.id} | further
        assert key in BILLING or named == {p.patient.id}


@pytest.mark.parametrize("key", (*HISTORY, *BILLING))
def test_the_start_state_does_not_depend_on_the_target(key: str, hospital: World) -> None:
    task: Any = get_task(PACK, key)
    for k in range(5):
        p: Any = task.variation(k, hospital).params
        (stratum,) = task.strata
        others = [
            task.params_for(random.Random(k), hospital, p.scene, candidate)
            for candidate in task.candidates(p.scene)[stratum]
        ]
        assert len(others) > 2
        assert all(task.setup(other, hospital) == task.setup(p, hospital) for other in others)
        if key in HISTORY:
            assert len({other.patient.id for other in others}) == len(others) == len(p.qualifying) > 3


@pytest.mark.parametrize("key", (*HISTORY, *BILLING))
def test_about_five_records_qualify_as_target(key: str, hospital: World) -> None:
    variations = [get_task(PACK, key).variation(k, hospital) for k in range(100)]
    sizes = [len(variation._qualifying) for variation in variations]
    assert sum(sizes) / len(sizes) >= (4.9 if key in HISTORY else 5)
    assert key in HISTORY or len({*sizes}) > 1
    assert all(variation._target in variation._qualifying for variation in variations)


@pytest.mark.parametrize("seed", range(20))
def test_patients_share_names_in_groups(seed: int) -> None:
    rng, world = random.Random(seed), fake_world()
    people = draw_namesakes(rng, world, IdAllocator(rng, world), (2, 3, 6))
    assert sorted(Counter((person.given, person.family) for person in people).values()) == [2, 3, 6]
    assert len({(person.given, person.family, person.birth_date) for person in people}) == 11
    assert len({person.gender for person in people}) == 1


def test_relatives_share_given_names_and_relations_are_unique() -> None:
    for seed in range(30):
        rng, world = random.Random(seed), fake_world()
        ids = IdAllocator(rng, world)
        people = draw_namesakes(rng, world, ids, (2, 3))
        relatives = draw_relatives(rng, NOW.date(), ids, people, (2, 3), youngest=18)
        for person in people:
            own = [relative for relative in relatives if relative.patient == person.id]
            assert (
                len({relative.relation for relative in own})
                == len({relative.person.given for relative in own})
                == len(own)
                in (2, 3)
            )
            assert {relative.person.family for relative in own} == {person.family}
            assert person.given not in {relative.person.given for relative in own}
        names = Counter(relative.person.name for relative in relatives)
        assert names.most_common(1)[0][1] > 1
        assert all(NOW.year - int(relative.person.birth_date[:4]) >= 18 for relative in relatives)


def test_similar_relatives_are_of_one_generation_and_nobody_has_two_mothers() -> None:
    words = set()
    for seed in range(60):
        rng, world = random.Random(seed), fake_world()
        ids = IdAllocator(rng, world)
        people = draw_namesakes(rng, world, ids, (3, 2))
        relatives = draw_similar_relatives(rng, NOW.date(), ids, people)
        words |= {relative.relation for relative in relatives}
        assert len({relative.person.given for relative in relatives}) == 2
        assert len({relative.person.gender for relative in relatives}) == 1
        for person in people:
            own = [relative for relative in relatives if relative.patient == person.id]
            assert len({(relative.person.given, relative.person.birth_date) for relative in own}) == len(own) in (3, 4)
            counts = Counter(relative.relation for relative in own)
            assert all(counts[word] < 2 for word in ONLY_ONE)
            for relative in own:
                older = int(person.birth_date[:4]) - int(relative.person.birth_date[:4])
                least, most = RELATIONS[relative.relation].older
                assert least - 3 <= older <= most + 3
    assert words == {*RELATIONS}


def test_young_people_are_children_and_students() -> None:
    for seed in range(50):
        rng, world = random.Random(seed), fake_world()
        for person in draw_namesakes(rng, world, IdAllocator(rng, world), (3, 2), young=True):
            assert 3 < NOW.year - int(person.birth_date[:4]) < 28


def test_ranges_are_consecutive_with_gaps_and_one_spans_them() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        ranges = draw_consecutive(rng, NOW.date(), 3)
        gaps = gaps_between(ranges)
        first, last = draw_spanning(rng, ranges)
        assert len(gaps) == 2
        assert intersection(ranges, gaps) == []
        assert intersection([(first, last)], gaps) == gaps
        assert ranges[0][0] <= first <= ranges[0][1] < ranges[2][0] <= last <= ranges[2][1]
        assert ranges[0][0] <= NOW.toordinal() <= ranges[2][1]


def test_a_missing_bound_is_open() -> None:
    assert intersection([day_range(None, None)], [day_range("2023-11-13", None)], [day_range(None, "2023-11-14")]) == [
        day_range("2023-11-13", "2023-11-14")
    ]
    assert intersection([day_range(None, "2023-11-12")], [day_range("2023-11-13", None)]) == []


def test_a_drawn_day_lies_in_the_ranges_and_is_often_an_edge() -> None:
    ranges = [day_range("2023-01-01", "2023-01-10"), day_range("2023-03-01", "2023-03-10")]
    edges = [day_range("2023-01-01", None)[0], day_range("2023-02-01", None)[0]]
    days = Counter(draw_day(random.Random(seed), ranges, edges) for seed in range(400))
    assert {*days} == {iso_day(ordinal) for start, end in ranges for ordinal in range(start, end + 1)}
    assert days["2023-01-01"] > 150
