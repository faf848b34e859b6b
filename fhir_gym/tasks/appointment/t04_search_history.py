"""Tasks 04a and 04b: look up a patient's medical history. Both ask alike; in 04b there is none."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from typing import ClassVar

from fhir_gym.actions import Finish, Get
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Ids as IdsAnswer
from fhir_gym.tasks.appointment.history import Problem, condition, entered_in_error, some_problems
from fhir_gym.tasks.bundles import entries
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person, namesake, new_person, patient
from fhir_gym.tasks.task import Fhir, Gold, Task
from fhir_gym.types import Resource

__all__ = ["TASKS", "SearchHistoryEmpty", "SearchHistoryParams", "SearchHistoryPresent"]

_PAST = 5_000
_SPAN = 60
"""Days between two records of the patient, at most."""


class SearchHistoryParams(Params):
    """Values of tasks 04a and 04b.

    Attributes:
        person: Whose history.
        namesake: Another patient of the same name.
        target: The condition recorded first.
        others: Further conditions of the patient, recorded later.
        mistaken: A condition of the patient entered in error, recorded before.
        decoys: Conditions of the namesake.
    """

    person: Person
    namesake: Person
    target: Problem
    others: tuple[Problem, ...]
    mistaken: Problem
    decoys: tuple[Problem, ...]


class _SearchHistory(Task[SearchHistoryParams]):
    """What both tasks share."""

    category = "Patient Records"
    difficulty = 1
    kind = "query"
    required_resources = ("Condition",)
    prohibited_tools = ("create", "update", "patch", "delete")
    prompts = (
        "Does {patient} (Patient/{id}) have any medical history on file? If so, which condition was recorded first?",
        "Check the medical history of Patient/{id} ({patient}) and give the condition that was recorded first, if "
        "there is any.",
        "A doctor asks for the oldest entry in the medical history of {patient}, whose record is Patient/{id}. Look "
        "up whether there is one.",
    )
    ending = (
        "Medical history is every Condition whose subject is this patient, whatever its clinical status or category, "
        "except those with verification status entered-in-error. The first or oldest entry is the one with the "
        'earliest recordedDate. Finish with FINISH(["<id>"]), where <id> is the id of that condition, or with '
        "FINISH([]) if there is none. Change nothing."
    )
    answer = IdsAnswer(("Condition",), or_empty=True)
    gold_steps = 2
    on_file: ClassVar[bool]

    def sample(self, rng: random.Random, world: World) -> SearchHistoryParams:
        """Draw the patients, and conditions recorded on different days."""
        ids = Ids(rng, world, 12)
        person = new_person(rng, world, ids.new())
        other = namesake(rng, person, ids.new())
        later = rng.randrange(1, 5)
        problems = iter(some_problems(rng, later + 5))
        age = rng.randrange(_SPAN * 8, _PAST)

        def recorded(who: Person, days: int, clinical: str, verification: str = "confirmed") -> Problem:
            return Problem(
                id=ids.new(),
                patient=who.id,
                what=next(problems),
                clinical=clinical,
                verification=verification,
                category=rng.choice(("problem-list-item", "encounter-diagnosis")),
                recorded=(world.now.date() - timedelta(days=days)).isoformat(),
            )

        ages = rng.sample(range(1, age), later)
        return SearchHistoryParams(
            person=person,
            namesake=other,
            target=recorded(person, age, rng.choice(("inactive", "resolved"))),
            others=tuple(recorded(person, days, rng.choice(("active", "active", "resolved"))) for days in ages),
            mistaken=recorded(person, age + rng.randrange(1, _SPAN), "active", "entered-in-error"),
            decoys=(
                recorded(other, age + rng.randrange(1, _SPAN), "active"),
                recorded(other, rng.randrange(1, age), "resolved"),
            ),
        )

    def setup(self, p: SearchHistoryParams, world: World) -> list[Resource]:
        """Both patients, the decoys, and the patient's history if there is any."""
        history = (p.target, *p.others) if self.on_file else ()
        return [patient(p.person), patient(p.namesake), *map(condition, (*history, p.mistaken, *p.decoys))]

    def words(self, p: SearchHistoryParams, world: World) -> dict[str, str]:
        """The patient."""
        return {"patient": p.person.name, "id": p.person.id}

    def gold(self, p: SearchHistoryParams, fhir: Fhir) -> Gold:
        """One search, sorted by the date of recording."""
        found = yield Get("/Condition", {"subject": f"Patient/{p.person.id}", "_sort": "recorded-date"})
        history = [one["id"] for one in entries(found) if not entered_in_error(one)]
        yield Finish(history[:1])

    def checks(self, p: SearchHistoryParams, end: EndState) -> Iterator[Check]:
        """The answer is the first condition's id, or nothing."""
        (answer,) = end.answer_ids("Condition")
        yield equal("answer", answer, p.target.id if self.on_file else None)


class SearchHistoryPresent(_SearchHistory):
    """Find the first entry of a patient's medical history.

    Starting state: the patient with two to five conditions recorded on different days.
    Decoys: a condition entered in error, recorded before all others (the first hit by date); the first one is no
        longer active (a search for active ones misses it); conditions of a namesake, one of them recorded earlier (a
        search by name, or without the patient).
    Checks: the answer is the condition recorded first.
    Light: none.
    Differs from FHIR-AgentEval: "first" has an order, where it was the server's; several conditions of several
        patients, random ids, where one constant id was always right.
    """

    key = "04a"
    title = "Search medical history, present"
    required_tools = (("search",), ("read",))
    on_file = True

    def rests_on(self, p: SearchHistoryParams) -> tuple[str, ...]:
        """The condition."""
        return (f"Condition/{p.target.id}",)


class SearchHistoryEmpty(_SearchHistory):
    """Find out that a patient has no medical history.

    Starting state: a patient without medical history.
    Decoys: a condition of the patient entered in error; conditions of a namesake.
    Checks: the answer is ``[]``, and a request would have shown a condition of the patient, had there been one, even
        one that is no longer active.
    Light: none.
    Differs from FHIR-AgentEval: saying "none" without looking fails; the prompt names an exact empty answer.
    """

    key = "04b"
    title = "Search medical history, empty"
    required_tools = (("search",),)
    on_file = False

    def must_look(self, p: SearchHistoryParams) -> bool:
        """There is nothing to find."""
        return True

    def phantom(self, p: SearchHistoryParams, world: World) -> list[Resource]:
        """The condition, had there been one: no longer active, so that a look at active ones is not enough."""
        return [condition(p.target)]


TASKS = (SearchHistoryPresent, SearchHistoryEmpty)
