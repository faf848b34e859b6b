"""Tasks I4-1 and I4-2: questions about records that cannot be right."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.packs.shift.i4_contradictions.scene import (
    KINDS,
    HistoryRecord,
    HistoryScene,
    draw_histories,
    history_resource,
    lines_of_facts,
    parse_history,
)
from fhir_gym.tasks.packs.shift.kind import Knowledge, RequestContent, ShiftSize, Solution, StatusUpdates
from fhir_gym.tasks.packs.shift.lookups import Named, search_all
from fhir_gym.tasks.packs.shift.outcomes import NO_SUCH_PATIENT, NOTHING_WRONG, SEVERAL_PATIENTS
from fhir_gym.tasks.packs.shift.patients import PATIENT_RULE, PatientRequest, single_patients
from fhir_gym.tasks.packs.shift.questions import (
    ListedQuestionSampler,
    QuestionJudge,
    QuestionKind,
    items_in,
    number_in,
    was_read,
)
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.types import Resource

Measure = Literal["number", "number of a type", "ids"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
Rule = Literal["birth", "death", "order", "encounter", "gender", "organ", "void", "time", "wrong removal"]
RULES: tuple[Rule, ...] = get_args(Rule)
"""The rules; a function that is told to ignore a rule does not apply it."""
MOST_IDS = 6
_WORDS = {"Encounter": "encounters", "Observation": "results", "Procedure": "procedures", "Condition": "diagnoses"}
_FEWEST_RULES: Mapping[Measure, int] = {"number": 3, "number of a type": 2, "ids": 3}
"""Number of rules that must make a difference to a question with a value; one suffices if nothing is wrong."""
_COUNT = (
    "How many {records} of {who}, born {born}, cannot be right?",
    "Please count the {records} of {who} (date of birth {born}) that cannot be right.",
    "{who}, {born}: number of {records} that cannot be right.",
)


class ContradictionContent(RequestContent):
    """A question about the records of a patient that cannot be right.

    Attributes:
        measure: The number of records, or their ids.
        kind: For ``number of a type``: the resource type; otherwise an empty text.
    """

    patient: Named
    measure: Measure
    kind: str = ""


class ContradictionRequest(PatientRequest):
    """A question about the records of a patient that cannot be right."""

    ask: ContradictionContent


class History:
    """The records of a patient, and what the rules say about them."""

    def __init__(self, birth_date: str, gender: str, died: str, records: Sequence[HistoryRecord]) -> None:
        self._born, self._gender, self._died = birth_date, gender, died
        self._records = records
        self._own = {record.id for record in records if record.kind == "Encounter"}
        self._wrong: dict[Rule | None, list[HistoryRecord]] = {}

    def wrong(self, kind: str = "", ignoring: Rule | None = None) -> list[HistoryRecord]:
        """Return the records that cannot be right.

        Args:
            kind: The resource type; empty for all types.
            ignoring: A rule that is not applied.
        """
        if ignoring not in self._wrong:
            self._wrong[ignoring] = [*self._find(ignoring)]
        return [record for record in self._wrong[ignoring] if kind in ("", record.kind)]

    def _find(self, ignoring: Rule | None) -> Iterator[HistoryRecord]:
        considered = [record for record in self._records if not record.void or ignoring == "void"]
        alone = {record.reference for record in considered if self._breaks(record, ignoring) - {ignoring}}
        for record in considered:
            removed = ignoring != "organ" and any(True for _ in self._removals(record, considered, alone, ignoring))
            if record.reference in alone or removed:
                yield record

    def removals(self, record: HistoryRecord) -> list[str]:
        """Return references to the procedures that had removed the organ of a record that is right by itself."""
        considered = [history for history in self._records if not history.void]
        alone = {history.reference for history in considered if self._breaks(history, None)}
        if record.reference in alone:
            return []
        return [removal.reference for removal in self._removals(record, considered, alone, None)]

    def _removals(
        self, record: HistoryRecord, considered: Sequence[HistoryRecord], alone: Collection[str], ignoring: Rule | None
    ) -> Iterator[HistoryRecord]:
        fact = record.fact
        if fact is None or not fact.organ:
            return
        for history in considered:
            removing = history.fact is not None and history.fact.removes and history.fact.organ == fact.organ
            credible = history.reference not in alone or ignoring == "wrong removal"
            if removing and credible and _time(history, ignoring) < _time(record, ignoring):
                yield history

    def _breaks(self, record: HistoryRecord, ignoring: Rule | None) -> set[Rule]:
        """Return the rules that a record breaks by itself, without other procedures."""
        time = _time(record, ignoring)
        broken: set[Rule] = set()
        if time[:10] < self._born:
            broken.add("birth")
        if self._died and time > self._died:
            broken.add("death")
        if record.kind == "Encounter" and record.other_time < record.time:
            broken.add("order")
        if record.encounter and record.encounter not in self._own:
            broken.add("encounter")
        if record.fact is not None and record.fact.gender not in ("", self._gender):
            broken.add("gender")
        return broken


def _time(record: HistoryRecord, ignoring: Rule | None) -> str:
    """Return the time that decides; without the rule about times, it is the time of recording."""
    recorded = ignoring == "time" and record.kind != "Encounter" and record.other_time
    return record.other_time if recorded else record.time


def histories_of(scene: HistoryScene) -> dict[str, History]:
    """Return the history of each patient by id."""
    records: dict[str, list[HistoryRecord]] = {}
    for record in scene.records:
        records.setdefault(record.patient, []).append(record)
    return {
        patient.id: History(patient.person.birth_date, patient.person.gender, patient.died, records.get(patient.id, ()))
        for patient in scene.patients
    }


def outcome_of(ask: ContradictionContent, history: History, ignoring: Rule | None = None) -> str:
    """Return the outcome of a question."""
    wrong = history.wrong(ask.kind, ignoring)
    if not wrong:
        return NOTHING_WRONG
    return ", ".join(sorted(record.id for record in wrong)) if ask.measure == "ids" else str(len(wrong))


def agrees(ask: ContradictionContent, outcome: str, answer: str) -> bool:
    """Whether an answer in lower case says the same as an outcome; ids may be in any order, and with their type."""
    if outcome == NOTHING_WRONG or answer == NOTHING_WRONG:
        return answer == outcome
    if ask.measure != "ids":
        return number_in(answer, ("records", "record")) == int(outcome)
    types = "|".join(KINDS).casefold()
    return items_in(re.sub(rf"\b(?:{types})/", "", answer)) == sorted(outcome.casefold().split(", "))


def records_that_would_be_wrong(request: ContradictionRequest, scene: HistoryScene) -> list[Resource]:
    """Return records of the patient that do not exist and cannot be right, one of each type of the question.

    Each is the record of another patient: an encounter that ends before it starts, or a record that refers to an
    encounter of another patient.
    """
    patient = request.patients[0]
    others = [record for record in scene.records if record.patient != patient and not record.void]
    encounters = [record.id for record in others if record.kind == "Encounter"]
    candidates = []
    for kind in KINDS:
        if request.ask.kind in ("", kind):
            rng = seeded_random("wrong", patient, request.ask, kind)
            model = rng.choice([record for record in others if record.kind == kind])
            wrong: dict[str, str] = {"encounter": model.encounter or rng.choice(encounters)}
            if kind == "Encounter":
                start, end = sorted((model.time, model.other_time))
                wrong = {"time": end, "other_time": start}
            names = {"id": f"wrong-{patient}", "patient": patient}
            candidates.append(history_resource(model.model_copy(update={**names, **wrong})))
    return candidates


class ContradictionSampler(ListedQuestionSampler[HistoryScene, ContradictionRequest]):
    """Draws questions about single patients to which enough of the rules make a difference."""

    request_type, nothing, detail = ContradictionRequest, NOTHING_WRONG, "kind"

    @override
    def details(self) -> Mapping[str, Sequence[str]]:
        return {"number": (), "number of a type": KINDS, "ids": ()}

    @override
    def possible(self) -> Iterator[ContradictionRequest]:
        histories = histories_of(self.scene)
        for name, person in single_patients(self.scene.people):
            history = histories[person.id]
            for measure, kind in (("number", ""), ("ids", ""), *(("number of a type", kind) for kind in KINDS)):
                ask = ContradictionContent(patient=name, measure=measure, kind=kind)
                outcome = outcome_of(ask, history)
                if ask.measure == "ids" and outcome.count(",") >= MOST_IDS:
                    continue
                fewest = 1 if outcome == NOTHING_WRONG else _FEWEST_RULES[ask.measure]
                if sum(outcome_of(ask, history, rule) != outcome for rule in RULES) >= fewest:
                    yield ContradictionRequest(ask=ask, outcome=outcome, patients=(person.id,))


class ContradictionJudge(QuestionJudge[HistoryScene, ContradictionRequest]):
    """Judges answers; they count only if the agent has read the records that are wrong."""

    @cached_property
    def _histories(self) -> dict[str, History]:
        return histories_of(self.scene)

    @override
    def check(self, request: ContradictionRequest, answer: str) -> tuple[bool, bool]:
        ask, history = request.ask, self._histories[request.patients[0]]
        outcome = outcome_of(ask, history)
        if outcome == NOTHING_WRONG:
            return answer == outcome, all(map(self.log.lookups_of, records_that_would_be_wrong(request, self.scene)))
        wrong = history.wrong(ask.kind)
        looked = all(was_read(self.log, record.reference) for record in wrong) and all(
            not removals or any(was_read(self.log, record) for record in removals)
            for removals in map(history.removals, wrong)
        )
        return agrees(ask, outcome, answer), looked


class Contradictions(QuestionKind[HistoryScene, ContradictionRequest]):
    """Answer questions about records that cannot be right."""

    key = "I4"
    title = "Questions about contradictions"
    codes = (NO_SUCH_PATIENT, SEVERAL_PATIENTS, NOTHING_WRONG)
    value = "3"
    sampler_type = ContradictionSampler
    judge_type = ContradictionJudge
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
    questions: ClassVar[Mapping[str, tuple[str, str, str]]] = {
        "number": _COUNT,
        "number of a type": _COUNT,
        "ids": (
            "Which records of {who}, born {born}, cannot be right?",
            "Please list the records of {who} (date of birth {born}) that cannot be right.",
            "{who}, {born}: ids of the records that cannot be right.",
        ),
    }
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
    def rule_values(self, scene: HistoryScene) -> Mapping[str, str]:
        return {"facts": "\n".join(lines_of_facts())}

    @override
    def text_values(self, ask: ContradictionContent) -> Mapping[str, Any]:
        return {"records": _WORDS.get(ask.kind, "records")}

    @override
    def solve_for(self, patient: Resource, ask: ContradictionContent, knowledge: Knowledge) -> Solution:
        query = {"subject": f"Patient/{patient['id']}", "_count": "200"}
        records: list[Resource] = []
        for kind in KINDS:
            records += yield from search_all(f"/{kind}", query)
        died = patient.get("deceasedDateTime", "")
        history = History(patient["birthDate"], patient["gender"], died, [*map(parse_history, records)])
        return outcome_of(ask, history)

    @override
    def missing_records(self, request: ContradictionRequest, scene: HistoryScene) -> list[Resource]:
        return records_that_would_be_wrong(request, scene) if request.outcome == NOTHING_WRONG else []

    @override
    def right_end(self, request: ContradictionRequest, scene: HistoryScene) -> tuple[str, str] | None:
        outcome = outcome_of(request.ask, histories_of(scene)[request.patients[0]])
        return None if request.ask.measure == "ids" and outcome.count(",") >= MOST_IDS else (outcome, "")


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
