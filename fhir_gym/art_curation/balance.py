"""Count tasks by scenario, laboratory test, category and sex."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fhir_gym.tasks.packs.action_reasoning.cases import ReasoningCase
from fhir_gym.tasks.packs.action_reasoning.ranges import CATEGORIES, LABS
from fhir_gym.types import Json

COLUMNS = ("group", "", "retrieval", "aggregation", "conditional", "order due", "no order", "share of orders")
"""Column headers of the table."""


def balance(cases: Sequence[ReasoningCase]) -> dict[str, Json]:
    """Count tasks by kind and by whether an order is due, separately for each scenario, test, category and sex."""
    table: dict[str, dict[str, Counter[str]]] = {"all": {"": Counter()}}
    table |= {group: {} for group in ("scenario", "lab", "category", "sex")}
    table["lab"] = {lab: Counter() for lab in LABS}
    table["category"] = {category: Counter() for category in CATEGORIES}
    for case in cases:
        if case.plan is None:
            continue
        truth = case.ground_truth
        names = {"all": "", "scenario": case.plan.scenario, "lab": case.plan.lab}
        names |= {"category": truth.value_category or "", "sex": truth.patient_gender or "not said"}
        if case.plan.family != "conditional" or truth.value_category is None:
            del names["category"]
        for group, name in names.items():
            counts = table[group].setdefault(name, Counter())
            counts[case.plan.family] += 1
            if case.plan.family == "conditional":
                counts["order due" if truth.should_order else "no order"] += 1
    return {group: {name: dict(counts) for name, counts in named.items()} for group, named in table.items()}


def balance_rows(cases: Sequence[ReasoningCase]) -> list[tuple[str, ...]]:
    """Return the counts as table rows."""
    rows = []
    for group, named in balance(cases).items():
        for name, counts in named.items():
            due, none = counts.get("order due", 0), counts.get("no order", 0)
            share = f"{due / (due + none):.0%}" if due + none else "-"
            numbers = (counts.get(column, 0) for column in COLUMNS[2:5])
            rows.append((group, name.replace("_", " "), *map(str, numbers), str(due), str(none), share))
    return rows
