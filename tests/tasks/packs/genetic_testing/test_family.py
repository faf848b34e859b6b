"""Checks of family histories in different forms and wordings."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym.actions import Action, Finish, Patch, Post
from fhir_gym.tasks import get_task
from fhir_gym.tasks.authoring.people import Person
from fhir_gym.tasks.packs.appointment.relatives import RELATIONS
from fhir_gym.tasks.packs.genetic_testing.family import (
    FamilyHistory,
    draw_history,
    history_body,
    history_checks,
    recorded_history,
    some_illnesses,
)
from tests.tasks.fakes import created, end_state, fake_world
from tests.tasks.test_appointment import Desk

if TYPE_CHECKING:
    from fhir_gym.fhir import World

PACK = "FHIRAgent/GeneticTesting-v0"
HISTORY = FamilyHistory(id="h", patient="e1", relation="mother", illness="breast cancer", age=48)


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
def test_other_ages(text: str) -> None:
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


def someone(birth_date: str) -> Person:
    born = {"gender": "female", "birth_date": birth_date}
    return Person(id="e1", given="Ana", family="Costa", phone="1", line="", city="", state="", **born)


def test_affected_relatives_have_a_plausible_age_and_sex() -> None:
    today = fake_world().now.date()
    for number in range(200):
        rng = random.Random(number)
        person = someone(f"{rng.randrange(1929, 2005)}-06-01")
        history = draw_history(rng, today, "h", person, some_illnesses(rng))
        assert history.age <= today.year - int(person.birth_date[:4]) + RELATIONS[history.relation].older[0]
        if history.illness in ("breast cancer", "ovarian cancer"):
            assert RELATIONS[history.relation].gender == "female"
        assert not failed(recorded_history(history), history)


@pytest.mark.parametrize("birth_date", ["1928-06-01", "1960-06-01", "2005-01-01"])
def test_there_is_always_something_that_is_not_known_yet(birth_date: str) -> None:
    today, person = fake_world().now.date(), someone(birth_date)
    for number in range(200):
        rng = random.Random(number)
        illnesses = some_illnesses(rng)
        known: set[tuple[str, str]] = set()
        for _ in range(3):
            history = draw_history(rng, today, "", person, illnesses, known)
            assert history.illness in illnesses
            assert (history.relation, history.illness) not in known
            known.add((history.relation, history.illness))


def test_the_new_entry_is_not_on_file(hospital: World) -> None:
    for key in ("21c", "22"):
        for k in range(60):
            p: Any = get_task(PACK, key).variation(k, hospital).params
            own = [(history.relation, history.illness) for history in p.scene.histories_of(p.person.id)]
            assert (p.history.relation, p.history.illness) not in own


def body_of(action: Action) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(action.body or "")
    return parsed


def test_a_second_relative_in_one_record_is_refused(hospital: World) -> None:
    desk = Desk("22", hospital, pack=PACK)
    find, create, finish = desk.gold
    other = desk.p.scene.histories[0]
    both = [*body_of(create)["condition"], {"code": {"text": other.illness}}]
    assert desk.failed([find, Post("/FamilyMemberHistory", {**body_of(create), "condition": both}), finish]) == [
        "condition"
    ]


def test_adding_to_a_record_on_file_is_refused(hospital: World) -> None:
    desk = Desk("22", hospital, pack=PACK)
    find, create, _ = desk.gold
    old = desk.p.scene.histories[0].id
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
