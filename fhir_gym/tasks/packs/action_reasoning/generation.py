"""Build cases from mined candidates, change cases, and generate balanced sets of cases."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import instant
from fhir_gym.tasks.packs.action_reasoning.cases import CaseSpec, Direction, Family, ReasoningCase, Scenario
from fhir_gym.tasks.packs.action_reasoning.derivation import derive_truth, digits_of, solution
from fhir_gym.tasks.packs.action_reasoning.mining import MinedCandidate, candidates
from fhir_gym.tasks.packs.action_reasoning.orders import ORDERS
from fhir_gym.tasks.packs.action_reasoning.phrasing import LENGTHS, PROMPTS, context, instruction
from fhir_gym.tasks.packs.action_reasoning.picking import Pick, interleaved, pools, rng_of
from fhir_gym.tasks.packs.action_reasoning.ranges import LABS
from fhir_gym.tasks.packs.action_reasoning.series import LabHistory, lab_chart

SCENARIOS: Mapping[Family, tuple[Scenario, ...]] = {
    "retrieval": ("sparse", "cluster", "edge"),
    "aggregation": ("window",),
    "conditional": ("general", "demographic"),
}
"""Scenarios of each kind of task."""

_NONE_IN = 8
"""The share of retrieval tasks without a result is 1 divided by this number."""


def case_from(
    candidate: MinedCandidate,
    history: LabHistory,
    *,
    id: str,
    direction: Direction | None = None,
    phrasing: int = 0,
    length: int = 0,
) -> ReasoningCase:
    """Build the case of a candidate.

    Args:
        candidate: The candidate.
        history: Laboratory results of the candidate's world.
        id: Id of the case.
        direction: Side of the range that requires an order; conditional tasks only.
        phrasing: Index of the instruction's template.
        length: Amount of irrelevant context.
    """
    plan = CaseSpec(
        family=candidate.family,
        scenario=candidate.scenario,
        lab=candidate.lab,
        unit=LABS[candidate.lab].unit,
        as_of=instant(candidate.as_of),
        window_hours=candidate.window_hours,
        digits=digits_of(candidate.family, candidate.lab),
        direction=direction,
        order=f"{candidate.lab} {direction}" if direction else None,
        phrasing=phrasing,
        length=length,
    )
    return build_case(plan, candidate.patient, history, id)


def build_case(plan: CaseSpec, mrn: str, history: LabHistory, id: str) -> ReasoningCase:
    """Build the case for a specification and a patient.

    Raises:
        TaskError: The patient does not exist, or it is ambiguous which results count.
    """
    right = derive_truth(plan, mrn, history)
    person, age = history.person(mrn), history.age(mrn)
    order = ORDERS[plan.order] if plan.order else None
    return ReasoningCase(
        id=id,
        instruction=instruction(plan, person, age, instant(history.now), order),
        context=context(plan, person, age, order),
        sol=solution(plan, right.ground),
        eval_MRN=mrn,
        ground_truth=right.ground,
        plan=plan,
    )


def reworded(case: ReasoningCase, phrasing: int, history: LabHistory) -> ReasoningCase:
    """Return the case with another phrasing."""
    if case.plan is None or case.plan.phrasing == phrasing:
        return case
    return build_case(case.plan.model_copy(update={"phrasing": phrasing}), case.eval_MRN, history, case.id)


def vary(
    case: ReasoningCase, world: World, *, window_hours: float | None = None, shift: float | None = None
) -> ReasoningCase:
    """Return the case with another time window or shifted limits, and derive its ground truth again.

    Args:
        case: A case with a specification.
        world: The world.
        window_hours: The new window; None to keep it.
        shift: The new shift of the limits; None to keep it.

    Raises:
        TaskError: The case lacks a specification, a window or limits, or it is ambiguous which results count.
    """
    plan = case.plan
    if plan is None:
        raise TaskError(f"{case.id} has no fhir_gym specification, so it cannot be varied")
    changes: dict[str, float] = {}
    if window_hours is not None:
        if plan.window_hours is None:
            raise TaskError(f"{case.id} has no time window to change")
        changes["window_hours"] = window_hours
    if shift is not None:
        if plan.family != "conditional":
            raise TaskError(f"{case.id} has no reference range to shift")
        changes["shift"] = shift
    return build_case(plan.model_copy(update=changes), case.eval_MRN, lab_chart(world), case.id)


def generate(world: World, *, seed: int = 0, per_family: int = 200) -> tuple[ReasoningCase, ...]:
    """Generate a balanced set of cases.

    Args:
        world: The world.
        seed: Seed; the same world and seed give the same cases.
        per_family: Number of cases of each kind; the result has fewer if the world has too few candidates.

    Raises:
        TaskError: The world has no candidate for any scenario.
    """
    chart = lab_chart(world)
    cases: list[ReasoningCase] = []
    for family in SCENARIOS:
        rng = rng_of(world.manifest.content_hash, seed, family)
        for number, pick in enumerate(_chosen(world, family, per_family, rng)):
            scenario = pick.candidate.scenario
            cases.append(
                case_from(
                    pick.candidate,
                    chart,
                    id=f"{family}_{number}",
                    direction=pick.direction,
                    phrasing=rng.randrange(len(PROMPTS[scenario])),
                    length=rng.choice(LENGTHS),
                )
            )
    if not cases:
        raise TaskError(f"the world {world.name} has no results of the {len(LABS)} laboratory tests to ask about")
    return tuple(cases)


def _chosen(world: World, family: Family, count: int, rng: random.Random) -> list[Pick]:
    """Choose distinct candidates of one kind.

    Half of the conditional cases require an order; one in `_NONE_IN` retrieval cases has no result.
    """
    offered = [scenario for scenario in SCENARIOS[family] if any(candidates(world, scenario, lab) for lab in LABS)]
    a, b = pools(world, offered, rng)
    of_b = count // 2 if family == "conditional" else count // _NONE_IN
    taken: set[tuple[object, ...]] = set()
    without = _distinct(interleaved(b, rng), taken, of_b)
    with_one = _distinct(interleaved(a, rng), taken, count - len(without))
    if family == "conditional":  # keep both halves equal if one of them has too few candidates
        without, with_one = without[: len(with_one)], with_one[: len(without) + count % 2]
    picks = [*with_one, *without]
    rng.shuffle(picks)
    return picks


def _distinct(picks: Iterable[Pick], taken: set[tuple[object, ...]], count: int) -> list[Pick]:
    """Return the first `count` picks that repeat no question."""
    kept: list[Pick] = []
    for pick in picks:
        asks = (pick.candidate.lab, pick.candidate.patient, pick.candidate.as_of, pick.candidate.window_hours)
        if len(kept) == count:
            break
        if asks not in taken:
            taken.add(asks)
            kept.append(pick)
    return kept
