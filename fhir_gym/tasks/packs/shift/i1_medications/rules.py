"""The drugs that a patient takes now, and the judgement of questions about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, get_args

from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.i1_medications.scene import (
    COUNTING,
    SCHEDULES,
    Dispense,
    Dose,
    DrugRecord,
    Letter,
    MedicationScene,
)
from fhir_gym.tasks.packs.shift.kind import Judgement, RequestContent
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import NOT_TAKEN
from fhir_gym.tasks.packs.shift.patients import PatientRequest, patient_not_found
from fhir_gym.tasks.packs.shift.questions import items_in, judge_answer, number_in, was_read

Measure = Literal["number", "names", "dose"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
Rule = Literal[
    "status", "intent", "statements", "letters", "newest", "supply", "void dispenses", "instructions", "needed", "unit"
]
RULES: tuple[Rule, ...] = get_args(Rule)

_DOSE_UNITS = ("mg", "mg/day", "mg/d", "mg per day", "mg a day", "mg daily")
_DOSAGES = {"MedicationRequest": "dosageInstruction", "MedicationStatement": "dosage", "Communication": "payload"}


class MedicationContent(RequestContent):
    """A question about what a patient takes now.

    Attributes:
        patient: The patient's name and date of birth.
        measure: The number of drugs, their names, or the daily dose of one drug.
        drug: For ``dose``: name of the drug.
    """

    patient: Named
    measure: Measure
    drug: str = ""


class MedicationQuestion(PatientRequest):
    """A question about what a patient takes now."""

    ask: MedicationContent


@dataclass(frozen=True, slots=True)
class Chart:
    """The records of a patient.

    Attributes:
        records: Orders and statements.
    """

    records: Sequence[DrugRecord]
    dispenses: Sequence[Dispense]
    letters: Sequence[Letter]


def charts_of(scene: MedicationScene) -> dict[str, Chart]:
    """Return the chart of each patient by id."""
    records_by_patient: dict[str, tuple[list[DrugRecord], list[Dispense], list[Letter]]] = {
        person.id: ([], [], []) for person in scene.people
    }
    for record in scene.records:
        records_by_patient[record.patient][0].append(record)
    for dispense in scene.dispenses:
        records_by_patient[dispense.patient][1].append(dispense)
    for letter in scene.letters:
        records_by_patient[letter.patient][2].append(letter)
    return {id: Chart(*parts) for id, parts in records_by_patient.items()}


@dataclass(frozen=True, slots=True)
class Saying:
    """What a record says about a drug.

    Attributes:
        record: Reference to the record.
        when: The time that decides (instant).
        drug: Name of the drug.
        taken: Whether the patient takes it.
        doses: The dosage, if it is taken.
    """

    record: str
    when: str
    drug: str
    taken: bool
    doses: tuple[Dose, ...]


def _sayings(chart: Chart, ignoring: Rule | None) -> Iterator[Saying]:
    """Yield the statements of the records that count."""
    for record in chart.records:
        order = record.resource_type == "MedicationRequest"
        void = record.status not in COUNTING[record.resource_type]
        counts = record.intent == "order" or ignoring == "intent" if order else ignoring != "statements"
        if counts and (not void or ignoring == "status"):
            taken = record.status == "active" or void
            yield Saying(
                f"{record.resource_type}/{record.id}", record.when, record.mention.drug, taken, record.mention.doses
            )
    for letter in chart.letters if ignoring != "letters" else ():
        if letter.status in COUNTING["Communication"] or ignoring == "status":
            for line in letter.discharge:
                yield Saying(f"Communication/{letter.id}", letter.when, line.drug, bool(line.doses), line.doses)


@dataclass(frozen=True, slots=True)
class Decision:
    """What the rules say about a drug of a patient.

    Attributes:
        said: The statement of the newest record that counts.
        lasting: References to the dispenses that count and last until today.
        ended: Reference to the dispense that counts and ended last, if none lasts until today; otherwise an empty text.
    """

    said: Saying
    lasting: tuple[str, ...]
    ended: str

    @property
    def taken(self) -> bool:
        """Whether the patient takes the drug now."""
        return self.said.taken and not self.ended

    @property
    def evidence(self) -> list[set[str]]:
        """The sets of records of which each shows whether the patient takes the drug."""
        if self.taken:
            return [{self.said.record, record} for record in self.lasting] or [{self.said.record}]
        shown = [] if self.said.taken else [{self.said.record}]
        return [*shown, {self.ended}] if self.ended else shown


def decisions(chart: Chart, today: str, ignoring: Rule | None = None) -> dict[str, Decision]:
    """Decide about all drugs of a patient on which records that count say something.

    Args:
        chart: The records of the patient.
        today: The present day.
        ignoring: A rule that is not applied.
    """
    newest: dict[str, Saying] = {}
    for saying in sorted(_sayings(chart, ignoring), key=lambda saying: saying.when):
        if not (ignoring == "newest" and saying.drug in newest and newest[saying.drug].taken):
            newest[saying.drug] = saying
    counting = [
        dispense for dispense in chart.dispenses if dispense.status == "completed" or ignoring == "void dispenses"
    ]
    by_drug = {}
    for drug, said in newest.items():
        mine = sorted(
            (dispense for dispense in counting if dispense.drug == drug), key=lambda dispense: dispense.last_day
        )
        mine = [] if ignoring == "supply" else mine
        lasting = tuple(f"MedicationDispense/{dispense.id}" for dispense in mine if dispense.last_day >= today)
        ended = f"MedicationDispense/{mine[-1].id}" if mine and not lasting else ""
        by_drug[drug] = Decision(said, lasting, ended)
    return by_drug


def daily_dose(doses: Sequence[Dose], ignoring: Rule | None = None) -> Decimal:
    """Return the milligrams a day of a dosage, without a rule."""
    counting = [dose for dose in doses if not dose.as_needed or ignoring == "needed"]
    if ignoring == "unit":
        return sum((Decimal(dose.amount) * SCHEDULES[dose.schedule].per_day for dose in counting), Decimal(0))
    return sum((dose.per_day for dose in counting[: 1 if ignoring == "instructions" else None]), Decimal(0))


def outcome_of(ask: MedicationContent, decided: Mapping[str, Decision], ignoring: Rule | None = None) -> str:
    """Return the outcome of a question.

    Args:
        ask: The question.
        decided: The decisions about the drugs of the patient.
        ignoring: A rule that is not applied.
    """
    taken = sorted(drug for drug, decision in decided.items() if decision.taken and ask.drug in ("", drug))
    if not taken:
        return NOT_TAKEN
    if ask.measure == "dose":
        return f"{daily_dose(decided[ask.drug].said.doses, ignoring).normalize():f}"
    return str(len(taken)) if ask.measure == "number" else ", ".join(taken)


def agrees(ask: MedicationContent, outcome: str, answer: str) -> bool:
    """Whether an answer in lower case says the same as an outcome; names may be in any order."""
    if outcome == NOT_TAKEN or answer == NOT_TAKEN:
        return answer == outcome
    if ask.measure == "names":
        return items_in(answer) == outcome.split(", ")
    return number_in(answer, ("drugs",) if ask.measure == "number" else _DOSE_UNITS) == Decimal(outcome)


def judge_question(request: MedicationQuestion, scene: MedicationScene, log: EpisodeLog, answer: str) -> Judgement:
    """Judge the answer to a question; it counts only if the agent has read the records that decide it."""
    not_found = patient_not_found(request, scene.people, log, answer)
    if not_found is not None:
        return judge_answer(request, answer, same=answer == request.outcome, looked=not_found)
    ask, patient = request.ask, request.patients[0]
    chart = Chart(
        [record for record in scene.records if record.patient == patient],
        [dispense for dispense in scene.dispenses if dispense.patient == patient],
        [letter for letter in scene.letters if letter.patient == patient],
    )
    decided = decisions(chart, scene.today)
    asked = [decision for drug, decision in decided.items() if ask.drug in ("", drug)]
    read = all(any(_read(records, ask.measure, log) for records in decision.evidence) for decision in asked)
    return judge_answer(request, answer, same=agrees(ask, outcome_of(ask, decided), answer), looked=read)


def _read(records: set[str], measure: Measure, log: EpisodeLog) -> bool:
    """Whether the agent has seen what these records say."""

    def shows(record: str) -> bool:
        dosage = _DOSAGES.get(record.partition("/")[0])
        return dosage in log.seen.get(record, {}) if measure == "dose" and dosage else was_read(log, record)

    return all(map(shows, records))
