"""Draw patients who share names, with their relatives, coverages and accounts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from itertools import product
from typing import TypeVar

from typing_extensions import override

from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import (
    Concept,
    IdAllocator,
    Person,
    confusable_dates,
    is_new_name,
    new_person,
    other_given,
    patient_resource,
    person_called,
)
from fhir_gym.tasks.packs.appointment.billing import (
    AccountRecord,
    CoverageRecord,
    Insurer,
    account_resource,
    coverage_resource,
    insurer_resource,
)
from fhir_gym.tasks.packs.appointment.relatives import (
    ONLY_ONE,
    RELATIONS,
    Relative,
    fitting_relations,
    new_relative,
    related_person,
)
from fhir_gym.types import Resource

FIVE_TO_SEVEN = ((5,), (6,), (3, 3), (3, 4))
FIVE_OR_SIX = ((5,), (2, 3), (2, 3), (3, 3), (2, 4))
SIX = ((6,), (3, 3), (2, 4))
"""Ways to divide six patients into groups that share a name; each way lists the sizes of the groups."""

_TRIES = 1_000
_CONTACT = frozenset({"telecom", "address"})
_GENDERS = ("female", "male")
_GIVEN_NAMES = 3
_MAX_DAYS_APART = 400
_CHILD_OR_STUDENT = (5 * 365, 25 * 365)


class CodedRecord(Params):
    """A coded record of a patient.

    Attributes:
        id: Id of the resource.
        patient: Id of the patient.
        what: Code of the condition or procedure.
    """

    id: str
    patient: str
    what: Concept


R = TypeVar("R", bound=CodedRecord)


class PatientScene(Params):
    """The patients that a task adds; the scene does not reveal which of them the prompt names.

    Attributes:
        patients: The patients. Each of them shares details with other patients.
    """

    patients: tuple[Person, ...]

    def resources(self) -> list[Resource]:
        """Return all resources of the scene."""
        return [*map(patient_resource, self.patients)]

    def patient(self, id: str) -> Person:
        """Return the patient with an id."""
        return next(person for person in self.patients if person.id == id)

    def namesakes(self, person: Person) -> list[str]:
        """Return the ids of the other patients with the same name."""
        return [other.id for other in self.patients if other.name == person.name and other.id != person.id]

    def confusable(self, records: Iterable[R], person: Person, what: Concept) -> list[R]:
        """Return all records of a patient, and those records of the patient's namesakes that have the code `what`."""
        namesakes = self.namesakes(person)
        return [
            record
            for record in records
            if record.patient == person.id or (record.patient in namesakes and record.what == what)
        ]


class BillingScene(PatientScene):
    """Patients with relatives, coverages and accounts.

    Attributes:
        relatives: Relatives of the patients.
        insurers: The insurers of the coverages.
        coverages: Coverages of the patients.
        accounts: Accounts of the patients.
    """

    relatives: tuple[Relative, ...] = ()
    insurers: tuple[Insurer, ...] = ()
    coverages: tuple[CoverageRecord, ...] = ()
    accounts: tuple[AccountRecord, ...] = ()

    @override
    def resources(self) -> list[Resource]:
        people = (*super().resources(), *map(related_person, self.relatives))
        return [
            # Contact details are omitted because the scene has many people and the tasks do not use the details.
            *({name: value for name, value in person.items() if name not in _CONTACT} for person in people),
            *map(insurer_resource, self.insurers),
            *map(coverage_resource, self.coverages),
            *map(account_resource, self.accounts),
        ]

    def relatives_of(self, patient: str) -> list[Relative]:
        """Return the relatives of a patient."""
        return [relative for relative in self.relatives if relative.patient == patient]

    def coverages_of(self, patient: str) -> list[CoverageRecord]:
        """Return the coverages of a patient."""
        return [coverage for coverage in self.coverages if coverage.patient == patient]

    def accounts_of(self, patient: str) -> list[AccountRecord]:
        """Return the accounts of a patient."""
        return [account for account in self.accounts if account.patient == patient]


def draw_namesakes(
    rng: random.Random, world: World, ids: IdAllocator, sizes: Sequence[int], *, young: bool = False
) -> tuple[Person, ...]:
    """Draw groups of patients; the patients of a group have the same name and similar birth dates.

    Patients of different groups may have the same given name or the same family name.

    Args:
        rng: Random generator.
        world: The world, in which nobody has the new names.
        ids: Allocates the ids.
        sizes: Number of patients in each group, at most 12; there are at most four groups.
        young: Whether the patients are children and students.

    Raises:
        TaskError: No unused names were found.
    """
    for _ in range(_TRIES):
        seed, other = new_person(rng, world, ""), new_person(rng, world, "")
        names = [*product((seed.given, other_given(rng, seed)), (seed.family, other.family))]
        if seed.family != other.family and all(is_new_name(world, "Patient", *name) for name in names):
            break
    else:
        raise TaskError(f"the world {world.manifest.name} has no unused patient name after {_TRIES} attempts")
    born = seed.birth_date
    if young:
        born = (world.now.date() - timedelta(days=rng.randrange(*_CHILD_OR_STUDENT))).isoformat()
    births = _close_dates(born, max(sizes))
    return tuple(
        person_called(rng, ids.new("Patient"), *name, seed.gender, birth)
        for name, size in zip(rng.sample(names, len(sizes)), sizes, strict=True)
        for birth in rng.sample(births, size)
    )


