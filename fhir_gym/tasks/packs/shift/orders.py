"""Requests to order drugs and tests: what patients' records say about orders, and the judgement of the orders."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from typing_extensions import override

from fhir_gym.tasks.authoring import Concept, codings, concept_texts, instant
from fhir_gym.tasks.grading import same_moment
from fhir_gym.tasks.packs.shift.charts import (
    CREATININE,
    CREATININE_MOLAR,
    DECOYS,
    PREGNANT,
    WEIGHT,
    Allergy,
    Diagnosis,
    EarlierOrder,
    MissingResult,
    OrdersScene,
    Result,
)
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.formulary import KG_PER_POUND, UMOL_PER_MG, Formulary, Item
from fhir_gym.tasks.packs.shift.kind import RequestSampler
from fhir_gym.tasks.packs.shift.laboratory import VALID
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import DONE
from fhir_gym.tasks.packs.shift.patient_records import coded_in, other_values
from fhir_gym.tasks.packs.shift.patients import PatientJudge, PatientRequest
from fhir_gym.types import Json, Resource, only_object

NEW = "new-"
"""Beginning of the ids of orders that earlier requests lead to."""
ORDERS = ("MedicationRequest", "ServiceRequest")
"""The resource types of orders."""
_ORDER = ("status", "intent", "subject", "authoredOn")
_DOSE = ("dosageInstruction", "dosageInstruction.doseAndRate", "dosageInstruction.doseAndRate.doseQuantity")
CODES_RULE = (
    f"The weight has the LOINC code {WEIGHT.code}, in kilograms or pounds (1 lb is {KG_PER_POUND} kg). The creatinine "
    f"has the LOINC code {CREATININE.code} in mg/dL or {CREATININE_MOLAR.code} in umol/L (1 mg/dL is {UMOL_PER_MG} "
    "umol/L); the latest of both counts"
)
"""The codes and units of results, for prompts."""
ORDER_RULE = (
    "with status active, intent order, the patient as subject, today's date as authoredOn (with or without a time) and "
    "the code of the list and no other code, in medicationCodeableConcept or code. A MedicationRequest has one "
    "dosageInstruction with one doseAndRate. Its doseQuantity has the dose as value and mg as unit, as code or as "
    "both; the system of the code may be added. The dosageInstruction says nothing else: it has no text, route or "
    "timing."
)
"""What an order says, for prompts."""
ORDER_ELEMENTS = MappingProxyType(
    {"MedicationRequest": (*_ORDER, "medicationCodeableConcept", *_DOSE), "ServiceRequest": (*_ORDER, "code")}
)
"""The elements that requests for orders ask for; see `Task.requested_elements`."""


_CODES = {
    "Condition": PREGNANT.token,
    "Observation": ",".join(concept.token for concept in (WEIGHT, CREATININE, CREATININE_MOLAR)),
}
"""The codes of the records that decide, by resource type; of other types, all records are read."""

T = TypeVar("T", bound=OrdersScene)
Q = TypeVar("Q", bound=PatientRequest)


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause for declining a request.

    Attributes:
        records: Groups of references. An agent knows the cause if it has seen a record of each group.
        missing: Results that do not exist. If one of them existed, the cause would not apply.
        points: The points of the policies that lead to it.
    """

    name: str
    records: tuple[tuple[str, ...], ...] = ()
    missing: tuple[MissingResult, ...] = ()
    points: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What the rules say about a request.

    Attributes:
        orders: The dose in milligrams of each ordered drug; 0 for an ordered test.
        causes: The causes for declining the request; each alone suffices.
        settled: Whether no value is close to a limit or a rounding step.
    """

    outcome: str
    orders: Mapping[str, int] = field(default_factory=dict)
    causes: tuple[Cause, ...] = ()
    settled: bool = True

    @property
    def result(self) -> tuple[str, Mapping[str, int]]:
        """The outcome and the orders."""
        return self.outcome, self.orders


class Charts:
    """The records of patients without their orders."""

    def __init__(self, scene: OrdersScene, now: str) -> None:
        self.today, self._results = date.fromisoformat(now[:10]), scene.results
        self.items = {item.name: item for item in scene.formulary.items}
        self.groups = {drug.name: drug.group for drug in scene.formulary.drugs}
        self._allergies: dict[tuple[str, str], list[str]] = {}
        for allergy in scene.allergies:
            if allergy.counts:
                group = self._allergies.setdefault((allergy.patient, self.groups[allergy.drug]), [])
                group.append(f"AllergyIntolerance/{allergy.id}")
        self._pregnancies: dict[str, list[str]] = {}
        for diagnosis in scene.diagnoses:
            if diagnosis.is_pregnancy:
                self._pregnancies.setdefault(diagnosis.patient, []).append(f"Condition/{diagnosis.id}")
        self._latest: dict[tuple[str, str], Result] = {}
        for result in sorted(
            (result for result in scene.results if result.status in VALID), key=lambda result: result.taken
        ):
            name = "weight" if result.concept.code == WEIGHT.code else "creatinine"
            self._latest[result.patient, name] = result

    def allergies(self, patient: str, group: str) -> tuple[str, ...]:
        """Return references to the patient's allergies to a class of drugs."""
        return tuple(self._allergies.get((patient, group), ()))

    def pregnancies(self, patient: str) -> tuple[str, ...]:
        """Return references to the patient's active pregnancies."""
        return tuple(self._pregnancies.get(patient, ()))

    def latest(self, patient: str, name: str) -> Result | None:
        """Return the latest valid ``weight`` or ``creatinine`` of a patient."""
        return self._latest.get((patient, name))

    def resources(self, causes: Iterable[Cause]) -> list[Resource]:
        """Return the missing results because of which causes apply."""
        return [result.resource(self._results) for cause in causes for result in cause.missing]


