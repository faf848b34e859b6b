"""Count tasks by scenario, test, category and sex; vary their windows or limits and report the success rates."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Literal

from fhir_gym.errors import ArgumentError, TaskError
from fhir_gym.evaluation.intervals import Proportion, wilson
from fhir_gym.fhir import World
from fhir_gym.rollouts import Rollout
from fhir_gym.tasks.packs.action_reasoning.cases import LEAST_SHIFT, LONGEST_WINDOW, MOST_SHIFT, CaseSpec, ReasoningCase
from fhir_gym.tasks.packs.action_reasoning.generation import vary
from fhir_gym.tasks.packs.action_reasoning.ranges import CATEGORIES, LABS
from fhir_gym.types import Json

Kind = Literal["window", "shift"]
_HOURS = re.compile(r"(\d+(?:\.\d+)?)\s*h?\Z")


@dataclass(frozen=True, slots=True)
class Setting:
    """One change that a sweep applies to tasks.

    Attributes:
        kind: ``window`` sets the length of the time window; ``shift`` shifts the limits of the reference range.
        value: Length of the window in hours, or relative shift (0.1 raises the limits by ten percent).
    """

    kind: Kind
    value: float

    def __str__(self) -> str:
        if self.kind == "window":
            return f"{self.value:g}h"
        percent = Decimal(str(self.value)) * 100
        return f"{percent.normalize():+f}%" if percent else "0%"


@dataclass(frozen=True, slots=True)
class Variant:
    """A base task under a setting; the variant's id is ``ID@SETTING``.

    Attributes:
        case: The changed task.
        changed: Whether the setting changes the correct answer.
    """

    setting: Setting
    case: ReasoningCase
    changed: bool


@dataclass(frozen=True)
class Sweep:
    """All tasks of a sweep.

    Attributes:
        settings: All settings in the given order.
        variants: One variant of each base task for each setting that applies to the task.
        left_out: Number of tasks omitted for each setting because their answer is ambiguous under that setting.
    """

    settings: tuple[Setting, ...]
    variants: tuple[Variant, ...]
    left_out: Counter[Setting]

    @property
    def cases(self) -> tuple[ReasoningCase, ...]:
        """The tasks to run."""
        return tuple(variant.case for variant in self.variants)


@dataclass(frozen=True, slots=True)
class Point:
    """Results of all tasks under one setting.

    Attributes:
        tasks: Number of tasks.
        left_out: Number of omitted tasks.
        changed: Share of tasks whose correct answer differs from the base task's.
        success: Success rate of the graded episodes.
        on_changed: Success rate on the changed tasks, which an agent solves only if it notices the setting.
    """

    setting: Setting
    tasks: int
    left_out: int
    changed: Proportion
    success: Proportion
    on_changed: Proportion

    columns = ("setting", "tasks", "left out", "changed", "episodes", "success", "low", "high", "success on changed")
    """Column headers of the table."""

    def row(self) -> tuple[str, ...]:
        """Return the point as a table row."""
        low, high = wilson(self.success.count, self.success.of)
        interval = (f"{low:.1%}", f"{high:.1%}") if self.success.of else ("-", "-")
        counts = (str(self.tasks), str(self.left_out), _percent(self.changed), str(self.success.of))
        return (str(self.setting), *counts, _percent(self.success), *interval, _percent(self.on_changed))

    def plain(self) -> dict[str, Json]:
        """Return the point as JSON data."""
        return {
            "kind": self.setting.kind,
            "value": self.setting.value,
            "setting": str(self.setting),
            "tasks": self.tasks,
            "left_out": self.left_out,
            "changed": self.changed.plain(),
            "success": self.success.plain(),
            "success_on_changed": self.on_changed.plain(),
        }


def windows(text: str) -> tuple[Setting, ...]:
    """Parse windows such as ``12h,24h,36h``.

    Raises:
        ArgumentError: The text is invalid.
    """
    variants = []
    for part in _parts(text):
        match = _HOURS.match(part)
        if match is None or not 0 < float(match[1]) <= LONGEST_WINDOW:
            raise ArgumentError(f"windows {text!r} are not hours like 12h,24h,36h (up to a year)")
        variants.append(Setting("window", float(match[1])))
    return tuple(dict.fromkeys(variants))


def shifts(text: str) -> tuple[Setting, ...]:
    """Parse relative shifts of limits such as ``-10%,0%,+10%``.

    Raises:
        ArgumentError: The text is invalid.
    """
    variants = []
    for part in _parts(text):
        try:
            percent = Decimal(part.removesuffix("%"))
        except InvalidOperation:
            percent = Decimal("NaN")
        if not part.endswith("%") or not percent.is_finite() or not LEAST_SHIFT <= percent / 100 <= MOST_SHIFT:
            raise ArgumentError(f"shifts {text!r} are not percentages like -10%,0%,10% (from -90% to 100%)")
        variants.append(Setting("shift", float(percent / 100)))
    return tuple(dict.fromkeys(variants))


def prepare(world: World, cases: Sequence[ReasoningCase], settings: Sequence[Setting]) -> Sweep:
    """Apply settings to tasks: windows to tasks with a window, shifts to tasks with a reference range.

    Args:
        world: The world of the tasks.
        cases: The base tasks; tasks without a specification are ignored.
        settings: The settings; each is applied separately to every suitable task.

    Raises:
        TaskError: A setting suits no task, the world disagrees with a task, or every variant is ambiguous.
    """
    variants: list[Variant] = []
    left_out: Counter[Setting] = Counter()
    planned_cases = [(case, case.plan) for case in cases if case.plan is not None]
    if not planned_cases:
        raise TaskError(f"none of the {len(cases)} tasks has a fhir_gym specification, so they cannot be varied")
    _require_agreement(
        [case for case, plan in planned_cases if any(_fits(setting, plan) for setting in settings)], world
    )
    for setting in settings:
        fitting = [case for case, plan in planned_cases if _fits(setting, plan)]
        if not fitting:
            what = "time window" if setting.kind == "window" else "reference range"
            raise TaskError(f"none of the {len(cases)} tasks has a {what}, so the setting {setting} applies to no task")
        for case in fitting:
            try:
                varied = _varied(case, setting, world)
            except TaskError:  # the new results may be ambiguous
                left_out[setting] += 1
                continue
            named = varied.model_copy(update={"id": f"{case.id}@{setting}"})
            variants.append(Variant(setting, named, varied.sol != case.sol))
    if not variants:
        raise TaskError(f"all tasks are ambiguous under {', '.join(map(str, settings))}")
    return Sweep(tuple(settings), tuple(variants), left_out)


def curve(sweep: Sweep, rollouts: Iterable[Rollout]) -> tuple[Point, ...]:
    """Return the results of each setting; rollouts of tasks outside the sweep are ignored."""
    variants_by_case = {variant.case.id: variant for variant in sweep.variants}
    judged: Counter[tuple[Setting, bool]] = Counter()
    solved: Counter[tuple[Setting, bool]] = Counter()
    for rollout in rollouts:
        variant = variants_by_case.get(rollout.task.key)
        if variant is not None and rollout.graded:
            place = variant.setting, variant.changed
            judged[place] += 1
            solved[place] += bool(rollout.success)
    return tuple(_point(setting, sweep, judged, solved) for setting in sweep.settings)


def to_csv(points: Sequence[Point]) -> str:
    """Return the points as CSV, one line per setting; shares are from 0 to 1 and have 95 % confidence intervals."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    shares = ("changed", "success", "success_on_changed")
    parts = ("count", "of", "share", "low", "high")
    writer.writerow(["kind", "value", "tasks", "left_out", *(f"{share}_{part}" for share in shares for part in parts)])
    for point in points:
        plain = point.plain()
        figures = [plain[share][part] for share in shares for part in parts]
        writer.writerow([point.setting.kind, point.setting.value, point.tasks, point.left_out, *figures])
    return text.getvalue()


