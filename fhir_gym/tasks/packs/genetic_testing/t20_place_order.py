"""Task 20: order a genetic test."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, ExpectedChange, FinishedEpisode, Gold, equal
from fhir_gym.tasks.authoring import (
    NAME,
    Concept,
    IdAllocator,
    Person,
    PersonCandidate,
    codes_of,
    codings,
    concept_checks,
    confusable,
    created_check,
    draw_all_combinations,
    find_patient,
    find_practitioner,
    new_resource,
    person_candidates,
    reference,
)
from fhir_gym.tasks.grading import ADD_NOTHING, IdAnswer
from fhir_gym.tasks.packs.genetic_testing.order_task import GeneticTask, OrderPatientParams
from fhir_gym.tasks.packs.genetic_testing.orders import TEST_SYSTEM, TESTS, order_prompt_values
from fhir_gym.tasks.packs.genetic_testing.scenes import GeneticScene, any_orders, draw_patients
from fhir_gym.types import Json, Resource

_DOCTORS = (2, 2)
"""Numbers of given names and of family names that the doctors share."""
_ORDERS = (7, 8, 9)
"""Numbers of orders on file to choose from."""


class PlaceOrderParams(OrderPatientParams):
    """Parameters of task 20.

    Attributes:
        doctor: The requester.
        status: Status of the new order.
    """

    doctor: Person
    test: Concept
    status: str


class PlaceOrder(GeneticTask[PlaceOrderParams, PersonCandidate]):
    """Order whole genome sequencing for a patient.

    Starting state: eight patients (all combinations of two given names, two family names and two dates of birth) and
        four practitioners (all combinations of two given names and two family names). The task chooses the patient and
        the requester at random.
    Decoys: the other patients and practitioners. Some patients have orders for a few tests, in all statuses; a careless
        agent overwrites or copies one of these orders.
    Checks: there is exactly one new ServiceRequest with the right patient, requester, status and test (code, system and
        display), with intent order and without doNotPerform. The answer is its id.
    Light: there is a new ServiceRequest with subject, requester, status, intent, and a code or category.
    Differs from FHIR-AgentEval: the prompt names the element for the test. The checks also accept the test in category,
        and an ordinary category if the code names the test. The test may be in any coding, and the checks compare the
        coding's system. The answer must be the id of the order.
    """

    key = "20"
    title = "Place a whole genome sequencing order"
    required_tools = (("search", "search", "create"), ("search", "search", "update"))
    required_resources = ("Patient", "Practitioner", "ServiceRequest")
    prompts = (
        "Please order {display} (code {code}) for {patient} (given name {given}, family name {family}, born "
        "{birth_date}). The requester is Dr. {doctor}, and the order gets the status {status}.",
        "Dr. {doctor} requests a genetic test. Please place the order with status {status}.\n"
        "- Patient: family name {family}, given name {given}, born {birth_date}\n- Test: {display}, code {code}",
        "Please place an order with status {status}, requested by Dr. {doctor}, for {display} (code {code}). The "
        "patient is {patient} (given name {given}, family name {family}), born {birth_date}.",
    )
    brief = (
        "Please order {display} (code {code} of http://example.org/fhir/CodeSystem/genetic-tests) for {patient}, born "
        '{birth_date}, requested by Dr. {doctor}, with status {status}. Finish with FINISH(["<order id>"]).'
    )
    answer_instructions = (
        '"Dr. A B" is the practitioner with given name A and family name B. An order is a ServiceRequest with intent '
        "order; its subject is the patient, and its requester is the practitioner. Its code is the test, with the "
        f"test's code and display in the system {TEST_SYSTEM}. Create one new order; do not reuse or change existing "
        f'records. {ADD_NOTHING} Finish with FINISH(["<id>"]), where <id> is the id of the new order.'
    )
    answer = IdAnswer(("ServiceRequest",))
    gold_steps = 4
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "ServiceRequest": ("status", "intent", "code", "category", "subject", "requester")
    }
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "ServiceRequest": {
            "category": [{"coding": [{"system": "http://snomed.info/sct", "code": "108252007"}]}],
            "priority": "routine",
            "doNotPerform": False,
        }
    }

    @override
    def draw_scene(self, rng: random.Random, world: World) -> GeneticScene:
        ids = IdAllocator(rng, world)
        people = draw_patients(rng, world, ids)
        doctors = draw_all_combinations(
            rng, world, lambda: ids.new("Practitioner"), _DOCTORS, resource_type="Practitioner"
        )
        orders = any_orders(rng, world, ids, people, doctors, rng.choice(_ORDERS))
        return GeneticScene(people=people, doctors=doctors, orders=orders)

    @override
    def candidates(self, scene: GeneticScene) -> dict[str, list[PersonCandidate]]:
        return {"": person_candidates(scene.people)}

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: GeneticScene, chosen: PersonCandidate
    ) -> PlaceOrderParams:
        return PlaceOrderParams(
            scene=scene,
            person=scene.person(chosen.id),
            doctor=rng.choice(confusable(scene.doctors, NAME)),
            test=rng.choice(TESTS),
            status=rng.choice(("draft", "active")),
        )

    @override
    def prompt_values(self, p: PlaceOrderParams, world: World) -> dict[str, str]:
        return {**order_prompt_values(p.person, p.test), "doctor": p.doctor.name, "status": p.status}

    @override
    def gold(self, p: PlaceOrderParams) -> Gold:
        patient_id = yield from find_patient(p.person)
        doctor_id = yield from find_practitioner(p.doctor)
        body = {
            "resourceType": "ServiceRequest",
            "status": p.status,
            "intent": "order",
            "code": p.test.concept,
            "subject": reference("Patient", patient_id),
            "requester": reference("Practitioner", doctor_id),
        }
        order = yield Post("/ServiceRequest", body)
        yield Finish([order["id"]])

    @override
    def near_misses(self, p: PlaceOrderParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        *_, create, finish = gold
        body = json.loads(create.body or "")
        another = next(test for test in TESTS if test != p.test)
        bodies = {
            "an order not to test": {**body, "doNotPerform": True},
            "two tests in one code": {**body, "code": {"coding": [p.test.coding, another.coding]}},
            "another test as category": {**body, "category": [another.concept]},
            "something else as code": {**body, "code": _XRAY, "category": [p.test.concept]},
        }
        for name, wrong in bodies.items():
            yield name, [Post("/ServiceRequest", wrong), finish]
        for decoy in p.scene.orders:
            over = Put(f"/ServiceRequest/{decoy.id}", {**body, "id": decoy.id})
            yield f"written over ServiceRequest/{decoy.id}", [over, Finish([decoy.id])]
            yield f"created, but answers {decoy.id}", [create, Finish([decoy.id])]

    @override
    def equivalents(self, p: PlaceOrderParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        body = json.loads(gold[-2].body or "")
        uncoded = {name: value for name, value in body.items() if name != "code"}
        bare = {"system": p.test.system, "code": p.test.code}
        loinc = {"system": "http://loinc.org", "code": "86206-0"}
        bodies = {
            "test as category": {**uncoded, "category": [p.test.concept]},
            "test as second category": {**uncoded, "category": [_LABORATORY, p.test.concept]},
            "test as category, code in words": {**body, "code": {"text": "WGS"}, "category": [p.test.concept]},
            "test as code and category": {**body, "category": [p.test.concept]},
            "another code first": {**body, "code": {"coding": [loinc, p.test.coding]}},
            "display as text": {**body, "code": {"coding": [bare], "text": p.test.display}},
        }
        id = "chosen-by-hand"
        for name, other in bodies.items():
            yield name, [Put(f"/ServiceRequest/{id}", {**other, "id": id}), Finish([id])]

    @override
    def expected_changes(self, p: PlaceOrderParams) -> tuple[ExpectedChange, ...]:
        return (ExpectedChange("created", "ServiceRequest"),)

    @override
    def required_records(self, p: PlaceOrderParams) -> tuple[str, ...]:
        return (f"Patient/{p.person.id}", f"Practitioner/{p.doctor.id}")

    @override
    def checks(self, p: PlaceOrderParams, end: FinishedEpisode) -> Iterator[Check]:
        (answer,) = end.answer_ids("ServiceRequest")
        service_request = new_resource(end, "ServiceRequest", answer)
        yield created_check(end, "ServiceRequest")
        for name, elements in _NEEDED.items():
            there = not service_request or any(element in service_request for element in elements)
            yield Check(name=f"has {name}", passed=there, level="exists")
        yield equal("status", service_request.get("status"), p.status)
        yield equal("intent", service_request.get("intent"), "order")
        yield equal("subject", end.refers(service_request.get("subject")), f"Patient/{p.person.id}")
        yield equal("requester", end.refers(service_request.get("requester")), f"Practitioner/{p.doctor.id}")
        yield from concept_checks("test", _tested(service_request), p.test)
        yield equal("answer", answer, service_request.get("id", "the id of the new order"))


_NEEDED = {"subject": ("subject",), "requester": ("requester",), "test": ("code", "category")}
_XRAY = {"coding": [{"system": "http://loinc.org", "code": "36643-5", "display": "Chest X-ray, two views"}]}
_LABORATORY = {"coding": [{"system": "http://snomed.info/sct", "code": "108252007"}]}


def _tested(order: Resource) -> list[Json]:
    """Return the concepts that may name the test: code and categories, or only the code if it names something else."""
    code = order.get("code")
    if codings(code) and not codes_of(code, TEST_SYSTEM):
        return [code]
    return [code, *order.get("category", [])]


TASKS = (PlaceOrder,)
