"""Infer the specification of an external case (a task file made elsewhere) from its text and ground truth."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import cast

from fhir_gym.errors import TaskError
from fhir_gym.tasks.packs.action_reasoning.cases import CaseSpec, Direction, Family, ReasoningCase
from fhir_gym.tasks.packs.action_reasoning.derivation import is_order_due
from fhir_gym.tasks.packs.action_reasoning.orders import OrderSpec, OrderType
from fhir_gym.tasks.packs.action_reasoning.ranges import LABS, ReferenceRange

_LAB_CODE = re.compile(r"\blab(?:oratory)? codes?\s*[:=]?\s*[\"'(]?([A-Z][A-Z0-9]{0,4})\b", re.IGNORECASE)
_WINDOW = re.compile(
    r"\b(?:last|past|previous|within|prior|preceding|recent)\s+(?:the\s+)?(?:last\s+|past\s+)?(\d+(?:\.\d+)?)[\s-]*(h|d)",
    re.IGNORECASE,
)
_MEAN = re.compile(r"\b(?:average|mean|averaged?)\b", re.IGNORECASE)
_LOW = re.compile(r"\b(?:low|below|under|deficien\w*|decreased|less than)\b", re.IGNORECASE)
_HIGH = re.compile(r"\b(?:high|above|over|elevated|increased|exceed\w*|greater than)\b", re.IGNORECASE)
_OUTSIDE = re.compile(r"\b(?:outside|abnormal|out of (?:the )?(?:normal |reference )?range)\b", re.IGNORECASE)
_ORDERING = re.compile(
    r"\b(?:order|place|start|give|initiate|request|refer)\b.*?(?=\b(?:if|when|unless)\b|[.;]|$)", re.IGNORECASE
)
_DRUG = re.compile(
    r"\b(?:replac\w+|replet\w+|supplement\w*|infus\w+|insulin|medication|vitamin|dextrose|drug|dose|iv|intravenous|oral)\b",
    re.IGNORECASE,
)
_SERVICE = re.compile(
    r"\b(?:repeat|recheck|re-?test|test|lab|labs|panel|referr?al|refer|consult\w*|screen\w*|imaging|ecg|follow-?up)\b",
    re.IGNORECASE,
)


def inferred(case: ReasoningCase, now: str) -> CaseSpec:
    """Infer the specification of an external case.

    Args:
        case: The case.
        now: Current time of the world (instant).

    Raises:
        TaskError: The case lacks required information or contradicts itself.
    """
    lab, family = _lab(case), _family(case)
    window = _window(case)
    if family == "aggregation" and window is None:
        raise TaskError(f"{case.id}: the instruction does not say over how many hours the mean is taken")
    direction = _direction(case) if family == "conditional" else None
    plan = CaseSpec(
        family=family,
        scenario={"retrieval": "edge" if window else "sparse", "aggregation": "window", "conditional": "general"}[
            family
        ],
        lab=lab,
        unit=LABS[lab].unit,
        as_of=now,
        window_hours=window,
        digits=_digits(case) if family == "aggregation" else LABS[lab].digits,
        direction=direction,
    )
    _require_sense(case, plan)
    return plan


def range_in(case: ReasoningCase, lab: str) -> ReferenceRange:
    """Build a range from the thresholds of the ground truth; a side without a threshold has no limit."""
    truth = case.ground_truth
    low = -math.inf if truth.threshold_low is None else truth.threshold_low
    high = math.inf if truth.threshold_high is None else truth.threshold_high
    return ReferenceRange(lab, LABS[lab].unit, None, 0, None, low, high, -math.inf, math.inf, 0.0, "the task file")


def order_of(case: ReasoningCase) -> OrderSpec:
    """Infer an order's resource type and name from the instruction.

    Raises:
        TaskError: The instruction does not say whether to order a drug or a service.
    """
    clauses = [match.group() for match in _ORDERING.finditer(case.instruction)]
    for text in (" ".join(clauses), case.instruction, case.context):
        drug, service = bool(_DRUG.search(text)), bool(_SERVICE.search(text))
        if drug != service:
            kind: OrderType = "MedicationRequest" if drug else "ServiceRequest"
            return OrderSpec(name=(clauses or [case.instruction])[0], system="", code="", bare=kind)
    raise TaskError(f"{case.id}: the instruction does not say whether a drug or a laboratory test is to be ordered")


def _lab(case: ReasoningCase) -> str:
    texts = (case.context, case.instruction)
    codes = {match[1].upper() for text in texts for match in _LAB_CODE.finditer(text)}
    titles = {lab.name for lab in LABS.values() if any(lab.title in text.casefold() for text in texts)}
    named_labs = [name for name in LABS if name in codes] or [name for name in LABS if name in titles]
    if len(named_labs) == 1:
        return named_labs[0]
    what = "no known laboratory test" if not named_labs else f"several laboratory tests ({', '.join(named_labs)})"
    raise TaskError(f"{case.id} names {what}; its context should say, for example, 'Lab code: MG'")


def _family(case: ReasoningCase) -> Family:
    if case.ground_truth.should_order is not None or len(case.sol) == 2:
        return "conditional"
    said = f"{case.id} {case.instruction}".replace("_", " ")
    return "aggregation" if _MEAN.search(said) or "aggregation" in said.casefold() else "retrieval"


def _window(case: ReasoningCase) -> float | None:
    match = _WINDOW.search(case.instruction) or _WINDOW.search(case.context)
    return float(match[1]) * (24 if match[2].casefold() == "d" else 1) if match else None


def _direction(case: ReasoningCase) -> Direction:
    """Infer the side that requires an order from the instruction, the context or the thresholds, in this order."""
    for text in (case.instruction, case.context):
        low, high = bool(_LOW.search(text)), bool(_HIGH.search(text))
        if _OUTSIDE.search(text) or (low and high):
            return "outside"
        if low or high:
            return "low" if low else "high"
    truth = case.ground_truth
    if (truth.threshold_low is None) != (truth.threshold_high is None):
        return "high" if truth.threshold_low is None else "low"
    raise TaskError(f"{case.id} does not say on which side of the range an order is due")


def _digits(case: ReasoningCase) -> int:
    value = case.ground_truth.value
    return 1 if value is None else max(0, -cast(int, Decimal(str(value)).as_tuple().exponent))


def _require_sense(case: ReasoningCase, plan: CaseSpec) -> None:
    """Raise TaskError if the case contradicts itself."""
    truth = case.ground_truth
    value = -1 if truth.value is None else truth.value
    problems = []
    if not case.sol or isinstance(case.sol[0], bool) or not isinstance(case.sol[0], int | float):
        problems.append("sol does not begin with a number")
    elif case.sol[0] != value:
        problems.append(f"sol says {case.sol[0]}, the ground truth {value}")
    if plan.family == "conditional" and truth.value is not None:
        row = range_in(case, plan.lab)
        needed = is_order_due(row, truth.value, plan.direction)
        said = {"should_order": truth.should_order, "sol": next(iter(case.sol[1:]), None)}
        problems += [f"{name} is {_word(bound)}" for name, bound in said.items() if bound is not needed]
        sides = {"is_low": truth.value < row.low, "is_high": truth.value > row.high}
        problems += [
            f"{name} is {_word(getattr(truth, name))}"
            for name, side in sides.items()
            if getattr(truth, name) is not side
        ]
    if problems:
        raise TaskError(f"{case.id} contradicts itself: {'; '.join(problems)}")


def _word(value: object) -> str:
    return "missing" if value is None else str(value).lower()