C = TypeVar("C", bound=Charts)


def decoy_charts(charts: type[C], scene: OrdersScene) -> dict[str, C]:
    """Return the charts as if all records of one kind counted, by the name of the kind; see `DECOYS`."""
    return {name: charts(scene.with_valid(name), scene.now) for name in DECOYS}


def deciding_codes(resource_type: str) -> dict[str, str]:
    """Return the search parameter with the codes of the records of a type that may decide about an order."""
    return {"code": _CODES[resource_type]} if resource_type in _CODES else {}


def read_chart(records: Iterable[Resource], formulary: Formulary, now: str, patient: str) -> OrdersScene:
    """Read the records of a patient."""
    by_type: dict[str, list[Resource]] = {}
    for record in records:
        by_type.setdefault("Order" if record["resourceType"] in ORDERS else record["resourceType"], []).append(record)
    names = {item.code: item.name for item in formulary.items}
    return OrdersScene(
        now=now,
        formulary=formulary,
        people=(),
        allergies=tuple(
            Allergy(drug=names[code], type=allergy_intolerance["type"], **_condition(allergy_intolerance, patient))
            for allergy_intolerance in by_type.get("AllergyIntolerance", ())
            if (code := _coding(allergy_intolerance["code"])["code"]) in names
        ),
        diagnoses=tuple(
            Diagnosis(concept=PREGNANT, **_condition(condition, patient)) for condition in by_type.get("Condition", ())
        ),
        results=tuple(_result(observation, patient) for observation in by_type.get("Observation", ())),
        orders=tuple(
            EarlierOrder(
                item=names[code],
                dose=0,
                written=order["authoredOn"],
                patient=patient,
                **{name: order[name] for name in ("id", "status", "intent")},
            )
            for order in by_type.get("Order", ())
            if (code := _coding(order.get("code") or order.get("medicationCodeableConcept"))["code"]) in names
        ),
    )


def _coding(concept: Json) -> Resource:
    """Return the first coding of a CodeableConcept; an object with an empty code if there is none."""
    return next(iter(codings(concept)), {"code": ""})


def _condition(record: Resource, patient: str) -> dict[str, Any]:
    """Return the fields that allergies and diagnoses share."""
    return {
        "id": record["id"],
        "patient": patient,
        "clinical": _coding(record.get("clinicalStatus"))["code"],
        "verification": _coding(record["verificationStatus"])["code"],
        "recorded": record["recordedDate"],
    }


def _result(record: Resource, patient: str) -> Result:
    coding, quantity = _coding(record["code"]), record["valueQuantity"]
    return Result(
        id=record["id"],
        patient=patient,
        concept=Concept(**{name: coding[name] for name in ("system", "code", "display")}),
        value=quantity["value"],
        unit=quantity["code"],
        status=record["status"],
        taken=record["effectiveDateTime"],
    )


class OrderReader:
    """Reads the orders that an agent wrote."""

    def __init__(self, formulary: Formulary, log: EpisodeLog) -> None:
        self._formulary, self._log = formulary, log
        self._today = instant(log.end.world.now)[:10]

    @cached_property
    def new(self) -> dict[str, Resource]:
        """The orders that the agent created, each as it last was, in the order of their creation."""
        return {
            record: order
            for record, order in self._log.created.items()
            if order["resourceType"] in ORDERS and self._log.writes_on(record)[0].by_agent
        }

    def about(self, order: Resource) -> tuple[str, str]:
        """Return an order's patient id and item name; empty if unknown."""
        concept = order.get("code") if order.get("resourceType") == "ServiceRequest" else _drug(order)
        told = coded_in(concept)
        items = (item for item in self._formulary.items if (item.system, item.code) in told)
        item = next((item.name for item in items if item.resource_type == order.get("resourceType")), "")
        patient = self._log.end.refers(order.get("subject")) or ""
        return patient.removeprefix("Patient/"), item

    def read(self, record: str, order: Resource) -> EarlierOrder:
        """Read an order."""
        patient, item = self.about(order)
        status, intent, written = (str(order.get(name)) for name in ("status", "intent", "authoredOn"))
        id = record.partition("/")[2]
        return EarlierOrder(id=id, patient=patient, item=item, status=status, intent=intent, written=written, dose=0)

    def problems(self, order: Resource, patient: str, item: Item, dose: int) -> Iterator[Json]:
        """Yield the errors in a new order."""
        if self.about(order) != (patient, item.name) or not self._names_only(order, item):
            yield f"ordered {_drug(order) if item.group else order.get('code')}"
        yield from other_values(order, status="active", intent="order")
        if not same_moment(order.get("authoredOn"), self._today):
            yield f"authoredOn {order.get('authoredOn')}"
        if item.group and not _is_dose(order.get("dosageInstruction"), dose):
            yield {"expected dose in mg": dose, "dosageInstruction": order.get("dosageInstruction")}

    def _names_only(self, order: Resource, item: Item) -> bool:
        """Whether an order has no other code, and its texts do not name another drug or test."""
        concept = _drug(order) if item.group else order.get("code")
        if {*coded_in(concept)} != {(item.system, item.code)}:
            return False
        texts, name = [concept_text.casefold() for concept_text in concept_texts(concept)], item.name.casefold()
        if item.group:
            return all(name in text or text == item.code for text in texts)
        # The code system has other names for a test.
        others = [text.name.casefold() for text in self._formulary.items if text.name != item.name]
        return not any(other in text for text in texts for other in others)


