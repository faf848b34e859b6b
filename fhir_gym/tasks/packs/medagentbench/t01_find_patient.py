"""Task 01: find the record number of a person, who may not be on file."""

from __future__ import annotations

import random
from collections.abc import Iterator

from typing_extensions import override

from fhir_gym.actions import Finish, Get
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, FinishedEpisode, Gold, SceneParams, SceneTask
from fhir_gym.tasks.authoring import (
    Person,
    PersonCandidate,
    absent_combinations,
    draw_lineup,
    entries,
    has_name,
    person_called,
    person_candidates,
)
from fhir_gym.tasks.packs.medagentbench.internist_task import READ_ONLY, ItemsAnswer, MrnAllocator, patient_with_mrn
from fhir_gym.types import Resource

_NOBODY = "Patient not found"
_FEWEST = 5
_ON_FILE, _ABSENT = "on file", "absent"


class FindPatientParams(SceneParams):
    """Parameters of task 01.

    Attributes:
        scene: Patients on file who are easily confused; empty if they are already in the world.
        person: The person to find; the person's id is the record number.
        mrn: The right answer; None if the person is not on file.
    """

    scene: tuple[Person, ...] = ()
    person: Person
    mrn: str | None


class FindPatient(SceneTask[FindPatientParams, tuple[Person, ...], PersonCandidate]):
    """Find the medical record number of a person by name and date of birth.

    Starting state: 13 people who share two given names, two family names and several dates of birth. In five of nine
        variations the person is on file and can be identified only by all three details together. In the other
        variations the person is not on file, but any two of the details match one of the 13 people.
    Decoys: the other people. In many variations one family name is a double name that starts with the other, so a
        search by family name finds both.
    Checks: the answer is the person's record number. If the person is not on file, the answer must say so, and the
        agent must have made a request that would return the person's record if it existed.
    Light: none.
    Differs from MedAgentBench: there are decoys, and an answer that nobody matches requires a search.
    """

    key = "01"
    title = "Record number of a patient"
    category = "Patient information retrieval"
    difficulty = 1
    kind = "query"
    required_tools = (("search",),)
    required_resources = ("Patient",)
    prohibited_tools = READ_ONLY
    prompts = (
        "What is the medical record number (MRN) of {given} {family}, born {birth_date}? The given name is {given} and "
        "the family name is {family}.",
        "Please look up a patient. Family name: {family}. Given name: {given}. Date of birth: {birth_date}. I need the "
        "medical record number (MRN).",
        "A caller gives the family name {family}, the given name {given} and the date of birth {birth_date}. Is this "
        "one of our patients, and if so, what is the medical record number (MRN)?",
    )
    brief = (
        "What is the MRN of the patient {given} {family}, born {birth_date}, if exactly these details are on file? "
        'Finish with FINISH(["<MRN>"]), or with FINISH(["Patient not found"]).'
    )
    answer_instructions = (
        "The names and the date of birth must match exactly. The MRN is the Patient's identifier of type MR. "
        'Finish with FINISH(["<MRN>"]), or with FINISH(["Patient not found"]) if there is no such patient. Change '
        "nothing."
    )
    answer = ItemsAnswer('["MRN"] or ["Patient not found"]', (("text",),))
    gold_steps = 2
    strata = (_ON_FILE,) * 5 + (_ABSENT,) * 4

    @override
    def draw_scene(self, rng: random.Random, world: World) -> tuple[Person, ...]:
        return draw_lineup(rng, world, MrnAllocator(rng, world).new)

    @override
    def candidates(self, scene: tuple[Person, ...]) -> dict[str, list[PersonCandidate]]:
        there = person_candidates(scene)
        return (
            {_ON_FILE: there, _ABSENT: [PersonCandidate(*cell) for cell in absent_combinations(scene)]}
            if len(there) >= _FEWEST
            else {}
        )

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: tuple[Person, ...], chosen: PersonCandidate
    ) -> FindPatientParams:
        people = {person.id: person for person in scene}
        if chosen.id:
            return FindPatientParams(scene=scene, person=people[chosen.id], mrn=chosen.id)
        free = next(mrn for mrn in iter(MrnAllocator(rng, world).new, "") if mrn not in people)
        person = person_called(rng, free, chosen.given, chosen.family, scene[0].gender, chosen.birth_date)
        return FindPatientParams(scene=scene, person=person, mrn=None)

    @override
    def scene_resources(self, scene: tuple[Person, ...], world: World) -> list[Resource]:
        return [patient_with_mrn(person) for person in scene]

    @override
    def prompt_values(self, p: FindPatientParams, world: World) -> dict[str, str]:
        return p.person.model_dump(include={"given", "family", "birth_date"})

    @override
    def gold(self, p: FindPatientParams) -> Gold:
        given, family = p.person.given, p.person.family
        bundle = yield Get("/Patient", {"family": family, "given": given, "birthdate": p.person.birth_date})
        numbers = [entry["identifier"][0]["value"] for entry in entries(bundle) if has_name(entry, given, family)]
        yield Finish(numbers or [_NOBODY])

    @override
    def checks(self, p: FindPatientParams, end: FinishedEpisode) -> Iterator[Check]:
        said = end.answer[0] if end.answer else None
        text = said.strip() if isinstance(said, str) else said
        mrn = p.mrn or _NOBODY
        right = text == mrn or (p.mrn is None and str(text).casefold().rstrip(".") == _NOBODY.casefold())
        yield Check(name="answer", passed=right, expected=mrn, actual=said)

    @override
    def required_records(self, p: FindPatientParams) -> tuple[str, ...]:
        return (f"Patient/{p.mrn}",) if p.mrn else ()

    @override
    def requires_evidence(self, p: FindPatientParams) -> bool:
        return p.mrn is None

    @override
    def counterfactual(self, p: FindPatientParams, world: World) -> list[Resource]:
        return [patient_with_mrn(p.person)] if p.mrn is None else []


TASKS = (FindPatient,)
