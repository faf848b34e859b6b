"""The judgement of requests to use order sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from fhir_gym.tasks.packs.shift.charts import EarlierOrder
from fhir_gym.tasks.packs.shift.kind import Judgement
from fhir_gym.tasks.packs.shift.order_reader import ORDERS, OrderReader
from fhir_gym.tasks.packs.shift.order_sets import (
    Obstacle,
    OrderSetRequest,
    OrderSetScene,
    SetCharts,
    SetDecision,
    decided_by,
    order_set_for,
)
from fhir_gym.tasks.packs.shift.outcomes import DONE
from fhir_gym.tasks.packs.shift.patients import patient_not_found
from fhir_gym.tasks.packs.shift.writes import EpisodeLog
from fhir_gym.types import Json


class OrderSetJudge:
    """Judges the use of order sets; each patient has at most one request.

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
        return [self._judge_one(*one) for one in zip(self._requests, answers, strict=True)]

    def _judge_one(self, request: OrderSetRequest, answer: str) -> Judgement:
        claimed = frozenset().union(*(self._reader.new_by_patient.get(one, ()) for one in request.patients))
        left = claimed & self._log.changed
        decision = self._decide(request, claimed) if len(request.patients) == 1 else None
        if not left:
            return Judgement.declined(request, answer, self._declined(request, decision, answer), claimed)
        problems = [*self._problems(request, decision, sorted(left))]
        found: Json = [*problems, answer] if problems or answer != DONE else answer
        expected: Json = {DONE: dict(decision.orders)} if decision and decision.orders else request.outcome
        return Judgement(not problems and answer == DONE, bool(problems), expected, found, claimed)

    def _decide(self, request: OrderSetRequest, claimed: frozenset[str]) -> SetDecision:
        """Decide by the orders before the agent's first write for the request."""
        first = min((one.number for one in self._log.writes_of_agent if one.record in claimed), default=None)
        ask, patient = request.ask, request.patients[0]
        order_set = order_set_for(ask, self._scene, self._scene.library)
        return self._charts.decide(ask.order_set, order_set, patient, self._orders_before(patient, first))

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
        """Whether the agent has read the policies and seen the records that lead to a cause."""
        return (
            self._log.has_seen(decided_by(request.ask, self._scene, obstacle.points))
            and all(any(one in self._log.seen for one in group) for group in obstacle.records)
            and all(self._log.lookups_of(one) for one in obstacle.missing)
        )
