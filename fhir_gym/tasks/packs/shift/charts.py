"""Patients with allergies, diagnoses, results and orders."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import SNOMED, Concept, IdAllocator, Person, instant, patient_resource, reference
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.packs.shift.formulary import KG_PER_POUND, LOINC, UMOL_PER_MG, Formulary, Item
from fhir_gym.tasks.packs.shift.kind import ShiftScene
from fhir_gym.tasks.packs.shift.laboratory import UCUM, VALID
from fhir_gym.types import Resource

WEIGHT = Concept(system=LOINC, code="29463-7", display="Body weight")
CREATININE = Concept(system=LOINC, code="2160-0", display="Creatinine [Mass/volume] in Serum or Plasma")
CREATININE_MOLAR = Concept(system=LOINC, code="14682-9", display="Creatinine [Moles/volume] in Serum or Plasma")
PREGNANT = Concept(system=SNOMED, code="77386006", display="Pregnancy")
UNITS = {"kg": "kg", "[lb_av]": "lb", "mg/dL": "mg/dL", "umol/L": "umol/L"}
"""The unit in words of each UCUM code."""
DECOYS = ("allergies", "diagnoses", "results")
"""The records of a scene, besides orders, of which some do not count."""
OLDEST_DAYS = 720
"""All records are younger than this."""
COMMON_DIAGNOSES = (
    Concept(system=SNOMED, code="38341003", display="Hypertension"),
    Concept(system=SNOMED, code="195967001", display="Asthma"),
    Concept(system=SNOMED, code="37796009", display="Migraine"),
    Concept(system=SNOMED, code="271737000", display="Anemia"),
)
"""Diagnoses besides pregnancy."""

RESULT_UPDATES = {"registered": "final", "preliminary": "final", **dict.fromkeys(VALID, "entered-in-error")}
"""The status that may follow each status of a result."""
CHART_UPDATES = {
    "allergies": ("clinical", {"active": "resolved", "inactive": "active", "resolved": "active"}),
    "diagnoses": ("clinical", {"active": "resolved", "resolved": "active"}),
    "results": ("status", RESULT_UPDATES),
}
"""Updates of charts; see `RequestKind.status_updates`."""

_USUAL: Mapping[str, tuple[float, str]] = {
    WEIGHT.code: (70, "kg"),
    CREATININE.code: (1, "mg/dL"),
    CREATININE_MOLAR.code: (round(UMOL_PER_MG), "umol/L"),
}
"""Value and unit of a result, by code, if no other patient has a result with this code."""
_INVALID = ("preliminary", "entered-in-error", "cancelled", "registered")
_CLINICAL = "http://terminology.hl7.org/CodeSystem/{}-clinical"
_VERIFICATION = "http://terminology.hl7.org/CodeSystem/{}"
_FERTILE = (16, 48)
_DAY = 24 * 60


class Allergy(Params):
    """An allergy or intolerance to a drug.

    Attributes:
        patient: Id of the patient.
        drug: Name of the drug.
        type: ``allergy`` or ``intolerance``.
        clinical: Clinical status; empty if the record is an error.
        verification: Verification status.
        recorded: When the record was made (instant).
    """

    id: str
    patient: str
    drug: str
    type: str
    clinical: str
    verification: str
    recorded: str

    @property
    def counts(self) -> bool:
        """Whether the record is an active allergy."""
        return self.type == "allergy" and self.clinical == "active" and self.verification != "refuted"


class Diagnosis(Params):
    """A diagnosis.

    Attributes:
        patient: Id of the patient.
        clinical: Clinical status; empty if the record is an error.
        verification: Verification status.
        recorded: When the record was made (instant).
    """

    id: str
    patient: str
    concept: Concept
    clinical: str
    verification: str
    recorded: str

    @property
    def is_pregnancy(self) -> bool:
        """Whether the record is an active pregnancy."""
        return self.concept == PREGNANT and self.clinical == "active" and self.verification == "confirmed"


class Result(Params):
    """A measured value.

    Attributes:
        patient: Id of the patient.
        unit: UCUM code of the unit.
        taken: When the value was measured (instant).
    """

    id: str
    patient: str
    concept: Concept
    value: float
    unit: str
    status: str
    taken: str

    @property
    def amount(self) -> float:
        """The value in kg or mg/dL."""
        return self.value * {"[lb_av]": KG_PER_POUND, "umol/L": 1 / UMOL_PER_MG}.get(self.unit, 1)


class EarlierOrder(Params):
    """An order.

    Attributes:
        patient: Id of the patient.
        item: Name of the drug or test.
        written: When the order was written (instant).
        dose: The dose in milligrams; 0 for a test.
    """

    id: str
    patient: str
    item: str
    status: str
    intent: str
    written: str
    dose: int

    def as_if_valid(self, now: str) -> EarlierOrder:
        """Return the order as if it were new and active."""
        return self.model_copy(update={"status": "active", "intent": "order", "written": now})


class OrdersScene(ShiftScene):
    """The records of a group of patients.

    Attributes:
        formulary: The drugs and tests that can be ordered.
        people: The patients. Some of them share name and date of birth with another patient.
        allergies: Their allergies and intolerances.
        results: Their weights and creatinines.
    """

    now: str
    formulary: Formulary
    people: tuple[Person, ...]
    allergies: tuple[Allergy, ...]
    diagnoses: tuple[Diagnosis, ...]
    results: tuple[Result, ...]
    orders: tuple[EarlierOrder, ...]

    def with_valid(self, records: str) -> OrdersScene:
        """Return the scene as if all records of one kind counted; `records` is one of `DECOYS`."""
        active = {"type": "allergy", "clinical": "active", "verification": "confirmed", "status": "final"}
        changed = []
        for record in getattr(self, records):
            elements = {name: value for name, value in active.items() if name in type(record).model_fields}
            changed.append(record.model_copy(update=elements))
        return self.model_copy(update={records: tuple(changed)})

    @override
    def resources(self) -> list[Resource]:
        items = {item.name: item for item in self.formulary.items}
        return [
            *map(patient_resource, self.people),
            *(_allergy_resource(allergy, items[allergy.drug]) for allergy in self.allergies),
            *map(condition_resource, self.diagnoses),
            *map(result_resource, self.results),
            *(_earlier(order, items[order.item]) for order in self.orders),
        ]


class ChartSceneSampler:
    """Draws the records of patients; the records of all patients come from the same random process."""

    def __init__(self, rng: random.Random, world: World, ids: IdAllocator, formulary: Formulary) -> None:
        self._rng, self._ids, self._now, self._formulary = rng, ids, world.now, formulary

    def scene(self, people: Sequence[Person], results: int, orders: int) -> OrdersScene:
        """Draw the records of the patients.

        Args:
            people: The patients.
            results: Largest number of results of each kind for each patient.
            orders: Largest number of orders for each patient.
        """
        rng = self._rng
        return OrdersScene(
            now=instant(self._now),
            formulary=self._formulary,
            people=tuple(people),
            allergies=tuple(self._allergy(person) for person in people for _ in range(rng.choice((0, 1, 1, 2, 3)))),
            diagnoses=tuple(diagnosis for person in people for diagnosis in self._diagnoses(person)),
            results=tuple(result for person in people for result in self._results(person, results)),
            orders=tuple(self._order(person) for person in people for _ in range(rng.randint(orders // 2, orders))),
        )

    def _ago(self, days: int, least: int = 0) -> str:
        return instant(self._now - timedelta(minutes=self._rng.randrange(least * _DAY + 1, days * _DAY)))

    def _allergy(self, person: Person) -> Allergy:
        rng = self._rng
        verification = rng.choice(("confirmed", "confirmed", "unconfirmed", "refuted", "entered-in-error"))
        clinical = rng.choice(("active", "active", "inactive", "resolved"))
        return Allergy(
            id=self._ids.new("AllergyIntolerance"),
            patient=person.id,
            drug=rng.choice(self._formulary.drugs).name,
            type=rng.choice(("allergy", "allergy", "intolerance")),
            clinical="" if verification == "entered-in-error" else clinical,
            verification=verification,
            recorded=self._ago(OLDEST_DAYS),
        )

    def _diagnoses(self, person: Person) -> Iterator[Diagnosis]:
        rng = self._rng
        chosen = rng.sample(COMMON_DIAGNOSES, rng.choice((0, 1, 1, 2)))
        years = (self._now.date() - date.fromisoformat(person.birth_date)).days // 365
        if person.gender == "female" and _FERTILE[0] <= years <= _FERTILE[1] and rng.random() < 0.6:
            chosen.append(PREGNANT)
        for concept in chosen:
            verification = rng.choice(("confirmed", "confirmed", "confirmed", "refuted", "entered-in-error"))
            clinical = rng.choice(("active", "active", "resolved"))
            yield Diagnosis(
                id=self._ids.new("Condition"),
                patient=person.id,
                concept=concept,
                clinical="" if verification == "entered-in-error" else clinical,
                verification=verification,
                recorded=self._ago(150),
            )

    def _results(self, person: Person, most: int) -> Iterator[Result]:
        """Yield weights and creatinines; in some charts none of them counts."""
        rng = self._rng
        kg, creatinine = rng.uniform(50, 112), rng.choice((rng.uniform(0.6, 1.1), rng.uniform(1.1, 2.6)))
        for number, usual in enumerate((kg, creatinine)):
            count, useless = rng.randint(max(1, most // 2), most), rng.random() < 0.12
            newest = rng.choice((0, 0, 0, 0, 0, rng.randrange(60, 400))) * _DAY + 60
            for minutes in rng.sample(range(newest, (OLDEST_DAYS - 30) * _DAY), count):
                amount = usual * rng.uniform(0.85, 1.15)
                concept, value, unit = _weight(rng, amount) if number == 0 else _creatinine(rng, amount)
                valid = not useless and rng.random() < 0.6
                yield Result(
                    id=self._ids.new("Observation"),
                    patient=person.id,
                    concept=concept,
                    value=value,
                    unit=unit,
                    status=rng.choice(VALID if valid else _INVALID),
                    taken=instant(self._now - timedelta(minutes=minutes)),
                )

    def _order(self, person: Person) -> EarlierOrder:
        rng, formulary = self._rng, self._formulary
        item = rng.choice(rng.choice(formulary.kinds))
        recent = rng.random() < 0.5
        return EarlierOrder(
            id=self._ids.new(item.resource_type),
            patient=person.id,
            item=item.name,
            status=rng.choice(
                ("active", "completed", "completed", "revoked", "on-hold", "draft", "entered-in-error")
                if item.resource_type == "ServiceRequest"
                else ("active", "completed", "completed", "stopped", "cancelled", "on-hold", "entered-in-error")
            ),
            intent=rng.choice(("order", "order", "order", "plan", "proposal")),
            written=self._ago(28, 1) if recent else self._ago(120, 32),
            dose=item.dose(rng.uniform(50, 112), False) if item.group else 0,
        )


def _weight(rng: random.Random, kg: float) -> tuple[Concept, float, str]:
    if rng.random() < 0.5:
        return WEIGHT, round(kg, 1), "kg"
    return WEIGHT, round(kg / KG_PER_POUND, 1), "[lb_av]"


def _creatinine(rng: random.Random, amount: float) -> tuple[Concept, float, str]:
    if rng.random() < 0.5:
        return CREATININE, round(amount, 2), "mg/dL"
    return CREATININE_MOLAR, float(round(amount * UMOL_PER_MG)), "umol/L"


def _status(system: str, code: str) -> Resource:
    return {"coding": [{"system": system, "code": code}]}


def _allergy_resource(allergy: Allergy, item: Item) -> Resource:
    clinical = (
        {"clinicalStatus": _status(_CLINICAL.format("allergyintolerance"), allergy.clinical)}
        if allergy.clinical
        else {}
    )
    return {
        "resourceType": "AllergyIntolerance",
        "id": allergy.id,
        **clinical,
        "verificationStatus": _status(_VERIFICATION.format("allergyintolerance-verification"), allergy.verification),
        "type": allergy.type,
        "category": ["medication"],
        "code": item.concept.concept,
        "patient": reference("Patient", allergy.patient),
        "recordedDate": allergy.recorded,
    }


def condition_resource(diagnosis: Diagnosis) -> Resource:
    """Build the Condition of a diagnosis."""
    clinical = {"clinicalStatus": _status(_CLINICAL.format("condition"), diagnosis.clinical)}
    return {
        "resourceType": "Condition",
        "id": diagnosis.id,
        **(clinical if diagnosis.clinical else {}),
        "verificationStatus": _status(_VERIFICATION.format("condition-ver-status"), diagnosis.verification),
        "code": diagnosis.concept.concept,
        "subject": reference("Patient", diagnosis.patient),
        "recordedDate": diagnosis.recorded,
    }


@dataclass(frozen=True, slots=True)
class MissingResult:
    """A valid result that a patient lacks.

    Attributes:
        patient: Id of the patient.
        first: The first day on which the result counts.
    """

    id: str
    patient: str
    concept: Concept
    first: date

    def resource(self, results: Sequence[Result]) -> Resource:
        """Return the result with the value and the time of another patient's result of the same concept.

        It is older than all results of its patient that could count, so that only a search for all of them shows it.
        """
        since = self.first.isoformat()
        alike = [result for result in results if result.concept.code == self.concept.code and result.taken >= since]
        own = min((result.taken for result in alike if result.patient == self.patient), default="9")
        models = [
            result
            for result in alike
            if result.patient != self.patient and result.taken < own and result.status in VALID
        ]
        value, unit = _USUAL[self.concept.code]
        taken = f"{since}T12:00:00Z"
        if models:
            model = seeded_random(self.id).choice(models)
            value, unit, taken = model.value, model.unit, model.taken
        return result_resource(
            Result(
                id=self.id,
                patient=self.patient,
                concept=self.concept,
                value=value,
                unit=unit,
                status="final",
                taken=taken,
            )
        )


def result_resource(result: Result) -> Resource:
    """Build the Observation of a result."""
    value: float = int(result.value) if result.value.is_integer() else result.value
    return {
        "resourceType": "Observation",
        "id": result.id,
        "status": result.status,
        "code": result.concept.concept,
        "subject": reference("Patient", result.patient),
        "effectiveDateTime": result.taken,
        "valueQuantity": {"value": value, "unit": UNITS[result.unit], "system": UCUM, "code": result.unit},
    }


def order_resource(item: Item, patient: str, written: str, dose: int) -> Resource:
    """Build an active order of a drug or a test, with the elements that a request needs."""
    resource: Resource = {
        "resourceType": item.resource_type,
        "status": "active",
        "intent": "order",
        "medicationCodeableConcept" if item.group else "code": {"coding": [{"system": item.system, "code": item.code}]},
        "subject": reference("Patient", patient),
        "authoredOn": written,
    }
    if item.group:
        resource["dosageInstruction"] = [{"doseAndRate": [{"doseQuantity": {"value": dose, "unit": "mg"}}]}]
    return resource


def _earlier(order: EarlierOrder, item: Item) -> Resource:
    resource = order_resource(item, order.patient, order.written, order.dose)
    resource["medicationCodeableConcept" if item.group else "code"] = item.concept.concept
    return {
        "resourceType": item.resource_type,
        "id": order.id,
        **resource,
        "status": order.status,
        "intent": order.intent,
    }