def _point(
    setting: Setting, sweep: Sweep, judged: Counter[tuple[Setting, bool]], solved: Counter[tuple[Setting, bool]]
) -> Point:
    own = [variant for variant in sweep.variants if variant.setting == setting]
    both = ((setting, False), (setting, True))
    return Point(
        setting,
        tasks=len(own),
        left_out=sweep.left_out[setting],
        changed=Proportion(sum(variant.changed for variant in own), len(own)),
        success=Proportion(sum(solved[place] for place in both), sum(judged[place] for place in both)),
        on_changed=Proportion(solved[setting, True], judged[setting, True]),
    )


def _require_agreement(cases: Iterable[ReasoningCase], world: World) -> None:
    """Raise TaskError if the tasks do not belong to the world."""
    for case in cases:
        try:
            same = vary(case, world).sol == case.sol
        except TaskError as error:
            raise TaskError(f"{case.id} does not fit the world {world.name}: {error}") from error
        if not same:
            raise TaskError(f"{case.id} and the world {world.name} disagree; see `fhir-gym research art audit`")


def _fits(setting: Setting, plan: CaseSpec) -> bool:
    return plan.window_hours is not None if setting.kind == "window" else plan.family == "conditional"


def _varied(case: ReasoningCase, setting: Setting, world: World) -> ReasoningCase:
    if setting.kind == "window":
        return vary(case, world, window_hours=setting.value)
    return vary(case, world, shift=setting.value)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _percent(share: Proportion) -> str:
    return "-" if share.value is None else f"{share.value:.1%}"


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
