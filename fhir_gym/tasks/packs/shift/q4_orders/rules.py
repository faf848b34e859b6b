"""Requests to order drugs and tests, and their judgement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from functools import cached_property

from typing_extensions import override

from fhir_gym.tasks.authoring import Concept, instant
from fhir_gym.tasks.packs.shift.charts import (
    CREATININE,
    CREATININE_MOLAR,
    OLDEST_DAYS,
    WEIGHT,
    EarlierOrder,
    MissingResult,
    OrdersScene,
)
from fhir_gym.tasks.packs.shift.engine.orders import Cause, Charts, Decision, OrderJudge
from fhir_gym.tasks.packs.shift.formulary import CREATININE_MARGIN, WEIGHT_MARGIN, Item
from fhir_gym.tasks.packs.shift.kind import RequestContent
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NOT_ALLOWED
from fhir_gym.tasks.packs.shift.patients import PatientRequest
from fhir_gym.types import Json

DUPLICATE_DAYS = 30
CAUSES = ("another of the class", "allergy", "pregnancy", "creatinine", "no creatinine", "no weight")
"""The causes for which an order is not allowed."""


class OrderContent(RequestContent):
    """What to order.

    Attributes:
        item: Name of the drug or test.
    """

    patient: Named
    item: str


class OrderRequest(PatientRequest):
    """A request to order a drug or a test."""

    ask: OrderContent


class OrderRules(Charts):
    """What the rules say about new orders."""

    def decide(self, item: Item, patient: str, orders: Iterable[EarlierOrder]) -> Decision:
        """Decide about an order."""
        mine = [order for order in orders if order.patient == patient and order.intent == "order"]
        since = (self.today - timedelta(days=DUPLICATE_DAYS)).isoformat()
        same = [order for order in mine if order.item == item.name and order.status in ("active", "completed")]
        recent = _references(item, (order.id for order in same if order.written[:10] >= since))
        if recent:
            return Decision(ALREADY_DONE, causes=(Cause("duplicate", (recent,)),))
        weight, creatinine = (self.latest(patient, name) for name in ("weight", "creatinine"))
        settled = creatinine is None or abs(creatinine.amount - item.limit) > CREATININE_MARGIN * item.limit
        causes = tuple(self.causes(item, patient, mine))
        if causes:
            return Decision(NOT_ALLOWED, causes=causes, settled=settled)
        if weight is None or not item.group:
            return Decision(DONE, {item.name: 0}, settled=settled)
        half = item.halved and creatinine is not None and 0 < item.limit < creatinine.amount
        doses = [item.dose(weight.amount * (1 + change), half) for change in (0, -WEIGHT_MARGIN, WEIGHT_MARGIN)]
        return Decision(DONE, {item.name: doses[0]}, settled=settled and len({*doses}) == 1)

    def causes(self, item: Item, patient: str, mine: Sequence[EarlierOrder]) -> Iterator[Cause]:
        """Yield the causes for which an order is not allowed, given the patient's other orders."""
        if item.group:
            rivals = [
                order.id
                for order in mine
                if order.status == "active" and order.item != item.name and self.groups.get(order.item) == item.group
            ]
            if rivals:
                yield Cause("another of the class", (_references(item, rivals),))
            if allergies := self.allergies(patient, item.group):
                yield Cause("allergy", (allergies,))
            if self.latest(patient, "weight") is None:
                yield self._missing("no weight", item, patient, WEIGHT)
        if not item.pregnancy and (pregnancies := self.pregnancies(patient)):
            yield Cause("pregnancy", (pregnancies,))
        if item.limit:
            creatinine = self.latest(patient, "creatinine")
            if creatinine is None:
                yield self._missing("no creatinine", item, patient, CREATININE, CREATININE_MOLAR)
            elif creatinine.amount > item.limit and not item.halved:
                yield Cause("creatinine", ((f"Observation/{creatinine.id}",),))

    def _missing(self, name: str, item: Item, patient: str, *concepts: Concept) -> Cause:
        """Return the cause that there is no valid result of some concepts."""
        first = self.today - timedelta(days=OLDEST_DAYS)
        results = (
            MissingResult(f"valid-{concept.code}-{item.code}-{patient}", patient, concept, first)
            for concept in concepts
        )
        return Cause(name, missing=tuple(results))


def _references(item: Item, ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{item.resource_type}/{id}" for id in ids)


class SingleOrderJudge(OrderJudge[OrdersScene, OrderRequest]):
    """Judges requests for one order each."""

    @cached_property
    def _rules(self) -> OrderRules:
        return OrderRules(self.scene, instant(self.log.end.world.now))

    @override
    @cached_property
    def claimed(self) -> list[frozenset[str]]:
        claimed: list[set[str]] = [set() for _ in self.requests]
        for record, order in self.reader.new.items():
            patient, item = self.reader.about(order)
            numbers = [number for number, request in enumerate(self.requests) if patient in request.patients]
            alike = [number for number in numbers if self.requests[number].ask.item == item] or numbers
            # If two requests ask for the same, an order belongs to the first that was answered as done and has none.
            alike.sort(key=lambda number: (bool(claimed[number]), self.answers[number] != DONE, number))
            if alike:
                claimed[alike[0]].add(record)
        return [frozenset(records) for records in claimed]

    @override
    def decide(self, number: int, orders: Sequence[EarlierOrder]) -> Decision:
        request = self.requests[number]
        return self._rules.decide(self._rules.items[request.ask.item], request.patients[0], orders)

    @override
    def problems(self, number: int, left: Sequence[str]) -> tuple[Sequence[Json], Json]:
        request, decisions = self.requests[number], self.decisions(number, self.claimed)
        possible = [decision for decision in decisions if decision.outcome == DONE]
        if len(left) != 1 or not possible:
            return [f"left {', '.join(left)}"], None
        item, dose = self._rules.items[request.ask.item], possible[0].orders[request.ask.item]
        return [*self.reader.problems(self.log.at_end(left[0]) or {}, request.patients[0], item, dose)], None
