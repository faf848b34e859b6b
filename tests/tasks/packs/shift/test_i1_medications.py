from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import date
from fractions import Fraction
from typing import Any

import pytest

from fhir_gym import Episode
from fhir_gym.actions import Finish, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.i1_medications.kind import Medications
from fhir_gym.tasks.packs.shift.i1_medications.records import (
    medication_resources,
    parse_dispense,
    parse_letter,
    parse_record,
)
from fhir_gym.tasks.packs.shift.i1_medications.rules import MedicationContent, MedicationQuestion, agrees, daily_dose
from fhir_gym.tasks.packs.shift.i1_medications.scene import Dispense, DrugRecord, Letter
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import NO_SUCH_PATIENT, NOT_TAKEN, SEVERAL_PATIENTS
from fhir_gym.types import Resource
from tests.tasks.packs.shift.playing import (
    after_lookups,
    failed,
    finish,
    ids_called,
    names_of_checks,
    opened,
    params_of,
    play,
    read_all,
)


def requests_of(episode: Episode) -> tuple[MedicationQuestion, ...]:
    return params_of(episode).requests


@pytest.mark.parametrize(
    ("key", "variation"), [("I1-1", 0), ("I1-2", 0), pytest.param("I1-2", 1_000, marks=pytest.mark.slow)]
)
def test_the_reference_solution_is_right(hospital: World, key: str, variation: int) -> None:
    with opened(hospital, key, variation) as episode:
        step = play(episode)
        assert (step.reward, failed(step)) == (1.0, [])
        assert step.info["step"] <= episode.step_limit


UNREAD: dict[str, Callable[[str], str]] = {
    "no orders, statements or letters": lambda url: "/metadata" if re.match("/(Medication[RS]|Comm)", url) else url,
    "ids only": lambda url: url if url.startswith("/Patient") else f"{url}&_elements=id",
    "nothing": lambda url: "/metadata",
}


@pytest.mark.slow
@pytest.mark.parametrize("unread", UNREAD)
def test_a_value_needs_the_records_that_decide(hospital: World, unread: str) -> None:
    with opened(hospital, "I1-1", 1) as episode:
        values = names_of_checks(one.outcome not in Medications.codes for one in requests_of(episode))
        assert after_lookups(episode, lambda url: url).reward == 1
        assert values and set(values) <= set(failed(after_lookups(episode, UNREAD[unread])))


@pytest.mark.slow
def test_a_value_needs_the_supply_that_lasts(hospital: World) -> None:
    with opened(hospital, "I1-2", 1) as episode:
        step = after_lookups(episode, lambda url: "/metadata" if url.startswith("/MedicationDispense") else url)
        assert 0 < step.reward < 1


# A solver written from the prompt: it walks through the records from the newest to the oldest, with fractions.

MISTAKES = (
    "status",
    "intent",
    "statements",
    "letters",
    "trade names",
    "admission",
    "oldest",
    "any",
    "supply",
    "void dispenses",
    "one instruction",
    "as needed",
    "grams",
    "name",
    "page",
)
TIMES = {"once": "1", "twice": "2", "three times": "3", "every 12 hours": "2", "every 8 hours": "3"} | {
    "every other day": "1/2"
}


def other_solution(episode: Episode, mistake: str = "") -> list[str]:
    """Solve all questions, with at most one mistake."""
    table = re.findall(r"  - (\S+): RxNorm (\d+), trade name (\S+)", episode.variation.prompt)
    today = re.search(r"\d{4}-\d\d-\d\d", episode.variation.prompt)
    assert table and today
    return [_solved(episode, one.ask, table, today[0], mistake) for one in requests_of(episode)]


