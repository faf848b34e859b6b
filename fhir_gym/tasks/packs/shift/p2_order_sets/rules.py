"""Order sets that policies define: what is ordered together for a patient, and when it is not; and the judgement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property
from math import floor
from typing import Self

from typing_extensions import override

from fhir_gym.tasks.authoring import Concept, parse_instant
from fhir_gym.tasks.packs.shift.charts import (
    CREATININE,
    CREATININE_MOLAR,
    OLDEST_DAYS,
    WEIGHT,
    EarlierOrder,
    MissingResult,
    OrdersScene,
)
from fhir_gym.tasks.packs.shift.formulary import CREATININE_MARGIN, LOINC, RXNORM, STEP, WEIGHT_MARGIN, Formulary, Item
from fhir_gym.tasks.packs.shift.kind import RequestContent
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.orders import ORDERS, Cause, Charts, Decision, OrderJudge
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NOT_ALLOWED
from fhir_gym.tasks.packs.shift.patients import PatientRequest
from fhir_gym.tasks.packs.shift.policies import Library, policy_resources
from fhir_gym.tasks.packs.shift.policy_texts import Rule, Subject
from fhir_gym.types import Json, Resource

SETS = ("Pneumonia", "Urinary tract infection", "Wound infection")
"""The names of the order sets."""
GIVEN = ("active", "on-hold")
"""Statuses of orders of drugs that are being given."""
ORDERED = ("active", "completed")
"""Statuses of orders of tests that need no other order."""
_DRUGS = {
    "penicillins": {"amoxicillin": "723", "ampicillin": "733"},
    "cephalosporins": {"cefazolin": "2180", "cephalexin": "2231", "ceftriaxone": "2193"},
    "macrolides": {"azithromycin": "18631", "clarithromycin": "21212", "erythromycin": "4053"},
    "fluoroquinolones": {"ciprofloxacin": "2551", "levofloxacin": "82122"},
    "tetracyclines": {"doxycycline": "3640", "tetracycline": "10395"},
}
_SUBSTITUTES = ("fluoroquinolones", "tetracyclines")
_TESTS = {
    "complete blood count": "58410-2",
    "C-reactive protein": "1988-5",
    "procalcitonin": "33959-8",
    "blood culture": "600-7",
    "urine culture": "630-4",
    "lactate": "2524-7",
}
_PAIRS = tuple(f"{test} and {other}" for test in _TESTS for other in _TESTS if test < other)
FORMULARY = Formulary(
    items=(
        *(
            Item(name=name, system=RXNORM, code=code, group=group, per_kg=5, most=500)
            for group, drugs in _DRUGS.items()
            for name, code in drugs.items()
        ),
        *(Item(name=name, system=LOINC, code=code) for name, code in _TESTS.items()),
    )
)
"""The drugs and tests of order sets; their doses are in policies."""


def _rules_of(name: str) -> Iterator[Rule]:
    """Yield the rules about one order set."""
    first = tuple(drug for group, drugs in _DRUGS.items() if group not in _SUBSTITUTES for drug in drugs)
    second = tuple(drug for group in _SUBSTITUTES for drug in _DRUGS[group])
    dose = f"The dose in the order set {name} is {{value}} mg per kg of body weight, whichever drug is given."
    yield Rule(f"{name}: drug", f"The drug of the order set {name} is {{value}}.", first)
    yield Rule(
        f"{name}: substitute",
        f"For patients who are allergic to its drug, the order set {name} has {{value}} instead.",
        second,
    )
    yield Rule(f"{name}: dose", dose, ("5", "6", "7.5", "8", "10", "12"))
    yield Rule(f"{name}: tests", f"The tests of the order set {name} are {{value}}.", _PAIRS)


ORDER_SETS = Subject(
    "order-sets",
    "Order sets",
    (
        *(rule for order_set in SETS for rule in _rules_of(order_set)),
        Rule("most", "No order set has a dose of more than {value} mg.", ("400", "500", "600", "750", "900")),
        Rule(
            "creatinine",
            "If the creatinine is above {value} mg/dL, all order sets have half of the dose per kg.",
            ("1.2", "1.4", "1.5", "1.6", "1.8"),
        ),
        Rule("weight", "A body weight that is older than {value} days does not count.", ("60", "120", "200", "365")),
        Rule(
            "repeat",
            "A test of an order set is left out if it was ordered in the last {value} days.",
            ("3", "7", "14", "21", "60"),
        ),
        Rule(
            "pregnancy",
            "In pregnancy, no order set is used if its drug belongs to the {value}.",
            ("macrolides", "fluoroquinolones", "tetracyclines", "macrolides or tetracyclines"),
        ),
    ),
)
"""The subject of policies about order sets."""


class OrderSetScene(OrdersScene):
    """The records of a group of patients, and the policies of the hospital.

    Attributes:
        departments: The departments that use order sets.
    """

    library: Library
    departments: tuple[Concept, ...]

    @override
    def resources(self) -> list[Resource]:
        return [*super().resources(), *policy_resources(self.library, (ORDER_SETS,))]


class OrderSetContent(RequestContent):
    """What to order.

    Attributes:
        order_set: Name of the order set.
        department: Display of the department.
    """

    patient: Named
    order_set: str
    department: str


class OrderSetRequest(PatientRequest):
    """A request to use an order set."""

    ask: OrderSetContent


@dataclass(frozen=True, slots=True)
class OrderSet:
    """An order set as the valid policies define it.

    Attributes:
        drug: Name of the drug.
        substitute: Name of the drug for patients who are allergic to `drug`.
        per_kg: Milligrams per kilogram of body weight.
        tests: Names of the tests.
        most: Largest dose in milligrams.
        limit: Creatinine in mg/dL above which the dose per kg is halved.
        weight_days: Greatest age of the body weight in days.
        repeat_days: Number of days in which a test is not repeated.
        not_in_pregnancy: Classes of drugs that are not given in pregnancy.
    """

    drug: str
    substitute: str
    per_kg: float
    tests: tuple[str, ...]
    most: int
    limit: float
    weight_days: int
    repeat_days: int
    not_in_pregnancy: tuple[str, ...]

    @classmethod
    def of(cls, values: Mapping[str, str], name: str) -> Self:
        """Return the order set with a name; `values` are the valid values of the policies."""
        return cls(
            drug=values[f"{name}: drug"],
            substitute=values[f"{name}: substitute"],
            per_kg=float(values[f"{name}: dose"]),
            tests=tuple(values[f"{name}: tests"].split(" and ")),
            most=int(values["most"]),
            limit=float(values["creatinine"]),
            weight_days=int(values["weight"]),
            repeat_days=int(values["repeat"]),
            not_in_pregnancy=tuple(values["pregnancy"].split(" or ")),
        )

    @property
    def items(self) -> frozenset[str]:
        """The names of the drugs and tests that may be ordered."""
        return frozenset((self.drug, self.substitute, *self.tests))

    def dose(self, kg: float, creatinine: float) -> int:
        """Return the dose in milligrams."""
        needed = kg * self.per_kg * (0.5 if creatinine > self.limit else 1)
        return floor(min(needed, self.most) / STEP) * STEP

    def settled_dose(self, kg: float, creatinine: float) -> int | None:
        """Return the dose; None if a value is close to a limit or a rounding step."""
        doses = {self.dose(kg * weight, creatinine * other) for weight, other in _FACTORS}
        return doses.pop() if len(doses) == 1 else None


_FACTORS = (
    (1, 1),
    *((1 + change, 1) for change in (-WEIGHT_MARGIN, WEIGHT_MARGIN)),
    *((1, 1 + change) for change in (-CREATININE_MARGIN, CREATININE_MARGIN)),
)
"""Factors of weight and creatinine with which a dose must stay the same."""


class OrderSetRules(Charts):
    """What the rules say about order sets for patients."""

    def decide(self, name: str, order_set: OrderSet, patient: str, orders: Iterable[EarlierOrder]) -> Decision:
        """Decide about an order set for a patient."""
        mine = [order for order in orders if order.patient == patient and order.intent == "order"]
        drug, group = order_set.drug, self.groups[order_set.drug]
        points: tuple[str, ...] = (f"{name}: drug",)
        if allergies := self.allergies(patient, group):
            drug, points = order_set.substitute, (*points, f"{name}: substitute")
            group = self.groups[drug]
            if others := self.allergies(patient, group):
                return Decision(NOT_ALLOWED, causes=(Cause("allergies", (allergies, others), points=points),))
        running = tuple(
            f"MedicationRequest/{order.id}"
            for order in mine
            if order.status in GIVEN and self.groups.get(order.item) == group
        )
        if running:
            return Decision(ALREADY_DONE, causes=(Cause("given", (running,), points=points),))
        causes = tuple(self.causes(order_set, patient, group, points))
        weight, creatinine = (self.latest(patient, name) for name in ("weight", "creatinine"))
        if causes or weight is None or creatinine is None:
            return Decision(NOT_ALLOWED, causes=causes)
        since = (self.today - timedelta(days=order_set.repeat_days)).isoformat()
        recent = {order.item for order in mine if order.status in ORDERED and order.written[:10] >= since}
        tests = {test: 0 for test in order_set.tests if test not in recent}
        amounts = weight.amount, creatinine.amount
        settled = order_set.settled_dose(*amounts) is not None
        return Decision(DONE, {drug: order_set.dose(*amounts), **tests}, settled=settled)

    def causes(self, order_set: OrderSet, patient: str, group: str, points: tuple[str, ...]) -> Iterator[Cause]:
        """Yield the causes for which a class of drugs is not given to a patient."""
        pregnancies = self.pregnancies(patient)
        if pregnancies and group in order_set.not_in_pregnancy:
            yield Cause("pregnancy", (pregnancies,), points=(*points, "pregnancy"))
        weight = self.latest(patient, "weight")
        first = self.today - timedelta(days=order_set.weight_days)
        if weight is None or date.fromisoformat(weight.taken[:10]) < first:
            yield Cause("weight", missing=(_missing(patient, WEIGHT, first),), points=("weight",))
        if self.latest(patient, "creatinine") is None:
            oldest = self.today - timedelta(days=OLDEST_DAYS)
            both = (_missing(patient, concept, oldest) for concept in (CREATININE, CREATININE_MOLAR))
            yield Cause("creatinine", missing=tuple(both))


def _missing(patient: str, concept: Concept, first: date) -> MissingResult:
    return MissingResult(f"valid-{concept.code}-{patient}-{first}", patient, concept, first)


def order_set_for(
    ask: OrderSetContent, scene: OrderSetScene, library: Library, moment: datetime | None = None
) -> OrderSet:
    """Return the requested order set as the policies of a library define it for the department.

    Args:
        ask: The request.
        scene: The records of the hospital.
        library: The policies.
        moment: The moment at which the policies are in force; by default the present.
    """
    department = next(department.code for department in scene.departments if department.display == ask.department)
    values = library.values(ORDER_SETS.code, department, moment or parse_instant(scene.now))
    return OrderSet.of(values, ask.order_set)


def order_sets_of_the_day(ask: OrderSetContent, scene: OrderSetScene) -> frozenset[OrderSet]:
    """Return the order sets that a request may mean, now and after each amendment within a day."""
    now = parse_instant(scene.now)
    moments = [now, *(moment for moment in scene.library.coming(now) if moment - now < timedelta(days=1))]
    return frozenset(order_set_for(ask, scene, scene.library, moment) for moment in moments)


def decided_by(ask: OrderSetContent, scene: OrderSetScene, points: Iterable[str]) -> list[str]:
    """Return references to the valid documents that settle some points for the requested order set."""
    department = next(department.code for department in scene.departments if department.display == ask.department)
    return scene.library.documents_for(ORDER_SETS.code, department, parse_instant(scene.now), points)


class OrderSetJudge(OrderJudge[OrderSetScene, OrderSetRequest]):
    """Judges the use of order sets against the orders that the agent met."""

    @cached_property
    def _rules(self) -> OrderSetRules:
        return OrderSetRules(self.scene, self.scene.now)

    @override
    @cached_property
    def claimed(self) -> list[frozenset[str]]:
        """For each request, the new orders that belong to it.

        Requests about the same patient that were answered as done take their orders in turn. Each remaining order
        belongs to the first request about the patient whose order set may contain it, or else to the first request.
        """
        claimed: list[frozenset[str]] = [frozenset() for _ in self.requests]
        left = {record: self.reader.about(order) for record, order in self.reader.new.items()}
        for number, request in enumerate(self.requests):
            if len(request.patients) == 1 and self.answers[number] == DONE:
                needed = {item: "" for item in self.decisions(number, claimed)[-1].orders}
                for record, (patient, item) in left.items():
                    if patient == request.patients[0] and needed.get(item) == "":
                        needed[item] = record
                claimed[number] = frozenset(filter(None, needed.values()))
                left = {record: about for record, about in left.items() if record not in claimed[number]}
        for record, (patient, item) in left.items():
            numbers = [number for number, request in enumerate(self.requests) if patient in request.patients]
            alike = [number for number in numbers if item in self._order_set(number).items] or numbers
            for number in alike[:1]:
                claimed[number] |= {record}
        return claimed

    def _order_set(self, number: int) -> OrderSet:
        return order_set_for(self.requests[number].ask, self.scene, self.scene.library)

    @override
    def decide(self, number: int, orders: Sequence[EarlierOrder]) -> Decision:
        request = self.requests[number]
        return self._rules.decide(request.ask.order_set, self._order_set(number), request.patients[0], orders)

    @cached_property
    def _orders(self) -> dict[str, list[str]]:
        """References to the orders of the scene by the id of the patient."""
        orders: dict[str, list[str]] = {}
        for order in self.scene.orders:
            orders.setdefault(order.patient, []).append(f"{self._rules.items[order.item].resource_type}/{order.id}")
        return orders

    @override
    def orders_before(self, patient: str, write: int) -> Iterator[EarlierOrder]:
        others = self.log.created_by_others.get(f"Patient/{patient}", ())
        created = (other.record for other in others if other.number < write and other.resource_type in ORDERS)
        for record in (*self._orders.get(patient, ()), *created):
            state = self.log.before(record, write)
            if state is not None:
                yield self.reader.read(record, state)

    @override
    def problems(self, number: int, left: Sequence[str]) -> tuple[Sequence[Json], Json]:
        decisions = self.decisions(number, self.claimed)
        if not decisions:
            return [f"left {', '.join(left)}"], None
        possible = [(decision, [*self._problems(number, left, decision)]) for decision in decisions]
        decision, problems = min(possible, key=lambda pair: len(pair[1]))
        return problems, {DONE: dict(decision.orders)} if decision.orders else None

    def _problems(self, number: int, left: Sequence[str], decision: Decision) -> Iterator[Json]:
        """Yield the errors in the orders that the agent left for a request."""
        if decision.outcome != DONE:
            yield f"left {', '.join(left)}"
            return
        missing = dict(decision.orders)
        for record in left:
            order = self.log.at_end(record) or {}
            item = self.reader.about(order)[1]
            if item not in missing:
                yield f"left {record}"
                continue
            dose = missing.pop(item)
            yield from self.reader.problems(order, self.requests[number].patients[0], self._rules.items[item], dose)
        for item in missing:
            yield f"no order for {item}"

    @override
    def knows_policies(self, number: int, cause: Cause) -> bool:
        return self.log.has_seen(decided_by(self.requests[number].ask, self.scene, cause.points))
