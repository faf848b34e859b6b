"""Relationship codes and words."""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym.tasks.authoring import Person
from fhir_gym.tasks.packs.appointment.relatives import (
    RELATIONS,
    ROLES,
    Relative,
    fitting_relations,
    new_relative,
    related_person,
    relation_concept,
    relation_spellings,
    relative_checks,
    says_relation,
)

V2, SNOMED = "http://terminology.hl7.org/CodeSystem/v2-0063", "http://snomed.info/sct"

TODAY = date(2023, 11, 13)
PATIENT = Person(
    id="e1",
    given="Ana",
    family="Costa",
    gender="female",
    birth_date="1985-03-20",
    phone="555-0101",
    line="1 Elm Street",
    city="Boston",
    state="MA",
)


def coded(system: str, code: str, **more: str) -> dict[str, Any]:
    return {"coding": [{"system": system, "code": code, **more}]}


@pytest.mark.parametrize(
    "concept",
    [
        {"text": "Mother of the patient"},
        {"text": "The patient's mother"},
        {"text": "natural mother"},
        {"text": "Mom"},
        coded(ROLES, "MTH", display="mother"),
        coded(ROLES, "NMTH"),
        coded("http://hl7.org/fhir/v3/RoleCode", "MTH"),
        coded(V2, "MTH", display="Mother"),
        coded(SNOMED, "72705000", display="Mother (person)"),
        {**coded(ROLES, "MTH"), "text": "Maria, the patient's mother"},
        {"coding": [{"system": ROLES, "code": "PRN", "display": "parent"}], "text": "mother"},
        {**coded("http://terminology.hl7.org/CodeSystem/v2-0131", "N", display="Next-of-Kin"), "text": "mother"},
    ],
)
def test_accepted_as_mother(concept: dict[str, Any]) -> None:
    assert says_relation([concept], "mother")


@pytest.mark.parametrize(
    "concept",
    [
        {},
        {"text": "relative"},
        {"text": "mother-in-law"},
        {"text": "Not the mother"},
        {"text": "stepmother"},
        {"text": "grandmother"},
        {"text": "mother's sister"},
        {"text": "mother and father"},
        {"coding": [{"code": "MTH"}]},
        coded(ROLES, "FTH", display="mother"),
        coded(ROLES, "GRMTH", display="mother"),
        coded(ROLES, "GRMTH"),
        coded(ROLES, "MTHINLAW"),
        coded(ROLES, "mth"),
        coded(ROLES, "PRN"),
        coded(V2, "FTH", display="mother"),
        coded("urn:local", "MTH"),
        {**coded(ROLES, "MTH"), "text": "The patient's aunt"},
    ],
)
def test_refused_as_mother(concept: dict[str, Any]) -> None:
    assert not says_relation([concept], "mother")
    assert failed("mother", relationship=[concept]) == failed("mother", relationship=[]) == ["relationship"]


def relative(word: str) -> Relative:
    return new_relative(random.Random(word), PATIENT, "e2", word)


def failed(word: str, **elements: Any) -> list[str]:
    related = relative(word)
    return [
        check.name for check in relative_checks(related, {**related_person(related), **elements}) if not check.passed
    ]


@pytest.mark.parametrize("word", RELATIONS)
def test_spellings_state_one_relation(word: str) -> None:
    assert not failed(word)
    for name, spelling in relation_spellings(word):
        assert [other for other in RELATIONS if says_relation(list(spelling), other)] == [word], name
        assert not failed(word, relationship=spelling)


@pytest.mark.parametrize("word", RELATIONS)
def test_another_relation_is_refused_alone_and_with_the_right_one(word: str) -> None:
    for other in (relation for relation in RELATIONS if relation != word):
        for wrong in (relation_concept(other), {"text": other}, {"coding": [{"display": other}]}):
            assert failed(word, relationship=[wrong]) == ["relationship"]
            assert failed(word, relationship=[relation_concept(word), wrong]) == ["relationship"]
        both = {"coding": [*relation_concept(word)["coding"], *relation_concept(other)["coding"]]}
        assert failed(word, relationship=[both]) == ["relationship"]
        assert failed(word, relationship=[{**relation_concept(word), "text": other}]) == ["relationship"]


def test_every_name_must_be_right() -> None:
    right = related_person(relative("sister"))["name"][0]
    assert failed("sister", name=[]) == ["name"]
    assert failed("sister", name=[right, {**right, "family": "Someone"}]) == ["name"]
    assert failed("sister", name=[{"text": f"{right['given'][0]} {right['family']}"}]) == ["name"]
    assert not failed("sister", name=[{**right, "use": "usual"}])


@given(st.integers(0, 95 * 365), st.sampled_from((0, 18)))
def test_relatives_have_plausible_ages(days: int, youngest: int) -> None:
    patient = PATIENT.model_copy(update={"birth_date": (TODAY - timedelta(days=days)).isoformat()})
    for word in fitting_relations(patient, TODAY, youngest=youngest):
        born = date.fromisoformat(new_relative(random.Random(days), patient, "e2", word).person.birth_date)
        assert youngest * 365 < (TODAY - born).days < 106 * 365


def test_adults_can_have_adult_relatives_in_two_relations() -> None:
    for age in range(18, 96):
        born = (TODAY - timedelta(days=age * 366)).isoformat()
        assert len(fitting_relations(PATIENT.model_copy(update={"birth_date": born}), TODAY, youngest=18)) > 1


def test_relatives_share_the_family_name_but_not_the_given_name() -> None:
    for word, relation in RELATIONS.items():
        other = relative(word).person
        assert other.family == PATIENT.family
        assert other.given != PATIENT.given
        assert relation.gender in (None, other.gender)
