from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from fhir_gym.tasks.packs.medagentbench.official.orders import COMMENT, magnesium_dose, potassium_dose
from tests.tasks.packs.medagentbench.conftest import (
    BASE,
    MRN,
    Play,
    blood_pressure,
    magnesium,
    morning,
    post,
    potassium,
    service,
)

SNOMED, LOINC = "http://snomed.info/sct", "http://loinc.org"
REFERRAL = service(SNOMED, "306181000000106", note={"text": COMMENT})
A1C = service(LOINC, "4548-4", "S0000002")


@pytest.mark.parametrize(
    ("task", "answer", "accepted"),
    [
        ("task1_1", '["S0000001"]', True),
        ("task1_1", '["s0000001"]', False),
        ("task1_1", '"S0000001"', False),
        ("task1_1", "[]", False),
        ("task1_5", '["Patient not found"]', True),
        ("task1_5", '["Patient not found."]', False),
        ("task2_1", "[60]", True),
        ("task2_2", "[59]", True),
        ("task2_3", "[60]", True),
        ("task2_1", "[60.0]", True),
        ("task2_1", "[6e1]", True),
        ("task2_1", '["60"]', False),
        ("task2_1", "[]", False),
        ("task2_4", "[60]", False),  # the record has only a year of birth, so no answer is right
        ("task4_1", "[1.9]", True),  # two results have the same time; the first in the Bundle counts
        ("task4_1", "[2.4]", False),
        ("task4_1", "[1.900000001]", False),
        ("task4_3", "[-1]", True),
        ("task4_3", "[-1.0]", True),
        ("task4_3", "[]", False),
        ("task4_4", "[2.2]", False),  # the result has only a date, which cannot be compared with an instant
        ("task6_1", "[105.65]", True),
        ("task6_1", "[105.7]", True),
        ("task6_1", "[105.76]", False),
        ("task6_1", "[105.65, 1]", False),
        ("task6_1", "[NaN]", False),
        ("task6_1", '["105.65"]', False),
        ("task6_2", "[90]", True),  # results after the current time count
        ("task6_3", "[-1]", True),
        ("task7_1", "[111.3]", True),
        ("task7_1", "[]", False),
        ("task7_2", "[90]", True),
        ("task7_3", "[-1]", True),
    ],
)
def test_answers(play: Play, task: str, answer: str, accepted: bool) -> None:
    assert play.accepts(task, f"FINISH({answer})") is accepted
    assert not play.accepts(task, "POST no\nnothing", f"FINISH({answer})"), "a POST is one too many"
    assert not play.accepts(task, f"GET {BASE}/X?code=POSTOP", f"FINISH({answer})")


def test_train_prefixes_are_cut(play: Play) -> None:
    case = play.cases["task2_1"]
    assert case.model_copy(update={"id": "train_task2_1"}).kind == "task2"


