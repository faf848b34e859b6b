"""Task 21c: record a family history and attach it to a genetic test order."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, ExpectedChange, FinishedEpisode, Gold, equal
from fhir_gym.tasks.authoring import IdAllocator, find_patient, new_resource
from fhir_gym.tasks.packs.genetic_testing.family import (
    HISTORY_INSTRUCTIONS,
    FamilyHistory,
    RecordsFamilyHistory,
    draw_history,
    draw_new_history,
    history_body,
    history_checks,
    history_prompt_values,
    history_spellings,
    some_illnesses,
    wrong_histories,
)
from fhir_gym.tasks.packs.genetic_testing.order_task import ORDER_INSTRUCTIONS, OrderParams, OrderTask
from fhir_gym.tasks.packs.genetic_testing.orders import (
    GeneticOrder,
    attach_references,
    attachment_checks,
    find_order,
    order_request,
)
from fhir_gym.tasks.packs.genetic_testing.scenes import GeneticScene, draw_orders, draw_scene_people

_NUMBERS = (1, 1, 2)
"""Numbers of family histories of a patient to choose from."""


class AddFamilyHistoryParams(OrderParams):
    """Parameters of task 21c.

    Attributes:
        history: The family history to record; its `id` is empty.
    """

    history: FamilyHistory

    @property
    def decoys(self) -> list[FamilyHistory]:
        """The family histories that the patient has on file."""
        return self.scene.histories_of(self.person.id)


class AddFamilyHistory(RecordsFamilyHistory, OrderTask[AddFamilyHistoryParams]):
    """Record a relative's condition, and attach the record to a patient's genetic test order.

    Starting state: patients and orders as in 21a. Each of the four patients with orders has one or two family
        histories, which may already be attached.
    Decoys: orders as in 21a. The patient also has family histories about other relatives or other conditions; a
        careless agent attaches one of these instead.
    Checks: the new FamilyMemberHistory meets the checks of task 22. The order's supporting information contains its old
        entries and the new record, each exactly once. The rest of the order is unchanged. The answer is the order's id.
    Light: there is a new FamilyMemberHistory with a relationship and a condition. The order was updated and has
        supporting information.
    Differs from FHIR-AgentEval: see task 22. In addition, the agent must keep the other elements and entries of the
        order, and there are several orders and patients.
    """

    key = "21c"
    title = "Add family history to an order"
    difficulty = 3
    required_tools = (("search", "create", "search", "update"),)
    required_resources = ("Patient", "FamilyMemberHistory", "ServiceRequest")
    prohibited_tools = ("delete",)
    prompts = (
        "The {relation} of {patient} (given name {given}, family name {family}, born {birth_date}) had {illness}, "
        "first at age {age}. Please record this family history and attach it to the patient's genetic test order for "
        "{display} (code {code}).",
        "A family history is missing from the order for {display} (code {code}) for the patient with family name "
        "{family}, given name {given} and date of birth {birth_date}. Please record it and attach it to the order.\n"
        "- Relative: {relation}\n- Condition: {illness}\n- Age at onset: {age} years",
        "{patient} (family name {family}, given name {given}, born {birth_date}) reports a family history of "
        "{illness}: the patient's {relation} was {age} years old when it began. Please record this and add it as "
        "supporting information to the patient's order for the genetic test {code} ({display}).",
    )
    brief = (
        "Please record as a new, completed family history that the {relation} of {patient}, born {birth_date}, had "
        "{illness}, first at age {age}, and add it to the supporting information of the patient's draft order for "
        '{display} (code {code}). Finish with FINISH(["<order id>"]).'
    )
    answer_instructions = (
        f'{HISTORY_INSTRUCTIONS} {ORDER_INSTRUCTIONS} Finish with FINISH(["<id>"]), where <id> is the id of the order.'
    )

    @override
    def draw_scene(self, rng: random.Random, world: World) -> GeneticScene:
        ids, today = IdAllocator(rng, world), world.now.date()
        people, doctor, pairs = draw_scene_people(rng, world, ids)
        illnesses = some_illnesses(rng)
        histories = tuple(
            draw_history(rng, today, ids.new("FamilyMemberHistory"), person, illnesses)
            for pair in pairs
            for person in pair
            for _ in range(rng.choice(_NUMBERS))
        )
        attachable: dict[str, list[str]] = {}
        for history in histories:
            attachable.setdefault(history.patient, []).append(history.reference)
        orders = draw_orders(rng, world, ids, pairs, doctor, attachable)
        return GeneticScene(people=people, doctors=(doctor,), orders=orders, histories=histories)

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: GeneticScene, chosen: GeneticOrder
    ) -> AddFamilyHistoryParams:
        person = scene.person(chosen.patient)
        history = draw_new_history(rng, world.now.date(), person, scene.histories_of(person.id))
        return AddFamilyHistoryParams(scene=scene, person=person, order=chosen, history=history)

    @override
    def prompt_values(self, p: AddFamilyHistoryParams, world: World) -> dict[str, str]:
        return {**super().prompt_values(p, world), **history_prompt_values(p.history)}

    @override
    def gold(self, p: AddFamilyHistoryParams) -> Gold:
        patient_id = yield from find_patient(p.person)
        history = yield Post("/FamilyMemberHistory", history_body(p.history, patient_id))
        order = yield from find_order(patient_id, p.order.test)
        yield attach_references(order, [f"FamilyMemberHistory/{history['id']}"])
        yield Finish([order["id"]])

    @override
    def near_misses(self, p: AddFamilyHistoryParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        _, create, _, attach, finish = gold
        body, order = json.loads(create.body or ""), order_request(p.order)
        new = json.loads(attach.body or "")["supportingInfo"][-1]["reference"]
        for name, wrong in wrong_histories(p.history, body):
            yield name, [Post("/FamilyMemberHistory", wrong), attach, finish]
        for decoy in p.decoys:
            old = decoy.reference
            yield f"attaches {old} instead", [create, attach_references(order, [old]), finish]
            if old not in p.order.attached:
                yield f"attaches {old} too", [create, attach_references(order, [new, old]), finish]
            yield (
                f"writes over {old}",
                [Put(f"/{old}", {**body, "id": decoy.id}), attach_references(order, [old]), finish],
            )
        doubled = attach_references({**order, "supportingInfo": [{"reference": new}] * 2}, p.order.attached)
        yield "attaches it twice", [create, doubled, finish]
        for other in p.others:
            changed = attach_references(order_request(other), [new])
            for answer in (other.id, p.order.id):
                yield f"attaches to {other.id}, answers {answer}", [create, changed, Finish([answer])]

    @override
    def equivalents(self, p: AddFamilyHistoryParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        body, id = json.loads(gold[1].body or ""), "chosen-by-hand"
        attach = attach_references(order_request(p.order), [f"FamilyMemberHistory/{id}"])
        for name, other in history_spellings(p.history, body):
            yield name, [Put(f"/FamilyMemberHistory/{id}", {**other, "id": id}), attach, gold[-1]]

    @override
    def expected_changes(self, p: AddFamilyHistoryParams) -> tuple[ExpectedChange, ...]:
        return (
            ExpectedChange("created", "FamilyMemberHistory"),
            ExpectedChange("updated", "ServiceRequest", p.order.id),
        )

    @override
    def required_records(self, p: AddFamilyHistoryParams) -> tuple[str, ...]:
        return (f"Patient/{p.person.id}", f"ServiceRequest/{p.order.id}")

    @override
    def checks(self, p: AddFamilyHistoryParams, end: FinishedEpisode) -> Iterator[Check]:
        family_member_history = new_resource(end, "FamilyMemberHistory")
        yield from history_checks(end, p.history, family_member_history)
        expected_reference = f"FamilyMemberHistory/{family_member_history.get('id', '(the new one)')}"
        yield from attachment_checks(end, p.order, [expected_reference])
        (answer,) = end.answer_ids("ServiceRequest")
        yield equal("answer", answer, p.order.id)


TASKS = (AddFamilyHistory,)