def _solved(
    episode: Episode, ask: MedicationContent, table: list[tuple[str, str, str]], today: str, mistake: str
) -> str:
    called = ids_called(episode, ask.patient, exact=mistake != "name")
    if len(called) != 1 and not (mistake == "name" and called):
        return SEVERAL_PATIENTS if called else NO_SUCH_PATIENT
    count = 4 if mistake == "page" else 200

    def chart(type: str) -> list[Resource]:
        return read_all(episode, f"/{type}?subject=Patient/{called[0]}&_count={count}")

    orders, statements, letters = chart("MedicationRequest"), chart("MedicationStatement"), chart("Communication")
    void = mistake == "void dispenses"
    dispenses = [one for one in chart("MedicationDispense") if void or one["status"] == "completed"]
    taken = {}
    for name, code, trade in table:
        told = [
            *(_orders(orders, code, mistake)),
            *(_statements(statements, code, mistake)),
            *(_letters(letters, name, trade, mistake)),
        ]
        told.sort(key=lambda one: one[0], reverse=mistake != "oldest")
        if mistake == "any":
            told = [one for one in told if one[1] is not None]
        mine = [one for one in dispenses if _code(one) == code]
        ends = [_day(one["whenHandedOver"]) + one["daysSupply"]["value"] - 1 for one in mine]
        out = bool(ends) and max(ends) < _day(today) and mistake != "supply"
        if told and told[0][1] is not None and not out:
            taken[name] = told[0][1]
    if ask.drug:
        taken = {name: dose for name, dose in taken.items() if name == ask.drug}
    if not taken:
        return NOT_TAKEN
    if ask.measure == "dose":
        return f"{float(taken[ask.drug]):g} mg"
    return f"{len(taken)}" if ask.measure == "number" else ",".join(reversed(sorted(taken)))


Told = tuple[str, "Fraction | None"]


def _orders(orders: list[Resource], code: str, mistake: str) -> Iterator[Told]:
    for one in orders:
        void = one["status"] in ("draft", "cancelled", "entered-in-error", "unknown")
        if _code(one) != code or (one["intent"] != "order" and mistake != "intent") or (void and mistake != "status"):
            continue
        taken = one["status"] == "active" or void
        yield one["authoredOn"], _milligrams(one["dosageInstruction"], mistake) if taken else None


def _statements(statements: list[Resource], code: str, mistake: str) -> Iterator[Told]:
    for one in statements:
        void = one["status"] in ("intended", "entered-in-error", "unknown")
        if _code(one) != code or mistake == "statements" or (void and mistake != "status"):
            continue
        taken = one["status"] == "active" or void
        yield one["dateAsserted"], _milligrams(one["dosage"], mistake) if taken else None


def _letters(letters: list[Resource], name: str, trade: str, mistake: str) -> Iterator[Told]:
    for one in letters:
        if mistake == "letters" or (one["status"] != "completed" and mistake != "status"):
            continue
        text = one["payload"][0]["contentString"]
        known = name if mistake == "trade names" else f"(?:{name}|{trade})"
        part = text if mistake == "admission" else text[text.index("at discharge") :]
        for dose in re.findall(rf"^- {known}: (.*)$", part, re.MULTILINE):
            yield one["sent"], None if dose == "stopped" else _in_words(dose, mistake)


def _in_words(dose: str, mistake: str) -> Fraction:
    parts = re.findall(r"([\d.]+) (m?g) (.+?)(?: a day)?( as needed)?(?: and |$)", dose)
    return _sum([(Fraction(n), unit, Fraction(TIMES[times]), bool(prn)) for n, unit, times, prn in parts], mistake)


def _milligrams(dosage: list[Any], mistake: str) -> Fraction:
    parts = []
    for one in dosage:
        repeat, quantity = one["timing"]["repeat"], one["doseAndRate"][0]["doseQuantity"]
        times = Fraction(repeat["frequency"], repeat["period"]) * (24 if repeat["periodUnit"] == "h" else 1)
        parts.append((Fraction(str(quantity["value"])), quantity["code"], times, one.get("asNeededBoolean") is True))
    return _sum(parts, mistake)


def _sum(parts: list[tuple[Fraction, str, Fraction, bool]], mistake: str) -> Fraction:
    assert parts
    regular = [one for one in parts if not one[3] or mistake == "as needed"]
    regular = regular[:1] if mistake == "one instruction" else regular
    factor = {"mg": 1, "g": 1 if mistake == "grams" else 1000}
    return sum((amount * times * factor[unit] for amount, unit, times, _ in regular), Fraction())


def _code(record: Resource) -> str:
    return str(record["medicationCodeableConcept"]["coding"][0]["code"])


def _day(text: str) -> int:
    return date.fromisoformat(text[:10]).toordinal()


