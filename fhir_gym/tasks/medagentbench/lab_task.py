"""What all tasks on laboratory results have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeVar

from fhir_gym.actions import Action, Finish
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.checks import Check
from fhir_gym.tasks.clock import instant
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.medagentbench.labs import Charting, LabParams, Result
from fhir_gym.tasks.medagentbench.pack import NONE, blind, number_check
from fhir_gym.tasks.task import Task
from fhir_gym.types import Resource

__all__ = ["LabTask", "empty_params", "latest_params", "level_check"]

P = TypeVar("P", bound=LabParams)


class LabTask(Task[P], Generic[P]):
    """A task whose answer or order rests on results in a chart.

    Such a value comes from a small range and a guess is now and then right, so success always needs evidence.
    """

    looks_first = True
    decisive: ClassVar[Mapping[str, tuple[str, ...]]] = {"Observation": ("valueQuantity",)}

    def setup(self, p: P, world: World) -> list[Resource]:
        """Patients and results."""
        return p.resources()

    def words(self, p: P, world: World) -> dict[str, str]:
        """The patient."""
        return p.words()

    def rests_on(self, p: P) -> tuple[str, ...]:
        """The results that decide."""
        return p.records()

    def must_look(self, p: P) -> bool:
        """A value can be guessed, and an order can be due by chance."""
        return True

    def near_misses(self, p: P, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        """Everything done right, but ids seen only, or the value of another result answered, or one beside it."""
        *before, finish = gold
        value, *rest = finish.answer or []
        others = {f"the value of {one.status} {one.id}": one.value for one in p.results if one.id not in p.deciding}
        others |= {"a little more": value + 0.3, "a little less": value - 0.3, "in another unit": value * 18}
        if p.level is not None:
            others["none"] = NONE
            yield from blind(gold)
            if len(gold) > 2:
                yield "orders first and looks afterwards", [*gold[1:-1], gold[0], finish]
        for name, other in others.items():
            if p.level is None or abs(other - p.level) > p.tolerance + 1e-6:
                yield f"answers {name}", [*before, Finish([other, *rest])]

    def phantom(self, p: P, world: World) -> list[Resource]:
        """The result that would have been there."""
        return p.phantoms()


def latest_params(
    chart: Charting, ago: timedelta, value: float | None, *, stale: timedelta, convert: bool = False, tie: bool = False
) -> dict[str, Any]:
    """Fills a chart whose latest result has a value, or that has none; gives the `LabParams` of it.

    Args:
        chart: The chart.
        ago: How long before the present the result was taken, or would have been.
        value: Its value in the wanted unit; None for no result.
        stale: What is older than this does not count or is not the latest.
        convert: Whether it may be in the other unit.
        tie: Whether another result of the same specimen lies beside it.
    """
    found: dict[str, Any] = {"level": None}
    phantom: Result | None = None
    if value is None:
        phantom = chart.phantom(ago)
    else:
        result, level = chart.measured(ago, value, convert=convert)
        tolerance = chart.test.tolerance if result.unit != chart.test.unit else 0.0
        if tie:
            chart.tie(result, chart.value())
        found = {"level": level, "tolerance": tolerance, "taken": result.taken, "deciding": (result.id,)}
    chart.distract(ago)
    chart.stale(stale)
    return {
        "now": instant(chart.now),
        "mrn": chart.mrn,
        "people": chart.people,
        "results": tuple(chart.results),
        "phantom": phantom,
        **found,
    }


def empty_params(chart: Charting, ago: timedelta) -> dict[str, Any]:
    """Fills a chart without any result that counts, however old; gives the `LabParams` of it.

    Args:
        chart: The chart.
        ago: How long before the present the result would have been taken.
    """
    phantom = chart.phantom(ago)
    chart.distract(ago)
    return {
        "now": instant(chart.now),
        "mrn": chart.mrn,
        "people": chart.people,
        "results": tuple(chart.results),
        "phantom": phantom,
        "level": None,
    }


def level_check(p: LabParams, end: EndState) -> Check:
    """The check that the level is answered first, or -1 if there is none."""
    if p.silent and end.answer == []:
        return Check(name="answer", passed=True, expected=p.level, actual=[])
    return number_check("answer", end.answer[0] if end.answer else None, p.level, p.tolerance)
