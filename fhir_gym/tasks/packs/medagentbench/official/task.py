"""Turn the tasks of an official task file into tasks of the pack."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import SerializeAsAny
from typing_extensions import override

from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, ExpectedChange, FinishedEpisode, Gold, Params, Task, TurnProtocol, Variation
from fhir_gym.tasks.packs.medagentbench.internist_task import ENV_ID, ItemsAnswer
from fhir_gym.tasks.packs.medagentbench.official.conversation import OfficialConversation
from fhir_gym.tasks.packs.medagentbench.official.our_params import OURS, params_for_ours
from fhir_gym.tasks.packs.medagentbench.official.records import OfficialRecords
from fhir_gym.tasks.packs.medagentbench.official.rejection import READ_ERRORS
from fhir_gym.tasks.packs.medagentbench.official.solutions import solution
from fhir_gym.tasks.packs.medagentbench.official.submitted import SubmittedEndState
from fhir_gym.tasks.packs.medagentbench.official.task_file import OfficialCase, read_cases, read_functions
from fhir_gym.tasks.packs.medagentbench.official.turn_protocol import OfficialDialogue
from fhir_gym.tasks.packs.medagentbench.official.verdict import Transcript, judge, reference
from fhir_gym.types import Json, Phrasing, Resource

_STEPS = {"task3": 2, "task8": 2, "task5": 3, "task9": 4, "task10": 3}
_UNLIKE_OURS = "the records are readable"


@dataclass(frozen=True, slots=True)
class AnyAnswer:
    """Accepts any list, because the prompt asks for no answer."""

    @property
    def description(self) -> str:
        """The form in words."""
        return "any list"

    def problem(self, answer: list[Json] | None, base_url: str) -> str | None:
        """Describe the error in the form of an answer; return None if the form is right."""
        return "the episode ended without FINISH" if answer is None else None


class OfficialParams(Params):
    """Parameters of a task of a task file.

    Attributes:
        case: The task.
        ours: Parameters of fhir_gym's corresponding task. None if a record is missing or incomplete; in this case no
            answer is right.
    """

    case: OfficialCase
    ours: SerializeAsAny[Params] | None


class OfficialTask(Task[OfficialParams], abstract=True):
    """One task of an official task file; `read_tasks` creates these tasks.

    The task has a single variation and uses the text of the file. An episode gets three gradings: the benchmark's
    verdict, and the strict and the light grading of fhir_gym's corresponding task.
    """

    case: ClassVar[OfficialCase]
    functions: ClassVar[str]
    ours: ClassVar[Task[Any]]
    gradings = ("state", "evidence", "official")
    pack = ENV_ID

    @override
    def sample(self, rng: random.Random, world: World) -> OfficialParams:
        """Derive the parameters from the task's text and the world.

        Raises:
            TaskError: The patient is not in the world.
        """
        mrn = self.case.eval_MRN
        if mrn is not None and world.read("Patient", mrn) is None:
            raise TaskError(
                f"the world {world.manifest.name} has no Patient/{mrn} of {self.key}: the benchmark's tasks need its "
                "own data (fhir-gym worlds import)"
            )
        with world.session() as session:
            try:
                ours = params_for_ours(self.case, OfficialRecords(session.handle))
            except READ_ERRORS:
                ours = None
        return OfficialParams(case=self.case, ours=ours)

    @override
    def setup(self, p: OfficialParams, world: World) -> list[Resource]:
        return []

    @override
    def prompt_values(self, p: OfficialParams, world: World) -> dict[str, str]:
        return {"context": self.case.context, "instruction": self.case.instruction, "functions": self.functions}

    @override
    def prompt(self, p: OfficialParams, world: World, phrasing: int) -> str:
        asked = self.prompts[phrasing].format_map(self.prompt_values(p, world))
        return f"{asked}\n\n{self.answer_instructions}"

    @override
    def variation(self, k: int, world: World, phrasing: Phrasing | None = None) -> Variation:
        """Return the only variation.

        Raises:
            TaskError: `k` is not 0, the phrasing does not exist, or the patient is not in the world.
        """
        if k != 0:
            raise TaskError(f"a task of a task file has one variation, 0, not {k}")
        return replace(super().variation(k, world, phrasing), split="test")

    @override
    def gold(self, p: OfficialParams) -> Gold:
        return solution(self.case)

    @override
    def checks(self, p: OfficialParams, end: FinishedEpisode) -> Iterator[Check]:
        yield Check(name=_UNLIKE_OURS, passed=p.ours is not None, expected=True, actual=p.ours is not None)
        if p.ours is not None:
            yield from self.ours.checks(p.ours, SubmittedEndState.of(end))

    @override
    def official(self, p: OfficialParams, end: FinishedEpisode) -> Iterator[Check]:
        conversation = OfficialConversation()
        for text, reply in end.said:
            turn = conversation.take(text)
            if turn.ends:
                break
            if turn.kind == "GET":
                conversation.told(reply)
            else:
                conversation.reply(turn, None)
            if conversation.over:
                break
        with end.world.session(base_url=end.base_url) as session:
            records = OfficialRecords(session.handle)
            verdict = judge(
                self.case, Transcript(conversation.history, conversation.result, f"{end.base_url}/"), records
            )
            try:
                expected: Json = reference(self.case, records)
            except READ_ERRORS:
                expected = None
        yield Check(
            name="official verdict", passed=verdict.accepted, expected=expected, actual=verdict.reason or "accepted"
        )

    @override
    def turn_protocol(self, grading: str) -> TurnProtocol | None:
        return OfficialDialogue() if grading == "official" else None

    @override
    def expected_changes(self, p: OfficialParams) -> tuple[ExpectedChange, ...]:
        return self.ours.expected_changes(p.ours) if p.ours else ()

    @override
    def required_records(self, p: OfficialParams) -> tuple[str, ...]:
        return self.ours.required_records(p.ours) if p.ours else ()

    @override
    def requires_evidence(self, p: OfficialParams) -> bool:
        return bool(p.ours) and self.ours.requires_evidence(p.ours)

    @override
    def counterfactual(self, p: OfficialParams, world: World) -> list[Resource]:
        return self.ours.counterfactual(p.ours, world) if p.ours else []


def read_tasks(task_file: Path, funcs_file: Path | None) -> Mapping[str, OfficialTask]:
    """Read a task file and return its tasks by id, in file order.

    Args:
        task_file: The benchmark's task file.
        funcs_file: The function list to show in the prompts; None to show none.

    Raises:
        TaskError: A file cannot be read or has another format.
    """
    return _read(task_file, _changed(task_file), funcs_file, _changed(funcs_file))


def _changed(path: Path | None) -> int:
    """Return a file's modification time, so that the cache notices changes."""
    try:
        return path.stat().st_mtime_ns if path else 0
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}") from error