def draw_relatives(
    rng: random.Random,
    today: date,
    ids: IdAllocator,
    patients: Sequence[Person],
    numbers: Sequence[int],
    *,
    among: Sequence[str] = tuple(RELATIONS),
    youngest: int = 0,
) -> tuple[Relative, ...]:
    """Draw relatives of patients.

    A relative has the patient's family name and one of a few given names, so that many relatives share a name. No
    patient has two relatives in the same relation.

    Args:
        rng: Random generator.
        today: Current date.
        ids: Allocates the ids.
        patients: The patients.
        numbers: Numbers of relatives of a patient to choose from, at most three.
        among: Relations to choose from.
        youngest: Minimum age of the relatives in years.
    """
    oldest_patient, youngest_patient = min(patients, key=_birth), max(patients, key=_birth)
    fit_oldest = set(fitting_relations(oldest_patient, today, youngest=youngest))
    fit_youngest = fitting_relations(youngest_patient, today, youngest=youngest)
    relations = [relation for relation in fit_youngest if relation in fit_oldest and relation in among]
    pools = {gender: _given_names(rng, gender, patients) for gender in _GENDERS}
    relatives = []
    for person in patients:
        number = min(rng.choice(numbers), len(relations))
        names = {gender: rng.sample(pool, number) for gender, pool in pools.items()}
        for n, relation in enumerate(rng.sample(relations, number)):
            gender = RELATIONS[relation].gender or rng.choice(_GENDERS)
            id = ids.new("RelatedPerson")
            relatives.append(new_relative(rng, person, id, relation, gender=gender, given=names[gender][n]))
    return tuple(relatives)


def draw_similar_relatives(
    rng: random.Random, today: date, ids: IdAllocator, patients: Sequence[Person]
) -> tuple[Relative, ...]:
    """Draw three or four relatives of each patient; the relatives share given names and birth dates.

    All relatives have the same gender and belong to the same generation. No patient has two mothers, fathers or
    spouses.
    """
    oldest, youngest = min(patients, key=_birth), max(patients, key=_birth)
    fit = [relation for relation in fitting_relations(youngest, today) if relation in fitting_relations(oldest, today)]
    model = rng.choice([relation for relation in fit if relation not in ONLY_ONE])
    gender = RELATIONS[model].gender or rng.choice(_GENDERS)
    relations = [relation for relation in fit if _generation(relation) == _generation(model)]
    relations = [relation for relation in relations if RELATIONS[relation].gender in (None, gender)]
    repeatable = [relation for relation in relations if relation not in ONLY_ONE]
    givens = _given_names(rng, gender, patients)[:2]
    # The relation with the largest minimum age difference gives a birth date that fits all relations.
    strictest = max(relations, key=lambda relation: RELATIONS[relation].older[0])
    born = new_relative(rng, youngest, "", strictest).person.birth_date
    births = _close_dates(born, 3)[: rng.randrange(2, 4)]
    relatives = []
    for person in patients:
        left = list(relations)
        for given, birth in rng.sample([*product(givens, births)], rng.randrange(3, 3 + len(births) - 1)):
            relation = rng.choice(left)
            if relation in ONLY_ONE:
                left = repeatable
            relative = person_called(rng, ids.new("RelatedPerson"), given, person.family, gender, birth)
            relatives.append(Relative(patient=person.id, person=relative, relation=relation))
    return tuple(relatives)


def _generation(relation: str) -> int:
    """Return 1 for parents and guardians, 0 for siblings and spouses, and -1 for children."""
    least, most = RELATIONS[relation].older
    return (least > 0) - (most < 0)


def _birth(person: Person) -> str:
    return person.birth_date


def _given_names(rng: random.Random, gender: str, patients: Sequence[Person]) -> list[str]:
    """Draw given names that no patient has."""
    taken = {person.given for person in patients}
    names: list[str] = []
    while len(names) < _GIVEN_NAMES:
        name = other_given(rng, patients[0].model_copy(update={"gender": gender}))
        if name not in taken and name not in names:
            names.append(name)
    return names


def _close_dates(birth_date: str, count: int) -> list[str]:
    """Return more than `count` dates that are easily mistaken for each other, all within about a year of the first."""
    born, dates = date.fromisoformat(birth_date), [birth_date]
    for taken in dates:
        if len(dates) > count:
            break
        near = (other for other in confusable_dates(taken) if other not in dates)
        dates += [other for other in near if abs((date.fromisoformat(other) - born).days) < _MAX_DAYS_APART]
    return dates
