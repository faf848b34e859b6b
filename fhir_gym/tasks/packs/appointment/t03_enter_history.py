"""Task 03: enter medical history."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Post
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, FinishedEpisode, equal
from fhir_gym.tasks.authoring import Concept, IdAllocator, codes_of, concept_checks, reference
from fhir_gym.tasks.grading import ADD_NOTHING, IdAnswer
from fhir_gym.tasks.packs.appointment.history import (
    CLINICAL_STATUS,
    ENTERED_IN_ERROR,
    VERIFICATION_STATUS,
    HistoryScene,
    Problem,
    draw_conditions,
    draw_problem,
)
from fhir_gym.tasks.packs.appointment.patient_scenes import SIX, draw_namesakes
from fhir_gym.tasks.packs.appointment.patient_tasks import CreateTask, PatientCandidate, PatientParams, element_checks
from fhir_gym.types import Json, Resource

_STATUSES = ("active", "active", "inactive", "resolved")
_FEWEST = 4
_MAX_DAYS_AGO = 1_700


class EnterHistoryParams(PatientParams):
    """Parameters of task 03.

    Attributes:
        scene: Patients and their conditions.
        what: Code of the condition to enter.
        clinical: Clinical status of the condition to enter.
    """

    scene: HistoryScene
    what: Concept
    clinical: str

    @property
    def decoys(self) -> list[Problem]:
        """The patient's conditions on file, and the namesakes' records of the condition to enter."""
        return self.scene.confusable(self.scene.problems, self.patient, self.what)


class MissingCondition(PatientCandidate):
    """A patient who does not have a condition.

    Attributes:
        what: Code of the condition.
    """

    what: Concept


class EnterHistory(CreateTask[EnterHistoryParams, HistoryScene, MissingCondition]):
    """Enter medical history.

    Starting state: six patients with the same name or one of two names. Each has two or three of the same three
        conditions; one record of each patient was entered in error. The prompt asks for a condition that a namesake
        really has; the patient's only record of this condition was entered in error.
    Decoys: the patient's erroneous record, which a careless agent overwrites; the namesake's record of the same
        condition; the patient's other conditions.
    Checks: the agent created exactly one Condition for the patient with the right code, display and clinical status,
        and the Condition is neither refuted nor entered in error; the answer is its id.
    Light: the agent created a Condition with a subject, a clinical status and a code.
    Differs from FHIR-AgentEval: the prompt states the clinical status, which the original checked but did not ask for.
        The code may be in any coding, not only in the first, and there may be other codings. The answer is checked.
    """

    key = "03"
    title = "Enter medical history"
    category = "Patient Records"
    difficulty = 2
    required_tools = (("create",), ("read", "update"), ("search", "update"))
    required_resources = ("Condition",)
    creates = "Condition"
    called = "condition"
    prompts = (
        "Please add this condition to the medical history of {patient} (Patient/{id}): {display}, SNOMED CT code "
        "{code}, clinical status {clinical}.",
        "At intake, {patient} reported a condition that is missing from their record, Patient/{id}. Please record it.\n"
        "- Condition: {display}\n- SNOMED CT code: {code}\n- Clinical status: {clinical}",
        "Please enter a condition in the medical history of Patient/{id} ({patient}): {display} (SNOMED CT code "
        "{code}). Its clinical status is {clinical}.",
    )
    brief = (
        "Please add a condition to the medical history of {patient} (Patient/{id}): {display} (SNOMED CT {code}), "
        'clinical status {clinical}. Finish with FINISH(["<condition id>"]).'
    )
    answer_instructions = (
        "Create one new Condition with the patient as its subject, the code and its display in the system "
        f"http://snomed.info/sct, and the clinical status in the system {CLINICAL_STATUS}. Do not reuse or change an "
        f'existing record. {ADD_NOTHING} Finish with FINISH(["<id>"]), where <id> is the id of the new condition.'
    )
    answer = IdAnswer(("Condition",))
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {"Condition": ("clinicalStatus", "code", "subject")}
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "Condition": {
            "verificationStatus": {"coding": [{"system": VERIFICATION_STATUS, "code": "confirmed"}]},
            "note": [{"text": "Reported by the patient"}],
        }
    }

    @override
    def draw_scene(self, rng: random.Random, world: World) -> HistoryScene:
        ids = IdAllocator(rng, world)
        people = draw_namesakes(rng, world, ids, rng.choice(SIX))
        common, problems = draw_conditions(rng, 3), []
        for person in people:
            mistaken, *others = rng.sample(common, rng.choice((2, 3)))
            days = rng.sample(range(1, _MAX_DAYS_AGO), 1 + len(others))
            problems.append(draw_problem(rng, world, ids, person.id, mistaken, days[0], "active", ENTERED_IN_ERROR))
            for what, ago in zip(others, days[1:], strict=True):
                problems.append(draw_problem(rng, world, ids, person.id, what, ago, rng.choice(_STATUSES)))
        return HistoryScene(patients=people, problems=tuple(problems))

    @override
    def candidates(self, scene: HistoryScene) -> dict[str, list[MissingCondition]]:
        names = {person.id: person.name for person in scene.patients}
        had = {(names[problem.patient], problem.what.code) for problem in scene.problems if not problem.mistaken}
        missing = [
            MissingCondition(patient=problem.patient, what=problem.what)
            for problem in scene.problems
            if problem.mistaken and (names[problem.patient], problem.what.code) in had
        ]
        return {"": missing} if len(missing) >= _FEWEST else {}

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: HistoryScene, chosen: MissingCondition
    ) -> EnterHistoryParams:
        patient = scene.patient(chosen.patient)
        return EnterHistoryParams(scene=scene, patient=patient, what=chosen.what, clinical=rng.choice(_STATUSES))

    @override
    def prompt_values(self, p: EnterHistoryParams, world: World) -> dict[str, str]:
        condition = {"display": p.what.display, "code": p.what.code, "clinical": p.clinical}
        return {**super().prompt_values(p, world), **condition}

    @override
    def new_record(self, p: EnterHistoryParams) -> Resource:
        return {
            "resourceType": "Condition",
            "clinicalStatus": {"coding": [{"system": CLINICAL_STATUS, "code": p.clinical}]},
            "code": p.what.concept,
            "subject": reference("Patient", p.patient.id),
        }

    @override
    def near_misses(self, p: EnterHistoryParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        body, finish = self.new_record(p), gold[-1]
        for status in ("entered-in-error", "refuted"):
            denied = {"coding": [{"system": VERIFICATION_STATUS, "code": status}]}
            yield f"{status}", [Post("/Condition", {**body, "verificationStatus": denied}), finish]
        other = next(decoy.what for decoy in p.decoys if decoy.what != p.what)
        both = {"coding": [p.what.coding, other.coding]}
        yield "two conditions in one code", [Post("/Condition", {**body, "code": both}), finish]
        yield from self.decoy_misses(p, gold, (decoy.id for decoy in p.decoys))

    @override
    def equivalents(self, p: EnterHistoryParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        bare = {"system": p.what.system, "code": p.what.code}
        codes: dict[str, Json] = {
            "display as text, in capitals": {"coding": [bare], "text": p.what.display.upper()},
            "a local code first": {"coding": [{"system": "urn:local", "code": "H1"}, p.what.coding]},
        }
        return self.put_bodies({name: {**self.new_record(p), "code": code} for name, code in codes.items()})

    @override
    def record_checks(self, p: EnterHistoryParams, record: Resource, end: FinishedEpisode) -> Iterator[Check]:
        yield from element_checks(record, ("subject", "clinicalStatus", "code"), "has")
        yield equal("subject", end.refers(record.get("subject")), f"Patient/{p.patient.id}")
        yield from concept_checks("condition", record.get("code"), p.what)
        yield equal("clinical status", codes_of(record.get("clinicalStatus"), CLINICAL_STATUS), [p.clinical])


TASKS = (EnterHistory,)