@pytest.mark.parametrize("key", ["I1-1", pytest.param("I1-2", marks=pytest.mark.slow)])
def test_another_solver_is_right(hospital: World, key: str) -> None:
    for variation in (2, 3):
        with opened(hospital, key, variation) as episode:
            assert failed(episode.step(finish(other_solution(episode)))) == []


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_fails_the_questions_that_it_touches(hospital: World, mistake: str) -> None:
    touched = 0
    for variation in (4, 5, 6, 7):
        with opened(hospital, "I1-2", variation) as episode:
            answers, requests = other_solution(episode, mistake), requests_of(episode)
            same = [_same(answer, one) for answer, one in zip(answers, requests, strict=True)]
            wrong = names_of_checks(not one for one in same)
            found = failed(episode.step(finish(answers)))
            # Who read the wrong chart, or only a part of it, also lacks evidence where the answer happens to be right.
            assert set(wrong) <= set(found) if mistake in ("name", "page") else wrong == found
            touched += len(wrong)
        if touched:
            return
    pytest.fail("the mistake touches no question")


def _same(answer: str, request: MedicationQuestion) -> bool:
    if {answer, request.outcome} & {NO_SUCH_PATIENT, SEVERAL_PATIENTS}:
        return answer == request.outcome
    return agrees(request.ask, request.outcome, answer)


def test_writes_fail_the_rest(hospital: World) -> None:
    with opened(hospital, "I1-1", 2) as episode:
        note = Post("/Basic", {"resourceType": "Basic", "code": {"text": "note"}})
        step = play(episode, lambda one: [note, one] if one.kind == "FINISH" else [one])
        assert failed(step) == ["nothing else changed"] and 0 < step.reward < 1
        id = params_of(episode).scene.records[0].id
        odd = Put(f"/MedicationRequest/{id}", {"resourceType": "MedicationRequest", "id": id, "dosageInstruction": "?"})
        episode.start()
        step = play(episode, lambda one: [one] if one.kind != "FINISH" else [odd, one])
        assert failed(step) == ["nothing else changed"]
        episode.start()
        assert episode.step(Finish(["A: 7.4.1", "B: NaN", "C: , and ,", 7, None])).reward == 0


def test_records_are_read_as_they_are_written(hospital: World) -> None:
    with opened(hospital, "I1-1") as episode:
        scene = params_of(episode).scene
        parsers: dict[str, Callable[[Resource], DrugRecord | Dispense | Letter]] = {
            "MedicationRequest": parse_record,
            "MedicationStatement": parse_record,
            "MedicationDispense": parse_dispense,
            "Communication": parse_letter,
        }
        known = {one.id: one for one in (*scene.records, *scene.dispenses, *scene.letters)}
        resources = [one for one in medication_resources(scene) if one["resourceType"] in parsers]
        assert len(resources) == len(known)
        for one in resources:
            found, expected = parsers[one["resourceType"]](one), known[one["id"]]
            assert shown(found) == shown(expected)


def shown(record: DrugRecord | Dispense | Letter) -> list[object]:
    """Return what counts in a record."""
    if isinstance(record, Dispense):
        return [record.drug, record.status, record.last_day]
    lists = [[record.mention]] if isinstance(record, DrugRecord) else [record.admission, record.discharge]
    doses = [[(one.drug, daily_dose(one.doses), len(one.doses)) for one in mentions] for mentions in lists]
    return [record.status, record.when, *doses]


@pytest.mark.parametrize(
    ("measure", "outcome", "answer", "right"),
    [
        ("dose", "1500", "1500", True),
        ("dose", "1500", "1500.0 mg/day", True),
        ("dose", "1500", "1,500 mg", True),
        ("dose", "1500", "1.5 g", False),
        ("dose", "1500", NOT_TAKEN, False),
        ("dose", NOT_TAKEN, NOT_TAKEN, True),
        ("dose", NOT_TAKEN, "0", False),
        ("dose", "12.5", "12.5", True),
        ("number", "3", "3 drugs", True),
        ("number", "3", "3 mg", False),
        ("number", "3", "", False),
        ("names", "lisinopril, metformin", "lisinopril, metformin", True),
        ("names", "lisinopril, metformin", "metformin and lisinopril", True),
        ("names", "lisinopril, metformin", "lisinopril,metformin,", True),
        ("names", "lisinopril, metformin", "lisinopril", False),
        ("names", "lisinopril, metformin", "lisinopril, metformin, metformin", False),
        ("names", "metformin", "metformin", True),
        ("names", "metformin", "", False),
    ],
)
def test_answers(measure: str, outcome: str, answer: str, right: bool) -> None:
    who = Named(given="Ana", family="Diaz", birth_date="1980-01-01")
    ask = MedicationContent.model_validate({"patient": who, "measure": measure})
    assert agrees(ask, outcome, answer) is right
