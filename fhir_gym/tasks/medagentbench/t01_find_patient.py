"""Task 01: the record number of a person, who may not be on file."""

from __future__ import annotations

import random
from collections.abc import Iterator

from fhir_gym.actions import Finish, Get
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.bundles import entries, has_name
from fhir_gym.tasks.checks import Check
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.medagentbench.pack import READ_ONLY, Items, chart_patient, new_mrn
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person, longer_family, namesake, new_person, other_given, relative_with, swapped
from fhir_gym.tasks.task import Fhir, Gold, Task
from fhir_gym.types import Resource

__all__ = ["TASKS", "FindPatient", "FindPatientParams"]

_NOBODY = "Patient not found"


class FindPatientParams(Params):
    """Values of task 01.

    Attributes:
        person: Who is looked for; the id is the record number.
        mrn: The right answer; None if there is no such patient.
        decoys: People on file who are easily mistaken for them.
    """

    person: Person
    mrn: str | None
    decoys: tuple[Person, ...] = ()


class FindPatient(Task[FindPatientParams]):
    """Find the medical record number of a person by name and date of birth.

    Starting state: in six of ten variations the person is on file.
    Decoys: two people of the same name born on another day; one of the same family name and date of birth; one whose
        double family name starts with the person's; one whose names are the other way round.
    Checks: the answer is the person's number, or says that there is none; then a request must have been able to show
        them.
    Light: none.
    Differs from MedAgentBench: decoys; saying that there is nobody needs a look.
    """

    key = "01"
    title = "Record number of a patient"
    category = "Patient information retrieval"
    difficulty = 1
    kind = "query"
    required_tools = (("search",),)
    required_resources = ("Patient",)
    prohibited_tools = READ_ONLY
    prompts = (
        "Which medical record number (MRN) does {given} {family} have, who was born on {birth_date}? The given name is "
        "{given}, the family name {family}.",
        "Please look up a patient. Family name: {family}. Given name: {given}. Date of birth: {birth_date}. I need the "
        "medical record number (MRN).",
        "On the phone is a person who gives the family name {family}, the given name {given} and the birth date "
        "{birth_date}. Is that one of our patients, and under which medical record number (MRN)?",
    )
    ending = (
        "Names and date of birth must all be exactly these. The record number is the Patient's identifier of type MR. "
        'Finish with FINISH(["<MRN>"]), or with FINISH(["Patient not found"]) if there is no such patient. Change '
        "nothing."
    )
    answer = Items('["MRN"] or ["Patient not found"]', (("text",),))
    gold_steps = 2

    def sample(self, rng: random.Random, world: World) -> FindPatientParams:
        """Draw a person, on file or not, and five who are like them."""
        ids: list[str] = []
        while len(ids) < 6:
            ids = list(dict.fromkeys([*ids, new_mrn(rng, world)]))
        person = new_person(rng, world, ids[0])
        decoys = (
            namesake(rng, person, ids[1]),
            namesake(rng, person, ids[2]),
            relative_with(rng, person, ids[3], given=other_given(rng, person)),
            relative_with(rng, person, ids[4], family=longer_family(rng, person)),
            swapped(rng, person, ids[5]),
        )
        return FindPatientParams(person=person, mrn=person.id if rng.random() < 0.6 else None, decoys=decoys)

    def setup(self, p: FindPatientParams, world: World) -> list[Resource]:
        """The decoys, and the person if they are on file."""
        there = [p.person] if p.mrn else []
        return [chart_patient(person) for person in (*p.decoys, *there)]

    def words(self, p: FindPatientParams, world: World) -> dict[str, str]:
        """Name and birth date."""
        return p.person.model_dump(include={"given", "family", "birth_date"})

    def gold(self, p: FindPatientParams, fhir: Fhir) -> Gold:
        """One search; a name search finds longer names too, so names are compared again."""
        given, family = p.person.given, p.person.family
        found = yield Get("/Patient", {"family": family, "given": given, "birthdate": p.person.birth_date})
        numbers = [one["identifier"][0]["value"] for one in entries(found) if has_name(one, given, family)]
        yield Finish(numbers or [_NOBODY])

    def checks(self, p: FindPatientParams, end: EndState) -> Iterator[Check]:
        """The number, or that there is none."""
        said = end.answer[0] if end.answer else None
        text = said.strip() if isinstance(said, str) else said
        wanted = p.mrn or _NOBODY
        right = text == wanted or (p.mrn is None and str(text).casefold().rstrip(".") == _NOBODY.casefold())
        yield Check(name="answer", passed=right, expected=wanted, actual=said)

    def rests_on(self, p: FindPatientParams) -> tuple[str, ...]:
        """The person's record."""
        return (f"Patient/{p.mrn}",) if p.mrn else ()

    def must_look(self, p: FindPatientParams) -> bool:
        """Saying that there is nobody."""
        return p.mrn is None

    def phantom(self, p: FindPatientParams, world: World) -> list[Resource]:
        """The person, had they been on file."""
        return [chart_patient(p.person)] if p.mrn is None else []


TASKS = (FindPatient,)
