"""Tasks 04a and 04b: look up a medical history that has entries (04a) or is empty (04b), with the same prompts."""

from __future__ import annotations

import random
from datetime import date

from typing_extensions import override

from fhir_gym.actions import Finish, Get
from fhir_gym.fhir import World
from fhir_gym.tasks import Gold
from fhir_gym.tasks.authoring import IdAllocator, entries
from fhir_gym.tasks.grading import IdAnswer
from fhir_gym.tasks.packs.appointment.history import (
    CONFIRMED,
    ENTERED_IN_ERROR,
    HistoryScene,
    Problem,
    condition_resource,
    draw_conditions,
    draw_problem,
    entered_in_error,
)
from fhir_gym.tasks.packs.appointment.patient_scenes import draw_namesakes
from fhir_gym.tasks.packs.appointment.patient_tasks import ABSENT, PRESENT, LookupTask, PatientCandidate, PatientParams
from fhir_gym.types import Resource

_NAMESAKES = (11, 12)
"""Numbers of patients to choose from."""
_WITHOUT_HISTORY = (5, 5, 6)
"""Numbers of patients without a medical history to choose from."""
_MAX_DAYS_AGO = 1_700
"""Maximum age of a record; worlds cover about five years, so the server's oldest record may be an unrelated one."""
_PAST_STATUSES = ("inactive", "resolved")
_CLINICAL = ("active", "active", "resolved")


class SearchHistoryParams(PatientParams):
    """Parameters of tasks 04a and 04b.

    Attributes:
        scene: Patients and their conditions.
        first: The condition that was recorded first; in task 04b it is not on file.
    """

    scene: HistoryScene
    first: Problem


class _SearchHistory(LookupTask[SearchHistoryParams, HistoryScene, PatientCandidate]):
    category = "Patient Records"
    required_resources = ("Condition",)
    prompts = (
        "Does {patient} (Patient/{id}) have any medical history on file? If so, which condition was recorded first?",
        "Please check the medical history of Patient/{id} ({patient}). If there is any, give the condition that was "
        "recorded first.",
        "A doctor asks for the oldest entry in the medical history of {patient} (Patient/{id}). Please check whether "
        "there is one, and which it is.",
    )
    brief = (
        "Which condition was recorded first in the medical history of {patient} (Patient/{id})? Finish with "
        'FINISH(["<condition id>"]), or with FINISH([]) if there is no history.'
    )
    answer_instructions = (
        "The medical history consists of every Condition with this patient as its subject, whatever its clinical "
        "status or category, except those with verification status entered-in-error. The first or oldest entry is the "
        'one with the earliest recordedDate. Finish with FINISH(["<id>"]), where <id> is the id of that condition, or '
        "with FINISH([]) if there is none. Do not change any records."
    )
    answer = IdAnswer(("Condition",), or_empty=True)

    @override
    def draw_scene(self, rng: random.Random, world: World) -> HistoryScene:
        ids = IdAllocator(rng, world)
        people = draw_namesakes(rng, world, ids, (rng.choice(_NAMESAKES),))
        without = rng.choice(_WITHOUT_HISTORY)
        histories = [number >= without for number in range(len(people))]
        rng.shuffle(histories)
        problems: list[Problem] = []
        for person, has_history in zip(people, histories, strict=True):
            statuses = _history(rng) if has_history else _mistakes(rng)
            whats = draw_conditions(rng, len(statuses))
            days = sorted(rng.sample(range(1, _MAX_DAYS_AGO), len(statuses)), reverse=True)
            for what, ago, (clinical, verification) in zip(whats, days, statuses, strict=True):
                problems.append(draw_problem(rng, world, ids, person.id, what, ago, clinical, verification))
        return HistoryScene(patients=people, problems=tuple(problems))

    @override
    def candidates(self, scene: HistoryScene) -> dict[str, list[PatientCandidate]]:
        first = _first_entries(scene)
        earliest: dict[str, str] = {}
        for person in scene.patients:
            if own := first.get(person.id):
                earliest[person.name] = min(own.recorded, earliest.get(person.name, own.recorded))
        present, absent = [], []
        for person in scene.patients:
            own, begun = first.get(person.id), earliest.get(person.name)
            if begun and own is None:
                absent.append(PatientCandidate(patient=person.id))
            elif begun and own and begun < own.recorded:  # a search by name finds a namesake's condition first
                present.append(PatientCandidate(patient=person.id, record=f"Condition/{own.id}"))
        return self.both_outcomes(present, absent)

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: HistoryScene, chosen: PatientCandidate
    ) -> SearchHistoryParams:
        problems = {problem.id: problem for problem in scene.problems}
        if chosen.record:
            first = problems[chosen.record_id]
        else:
            ids, (what,) = IdAllocator(rng, world), draw_conditions(rng, 1)
            model = rng.choice([*_first_entries(scene).values()])
            ago = (world.now.date() - date.fromisoformat(model.recorded)).days
            drawn = (
                draw_problem(rng, world, ids, chosen.patient, what, ago, rng.choice(_PAST_STATUSES))
                for _ in range(len(problems) + 1)
            )
            first = next(problem for problem in drawn if problem.id not in problems)
        return SearchHistoryParams(scene=scene, patient=scene.patient(chosen.patient), first=first)

    @override
    def gold(self, p: SearchHistoryParams) -> Gold:
        bundle = yield Get("/Condition", {"subject": f"Patient/{p.patient.id}", "_sort": "recorded-date"})
        history = [condition["id"] for condition in entries(bundle) if not entered_in_error(condition)]
        yield Finish(history[:1])

    @override
    def record(self, p: SearchHistoryParams) -> Resource:
        # The absent condition is inactive, so a search for active conditions does not prove that the history is empty.
        return condition_resource(p.first)


