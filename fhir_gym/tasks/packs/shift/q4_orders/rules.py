"""Requests to order drugs and tests, and their judgement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

from fhir_gym.tasks.authoring import Concept, instant, parse_instant
from fhir_gym.tasks.packs.shift.charts import (
    CREATININE,
    CREATININE_MOLAR,
    OLDEST_DAYS,
    VALID,
    WEIGHT,
    EarlierOrder,
    MissingResult,
    OrdersScene,
    Result,
)
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.formulary import CREATININE_MARGIN, WEIGHT_MARGIN, Item
from fhir_gym.tasks.packs.shift.kind import Judgement, RequestContent
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.order_reader import OrderReader
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NOT_ALLOWED
from fhir_gym.tasks.packs.shift.patients import PatientRequest, patient_not_found
from fhir_gym.types import Json, Resource

DUPLICATE_DAYS = 30
CAUSES = ("another of the class", "allergy", "pregnancy", "creatinine", "no creatinine", "no weight")
"""The causes for which an order is not allowed."""


class OrderContent(RequestContent):
    """What to order.

    Attributes:
        patient: The patient's name and date of birth.
        item: Name of the drug or test.
    """

    patient: Named
    item: str


class OrderRequest(PatientRequest):
    """A request to order a drug or a test."""

    ask: OrderContent


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause for declining an order.

    Attributes:
        name: One of `CAUSES`, or ``duplicate``.
        records: References to the records that show the cause; each of them suffices.
        missing: Results that do not exist. If one of them existed, the cause would not apply.
    """

    name: str
    records: tuple[str, ...] = ()
    missing: tuple[MissingResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What the rules say about an order.

    Attributes:
        outcome: The outcome.
        dose: The dose in milligrams; 0 for a test.
        causes: The causes for declining it.
        settled: Whether no value is close to a limit or a rounding step.
    """

    outcome: str
    dose: int = 0
    causes: tuple[Cause, ...] = ()
    settled: bool = True


class Charts:
    """The records of the patients without their orders, and what the rules say about new orders.

    Args:
        scene: The scene.
        now: Current time, an instant.
    """

    def __init__(self, scene: OrdersScene, now: str) -> None:
        self._scene, self._now = scene, parse_instant(now)
        self._since = instant(self._now - timedelta(days=DUPLICATE_DAYS))[:10]
        self.items = {one.name: one for one in scene.formulary.items}
        self._latest: dict[tuple[str, str], Result] = {}
        for one in sorted((one for one in scene.results if one.status in VALID), key=lambda one: one.taken):
            self._latest[one.patient, "weight" if one.concept.code == WEIGHT.code else "creatinine"] = one

    def decide(self, item: Item, patient: str, orders: Iterable[EarlierOrder]) -> Decision:
        """Decide about an order.

        Args:
            item: The drug or test.
            patient: Id of the patient.
            orders: The orders of all patients before.
        """
        mine = [one for one in orders if one.patient == patient and one.intent == "order"]
        same = [one for one in mine if one.item == item.name and one.status in ("active", "completed")]
        recent = _references(item, (one.id for one in same if one.written[:10] >= self._since))
        if recent:
            return Decision(ALREADY_DONE, causes=(Cause("duplicate", recent),))
        weight, creatinine = (self._latest.get((patient, one)) for one in ("weight", "creatinine"))
        settled = creatinine is None or abs(creatinine.amount - item.limit) > CREATININE_MARGIN * item.limit
        causes = tuple(self.restrictions(item, patient, mine))
        if causes or weight is None or not item.group:
            return Decision(NOT_ALLOWED if causes else DONE, causes=causes, settled=settled)
        half = item.halved and creatinine is not None and creatinine.amount > item.limit
        doses = [item.dose(weight.amount * (1 + change), half) for change in (0, -WEIGHT_MARGIN, WEIGHT_MARGIN)]
        return Decision(DONE, doses[0], settled=settled and len({*doses}) == 1)

    def restrictions(self, item: Item, patient: str, mine: Sequence[EarlierOrder]) -> Iterator[Cause]:
        """Yield the causes for which an order is not allowed, given the patient's other orders."""
        if item.group:
            group = {one.name for one in self._scene.formulary.drugs if one.group == item.group}
            rivals = [one.id for one in mine if one.item in group - {item.name} and one.status == "active"]
            if rivals:
                yield Cause("another of the class", _references(item, rivals))
            allergies = [one for one in self._scene.allergies if one.patient == patient and one.counts]
            if found := tuple(f"AllergyIntolerance/{one.id}" for one in allergies if one.drug in group):
                yield Cause("allergy", found)
            if (patient, "weight") not in self._latest:
                yield Cause("no weight", missing=(self._absent(item, patient, WEIGHT),))
        pregnancies = [one.id for one in self._scene.diagnoses if one.patient == patient and one.is_pregnancy]
        if pregnancies and not item.pregnancy:
            yield Cause("pregnancy", tuple(f"Condition/{id}" for id in pregnancies))
        if item.limit:
            creatinine = self._latest.get((patient, "creatinine"))
            if creatinine is None:
                both = (self._absent(item, patient, one) for one in (CREATININE, CREATININE_MOLAR))
                yield Cause("no creatinine", missing=tuple(both))
            elif creatinine.amount > item.limit and not item.halved:
                yield Cause("creatinine", (f"Observation/{creatinine.id}",))

    def missing_results(self, item: Item, patient: str) -> list[Resource]:
        """Return the results that do not exist and that an order needs."""
        missing = (one for cause in self.restrictions(item, patient, ()) for one in cause.missing)
        return [one.resource(self._scene.results) for one in missing]

    def _absent(self, item: Item, patient: str, concept: Concept) -> MissingResult:
        first = (self._now - timedelta(days=OLDEST_DAYS)).date()
        return MissingResult(f"valid-{concept.code}-{item.code}-{patient}", patient, concept, first)


def _references(item: Item, ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{item.resource_type}/{id}" for id in ids)


class OrderJudge:
    """Judges orders against the orders that the agent met.

    Args:
        requests: The requests.
        scene: The scene.
        log: What the agent wrote and looked up.
        answers: The outcome that the agent reported for each request.
    """

    def __init__(
        self, requests: Sequence[OrderRequest], scene: OrdersScene, log: EpisodeLog, answers: Sequence[str]
    ) -> None:
        self._requests, self._scene, self._log, self._answers = requests, scene, log, answers
        self._reader = OrderReader(scene.formulary, log)
        self._charts = Charts(scene, instant(log.end.world.now))

    def judge(self) -> list[Judgement]:
        """Judge all requests."""
        return [self._judge_one(number) for number in range(len(self._requests))]

    @cached_property
    def _claimed(self) -> list[frozenset[str]]:
        """For each request, the new orders that belong to it."""
        found: list[set[str]] = [set() for _ in self._requests]
        for record, order in self._reader.new.items():
            patient, item = self._reader.about(order)
            numbers = [n for n, one in enumerate(self._requests) if patient in one.patients]
            alike = [n for n in numbers if self._requests[n].ask.item == item] or numbers
            # If two requests ask for the same, an order belongs to the first that was answered as done and has none.
            alike.sort(key=lambda n: (bool(found[n]), self._answers[n] != DONE, n))
            if alike:
                found[alike[0]].add(record)
        return [frozenset(one) for one in found]

    def _met(self, number: int) -> list[EarlierOrder]:
        """Return the orders before the first write for a request."""
        first = min((one.number for one in self._log.writes_of_agent if one.record in self._claimed[number]), default=0)
        found = [*self._scene.orders]
        for record in self._reader.new:
            state = self._log.before(record, first)
            if state is not None:
                found.append(self._reader.read(record, state))
        return found

    def _planned(self, number: int) -> list[EarlierOrder]:
        """Return the orders after the requests with earlier letters, as the agent has left them."""
        earlier = {record for claimed in self._claimed[:number] for record in claimed}
        states = ((record, self._log.at_end(record)) for record in self._reader.new if record in earlier)
        return [
            *self._scene.orders,
            *(self._reader.read(record, state) for record, state in states if state is not None),
        ]

    def _decide(self, number: int, orders: Sequence[EarlierOrder]) -> Decision:
        request = self._requests[number]
        return self._charts.decide(self._charts.items[request.ask.item], request.patients[0], orders)

    def _judge_one(self, number: int) -> Judgement:
        request, claimed, answer = self._requests[number], self._claimed[number], self._answers[number]
        left = claimed & self._log.changed
        if not left:
            return Judgement.declined(request, answer, self._declined(number, answer), claimed)
        problems = [*self._problems(number, left)]
        found: Json = [*problems, answer] if problems or answer != DONE else answer
        return Judgement(not problems and answer == DONE, bool(problems), request.outcome, found, claimed)

    def _problems(self, number: int, left: frozenset[str]) -> Iterator[Json]:
        """Yield what is wrong with the orders that the agent left for a request."""
        request = self._requests[number]
        possible = [
            decision
            for orders in (self._met(number), self._planned(number))
            if len(request.patients) == 1 and (decision := self._decide(number, orders)).outcome == DONE
        ]
        if len(left) != 1 or not possible:
            yield f"left {', '.join(sorted(left))}"
            return
        order = self._log.at_end(next(iter(left))) or {}
        item = self._charts.items[request.ask.item]
        yield from self._reader.problems(order, request.patients[0], item, possible[0].dose)

    def _declined(self, number: int, answer: str) -> bool:
        """Whether a request was rightly declined, after the agent had looked."""
        request = self._requests[number]
        found = patient_not_found(request, self._scene.people, self._log, answer)
        if found is not None:
            return found
        decision = self._decide(number, self._planned(number))
        return answer == decision.outcome != DONE and any(map(self._knows, decision.causes))

    def _knows(self, cause: Cause) -> bool:
        """Whether the agent saw or wrote a record that shows a cause, or looked for the missing records."""
        if cause.missing:
            return all(self._log.lookups_of(one.resource(self._scene.results)) for one in cause.missing)
        return any(one in self._log.seen or one in self._reader.new for one in cause.records)
