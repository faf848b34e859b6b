from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym.tasks.grading.comparison import (
    address_parts,
    differences,
    has_coding,
    is_within,
    named,
    parse_reference,
    phone_numbers,
    plain,
    same_moment,
    same_record,
    same_reference,
    same_telephone,
    same_text,
)

BASE = "http://localhost:8080/fhir"


@pytest.mark.parametrize(
    ("actual", "expected", "same"),
    [
        ("O'Brien", "O\u2019Brien", True),
        ("Renée", "Rene\u0301e", True),
        ("Mary  Ann ", "Mary Ann", True),
        ("Jean\u2010Luc", "Jean-Luc", True),
        ("renée", "Renée", False),
        ("Renee", "Renée", False),
        ("", "Renée", False),
        (None, "Renée", False),
        (["Renée"], "Renée", False),
    ],
)
def test_same_text(actual: Any, expected: str, same: bool) -> None:
    assert same_text(actual, expected) is same


@given(st.text())
def test_plain_is_idempotent(text: str) -> None:
    assert plain(plain(text)) == plain(text)


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ({"family": "D'Amico", "given": ["Ana", "María"]}, True),
        ({"family": "D'Amico", "given": ["Ana María"], "use": "usual"}, True),
        ({"family": "D'Amico", "given": ["María", "Ana"]}, False),
        ({"family": "D'Amico", "given": ["Ana"]}, False),
        ({"family": "Amico", "given": ["Ana María"]}, False),
        ({"family": "D'Amico"}, False),
        ({"text": "Ana María D'Amico"}, False),
        ("Ana María D'Amico", False),
    ],
)
def test_named(name: Any, same: bool) -> None:
    assert named(name, "Ana María", "D'Amico") is same


@pytest.mark.parametrize(
    ("actual", "same"),
    [
        ("617-555-0142", True),
        ("(617) 555-0142", True),
        ("6175550142", True),
        ("617-555-0143", False),
        ("+1 617 555 0142", True),
        ("+16175550142", True),
        ("tel:+1-617-555-0142", True),
        ("+2 617 555 0142", False),
        ("16175550143", False),
        ("", False),
        (None, False),
        (6175550142, False),
    ],
)
def test_same_telephone(actual: Any, same: bool) -> None:
    assert same_telephone(actual, "617-555-0142") is same


def test_a_text_without_digits_is_no_telephone_number() -> None:
    assert not same_telephone("n/a", "none")


def test_phone_numbers_leave_other_contacts_out() -> None:
    telecom = [{"system": "email", "value": "a@b.c"}, {"system": "phone", "value": "1"}, {"value": "2"}, "3"]
    assert phone_numbers({"telecom": telecom}) == ["1"]
    assert phone_numbers(None) == []


def test_address_parts() -> None:
    address = {"line": ["12 Elm Street", "Apt 4"], "city": "Boston", "state": "MA", "country": "US"}
    assert address_parts(address) == {"line": "12 Elm Street Apt 4", "city": "Boston", "state": "MA"}
    assert address_parts({"line": ["12 Elm Street, Apt 4"]}) == {"line": "12 Elm Street Apt 4"}
    assert address_parts({"text": "12 Elm Street, Boston"}) == {}
    assert address_parts("12 Elm Street") == {}


@pytest.mark.parametrize(
    ("concept", "has"),
    [
        ({"coding": [{"system": "s", "code": "1"}]}, True),
        ({"coding": [{"system": "x", "code": "9"}, {"system": "s", "code": "1", "display": "One"}]}, True),
        ([{"text": "other"}, {"coding": [{"system": "s", "code": "1"}]}], True),
        ({"coding": [{"system": "s", "code": "2"}]}, False),
        ({"coding": [{"code": "1"}]}, False),
        ({"coding": [{"system": "s"}, {"code": "1"}]}, False),
        ({"text": "1"}, False),
        (None, False),
    ],
)
def test_has_coding(concept: Any, has: bool) -> None:
    assert has_coding(concept, "s", "1") is has


