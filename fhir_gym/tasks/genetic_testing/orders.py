"""Orders of genetic tests, the cases tasks make of them, and what is attached to an order."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Iterator
from datetime import timedelta

from fhir_gym.actions import Action, Get, Put
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.appointment.history import Problem, condition, some_problems
from fhir_gym.tasks.bundles import entries, find_person, reference
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.concepts import SNOMED, Concept
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.outcomes import updated
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person, namesake, new_person, other_given, patient, practitioner, relative_with
from fhir_gym.types import Json, Resource

__all__ = [
    "TESTS",
    "TEST_SYSTEM",
    "Case",
    "Order",
    "attaching",
    "attachment_checks",
    "case_words",
    "draw_case",
    "find_order",
    "find_patient",
    "on_file",
    "order_request",
    "other_orders",
    "twin_of",
]

TEST_SYSTEM = "http://example.org/fhir/CodeSystem/genetic-tests"
TESTS = tuple(
    Concept(system=TEST_SYSTEM, code=code, display=display)
    for code, display in (
        ("wgs-rare-disease", "Whole genome sequencing for rare disease"),
        ("wgs-hereditary-cancer", "Whole genome sequencing for hereditary cancer"),
        ("wgs-cardiomyopathy", "Whole genome sequencing for cardiomyopathy"),
        ("wgs-epilepsy", "Whole genome sequencing for epilepsy"),
        ("wgs-kidney-disease", "Whole genome sequencing for kidney disease"),
        ("wgs-trio", "Whole genome sequencing, trio"),
    )
)
_LABORATORY = Concept(system=SNOMED, code="108252007", display="Laboratory procedure")
_ENDED = ("revoked", "completed", "active", "on-hold")


class Order(Params):
    """One order of a test.

    Attributes:
        id: Its id.
        patient: Id of the patient.
        requester: Id of the practitioner.
        test: The test.
        status: Status of the order.
        priority: Its priority.
        authored: Date it was written.
        attached: References that are its supporting information.
    """

    id: str
    patient: str
    requester: str
    test: Concept
    status: str
    priority: str
    authored: str
    attached: tuple[str, ...] = ()


class Case(Params):
    """A patient with a draft order, and orders that are easily mistaken for it.

    Attributes:
        person: The patient.
        namesake: Another patient of the same name.
        twin: A patient of the same family name and date of birth.
        doctor: Who orders.
        indication: Why; a condition of the patient that the order may refer to.
        order: The draft order.
        others: The same test of the patient in another status, another test of the patient, the same test of the
            namesake.
    """

    person: Person
    namesake: Person
    twin: Person
    doctor: Person
    indication: Problem
    order: Order
    others: tuple[Order, ...]


def order_request(order: Order) -> Resource:
    """The ServiceRequest."""
    attached = [{"reference": one} for one in order.attached]
    return {
        "resourceType": "ServiceRequest",
        "id": order.id,
        "status": order.status,
        "intent": "order",
        "category": [_LABORATORY.concept],
        "priority": order.priority,
        "code": order.test.concept,
        "subject": reference("Patient", order.patient),
        "authoredOn": order.authored,
        "requester": reference("Practitioner", order.requester),
        **({"supportingInfo": attached} if attached else {}),
    }


def other_orders(
    rng: random.Random, world: World, ids: Ids, test: Concept, doctor: Person, people: tuple[Person, Person]
) -> tuple[Order, Order, Order]:
    """Orders that are easily mistaken for a patient's draft of a test.

    Args:
        rng: Source of chance.
        world: The world, for the present.
        ids: Source of ids.
        test: The test.
        doctor: Who orders.
        people: The patient, and a namesake.
    """
    person, other = people
    another = rng.choice([one for one in TESTS if one != test])
    return (
        _draw(rng, world, ids.new(), person, doctor, test, rng.choice(_ENDED)),
        _draw(rng, world, ids.new(), person, doctor, another, "draft"),
        _draw(rng, world, ids.new(), other, doctor, test, "draft"),
    )


def draw_case(rng: random.Random, world: World, ids: Ids) -> Case:
    """A case; it takes nine ids."""
    person = new_person(rng, world, ids.new())
    doctor = new_person(rng, world, ids.new(), resource_type="Practitioner")
    other = namesake(rng, person, ids.new())
    (what,) = some_problems(rng, 1)
    indication = Problem(
        id=ids.new(),
        patient=person.id,
        what=what,
        clinical="active",
        verification="confirmed",
        category="problem-list-item",
        recorded=_ago(rng, world),
    )
    test = rng.choice(TESTS)
    attached = (f"Condition/{indication.id}",) if rng.random() < 0.5 else ()
    return Case(
        person=person,
        namesake=other,
        twin=twin_of(rng, person, ids.new()),
        doctor=doctor,
        indication=indication,
        order=_draw(rng, world, ids.new(), person, doctor, test, "draft", attached),
        others=other_orders(rng, world, ids, test, doctor, (person, other)),
    )


def twin_of(rng: random.Random, person: Person, id: str) -> Person:
    """Someone of the same family name and date of birth, with another given name."""
    return relative_with(rng, person, id, given=other_given(rng, person))


def on_file(case: Case) -> list[Resource]:
    """The resources of a case."""
    return [
        patient(case.person),
        patient(case.namesake),
        patient(case.twin),
        practitioner(case.doctor),
        condition(case.indication),
        *map(order_request, (case.order, *case.others)),
    ]


def case_words(case: Case) -> dict[str, str]:
    """The patient and the test, for prompts."""
    test, person = case.order.test, case.person
    names = person.model_dump(include={"given", "family", "birth_date"})
    return {**names, "patient": person.name, "code": test.code, "display": test.display}


def find_patient(person: Person) -> Generator[Action, Json, str]:
    """Look a patient up by name and birth date: the id."""
    query = {"family": person.family, "given": person.given, "birthdate": person.birth_date}
    return find_person((yield Get("/Patient", query)), person)


def find_order(patient_id: str, test: Concept) -> Generator[Action, Json, Resource]:
    """Look up a patient's draft order of a test."""
    query = {"subject": f"Patient/{patient_id}", "status": "draft", "code": test.token}
    return next(entries((yield Get("/ServiceRequest", query))))


