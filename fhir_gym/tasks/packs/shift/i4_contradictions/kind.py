"""Tasks I4-1 and I4-2: questions about records that cannot be right."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.i4_contradictions.rules import (
    MEASURES,
    MOST_IDS,
    RULES,
    ContradictionContent,
    ContradictionRequest,
    History,
    Measure,
    histories_of,
    judge_contradictions,
    outcome_of,
    records_that_would_be_wrong,
)
from fhir_gym.tasks.packs.shift.i4_contradictions.scene import (
    KINDS,
    HistoryScene,
    draw_histories,
    history_resources,
    lines_of_facts,
    parse_history,
)
from fhir_gym.tasks.packs.shift.kind import Judgement, RequestKind, ShiftSize, Solution, StatusUpdates
from fhir_gym.tasks.packs.shift.lookups import Named, patients_called, search_all
from fhir_gym.tasks.packs.shift.outcomes import DONE, NO_SUCH_PATIENT, NOTHING_WRONG, SEVERAL_PATIENTS
from fhir_gym.tasks.packs.shift.patients import PATIENT_RULE, absent_patient, ids_of, names_for, single_patients
from fhir_gym.tasks.packs.shift.questions import draw_question
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.types import Resource

_WORDS = {"Encounter": "encounters", "Observation": "results", "Procedure": "procedures", "Condition": "diagnoses"}
_FEWEST_RULES = {"number": 3, "number of a type": 2, "ids": 3}
"""Number of rules that must make a difference to a question with a value; one suffices if nothing is wrong."""

_MEASURES: tuple[tuple[Measure, str], ...] = (
    ("number", ""),
    ("ids", ""),
    *(("number of a type", kind) for kind in KINDS),
)


class Contradictions(RequestKind[HistoryScene, ContradictionRequest]):
    """Answer questions about records that cannot be right."""

    key = "I4"
    title = "Questions about contradictions"
    codes = (NO_SUCH_PATIENT, SEVERAL_PATIENTS, NOTHING_WRONG)
    value = "3"
    minutes = 4
    status_updates: ClassVar[StatusUpdates] = {
        "records": (
            "status",
            {
                **dict.fromkeys(("finished", "final", "amended", "completed"), "entered-in-error"),
                "preliminary": "cancelled",
                "confirmed": "refuted",
                "provisional": "refuted",
            },
        )
    }
    resource_types = ("Patient", "Encounter", "Observation", "Procedure", "Condition")
    rules = (
        f"{PATIENT_RULE}\n"
        "- The questions are about records whose subject is the patient: encounters (Encounter), results "
        "(Observation), procedures (Procedure) and diagnoses (Condition). Void records do not count: an Encounter or "
        "an Observation with the status cancelled or entered-in-error, a Procedure with the status not-done or "
        "entered-in-error, a Condition with the verificationStatus refuted or entered-in-error.\n"
        "- The time of a record is its period.start, effectiveDateTime, performedDateTime or onsetDateTime (UTC). It "
        "does not matter when it was issued or recorded.\n"
        "- A record that counts cannot be right if at least one of these points is true; otherwise it is right.\n"
        "  - Its time is on a day before the patient's date of birth.\n"
        "  - Its time is after the patient's death (Patient.deceasedDateTime).\n"
        "  - It is an encounter that ends (period.end) before it starts.\n"
        "  - Its element encounter refers to an Encounter of another patient.\n"
        "  - It is only possible for women, and the patient's gender is not female; or only for men, and the gender is "
        "not male.\n"
        "  - It is about an organ or removes one, but an earlier procedure of the patient has already removed that "
        "organ. The earlier procedure must count, and none of the points above may be true of it; otherwise it has "
        "removed nothing.\n"
        "- These codes are only possible for women or only for men, are about an organ, or remove one:\n{facts}\n"
        f'- If every record that the question asks for is right, the outcome is "{NOTHING_WRONG}". Otherwise it is the '
        "number of records that cannot be right, or their ids in any order, separated by commas."
    )

    @override
    def draw_scene(self, rng: random.Random, world: World, ids: IdAllocator, size: ShiftSize) -> HistoryScene:
        if size.level == 1:
            most = {"Encounter": 4, "Observation": 6, "Procedure": 5, "Condition": 4}
            return draw_histories(rng, world, ids, people=(5, 5), twins=2, most=most)
        if size.level == 2:
            most = {"Encounter": 6, "Observation": 14, "Procedure": 8, "Condition": 6}
            return draw_histories(rng, world, ids, people=(7, 7, 6), twins=4, most=most)
        most = {"Encounter": 12, "Observation": 24, "Procedure": 14, "Condition": 12}
        return draw_histories(rng, world, ids, people=(6, 5), twins=2, most=most)

    @override
    def choose(
        self,
        rng: random.Random,
        world: World,
        scene: HistoryScene,
        outcomes: Sequence[str],
        dependent: int | None = None,
    ) -> tuple[ContradictionRequest, ...] | None:
        requests: list[ContradictionRequest] = []
        possible = list(_possible(scene)) if {DONE, NOTHING_WRONG} & {*outcomes} else []
        for outcome in outcomes:
            used = [(request.ask.patient, request.ask.kind) for request in requests]
            if outcome in (DONE, NOTHING_WRONG):
                left = [request for request in possible if (request.ask.patient, request.ask.kind) not in used]
                left = [request for request in left if (request.outcome == NOTHING_WRONG) == (outcome == NOTHING_WRONG)]
                request = draw_question(rng, left)
            else:
                measure = rng.choice(MEASURES)
                kind = rng.choice(KINDS) if measure == "number of a type" else ""
                names = (name for name in names_for(rng, scene.people, outcome) if (name, kind) not in used)
                request = _unanswerable(scene, next(names, None), measure, kind, outcome)
            if request is None:
                return None
            requests.append(request)
        return tuple(requests)

    @override
    def resources(self, scene: HistoryScene, world: World) -> list[Resource]:
        return history_resources(scene)

    @override
    def rule_values(self, scene: HistoryScene) -> Mapping[str, str]:
        return {"facts": "\n".join(lines_of_facts())}

    @override
    def text(self, ask: ContradictionContent, wording: int) -> str:
        who, born = f"{ask.patient.given} {ask.patient.family}", ask.patient.birth_date
        records = _WORDS.get(ask.kind, "records")
        if ask.measure == "ids":
            return (
                f"Which records of {who}, born {born}, cannot be right?",
                f"Please list the records of {who} (date of birth {born}) that cannot be right.",
                f"{who}, {born}: ids of the records that cannot be right.",
            )[wording]
        return (
            f"How many {records} of {who}, born {born}, cannot be right?",
            f"Please count the {records} of {who} (date of birth {born}) that cannot be right.",
            f"{who}, {born}: number of {records} that cannot be right.",
        )[wording]

    @override
    def solve(
        self, ask: ContradictionContent, rule_values: Mapping[str, str], now: datetime, looked_up: dict[str, Any]
    ) -> Solution:
        patients = yield from patients_called(ask.patient)
        if len(patients) != 1:
            return SEVERAL_PATIENTS if patients else NO_SUCH_PATIENT
        patient, wrong_records = patients[0], []
        query = {"subject": f"Patient/{patient['id']}", "_count": "200"}
        for kind in KINDS:
            wrong_records += yield from search_all(f"/{kind}", query)
        records = [*map(parse_history, wrong_records)]
        history = History(patient["birthDate"], patient["gender"], patient.get("deceasedDateTime", ""), records)
        return outcome_of(ask, history)

    @override
    def counterfactuals(self, request: ContradictionRequest, scene: HistoryScene) -> list[Resource]:
        if not request.patients:
            return [absent_patient(request.ask.patient, scene.people)]
        return records_that_would_be_wrong(request, scene) if request.outcome == NOTHING_WRONG else []

    @override
    def right_end(self, request: ContradictionRequest, scene: HistoryScene) -> tuple[str, str] | None:
        outcome = outcome_of(request.ask, histories_of(scene)[request.patients[0]])
        return None if request.ask.measure == "ids" and outcome.count(",") >= MOST_IDS else (outcome, "")

    @override
    def judge(
        self, requests: Sequence[ContradictionRequest], scene: HistoryScene, log: EpisodeLog, answers: Sequence[str]
    ) -> list[Judgement]:
        histories = histories_of(scene)
        return [
            judge_contradictions(
                request, scene, histories.get(request.patients[0] if request.patients else ""), log, answer
            )
            for request, answer in zip(requests, answers, strict=True)
        ]


def _possible(scene: HistoryScene) -> Iterator[ContradictionRequest]:
    """Yield the questions about single patients to which enough of the rules make a difference."""
    histories = histories_of(scene)
    for name, person in single_patients(scene.people):
        history = histories[person.id]
        for measure, kind in _MEASURES:
            ask = ContradictionContent(patient=name, measure=measure, kind=kind)
            outcome = outcome_of(ask, history)
            if ask.measure == "ids" and outcome.count(",") >= MOST_IDS:
                continue
            fewest = 1 if outcome == NOTHING_WRONG else _FEWEST_RULES[ask.measure]
            if sum(outcome_of(ask, history, rule) != outcome for rule in RULES) >= fewest:
                yield ContradictionRequest(ask=ask, outcome=outcome, patients=(person.id,))


def _unanswerable(
    scene: HistoryScene, name: Named | None, measure: Measure, kind: str, outcome: str
) -> ContradictionRequest | None:
    """Make a question about a name that no patient has, or several; None without a name."""
    if name is None:
        return None
    ids = ids_of(name, scene.people)
    ask = ContradictionContent(patient=name, measure=measure, kind=kind)
    return ContradictionRequest(ask=ask, outcome=outcome, patients=ids)


class ContradictionsLevel1(StaticShift, requests=Contradictions(), level=1):
    """Answer four or five questions about records that cannot be right.

    Starting state: twelve patients with similar names; two of them share name and date of birth with another patient.
        Half of them have died. Each has up to 19 encounters, results, procedures and diagnoses. The questions are
        chosen at random among those to which several rules make a difference.
    Decoys: void records, results that were issued after death, organs that a void or impossible procedure has removed,
        encounters that end after death, and patients with similar names.
    Checks: the value is right, and the agent has read the records that cannot be right, and the procedures that removed
        their organs. A declined question needs its outcome, and lookups that would have shown the opposite. Nothing is
        changed.
    Light: none of the checks.
    """


class ContradictionsLevel2(StaticShift, requests=Contradictions(), level=2):
    """Answer ten to fourteen questions about records that cannot be right.

    Starting state: as at level 1, with 24 patients and up to 34 records for each.
    Decoys: as at level 1.
    Checks: as at level 1.
    Light: none of the checks.
    """


TASKS = (ContradictionsLevel1, ContradictionsLevel2)
