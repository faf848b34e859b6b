"""Order sets that policies define: what is ordered together for a patient, and when it is not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from math import floor
from typing import Self

from fhir_gym.tasks.authoring import Concept, parse_instant
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
from fhir_gym.tasks.packs.shift.formulary import CREATININE_MARGIN, LOINC, RXNORM, STEP, WEIGHT_MARGIN, Formulary, Item
from fhir_gym.tasks.packs.shift.kind import RequestContent
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NOT_ALLOWED
from fhir_gym.tasks.packs.shift.patients import PatientRequest
from fhir_gym.tasks.packs.shift.policies import Library
from fhir_gym.tasks.packs.shift.policy_texts import Rule, Subject
from fhir_gym.types import Resource

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
_PAIRS = tuple(f"{one} and {other}" for one in _TESTS for other in _TESTS if one < other)
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
        *(rule for one in SETS for rule in _rules_of(one)),
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
        library: The policies.
        departments: The departments that use order sets.
    """

    library: Library
    departments: tuple[Concept, ...]


class OrderSetContent(RequestContent):
    """What to order.

    Attributes:
        patient: The patient's name and date of birth.
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
        substitute: Name of the drug for patients who are allergic to the other one.
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
        wanted = kg * self.per_kg * (0.5 if creatinine > self.limit else 1)
        return floor(min(wanted, self.most) / STEP) * STEP

    def settled_dose(self, kg: float, creatinine: float) -> int | None:
        """Return the dose; None if a value is close to a limit or a rounding step."""
        found = {self.dose(kg * weight, creatinine * other) for weight, other in _FACTORS}
        return found.pop() if len(found) == 1 else None


_FACTORS = (
    (1, 1),
    *((1 + change, 1) for change in (-WEIGHT_MARGIN, WEIGHT_MARGIN)),
    *((1, 1 + change) for change in (-CREATININE_MARGIN, CREATININE_MARGIN)),
)
"""Factors of weight and creatinine with which a dose must stay the same."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A cause for declining a request.

    Attributes:
        name: The cause.
        points: The points of the policies that lead to it.
        records: Groups of references. An agent knows the cause if it has seen a record of each group.
        missing: Results that do not exist. If one of them existed, the cause would not apply.
    """

    name: str
    points: tuple[str, ...] = ()
    records: tuple[tuple[str, ...], ...] = ()
    missing: tuple[MissingResult, ...] = ()


@dataclass(frozen=True, slots=True)
class SetDecision:
    """What the rules say about an order set for a patient.

    Attributes:
        outcome: The outcome.
        orders: The dose of each drug or test that is ordered in milligrams; 0 for a test.
        obstacles: The causes for declining the request; each of them suffices.
        settled: Whether no value is close to a limit or a rounding step.
    """

    outcome: str
    orders: Mapping[str, int] = field(default_factory=dict)
    obstacles: tuple[Obstacle, ...] = ()
    settled: bool = True


class SetCharts:
    """The records of patients without their orders, and what the rules say about order sets for them.

    Args:
        scene: The records.
        now: Current time, an instant.
    """

    def __init__(self, scene: OrdersScene, now: str) -> None:
        self._today, self._results = date.fromisoformat(now[:10]), scene.results
        self._groups = {one.name: one.group for one in scene.formulary.drugs}
        self._allergies: dict[tuple[str, str], list[str]] = {}
        for allergy in scene.allergies:
            if allergy.counts:
                group = self._allergies.setdefault((allergy.patient, self._groups[allergy.drug]), [])
                group.append(f"AllergyIntolerance/{allergy.id}")
        self._pregnancies: dict[str, list[str]] = {}
        for diagnosis in scene.diagnoses:
            if diagnosis.is_pregnancy:
                self._pregnancies.setdefault(diagnosis.patient, []).append(f"Condition/{diagnosis.id}")
        self._latest: dict[tuple[str, str], Result] = {}
        for one in scene.results:
            if one.status in VALID:
                key = one.patient, "weight" if one.concept.code == WEIGHT.code else "creatinine"
                if key not in self._latest or one.taken >= self._latest[key].taken:
                    self._latest[key] = one

    def decide(self, name: str, order_set: OrderSet, patient: str, orders: Iterable[EarlierOrder]) -> SetDecision:
        """Decide about an order set for a patient.

        Args:
            name: Name of the order set.
            order_set: The order set.
            patient: Id of the patient.
            orders: The orders before.
        """
        mine = [one for one in orders if one.patient == patient and one.intent == "order"]
        drug = order_set.drug
        points: tuple[str, ...] = (f"{name}: drug",)
        allergies = self._allergies_to(drug, patient)
        if allergies:
            drug, points = order_set.substitute, (*points, f"{name}: substitute")
            others = self._allergies_to(drug, patient)
            if others:
                return _declined(NOT_ALLOWED, [Obstacle("allergies", points, (allergies, others))])
        group = self._groups[drug]
        given = tuple(
            f"MedicationRequest/{one.id}" for one in mine if one.status in GIVEN and self._groups.get(one.item) == group
        )
        if given:
            return _declined(ALREADY_DONE, [Obstacle("given", points, (given,))])
        obstacles = [*self._obstacles(order_set, patient, group, points)]
        if obstacles:
            return _declined(NOT_ALLOWED, obstacles)
        kg, creatinine = (self._latest[patient, one].amount for one in ("weight", "creatinine"))
        since = (self._today - timedelta(days=order_set.repeat_days)).isoformat()
        recent = {one.item for one in mine if one.status in ORDERED and one.written[:10] >= since}
        tests = {one: 0 for one in order_set.tests if one not in recent}
        dose = order_set.settled_dose(kg, creatinine)
        return SetDecision(DONE, {drug: order_set.dose(kg, creatinine), **tests}, settled=dose is not None)

    def _allergies_to(self, drug: str, patient: str) -> tuple[str, ...]:
        """Return references to the patient's allergies to the class of a drug."""
        return tuple(self._allergies.get((patient, self._groups[drug]), ()))

    def _obstacles(self, order_set: OrderSet, patient: str, group: str, points: tuple[str, ...]) -> Iterator[Obstacle]:
        """Yield the causes for which a class of drugs is not given to a patient."""
        pregnancies = tuple(self._pregnancies.get(patient, ()))
        if pregnancies and group in order_set.not_in_pregnancy:
            yield Obstacle("pregnancy", (*points, "pregnancy"), (pregnancies,))
        weight = self._latest.get((patient, "weight"))
        first = self._today - timedelta(days=order_set.weight_days)
        if weight is None or date.fromisoformat(weight.taken[:10]) < first:
            yield Obstacle("weight", ("weight",), missing=(_absent(patient, WEIGHT, first),))
        if (patient, "creatinine") not in self._latest:
            oldest = self._today - timedelta(days=OLDEST_DAYS)
            both = (_absent(patient, one, oldest) for one in (CREATININE, CREATININE_MOLAR))
            yield Obstacle("creatinine", missing=tuple(both))

    def has_weight(self, patient: str) -> bool:
        """Whether a patient has a valid weight, of whatever age."""
        return (patient, "weight") in self._latest

    def missing_results(self, order_set: OrderSet, patient: str) -> list[Resource]:
        """Return the results that do not exist and that the order set needs."""
        missing = (one for obstacle in self._obstacles(order_set, patient, "", ()) for one in obstacle.missing)
        return [one.resource(self._results) for one in missing]


