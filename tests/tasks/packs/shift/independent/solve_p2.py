"""Solver of P2 (order sets under policies): it asks the policies for one point after the other."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from .desk import Desk, Patients, Prompt, Record, Send, Writing, day, days_before, finish, first_match, who
from .policies import Policies
from .solve_q4 import Chart, Item, new_order, order_codes

_REQUESTS = [
    ("set", r"(?P<department>.+) would like the order set (?P<set>.+) for (?P<name>.+), born (?P<born>\S+)\."),
    (
        "set",
        r"Please use the order set (?P<set>.+) for (?P<name>.+) \(date of birth (?P<born>\S+)\),"
        r" who is with (?P<department>.+)\.",
    ),
    ("set", r"(?P<department>.+), order set (?P<set>.+): (?P<name>.+), (?P<born>[\d-]+)\."),
]


@dataclass
class _Orders:
    """The orders of one request."""

    prompt: Prompt
    policies: Policies
    chart: Chart
    items: dict[str, Item]
    asked: dict[str, str]
    patient: Record

    def _says(self, pattern: str) -> str:
        found = self.policies.point(self.asked["department"], pattern.replace("SET", self.asked["set"]))
        assert found is not None, pattern
        return str(found[0])

    def _class_of(self, item: Item) -> set[str]:
        return {it.code for it in self.items.values() if it.is_drug and it.group == item.group}

    def _is_allergic(self, item: Item) -> bool:
        return bool(self.chart.allergic_to(self.patient) & self._class_of(item))

    def handle(self) -> str:
        drug = self.items[self._says(r"The drug of the order set SET is (.+)\.")]
        if self._is_allergic(drug):
            instead = r"For patients who are allergic to its drug, the order set SET has (.+) instead\."
            drug = self.items[self._says(instead)]
        if self._is_allergic(drug):
            return "not allowed"
        orders = self.chart.orders_of(self.patient)
        same_class = (it for it in orders if order_codes(it) & self._class_of(drug))
        if any(it["status"] in {"active", "on-hold"} for it in same_class):
            return "already done"
        weight, creatinine = self._weight(), self.chart.creatinine(self.patient)
        if weight is None or creatinine is None or (self.chart.is_pregnant(self.patient) and self._is_forbidden(drug)):
            return "not allowed"
        self._order(drug, self._dose(weight, creatinine))
        for test in self._says(r"The tests of the order set SET are (.+)\.").split(" and "):
            if not self._is_recent(self.items[test], orders):
                self._order(self.items[test], None)
        return "done"

    def _is_forbidden(self, drug: Item) -> bool:
        groups = self._says(r"In pregnancy, no order set is used if its drug belongs to the (.+)\.")
        return drug.group in groups.split(" or ")

    def _weight(self) -> Decimal | None:
        """Return the latest valid weight if it counts."""
        weighing = self.chart.weighing(self.patient)
        most = int(self._says(r"A body weight that is older than (\d+) days does not count\."))
        if weighing is None or day(weighing["effectiveDateTime"]) < days_before(self.prompt.today, most):
            return None
        return self.chart.weight(self.patient)

    def _dose(self, weight: Decimal, creatinine: Decimal) -> int:
        per_kg = Decimal(
            self._says(r"The dose in the order set SET is ([\d.]+) mg per kg of body weight, whichever drug is given\.")
        )
        if creatinine > Decimal(
            self._says(r"If the creatinine is above ([\d.]+) mg/dL, all order sets have half of the dose per kg\.")
        ):
            per_kg /= 2
        most = Decimal(self._says(r"No order set has a dose of more than ([\d.]+) mg\."))
        return int(min(weight * per_kg, most) // 5 * 5)

    def _is_recent(self, test: Item, orders: list[Record]) -> bool:
        days = int(self._says(r"A test of an order set is left out if it was ordered in the last (\d+) days\."))
        return any(
            it["resourceType"] == "ServiceRequest"
            and test.code in order_codes(it)
            and it["status"] in {"active", "completed"}
            and days_before(self.prompt.today, days) <= day(it["authoredOn"])
            for it in orders
        )

    def _order(self, item: Item, dose: int | None) -> None:
        order = new_order(self.prompt, self.patient, item, dose)
        order |= self.chart.desk.optional(authoredOn=f"{self.prompt.now:%Y-%m-%dT%H:%M:%SZ}")
        self.chart.desk.create(order)
        self.chart.orders.append(order)


def solve(text: str, send: Send, writing: Writing = "transaction") -> str:
    """Return the FINISH action for a prompt."""
    prompt, desk = Prompt.of(text), Desk(send, writing)
    items, policies = Item.listed(prompt.rules), Policies(desk, prompt)
    requests = [(letter, first_match(_REQUESTS, request)[1]) for letter, request in prompt.requests]
    patients = Patients(desk, {asked["name"] for _, asked in requests})
    chart = Chart(desk, patients.ids((asked["name"], asked["born"]) for _, asked in requests))
    outcomes = []
    for letter, asked in requests:
        found = patients.find(asked["name"], asked["born"])
        outcome = who(found) or _Orders(prompt, policies, chart, items, asked, found[0]).handle()
        outcomes.append((letter, outcome))
    desk.commit()
    return finish(outcomes)
