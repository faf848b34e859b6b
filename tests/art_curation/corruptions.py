"""Corrupt a valid case: change a value of its ground truth, answer or plan, or remove a fact from its text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from fhir_gym.tasks.core.dates import instant, parse_instant
from fhir_gym.tasks.packs.action_reasoning.cases import CaseSpec, ReasoningCase
from fhir_gym.tasks.packs.action_reasoning.orders import ORDERS
from fhir_gym.tasks.packs.action_reasoning.phrasing import PROMPTS
from fhir_gym.tasks.packs.action_reasoning.ranges import CATEGORIES, LABS, RANGES

Spoilt = Iterator[tuple[str, ReasoningCase]]


def spoilt(case: ReasoningCase) -> Spoilt:
    yield from _truths(case)
    yield from _answers(case)
    yield from _plans(case)
    yield from _texts(case)


def _others(name: str, value: Any) -> list[Any]:
    """Wrong values for a field of the ground truth."""
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, float | int):
        return [value + 1, value - 1, -value, None] + ([value + 0.1] if isinstance(value, float) else [])
    if name == "timestamp":
        return ["2020-01-01T00:00:00Z", "yesterday"] + (
            [] if value is None else [value.replace(":", ":3", 1)[:25], None]
        )
    if name == "patient_gender":
        return [category for category in ("female", "male", None) if category != value]
    if name == "value_category":
        return [category for category in (*CATEGORIES, None) if category != value]
    return [False, True] if name in ("is_low", "is_high", "should_order") else [4.2 if name != "patient_age" else 42]


def _truths(case: ReasoningCase) -> Spoilt:
    for name, value in case.ground_truth:
        for other in _others(name, value):
            yield (
                f"{name} = {other!r}",
                case.model_copy(update={"ground_truth": case.ground_truth.model_copy(update={name: other})}),
            )


def _answers(case: ReasoningCase) -> Spoilt:
    value, *flags = case.sol
    wrong: list[tuple[Any, ...]] = [(), (*case.sol, 0), (f"{value}", *flags), (None, *flags)]
    wrong += [(value + step, *flags) for step in (0.1, -0.1, 1, -1)]
    wrong += [(True, *flags)]
    wrong += [(-1 if value != -1 else 4, *flags)]
    if flags:
        wrong += [(value, not flags[0]), (value, int(flags[0])), (value, None), (value,)]
    else:
        wrong += [(value, True)]
    for sol in wrong:
        yield f"sol = {sol!r}", case.model_copy(update={"sol": sol})


def _plans(case: ReasoningCase) -> Spoilt:
    plan = case.plan
    assert plan is not None
    as_of = parse_instant(plan.as_of)
    changes: list[dict[str, Any]] = [
        *({"family": family} for family in ("retrieval", "aggregation", "conditional") if family != plan.family),
        *({"lab": lab} for lab in (*LABS, "XYZ") if lab != plan.lab),
        {"unit": "mg/L"},
        {"unit": ""},
        *({"as_of": instant(as_of + n * timedelta(minutes=1))} for n in (-1500, -60, -1, 1)),
        {"as_of": "now"},
        *({"window_hours": hours} for hours in (None, 12.0, 25.0, 0.0, -24.0) if hours != plan.window_hours),
        {"digits": plan.digits + 1},
        {"digits": plan.digits - 1},
        *({"direction": direction} for direction in (None, "low", "high", "outside") if direction != plan.direction),
        *({"order": order} for order in (None, *list(ORDERS)[::5], "nothing") if order != plan.order),
        {"shift": plan.shift + 0.1},
        {"shift": plan.shift - 0.05},
        {"phrasing": len(PROMPTS[plan.scenario])},
        *({"length": length} for length in (0, 1, 2, 3) if length != plan.length),
    ]
    for change in changes:
        yield f"plan {change}", case.model_copy(update={"plan": plan.model_copy(update=change)})


def _texts(case: ReasoningCase) -> Spoilt:
    plan = case.plan
    assert plan is not None
    for fact in _facts(case, plan):
        pattern = re.compile(rf"(?<![\w/.]){re.escape(fact)}(?![\w/]|\.\d)")
        for replaced in ("", "9.75"):
            instruction, context = (pattern.sub(replaced, text) for text in (case.instruction, case.context))
            if (instruction, context) != (case.instruction, case.context):
                words = f"{fact!r} replaced by {replaced!r}"
                yield words, case.model_copy(update={"instruction": instruction, "context": context})
                yield f"{words} in the instruction", case.model_copy(update={"instruction": instruction})
                yield f"{words} in the context", case.model_copy(update={"context": context})
    yield "no context", case.model_copy(update={"context": ""})
    yield "no instruction", case.model_copy(update={"instruction": ""})
    yield "another patient", case.model_copy(update={"eval_MRN": "S0000000"})


def _facts(case: ReasoningCase, plan: CaseSpec) -> Iterator[str]:
    yield from (case.eval_MRN, f"Lab code: {plan.lab}", plan.unit, LABS[plan.lab].title)
    if plan.window_hours is not None:
        yield f"{plan.window_hours:g} hours"
        yield f"{plan.window_hours:g}"
    yield plan.as_of
    if plan.family == "aggregation":
        yield from ("average", "mean", ("a whole number", "one decimal", "two decimals", "three decimals")[plan.digits])
    if plan.family != "conditional" or plan.order is None:
        return
    order = ORDERS[plan.order]
    yield from (order.name, order.code, order.system, order.resource_type)
    if order.dose:
        yield from (f"{order.dose.value:g} {order.dose.unit}", f"{order.dose.value:g}", order.dose.route)
    else:
        yield order.priority or ""
    for row in RANGES[plan.lab]:
        digits = LABS[plan.lab].digits
        yield from (f"{row.low:.{digits}f} to {row.high:.{digits}f}", f"{row.low:.{digits}f}", row.people)


def changed(case: ReasoningCase, fresh: ReasoningCase) -> bool:
    """Whether a corruption changed the case."""
    return repr(case) != repr(fresh)  # repr tells False from 0
