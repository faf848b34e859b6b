"""Task 05: enter a surgery plan."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import ClassVar

from fhir_gym.actions import Action, Finish, Post, Put
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Ids as IdsAnswer
from fhir_gym.tasks.appointment.surgery import OPERATIONS, SURGICAL, Plan, another, on_day, plan_request
from fhir_gym.tasks.bundles import reference
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.concepts import Concept, concept_checks
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.meaning import ADD_NOTHING
from fhir_gym.tasks.outcomes import is_new, new_resource
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person, namesake, new_person, patient
from fhir_gym.tasks.task import Fhir, Gold, Task, Touch
from fhir_gym.types import Json, Resource

__all__ = ["TASKS", "EnterSurgery", "EnterSurgeryParams"]

_WHEN = ("occurrenceDateTime", "occurrencePeriod")


class EnterSurgeryParams(Params):
    """Values of task 05.

    Attributes:
        person: Whose surgery.
        namesake: Another patient of the same name.
        what: The operation.
        day: Its date.
        decoys: Orders on file: the same operation of the patient, revoked; the same one of the namesake; another
            operation of the patient on that day.
    """

    person: Person
    namesake: Person
    what: Concept
    day: str
    decoys: tuple[Plan, ...]


class EnterSurgery(Task[EnterSurgeryParams]):
    """Enter a surgery plan.

    Starting state: the patient.
    Decoys: a revoked order of the patient for the same operation on another day (to be written over); an active one
        of a namesake for the same day; an order of the patient for another operation.
    Checks: exactly one new ServiceRequest with that subject, code, display and day, status active and intent order,
        not one that forbids; the answer is its id.
    Light: a new ServiceRequest with status, intent, subject, code and occurrence.
    Differs from FHIR-AgentEval: the prompt gives code, code system, status and intent, where the code was checked
        but not told; a dateTime or Period of the same day is right too; intent, code system and answer count.
    """

    key = "05"
    title = "Enter a surgery plan"
    category = "Surgery & Test Orders"
    difficulty = 2
    kind = "action"
    required_tools = (("create",), ("read", "update"), ("search", "create"))
    required_resources = ("ServiceRequest",)
    prohibited_tools = ("delete",)
    prompts = (
        "Record a confirmed surgery plan for {patient} (Patient/{id}): {display}, SNOMED CT code {code}, on {day}.",
        "The surgeon has confirmed an operation. Please enter the plan.\n- Patient: {patient}, Patient/{id}\n"
        "- Operation: {display} (SNOMED CT {code})\n- Date: {day}",
        "Patient/{id} ({patient}) will be operated on {day}. The operation is confirmed: {display}, SNOMED CT code "
        "{code}. Enter the surgery plan.",
    )
    ending = (
        "A confirmed surgery plan is a ServiceRequest with status active and intent order, the patient as subject, the "
        "operation's code and its display in the system http://snomed.info/sct, and the date as occurrence. Create a "
        f"new one; reuse or change no record that is there. {ADD_NOTHING} "
        'Finish with FINISH(["<id>"]), where <id> is the id of the new ServiceRequest.'
    )
    answer = IdsAnswer(("ServiceRequest",))
    gold_steps = 2
    asked: ClassVar[Mapping[str, tuple[str, ...]]] = {"ServiceRequest": ("status", "intent", "code", "subject", *_WHEN)}
    harmless: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "ServiceRequest": {"category": [SURGICAL.concept], "priority": "routine", "doNotPerform": False}
    }

    def sample(self, rng: random.Random, world: World) -> EnterSurgeryParams:
        """Draw the patient, the operation and its day, and what is on file."""
        ids = Ids(rng, world, 5)
        person = new_person(rng, world, ids.new())
        other = namesake(rng, person, ids.new())
        what = rng.choice(OPERATIONS)
        day = world.now.date() + timedelta(days=rng.randrange(3, 200))
        revoked_day = day - timedelta(days=rng.choice((-7, 7, 14, 28)))

        def on_file(who: Person, what: Concept, status: str, when: date) -> Plan:
            return Plan(
                id=ids.new(), patient=who.id, category=SURGICAL, what=what, status=status, when=when.isoformat()
            )

        decoys = (
            on_file(person, what, "revoked", revoked_day),
            on_file(other, what, "active", day),
            on_file(person, another(rng, what), "active", day + timedelta(days=rng.randrange(1, 60))),
        )
        return EnterSurgeryParams(person=person, namesake=other, what=what, day=day.isoformat(), decoys=decoys)

    def setup(self, p: EnterSurgeryParams, world: World) -> list[Resource]:
        """Both patients, what is on file."""
        return [patient(p.person), patient(p.namesake), *map(plan_request, p.decoys)]

    def words(self, p: EnterSurgeryParams, world: World) -> dict[str, str]:
        """Patient, operation, day."""
        return {
            "patient": p.person.name,
            "id": p.person.id,
            "display": p.what.display,
            "code": p.what.code,
            "day": p.day,
        }

    def gold(self, p: EnterSurgeryParams, fhir: Fhir) -> Gold:
        """Create, answer the id."""
        body = {
            "resourceType": "ServiceRequest",
            "status": "active",
            "intent": "order",
            "code": p.what.concept,
            "subject": reference("Patient", p.person.id),
            "occurrenceDateTime": p.day,
        }
        made = yield Post("/ServiceRequest", body)
        yield Finish([made["id"]])

    def near_misses(self, p: EnterSurgeryParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """The opposite order, other times, or written over what is there."""
        create, finish = gold
        body = json.loads(create.body or "")
        timeless = {name: value for name, value in body.items() if name != "occurrenceDateTime"}
        next_day = (date.fromisoformat(p.day) + timedelta(days=1)).isoformat()
        bodies = {
            "an order not to operate": {**body, "doNotPerform": True},
            "two operations in one code": {**body, "code": {"coding": [p.what.coding, p.decoys[-1].what.coding]}},
            "the month only": {**body, "occurrenceDateTime": p.day[:7]},
            "a period without end": {**timeless, "occurrencePeriod": {"start": p.day}},
            "a period of two days": {**timeless, "occurrencePeriod": {"start": p.day, "end": next_day}},
        }
        for name, wrong in bodies.items():
            yield name, [Post("/ServiceRequest", wrong), finish]
        for decoy in p.decoys:
            over = Put(f"/ServiceRequest/{decoy.id}", {**body, "id": decoy.id})
            yield f"written over ServiceRequest/{decoy.id}", [over, Finish([decoy.id])]
            yield f"created, but answers {decoy.id}", [create, Finish([decoy.id])]

    def equivalents(self, p: EnterSurgeryParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """The day said in other ways; the display as text."""
        body = json.loads(gold[0].body or "")
        timeless = {name: value for name, value in body.items() if name != "occurrenceDateTime"}
        bare = {"system": p.what.system, "code": p.what.code}
        before = (date.fromisoformat(p.day) - timedelta(days=1)).isoformat()
        start, end = f"{p.day}T08:00:00Z", f"{p.day}T11:30:00Z"
        bodies = {
            "an instant of the day": {**body, "occurrenceDateTime": start},
            "an instant of the day, in another zone": {**body, "occurrenceDateTime": f"{p.day}T10:00:00+02:00"},
            "an instant whose local day is another": {**body, "occurrenceDateTime": f"{before}T20:00:00-05:00"},
            "a period of the day": {**timeless, "occurrencePeriod": {"start": start, "end": end}},
            "the day as period": {**timeless, "occurrencePeriod": {"start": p.day, "end": p.day}},
            "display as text": {**body, "code": {"text": p.what.display, "coding": [bare]}},
        }
        id = "chosen-by-hand"
        for name, other in bodies.items():
            yield name, [Put(f"/ServiceRequest/{id}", {**other, "id": id}), Finish([id])]

    def touches(self, p: EnterSurgeryParams) -> tuple[Touch, ...]:
        """One new ServiceRequest."""
        return (Touch("created", "ServiceRequest"),)

    def checks(self, p: EnterSurgeryParams, end: EndState) -> Iterator[Check]:
        """Every datum of the ask, on the new order."""
        (answer,) = end.answer_ids("ServiceRequest")
        found = new_resource(end, "ServiceRequest", answer)
        yield is_new(end, "ServiceRequest")
        when = {name: found[name] for name in _WHEN if name in found}
        for name, there in {**{name: name in found for name in ("subject", "code")}, "occurrence": bool(when)}.items():
            yield Check(name=f"has {name}", passed=not found or there, level="exists")
        yield equal("status", found.get("status"), "active")
        yield equal("intent", found.get("intent"), "order")
        yield equal("subject", end.refers(found.get("subject")), f"Patient/{p.person.id}")
        yield from concept_checks("operation", found.get("code"), p.what)
        yield Check(name="day", passed=on_day(found, p.day), expected=p.day, actual=when)
        yield equal("answer", answer, found.get("id", "the id of the new order"))


TASKS = (EnterSurgery,)