def attaching(order: Resource, references: Iterable[str]) -> Action:
    """The update that adds references to an order's supporting information, each once."""
    there = list(order.get("supportingInfo", []))
    known = {one.get("reference") for one in there}
    added = [{"reference": one} for one in references if one not in known]
    return Put(f"/ServiceRequest/{order['id']}", {**order, "supportingInfo": [*there, *added]})


def attachment_checks(end: EndState, order: Order, references: Iterable[str | None]) -> Iterator[Check]:
    """Checks that an order got references as supporting information, each once, and is else as it was.

    Args:
        end: How the episode ended.
        order: The order as it was.
        references: What had to be attached; it may be there already.
    """
    yield from updated(end, "ServiceRequest", order.id, changing=("supportingInfo",), called="order")
    after = end.after_update("ServiceRequest", order.id)
    found = [end.refers(one) for one in after.get("supportingInfo", [])]
    yield Check(name="has supporting information", passed=not after or bool(found), actual=list(found), level="exists")
    wanted = sorted({*order.attached, *references}, key=str)
    yield equal("supporting information", sorted(found, key=str), wanted)


def _draw(
    rng: random.Random,
    world: World,
    id: str,
    person: Person,
    doctor: Person,
    test: Concept,
    status: str,
    attached: tuple[str, ...] = (),
) -> Order:
    return Order(
        id=id,
        patient=person.id,
        requester=doctor.id,
        test=test,
        status=status,
        priority=rng.choice(("routine", "urgent")),
        authored=_ago(rng, world),
        attached=attached,
    )


def _ago(rng: random.Random, world: World) -> str:
    return (world.now.date() - timedelta(days=rng.randrange(1, 60))).isoformat()
