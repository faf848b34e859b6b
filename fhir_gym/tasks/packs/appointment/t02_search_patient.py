"""Tasks 02a and 02b: look up a person who is on file (02a) or not (02b), with the same prompts and scenes."""

from __future__ import annotations

import random
from functools import partial

from typing_extensions import override

from fhir_gym.actions import Finish, Get
from fhir_gym.fhir import World
from fhir_gym.tasks import Gold
from fhir_gym.tasks.authoring import (
    IdAllocator,
    PersonCandidate,
    absent_combinations,
    draw_lineup,
    entries,
    has_name,
    patient_resource,
    person_called,
    person_candidates,
)
from fhir_gym.tasks.grading import IdAnswer
from fhir_gym.tasks.packs.appointment.patient_scenes import PatientScene
from fhir_gym.tasks.packs.appointment.patient_tasks import ABSENT, PRESENT, LookupTask, PatientParams
from fhir_gym.types import Resource

_FEWEST = 5


class SearchPatientParams(PatientParams):
    """Parameters of tasks 02a and 02b.

    Attributes:
        scene: Patients on file, who have similar names and birth dates.
    """

    scene: PatientScene


class _SearchPatient(LookupTask[SearchPatientParams, PatientScene, PersonCandidate]):
    category = "Patient Records"
    required_resources = ("Patient",)
    prompts = (
        "Is {given} {family} (given name {given}, family name {family}), born {birth_date}, on file as a patient? Both "
        "names and the date of birth must match exactly; other patients have similar details.",
        "Please find the patient record for family name {family}, given name {given}, date of birth {birth_date}. A "
        "record that differs in any of the three belongs to somebody else.",
        'A caller says: "My family name is {family}, my given name is {given}, and I was born on {birth_date}." Please '
        "check whether exactly this person is already on file as a patient.",
    )
    brief = (
        "Is a patient {given} {family}, born {birth_date}, on file with exactly these details? Finish with "
        'FINISH(["<patient id>"]), or with FINISH([]) if not.'
    )
    answer_instructions = (
        'Finish with FINISH(["<id>"]), where <id> is the id of that patient, or with FINISH([]) if there is no such '
        "patient. Do not change any records."
    )
    answer = IdAnswer(("Patient",), or_empty=True)

    @override
    def draw_scene(self, rng: random.Random, world: World) -> PatientScene:
        ids = IdAllocator(rng, world)
        return PatientScene(patients=draw_lineup(rng, world, partial(ids.new, "Patient")))

    @override
    def candidates(self, scene: PatientScene) -> dict[str, list[PersonCandidate]]:
        on_file = person_candidates(scene.patients)
        absent = [PersonCandidate(*cell) for cell in absent_combinations(scene.patients)]
        # Both tasks accept the same scenes, so the scene does not reveal whether the person is on file.
        return {PRESENT: on_file, ABSENT: absent} if len(on_file) >= _FEWEST and absent else {}

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: PatientScene, chosen: PersonCandidate
    ) -> SearchPatientParams:
        if chosen.id:
            return SearchPatientParams(scene=scene, patient=scene.patient(chosen.id))
        patient_ids = {person.id for person in scene.patients}
        ids = IdAllocator(rng, world)
        id = next(id for id in iter(partial(ids.new, "Patient"), "") if id not in patient_ids)
        gender = scene.patients[0].gender
        person = person_called(rng, id, chosen.given, chosen.family, gender, chosen.birth_date)
        return SearchPatientParams(scene=scene, patient=person)

    @override
    def prompt_values(self, p: SearchPatientParams, world: World) -> dict[str, str]:
        return p.patient.model_dump(include={"given", "family", "birth_date"})

    @override
    def gold(self, p: SearchPatientParams) -> Gold:
        person = p.patient
        query = {"family": person.family, "given": person.given, "birthdate": person.birth_date}
        bundle = yield Get("/Patient", query)
        # A search by name also finds longer names.
        yield Finish([record["id"] for record in entries(bundle) if has_name(record, person.given, person.family)])

    @override
    def record(self, p: SearchPatientParams) -> Resource:
        return patient_resource(p.patient)


class SearchExistingPatient(_SearchPatient):
    """Look up a patient who is on file.

    Starting state: 13 patients who share two given names, two family names and several birth dates. The prompt asks
        about one of the five patients who can be identified only by all three details together.
    Decoys: the other patients. In many variations one family name is a double name that starts with the other, so that
        a search by family name finds both.
    Checks: the answer is the patient's id.
    Light: none.
    Differs from FHIR-AgentEval: ids are random instead of constant, there are decoys, and the answer for a person who
        is not on file has an exact form. Both ``Patient/12`` and ``12`` are accepted.
    """

    key = "02a"
    title = "Search an existing patient"
    strata = (PRESENT,)


class SearchNonexistentPatient(_SearchPatient):
    """Look up a person who is not on file.

    Starting state: patients as in 02a. For any two of the person's given name, family name and birth date, one of the
        patients matches these two.
    Decoys: all patients; a careless agent answers with the id of one of them.
    Checks: the answer is ``[]``, and the agent made a request that would return the person's record if it existed.
    Light: none.
    Differs from FHIR-AgentEval: an answer without a look-up fails; the original accepted the sentence from the prompt.
    """

    key = "02b"
    title = "Search a nonexistent patient"
    strata = (ABSENT,)


TASKS = (SearchExistingPatient, SearchNonexistentPatient)
