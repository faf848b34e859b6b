"""Tasks I1-1 and I1-2: questions about what patients take now."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator, instant
from fhir_gym.tasks.packs.shift.i1_medications.scene import (
    COUNTING,
    DRUGS,
    SCHEDULES,
    Dispense,
    Dose,
    DrugRecord,
    Letter,
    MedicationScene,
    draw_medications,
    parse_dispense,
    parse_letter,
    parse_record,
)
from fhir_gym.tasks.packs.shift.kind import Knowledge, RequestContent, ShiftSize, Solution, StatusUpdates
from fhir_gym.tasks.packs.shift.lookups import Named, search_all
from fhir_gym.tasks.packs.shift.outcomes import NO_SUCH_PATIENT, NOT_TAKEN, SEVERAL_PATIENTS
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

Measure = Literal["number", "names", "dose"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
Rule = Literal[
    "status", "intent", "statements", "letters", "newest", "supply", "void dispenses", "instructions", "needed", "unit"
]
RULES: tuple[Rule, ...] = get_args(Rule)
"""The rules; a function that is told to ignore a rule does not apply it."""

_FEWEST_RULES: Mapping[Measure, int] = {"dose": 2, "number": 3, "names": 3}
"""Number of rules that must make a difference to a question."""
_DOSE_UNITS = ("mg", "mg/day", "mg/d", "mg per day", "mg a day", "mg daily")
_DOSAGES = {"MedicationRequest": "dosageInstruction", "MedicationStatement": "dosage", "Communication": "payload"}


class MedicationContent(RequestContent):
    """A question about what a patient takes now.

    Attributes:
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
class DrugChart:
    """The records of a patient.

    Attributes:
        records: Orders and statements.
    """

    records: Sequence[DrugRecord]
    dispenses: Sequence[Dispense]
    letters: Sequence[Letter]


def drug_charts_of(scene: MedicationScene) -> dict[str, DrugChart]:
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
    return {id: DrugChart(*parts) for id, parts in records_by_patient.items()}


