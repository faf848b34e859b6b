"""Base classes of the pack: tasks that ask for a value, and tasks that may also require an order."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from typing import ClassVar, cast

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Get, Post
from fhir_gym.fhir import World
from fhir_gym.tasks import (
    TEST_START,
    Check,
    Diagnosis,
    ExpectedChange,
    FinishedEpisode,
    Gold,
    Task,
    Variation,
    Verdict,
    equal,
)
from fhir_gym.tasks.authoring import instant, moment_in_words, parse_instant
from fhir_gym.tasks.core.dates import full_years
from fhir_gym.tasks.grading import answer_flag, answer_number
from fhir_gym.tasks.packs.action_reasoning.cases import GROUPS, CaseSpec, Scenario
from fhir_gym.tasks.packs.action_reasoning.derivation import is_order_due, limits
from fhir_gym.tasks.packs.action_reasoning.generation import case_from, reworded
from fhir_gym.tasks.packs.action_reasoning.orders import ORDERS
from fhir_gym.tasks.packs.action_reasoning.params import ReasoningParams, params_of
from fhir_gym.tasks.packs.action_reasoning.phrasing import ENDINGS, LENGTHS, brief_values, placeholder_values
from fhir_gym.tasks.packs.action_reasoning.picking import equally_likely, pick_for
from fhir_gym.tasks.packs.action_reasoning.pitfalls import mean, round_half_up
from fhir_gym.tasks.packs.action_reasoning.ranges import ReferenceRange
from fhir_gym.tasks.packs.action_reasoning.series import lab_chart
from fhir_gym.tasks.packs.action_reasoning.steps import FLAG, VALUE
from fhir_gym.tasks.packs.action_reasoning.taxonomy import diagnose
from fhir_gym.tasks.packs.medagentbench.internist_task import NO_RESULT, READ_ONLY, ItemsAnswer, ids_only, number_check
from fhir_gym.tasks.packs.medagentbench.labs import LabTest, ParsedResult, counted_results
from fhir_gym.tasks.packs.medagentbench.orders import MEDICATION_ELEMENTS, SERVICE_ELEMENTS
from fhir_gym.tasks.packs.medagentbench.single_dose import explicit_single_doses, invalid_timings
from fhir_gym.types import Json, Phrasing, Resource

_SLACK = 1e-9
"""Tolerance for binary floating point."""
_PAGE = 200


class ReasoningTask(Task[ReasoningParams], abstract=True):
    """A task about laboratory results of an existing patient; it adds nothing to the world.

    Because an agent could guess a value, success requires evidence that the agent read the results.
    """

    scenario: ClassVar[Scenario]
    difficulty = 2
    evidence_fields: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Observation": ("valueQuantity",),
        "Patient": ("gender", "birthDate"),
    }

    @override
    def sample(self, rng: random.Random, world: World) -> ReasoningParams:
        return self.draw(rng.randrange(2 * TEST_START), rng, world)

    def draw(self, k: int, rng: random.Random, world: World) -> ReasoningParams:
        """Build the case of variation `k`, in the first phrasing and with a random context length.

        Raises:
            TaskError: The world has no candidate of the scenario.
        """
        pick = pick_for(world, self.scenario, k)
        history = lab_chart(world)
        length = rng.choice(LENGTHS)
        case = case_from(pick.candidate, history, id=f"{self.scenario}_{k}", direction=pick.direction, length=length)
        return params_of(case, world)

    @override
    def variation(self, k: int, world: World, phrasing: Phrasing | None = None) -> Variation:
        variation = super().variation(k, world, phrasing)
        if not isinstance(variation.params, ReasoningParams):
            raise TypeError(f"not the values of such a task: {type(variation.params).__name__}")
        target, qualifying = self.decisive_records(k, world)
        params = variation.params
        if isinstance(variation.phrasing, int):  # the case of the brief phrasing stays as drawn
            params = self.phrased(params, variation.phrasing, world)
        return replace(variation, params=params, _target=target, _qualifying=qualifying)

    def decisive_records(self, k: int, world: World) -> tuple[str, tuple[str, ...]]:
        """Return the latest result that determines a variation's answer, and the records from which it was chosen."""
        return pick_for(world, self.scenario, k).record, equally_likely(world, self.scenario, k)

    def phrased(self, p: ReasoningParams, phrasing: int, world: World) -> ReasoningParams:
        """Return the parameters with the case in another phrasing."""
        return p.model_copy(update={"case": reworded(p.case, phrasing, lab_chart(world))})

    @override
    def setup(self, p: ReasoningParams, world: World) -> list[Resource]:
        return []

    @override
    def prompt(self, p: ReasoningParams, world: World, phrasing: int) -> str:
        case = self.phrased(p, phrasing, world).case
        parts = (f"Present: {moment_in_words(world.now)}.", case.context, case.instruction, self.answer_instructions)
        return "\n\n".join(part for part in parts if part)

    @override
    def prompt_values(self, p: ReasoningParams, world: World) -> Mapping[str, str]:
        history, mrn = lab_chart(world), p.case.eval_MRN
        values = placeholder_values(p.plan, history.person(mrn), history.age(mrn), p.now, p.order)
        return values | brief_values(p.plan, mrn, p.now, p.order)

    @override
    def gold(self, p: ReasoningParams) -> Gold:
        results = readings((yield look(p)), p)
        yield Finish([_answered(p.plan, results)])

    @override
    def checks(self, p: ReasoningParams, end: FinishedEpisode) -> Iterator[Check]:
        yield value_check(p, end.answer[0] if end.answer else None)

    @override
    def diagnose(self, p: ReasoningParams, end: FinishedEpisode, verdict: Verdict) -> Diagnosis | None:
        return diagnose(p, end, verdict)

    @override
    def required_records(self, p: ReasoningParams) -> tuple[str, ...]:
        return tuple(f"Observation/{id}" for id in p.deciding)

    @override
    def requires_evidence(self, p: ReasoningParams) -> bool:
        return True

    @override
    def counterfactual(self, p: ReasoningParams, world: World) -> list[Resource]:
        return [result.resource for result in p.counterfactuals]

    @override
    def near_misses(self, p: ReasoningParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        *before, finish = gold
        value, *rest = finish.answer or []
        step = 10**-p.plan.digits
        others: dict[str, Json] = {f"the value {name}": wrong_answer for name, wrong_answer in p.wrong_answers.items()}
        others |= {"a little more": round(value + step, 6), "a little less": round(value - step, 6)}
        if p.deciding:
            others["none"] = NO_RESULT
            yield from ids_only(gold)
        for name, other in others.items():
            yield f"answers {name}", [*before, Finish([other, *rest])]

    @override
    def equivalents(self, p: ReasoningParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        *before, finish = gold
        value, *rest = finish.answer or []
        yield "value with a decimal point", [*before, Finish([float(value), *rest])]
        if p.plan.family == "aggregation" and p.exact is not None:
            yield "mean not rounded", [*before, Finish([p.exact, *rest])]
            for more in (1, 2, 3):
                yield (
                    f"mean with {more} more decimals",
                    [*before, Finish([round(p.exact, p.plan.digits + more), *rest])],
                )


class QueryTask(ReasoningTask, abstract=True):
    """A task that asks for a value."""

    kind = "query"
    category = GROUPS["retrieval"]
    required_tools = (("search",),)
    required_resources = ("Observation",)
    prohibited_tools = READ_ONLY
    answer = ItemsAnswer("[number]", (("number",),))
    answer_instructions = ENDINGS["retrieval"]
    gold_steps = 2


class ConditionalTask(ReasoningTask, abstract=True):
    """A task that asks for a value and, if the value is outside its range, for an order."""

    kind = "action"
    category = GROUPS["conditional"]
    difficulty = 3
    evidence_before_changes = True
    prohibited_tools = ("delete",)
    answer = ItemsAnswer("[number, true or false]", (("number", "flag"),))
    answer_instructions = ENDINGS["conditional"]
    required_resources: ClassVar[tuple[str, ...]] = ("Observation", "MedicationRequest", "ServiceRequest")
    required_tools: ClassVar[tuple[tuple[str, ...], ...]] = (("search",), ("search", "create"))
    gold_steps = 3
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "MedicationRequest": MEDICATION_ELEMENTS,
        "ServiceRequest": SERVICE_ELEMENTS,
    }
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "MedicationRequest": {"note": [{"text": "Value out of range."}], "priority": "routine"},
        "ServiceRequest": {"note": [{"text": "Value out of range."}], "category": [{"text": "Laboratory"}]},
    }

    @override
    def gold(self, p: ReasoningParams) -> Gold:
        mrn, row = p.case.eval_MRN, None
        if self.depends_on_patient(p):
            row = _range_for(p, (yield Get(f"/Patient/{mrn}")))
        results = readings((yield look(p)), p)
        value = _answered(p.plan, results)
        needed = bool(results) and self.is_due(p, value, row)
        if needed and p.order is not None:
            yield Post(f"/{p.order.resource_type}", p.order.body(mrn, p.now))
        yield Finish([value, needed])

    def depends_on_patient(self, p: ReasoningParams) -> bool:
        """Return whether the range depends on the patient's sex and age."""
        return p.plan.scenario == "demographic"

    def is_due(self, p: ReasoningParams, value: float, row: ReferenceRange | None) -> bool:
        """Return whether an order is due according to the range that the prompt states."""
        return is_order_due(row or limits(p.plan, None, None), value, p.plan.direction)

    @override
    def expected_changes(self, p: ReasoningParams) -> tuple[ExpectedChange, ...]:
        return (ExpectedChange("created", p.order.resource_type),) if p.order and p.is_due else ()

    @override
    def checks(self, p: ReasoningParams, end: FinishedEpisode) -> Iterator[Check]:
        if p.order is not None and p.is_due:
            yield from p.order.checks(end, p.case.eval_MRN, p.now)
        yield from super().checks(p, end)
        yield equal(FLAG, answer_flag(next(iter((end.answer or [])[1:]), None)), p.is_due)

    @override
    def required_records(self, p: ReasoningParams) -> tuple[str, ...]:
        patient = (f"Patient/{p.case.eval_MRN}",) if self.depends_on_patient(p) else ()
        return (*super().required_records(p), *patient)

    @override
    def near_misses(self, p: ReasoningParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        yield from super().near_misses(p, gold)
        *before, finish = gold
        reads = [action for action in gold if action.kind == "GET"]
        value, flag = finish.answer or []
        yield "reports the opposite of what it did", [*before, Finish([value, not flag])]
        mrn, order = p.case.eval_MRN, p.order
        if order is None:
            return
        placed = Post(f"/{order.resource_type}", order.body(mrn, p.now))
        if not flag:
            yield "places an order that is not due", [*reads, placed, Finish([value, True])]
            yield "places an order that is not due and denies it", [*reads, placed, Finish([value, False])]
            return
        yield "places no order and says so", [*reads, Finish([value, False])]
        yield from invalid_timings(gold)
        yield "places the order before looking", [placed, *reads, finish]
        for key, other in ORDERS.items():
            if key.startswith(f"{p.plan.lab} ") and other != order:
                wrong = Post(f"/{other.resource_type}", other.body(mrn, p.now))
                yield f"orders {other.name}", [*reads, wrong, finish]

    @override
    def equivalents(self, p: ReasoningParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        yield from super().equivalents(p, gold)
        *reads, last, finish = gold
        if p.order is None or last.kind != "POST":
            return
        yield from explicit_single_doses(gold)
        body = json.loads(last.body or "")
        name = "code" if p.order.dose is None else "medicationCodeableConcept"
        coding = body[name].get("coding", [])
        local = {"system": "urn:example:orders", "code": "12-3", "display": p.order.name}
        told = {"text": p.order.name, "coding": [*({**coding, "display": p.order.name} for coding in coding), local]}
        yield "order with a local code", [*reads, Post(last.url, {**body, name: told}), finish]


def look(p: ReasoningParams) -> Action:
    """Build the search that returns the results in question, newest first."""
    plan = p.plan
    as_of = parse_instant(plan.as_of)
    span = [] if plan.as_of == p.now else [("date", f"le{instant(as_of)}")]
    if plan.window_hours is not None:
        span.append(("date", f"ge{instant(as_of - timedelta(hours=plan.window_hours))}"))
    parameters = [("patient", p.case.eval_MRN), ("code", plan.lab), *span, ("_sort", "-date"), ("_count", str(_PAGE))]
    return Get("/Observation", parameters)


def readings(bundle: Json, p: ReasoningParams) -> list[ParsedResult]:
    """Return the results that count up to the reference time, one for each instant, latest first."""
    plan, as_of = p.plan, parse_instant(p.plan.as_of)
    test = LabTest(plan.lab, plan.unit, low=0, high=0, digits=plan.digits, neighbour="")
    kept: dict[object, ParsedResult] = {}
    for counted_result in counted_results(bundle, test):
        if counted_result.taken <= as_of and (plan.as_of == p.now or counted_result.issued <= as_of):
            kept.setdefault(
                counted_result.taken, counted_result
            )  # among results of the same instant, the result issued last comes first
    return list(kept.values())


def value_check(p: ReasoningParams, actual: Json) -> Check:
    """Check the first item of the answer; a mean may have more decimal places than requested."""
    name, expected = VALUE, p.case.ground_truth.value
    if p.plan.family != "aggregation" or p.exact is None:
        return number_check(name, actual, expected)
    said = answer_number(actual)
    right = said is not None and is_rounded(said, p.exact, p.plan.digits)
    return Check(name=name, passed=right, expected=expected, actual=actual)


def is_rounded(number: float, exact: float, digits: int) -> bool:
    """Return whether a number equals the exact value rounded to `digits` or more decimal places."""
    written = Decimal(str(number))
    if not written.is_finite():
        return False
    places = max(digits, -cast(int, written.normalize().as_tuple().exponent))
    return abs(number - exact) <= 0.5 * 10.0**-places + _SLACK


def _answered(plan: CaseSpec, results: Sequence[ParsedResult]) -> float:
    """Return the correct number: the latest value or the rounded mean; -1 if no result counts."""
    if not results:
        return NO_RESULT
    if plan.family == "aggregation":
        value = round_half_up(mean(result.value for result in results), plan.digits)
        return int(value) if value == int(value) else value
    return results[0].value


def _range_for(p: ReasoningParams, patient: Json) -> ReferenceRange:
    """Return the range for the sex and age of the Patient resource that the server returned."""
    today = parse_instant(p.now).date()
    return limits(p.plan, patient["gender"], full_years(date.fromisoformat(patient["birthDate"]), today))
