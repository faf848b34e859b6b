"""Tasks 02a and 02b: look up a patient who is on file, or is not. Both ask alike; only the look-up tells them apart."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import ClassVar

from fhir_gym.actions import Finish, Get
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Ids as IdsAnswer
from fhir_gym.tasks.bundles import entries, has_name
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person, longer_family, namesake, new_person, other_given, patient, relative_with
from fhir_gym.tasks.task import Fhir, Gold, Task
from fhir_gym.types import Resource

__all__ = ["TASKS", "SearchExistingPatient", "SearchNonexistentPatient", "SearchPatientParams"]

_DECOYS = 4


class SearchPatientParams(Params):
    """Values of tasks 02a and 02b.

    Attributes:
        person: Who is looked for.
        decoys: People on file who are easily mistaken for them.
    """

    person: Person
    decoys: tuple[Person, ...]


class _SearchPatient(Task[SearchPatientParams]):
    """What both tasks share."""

    category = "Patient Records"
    difficulty = 1
    kind = "query"
    required_tools = (("search",),)
    required_resources = ("Patient",)
    prohibited_tools = ("create", "update", "patch", "delete")
    prompts = (
        "Is {given} {family} (given name {given}, family name {family}), born {birth_date}, on file as a patient? "
        "Names and date of birth must all be exactly these; others may be similar.",
        "Find the patient record of the person with family name {family}, given name {given} and date of birth "
        "{birth_date}. Somebody who differs in any of the three is another person.",
        "Someone calls and says: my family name is {family}, my given name {given}, I was born on {birth_date}. Look "
        "up whether this very person is a patient here already.",
    )
    ending = (
        'Finish with FINISH(["<id>"]), where <id> is the id of that patient, or with FINISH([]) if there is no such '
        "patient. Change nothing."
    )
    answer = IdsAnswer(("Patient",), or_empty=True)
    gold_steps = 2
    on_file: ClassVar[bool]

    def sample(self, rng: random.Random, world: World) -> SearchPatientParams:
        """Draw a person new to the world, and four who are like them."""
        ids = Ids(rng, world, _DECOYS + 1)
        person = new_person(rng, world, ids.new())
        decoys = (
            namesake(rng, person, ids.new()),
            namesake(rng, person, ids.new()),
            relative_with(rng, person, ids.new(), given=other_given(rng, person)),
            relative_with(rng, person, ids.new(), family=longer_family(rng, person)),
        )
        return SearchPatientParams(person=person, decoys=decoys)

    def setup(self, p: SearchPatientParams, world: World) -> list[Resource]:
        """The decoys, and the person if they are on file."""
        return [patient(person) for person in (*p.decoys, *([p.person] if self.on_file else []))]

    def words(self, p: SearchPatientParams, world: World) -> dict[str, str]:
        """Name and birth date."""
        return p.person.model_dump(include={"given", "family", "birth_date"})

    def gold(self, p: SearchPatientParams, fhir: Fhir) -> Gold:
        """One search; a name search finds longer names too, so names are compared again."""
        person = p.person
        query = {"family": person.family, "given": person.given, "birthdate": person.birth_date}
        found = yield Get("/Patient", query)
        yield Finish([one["id"] for one in entries(found) if has_name(one, person.given, person.family)])

    def checks(self, p: SearchPatientParams, end: EndState) -> Iterator[Check]:
        """The answer is the person's id, or nothing."""
        (answer,) = end.answer_ids("Patient")
        yield equal("answer", answer, p.person.id if self.on_file else None)


class SearchExistingPatient(_SearchPatient):
    """Look up a patient who is on file.

    Starting state: the person.
    Decoys: two namesakes with other birth dates, someone of the same family name and birth date, and someone born the
        same day whose double family name starts with the person's, as a search by family name also finds.
    Checks: the answer is the person's id.
    Light: none.
    Differs from FHIR-AgentEval: random ids instead of one that never changes, decoys, and an exact form for "not on
        file"; ``Patient/12`` is as good as ``12``.
    """

    key = "02a"
    title = "Search an existing patient"
    on_file = True

    def rests_on(self, p: SearchPatientParams) -> tuple[str, ...]:
        """The person's record."""
        return (f"Patient/{p.person.id}",)


class SearchNonexistentPatient(_SearchPatient):
    """Look up a person who is not on file.

    Starting state: the person is not on file.
    Decoys: those of 02a, one of whom a hasty agent answers.
    Checks: the answer is ``[]``, and a request would have shown the person, had they been on file.
    Light: none.
    Differs from FHIR-AgentEval: there, repeating the prompt's sentence passed without a look; here, saying "none"
        without having looked fails.
    """

    key = "02b"
    title = "Search a nonexistent patient"
    on_file = False

    def must_look(self, p: SearchPatientParams) -> bool:
        """There is nobody to find."""
        return True

    def phantom(self, p: SearchPatientParams, world: World) -> list[Resource]:
        """The person, had they been on file."""
        return [patient(p.person)]


TASKS = (SearchExistingPatient, SearchNonexistentPatient)
