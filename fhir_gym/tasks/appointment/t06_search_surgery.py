"""Tasks 06a and 06b: look up a patient's surgery plan. Both ask alike; in 06b there is none."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date, timedelta
from typing import ClassVar

from fhir_gym.actions import Finish, Get
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Ids as IdsAnswer
from fhir_gym.tasks.appointment.surgery import IMAGING, OPERATIONS, SCANS, SURGICAL, Plan, plan_request
from fhir_gym.tasks.bundles import entries
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.clock import at, instant
from fhir_gym.tasks.concepts import Concept
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person, namesake, new_person, patient
from fhir_gym.tasks.task import Fhir, Gold, Task
from fhir_gym.types import Resource

__all__ = ["TASKS", "SearchSurgeryAbsent", "SearchSurgeryParams", "SearchSurgeryPresent"]

_ENDED = ("revoked", "completed", "draft", "on-hold", "entered-in-error")


class SearchSurgeryParams(Params):
    """Values of tasks 06a and 06b.

    Attributes:
        person: Whose surgery.
        namesake: Another patient of the same name.
        today: The date of the present.
        days: Length of the window.
        target: The plan within the window.
        decoys: Plans outside it, orders that are no active surgery plans, and one of the namesake.
    """

    person: Person
    namesake: Person
    today: str
    days: int
    target: Plan
    decoys: tuple[Plan, ...]


class _SearchSurgery(Task[SearchSurgeryParams]):
    """What both tasks share."""

    category = "Surgery & Test Orders"
    difficulty = 1
    kind = "query"
    required_tools = (("search",),)
    required_resources = ("ServiceRequest",)
    prohibited_tools = ("create", "update", "patch", "delete")
    prompts = (
        "Does {patient} (Patient/{id}) have a surgery plan within the next {days} days?",
        "Before Patient/{id} ({patient}) is called, check whether a surgery is planned for this patient in the "
        "next {days} days.",
        "Is an operation of {patient} coming up? The record is Patient/{id}; look at the next {days} days only.",
    )
    ending = (
        "A surgery plan is a ServiceRequest with status active and category 387713003 (Surgical procedure) of "
        "http://snomed.info/sct. The days are half open: a plan counts if its occurrence is on today's date or later, "
        "and before the date that many days after today. All dates are in UTC. "
        'Finish with FINISH(["<id>"]), where <id> is the id of that ServiceRequest, or with FINISH([]) if there is '
        "none. Change nothing."
    )
    answer = IdsAnswer(("ServiceRequest",), or_empty=True)
    gold_steps = 2
    planned: ClassVar[bool]

    def sample(self, rng: random.Random, world: World) -> SearchSurgeryParams:
        """Draw the patients, the window, and plans in and around it."""
        ids = Ids(rng, world, 14)
        person = new_person(rng, world, ids.new())
        other = namesake(rng, person, ids.new())
        today, length = world.now.date(), rng.randrange(5, 36)
        inside = range(length)

        def plan(days: int, who: Person = person, status: str = "active", what: Concept | None = None) -> Plan:
            day = today + timedelta(days=days)
            timed = instant(at(day, rng.randrange(7, 17), rng.choice((0, 30))))
            return Plan(
                id=ids.new(),
                patient=who.id,
                category=IMAGING if what else SURGICAL,
                what=what or rng.choice(OPERATIONS),
                status=status,
                when=rng.choice((day.isoformat(), timed)),
            )

        decoys = (
            plan(length),
            plan(length + rng.randrange(1, 60)),
            plan(-1),
            plan(-rng.randrange(2, 90)),
            *(plan(rng.choice(inside), status=status) for status in rng.sample(_ENDED, 2)),
            plan(rng.choice(inside), what=rng.choice(SCANS)),
            plan(rng.choice(inside), who=other),
        )
        edge = rng.choice((0, length - 1, rng.choice(inside)))
        return SearchSurgeryParams(
            person=person,
            namesake=other,
            today=today.isoformat(),
            days=length,
            target=plan(edge),
            decoys=decoys,
        )

    def setup(self, p: SearchSurgeryParams, world: World) -> list[Resource]:
        """Both patients, the decoys, and the plan if there is one."""
        plans = (p.target, *p.decoys) if self.planned else p.decoys
        return [patient(p.person), patient(p.namesake), *map(plan_request, plans)]

    def words(self, p: SearchSurgeryParams, world: World) -> dict[str, str]:
        """The patient and the window."""
        return {"patient": p.person.name, "id": p.person.id, "days": str(p.days)}

    def gold(self, p: SearchSurgeryParams, fhir: Fhir) -> Gold:
        """One search with all conditions."""
        end = date.fromisoformat(p.today) + timedelta(days=p.days)
        query = {
            "subject": f"Patient/{p.person.id}",
            "category": SURGICAL.token,
            "status": "active",
            "occurrence": [f"ge{p.today}", f"lt{end}"],
        }
        found = yield Get("/ServiceRequest", query)
        yield Finish([one["id"] for one in entries(found)])

    def checks(self, p: SearchSurgeryParams, end: EndState) -> Iterator[Check]:
        """The answer is the plan's id, or nothing."""
        (answer,) = end.answer_ids("ServiceRequest")
        yield equal("answer", answer, p.target.id if self.planned else None)


class SearchSurgeryPresent(_SearchSurgery):
    """Find a patient's surgery plan within the next days.

    Starting state: the patient with one surgery plan within the window, often on its first or last day.
    Decoys: plans of the patient the day before and after the window, and further off (a search without dates, or
        with the wrong bounds); within it, two that are not active, an imaging order, and a plan of a namesake.
    Checks: the answer is the plan.
    Light: none.
    Differs from FHIR-AgentEval: the window is half open and says so, one clock decides what today is; decoys and
        random ids, where one constant id was always right; what a surgery plan is stands in the prompt.
    """

    key = "06a"
    title = "Search a surgery plan, present"
    planned = True

    def rests_on(self, p: SearchSurgeryParams) -> tuple[str, ...]:
        """The plan."""
        return (f"ServiceRequest/{p.target.id}",)


class SearchSurgeryAbsent(_SearchSurgery):
    """Find out that a patient has no surgery plan within the next days.

    Starting state: a patient without a surgery plan in the window.
    Decoys: as 06a.
    Checks: the answer is ``[]``, and a request would have shown a plan in the window, had there been one.
    Light: none.
    Differs from FHIR-AgentEval: saying "none" without looking fails; the prompt names an exact empty answer.
    """

    key = "06b"
    title = "Search a surgery plan, absent"
    planned = False

    def must_look(self, p: SearchSurgeryParams) -> bool:
        """There is nothing to find."""
        return True

    def phantom(self, p: SearchSurgeryParams, world: World) -> list[Resource]:
        """The plan, had there been one."""
        return [plan_request(p.target)]


TASKS = (SearchSurgeryPresent, SearchSurgeryAbsent)
