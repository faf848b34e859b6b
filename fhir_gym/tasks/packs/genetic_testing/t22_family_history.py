"""Task 22: add a family member's condition to a patient's family history."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, ExpectedChange, FinishedEpisode, Gold, equal
from fhir_gym.tasks.authoring import IdAllocator, PersonCandidate, find_patient, new_resource, person_candidates
from fhir_gym.tasks.grading import IdAnswer
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
from fhir_gym.tasks.packs.genetic_testing.order_task import GeneticTask, OrderPatientParams
from fhir_gym.tasks.packs.genetic_testing.orders import patient_prompt_values
from fhir_gym.tasks.packs.genetic_testing.scenes import GeneticScene, draw_patients

_NUMBERS = (0, 1, 1, 2)
"""Numbers of family histories of a patient to choose from."""
_STATUSES = ("completed", "completed", "partial", "entered-in-error")


class AddFamilyMemberParams(OrderPatientParams):
    """Parameters of task 22.

    Attributes:
        history: The family history to record; its `id` is empty.
    """

    history: FamilyHistory


class AddFamilyMember(RecordsFamilyHistory, GeneticTask[AddFamilyMemberParams, PersonCandidate]):
    """Add a family member's condition to a patient's family history.

    Starting state: eight patients (all combinations of two given names, two family names and two dates of birth). Each
        has up to two family histories. The task chooses the patient at random.
    Decoys: the other patients. The patients have family histories with the same few conditions; a careless agent
        overwrites one of these histories.
    Checks: there is exactly one new, completed FamilyMemberHistory of the patient with the right relationship,
        condition and age at onset, and no other condition. The answer is its id.
    Light: there is a new FamilyMemberHistory with a relationship and a condition.
    Differs from FHIR-AgentEval: the prompt names the code system of the relationship. The checks also accept narrower
        codes (NMTH for MTH) and texts. The age may be an Age in years or a text; the original accepted digits in a
        note. All words of the condition's name must be present, in any order.
    """

    key = "22"
    title = "Add a family member history"
    category = "Patient Records"
    required_tools = (("search", "create"),)
    required_resources = ("Patient", "FamilyMemberHistory")
    prompts = (
        "Please add to the family history of {patient} (given name {given}, family name {family}, born {birth_date}): "
        "the patient's {relation} had {illness}, first at age {age}.",
        "The patient with family name {family}, given name {given} and date of birth {birth_date} tells us about a "
        "relative's condition. Please record this family history.\n"
        "- Relative: {relation}\n- Condition: {illness}\n- Age at onset: {age} years",
        "{patient} (family name {family}, given name {given}, born {birth_date}) reports a family history of "
        "{illness}: the patient's {relation} was {age} years old when it began. Please enter this family history.",
    )
    brief = (
        "Please record as a new, completed family history that the {relation} of {patient}, born {birth_date}, had "
        '{illness}, first at age {age}. Finish with FINISH(["<family member history id>"]).'
    )
    answer_instructions = (
        f'{HISTORY_INSTRUCTIONS} Finish with FINISH(["<id>"]), where <id> is the id of the new FamilyMemberHistory.'
    )
    answer = IdAnswer(("FamilyMemberHistory",))
    gold_steps = 3

    @override
    def draw_scene(self, rng: random.Random, world: World) -> GeneticScene:
        ids, today = IdAllocator(rng, world), world.now.date()
        people = draw_patients(rng, world, ids)
        illnesses = some_illnesses(rng)
        histories = [
            draw_history(rng, today, ids.new("FamilyMemberHistory"), person, illnesses, statuses=_STATUSES)
            for person in people
            for _ in range(rng.choice(_NUMBERS))
        ]
        return GeneticScene(people=people, histories=tuple(histories))

    @override
    def candidates(self, scene: GeneticScene) -> dict[str, list[PersonCandidate]]:
        return {"": person_candidates(scene.people)}

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: GeneticScene, chosen: PersonCandidate
    ) -> AddFamilyMemberParams:
        person = scene.person(chosen.id)
        history = draw_new_history(rng, world.now.date(), person, scene.histories_of(person.id))
        return AddFamilyMemberParams(scene=scene, person=person, history=history)

    @override
    def prompt_values(self, p: AddFamilyMemberParams, world: World) -> dict[str, str]:
        return {**patient_prompt_values(p.person), **history_prompt_values(p.history)}

    @override
    def gold(self, p: AddFamilyMemberParams) -> Gold:
        patient_id = yield from find_patient(p.person)
        history = yield Post("/FamilyMemberHistory", history_body(p.history, patient_id))
        yield Finish([history["id"]])

    @override
    def near_misses(self, p: AddFamilyMemberParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        *_, create, finish = gold
        body = json.loads(create.body or "")
        for name, wrong in wrong_histories(p.history, body):
            yield name, [Post("/FamilyMemberHistory", wrong), finish]
        for decoy in p.scene.histories:
            over = Put(f"/FamilyMemberHistory/{decoy.id}", {**body, "id": decoy.id})
            yield f"written over FamilyMemberHistory/{decoy.id}", [over, Finish([decoy.id])]
            yield f"created, but answers {decoy.id}", [create, Finish([decoy.id])]

    @override
    def equivalents(self, p: AddFamilyMemberParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        body, id = json.loads(gold[-2].body or ""), "chosen-by-hand"
        for name, other in history_spellings(p.history, body):
            yield name, [Put(f"/FamilyMemberHistory/{id}", {**other, "id": id}), Finish([id])]

    @override
    def expected_changes(self, p: AddFamilyMemberParams) -> tuple[ExpectedChange, ...]:
        return (ExpectedChange("created", "FamilyMemberHistory"),)

    @override
    def required_records(self, p: AddFamilyMemberParams) -> tuple[str, ...]:
        return (f"Patient/{p.person.id}",)

    @override
    def checks(self, p: AddFamilyMemberParams, end: FinishedEpisode) -> Iterator[Check]:
        (answer,) = end.answer_ids("FamilyMemberHistory")
        family_member_history = new_resource(end, "FamilyMemberHistory", answer)
        yield from history_checks(end, p.history, family_member_history)
        yield equal("answer", answer, family_member_history.get("id", "the id of the new history"))


TASKS = (AddFamilyMember,)
