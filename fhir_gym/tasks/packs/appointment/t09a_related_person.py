"""Task 09a: create a related person."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Patch, Post
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, FinishedEpisode, equal
from fhir_gym.tasks.authoring import IdAllocator, reference
from fhir_gym.tasks.grading import ADD_NOTHING, IdAnswer, same_moment
from fhir_gym.tasks.packs.appointment.patient_scenes import (
    FIVE_TO_SEVEN,
    BillingScene,
    draw_namesakes,
    draw_similar_relatives,
)
from fhir_gym.tasks.packs.appointment.patient_tasks import CreateTask, PatientCandidate, PatientParams, element_checks
from fhir_gym.tasks.packs.appointment.relatives import (
    ONLY_ONE,
    ROLES,
    Relative,
    related_person,
    relation_concept,
    relation_spellings,
    relative_checks,
)
from fhir_gym.types import Json, Resource


class CreateRelatedPersonParams(PatientParams):
    """Parameters of task 09a.

    Attributes:
        scene: Patients and their relatives.
        relative: The relative to enter; the task does not use the id of the relative.
    """

    scene: BillingScene
    relative: Relative


class MissingRelative(PatientCandidate):
    """A patient for whom the prompt could ask to enter a relative.

    Attributes:
        relatives: Relatives of namesakes; the prompt gives the patient a relative with the details of one of them.
    """

    relatives: tuple[Relative, ...]


class CreateRelatedPerson(CreateTask[CreateRelatedPersonParams, BillingScene, MissingRelative]):
    """Enter a relative of a patient.

    Starting state: five to seven patients with the same name or one of two names. Their relatives share given names and
        birth dates.
    Decoys: a namesake has a relative with the same name, birth date and relation. The patient has a relative with the
        same name and another birth date, and a relative with the same birth date and another name. A careless agent
        reuses one of these relatives.
    Checks: the agent created one RelatedPerson of the patient with the right name, birth date and relationship. The
        relationship may be given in words, or as the right code of v3-RoleCode or a narrower code. The answer is the id
        of the RelatedPerson.
    Light: the agent created a RelatedPerson with a patient, a birth date and a name.
    Differs from FHIR-AgentEval: the relationship is checked; the original did not check it and did not always ask for
        it. The prompt does not ask for a gender, so any gender is accepted. The answer must be the new id.
    """

    key = "09a"
    title = "Create a related person"
    category = "Insurance & Billing"
    difficulty = 1
    required_tools = (("create",), ("search", "create"), ("search", "update"), ("read", "update"), ("read", "create"))
    required_resources = ("RelatedPerson",)
    creates = "RelatedPerson"
    called = "related person"
    prompts = (
        "Please add a related person for {patient} (Patient/{id}): the patient's {relation}, given name {given}, "
        "family name {family}, born {birth_date}. This person is not on file yet.",
        "Please create a related person for Patient/{id}, {patient}.\n- Relationship to the patient: {relation}\n"
        "- Family name: {family}\n- Given name: {given}\n- Date of birth: {birth_date}\nDo not reuse an existing "
        "record: similar ones belong to other people.",
        "{given} {family} (given name {given}, family name {family}), born {birth_date}, is the {relation} of the "
        "patient {patient}, Patient/{id}, and has no record yet. Please enter this person as a related person of the "
        "patient.",
    )
    brief = (
        "Please add the {relation} of {patient} (Patient/{id}) as a new related person: {given} {family}, born "
        '{birth_date}. Finish with FINISH(["<related person id>"]).'
    )
    answer_instructions = (
        f"Create exactly one RelatedPerson, with the relationship as a code from {ROLES} or as text. "
        f'{ADD_NOTHING} Finish with FINISH(["<id>"]), where <id> is the id of the new RelatedPerson.'
    )
    answer = IdAnswer(("RelatedPerson",))
    fewest = 4
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "RelatedPerson": ("patient", "relationship", "name", "birthDate")
    }
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "RelatedPerson": {"active": True, "gender": "other", "language": "en"}
    }

    @override
    def draw_scene(self, rng: random.Random, world: World) -> BillingScene:
        ids = IdAllocator(rng, world)
        people = draw_namesakes(rng, world, ids, rng.choice(FIVE_TO_SEVEN))
        return BillingScene(patients=people, relatives=draw_similar_relatives(rng, world.now.date(), ids, people))

    @override
    def candidates(self, scene: BillingScene) -> dict[str, list[MissingRelative]]:
        missing = []
        for person in scene.patients:
            own = scene.relatives_of(person.id)
            relatives = {(relative.person.given, relative.person.birth_date) for relative in own}
            givens, births = {given for given, _ in relatives}, {birth for _, birth in relatives}
            taken = {relative.relation for relative in own if relative.relation in ONLY_ONE}
            # The patient has one relative with the same given name and another relative with the same birth date.
            lacking = tuple(
                relative
                for namesake in scene.namesakes(person)
                for relative in scene.relatives_of(namesake)
                if (relative.person.given, relative.person.birth_date) not in relatives
                and relative.person.given in givens
                and relative.person.birth_date in births
                and relative.relation not in taken
            )
            if lacking:
                missing.append(MissingRelative(patient=person.id, relatives=lacking))
        return {"": missing}

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: BillingScene, chosen: MissingRelative
    ) -> CreateRelatedPersonParams:
        relative = rng.choice(chosen.relatives).model_copy(update={"patient": chosen.patient})
        return CreateRelatedPersonParams(scene=scene, patient=scene.patient(chosen.patient), relative=relative)

    @override
    def prompt_values(self, p: CreateRelatedPersonParams, world: World) -> dict[str, str]:
        relative = p.relative.person.model_dump(include={"given", "family", "birth_date"})
        return {**super().prompt_values(p, world), **relative, "relation": p.relative.relation}

    @override
    def new_record(self, p: CreateRelatedPersonParams) -> Resource:
        person = p.relative.person
        return {
            "resourceType": "RelatedPerson",
            "patient": reference("Patient", p.patient.id),
            "relationship": [relation_concept(p.relative.relation)],
            "name": [{"family": person.family, "given": [person.given]}],
            "birthDate": person.birth_date,
        }

    @override
    def near_misses(
        self, p: CreateRelatedPersonParams, gold: Sequence[Action]
    ) -> Iterator[tuple[str, Sequence[Action]]]:
        decoys = list(_similar(p))
        yield from self.decoy_misses(p, gold, decoys)
        for id in decoys:
            born = [{"op": "replace", "path": "/birthDate", "value": p.relative.person.birth_date}]
            yield f"gives RelatedPerson/{id} the birth date", [Patch(f"/RelatedPerson/{id}", born), Finish([id])]
        for wrong in ({"text": "relative"}, {"coding": [{"system": "http://example.org/roles", "code": "x"}]}):
            body = {**self.new_record(p), "relationship": [wrong]}
            yield f"relationship {wrong}", [Post("/RelatedPerson", body), gold[-1]]

    @override
    def equivalents(
        self, p: CreateRelatedPersonParams, gold: Sequence[Action]
    ) -> Iterator[tuple[str, Sequence[Action]]]:
        for name, spelling in relation_spellings(p.relative.relation):
            body = {**self.new_record(p), "relationship": spelling}
            yield f"relationship {name}", [Post("/RelatedPerson", body), gold[-1]]
        full = {name: value for name, value in related_person(p.relative).items() if name != "id"}
        yield "with phone, address and gender", [Post("/RelatedPerson", full), gold[-1]]

    @override
    def record_checks(self, p: CreateRelatedPersonParams, record: Resource, end: FinishedEpisode) -> Iterator[Check]:
        yield from element_checks(record, ("patient", "birthDate", "name"), "it has")
        yield equal("patient", end.refers(record.get("patient")), f"Patient/{p.patient.id}")
        yield from relative_checks(p.relative, record)
        born, expected = record.get("birthDate"), p.relative.person.birth_date
        yield Check(name="birth date", passed=same_moment(born, expected), expected=expected, actual=born)


def _similar(p: CreateRelatedPersonParams) -> Iterator[str]:
    """Yield the ids of the relatives on file who differ from the relative to enter in only one detail."""
    namesakes, person = p.scene.namesakes(p.patient), p.relative.person
    for relative in p.scene.relatives:
        shared = (relative.person.given == person.given) + (relative.person.birth_date == person.birth_date)
        if (relative.patient == p.patient.id and shared == 1) or (relative.patient in namesakes and shared == 2):
            yield relative.person.id


TASKS = (CreateRelatedPerson,)