def _drug(order: Resource) -> Json:
    return order.get("medicationCodeableConcept")


def _is_dose(instructions: Json, dose: int) -> bool:
    """Whether a dosage instruction contains exactly this dose in milligrams."""
    quantity = only_object(only_object(instructions).get("doseAndRate")).get("doseQuantity")
    if not isinstance(quantity, dict) or "comparator" in quantity:
        return False
    value, units = quantity.get("value"), [quantity[name] for name in ("unit", "code") if name in quantity]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and value == dose and bool(units) and all(unit == "mg" for unit in units)


class OrderJudge(PatientJudge[T, Q], Generic[T, Q]):
    """Judges orders against the orders that the agent met, and those that earlier requests leave."""

    @cached_property
    def reader(self) -> OrderReader:
        """Reads the orders."""
        return OrderReader(self.scene.formulary, self.log)

    @abstractmethod
    def decide(self, number: int, orders: Sequence[EarlierOrder]) -> Decision:
        """Decide about the request with a number, after other orders."""

    def knows_policies(self, number: int, cause: Cause) -> bool:
        """Whether the agent has read the policies that lead to a cause."""
        return True

    def orders_before(self, patient: str, write: int) -> Iterable[EarlierOrder]:
        """Return the patient's orders before a write of the agent, without the agent's own orders."""
        return self.scene.orders

    def decisions(self, number: int, claimed: Sequence[frozenset[str]]) -> list[Decision]:
        """Decide by the orders before the agent's first write for a request, and by those of earlier requests.

        Args:
            number: The number of the request.
            claimed: For each request, the new orders that belong to it.
        """
        request, log = self.requests[number], self.log
        if len(request.patients) != 1:
            return []
        patient, first = request.patients[0], self.first_write(claimed[number])
        others = [*self.orders_before(patient, len(log.writes) if first is None else first)]
        own = [record for record in self.reader.new if record not in claimed[number]]
        earlier = frozenset[str]().union(*claimed[:number])
        met = {record: log.before(record, first) for record in own} if first is not None else {}
        planned = {record: log.at_end(record) for record in own if record in earlier}
        return [self.decide(number, [*others, *self._read(orders)]) for orders in (met, planned)]

    def _read(self, orders: Mapping[str, Resource | None]) -> Iterator[EarlierOrder]:
        return (self.reader.read(record, order) for record, order in orders.items() if order is not None)

    @override
    def is_rightly_declined_for_patient(self, number: int) -> bool:
        decision = self.decisions(number, self.claimed)[-1]
        is_right = self.answers[number] == decision.outcome != DONE
        return is_right and any(self._knows(number, cause) for cause in decision.causes)

    def _knows(self, number: int, cause: Cause) -> bool:
        """Whether the agent has seen or written the records that show a cause, or looked for the missing ones."""
        sources = (self.log.seen, self.reader.new)
        return (
            self.knows_policies(number, cause)
            and all(any(record in records for record in group for records in sources) for group in cause.records)
            and all(self.log.lookups_of(result.resource(self.scene.results)) for result in cause.missing)
        )


class OrderSampler(RequestSampler[T, Q], Generic[T, Q]):
    """Gives samplers the patients and orders of a scene."""

    def __init__(self, rng: random.Random, now: datetime, scene: T, outcomes: Sequence[str]) -> None:
        super().__init__(rng, now, scene, outcomes)
        self.ids: dict[Named, tuple[str, ...]] = {}
        for person in scene.people:
            name = Named.of(person)
            self.ids[name] = (*self.ids.get(name, ()), person.id)
        self.orders: dict[str, list[EarlierOrder]] = {}
        for order in scene.orders:
            self.orders.setdefault(order.patient, []).append(order)

    def new_order(self, patient: str, item: str) -> EarlierOrder:
        """Return the order of the request that was just chosen."""
        values = {"patient": patient, "status": "active", "intent": "order", "written": self.scene.now}
        return EarlierOrder(id=f"{NEW}{len(self.chosen)}-{item}", item=item, dose=0, **values)
