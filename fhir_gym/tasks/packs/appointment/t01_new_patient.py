"""Task 01: enter a new patient."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import eq
from typing import Any, ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, ExpectedChange, FinishedEpisode, Gold, Params, Task, equal
from fhir_gym.tasks.authoring import (
    IdAllocator,
    Person,
    namesake,
    new_person,
    other_given,
    patient_resource,
    similar_person,
)
from fhir_gym.tasks.grading import ADD_NOTHING, IdAnswer, address_parts, named, phone_numbers, plain, same_telephone
from fhir_gym.types import Json, Resource


class NewPatientParams(Params):
    """Parameters of task 01.

    Attributes:
        person: The person to enter; the task does not use the person's `id`.
        decoys: Patients on file who have similar details.
    """

    person: Person
    decoys: tuple[Person, ...]


class NewPatient(Task[NewPatientParams]):
    """Enter a new patient.

    Starting state: two patients with details similar to those of the new patient.
    Decoys: a patient with the same name and another birth date, and a patient with the same family name and birth date.
        A careless agent updates one of these patients or answers with an id of theirs.
    Checks: the agent created exactly one Patient with the given name, telephone number, birth date and address, and no
        other name, number or address; the answer is its id.
    Light: the agent created a Patient with a name and a birth date.
    Differs from FHIR-AgentEval: telephone number, address and answer are checked, and only one new patient is allowed.
        The original checked only the first hit of a search by name, and accepted any tag.
    """

    key = "01"
    title = "Enter a new patient"
    category = "Patient Records"
    difficulty = 1
    kind = "action"
    required_tools = (("create",), ("read", "update"), ("search", "create"))
    required_resources = ("Patient",)
    prohibited_tools = ("delete",)
    prompts = (
        "A new patient is at the front desk. Please register them: given name {given}, family name {family}, date of "
        "birth {birth_date}, phone {phone}, street address {line}, city {city}, state {state}. This is their first "
        "visit: anybody on file with the same name is a different person.",
        "Please enter a new patient.\n- Family name: {family}\n- Given name: {given}\n"
        "- Date of birth: {birth_date}\n- Phone: {phone}\n- Street address: {line}\n- City: {city}\n- State: {state}\n"
        "This person has never been here before, so do not reuse an existing record.",
        "Please create a new patient record. The given name is {given}, the family name {family} and the date of birth "
        "{birth_date}. The phone number is {phone}, and the address is {line}, {city}, {state}. Any similar record on "
        "file belongs to somebody else.",
    )
    brief = (
        "Please register a new patient: {given} {family}, born {birth_date}, phone {phone}, address {line}, {city}, "
        '{state}. Finish with FINISH(["<patient id>"]).'
    )
    answer_instructions = f'{ADD_NOTHING} Finish with FINISH(["<id>"]), where <id> is the id of the new patient.'
    answer = IdAnswer(("Patient",))
    gold_steps = 2
    optional_elements = frozenset({"Patient.name.use"})
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Patient": ("name", "telecom", "birthDate", "address")
    }
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {"Patient": {"active": True, "language": "en"}}

    @override
    def sample(self, rng: random.Random, world: World) -> NewPatientParams:
        ids = IdAllocator(rng, world)
        person = new_person(rng, world, ids.new("Patient"))
        twin = similar_person(rng, person, ids.new("Patient"), given=other_given(rng, person))
        return NewPatientParams(person=person, decoys=(namesake(rng, person, ids.new("Patient")), twin))

    @override
    def setup(self, p: NewPatientParams, world: World) -> list[Resource]:
        return [*map(patient_resource, p.decoys)]

    @override
    def prompt_values(self, p: NewPatientParams, world: World) -> dict[str, str]:
        return p.person.model_dump()

    @override
    def gold(self, p: NewPatientParams) -> Gold:
        person = p.person
        body = {
            "resourceType": "Patient",
            "name": [{"use": "official", "family": person.family, "given": [person.given]}],
            "telecom": [{"system": "phone", "value": person.phone}],
            "birthDate": person.birth_date,
            "address": [{"line": [person.line], "city": person.city, "state": person.state}],
        }
        created = yield Post("/Patient", body)
        yield Finish([created["id"]])

    @override
    def near_misses(self, p: NewPatientParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        create = gold[0]
        for decoy in p.decoys:
            body = {**json.loads(create.body or ""), "id": decoy.id}
            yield f"overwrites Patient/{decoy.id}", [Put(f"/Patient/{decoy.id}", body), Finish([decoy.id])]
            yield f"creates a record, but answers {decoy.id}", [create, Finish([decoy.id])]

    @override
    def equivalents(self, p: NewPatientParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        body = json.loads(gold[0].body or "")
        digits = "".join(character for character in p.person.phone if character.isdecimal())[-10:]
        id = "chosen-by-hand"
        for number in (f"+1{digits}", f"tel:+1-{digits[:3]}-{digits[3:6]}-{digits[6:]}", digits):
            telecom = [{"system": "phone", "value": number, "use": "mobile"}]
            yield f"phone {number}", [Put(f"/Patient/{id}", {**body, "id": id, "telecom": telecom}), Finish([id])]
        street, apartment, number = p.person.line.partition(" Apt ")
        for lines in ([street, f"Apt {number}"], [f"{street}, Apt {number}"]) if apartment else ():
            address = [{**body["address"][0], "line": lines}]
            yield f"lines {lines}", [Put(f"/Patient/{id}", {**body, "id": id, "address": address}), Finish([id])]

    @override
    def expected_changes(self, p: NewPatientParams) -> tuple[ExpectedChange, ...]:
        return (ExpectedChange("created", "Patient"),)

    @override
    def checks(self, p: NewPatientParams, end: FinishedEpisode) -> Iterator[Check]:
        person = p.person
        (answer,) = end.answer_ids("Patient")
        new = end.created("Patient")
        patient = next((record for record in new if record["id"] == answer), new[0] if new else {})
        yield Check(name="a patient was created", passed=bool(new), expected=1, actual=len(new), level="exists")
        for name, element in (("a name", "name"), ("a birth date", "birthDate")):
            there = not new or element in patient
            yield Check(name=f"a new patient has {name}", passed=there, actual=patient.get(element), level="exists")
        yield _all("name", patient.get("name"), person.name, lambda name: named(name, person.given, person.family))
        yield equal("birth date", patient.get("birthDate"), person.birth_date)
        yield _all("phone", phone_numbers(patient), person.phone, lambda number: same_telephone(number, person.phone))
        home = {"line": plain(person.line), "city": plain(person.city), "state": person.state}
        for part, value in home.items():
            parts = [address_parts(address).get(part) for address in patient.get("address", [])]
            yield _all(f"address {part}", parts, value, partial(eq, value))
        yield equal("answer", answer, patient.get("id", "the id of the new patient"))


def _all(name: str, items: Iterable[Json] | None, expected: str, right: Callable[[Any], bool]) -> Check:
    """Check that there is at least one item and that every item is right."""
    items = list(items or [])
    return Check(name=name, passed=bool(items) and all(map(right, items)), expected=expected, actual=items)


TASKS = (NewPatient,)
