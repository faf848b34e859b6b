"""Derivation of the ground truth from a specification."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from fhir_gym.errors import TaskError
from fhir_gym.tasks.core.dates import instant
from fhir_gym.tasks.packs.action_reasoning.cases import CaseSpec, Family
from fhir_gym.tasks.packs.action_reasoning.derivation import derive_truth, solution, wrong_answers
from fhir_gym.tasks.packs.action_reasoning.reasoning_task import is_rounded
from fhir_gym.tasks.packs.action_reasoning.series import lab_chart
from fhir_gym.types import Json, Resource

from .records import NOW, ago, result, world_of

DEFAULTS: dict[str, Any] = {
    "retrieval": {"scenario": "sparse", "digits": 1},
    "aggregation": {"scenario": "window", "digits": 2, "window_hours": 24},
    "conditional": {"scenario": "general", "digits": 1, "direction": "low", "order": "K low"},
}


def plan(family: str, **changes: Any) -> CaseSpec:
    return CaseSpec(
        **{"family": family, "lab": "K", "unit": "mmol/L", "as_of": instant(NOW), **DEFAULTS[family], **changes}
    )


def answer(plan: CaseSpec, *resources: Resource, mrn: str = "S1") -> tuple[Json, ...]:
    with world_of(*resources) as world:
        return solution(plan, derive_truth(plan, mrn, lab_chart(world)).ground)


def test_the_latest_value_up_to_the_moment_of_the_question() -> None:
    hours = {30: 3.1, 20: 4.0, 2: 5}
    values = [result(f"R{n}", ago(hours=n), value, issued=timedelta()) for n, value in hours.items()]
    assert answer(plan("retrieval"), *values) == (5,)
    assert answer(plan("retrieval", as_of=instant(ago(hours=2))), *values) == (5,)
    assert answer(plan("retrieval", as_of=instant(ago(hours=3))), *values) == (4,)
    assert answer(plan("retrieval", as_of=instant(ago(hours=3)), window_hours=10), *values) == (-1,)


@pytest.mark.parametrize("family", ["retrieval", "aggregation"])
def test_a_question_between_specimen_and_result_is_refused(family: Family) -> None:
    taken = ago(hours=5)
    values = [result("R1", ago(hours=9), 4.0), result("R2", taken, 3.1, issued=timedelta(hours=2))]
    asked = {hours: plan(family, as_of=instant(ago(hours=hours)), window_hours=24) for hours in (2, 3, 4, 6)}
    for hours, value in {2: (3.1,), 3: (3.1,), 6: (4.0,)}.items():
        expected = (3.55,) if family == "aggregation" and hours < 5 else value
        assert answer(asked[hours], *values) == expected
    with pytest.raises(TaskError, match="issued after the time of the question"):
        answer(asked[4], *values)


def test_a_window_includes_its_ends() -> None:
    on, before = result("R1", ago(hours=24), 3.1), result("R2", ago(hours=24, seconds=1), 4.0)
    assert answer(plan("retrieval", window_hours=24), on) == (3.1,)
    assert answer(plan("retrieval", window_hours=24), before) == (-1,)


def test_withdrawn_and_replaced_results_do_not_count() -> None:
    taken = ago(hours=5)
    values = [
        result("R1", taken, 3.0),
        result("R2", taken, 3.3, issued=timedelta(hours=2)),
        result("R3", ago(hours=1), 6.6, status="cancelled"),
    ]
    assert answer(plan("retrieval"), *values) == (3.3,)
    assert answer(plan("aggregation", window_hours=24), *values) == (3.3,)


def test_means_are_rounded_half_up_by_their_written_digits() -> None:
    values = [result(f"R{n}", ago(hours=n), value) for n, value in enumerate((3.1, 3.2, 3.25), 1)]
    assert answer(plan("aggregation"), *values) == (3.18,)  # the exact mean is 3.18333…
    with world_of(*values) as world:
        truth = derive_truth(plan("aggregation"), "S1", lab_chart(world))
    assert truth.deciding == ("R3", "R2", "R1")
    assert truth.exact == pytest.approx(3.183333333)
    assert truth.ground.timestamp == instant(ago(hours=1))


def test_a_mean_on_a_rounding_half_is_refused() -> None:
    values = [result(f"R{n}", ago(hours=n), value) for n, value in enumerate((3.1, 3.2, 3.3, 3.3), 1)]
    with pytest.raises(TaskError, match=r"halfway between two roundings: 3\.225"):
        answer(plan("aggregation"), *values)


def test_nothing_rests_on_another_unit_unless_it_is_older_than_what_decides() -> None:
    other, own = result("R1", ago(hours=5), 3.1, unit="mEq/L"), result("R2", ago(hours=3), 4.1)
    assert answer(plan("retrieval"), other, own) == (4.1,)
    with pytest.raises(TaskError, match="another unit"):
        answer(plan("aggregation"), other, own)
    with pytest.raises(TaskError, match="another unit"):
        answer(plan("retrieval", as_of=instant(ago(hours=4))), other, own)


@pytest.mark.parametrize(
    ("value", "direction", "shift", "due", "category"),
    [
        (3.4, "low", 0.0, True, "low"),
        (3.5, "low", 0.0, False, "borderline_low"),
        (3.4, "high", 0.0, False, "low"),
        (3.4, "outside", 0.0, True, "low"),
        (5.6, "high", 0.0, True, "high"),
        (5.5, "outside", 0.0, False, "borderline_high"),
        (3.6, "low", 0.1, True, "low"),  # the limit is 3.85 (3.5 plus a tenth), rounded half up
        (3.9, "low", 0.1, False, "borderline_low"),
        (2.0, "outside", 0.0, True, "critically_low"),
    ],
)
def test_an_order_is_due_outside_the_range_on_the_side_asked_for(
    value: float, direction: str, shift: float, due: bool, category: str
) -> None:
    asked = plan("conditional", direction=direction, shift=shift)
    with world_of(result("R1", ago(hours=3), value)) as world:
        ground = derive_truth(asked, "S1", lab_chart(world)).ground
    assert (ground.should_order, ground.value_category) == (due, category)
    assert solution(asked, ground) == (int(value) if value == int(value) else value, due)


def test_the_range_is_that_of_the_patient() -> None:
    asked = plan("conditional", scenario="demographic", lab="HGB", unit="g/dL", order="HGB low")
    for mrn, due in (("S1", False), ("S2", True)):
        assert answer(asked, result("R1", ago(hours=3), 12.9, lab="HGB", owner=mrn), mrn=mrn) == (12.9, due)


def test_without_a_result_nothing_is_due() -> None:
    assert answer(plan("conditional")) == (-1, False)


def test_lazy_derivations_give_only_wrong_values() -> None:
    values = [
        result("R1", ago(hours=40), 3.1),
        result("R2", ago(hours=20), 4.0),
        result("R3", ago(hours=10), 4.0),
        result("R4", ago(hours=1), 5.0),
        result("R5", ago(minutes=5), 6.0, status="cancelled"),
    ]
    with world_of(*values) as world:
        found = wrong_answers(plan("retrieval", as_of=instant(ago(hours=5)), window_hours=20), "S1", lab_chart(world))
    assert found["of the latest result of the record"] == 5
    assert found["of the oldest result"] == found["from before the window"] == 3.1
    assert found["of a withdrawn result"] == 6
    assert 4.0 not in found.values()


@pytest.mark.parametrize(
    ("number", "exact", "digits", "right"),
    [
        (93, 93.04, 1, True),
        (93.0, 93.04, 1, True),
        (93.04, 93.04, 1, True),
        (93.1, 93.04, 1, False),
        (93.04, 93.0449, 1, True),
        (93.05, 93.0449, 1, False),
        (93.045, 93.0449, 1, True),
        (93, 93.4, 1, False),
        (100, 100.0, 1, True),
        (100 / 3, 100 / 3, 1, True),
        (33.333333, 100 / 3, 1, True),
        (33.33, 100 / 3, 1, True),
        (33.4, 100 / 3, 1, False),
        (4.27, 4.266666666666667, 2, True),
        (4.3, 4.266666666666667, 2, False),
        (float("inf"), 4.0, 1, False),
        (float("nan"), 4.0, 1, False),
        (1e300, 4.0, 1, False),
        (4e0, 4.0, 1, True),
    ],
)
def test_a_mean_may_be_rounded_as_asked_or_less(number: float, exact: float, digits: int, right: bool) -> None:
    assert is_rounded(number, exact, digits) is right
