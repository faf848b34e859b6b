"""The judgement of requests to use order sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from fhir_gym.tasks.packs.shift.charts import EarlierOrder
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.kind import Judgement
from fhir_gym.tasks.packs.shift.order_reader import ORDERS, OrderReader
from fhir_gym.tasks.packs.shift.outcomes import DONE
from fhir_gym.tasks.packs.shift.p2_order_sets.rules import (
    Obstacle,
    OrderSet,
    OrderSetRequest,
    OrderSetScene,
    SetCharts,
    SetDecision,
    decided_by,
    order_set_for,
)
from fhir_gym.tasks.packs.shift.patients import patient_not_found
from fhir_gym.types import Json


class OrderSetJudge:
    """Judges the use of order sets against the orders that the agent met.

    Args:
        requests: The requests.
        scene: The scene.
        log: What the agent wrote and looked up.
    """

    def __init__(self, requests: Sequence[OrderSetRequest], scene: OrderSetScene, log: EpisodeLog) -> None:
        self._requests, self._scene, self._log = requests, scene, log
        self._reader, self._charts = OrderReader(scene.formulary, log), SetCharts(scene, scene.now)

    def judge(self, answers: Sequence[str]) -> list[Judgement]:
        """Judge all requests."""
        claimed = self._claimed(answers)
        return [self._judge_one(number, claimed, answer) for number, answer in enumerate(answers)]

    def _claimed(self, answers: Sequence[str]) -> list[frozenset[str]]:
        """Return for each request the new orders that belong to it.

        Requests about the same patient that were answered as done take what they need, one after the other. What is
        left belongs to the first request about the patient whose order set may contain it, or to the first at all.
        """
        claimed: list[frozenset[str]] = [frozenset() for _ in self._requests]
        left = dict(self._reader.new)
        for number, request in enumerate(self._requests):
            if len(request.patients) == 1 and answers[number] == DONE:
                needed = {item: "" for item in self._decisions(number, claimed)[-1].orders}
                for record, order in left.items():
                    patient, item = self._reader.about(order)
                    if patient == request.patients[0] and needed.get(item) == "":
                        needed[item] = record
                claimed[number] = frozenset(filter(None, needed.values()))
                left = {record: order for record, order in left.items() if record not in claimed[number]}
        for record, order in left.items():
            patient, item = self._reader.about(order)
            numbers = [number for number, one in enumerate(self._requests) if patient in one.patients]
            alike = [number for number in numbers if item in self._set_of(self._requests[number]).items] or numbers
            for number in alike[:1]:
                claimed[number] |= {record}
        return claimed

    def _judge_one(self, number: int, claimed: Sequence[frozenset[str]], answer: str) -> Judgement:
        request, mine = self._requests[number], claimed[number]
        decisions: Sequence[SetDecision | None]
        left = mine & self._log.changed
        decisions = self._decisions(number, claimed) if len(request.patients) == 1 else [None]
        if not left:
            return Judgement.declined(request, answer, self._declined(request, decisions[-1], answer), mine)
        found_by = [(one, [*self._problems(request, one, sorted(left))]) for one in decisions]
        decision, problems = min(found_by, key=lambda one: len(one[1]))
        found: Json = [*problems, answer] if problems or answer != DONE else answer
        expected: Json = {DONE: dict(decision.orders)} if decision and decision.orders else request.outcome
        return Judgement(not problems and answer == DONE, bool(problems), expected, found, mine)

    def _set_of(self, request: OrderSetRequest) -> OrderSet:
        return order_set_for(request.ask, self._scene, self._scene.library)

    def _decisions(self, number: int, claimed: Sequence[frozenset[str]]) -> Sequence[SetDecision]:
        """Decide by the orders before the agent's first write for a request, and by those of earlier requests."""
        request = self._requests[number]
        first = min((one.number for one in self._log.writes_of_agent if one.record in claimed[number]), default=None)
        ask, patient = request.ask, request.patients[0]
        others = [*self._orders_before(patient, first)]
        own = [record for record in self._reader.new_by_patient.get(patient, ()) if record not in claimed[number]]
        met = [(one, self._log.before(one, first)) for one in own] if first is not None else []
        earlier = frozenset().union(*claimed[:number])
        planned = [(one, self._log.at_end(one)) for one in own if one in earlier]
        return [
            self._charts.decide(
                ask.order_set,
                self._set_of(request),
                patient,
                [*others, *(self._reader.read(record, state) for record, state in orders if state is not None)],
            )
            for orders in (met, planned)
        ]

    @cached_property
    def _orders(self) -> dict[str, list[str]]:
        """References to the orders of the scene by the id of the patient."""
        types = {one.name: one.resource_type for one in self._scene.formulary.items}
        found: dict[str, list[str]] = {}
        for one in self._scene.orders:
            found.setdefault(one.patient, []).append(f"{types[one.item]}/{one.id}")
        return found

    def _orders_before(self, patient: str, write: int | None) -> Iterator[EarlierOrder]:
        """Yield the patient's orders before a write of the agent, or at the end, without the agent's own orders."""
        number = len(self._log.writes) if write is None else write
        others = self._log.created_by_others.get(f"Patient/{patient}", ())
        created = (one.record for one in others if one.number < number and one.resource_type in ORDERS)
        for record in (*self._orders.get(patient, ()), *created):
            state = self._log.before(record, number)
            if state is not None:
                yield self._reader.read(record, state)

    def _problems(self, request: OrderSetRequest, decision: SetDecision | None, left: Sequence[str]) -> Iterator[Json]:
        """Yield what is wrong with the orders that the agent left for a request."""
        if decision is None or decision.outcome != DONE:
            yield f"left {', '.join(left)}"
            return
        missing = dict(decision.orders)
        for record in left:
            order = self._log.at_end(record) or {}
            item = self._reader.about(order)[1]
            if item not in missing:
                yield f"left {record}"
                continue
            dose = missing.pop(item)
            yield from self._reader.problems(order, request.patients[0], self._scene.formulary.named(item), dose)
        for item in missing:
            yield f"no order for {item}"

    def _declined(self, request: OrderSetRequest, decision: SetDecision | None, answer: str) -> bool:
        """Whether a request was rightly declined, after the agent had looked."""
        found = patient_not_found(request, self._scene.people, self._log, answer)
        if found is not None or decision is None:
            return bool(found)
        return answer == decision.outcome != DONE and any(self._knows(request, one) for one in decision.obstacles)

    def _knows(self, request: OrderSetRequest, obstacle: Obstacle) -> bool:
        """Whether the agent has read the policies and seen or written the records that lead to a cause."""
        known = (self._log.seen, self._reader.new)
        return (
            self._log.has_seen(decided_by(request.ask, self._scene, obstacle.points))
            and all(any(one in records for one in group for records in known) for group in obstacle.records)
            and all(self._log.lookups_of(one.resource(self._scene.results)) for one in obstacle.missing)
        )
