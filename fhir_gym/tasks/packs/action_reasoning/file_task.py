"""Read a task file; each of its lines becomes a task."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import orjson
from pydantic import TypeAdapter
from typing_extensions import override

from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.files import write_file
from fhir_gym.tasks import Variation
from fhir_gym.tasks.authoring import instant, moment_in_words, parse_instant
from fhir_gym.tasks.core.task_file import read_list
from fhir_gym.tasks.packs.action_reasoning.cases import ENV_ID, GROUPS, CaseSpec, GroundTruth, ReasoningCase
from fhir_gym.tasks.packs.action_reasoning.derivation import derive_truth, is_order_due, require_possible, solution
from fhir_gym.tasks.packs.action_reasoning.external_cases import inferred, order_of, range_in
from fhir_gym.tasks.packs.action_reasoning.params import ReasoningParams, params_of
from fhir_gym.tasks.packs.action_reasoning.phrasing import ENDINGS, rounding
from fhir_gym.tasks.packs.action_reasoning.ranges import LABS, ReferenceRange
from fhir_gym.tasks.packs.action_reasoning.reasoning_task import ConditionalTask, QueryTask, ReasoningTask
from fhir_gym.tasks.packs.action_reasoning.series import lab_chart
from fhir_gym.types import Phrasing

_CASES = TypeAdapter(tuple[ReasoningCase, ...])
_OURS = "fhir_gym"


def read_cases(path: str | Path) -> tuple[ReasoningCase, ...]:
    """Read the cases of a file, in file order.

    Raises:
        TaskError: The file is not readable or not a task file.
    """
    return read_list(path, _CASES, "task file of this pack")


def write_cases(path: str | Path, cases: Iterable[ReasoningCase]) -> None:
    """Write cases to a file atomically, creating its folder if needed.

    Raises:
        TaskError: The file is not writable.
    """
    write_file(Path(path), dumped(cases), TaskError)


def dumped(cases: Iterable[ReasoningCase]) -> bytes:
    """Serialise cases to the bytes of a task file, with keys in the paper's order; equal cases give equal bytes."""
    plain = [case.model_dump(mode="json", by_alias=True) for case in cases]
    for resource in plain:
        if resource[_OURS] is None:  # external cases have no specification
            del resource[_OURS]
    return orjson.dumps(plain, option=orjson.OPT_INDENT_2) + b"\n"


class _OfFile(ReasoningTask):
    """A task for one case of a task file; it has a single variation and uses the text of the case."""

    case: ClassVar[ReasoningCase]
    pack = ENV_ID
    prompts = ("{context}\n\n{instruction}",)
    brief: ClassVar[str | None] = None  # a file states its own text

    def draw(self, k: int, rng: random.Random, world: World) -> ReasoningParams:
        """Check the case against the world.

        Raises:
            TaskError: The world lacks the patient, the case lacks information, or the case and the world disagree.
        """
        case, now = self.case, instant(world.now)
        if world.read("Patient", case.eval_MRN) is None:
            raise TaskError(f"the world {world.name} lacks Patient/{case.eval_MRN}, the patient of case {case.id}")
        plan = case.plan or inferred(case, now)
        _require_present(case, plan, now)
        row = range_in(case, plan.lab) if case.plan is None and plan.family == "conditional" else None
        order = order_of(case) if row else None
        _require_agreement(case, plan, world, row)
        return params_of(case.model_copy(update={"plan": plan}), world, order, row)

    def variation(self, k: int, world: World, phrasing: Phrasing | None = None) -> Variation:
        """Return the only variation.

        Raises:
            TaskError: `k` is not 0, the phrasing does not exist, or the world disagrees with the case.
        """
        if k != 0:
            raise TaskError(f"a task from a task file has only variation 0, not {k}")
        return replace(super().variation(k, world, phrasing), split="test")

    @override
    def decisive_records(self, k: int, world: World) -> tuple[str, tuple[str, ...]]:
        return "", ()

    @override
    def phrased(self, p: ReasoningParams, phrasing: int, world: World) -> ReasoningParams:
        return p

    @override
    def prompt_values(self, p: ReasoningParams, world: World) -> Mapping[str, str]:
        return {"context": self.case.context, "instruction": self.case.instruction}

    @override
    def prompt(self, p: ReasoningParams, world: World, phrasing: int) -> str:
        told = (self.case.context, " ".join(_unsaid(p)) if self.case.plan is None else "", self.case.instruction)
        parts = (f"Present: {moment_in_words(world.now)}.", *told, self.answer_instructions)
        return "\n\n".join(part for part in parts if part)


class FileQuery(_OfFile, QueryTask, abstract=True):
    """A task that asks for a value."""


