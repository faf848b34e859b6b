from __future__ import annotations

import pytest

from fhir_gym.tasks.packs.shift.p2_order_sets.rules import FORMULARY, ORDER_SETS, SETS, OrderSet

VALUES = {rule.name: rule.values[0] for rule in ORDER_SETS.rules} | {"most": "400", "creatinine": "1.4"}


@pytest.mark.parametrize(
    ("kg", "creatinine", "dose", "settled"),
    [
        (61.6, 1, 305, True),
        (62.5, 1, 310, True),
        (61, 1.6, 150, True),
        (100, 1, 400, True),
        (60.95, 1, 300, False),
        (61, 1.405, 150, False),
    ],
)
def test_doses_follow_the_policies(kg: float, creatinine: float, dose: int, settled: bool) -> None:
    order_set = OrderSet.of(VALUES, SETS[0])
    assert order_set.dose(kg, creatinine) == dose
    assert order_set.settled_dose(kg, creatinine) == (dose if settled else None)


def test_all_values_of_the_policies_make_order_sets() -> None:
    for number in range(max(len(rule.values) for rule in ORDER_SETS.rules)):
        values = {rule.name: rule.values[number % len(rule.values)] for rule in ORDER_SETS.rules}
        for name in SETS:
            order_set = OrderSet.of(values, name)
            items = [FORMULARY.named(test) for test in (order_set.drug, order_set.substitute, *order_set.tests)]
            assert [bool(item.group) for item in items] == [True, True, False, False]
            assert items[0].group != items[1].group and items[2] != items[3]
            assert {*order_set.not_in_pregnancy} <= {drug.group for drug in FORMULARY.drugs}
