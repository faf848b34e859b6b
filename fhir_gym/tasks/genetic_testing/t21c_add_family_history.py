"""Task 21c: record a family history and add it to a genetic test order."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from fhir_gym.actions import Action, Finish, Post, Put
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Ids as IdsAnswer
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.genetic_testing.attach import DEFINITIONS as ORDER_DEFINITIONS
from fhir_gym.tasks.genetic_testing.family import (
    ASKED,
    DEFINITIONS,
    UNASKED,
    FamilyHistory,
    draw_histories,
    history_body,
    history_checks,
    history_spellings,
    history_words,
    recorded_history,
    wrong_histories,
)
from fhir_gym.tasks.genetic_testing.orders import (
    Case,
    attaching,
    attachment_checks,
    case_words,
    draw_case,
    find_order,
    find_patient,
    on_file,
    order_request,
)
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.outcomes import new_resource
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.task import Fhir, Gold, Task, Touch
from fhir_gym.types import Json, Resource

__all__ = ["TASKS", "AddFamilyHistory", "AddFamilyHistoryParams"]


class AddFamilyHistoryParams(Params):
    """Values of task 21c.

    Attributes:
        case: The patient and the orders.
        history: What the relative had; its `id` is not used.
        decoys: Records on file that are easily mistaken for it.
    """

    case: Case
    history: FamilyHistory
    decoys: tuple[FamilyHistory, ...]


class AddFamilyHistory(Task[AddFamilyHistoryParams]):
    """Record what a relative had, and attach that to a patient's genetic test order.

    Starting state: the patient with a draft order of the test, which may refer to a condition.
    Decoys: a namesake with the same family history and a draft order of the same test (a search by name); records of
        the patient for another relative and for another condition of this one (attached instead of a new one); an
        order of the patient for the same test in another status, and a draft for another test.
    Checks: as 22 for the new FamilyMemberHistory; the order's supporting information is what it was and that record,
        each once; the rest of the order is unchanged; the answer is the order's id.
    Light: a new FamilyMemberHistory with a relationship and a condition; the order was updated and has supporting
        information.
    Differs from FHIR-AgentEval: as 22; other fields and entries of the order must be kept; several orders and patients.
    """

    key = "21c"
    title = "Add family history to an order"
    category = "Surgery & Test Orders"
    difficulty = 3
    kind = "action"
    required_tools = (("search", "create", "search", "update"),)
    required_resources = ("Patient", "FamilyMemberHistory", "ServiceRequest")
    prohibited_tools = ("delete",)
    prompts = (
        "The {relation} of {patient} (given name {given}, family name {family}, born {birth_date}) had {illness}, "
        "first at age {age}. Record this family history and attach it to the patient's genetic test order: {display}, "
        "code {code}.",
        "A family history is missing from the genetic test order of {display} (code {code}) for the patient with "
        "family name {family}, given name {given} and date of birth {birth_date}. Please record it and attach it.\n"
        "- Relative: {relation}\n- Condition: {illness}\n- Age at onset: {age} years",
        "{patient}, born {birth_date} (family name {family}, given name {given}), reports {illness} in the family: the "
        "{relation} was {age} years old when it began. Enter that, and add it as supporting information to the "
        "patient's order of the genetic test {code} ({display}).",
    )
    ending = f'{DEFINITIONS} {ORDER_DEFINITIONS} Finish with FINISH(["<id>"]), where <id> is the id of the order.'
    answer = IdsAnswer(("ServiceRequest",))
    gold_steps = 5
    unasked = UNASKED
    asked: ClassVar[Mapping[str, tuple[str, ...]]] = {"FamilyMemberHistory": ASKED}
    harmless: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "FamilyMemberHistory": {"note": [{"text": "Reported by the patient"}]}
    }

    def sample(self, rng: random.Random, world: World) -> AddFamilyHistoryParams:
        """Draw the case and the histories."""
        ids = Ids(rng, world, 13)
        case = draw_case(rng, world, ids)
        history, decoys = draw_histories(rng, world, ids, case.person, case.namesake)
        return AddFamilyHistoryParams(case=case, history=history, decoys=decoys)

    def setup(self, p: AddFamilyHistoryParams, world: World) -> list[Resource]:
        """The case, the histories on file."""
        return [*on_file(p.case), *map(recorded_history, p.decoys)]

    def words(self, p: AddFamilyHistoryParams, world: World) -> dict[str, str]:
        """Patient, test, relative, condition, age."""
        return {**case_words(p.case), **history_words(p.history)}

    def gold(self, p: AddFamilyHistoryParams, fhir: Fhir) -> Gold:
        """Find the patient, record the history, find the order, attach."""
        patient_id = yield from find_patient(p.case.person)
        made = yield Post("/FamilyMemberHistory", history_body(p.history, patient_id))
        order = yield from find_order(patient_id, p.case.order.test)
        yield attaching(order, [f"FamilyMemberHistory/{made['id']}"])
        yield Finish([order["id"]])

    def near_misses(self, p: AddFamilyHistoryParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Something else said, or a record on file attached, or another order."""
        _, create, _, attach, finish = gold
        body, order = json.loads(create.body or ""), order_request(p.case.order)
        new = json.loads(attach.body or "")["supportingInfo"][-1]["reference"]
        for name, wrong in wrong_histories(p.history, body):
            yield name, [Post("/FamilyMemberHistory", wrong), attach, finish]
        for decoy in p.decoys:
            old = f"FamilyMemberHistory/{decoy.id}"
            yield f"attaches {old} instead", [create, attaching(order, [old]), finish]
            yield f"attaches {old} too", [create, attaching(order, [new, old]), finish]
            yield f"writes over {old}", [Put(f"/{old}", {**body, "id": decoy.id}), attaching(order, [old]), finish]
        doubled = attaching({**order, "supportingInfo": [{"reference": new}] * 2}, p.case.order.attached)
        yield "attaches it twice", [create, doubled, finish]
        for other in p.case.others:
            changed = attaching(order_request(other), [new])
            for answer in (other.id, p.case.order.id):
                yield f"attaches to {other.id}, answers {answer}", [create, changed, Finish([answer])]

    def equivalents(self, p: AddFamilyHistoryParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """The same said in other ways."""
        body, id = json.loads(gold[1].body or ""), "chosen-by-hand"
        attach = attaching(order_request(p.case.order), [f"FamilyMemberHistory/{id}"])
        for name, other in history_spellings(p.history, body):
            yield name, [Put(f"/FamilyMemberHistory/{id}", {**other, "id": id}), attach, gold[-1]]

    def touches(self, p: AddFamilyHistoryParams) -> tuple[Touch, ...]:
        """One new FamilyMemberHistory, the order."""
        return (Touch("created", "FamilyMemberHistory"), Touch("updated", "ServiceRequest", p.case.order.id))

    def rests_on(self, p: AddFamilyHistoryParams) -> tuple[str, ...]:
        """The patient and the order."""
        return (f"Patient/{p.case.person.id}", f"ServiceRequest/{p.case.order.id}")

    def checks(self, p: AddFamilyHistoryParams, end: EndState) -> Iterator[Check]:
        """Every datum of the ask, on the new history; the order; the answer."""
        found = new_resource(end, "FamilyMemberHistory")
        yield from history_checks(end, p.history, found)
        wanted = f"FamilyMemberHistory/{found.get('id', '(the new one)')}"
        yield from attachment_checks(end, p.case.order, [wanted])
        (answer,) = end.answer_ids("ServiceRequest")
        yield equal("answer", answer, p.case.order.id)


TASKS = (AddFamilyHistory,)