def _absent(patient: str, concept: Concept, first: date) -> MissingResult:
    return MissingResult(f"valid-{concept.code}-{patient}-{first}", patient, concept, first)


def _declined(outcome: str, obstacles: Sequence[Obstacle]) -> SetDecision:
    return SetDecision(outcome, obstacles=tuple(obstacles))


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
    department = next(one.code for one in scene.departments if one.display == ask.department)
    values = library.values(ORDER_SETS.code, department, moment or parse_instant(scene.now))
    return OrderSet.of(values, ask.order_set)


def order_sets_of_the_day(ask: OrderSetContent, scene: OrderSetScene) -> frozenset[OrderSet]:
    """Return the order sets that a request may mean, now and after each amendment within a day."""
    now = parse_instant(scene.now)
    moments = [now, *(one for one in scene.library.coming(now) if one - now < timedelta(days=1))]
    return frozenset(order_set_for(ask, scene, scene.library, one) for one in moments)


def decided_by(ask: OrderSetContent, scene: OrderSetScene, points: Iterable[str]) -> list[str]:
    """Return references to the valid documents that settle some points for the requested order set."""
    department = next(one.code for one in scene.departments if one.display == ask.department)
    decisions = scene.library.decisions(ORDER_SETS.code, department, parse_instant(scene.now))
    return [f"DocumentReference/{decisions[one].document}" for one in points]
