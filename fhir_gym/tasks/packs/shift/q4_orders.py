"""Tasks Q4-1 and Q4-2: requests to order drugs and tests."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from itertools import product
from types import MappingProxyType
from typing import Any, ClassVar

from typing_extensions import override

from fhir_gym.actions import Post
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import Concept, IdAllocator, instant
from fhir_gym.tasks.packs.shift.charts import (
    CHART_UPDATES,
    CREATININE,
    CREATININE_MOLAR,
    DECOYS,
    OLDEST_DAYS,
    PREGNANT,
    WEIGHT,
    ChartSceneSampler,
    EarlierOrder,
    MissingResult,
    OrdersScene,
    order_resource,
)
from fhir_gym.tasks.packs.shift.formulary import CREATININE_MARGIN, WEIGHT_MARGIN, Formulary, Item, draw_formulary
from fhir_gym.tasks.packs.shift.kind import (
    Knowledge,
    RequestContent,
    RequestSampler,
    ShiftSize,
    Solution,
    StatusUpdates,
)
from fhir_gym.tasks.packs.shift.lookups import Named, search_all
from fhir_gym.tasks.packs.shift.orders import (
    CODES_RULE,
    NEW,
    ORDER_ELEMENTS,
    ORDER_RULE,
    Cause,
    Charts,
    Decision,
    OrderJudge,
    OrderSampler,
    deciding_codes,
    decoy_charts,
    read_chart,
)
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NO_SUCH_PATIENT, NOT_ALLOWED, SEVERAL_PATIENTS
from fhir_gym.tasks.packs.shift.patients import (
    PATIENT_RULE,
    PatientKind,
    PatientRequest,
    draw_patients,
    drawn_again,
    drawn_by_patient,
    names_for,
)
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.types import Json, Resource

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


_DRUGS = 0.65
"""Probability that a request is for a drug if both drugs and tests qualify."""
_SAME_PATIENT = 0.4
"""Probability that a request is about the patient of an earlier request if such a request qualifies."""
_CREATININE, _OLD_ORDERS, _ORDERS, _OWN_ORDERS = "creatinine", "old orders", "orders", "own orders"
_NO_LIMIT = 1e9
_LIMITED = MappingProxyType({DONE: 2, NOT_ALLOWED: 4.5})
"""By outcome: the probability that rather a limit of the creatinine or of the age of orders decides than another rule,
times the number of requests."""


class SingleOrderSampler(OrderSampler[OrdersScene, OrderRequest]):
    """Chooses requests one after the other."""

    def __init__(self, rng: random.Random, now: datetime, scene: OrdersScene, outcomes: Sequence[str]) -> None:
        super().__init__(rng, now, scene, outcomes)
        self._count, self._rules = len(outcomes), OrderRules(scene, scene.now)
        self._decoys = decoy_charts(OrderRules, scene)
        self._decisions: dict[tuple[str, str], Decision] = {}

    @override
    def draw(self, outcome: str, *, depends: bool) -> OrderRequest | None:
        preferred, others = self._contents(outcome)
        for contents, cause in product((preferred, others), (_OWN_ORDERS,) if depends else self._wanted(outcome)):
            requests = (
                OrderRequest(ask=content, outcome=outcome, patients=self.ids.get(content.patient, ()))
                for content in contents
            )
            fitting = [request for request in requests if self._qualifies(request, cause)]
            if fitting:
                again = self._about_earlier_patients(fitting)
                request = drawn_by_patient(self.rng, again or fitting)
                if any(earlier.patients == request.patients for earlier in self.chosen):
                    request = drawn_again(request, self.chosen)
                return request
        return None

    @override
    def apply(self, request: OrderRequest) -> None:
        if request.outcome == DONE:
            (patient,) = request.patients
            self.orders.setdefault(patient, []).append(self.new_order(patient, request.ask.item))
            self._decisions = {key: decision for key, decision in self._decisions.items() if key[1] != patient}

    def _qualifies(self, request: OrderRequest, cause: str) -> bool:
        """Whether a request has its outcome by the rules, and has the wanted cause or decoy."""
        if self._repeats(request) or len(request.patients) != 1:
            return not self._repeats(request)
        decision = self._decide(request)
        right = decision.outcome == request.outcome and decision.settled
        return right and (not cause or self._has(request, decision, cause))

    def _wanted(self, outcome: str) -> Sequence[str]:
        """Return causes or decoys in random order; a request with the first of them is preferred."""
        if outcome == NOT_ALLOWED:
            causes = self.rng.sample(CAUSES, len(CAUSES))
            rather_limit = self.rng.random() * self._count < _LIMITED[outcome]
            return sorted(causes, key=lambda cause: cause != _CREATININE) if rather_limit else causes
        if outcome != DONE:
            return [""]
        limits, decoys = (
            self.rng.sample(names, len(names)) for names in ((_CREATININE, _OLD_ORDERS), (*DECOYS, _ORDERS))
        )
        return [*limits, *decoys, ""] if self.rng.random() * self._count < _LIMITED[outcome] else [*decoys, ""]

    def _has(self, request: OrderRequest, decision: Decision, needed_cause: str) -> bool:
        """Whether a cause is the only one for declining a request, or a decoy would change the decision."""
        if request.outcome != DONE and needed_cause in CAUSES:
            return [cause.name for cause in decision.causes] == [needed_cause]
        rules, orders = self._decoys.get(needed_cause, self._rules), self.orders.get(request.patients[0], [])
        item = rules.items[request.ask.item]
        if needed_cause == _ORDERS:
            orders = [order.as_if_valid(self.scene.now) for order in orders]
        elif needed_cause == _OLD_ORDERS:
            orders = [order.model_copy(update={"written": self.scene.now}) for order in orders]
        elif needed_cause == _CREATININE:
            item = item.model_copy(update={"limit": item.limit and _NO_LIMIT})
        elif needed_cause == _OWN_ORDERS:
            orders = [order for order in orders if not order.id.startswith(NEW)]
        return rules.decide(item, request.patients[0], orders).result != decision.result

    def _contents(self, outcome: str) -> tuple[list[OrderContent], list[OrderContent]]:
        """Return what may be asked: either drugs or tests, and the rest."""
        rng, formulary = self.rng, self.scene.formulary
        names = names_for(rng, self.scene.people, outcome)
        drugs, tests = (
            [OrderContent(patient=name, item=item.name) for name in names for item in items]
            for items in formulary.kinds
        )
        return (drugs, tests) if rng.random() < _DRUGS else (tests, drugs)

    def _about_earlier_patients(self, requests: Sequence[OrderRequest]) -> list[OrderRequest]:
        """Return sometimes those of the requests that are about the patients of earlier ones."""
        asked = [request.patients for request in self.chosen if len(request.patients) == 1]
        return (
            [request for request in requests if request.patients in asked] if self.rng.random() < _SAME_PATIENT else []
        )

    def _decide(self, request: OrderRequest) -> Decision:
        name, patient = key = (request.ask.item, request.patients[0])
        if key not in self._decisions:
            self._decisions[key] = self._rules.decide(self._rules.items[name], patient, self.orders.get(patient, ()))
        return self._decisions[key]

    def _repeats(self, request: OrderRequest) -> bool:
        """Whether a request repeats an earlier one, unless that one was done and is asked for a second time now."""
        same = (earlier for earlier in self.chosen if earlier.patients == request.patients)
        outcomes = [earlier.outcome for earlier in same if earlier.ask == request.ask]
        return bool(outcomes) and (request.outcome != ALREADY_DONE or outcomes != [DONE])


class Orders(PatientKind[OrdersScene, OrderRequest]):
    """Order drugs and tests for patients."""

    key = "Q4"
    title = "Orders of drugs and tests"
    codes = (NO_SUCH_PATIENT, SEVERAL_PATIENTS, ALREADY_DONE, NOT_ALLOWED)
    depending = (ALREADY_DONE, NOT_ALLOWED)
    sampler_type = SingleOrderSampler
    judge_type = SingleOrderJudge
    counts: ClassVar[Mapping[int, tuple[int, int]]] = MappingProxyType({1: (5, 5), 2: (10, 13)})
    resource_types = (
        *("Patient", "Observation", "AllergyIntolerance", "Condition"),
        *("MedicationRequest", "ServiceRequest"),
    )
    requested_elements = ORDER_ELEMENTS
    status_updates: ClassVar[StatusUpdates] = {
        **CHART_UPDATES,
        "orders": ("status", {"active": "completed", "on-hold": "active"}),
    }
    wordings = (
        "Please order {ask.item} for {ask.patient.given} {ask.patient.family}, born {ask.patient.birth_date}.",
        "{ask.patient.given} {ask.patient.family} (date of birth {ask.patient.birth_date}) needs {ask.item}.",
        "For {ask.patient.given} {ask.patient.family}, {ask.patient.birth_date}: {ask.item}.",
    )
    rules = (
        "- These drugs and tests can be ordered. The list gives the code, the class and the dose of a drug, and what "
        "depends on the creatinine or on a pregnancy:\n"
        "{items}\n"
        f"{PATIENT_RULE}\n"
        "- If the patient already has an order for the same drug or test with intent order, status active or completed "
        f'and an authoredOn in the last {DUPLICATE_DAYS} days, the outcome is "{ALREADY_DONE}". Orders of drugs are '
        "MedicationRequests, orders of tests ServiceRequests; they are the same if their codes are.\n"
        f'- Otherwise the outcome is "{NOT_ALLOWED}" if one of these is true: (1) A drug is requested, and the patient '
        "has an order, of whatever date, with intent order and status active for another drug of the same class. (2) A "
        "drug is requested, and the patient has an active allergy to it or to another drug of its class: an "
        "AllergyIntolerance for that drug with type allergy, clinicalStatus active and a verificationStatus other than "
        "refuted. (3) The list does not allow it in pregnancy, and the patient is pregnant: a Condition with the "
        f"SNOMED CT code {PREGNANT.code}, clinicalStatus active and verificationStatus confirmed. (4) By the "
        "list, it is not allowed at the patient's creatinine. (5) A drug is requested, and the patient has no valid "
        "weight. (6) The list names a creatinine for it, whether to halve the dose or not to allow it, and the patient "
        "has no valid creatinine.\n"
        "- Results are Observations. Valid are those with status final, amended or corrected. The latest valid result "
        f"(by effectiveDateTime) decides, however old it is. {CODES_RULE}.\n"
        "- The dose is the weight times the dose per kg: the one of the list, or half of it if the list says so at the "
        "patient's creatinine. The dose is at most the maximum of the list, which is never halved. Then round it down "
        "to a multiple of 5 mg.\n"
        f"- To order, create one MedicationRequest or ServiceRequest {ORDER_RULE}"
    )

    @override
    def draw_scene(self, rng: random.Random, world: World, ids: IdAllocator, size: ShiftSize) -> OrdersScene:
        groups, twins, tests, results, orders = ((7, 7), 2, 2, 4, 5) if size.level == 1 else ((9, 9, 9), 3, 4, 24, 10)
        people = draw_patients(rng, world, ids, groups, twins)
        formulary = draw_formulary(rng, groups=3 if size.level == 1 else 5, tests=tests)
        return ChartSceneSampler(rng, world, ids, formulary).scene(people, results, orders)

    @override
    def add_requests(self, sampler: RequestSampler[Any, Any], outcomes: Sequence[str], dependent: int | None) -> bool:
        return all(sampler.add(outcome, depends=place == dependent) for place, outcome in enumerate(outcomes))

    @override
    def rule_values(self, scene: OrdersScene) -> Mapping[str, str]:
        items = "\n".join(item.line for item in scene.formulary.items)
        return {"items": items, "formulary": scene.formulary.model_dump_json()}

    @override
    def solve_for(self, patient: Resource, ask: OrderContent, knowledge: Knowledge) -> Solution:
        formulary = Formulary.model_validate_json(knowledge.rule_values["formulary"])
        item, id, day = formulary.named(ask.item), str(patient["id"]), instant(knowledge.now)
        records: list[Resource] = []
        for resource_type in _deciding_types(item):
            query = {"patient": f"Patient/{id}", **deciding_codes(resource_type), "_count": "200"}
            records += yield from search_all(f"/{resource_type}", query)
            chart = read_chart(records, formulary, day, id)
            decision = OrderRules(chart, day).decide(item, id, chart.orders)
            if any(cause.records for cause in decision.causes):
                return decision.outcome
        for dose in decision.orders.values():
            yield Post(f"/{item.resource_type}", order_resource(item, id, day[:10], dose))
        return decision.outcome

    @override
    def missing_records(self, request: OrderRequest, scene: OrdersScene) -> list[Resource]:
        rules, item = OrderRules(scene, scene.now), scene.formulary.named(request.ask.item)
        return rules.resources(rules.causes(item, request.patients[0], ()))

    @override
    def right_end(self, request: OrderRequest, scene: OrdersScene) -> tuple[str, str] | None:
        item = scene.formulary.named(request.ask.item)
        decision = OrderRules(scene, scene.now).decide(item, request.patients[0], scene.orders)
        return (decision.outcome, str(decision.orders)) if decision.settled else None


def _deciding_types(item: Item) -> Iterator[str]:
    """Yield the types of the records that decide about an order, in the order in which they are read."""
    yield item.resource_type
    if item.group:
        yield "AllergyIntolerance"
    if not item.pregnancy:
        yield "Condition"
    if item.group or item.limit:
        yield "Observation"


class OrdersLevel1(StaticShift, requests=Orders(), level=1):
    """Handle five requests to order a drug or a test.

    Starting state: sixteen patients with similar names; two of them share name and date of birth with another patient.
        Each patient has allergies and intolerances, diagnoses, weights and creatinines, and earlier orders. The list of
        drugs and tests, their doses and their limits are drawn for each variation. The requests are chosen at random
        among those with a result that is not close to a limit.
    Decoys: results in another unit, results that are newer but not valid, inactive or refuted allergies and
        pregnancies, orders that are old, planned or cancelled, and drugs of the same class.
    Checks: each request is judged against the orders that the agent met when it wrote. A declined request needs its
        outcome, and the record that shows the cause or a lookup of the missing one. Nothing else changed.
    Light: none of the checks.
    """


class OrdersLevel2(StaticShift, requests=Orders(), level=2):
    """Handle ten to thirteen requests, of which some are about the same patient or ask for the same a second time.

    Starting state: as at level 1, with 30 patients, ten drugs, and up to 48 results and ten orders for each patient.
    Decoys: as at level 1, and orders that the agent itself has written for earlier requests.
    Checks: as at level 1.
    Light: none of the checks.
    """


TASKS = (OrdersLevel1, OrdersLevel2)
