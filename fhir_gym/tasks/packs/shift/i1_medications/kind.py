"""Tasks I1-1 and I1-2: questions about what patients take now."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator, instant
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.i1_medications.records import (
    medication_resources,
    parse_dispense,
    parse_letter,
    parse_record,
)
from fhir_gym.tasks.packs.shift.i1_medications.rules import (
    MEASURES,
    RULES,
    Chart,
    MedicationContent,
    MedicationQuestion,
    charts_of,
    decisions,
    judge_question,
    outcome_of,
)
from fhir_gym.tasks.packs.shift.i1_medications.scene import DRUGS, MedicationScene, draw_medications
from fhir_gym.tasks.packs.shift.kind import Judgement, RequestKind, ShiftSize, Solution, StatusUpdates
from fhir_gym.tasks.packs.shift.lookups import Named, patients_called, search_all
from fhir_gym.tasks.packs.shift.outcomes import DONE, NO_SUCH_PATIENT, NOT_TAKEN, SEVERAL_PATIENTS
from fhir_gym.tasks.packs.shift.patients import PATIENT_RULE, absent_patient, ids_of, names_for, single_patients
from fhir_gym.tasks.packs.shift.questions import draw_question
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.types import Resource

_FEWEST_RULES = {"dose": 2, "number": 3, "names": 3}
"""Number of rules that must make a difference to a question."""


class Medications(RequestKind[MedicationScene, MedicationQuestion]):
    """Answer questions about what patients take now."""

    key = "I1"
    title = "Questions about medication"
    codes = (NO_SUCH_PATIENT, SEVERAL_PATIENTS, NOT_TAKEN)
    value = "3"
    minutes = 4
    status_updates: ClassVar[StatusUpdates] = {
        "records": ("status", {"active": "stopped", "on-hold": "active", "stopped": "active", "draft": "active"}),
        "dispenses": ("status", {"in-progress": "completed"}),
    }
    resource_types = ("Patient", "MedicationRequest", "MedicationStatement", "MedicationDispense", "Communication")
    rules = (
        f"{PATIENT_RULE}\n"
        "- The questions are about these drugs. Records name a drug by its RxNorm code, letters by its name or its "
        "trade name:\n{drugs}\n"
        "- For each drug, the newest record that counts decides. These records count:\n"
        "  - an order (MedicationRequest) with the intent order and the status active, on-hold, completed or stopped; "
        "its time is authoredOn. The patient takes the drug if the status is active.\n"
        "  - a statement (MedicationStatement) with the status active, on-hold, completed, stopped or not-taken; its "
        "time is dateAsserted. The patient takes the drug if the status is active.\n"
        "  - a letter (Communication) with the status completed; its time is sent. It counts for the drugs on its list "
        "of medication at discharge, and for no others. The patient takes a drug for which the list gives a dose.\n"
        "- A patient for whom no record about a drug counts does not take it.\n"
        "- A drug whose supply has run out is not taken, whatever the other records say. It has run out if the patient "
        "has dispenses of it (MedicationDispense) with the status completed, and none of them lasts until today. A "
        "dispense lasts for the days of its daysSupply; the first of them is the day of whenHandedOver (UTC). Without "
        "any such dispense, the supply does not matter.\n"
        "- The daily dose is the one in the record that decides: the sum over its instructions of the dose times the "
        "number of times a day. Leave out instructions that apply as needed. 1 g is 1000 mg.\n"
        f'- If the patient does not take the drug, or none of the drugs, the outcome is "{NOT_TAKEN}". Otherwise it is '
        "the number alone, or the names as in the list above, in alphabetical order and separated by commas "
        '("lisinopril, metformin").'
    )

    @override
    def draw_scene(self, rng: random.Random, world: World, ids: IdAllocator, size: ShiftSize) -> MedicationScene:
        if size.level == 1:
            return draw_medications(rng, world, ids, people=(9,), twins=2, drugs=5, letters=(0, 1, 1, 2))
        if size.level == 2:
            return draw_medications(rng, world, ids, people=(8, 9), twins=4, drugs=8, letters=(0, 1, 2, 3))
        return draw_medications(rng, world, ids, people=(9,), twins=2, drugs=14, letters=(1, 2, 3))

    @override
    def choose(
        self,
        rng: random.Random,
        world: World,
        scene: MedicationScene,
        outcomes: Sequence[str],
        dependent: int | None = None,
    ) -> tuple[MedicationQuestion, ...] | None:
        questions: list[MedicationQuestion] = []
        possible = list(_possible(scene)) if {DONE, NOT_TAKEN} & {*outcomes} else []
        for outcome in outcomes:
            used = [(question.ask.patient, question.ask.drug) for question in questions]
            if outcome in (DONE, NOT_TAKEN):
                left = [question for question in possible if (question.ask.patient, question.ask.drug) not in used]
                request = draw_question(
                    rng, [question for question in left if (question.outcome == NOT_TAKEN) == (outcome == NOT_TAKEN)]
                )
            else:
                request = _draw_unanswerable(rng, scene, used, outcome)
            if request is None:
                return None
            questions.append(request)
        return tuple(questions)

    @override
    def resources(self, scene: MedicationScene, world: World) -> list[Resource]:
        return medication_resources(scene)

    @override
    def rule_values(self, scene: MedicationScene) -> Mapping[str, str]:
        lines = (f"  - {name}: RxNorm {DRUGS[name].code}, trade name {DRUGS[name].trade}" for name in scene.drugs)
        return {"drugs": "\n".join(lines)}

    @override
    def text(self, ask: MedicationContent, wording: int) -> str:
        who, born, drug = f"{ask.patient.given} {ask.patient.family}", ask.patient.birth_date, ask.drug
        words: dict[str, tuple[str, str, str]] = {
            "number": (
                f"How many of the drugs does {who}, born {born}, take now?",
                f"Please count the drugs that {who} (date of birth {born}) takes now.",
                f"{who}, {born}: number of drugs taken now.",
            ),
            "names": (
                f"Which of the drugs does {who}, born {born}, take now?",
                f"Please list the drugs that {who} (date of birth {born}) takes now.",
                f"{who}, {born}: drugs taken now.",
            ),
            "dose": (
                f"How many mg of {drug} a day does {who}, born {born}, take now?",
                f"Please work out the daily dose of {drug}, in mg, that {who} (date of birth {born}) takes now.",
                f"{who}, {born}: {drug}, mg a day now.",
            ),
        }
        return words[ask.measure][wording]

    @override
    def solve(
        self, ask: MedicationContent, rule_values: Mapping[str, str], now: datetime, looked_up: dict[str, Any]
    ) -> Solution:
        patients = yield from patients_called(ask.patient)
        if len(patients) != 1:
            return SEVERAL_PATIENTS if patients else NO_SUCH_PATIENT
        query = {"patient": f"Patient/{patients[0]['id']}", "_count": "200"}
        records = yield from search_all("/MedicationRequest", query)
        records += yield from search_all("/MedicationStatement", query)
        dispenses = yield from search_all("/MedicationDispense", query)
        letters = yield from search_all("/Communication", query)
        chart = Chart([*map(parse_record, records)], [*map(parse_dispense, dispenses)], [*map(parse_letter, letters)])
        return outcome_of(ask, decisions(chart, instant(now)[:10]))

    @override
    def counterfactuals(self, request: MedicationQuestion, scene: MedicationScene) -> list[Resource]:
        return [] if request.patients else [absent_patient(request.ask.patient, scene.people)]

    @override
    def right_end(self, request: MedicationQuestion, scene: MedicationScene) -> tuple[str, str] | None:
        return outcome_of(request.ask, decisions(charts_of(scene)[request.patients[0]], scene.today)), ""

    @override
    def judge(
        self, requests: Sequence[MedicationQuestion], scene: MedicationScene, log: EpisodeLog, answers: Sequence[str]
    ) -> list[Judgement]:
        return [judge_question(request, scene, log, answer) for request, answer in zip(requests, answers, strict=True)]


def _possible(scene: MedicationScene) -> Iterator[MedicationQuestion]:
    """Yield the questions about single patients to which enough of the rules make a difference."""
    charts = charts_of(scene)
    for name, person in single_patients(scene.people):
        chart = charts[person.id]
        right = decisions(chart, scene.today)
        wrong = {rule: decisions(chart, scene.today, rule) for rule in RULES}
        asks = [MedicationContent(patient=name, measure="dose", drug=drug) for drug in right]
        for ask in (
            *(MedicationContent(patient=name, measure=measure) for measure in MEASURES if measure != "dose"),
            *asks,
        ):
            outcome = outcome_of(ask, right)
            if sum(outcome_of(ask, wrong[rule], rule) != outcome for rule in RULES) >= _FEWEST_RULES[ask.measure]:
                yield MedicationQuestion(ask=ask, outcome=outcome, patients=(person.id,))


def _draw_unanswerable(
    rng: random.Random, scene: MedicationScene, used: Collection[tuple[Named, str]], outcome: str
) -> MedicationQuestion | None:
    """Draw a question about a name that no patient has, or several; None if all names are used."""
    measure = rng.choice(MEASURES)
    drug = rng.choice(scene.drugs) if measure == "dose" else ""
    name = next((name for name in names_for(rng, scene.people, outcome) if (name, drug) not in used), None)
    if name is None:
        return None
    ask = MedicationContent(patient=name, measure=measure, drug=drug)
    ids = ids_of(name, scene.people)
    return MedicationQuestion(ask=ask, outcome=outcome, patients=ids)


class MedicationsLevel1(StaticShift, requests=Medications(), level=1):
    """Answer four or five questions about what patients take now.

    Starting state: eleven patients with similar names; two of them share name and date of birth with another patient.
        For each of five drugs, a patient has up to two orders, two statements and two dispenses, and up to two letters
        that name some of the drugs. They have all statuses, and disagree. The questions are chosen at random among
        those to which several rules make a difference.
    Decoys: plans, proposals, void and older records, lists of medication on admission, instructions that apply as
        needed, doses in grams, and the records of patients with similar names.
    Checks: the value is right, and the agent has read the records that decide it. A declined question needs its
        outcome, and lookups that would have shown the opposite. Nothing is changed.
    Light: none of the checks.
    """


class MedicationsLevel2(StaticShift, requests=Medications(), level=2):
    """Answer ten to fourteen questions about what patients take now.

    Starting state: as at level 1, with 21 patients, eight drugs and up to three letters for each patient.
    Decoys: as at level 1.
    Checks: as at level 1.
    Light: none of the checks.
    """


TASKS = (MedicationsLevel1, MedicationsLevel2)
