"""Task 02: tell the age of a patient."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Get
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, FinishedEpisode, Gold, SceneParams, SceneTask
from fhir_gym.tasks.authoring import Person, PersonCandidate, entries
from fhir_gym.tasks.core.dates import full_years
from fhir_gym.tasks.packs.medagentbench.internist_task import (
    READ_ONLY,
    ItemsAnswer,
    draw_namesakes,
    ids_only,
    number_check,
    patient_with_mrn,
)
from fhir_gym.types import Resource


class AgeParams(SceneParams):
    """Parameters of task 02.

    Attributes:
        scene: People who each have one or two namesakes; empty if the patient is already in the world.
        today: Current date.
        mrn: Record number of the patient.
        age: The right answer.
    """

    scene: tuple[Person, ...] = ()
    today: str
    mrn: str
    name: str = ""
    age: int


class Age(SceneTask[AgeParams, tuple[Person, ...], PersonCandidate]):
    """Tell a patient's age in full years.

    Starting state: seven to nine patients. Two thirds of their birthdays are at most a day from today. The prompt asks
        about a patient whose age differs from the age of every namesake.
    Decoys: the other patients. Each patient has one or two namesakes.
    Checks: the answer is the patient's age in full years. An age can be guessed, so the agent must also have retrieved
        the patient's record.
    Light: none.
    Differs from MedAgentBench: many birthdays are close to today, and a guessed answer is not accepted.
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
        "How old is {name} (MRN {mrn}) today?",
        "I need the age of {name} (MRN {mrn}) in years.",
        "Please tell me how old {name} (MRN {mrn}) is today, in full years.",
    )
    brief = "How old is {name} (MRN {mrn}) today, in full years? Finish with FINISH([<number>])."
    answer_instructions = (
        "The MRN is the medical record number, an identifier of the Patient. The age is the number of full years; a "
        "patient turns a year older on the birthday itself. Finish with FINISH([<number>]). Change nothing."
    )
    answer = ItemsAnswer("[number]", (("number",),))
    gold_steps = 2
    fewest = 4
    evidence_fields: ClassVar[Mapping[str, tuple[str, ...]]] = {"Patient": ("birthDate",)}

    @override
    def draw_scene(self, rng: random.Random, world: World) -> tuple[Person, ...]:
        today = world.now.date()
        people = draw_namesakes(rng, world, rng.randrange(7, 10))
        return tuple(
            person.model_copy(update={"birth_date": _born(rng, today, person.birth_date)}) for person in people
        )

    @override
    def candidates(self, scene: tuple[Person, ...]) -> dict[str, list[PersonCandidate]]:
        years: dict[str, list[int]] = {}
        for person in scene:
            years.setdefault(person.name, []).append(int(person.birth_date[:4]))
        return {
            "": [
                PersonCandidate(person.given, person.family, person.birth_date, person.id)
                for person in scene
                if sum(abs(year - int(person.birth_date[:4])) < 2 for year in years[person.name]) == 1
            ]
        }

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: tuple[Person, ...], chosen: PersonCandidate
    ) -> AgeParams:
        today = world.now.date()
        age = full_years(date.fromisoformat(chosen.birth_date), today)
        name = f"{chosen.given} {chosen.family}"
        return AgeParams(scene=scene, today=today.isoformat(), mrn=chosen.id, name=name, age=age)

    @override
    def scene_resources(self, scene: tuple[Person, ...], world: World) -> list[Resource]:
        return [patient_with_mrn(person) for person in scene]

    @override
    def prompt_values(self, p: AgeParams, world: World) -> dict[str, str]:
        return {"mrn": p.mrn, "name": p.name}

    @override
    def gold(self, p: AgeParams) -> Gold:
        bundle = yield Get("/Patient", {"identifier": p.mrn})
        patient = next(entries(bundle))
        yield Finish([full_years(date.fromisoformat(patient["birthDate"]), date.fromisoformat(p.today))])

    @override
    def checks(self, p: AgeParams, end: FinishedEpisode) -> Iterator[Check]:
        yield number_check("answer", end.answer[0] if end.answer else None, p.age)

    @override
    def required_records(self, p: AgeParams) -> tuple[str, ...]:
        return (f"Patient/{p.mrn}",)

    @override
    def near_misses(self, p: AgeParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        yield from ids_only(gold)
        *before, _ = gold
        today = date.fromisoformat(p.today)
        for age in sorted({p.age - 1, p.age + 1, *(_age(today, person) for person in p.scene)}):
            if age != p.age:
                yield f"answers {age}", [*before, Finish([age])]

    @override
    def requires_evidence(self, p: AgeParams) -> bool:
        return True


def _age(today: date, person: Person) -> int:
    return full_years(date.fromisoformat(person.birth_date), today)


def _born(rng: random.Random, today: date, birth_date: str) -> str:
    """Change a date of birth; two thirds of the new birthdays are at most a day from today."""
    day = today + timedelta(days=rng.choice((-1, 0, 1)))
    if rng.random() < 2 / 3 and (day.month, day.day) != (2, 29):  # 29 February does not exist in every year
        return day.replace(year=day.year - rng.randrange(21, 97)).isoformat()
    return birth_date.replace("-02-29", "-02-28")


TASKS = (Age,)
