"""Records that cannot be right, and the judgement of questions about them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Literal, get_args

from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.i4_contradictions.scene import KINDS, HistoryRecord, HistoryScene, history_resource
from fhir_gym.tasks.packs.shift.kind import Judgement, RequestContent
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import NOTHING_WRONG
from fhir_gym.tasks.packs.shift.patients import PatientRequest, patient_not_found
from fhir_gym.tasks.packs.shift.questions import items_in, judge_answer, number_in, was_read
from fhir_gym.types import Resource

Measure = Literal["number", "number of a type", "ids"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
Rule = Literal["birth", "death", "order", "encounter", "gender", "organ", "void", "time", "wrong removal"]
RULES: tuple[Rule, ...] = get_args(Rule)
MOST_IDS = 6


class ContradictionContent(RequestContent):
    """A question about the records of a patient that cannot be right.

    Attributes:
        patient: The patient's name and date of birth.
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
    """The records of a patient, and what the rules say about them.

    Args:
        birth_date: The patient's date of birth.
        gender: The patient's gender.
        died: When the patient died (instant); empty for a living patient.
        records: The records of the patient.
    """

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
    """Return the outcome of a question.

    Args:
        ask: The question.
        history: The records of the patient.
        ignoring: A rule that is not applied.
    """
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


def judge_contradictions(
    request: ContradictionRequest, scene: HistoryScene, history: History | None, log: EpisodeLog, answer: str
) -> Judgement:
    """Judge the answer to a question; it counts only if the agent has read the records that are wrong.

    Args:
        request: The question.
        scene: The scene.
        history: The records of the patient; None if there is not exactly one patient.
        log: The agent's lookups.
        answer: The reported outcome.
    """
    not_found = patient_not_found(request, scene.people, log, answer)
    if not_found is not None or history is None:
        return judge_answer(request, answer, same=answer == request.outcome, looked=bool(not_found))
    ask = request.ask
    outcome = outcome_of(ask, history)
    if outcome == NOTHING_WRONG:
        looked = all(log.lookups_of(record) for record in records_that_would_be_wrong(request, scene))
        return judge_answer(request, answer, same=answer == outcome, looked=looked)
    wrong = history.wrong(ask.kind)
    looked = all(was_read(log, record.reference) for record in wrong)
    looked &= all(
        not removed or any(was_read(log, record) for record in removed) for removed in map(history.removals, wrong)
    )
    return judge_answer(request, answer, same=agrees(ask, outcome, answer), looked=looked)
