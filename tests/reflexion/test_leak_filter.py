"""Names, ids, dates and numbers of particular episodes stay out of reflections."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fhir_gym.reflexion import InstanceData, LeakFilter
from fhir_gym.reflexion.leak_filter import MAX_LENGTH

PATIENT = {
    "resourceType": "Patient",
    "id": "S3600913",
    "name": [{"family": "Martínez-O'Hara", "given": ["Zoë", "Mark"]}],
    "address": [{"line": ["4918 Maple Court"], "city": "La Cañada", "state": "CA"}],
    "identifier": [{"value": "ward-seven"}],
    "generalPractitioner": [{"reference": "Practitioner/dr-blue", "display": "Dr. Solveig Nuñez"}],
    "code": {"coding": [{"code": "52734007", "display": "Total replacement of hip"}]},
}


CLINIC = {"resourceType": "Location", "id": "LOC0158674", "name": "Lowell Surgery Clinic"}


def data() -> InstanceData:
    instance_data = InstanceData()
    instance_data.add_resource(CLINIC)
    instance_data.add_resource(PATIENT)
    instance_data.add_value("Westbrook Medical Group Annex")
    instance_data.add_value("Total replacement of hip")
    return instance_data


@pytest.fixture
def leak_filter() -> LeakFilter:
    guarded = InstanceData()
    guarded.add_value("Benedikt Okafor")
    guarded.add_value("Joy Young")
    guarded.add_id("loc-secret")
    return LeakFilter(guarded, ["Use system http://loinc.org and code 2345-7 below 3.5 within 24 hours."])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Search by family=Martínez-O'Hara first.", "Search by family=<name> first."),
        ("MARTINEZ and o'hara are one name.", "<name> and <name> are one name."),
        ("The OHara record is the right one.", "The <name> record is the right one."),
        ("Ask Solveig Nunez, then zoë.", "Ask <name>, then zoë."),
        ("The patient Zoë Mark had no record.", "The patient <name> had no record."),
        ("Mark the appointment as cancelled.", "Mark the appointment as cancelled."),
        ("Ask Mark about the appointment.", "Ask <name> about the appointment."),
        ("Read Patient/S3600913 before you write.", "Read Patient/<id> before you write."),
        ("Read Practitioner/dr-blue before you write.", "Read Practitioner/<id> before you write."),
        ("The identifier is ward-seven here.", "The identifier is <id> here."),
        ("The place is Westbrook Medical Group Annex here.", "The place is <name> here."),
        ("The operation is total replacement of hip here.", "The operation is <name> here."),
        ("The surgery was at Lowell or at lowell surgery clinic.", "The surgery was at <name> or at <name>."),
        ("The total number of results matters.", "The total number of results matters."),
        ("Use code 52734007 for the operation.", "Use code <number> for the operation."),
        ("It starts 2023-11-13T10:15:00Z or ge2023-12-30 then.", "It starts <date> or ge<date> then."),
        ("It was on November 13, 2023 or 3rd of May 1990.", "It was on <date> or <date>."),
        ("It was on 11/13/2023 at 10:15 there.", "It was on <date> at <time> there."),
        ("Search start=ge08:00 and end=lt12:30:00 of the day.", "Search start=ge<time> and end=lt<time> of the day."),
        ("Call +1 355 555 0132 for the patient.", "Call +1 <number> for the patient."),
        ("Use _count=100 and expect HTTP 412 or 404.", "Use _count=100 and expect HTTP 412 or 404."),
        ("FHIR R4 has 3 ways for HbA1c values.", "FHIR R4 has 3 ways for HbA1c values."),
        ("The value 7.2 decides what to do.", "The value <number> decides what to do."),
        ("The code 2345-7 and the limit 3.5 hold.", "The code 2345-7 and the limit 3.5 hold."),
        ("The patient is S 3 6 0 0 9 1 3 again.", "The patient is <value> again."),
        ("The patient is M-a-r-t-i-n-e-z again.", "The patient is <value> again."),
        ("The patient is Ma\u200brti\u00adnez again.", "The patient is <name> again."),
        ("The patient is \uff2d\uff41\uff52\uff54inez again.", "The patient is <name> again."),
        ("The patient is Mart.inez or mart_inez again.", "The patient is <name> or <name> again."),
        ("The patient is mart1nez or 50lveig again.", "The patient is <name> or <name> again."),
        ("One\nline \x1b[31mwith\x00 control.", "One line [<id> control."),
    ],
)
def test_own_data_is_replaced(leak_filter: LeakFilter, text: str, expected: str) -> None:
    assert leak_filter.apply(text, data()).text == expected


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("Ask the doctor Benedikt about it.", "test data"),
        ("Ask the doctor okafor about it.", "test data"),
        ("The family is Young, I am sure.", "test data"),
        ("The doctor joy young knows about it.", "test data"),
        ("The patient is \u0410\u0434eyemi again.", "another script"),
        ("It is " + "QmVuZWRpa3Q" * 10 + " in code.", "encoded text"),
        ("word " * MAX_LENGTH, "too long"),
        ("Martínez-O'Hara S3600913 2023-11-13", "no lesson left"),
        ("", "no lesson left"),
    ],
)
def test_other_texts_are_refused(leak_filter: LeakFilter, text: str, refusal: str) -> None:
    filtered = leak_filter.apply(text, data())
    assert (filtered.refusal, filtered.text) == (refusal, "")


def test_general_lessons_stay_as_they_are(leak_filter: LeakFilter) -> None:
    for text in (
        "Search Slot with schedule, status=free and start=ge<date>; sort by start and take the first one.",
        'A ServiceRequest needs "status": "active", "intent": "order", subject and code with system and display.',
        "Young patients often share a name, so compare the birth date too.",
        "Enjoy no shortcuts: read the Coverage before you decide that it is valid.",
        "An id from loc-secret is not one of ours, if it is written otherwise.",
    ):
        filtered = leak_filter.apply(text, data())
        assert filtered.text == (text if "loc-secret" not in text else text.replace("loc-secret", "<id>"))


def test_small_numbers_of_the_episode_are_replaced(leak_filter: LeakFilter) -> None:
    text = "Wait 35 days, then 12 more."
    assert leak_filter.apply(text, data(), frozenset({"35"})).text == "Wait <number> days, then 12 more."


GAPS = st.sampled_from([".", " ", "/", ","])
names = st.text(st.characters(categories=["Lu", "Ll"], max_codepoint=0x17F), min_size=4, max_size=12)


@settings(max_examples=60)
@given(
    names.map(str.capitalize), st.integers(10_000, 10**12), st.text(max_size=30), st.sampled_from([".", " ", "/", ","])
)
@example("Straße", 12345, "", " ")
def test_names_and_numbers_never_pass(name: str, number: int, around: str, gap: str) -> None:
    own = InstanceData()
    own.add_resource({"name": [{"family": name}], "id": f"S{number}"})
    text = f"The lesson is this: {around}{gap}{name}{gap}S{number}{gap}{number}{gap}{name.upper()}{gap}{around}"
    filtered = LeakFilter(InstanceData()).apply(text, own)
    assert str(number) not in filtered.text
    assert not own.contains(filtered.text)