@dataclass(frozen=True, slots=True)
class Saying:
    """What a record says about a drug.

    Attributes:
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


def _sayings(chart: DrugChart, ignoring: Rule | None) -> Iterator[Saying]:
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
class DrugDecision:
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


def decisions(chart: DrugChart, today: str, ignoring: Rule | None = None) -> dict[str, DrugDecision]:
    """Decide about all drugs of a patient on which records that count say something."""
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
        by_drug[drug] = DrugDecision(said, lasting, ended)
    return by_drug


def daily_dose(doses: Sequence[Dose], ignoring: Rule | None = None) -> Decimal:
    """Return the milligrams a day of a dosage, without a rule."""
    counting = [dose for dose in doses if not dose.as_needed or ignoring == "needed"]
    if ignoring == "unit":
        return sum((Decimal(dose.amount) * SCHEDULES[dose.schedule].per_day for dose in counting), Decimal(0))
    return sum((dose.per_day for dose in counting[: 1 if ignoring == "instructions" else None]), Decimal(0))


def outcome_of(ask: MedicationContent, decided: Mapping[str, DrugDecision], ignoring: Rule | None = None) -> str:
    """Return the outcome of a question."""
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


class MedicationSampler(ListedQuestionSampler[MedicationScene, MedicationQuestion]):
    """Draws questions about single patients to which enough of the rules make a difference."""

    request_type, nothing, detail = MedicationQuestion, NOT_TAKEN, "drug"

    @override
    def details(self) -> Mapping[str, Sequence[str]]:
        return {"number": (), "names": (), "dose": self.scene.drugs}

    @override
    def possible(self) -> Iterator[MedicationQuestion]:
        charts = drug_charts_of(self.scene)
        for name, person in single_patients(self.scene.people):
            chart, today = charts[person.id], self.scene.today
            right = decisions(chart, today)
            wrong = {rule: decisions(chart, today, rule) for rule in RULES}
            for measure, drug in (("number", ""), ("names", ""), *(("dose", drug) for drug in right)):
                ask = MedicationContent(patient=name, measure=measure, drug=drug)
                outcome = outcome_of(ask, right)
                if sum(outcome_of(ask, wrong[rule], rule) != outcome for rule in RULES) >= _FEWEST_RULES[ask.measure]:
                    yield MedicationQuestion(ask=ask, outcome=outcome, patients=(person.id,))


class MedicationJudge(QuestionJudge[MedicationScene, MedicationQuestion]):
    """Judges answers; they count only if the agent has read the records that decide."""

    @cached_property
    def _charts(self) -> dict[str, DrugChart]:
        return drug_charts_of(self.scene)

    @override
    def check(self, request: MedicationQuestion, answer: str) -> tuple[bool, bool]:
        ask, decided = request.ask, decisions(self._charts[request.patients[0]], self.scene.today)
        asked = [decision for drug, decision in decided.items() if ask.drug in ("", drug)]
        looked = all(
            any(all(self._shows(record, ask.measure) for record in records) for records in decision.evidence)
            for decision in asked
        )
        return agrees(ask, outcome_of(ask, decided), answer), looked

    def _shows(self, record: str, measure: Measure) -> bool:
        """Whether the agent has seen what a record says."""
        dosage = _DOSAGES.get(record.partition("/")[0])
        return dosage in self.log.seen.get(record, {}) if measure == "dose" and dosage else was_read(self.log, record)


class Medications(QuestionKind[MedicationScene, MedicationQuestion]):
    """Answer questions about what patients take now."""

    key = "I1"
    title = "Questions about medication"
    codes = (NO_SUCH_PATIENT, SEVERAL_PATIENTS, NOT_TAKEN)
    value = "3"
    sampler_type = MedicationSampler
    judge_type = MedicationJudge
    status_updates: ClassVar[StatusUpdates] = {
        "records": ("status", {"active": "stopped", "on-hold": "active", "stopped": "active", "draft": "active"}),
        "dispenses": ("status", {"in-progress": "completed"}),
    }
    resource_types = ("Patient", "MedicationRequest", "MedicationStatement", "MedicationDispense", "Communication")
    questions: ClassVar[Mapping[str, tuple[str, str, str]]] = {
        "number": (
            "How many of the drugs does {who}, born {born}, take now?",
            "Please count the drugs that {who} (date of birth {born}) takes now.",
            "{who}, {born}: number of drugs taken now.",
        ),
        "names": (
            "Which of the drugs does {who}, born {born}, take now?",
            "Please list the drugs that {who} (date of birth {born}) takes now.",
            "{who}, {born}: drugs taken now.",
        ),
        "dose": (
            "How many mg of {drug} a day does {who}, born {born}, take now?",
            "Please work out the daily dose of {drug}, in mg, that {who} (date of birth {born}) takes now.",
            "{who}, {born}: {drug}, mg a day now.",
        ),
    }
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
    def rule_values(self, scene: MedicationScene) -> Mapping[str, str]:
        lines = (f"  - {name}: RxNorm {DRUGS[name].code}, trade name {DRUGS[name].trade}" for name in scene.drugs)
        return {"drugs": "\n".join(lines)}

    @override
    def text_values(self, ask: MedicationContent) -> Mapping[str, Any]:
        return {"drug": ask.drug}

    @override
    def solve_for(self, patient: Resource, ask: MedicationContent, knowledge: Knowledge) -> Solution:
        query = {"patient": f"Patient/{patient['id']}", "_count": "200"}
        records = yield from search_all("/MedicationRequest", query)
        records += yield from search_all("/MedicationStatement", query)
        dispenses = yield from search_all("/MedicationDispense", query)
        letters = yield from search_all("/Communication", query)
        chart = DrugChart(
            [*map(parse_record, records)], [*map(parse_dispense, dispenses)], [*map(parse_letter, letters)]
        )
        return outcome_of(ask, decisions(chart, instant(knowledge.now)[:10]))

    @override
    def right_end(self, request: MedicationQuestion, scene: MedicationScene) -> tuple[str, str] | None:
        return outcome_of(request.ask, decisions(drug_charts_of(scene)[request.patients[0]], scene.today)), ""


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
