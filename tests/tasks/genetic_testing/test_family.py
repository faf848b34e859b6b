"""Family histories: who, what, and since when, in the words of many."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym.actions import Action, Finish, Patch, Post
from fhir_gym.tasks.appointment.relatives import RELATIONS
from fhir_gym.tasks.genetic_testing.family import (
    FamilyHistory,
    draw_histories,
    history_body,
    history_checks,
    recorded_history,
)
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.people import Person
from tests.tasks.fakes import created, end_state, fake_world
from tests.tasks.test_appointment import Desk

if TYPE_CHECKING:
    from fhir_gym.fhir import World

PACK = "FHIRAgent/GeneticTesting-v0"
HISTORY = FamilyHistory(id="h", patient="e1", relation="mother", illness="breast cancer", age=48)


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    yield
    while Desk.opened:
        Desk.opened.pop().close()


def failed(resource: dict[str, Any], history: FamilyHistory = HISTORY) -> list[str]:
    end = end_state([], changes=(created({**resource, "id": "new"}),))
    return [check.name for check in history_checks(end, history, resource) if not check.passed]


def onset(**element: Any) -> dict[str, Any]:
    return {**history_body(HISTORY, "e1"), "condition": [{"code": {"text": "breast cancer"}, **element}]}


@pytest.mark.parametrize(
    "text", ["48", "48 years", "age 48", "At age 48.", "48 y", "48-year-old", "aged 48 years", "onset at the age of 48"]
)
def test_an_age_in_words(text: str) -> None:
    assert not failed(onset(onsetString=text))


@pytest.mark.parametrize(
    "text",
    [
        "148",
        "4 8",
        "48 months",
        "48 or 49",
        "before 48",
        "not 48",
        "48 years, 3 months",
        "forty-eight",
        "47",
        "",
        "4.8",
    ],
)
def test_what_is_another_age(text: str) -> None:
    assert failed(onset(onsetString=text)) == ["onset age"]


@pytest.mark.parametrize(
    ("age", "right"),
    [
        ({"value": 48, "unit": "a"}, True),
        ({"value": 48, "unit": "years"}, True),
        ({"value": 48.0, "unit": "Years", "code": "a"}, True),
        ({"value": 48, "code": "a"}, True),
        ({"value": 48, "unit": "mo"}, False),
        ({"value": 48, "unit": "years", "code": "mo"}, False),
        ({"value": 48}, False),
        ({"value": "48", "unit": "years"}, False),
        ({"unit": "years"}, False),
        ({"value": 576, "unit": "months"}, False),
    ],
)
def test_an_age_as_quantity(age: dict[str, Any], right: bool) -> None:
    assert failed(onset(onsetAge=age)) == ([] if right else ["onset age"])


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("Breast cancer", True),
        ("cancer of the breast", True),
        ("Breast cancer (disorder)", True),
        ("breast", False),
        ("cancer", False),
        ("no breast cancer", False),
        ("breast and ovarian cancer", False),
        ("ovarian cancer", False),
        ("breastcancer", False),
        ("", False),
    ],
)
def test_a_condition_by_its_words(text: str, right: bool) -> None:
    body = history_body(HISTORY, "e1")
    body["condition"][0]["code"]["text"] = text
    assert failed(body) == ([] if right else ["condition"])


def test_two_conditions_are_one_too_many() -> None:
    body = history_body(HISTORY, "e1")
    assert failed({**body, "condition": body["condition"] * 2}) == ["condition"]
    assert failed({**body, "condition": []}) == ["condition", "onset age"]


@given(age=st.integers(0, 120), other=st.integers(0, 120))
def test_only_the_age_is_the_age(age: int, other: int) -> None:
    history = HISTORY.model_copy(update={"age": age})
    said = {
        **history_body(history, "e1"),
        "condition": [{"code": {"text": "breast cancer"}, "onsetString": f"{other}"}],
    }
    assert failed(said, history) == ([] if age == other else ["onset age"])


def test_who_had_it_was_old_enough_and_can_have_it() -> None:
    world = fake_world()
    for number in range(200):
        rng = random.Random(number)
        birth_date = f"{rng.randrange(1929, 2005)}-06-01"
        person = Person(
            id="e1",
            given="Ana",
            family="Costa",
            gender="female",
            birth_date=birth_date,
            phone="1",
            line="",
            city="",
            state="",
        )
        target, decoys = draw_histories(rng, world, Ids(rng, world, 4), person, person.model_copy(update={"id": "e2"}))
        age = world.now.year - int(birth_date[:4])
        assert target.age <= age + RELATIONS[target.relation].older[0]
        if target.illness in ("breast cancer", "ovarian cancer"):
            assert RELATIONS[target.relation].gender == "female"
        assert decoys[0].relation != target.relation and decoys[0].illness == target.illness
        assert decoys[1].illness != target.illness and decoys[1].relation == target.relation
        assert decoys[2].model_dump(exclude={"id", "patient"}) == target.model_dump(exclude={"id", "patient"})
        assert not failed(recorded_history(target), target)


def body_of(action: Action) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(action.body or "")
    return parsed


def test_a_second_relative_in_one_record_is_refused(hospital: World) -> None:
    desk = Desk("22", hospital, pack=PACK)
    find, create, finish = desk.gold
    other = desk.p.decoys[1]
    both = [*body_of(create)["condition"], {"code": {"text": other.illness}}]
    assert desk.failed([find, Post("/FamilyMemberHistory", {**body_of(create), "condition": both}), finish]) == [
        "condition"
    ]


def test_adding_to_a_record_on_file_is_refused(hospital: World) -> None:
    desk = Desk("22", hospital, pack=PACK)
    find, create, _ = desk.gold
    old = desk.p.decoys[1].id
    condition = body_of(create)["condition"][0]
    patch = Patch(f"/FamilyMemberHistory/{old}", [{"op": "add", "path": "/condition/-", "value": condition}])
    assert "FamilyMemberHistory created" in desk.failed([find, patch, Finish([old])])


def test_the_record_must_be_attached_to_the_order(hospital: World) -> None:
    desk = Desk("21c", hospital, pack=PACK)
    find_patient, create, find_order, attach, finish = desk.gold
    verdict = desk.verdict([find_patient, create, find_order, finish])
    assert not verdict.success and not verdict.light
    assert "order updated" in [check.name for check in verdict.failed]
    verdict = desk.verdict([find_patient, find_order, finish])
    assert not verdict.light
    assert 0 < desk.verdict([find_patient, create, find_order, attach]).reward("dense") < 1


def test_the_answer_is_the_order_not_the_record(hospital: World) -> None:
    desk = Desk("21c", hospital, pack=PACK)
    new = body_of(desk.gold[3])["supportingInfo"][-1]["reference"]
    assert desk.failed([*desk.gold[:-1], Finish([new.partition("/")[2]])]) == ["answer"]