def _first_entries(scene: HistoryScene) -> dict[str, Problem]:
    """Return the first entry of each patient who has a history."""
    first: dict[str, Problem] = {}
    for problem in scene.problems:
        earliest = first.get(problem.patient)
        if not problem.mistaken and (earliest is None or problem.recorded < earliest.recorded):
            first[problem.patient] = problem
    return first


def _history(rng: random.Random) -> list[tuple[str, str]]:
    """Draw the clinical and verification statuses of a patient's conditions, the oldest first.

    The history starts with conditions that were entered in error, followed by a condition that is no longer active.
    """
    later = [(rng.choice(_CLINICAL), CONFIRMED) for _ in range(rng.choice((2, 3)))]
    later += [(rng.choice(_CLINICAL), ENTERED_IN_ERROR)] * rng.choice((0, 0, 1))
    rng.shuffle(later)
    return [*_mistakes(rng), (rng.choice(_PAST_STATUSES), CONFIRMED), *later]


def _mistakes(rng: random.Random) -> list[tuple[str, str]]:
    """Draw the statuses of one or two conditions that were entered in error."""
    return [("active", ENTERED_IN_ERROR)] * rng.choice((1, 1, 2))


class SearchHistoryPresent(_SearchHistory):
    """Find the first entry of a patient's medical history.

    Starting state: 11 or 12 patients with the same name. Five to seven of them, including the patient in the prompt,
        have three or four conditions recorded on different days. The other patients have only conditions that were
        entered in error.
    Decoys: the patient also has conditions that were entered in error. Some of these were recorded before the first
        real condition, so that they come first in a search sorted by date; sometimes another was recorded later. The
        first real condition is no longer active, so a search for active conditions misses it. A namesake's history
        began earlier; a search by name, or a search that omits the patient, finds the namesake's history.
    Checks: the answer is the condition that was recorded first.
    Light: none.
    Differs from FHIR-AgentEval: the prompt defines "first", which the original left to the order of the server. Several
        patients have several conditions with random ids; in the original, the same id was always the right answer.
    """

    key = "04a"
    title = "Search medical history, present"
    required_tools = (("search",), ("read",))
    strata = (PRESENT,)


class SearchHistoryEmpty(_SearchHistory):
    """Find out that a patient has no medical history.

    Starting state: as in 04a, but the patient has no history.
    Decoys: as in 04a. The patient also has one or two conditions that were entered in error.
    Checks: the answer is ``[]``, and the agent made a request that would return any condition of the patient, even one
        that is no longer active.
    Light: none.
    Differs from FHIR-AgentEval: an empty answer without a look-up fails, and the prompt states the form of the empty
        answer.
    """

    key = "04b"
    title = "Search medical history, empty"
    strata = (ABSENT,)


TASKS = (SearchHistoryPresent, SearchHistoryEmpty)
