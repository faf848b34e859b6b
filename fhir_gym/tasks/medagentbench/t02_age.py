"""Task 02: how old a patient is."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import ClassVar

from fhir_gym.actions import Action, Finish, Get
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.bundles import entries
from fhir_gym.tasks.checks import Check
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.medagentbench.pack import READ_ONLY, Items, blind, chart_patient, draw_namesakes, number_check
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person
from fhir_gym.tasks.task import Fhir, Gold, Task
from fhir_gym.types import Resource

__all__ = ["TASKS", "Age", "AgeParams", "age_on"]


class AgeParams(Params):
    """Values of task 02.

    Attributes:
        today: The day it is, a date.
        mrn: Record number of the patient.
        people: The patient and a namesake; empty where the world holds the patient.
        age: The right answer.
    """

    today: str
    mrn: str
    people: tuple[Person, ...] = ()
    age: int


def age_on(today: date, born: date) -> int:
    """Full years."""
    return today.year - born.year - ((today.month, today.day) < (born.month, born.day))


class Age(Task[AgeParams]):
    """Tell a patient's age in full years.

    Starting state: the patient, whose birthday is in two of three variations within a day of today, else any day.
    Decoys: a namesake born on another day.
    Checks: the answer is the number of full years; the patient's record was retrieved, for an age can be guessed.
    Light: none.
    Differs from MedAgentBench: birthdays around today; a guess does not count.
    """

    key = "02"
    title = "Age of a patient"
    category = "Patient information retrieval"
    difficulty = 1
    kind = "query"
    required_tools = (("search",), ("read",))
    required_resources = ("Patient",)
    prohibited_tools = READ_ONLY
    prompts = (
        "How old is the patient with the MRN {mrn} ({name}) today?",
        "I need the age in years of {name}, MRN {mrn}.",
        "Patient {mrn}, {name}: please tell me how many years old this patient is as of today.",
    )
    ending = (
        "MRN is the medical record number, an identifier of the Patient. The age is the number of full years; a "
        "patient turns a year older on the birthday itself. Finish with FINISH([<number>]). Change nothing."
    )
    answer = Items("[number]", (("number",),))
    gold_steps = 2
    decisive: ClassVar[Mapping[str, tuple[str, ...]]] = {"Patient": ("birthDate",)}

    def sample(self, rng: random.Random, world: World) -> AgeParams:
        """Draw a patient whose birthday is near."""
        today = world.now.date()
        person, other = draw_namesakes(rng, world)
        if rng.random() < 2 / 3:
            day = today + timedelta(days=rng.choice((-1, 0, 1)))
            if (day.month, day.day) != (2, 29):  # not every year has it
                person = person.model_copy(update={"birth_date": day.replace(year=day.year - _years(rng)).isoformat()})
        elif person.birth_date.endswith("-02-29"):
            person = person.model_copy(update={"birth_date": person.birth_date[:-2] + "28"})
        age = age_on(today, date.fromisoformat(person.birth_date))
        return AgeParams(today=today.isoformat(), mrn=person.id, people=(person, other), age=age)

    def setup(self, p: AgeParams, world: World) -> list[Resource]:
        """The patient and the namesake."""
        return [chart_patient(person) for person in p.people]

    def words(self, p: AgeParams, world: World) -> dict[str, str]:
        """Name and number."""
        return {"mrn": p.mrn, "name": p.people[0].name}

    def gold(self, p: AgeParams, fhir: Fhir) -> Gold:
        """One search by identifier."""
        found = yield Get("/Patient", {"identifier": p.mrn})
        patient = next(entries(found))
        yield Finish([age_on(date.fromisoformat(p.today), date.fromisoformat(patient["birthDate"]))])

    def checks(self, p: AgeParams, end: EndState) -> Iterator[Check]:
        """The age."""
        yield number_check("answer", end.answer[0] if end.answer else None, p.age)

    def rests_on(self, p: AgeParams) -> tuple[str, ...]:
        """The patient's record."""
        return (f"Patient/{p.mrn}",)

    def near_misses(self, p: AgeParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Ids seen only; the years counted without the birthday; the namesake's age."""
        yield from blind(gold)
        *before, _ = gold
        today = date.fromisoformat(p.today)
        for age in {p.age - 1, p.age + 1, *(age_on(today, date.fromisoformat(one.birth_date)) for one in p.people)}:
            if age != p.age:
                yield f"answers {age}", [*before, Finish([age])]

    def must_look(self, p: AgeParams) -> bool:
        """An age can be guessed."""
        return True


def _years(rng: random.Random) -> int:
    return rng.randrange(21, 97)


TASKS = (Age,)
