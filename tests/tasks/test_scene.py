"""The records of a start state (the scene) are drawn independently of the prompt."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import count, product
from typing import Any, ClassVar

import pytest

from fhir_gym.actions import Finish
from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, FinishedEpisode, Gold, Params, get_task
from fhir_gym.tasks.authoring.lookalikes import NAME, absent_combinations, confusable, draw_lineup, draw_lookalikes
from fhir_gym.tasks.core.params import SceneParams
from fhir_gym.tasks.core.scene import SceneTask
from fhir_gym.tasks.grading.answers import EmptyAnswer
from fhir_gym.types import Resource

from .fakes import fake_world

PACK = "FHIRAgent/Appointment-v0"


class Dot(Params):
    number: int
    target: str


class DotParams(SceneParams):
    scene: tuple[int, ...]
    number: int


class OddOrEven(SceneTask[DotParams, tuple[int, ...], Dot]):
    """A task about one of several numbers; in two of three variations, the number is odd."""

    key, title, category, difficulty, kind = "dots", "Dots", "Dots", 1, "query"
    required_tools, required_resources, prohibited_tools = (), (), ()
    prompts, answer_instructions, answer, gold_steps = ("{number}",), "", EmptyAnswer(), 1
    pack = "Test/Dots-v0"
    strata: ClassVar[tuple[str, ...]] = ("odd", "odd", "even")
    fewest = 2
    highest: ClassVar[int] = 20

    def draw_scene(self, rng: random.Random, world: World) -> tuple[int, ...]:
        return tuple(rng.sample(range(self.highest), 6))

    def candidates(self, scene: tuple[int, ...]) -> dict[str, list[Dot]]:
        dots = [Dot(number=number, target=f"Basic/n{number}") for number in scene]
        return {"odd": [dot for dot in dots if dot.number % 2], "even": [dot for dot in dots if not dot.number % 2]}

    def params_for(self, rng: random.Random, world: World, scene: tuple[int, ...], chosen: Dot) -> DotParams:
        return DotParams(scene=scene, number=chosen.number)

    def scene_resources(self, scene: tuple[int, ...], world: World) -> list[Resource]:
        return [{"resourceType": "Basic", "id": f"n{number}", "code": {"text": "dot"}} for number in scene]

    def prompt_values(self, p: DotParams, world: World) -> dict[str, str]:
        return {"number": str(p.number)}

    def gold(self, p: DotParams) -> Gold:
        yield Finish()

    def checks(self, p: DotParams, end: FinishedEpisode) -> Iterator[Check]:
        yield from ()


def test_the_target_is_one_of_those_that_qualify_and_each_is_as_likely() -> None:
    ranks: Counter[int] = Counter()
    kinds: Counter[str] = Counter()
    for pack, k in product(("Test/Dots-v0", "Test/Dots-v1"), range(2_000)):
        task = OddOrEven()
        task.pack = pack
        variation = task.variation(k, fake_world())
        p: Any = variation.params
        kind = "odd" if p.number % 2 else "even"
        kinds[kind] += 1
        alike = [candidate.target for candidate in OddOrEven().candidates(p.scene)[kind]]
        assert variation._qualifying == p.qualifying == tuple(alike)
        assert variation._target == p.target == f"Basic/n{p.number}"
        if len(alike) == 3:
            ranks[alike.index(p.target)] += 1
    assert abs(kinds["odd"] - 2_667) < 150
    assert max(ranks.values()) < 1.25 * min(ranks.values())


def test_every_scene_offers_enough_of_every_kind() -> None:
    for k in range(100):
        p: Any = OddOrEven().variation(k, fake_world()).params
        assert all(len(found) >= 2 for found in OddOrEven().candidates(p.scene).values())


def test_the_start_state_is_that_of_the_scene_whatever_is_asked() -> None:
    task = OddOrEven()
    p = task.sample(random.Random(3), fake_world())
    for number in p.scene:
        other = p.model_copy(update={"number": number, "target": f"Basic/n{number}"})
        assert task.setup(other, fake_world()) == task.setup(p, fake_world())


def test_a_scene_that_never_offers_enough_is_an_error() -> None:
    class Few(OddOrEven):
        highest = 6
        fewest = 4

    with pytest.raises(TaskError, match="4 candidates of each kind"):
        Few().variation(0, fake_world())


def test_tasks_without_a_scene_name_no_target() -> None:
    variation = get_task(PACK, "01").variation(0, fake_world())
    assert (variation._target, variation._qualifying) == ("", ())


@pytest.mark.parametrize("size", [6, 8, 11, 14, 16])
def test_lookalikes_are_different_people_with_shared_values(size: int) -> None:
    for seed in range(20):
        people = draw_lookalikes(random.Random(seed), fake_world(), map("p{}".format, count()).__next__, size)
        assert len({(person.given, person.family, person.birth_date) for person in people}) == len(people) == size
        assert [person.id for person in people] == [f"p{n}" for n in range(size)]
        assert len({person.gender for person in people}) == 1
        for person in confusable(people):
            others = [other for other in people if other is not person]
            assert any((o.given, o.family) == (person.given, person.family) for o in others)
            assert any((o.given, o.birth_date) == (person.given, person.birth_date) for o in others)
            assert any((o.family, o.birth_date) == (person.family, person.birth_date) for o in others)


def test_enough_lookalikes_are_confusable() -> None:
    for seed in range(30):
        people = draw_lookalikes(random.Random(seed), fake_world(), map(str, count()).__next__, 10, fewest=5)
        assert len(confusable(people)) >= 5


def test_doctors_may_be_mistaken_by_name_alone() -> None:
    doctors = draw_lookalikes(
        random.Random(1), fake_world(), map(str, count()).__next__, 5, by=NAME, fewest=2, resource_type="Practitioner"
    )
    assert len({doctor.name for doctor in doctors}) == 5
    assert len(confusable(doctors, NAME)) >= 2
    assert len({doctor.birth_date for doctor in doctors}) > 2


def test_first_hits_of_a_line_up_mislead() -> None:
    """Most people who share a given or family name with the missing person share both names.

    Most candidates have several namesakes.
    """
    for seed in range(50):
        people = draw_lineup(random.Random(seed), fake_world(), map("p{}".format, count()).__next__)
        assert len({(person.given, person.family, person.birth_date) for person in people}) == len(people) == 13
        asked = confusable(people)
        assert len(asked) == 5
        (missing,) = absent_combinations(people)
        for name, value in (("given", missing[0]), ("family", missing[1])):
            alike = [person for person in people if getattr(person, name) == value]
            assert sum((person.given, person.family) == missing[:2] for person in alike) > 0.7 * len(alike)
        namesakes = [sum(other.name == person.name for other in people) for person in asked]
        assert sum(1 / number for number in namesakes) < 0.35 * len(asked)


def test_crossed_people_are_new_and_share_two_of_three_values_with_someone() -> None:
    met = 0
    for seed in range(30):
        people = draw_lookalikes(random.Random(seed), fake_world(), map(str, count()).__next__, 10)
        there = {(person.given, person.family, person.birth_date) for person in people}
        for cell in absent_combinations(people):
            met += 1
            assert cell not in there
            for n in range(3):
                assert any(other[:n] + other[n + 1 :] == cell[:n] + cell[n + 1 :] for other in there)
    assert met


def test_both_searches_for_a_person_accept_the_same_scenes() -> None:
    """The scene does not reveal whether the person in the prompt exists (tasks 02a and 02b)."""
    present: Any = get_task(PACK, "02a")
    absent: Any = get_task(PACK, "02b")
    for k in range(40):
        for task in (present, absent):
            p: Any = task.variation(k, fake_world()).params
            found = present.candidates(p.scene)
            assert set(found) == set(absent.candidates(p.scene)) == {*present.strata, *absent.strata}
            assert len(found[present.strata[0]]) >= 5
