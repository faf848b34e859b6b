"""Tasks P2-1 and P2-2: requests to use order sets that policies define."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Post
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator, instant
from fhir_gym.tasks.packs.shift.charts import (
    CHART_UPDATES,
    DECOYS,
    PREGNANT,
    ChartSceneSampler,
    EarlierOrder,
    order_resource,
)
from fhir_gym.tasks.packs.shift.clinic import SERVICES
from fhir_gym.tasks.packs.shift.formulary import Item
from fhir_gym.tasks.packs.shift.kind import Knowledge, ShiftSize, Solution
from fhir_gym.tasks.packs.shift.lookups import search_all
from fhir_gym.tasks.packs.shift.orders import (
    CODES_RULE,
    ORDER_ELEMENTS,
    ORDER_RULE,
    ORDERS,
    Decision,
    OrderSampler,
    deciding_codes,
    decoy_charts,
    read_chart,
)
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NO_SUCH_PATIENT, NOT_ALLOWED, SEVERAL_PATIENTS
from fhir_gym.tasks.packs.shift.p2_order_sets.rules import (
    FORMULARY,
    ORDER_SETS,
    SETS,
    OrderSet,
    OrderSetContent,
    OrderSetJudge,
    OrderSetRequest,
    OrderSetRules,
    OrderSetScene,
    order_set_for,
    order_sets_of_the_day,
)
from fhir_gym.tasks.packs.shift.patients import (
    PATIENT_RULE,
    PatientKind,
    draw_patients,
    drawn_again,
    drawn_by_patient,
    names_for,
)
from fhir_gym.tasks.packs.shift.policies import MISREADINGS, library_about, policy_time, validity_rules
from fhir_gym.tasks.packs.shift.policy_drawing import draw_library
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.types import Resource

_ORDERS, _OWN_ORDERS = "orders", "own orders"
_OLD_WEIGHT, _RATHER_OLD = "old weight", 0.5
"""A cause for which a request is not allowed, and the probability that it is rather chosen than another one."""
_SUBSTITUTE, _LEFT_OUT = "substitute", "test left out"
_OBSTACLES = ("allergies", "pregnancy", "weight", "creatinine")


def _listed(item: Item) -> str:
    kind = f"RxNorm {item.code}; {item.group}" if item.group else f"LOINC {item.code}"
    return f"  - {item.name} ({kind})"


class OrderSetSampler(OrderSampler[OrderSetScene, OrderSetRequest]):
    """Chooses requests for which a rule, a policy or a peculiarity matters."""

    def __init__(self, rng: random.Random, now: datetime, scene: OrderSetScene, outcomes: Sequence[str]) -> None:
        super().__init__(rng, now, scene, outcomes)
        self._libraries = scene.library.misreadings(now)
        self._of_the_day: dict[tuple[str, str], frozenset[OrderSet]] = {}
        self._own_orders: dict[str, list[EarlierOrder]] = {}
        self._decisions: dict[tuple[str, str, str, str], Decision] = {}
        self._rules = {"": OrderSetRules(scene, scene.now), **decoy_charts(OrderSetRules, scene)}
        self._sets: dict[tuple[str, str, str], OrderSet] = {}

    @override
    def draw(self, outcome: str, *, depends: bool) -> OrderSetRequest | None:
        rng = self.rng
        used = [request.ask.patient for request in self.chosen]
        names = [name for name in names_for(rng, self.scene.people, outcome) if (name in used) == depends]
        asks = [
            OrderSetContent(patient=name, order_set=order_set, department=department.display)
            for name in names
            for order_set in SETS
            for department in self.scene.departments
        ]
        requests = [OrderSetRequest(ask=ask, outcome=outcome, patients=self.ids.get(ask.patient, ())) for ask in asks]
        for cause in [_OWN_ORDERS] if depends else [*self._wanted(outcome), ""]:
            fitting = [
                request
                for request in requests
                if len(request.patients) != 1 or self._qualifies(request.ask, request.patients[0], outcome, cause)
            ]
            if fitting:
                drawn = drawn_by_patient(rng, fitting)
                return drawn_again(drawn, self.chosen) if depends else drawn
        return None

    @override
    def apply(self, request: OrderSetRequest) -> None:
        for patient in request.patients if len(request.patients) == 1 else ():
            orders = [self.new_order(patient, item) for item in self._decide(request.ask, patient).orders]
            self._own_orders.setdefault(patient, []).extend(orders)
            self._decisions = {key: decision for key, decision in self._decisions.items() if key[0] != patient}

    def _wanted(self, outcome: str) -> Sequence[str]:
        """Return causes, mistakes or peculiarities in random order; a request with the first of them is preferred."""
        if outcome == NOT_ALLOWED:
            obstacles = self.rng.sample(_OBSTACLES, len(_OBSTACLES))
            return [_OLD_WEIGHT, *obstacles] if self.rng.random() < _RATHER_OLD else obstacles
        kinds: list[Sequence[str]] = [MISREADINGS]
        if outcome == DONE:
            kinds += [MISREADINGS, (*DECOYS, _ORDERS), (_SUBSTITUTE, _LEFT_OUT)]
        return [self.rng.choice(self.rng.choice(kinds)) for _ in range(2)]

    def _qualifies(self, ask: OrderSetContent, patient: str, outcome: str, needed_cause: str) -> bool:
        """Whether an ask has an outcome by the rules, and the wanted cause or peculiarity, or a mistake changes it."""
        decision = self._decide(ask, patient)
        if decision.outcome != outcome or not decision.settled or not self._stays_settled(ask, patient):
            return False
        if needed_cause in (*_OBSTACLES, _OLD_WEIGHT) and outcome == NOT_ALLOWED:
            if needed_cause == _OLD_WEIGHT and self._rules[""].latest(patient, "weight") is None:
                return False
            needed_cause = "weight" if needed_cause == _OLD_WEIGHT else needed_cause
            return [cause.name for cause in decision.causes] == [needed_cause]
        if needed_cause == _SUBSTITUTE:
            return self._set_for(ask).substitute in decision.orders
        if needed_cause == _LEFT_OUT:
            return not {*self._set_for(ask).tests} <= {*decision.orders}
        if not needed_cause:
            return True
        return self._decide(ask, patient, needed_cause).result != decision.result

    def _stays_settled(self, ask: OrderSetContent, patient: str) -> bool:
        """Whether no value is close to a limit after amendments that come into force during the shift, either."""
        key = (ask.order_set, ask.department)
        orders = (*self.orders.get(patient, ()), *self._own_orders.get(patient, ()))
        if key not in self._of_the_day:
            self._of_the_day[key] = order_sets_of_the_day(ask, self.scene)
        sets = self._of_the_day[key]
        return all(self._rules[""].decide(ask.order_set, order_set, patient, orders).settled for order_set in sets)

    def _decide(self, ask: OrderSetContent, patient: str, mistake: str = "") -> Decision:
        """Decide about a request like an agent that makes a mistake."""
        key = (patient, ask.order_set, ask.department, mistake)
        if key not in self._decisions:
            self._decisions[key] = self._decided(ask, patient, mistake)
        return self._decisions[key]

    def _decided(self, ask: OrderSetContent, patient: str, mistake: str) -> Decision:
        orders: Iterable[EarlierOrder] = self.orders.get(patient, ())
        if mistake != _OWN_ORDERS:
            orders = (*orders, *self._own_orders.get(patient, ()))
        if mistake == _ORDERS:
            orders = (order.as_if_valid(self.scene.now) for order in orders)
        rules = self._rules.get(mistake, self._rules[""])
        order_set = self._set_for(ask, mistake if mistake in MISREADINGS else "")
        return rules.decide(ask.order_set, order_set, patient, orders)

    def _set_for(self, ask: OrderSetContent, misread: str = "") -> OrderSet:
        key = (ask.order_set, ask.department, misread)
        if key not in self._sets:
            self._sets[key] = order_set_for(ask, self.scene, self._libraries[misread])
        return self._sets[key]


class OrderSets(PatientKind[OrderSetScene, OrderSetRequest]):
    """Order what belongs to order sets that policies define."""

    key = "P2"
    title = "Order sets under policies"
    codes = (NO_SUCH_PATIENT, SEVERAL_PATIENTS, ALREADY_DONE, NOT_ALLOWED)
    depending = (DONE, ALREADY_DONE)
    sampler_type = OrderSetSampler
    judge_type = OrderSetJudge
    has_policies = True
    minutes = 7
    counts: ClassVar[Mapping[int, tuple[int, int]]] = MappingProxyType({1: (3, 3), 2: (7, 8)})
    resource_types = (
        *("Patient", "Observation", "AllergyIntolerance", "Condition"),
        *("MedicationRequest", "ServiceRequest", "DocumentReference"),
    )
    requested_elements = ORDER_ELEMENTS
    status_updates = CHART_UPDATES
    wordings = (
        "{ask.department} would like the order set {ask.order_set} for {ask.patient.given} {ask.patient.family}, born "
        "{ask.patient.birth_date}.",
        "Please use the order set {ask.order_set} for {ask.patient.given} {ask.patient.family} (date of birth "
        "{ask.patient.birth_date}), who is with {ask.department}.",
        "{ask.department}, order set {ask.order_set}: {ask.patient.given} {ask.patient.family}, "
        "{ask.patient.birth_date}.",
    )
    rules = (
        "- An order set consists of one drug and some tests from this list:\n"
        "{items}\n"
        f"{PATIENT_RULE}\n"
        "- The policies define what belongs to each order set. The department is the one that the request names.\n"
        f"{validity_rules((ORDER_SETS,))}\n"
        "- The drug: a patient is allergic to a drug if there is an AllergyIntolerance for it or for another drug of "
        "its class, with type allergy, clinicalStatus active and a verificationStatus other than refuted. If the "
        "patient is allergic to the drug of the order set and to the one that it has instead, the outcome is "
        f'"{NOT_ALLOWED}".\n'
        "- Otherwise, if the patient has an order, of whatever date, with intent order and status active or on-hold "
        f'for a drug of the same class as the drug to be ordered, the outcome is "{ALREADY_DONE}", and nothing is '
        "ordered.\n"
        f'- Otherwise the outcome is "{NOT_ALLOWED}", and nothing is ordered, if one of these is true: (1) The '
        "patient is pregnant (a Condition with the SNOMED CT code "
        f"{PREGNANT.code}, clinicalStatus active and verificationStatus confirmed), and the policies do not allow the "
        "class of the drug in pregnancy. (2) The patient has no valid weight, or the latest valid one is too old by "
        "the policies. (3) The patient has no valid creatinine.\n"
        "- Results are Observations. Valid are those with status final, amended or corrected; the latest valid result "
        f"(by effectiveDateTime) decides. {CODES_RULE}, however old it is.\n"
        "- The dose is the weight times the dose per kg, or half of that dose per kg. The dose is at most the largest "
        "dose, which is never halved. Then round it down to a multiple of 5 mg.\n"
        "- A test is left out if the patient has an order for it (a ServiceRequest) with intent order, status active "
        "or completed, and an authoredOn in the time that the policies state. All ages in days are counted between "
        "dates: what is dated 7 days before today is from the last 7 days, and is not older than 7 days.\n"
        f"- To order, create one MedicationRequest or ServiceRequest for each drug or test, {ORDER_RULE}"
    )

    @override
    def draw_scene(self, rng: random.Random, world: World, ids: IdAllocator, size: ShiftSize) -> OrderSetScene:
        groups, twins, results, orders, documents = (
            ((7, 7), 2, 4, 8, 9) if size.level == 1 else (size.groups((9, 9, 9), 10), 3, 24, 12, 15)
        )
        people = draw_patients(rng, world, ids, groups, twins)
        charts = ChartSceneSampler(rng, world, ids, FORMULARY).scene(people, results, orders)
        departments = rng.sample(SERVICES, 3)
        library = draw_library(rng, ids, world.now, (ORDER_SETS,), departments, documents, soon=size.amended_at)
        return OrderSetScene(**dict(charts), library=library, departments=tuple(departments))

    @override
    def rule_values(self, scene: OrderSetScene) -> Mapping[str, str]:
        return {"items": "\n".join(map(_listed, FORMULARY.items))}

    @override
    def solve_for(self, patient: Resource, ask: OrderSetContent, knowledge: Knowledge) -> Solution:
        id, now = str(patient["id"]), instant(knowledge.now)
        library = yield from library_about(ORDER_SETS, knowledge)
        values = library.values(ORDER_SETS.code, library.department_code(ask.department), policy_time(knowledge))
        order_set = OrderSet.of(values, ask.order_set)
        records: list[Resource] = []
        for resource_type in ("AllergyIntolerance", "Condition", "Observation", *ORDERS):
            query = {"patient": f"Patient/{id}", "_count": "200", **deciding_codes(resource_type)}
            records += yield from search_all(f"/{resource_type}", query)
        chart = read_chart(records, FORMULARY, now, id)
        decision = OrderSetRules(chart, chart.now).decide(ask.order_set, order_set, id, chart.orders)
        for name, dose in decision.orders.items():
            item = FORMULARY.named(name)
            yield Post(f"/{item.resource_type}", order_resource(item, id, now[:10], dose))
        return decision.outcome

    @override
    def missing_records(self, request: OrderSetRequest, scene: OrderSetScene) -> list[Resource]:
        order_set = order_set_for(request.ask, scene, scene.library)
        rules = OrderSetRules(scene, scene.now)
        return rules.resources(rules.causes(order_set, request.patients[0], "", ()))

    @override
    def right_end(self, request: OrderSetRequest, scene: OrderSetScene) -> tuple[str, str] | None:
        rules, ask, patient = OrderSetRules(scene, scene.now), request.ask, request.patients[0]
        orders = [order for order in scene.orders if order.patient == patient]

        def decide(order_set: OrderSet) -> Decision:
            return rules.decide(ask.order_set, order_set, patient, orders)

        if not all(decide(order_set).settled for order_set in order_sets_of_the_day(ask, scene)):
            return None
        decision = decide(order_set_for(ask, scene, scene.library))
        return decision.outcome, str(decision.orders)


class OrderSetsLevel1(StaticShift, requests=OrderSets(), level=1):
    """Handle three requests to use order sets that policies define.

    Starting state: sixteen patients with similar names, their allergies, diagnoses, weights, creatinines and orders.
        Nine policies about order sets: of the whole hospital and of departments, with earlier versions, drafts and
        amendments. The requests are chosen at random; most of them would end differently if a policy were misread or
        a record that does not count were taken for valid.
    Decoys: policies that are not valid or are for other departments; refuted allergies and intolerances; results that
        are preliminary, void or too old; orders that are old, ended or only planned.
    Checks: the orders of each request, judged against the orders before the agent's first order for it. A declined
        request needs its outcome, the policies and records that lead to it, and lookups that would have shown missing
        results. Nothing else changed.
    Light: none of the checks.
    """


class OrderSetsLevel2(StaticShift, requests=OrderSets(), level=2):
    """Handle seven or eight requests to use order sets that policies define; a patient may get two of them.

    Starting state: as at level 1, with 30 patients who have up to 48 results and 12 orders, and 15 policies.
    Decoys: as at level 1.
    Checks: as at level 1.
    Light: none of the checks.
    """


TASKS = (OrderSetsLevel1, OrderSetsLevel2)