@lru_cache(maxsize=4)
def _read(task_file: Path, _: int, funcs_file: Path | None, __: int) -> Mapping[str, OfficialTask]:
    functions = json.dumps(read_functions(funcs_file), ensure_ascii=False) if funcs_file else ""
    return {case.id: _task(case, functions) for case in read_cases(task_file)}


def _task(case: OfficialCase, functions: str) -> OfficialTask:
    ours = OURS[case.kind]
    listed = "Functions you can use, as JSON ({{api_base}} is the server's base):\n{functions}\n\n" if functions else ""
    attributes = {
        "__doc__": f"{case.id} of a task file.",
        "case": case,
        "functions": functions,
        "ours": ours,
        "key": case.id,
        "title": ours.title,
        "category": ours.category,
        "difficulty": ours.difficulty,
        "kind": ours.kind,
        "required_tools": (("create",),) if case.kind in ("task3", "task8") else ours.required_tools,
        "required_resources": ours.required_resources,
        "prohibited_tools": ours.prohibited_tools,
        "prompts": (listed + "Context: {context}\nQuestion: {instruction}",),
        "answer_instructions": "Answer with a JSON list, without units or words around a value.",
        "answer": _answer(case, ours),
        "requested_elements": ours.requested_elements,
        "evidence_fields": ours.evidence_fields,
        "gold_steps": _STEPS.get(case.kind, 2),
    }
    task: OfficialTask = type(f"Official_{case.id}", (OfficialTask,), attributes)()
    return task


def _answer(case: OfficialCase, ours: Task[Any]) -> Any:
    if case.kind in ("task3", "task8"):
        return AnyAnswer()
    return ItemsAnswer("[number] or []", (("number",), ())) if case.kind in ("task5", "task9") else ours.answer
