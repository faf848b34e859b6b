"""Scenes of similar patients with genetic test orders, reports and family histories."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import timedelta

from fhir_gym.fhir import World
from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import (
    Concept,
    IdAllocator,
    Person,
    confusable,
    draw_all_combinations,
    new_person,
    patient_resource,
    practitioner_resource,
)
from fhir_gym.tasks.packs.genetic_testing.family import FamilyHistory, recorded_history
from fhir_gym.tasks.packs.genetic_testing.orders import TESTS, GeneticOrder, order_request
from fhir_gym.tasks.packs.genetic_testing.reports import GeneticReport, diagnostic_report
from fhir_gym.types import Resource

_SHAPE = (2, 2, 2)
_CONTACT = frozenset({"telecom", "address"})
_NO_DRAFT = ("revoked", "completed", "active", "on-hold")
_STATUSES = ("draft", *_NO_DRAFT)
_PRIORITIES = ("routine", "urgent")
_SPARED = (0, 1)
"""Numbers to choose from: how many of four drafts have no second order for the same test."""


class GeneticScene(Params):
    """The records that a task adds; they do not reveal which patient or order the prompt asks about.

    Attributes:
        people: Patients: all combinations of two given names, two family names and two dates of birth.
        doctors: The practitioners who order tests.
        orders: Orders of genetic tests.
        reports: Diagnostic reports.
        histories: Family histories.
    """

    people: tuple[Person, ...]
    doctors: tuple[Person, ...] = ()
    orders: tuple[GeneticOrder, ...] = ()
    reports: tuple[GeneticReport, ...] = ()
    histories: tuple[FamilyHistory, ...] = ()

    def resources(self) -> list[Resource]:
        """Return all resources; the contact details of people are omitted so that the server loads them faster."""
        people = (*map(patient_resource, self.people), *map(practitioner_resource, self.doctors))
        return [
            *({name: value for name, value in person.items() if name not in _CONTACT} for person in people),
            *map(order_request, self.orders),
            *map(diagnostic_report, self.reports),
            *map(recorded_history, self.histories),
        ]

    def person(self, id: str) -> Person:
        """Return the patient with an id."""
        return next(person for person in self.people if person.id == id)

    def reports_of(self, patient: str) -> list[GeneticReport]:
        """Return the reports of a patient."""
        return [report for report in self.reports if report.patient == patient]

    def histories_of(self, patient: str) -> list[FamilyHistory]:
        """Return the family histories of a patient."""
        return [history for history in self.histories if history.patient == patient]

    def confusable_with(self, order: GeneticOrder) -> tuple[GeneticOrder, ...]:
        """Return the patient's other orders, and other patients' draft orders for the same test."""
        return tuple(
            genetic_order
            for genetic_order in self.orders
            if genetic_order != order
            and (
                genetic_order.patient == order.patient
                or (genetic_order.test, genetic_order.status) == (order.test, order.status)
            )
        )


def draw_patients(rng: random.Random, world: World, ids: IdAllocator) -> tuple[Person, ...]:
    """Draw eight patients: all combinations of two given names, two family names and two dates of birth."""
    return draw_all_combinations(rng, world, lambda: ids.new("Patient"), _SHAPE)


def draw_scene_people(
    rng: random.Random, world: World, ids: IdAllocator
) -> tuple[tuple[Person, ...], Person, tuple[list[Person], list[Person]]]:
    """Draw the patients, the doctor who orders the tests, and the two pairs of patients who get orders."""
    people = draw_patients(rng, world, ids)
    doctor = new_person(rng, world, ids.new("Practitioner"), resource_type="Practitioner")
    return people, doctor, draw_pairs(rng, people)


def draw_pairs(rng: random.Random, people: Sequence[Person]) -> tuple[list[Person], list[Person]]:
    """Choose two pairs of patients who get orders.

    All four have the same given name, or all four have the same family name. Therefore each patient has the full name
    of one other patient, and the date of birth of another.
    """
    person = rng.choice(people)
    name = rng.choice(("given", "family"))
    alike = [other for other in people if getattr(other, name) == getattr(person, name)]
    rng.shuffle(alike)
    return alike[:2], alike[2:]


def draw_orders(
    rng: random.Random,
    world: World,
    ids: IdAllocator,
    pairs: Sequence[Sequence[Person]],
    doctor: Person,
    attachable: Mapping[str, Sequence[str]],
) -> tuple[GeneticOrder, ...]:
    """Draw the orders of the patients of `draw_pairs`.

    Each patient gets draft orders for two tests. Most drafts have a second order, for the same test but in another
    status; the number of such drafts is the same in both pairs.

    Args:
        rng: Random generator.
        world: The world, which determines the current time.
        ids: Allocates the ids.
        pairs: The two pairs of patients.
        doctor: The practitioner who orders the tests.
        attachable: For each patient id, the references that the patient's orders may have as supporting information.
    """
    tests = rng.sample(TESTS, 2)
    spared = rng.choice(_SPARED)
    drawn: list[GeneticOrder] = []
    for people in pairs:
        both = [(person, test) for person in people for test in tests]
        other = [
            _draw(rng, world, ids, person.id, doctor, test, rng.choice(_NO_DRAFT))
            for person, test in rng.sample(both, len(both) - spared)
        ]
        drawn += other
        for person, test in both:
            earlier = [order.target for order in other if order.patient == person.id]
            entries = [*earlier, *attachable.get(person.id, ())]
            attached = (rng.choice(entries),) if entries and rng.random() < 0.5 else ()
            drawn.append(_draw(rng, world, ids, person.id, doctor, test, "draft", attached))
    return tuple(drawn)


def any_orders(
    rng: random.Random, world: World, ids: IdAllocator, people: Sequence[Person], doctors: Sequence[Person], count: int
) -> tuple[GeneticOrder, ...]:
    """Draw orders for a few tests, each with a random patient, doctor and status."""
    tests = rng.sample(TESTS, 3)
    return tuple(
        _draw(rng, world, ids, rng.choice(people).id, rng.choice(doctors), rng.choice(tests), rng.choice(_STATUSES))
        for _ in range(count)
    )


def order_candidates(files: GeneticScene) -> list[GeneticOrder]:
    """Return the drafts that only the patient's name and birth date, the test and the status together identify."""
    drafts = [order for order in files.orders if order.status == "draft"]
    other = {(order.patient, order.test.code) for order in files.orders if order.status != "draft"}
    by_test = {(draft.patient, draft.test.code) for draft in drafts}
    named = {person.id: person for person in confusable(files.people)}
    candidates = []
    for order in drafts:
        test, person = order.test.code, named.get(order.patient)
        if person is None or (person.id, test) not in other:
            continue
        same_test = [named[id] for id, code in by_test if code == test and id in named and id != person.id]
        if (
            any(draft.patient == person.id and draft.test.code != test for draft in drafts)
            and any(namesake.name == person.name for namesake in same_test)
            and any(namesake.birth_date == person.birth_date for namesake in same_test)
        ):
            candidates.append(order)
    return candidates


def _draw(
    rng: random.Random,
    world: World,
    ids: IdAllocator,
    patient: str,
    doctor: Person,
    test: Concept,
    status: str,
    attached: tuple[str, ...] = (),
) -> GeneticOrder:
    return GeneticOrder(
        id=ids.new("ServiceRequest"),
        patient=patient,
        requester=doctor.id,
        test=test,
        status=status,
        priority=rng.choice(_PRIORITIES),
        authored=(world.now.date() - timedelta(days=rng.randrange(1, 60))).isoformat(),
        attached=attached,
    )