@pytest.mark.parametrize(
    ("actual", "expected", "same"),
    [
        ("2023-11-14", "2023-11-14", True),
        ("2023-11-14T09:00:00Z", "2023-11-14", True),
        ("2023-11-14T20:00:00-05:00", "2023-11-15", True),
        ("2023-11-14T20:00:00-05:00", "2023-11-14", False),
        ("2023-12-31T23:30:00-02:00", "2024", True),
        ("2023-11", "2023-11-14", False),
        ("2023-11-15", "2023-11-14", False),
        ("2023-11-14", "2023-11", True),
        ("2023-11-14", "2023", True),
        ("20231", "2023", False),
        ("2023-11-14T09:00:00Z", "2023-11-14T09:00:00Z", True),
        ("2023-11-14T09:00:00.000+00:00", "2023-11-14T09:00:00Z", True),
        ("2023-11-14T11:00:00+02:00", "2023-11-14T09:00:00Z", True),
        ("2023-11-14T09:00:00-05:00", "2023-11-14T09:00:00Z", False),
        ("2023-11-14", "2023-11-14T09:00:00Z", False),
        ("2023-99-14T09:00:00Z", "2023-11-14T09:00:00Z", False),
        (None, "2023-11-14", False),
    ],
)
def test_same_moment(actual: Any, expected: str, same: bool) -> None:
    assert same_moment(actual, expected) is same


@pytest.mark.parametrize(
    ("period", "within"),
    [
        ({}, True),
        ({"start": "2023-11-14"}, True),
        ({"start": "2023-11-14", "end": "2023-11-14"}, True),
        ({"start": "2023", "end": "2023-11"}, True),
        ({"start": "2023-11-14T10:00:00+01:00"}, True),
        ({"start": "2023-11-14T09:00:01Z"}, False),
        ({"start": "2023-11-15"}, False),
        ({"end": "2023-11-13"}, False),
        ({"end": "2023-11-14T08:59:59Z"}, False),
        ({"end": "1999"}, False),
        (None, False),
    ],
)
def test_is_within(period: Any, within: bool) -> None:
    assert is_within("2023-11-14T09:00:00Z", period) is within


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("Patient/12", ("Patient", "12")),
        ({"reference": "Patient/12", "display": "Ana"}, ("Patient", "12")),
        ("Patient/12/_history/3", ("Patient", "12")),
        (f"{BASE}/Patient/12", ("Patient", "12")),
        ("http://elsewhere/fhir/Patient/12", None),
        ("12", None),
        ("urn:uuid:1", None),
        ("#contained", None),
        ({"display": "Ana"}, None),
        (None, None),
    ],
)
def test_parse_reference(value: Any, found: tuple[str, str] | None) -> None:
    assert parse_reference(value, BASE) == found
    assert same_reference(value, "Patient/12", BASE) is (found is not None)
    assert not same_reference(value, "Patient/13", BASE)


BEFORE = {
    "resourceType": "Slot",
    "id": "1",
    "meta": {"versionId": "1"},
    "status": "free",
    "start": "2023-11-14T09:00:00Z",
    "schedule": {"reference": "Schedule/2"},
    "identifier": [{"value": "a"}, {"value": "b"}],
}


