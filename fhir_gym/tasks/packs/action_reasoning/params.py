"""Parameters of a task variation, built from a case and its world."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta

from pydantic import Field

from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import instant, parse_instant
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.packs.action_reasoning.cases import CaseSpec, ReasoningCase
from fhir_gym.tasks.packs.action_reasoning.derivation import derive_truth, wrong_answers
from fhir_gym.tasks.packs.action_reasoning.orders import ORDERS, OrderSpec
from fhir_gym.tasks.packs.action_reasoning.ranges import RANGES, ReferenceRange
from fhir_gym.tasks.packs.action_reasoning.series import LabHistory, lab_chart
from fhir_gym.tasks.packs.medagentbench.labs import Result

_PERIOD = timedelta(days=365)
"""If the question has no window, the counterfactual results are from this period before the reference time."""
_EDGE = 15
"""One counterfactual result is at most this many minutes after the start of the window."""
_DELAY = timedelta(minutes=40)


class ReasoningParams(Params):
    """Parameters of one variation.

    Attributes:
        case: The task.
        now: The world's current time (instant).
        deciding: Ids of the Observations that determine the value, oldest first; empty if no result counts.
        counterfactuals: Results that the world lacks and that would count: one at any time within the window, and one
            near its start. They are empty if the world has a result that counts.
        order: The order that may be due; None if the task has no order.
        exact: The value before rounding; None if no result counts.
        wrong_answers: Wrong answers to which typical shortcuts lead, by shortcut.
    """

    case: ReasoningCase
    now: str
    deciding: tuple[str, ...] = ()
    counterfactuals: tuple[Result, ...] = ()
    order: OrderSpec | None = None
    exact: float | None = None
    wrong_answers: Mapping[str, float] = Field(default_factory=dict)

    @property
    def plan(self) -> CaseSpec:
        """Specification of the case."""
        return _plan_of(self.case)

    @property
    def is_due(self) -> bool:
        """Whether an order is due."""
        return bool(self.case.ground_truth.should_order)


def params_of(
    case: ReasoningCase, world: World, order: OrderSpec | None = None, row: ReferenceRange | None = None
) -> ReasoningParams:
    """Build the parameters of a case.

    Args:
        case: A case with a specification.
        world: The world.
        order: An order that replaces the order of the catalogue; None to use the catalogue.
        row: A reference range that replaces the patient's row of the table; None to use the table.

    Raises:
        TaskError: The patient does not exist, or it is ambiguous which results count.
    """
    plan, history = _plan_of(case), lab_chart(world)
    right = derive_truth(plan, case.eval_MRN, history, row)
    return ReasoningParams(
        case=case,
        now=instant(world.now),
        deciding=right.deciding,
        counterfactuals=() if right.deciding else tuple(_counterfactuals(plan, case.eval_MRN, history)),
        order=order or (ORDERS[plan.order] if plan.order else None),
        exact=right.exact,
        wrong_answers=wrong_answers(plan, case.eval_MRN, history),
    )


def _plan_of(case: ReasoningCase) -> CaseSpec:
    if case.plan is None:
        raise TaskError(f"{case.id} has no fhir_gym specification")
    return case.plan


def _counterfactuals(plan: CaseSpec, mrn: str, chart: LabHistory) -> Iterator[Result]:
    """Build results that would count, with the values of other patients' results of the test."""
    as_of, rng = parse_instant(plan.as_of), seeded_random(mrn, plan.model_dump_json())
    period = _PERIOD if plan.window_hours is None else timedelta(hours=plan.window_hours)
    values = [result.value for series in chart.series(plan.lab).values() for result in series.counted]
    for name, ago in (("inside", period * rng.random()), ("edge", period - timedelta(minutes=rng.randint(1, _EDGE)))):
        taken = as_of - max(ago, timedelta())
        yield Result(
            id=name,
            owner=mrn,
            code=plan.lab,
            taken=instant(taken),
            issued=instant(min(taken + _DELAY, as_of)),
            value=rng.choice(values or [RANGES[plan.lab][0].low]),
            unit=plan.unit,
        )