def changed(payload: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Copy a payload, and set the element at a dotted path to a value, or remove the element if the value is None."""
    copied: Any = copy.deepcopy(payload)
    holder = copied
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in way:
        holder = holder[part]
    if value is None:
        del holder[last]
    else:
        holder[last] = value
    return dict(copied)


BAD_PRESSURE = [
    ("resourceType", "Patient"),
    ("category", {"coding": [{}]}),
    ("category.0.coding.0.system", "http://terminology.hl7.org/CodeSystem/observation-category"),
    ("category.0.coding.0.display", None),
    ("category.0.coding.0.extra", 1),
    ("code", {"text": "BP", "coding": []}),
    ("code", {"text": "bp"}),
    ("effectiveDateTime", "2023-11-13T10:15:00Z"),
    ("effectiveDateTime", "2023-11-13T10:15"),
    ("status", "preliminary"),
    ("valueString", "118/77 mmhg"),
    ("valueString", None),
    ("subject", {"reference": f"Patient/{MRN}", "display": "x"}),
    ("subject", {"reference": "Patient/S0000002"}),
    ("subject", f"Patient/{MRN}"),
]
GOOD_PRESSURE: list[tuple[str, Any]] = [("category.0.text", "Vital signs"), ("note", [{"text": "sitting"}])]


@pytest.mark.parametrize(("path", "value"), BAD_PRESSURE)
def test_a_blood_pressure_is_compared_exactly(play: Play, path: str, value: Any) -> None:
    assert not play.accepts("task3_1", post("Observation", changed(blood_pressure(), path, value)), "FINISH([])")


@pytest.mark.parametrize(("path", "value"), GOOD_PRESSURE)
def test_further_elements_of_a_blood_pressure(play: Play, path: str, value: Any) -> None:
    assert play.accepts("task3_1", post("Observation", changed(blood_pressure(), path, value)), "FINISH(so be it)")


@pytest.mark.parametrize(
    "url", ["/Observation/", "/observation", "/Observation?_format=json", "//Observation", "/Patient"]
)
def test_urls_are_compared_exactly(play: Play, url: str) -> None:
    assert play.accepts("task3_1", post("Observation", blood_pressure()), "FINISH([])")
    assert not play.accepts("task3_1", post("", blood_pressure(), url=BASE + url), "FINISH([])")


@pytest.mark.parametrize("url", ["Observation", "/Observation", "{api_base}/Observation"])
def test_relative_urls_are_wrong(play: Play, url: str) -> None:
    assert not play.accepts("task3_1", post("", blood_pressure(), url=url), "FINISH([])")


def test_the_number_of_orders(play: Play) -> None:
    record = post("Observation", blood_pressure())
    assert not play.accepts("task3_1", "FINISH([])")
    assert not play.accepts("task3_1", record, record, "FINISH([])")
    assert not play.accepts("task3_1", record, "POST anywhere\n1", "FINISH([])")
    assert play.accepts("task3_1", record, "POST anywhere\nno json", "FINISH([])"), "refused POSTs are forgiven"
    assert play.accepts("task3_1", record, f"```\n{record}\n```", "FINISH([])"), "fenced ones are not seen"
    assert not play.accepts("task3_1", f"```\n{record}\n```", "FINISH([])")


@pytest.mark.parametrize(
    ("note", "accepted"),
    [
        ({"text": COMMENT}, True),
        ({"text": f"REFERRAL\n{COMMENT} Thanks."}, True),
        ({"text": [COMMENT]}, True),
        ({"text": [f"{COMMENT} "]}, False),
        ({"text": COMMENT.replace(". ", ".\n")}, False),
        ({"text": COMMENT.lower()}, False),
        ([{"text": COMMENT}], False),
        (COMMENT, False),
    ],
)
def test_notes(play: Play, note: Any, accepted: bool) -> None:
    assert play.accepts("task8_1", post("ServiceRequest", {**REFERRAL, "note": note}), "FINISH([])") is accepted


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("priority", "STAT"),
        ("priority", None),
        ("code.coding.0.code", 306181000000106),
        ("code.coding.0.system", "http://snomed.info/sct/"),
        ("authoredOn", "2023-11-13T10:15:00Z"),
        ("intent", "plan"),
        ("status", "Active"),
    ],
)
def test_bad_referrals(play: Play, path: str, value: Any) -> None:
    assert play.accepts("task8_1", post("ServiceRequest", REFERRAL), "FINISH(fine)")
    assert not play.accepts("task8_1", post("ServiceRequest", changed(REFERRAL, path, value)), "FINISH([])")


def test_only_the_first_coding_is_read(play: Play) -> None:
    right, other = REFERRAL["code"]["coding"][0], {"system": "urn:x", "code": "y"}
    after, before = {"coding": [right, other]}, {"coding": [other, right]}
    assert play.accepts("task8_1", post("ServiceRequest", {**REFERRAL, "code": after}), "FINISH([])")
    assert not play.accepts("task8_1", post("ServiceRequest", {**REFERRAL, "code": before}), "FINISH([])")


def test_magnesium(play: Play) -> None:
    def accepts(payload: Any, answer: str = "[1.9]") -> bool:
        return play.accepts("task5_1", post("MedicationRequest", payload), f"FINISH({answer})")

    assert accepts(magnesium())
    assert accepts(magnesium(), "[]")
    assert accepts(magnesium(1.0))
    assert accepts(magnesium(True)), "JSON's true equals 1"
    assert accepts(magnesium(authoredOn="2023-11-13T10:15:59Z"))
    assert accepts(magnesium(authoredOn=["2023-11-13T10:15"])), "a list holding the minute contains it"
    assert not accepts(magnesium(), "[2.4]")
    assert not accepts(magnesium(2))
    assert not accepts(magnesium(route={"text": "IV"}))
    assert not accepts(magnesium(route="iv"))
    assert not accepts(magnesium(authoredOn="2023-11-13"))
    given = magnesium()["dosageInstruction"][0]["doseAndRate"][0]
    for name in ("doseQuantity", "rateQuantity"):
        extra = {**given, name: {**given[name], "system": "http://unitsofmeasure.org"}}
        assert not accepts(magnesium(dosageInstruction=[{"route": "IV", "doseAndRate": [extra]}]))
    assert not play.accepts("task5_1", "FINISH([1.9])")


def test_no_magnesium_is_due(play: Play) -> None:
    order = post("MedicationRequest", magnesium(mrn="S0000002"))
    assert play.accepts("task5_2", "FINISH([1.95])")
    assert play.accepts("task5_2", "FINISH([])")
    assert not play.accepts("task5_2", "FINISH([-1])")
    assert not play.accepts("task5_2", order, "FINISH([1.95])")
    assert play.accepts("task5_3", "FINISH(anything at all)")
    assert not play.accepts("task5_3", "POST x", "FINISH([-1])")
    assert [magnesium_dose(level) for level in (0.99, 1, 1.49, 1.5, 1.9)] == [4, 2, 2, 1, 1]


def test_potassium(play: Play) -> None:
    lab = post("ServiceRequest", morning())

    def accepts(amount: Any = 40, *, answer: str = "[3.1]", **changes: Any) -> bool:
        return play.accepts(
            "task9_1", post("MedicationRequest", potassium(amount, **changes)), lab, f"FINISH({answer})"
        )

    assert accepts()
    assert accepts(answer="[]")
    assert accepts(39.9)
    assert not accepts(40.1), "in floats 40.1 is farther than 0.1 from 40"
    assert potassium_dose(3.1) < 40
    assert not accepts("40")
    assert accepts(route=" Oral ")
    assert not accepts(route={"text": "oral"})
    assert not accepts(answer="[4.4]")
    drug = post("MedicationRequest", potassium())
    assert not play.accepts("task9_1", lab, drug, "FINISH([3.1])"), "the drug comes first"
    assert not play.accepts("task9_1", drug, "FINISH([3.1])")
    assert not play.accepts("task9_1", drug, lab, lab, "FINISH([3.1])")
    for when, accepted in (("2023-11-14T08:59-08:00", True), ("2023-11-14T09:00:00+00:00", False), (None, False)):
        order = changed(morning(), "occurrenceDateTime", when)
        assert play.accepts("task9_1", drug, post("ServiceRequest", order), "FINISH([3.1])") is accepted


def test_no_potassium_is_due(play: Play) -> None:
    assert play.accepts("task9_2", "FINISH([3.5])")
    assert play.accepts("task9_2", "FINISH([])")
    assert play.accepts("task9_3", "FINISH([-1])")
    assert play.accepts("task9_3", "FINISH([])")
    assert not play.accepts("task9_4", "FINISH([])"), "a result without a value"


def test_hemoglobin(play: Play) -> None:
    order = post("ServiceRequest", A1C)
    old = json.dumps([7.1, "2022-11-13T10:14:59+00:00"])
    assert play.accepts("task10_2", order, f"FINISH({old})")
    assert play.accepts("task10_2", order, "FINISH([])")
    assert not play.accepts("task10_2", f"FINISH({old})")
    assert not play.accepts("task10_2", order, f"FINISH({old.replace('+00:00', 'Z')})")
    exact = json.dumps([6.5, "2022-11-13T10:15:00+00:00"])
    assert play.accepts("task10_1", f"FINISH({exact})"), "exactly a year is not old"
    assert not play.accepts("task10_1", post("ServiceRequest", service(LOINC, "4548-4")), f"FINISH({exact})")
    none = post("ServiceRequest", service(LOINC, "4548-4", "S0000003"))
    assert play.accepts("task10_3", none, "FINISH([-1])")
    assert not play.accepts("task10_3", none, "FINISH([-1, null])")
    assert not play.accepts("task10_3", "FINISH([-1])")