@pytest.mark.parametrize(
    "harmless",
    [
        {"meta": {"versionId": "2"}},
        {"text": {"status": "generated", "div": "<div/>"}},
        {"status": "busy"},
        {"start": "2023-11-14T09:00:00.000+00:00"},
        {"schedule": {"reference": f"{BASE}/Schedule/2"}},
        {"identifier": [{"value": "b"}, {"value": "a"}]},
        {"comment": "added"},
    ],
)
def test_no_difference(harmless: dict[str, Any]) -> None:
    after = {**BEFORE, **harmless}
    assert differences(BEFORE, after, changing=["status"], may_add=["comment"], base_url=BASE) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("start", "2023-11-14T09:30:00Z"),
        ("schedule", {"reference": "Schedule/3"}),
        ("identifier", [{"value": "a"}]),
        ("comment", "added"),
        ("id", "2"),
    ],
)
def test_a_difference(name: str, value: Any) -> None:
    after = {**BEFORE, name: value}
    assert differences(BEFORE, after, changing=["status"]) == {name: [BEFORE.get(name), value]}


def test_a_lost_or_overwritten_element_differs() -> None:
    rest = {name: value for name, value in BEFORE.items() if name != "schedule"}
    assert set(differences(BEFORE, rest)) == {"schedule"}
    commented = {**BEFORE, "comment": "old"}
    assert set(differences(commented, {**BEFORE, "comment": "new"}, may_add=["comment"])) == {"comment"}


def test_an_element_that_may_go_may_not_change() -> None:
    rest = {name: value for name, value in BEFORE.items() if name != "schedule"}
    assert differences(BEFORE, rest, may_go=["schedule"]) == {}
    assert set(differences(BEFORE, {**BEFORE, "schedule": {"reference": "Schedule/3"}}, may_go=["schedule"])) == {
        "schedule"
    }


def test_the_order_of_plain_values_counts() -> None:
    assert differences({"given": ["Ana", "María"]}, {"given": ["María", "Ana"]})


def test_the_display_of_a_reference_is_ignored() -> None:
    named = {**BEFORE, "schedule": {"reference": "Schedule/2", "display": "Dr. Lee"}}
    assert differences(BEFORE, named) == differences(named, BEFORE) == {}
    assert differences({"actor": {"display": "Ann"}}, {"actor": {"display": "Bea"}}), "there it is all that is said"


def test_a_consistent_length_means_nothing_new() -> None:
    timed = {"start": "2023-11-14T09:00:00Z", "end": "2023-11-14T10:30:00+01:00"}
    assert differences(timed, {**timed, "minutesDuration": 30}) == {}
    assert differences({**timed, "minutesDuration": 20}, {**timed, "minutesDuration": 30}) == {}
    assert set(differences(timed, {**timed, "minutesDuration": 45})) == {"minutesDuration"}
    assert set(differences({}, {"minutesDuration": 30})) == {"minutesDuration"}


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ({"profile": ["urn:p"]}, {}, True),
        ({}, {"profile": ["urn:p"]}, False),
        ({"tag": [{"code": "a"}]}, {"tag": [{"code": "a", "display": "A"}], "versionId": "2"}, True),
        ({}, {"tag": [{"code": "a"}]}, False),
        ({"tag": [{"code": "a"}]}, {}, False),
        ({}, {"security": [{"system": "urn:x", "code": "R"}]}, False),
        ({}, {"tag": [{"system": "urn:x", "code": "SUBSETTED"}]}, True),
    ],
)
def test_labels(old: dict[str, Any], new: dict[str, Any], same: bool) -> None:
    found = differences({**BEFORE, "meta": old}, {**BEFORE, "meta": new})
    assert found == ({} if same else {"meta": [old, new]})


@pytest.mark.parametrize(
    ("element", "same"),
    [
        ({"meta": {"versionId": "9", "lastUpdated": "2023", "source": "#1"}}, True),
        ({"meta": {"tag": [{"code": "a"}]}}, False),
        ({"meta": {"profile": ["urn:p"]}}, False),
        ({"identifier": [{"value": "b"}, {"value": "a"}]}, False),
        ({"start": "2023-11-14T09:00:00.000+00:00"}, False),
        ({"text": {"status": "generated"}}, False),
    ],
)
def test_same_record(element: dict[str, Any], same: bool) -> None:
    assert same_record(BEFORE, {**BEFORE, **element}) is same