class FileConditional(_OfFile, ConditionalTask, abstract=True):
    """A task that asks for a value and, if the value is outside its range, for an order."""

    def is_due(self, p: ReasoningParams, value: float, row: ReferenceRange | None) -> bool:
        """Return whether an order is due; an external case states its own thresholds."""
        if self.case.plan is None:
            return is_order_due(range_in(self.case, p.plan.lab), value, p.plan.direction)
        return super().is_due(p, value, row)


def read_tasks(task_file: Path, funcs_file: Path | None) -> Mapping[str, ReasoningTask]:
    """Read a task file and return its tasks by id, in file order.

    Args:
        task_file: The file.
        funcs_file: Ignored; tasks of this pack need no function list.

    Raises:
        TaskError: The file is not readable or not valid, or a case lacks required information.
    """
    try:
        changed = task_file.stat().st_mtime_ns
    except OSError as error:
        raise TaskError(f"{task_file} cannot be read: {error.strerror}") from error
    return _read(task_file, changed)


@lru_cache(maxsize=4)
def _read(task_file: Path, _: int) -> Mapping[str, ReasoningTask]:
    return {case.id: _task(case) for case in read_cases(task_file)}


def _task(case: ReasoningCase) -> ReasoningTask:
    # The inferred kind of task and laboratory test do not depend on the current time.
    plan = case.plan or inferred(case, "")
    if case.plan is not None:
        require_possible(plan, case.id)
    base = FileConditional if plan.family == "conditional" else FileQuery
    attributes = {
        "__doc__": f"{case.id} of a task file.",
        "case": case,
        "key": case.id,
        "title": f"{plan.family.capitalize()} of {LABS[plan.lab].title}",
        "category": GROUPS[plan.family],
        "scenario": plan.scenario,
        "answer_instructions": ENDINGS[plan.family],
        "gold_steps": base.gold_steps + (plan.scenario == "demographic"),
    }
    task: ReasoningTask = type("FileTask", (base,), attributes)()
    return task


def _unsaid(p: ReasoningParams) -> Iterator[str]:
    """Yield the facts that the checks require and that an external case does not state."""
    plan, truth_ = p.plan, p.case.ground_truth
    lab = LABS[plan.lab]
    yield f"Lab code: {lab.name} ({lab.title}, in {lab.unit}). The patient's id on the server is the record number."
    if plan.family == "aggregation":
        yield rounding(plan.digits)
    if p.order is not None:
        limits = {"lower": truth_.threshold_low, "upper": truth_.threshold_high}
        said = [f"the {name} limit is {value:g} {lab.unit}" for name, value in limits.items() if value is not None]
        yield f"For this patient {' and '.join(said)}." if said else ""
        yield p.order.content


def _require_present(case: ReasoningCase, plan: CaseSpec, now: str) -> None:
    """Raise TaskError if the current time of the case differs from the world's current time."""
    if plan.as_of != now and (parse_instant(plan.as_of) > parse_instant(now) or plan.as_of not in case.instruction):
        raise TaskError(f"{case.id} was made for the current time {plan.as_of}; that of the world is {now}")


def _require_agreement(case: ReasoningCase, plan: CaseSpec, world: World, row: ReferenceRange | None) -> None:
    """Raise TaskError if the case and the world disagree."""
    right = derive_truth(plan, case.eval_MRN, lab_chart(world), row).ground
    named = [name for name in GroundTruth.model_fields if row is None or name not in _OF_THEIR_OWN]
    if case.plan is None and plan.family != "conditional":
        named = [name for name in named if getattr(case.ground_truth, name) is not None or name == "value"]
    differing = [
        f"{name}: {_said(getattr(case.ground_truth, name))} in the file, {_said(getattr(right, name))} in the world"
        for name in named
        if not _same(getattr(case.ground_truth, name), getattr(right, name))
    ]
    answer = solution(plan, right)
    if tuple(case.sol) != answer:
        differing.append(f"sol: {list(case.sol)} in the file, {list(answer)} in the world")
    if differing:
        raise TaskError(f"{case.id} and the world {world.name} disagree about {case.eval_MRN}: {'; '.join(differing)}")


_OF_THEIR_OWN = frozenset({"threshold_low", "threshold_high", "value_category"})
"""Values that external files derive from their own reference ranges."""


def _said(value: object) -> str:
    return "nothing" if value is None else str(value)


def _same(told: object, stored: object) -> bool:
    if told != stored and isinstance(told, str) and isinstance(stored, str) and "T" in told and "T" in stored:
        try:
            return parse_instant(told) == parse_instant(stored)
        except ValueError:
            return False
    return told == stored
