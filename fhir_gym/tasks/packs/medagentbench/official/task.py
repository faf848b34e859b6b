"""Turn the tasks of an official task file into tasks of the pack, with the parameters of the corresponding tasks."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import SerializeAsAny
from typing_extensions import override

from fhir_gym.actions.model import parse_json
from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.fhir.messages import Interaction
from fhir_gym.tasks import (
    Check,
    Diagnosis,
    ExpectedChange,
    FinishedEpisode,
    Gold,
    LoggedRequest,
    Params,
    Task,
    TurnProtocol,
    Variation,
    Verdict,
)
from fhir_gym.tasks.authoring import Person, instant
from fhir_gym.tasks.core.dates import full_years
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.packs.medagentbench.internist_task import ENV_ID, ItemsAnswer
from fhir_gym.tasks.packs.medagentbench.labs import LabParams, Result
from fhir_gym.tasks.packs.medagentbench.official.conversation import OfficialConversation, OfficialDialogue
from fhir_gym.tasks.packs.medagentbench.official.orders import READ_ERRORS
from fhir_gym.tasks.packs.medagentbench.official.records import (
    DAY_AGO,
    NOW,
    NOW_TEXT,
    TODAY,
    LabReading,
    OfficialRecords,
    latest,
)
from fhir_gym.tasks.packs.medagentbench.official.solutions import solution
from fhir_gym.tasks.packs.medagentbench.official.task_file import OfficialCase, read_cases, read_functions
from fhir_gym.tasks.packs.medagentbench.official.verdict import Transcript, judge, reference
from fhir_gym.tasks.packs.medagentbench.t01_find_patient import FindPatient, FindPatientParams
from fhir_gym.tasks.packs.medagentbench.t02_age import Age, AgeParams
from fhir_gym.tasks.packs.medagentbench.t03_blood_pressure import BloodPressure, BloodPressureParams
from fhir_gym.tasks.packs.medagentbench.t04_t05_magnesium import Magnesium, MagnesiumReplacement
from fhir_gym.tasks.packs.medagentbench.t06_t07_glucose import AverageGlucose, Glucose
from fhir_gym.tasks.packs.medagentbench.t08_referral import Referral, ReferralParams
from fhir_gym.tasks.packs.medagentbench.t09_potassium_replacement import PotassiumReplacement
from fhir_gym.tasks.packs.medagentbench.t10_hemoglobin_a1c import HemoglobinA1c
from fhir_gym.types import Json, Phrasing, Resource, as_list, as_object, json_object

OURS: Mapping[str, Task[Any]] = {
    "task1": FindPatient(),
    "task2": Age(),
    "task3": BloodPressure(),
    "task4": Magnesium(),
    "task5": MagnesiumReplacement(),
    "task6": AverageGlucose(),
    "task7": Glucose(),
    "task8": Referral(),
    "task9": PotassiumReplacement(),
    "task10": HemoglobinA1c(),
}
"""The task of fhir_gym that corresponds to each task class of the benchmark."""

_WITHIN = 24 * 60 - 10
"""Maximum age of a counterfactual result in minutes."""
_PERSON = re.compile(r"name (.+?) and DOB of (\d{4}-\d\d-\d\d)")
_PRESSURE = re.compile(r"(\d+)/(\d+) mmHg")
_QUOTED = re.compile(r'["“](.+)["”]', re.DOTALL)
_CLOSE = 0.1
_NOT_FOUND = "Patient not found"


def params_for_ours(case: OfficialCase, records: OfficialRecords) -> Params:
    """Derive parameters of fhir_gym's corresponding task from the text of an official task and the records.

    Raises:
        TaskError: The text does not have the form of its task class.
        LookupError: A record is incomplete; other exceptions of `READ_ERRORS` are possible too.
    """
    return _FACTS[case.kind](case, records)


def _matched(case: OfficialCase, pattern: re.Pattern[str]) -> re.Match[str]:
    match = pattern.search(case.instruction)
    if match is None:
        raise TaskError(f"the instruction of {case.id} does not have the form of its class: {case.instruction[:80]!r}")
    return match


def _mrn(case: OfficialCase) -> str:
    if case.eval_MRN is None:
        raise TaskError(f"{case.id} has no eval_MRN")
    return case.eval_MRN


def _person(case: OfficialCase, records: OfficialRecords) -> Params:
    name, born = _matched(case, _PERSON).groups()
    given, _, family = name.partition(" ")
    mrn = str(case.sol[0]) if case.sol else _NOT_FOUND
    nowhere = {"phone": "0", "line": "0", "city": "0", "state": "0"}
    person = Person(id="phantom", given=given, family=family, gender="unknown", birth_date=born, **nowhere)
    return FindPatientParams(person=person, mrn=None if mrn == _NOT_FOUND else mrn)


def _age(case: OfficialCase, records: OfficialRecords) -> Params:
    age = full_years(records.birth_date(case.eval_MRN), TODAY)
    return AgeParams(today=TODAY.isoformat(), mrn=_mrn(case), age=age)


def _pressure(case: OfficialCase, records: OfficialRecords) -> Params:
    systolic, diastolic = map(int, _matched(case, _PRESSURE).groups())
    return BloodPressureParams(now=NOW_TEXT, mrn=_mrn(case), systolic=systolic, diastolic=diastolic)


def _referral(case: OfficialCase, records: OfficialRecords) -> Params:
    comment = _matched(case, _QUOTED)[1]
    return ReferralParams(now=NOW_TEXT, mrn=_mrn(case), comment=comment, within=True, priority=None)


def _latest(code: str, *, window: bool, **more: Any) -> Callable[[OfficialCase, OfficialRecords], Params]:
    def read(case: OfficialCase, records: OfficialRecords) -> Params:
        last = latest(_readings(case, records, code, window=window))
        newest = {"level": last.value, "taken": last.text, "deciding": (last.id,)} if last else {"level": None}
        return LabParams(
            now=NOW_TEXT, mrn=_mrn(case), counterfactual=None if last else _counterfactual(case, code), **newest, **more
        )

    return read


def _average(case: OfficialCase, records: OfficialRecords) -> Params:
    readings = _readings(case, records, "GLU", window=True)
    return LabParams(
        now=NOW_TEXT,
        mrn=_mrn(case),
        deciding=tuple(reading.id for reading in readings),
        level=sum(reading.value for reading in readings) / len(readings) if readings else None,
        tolerance=_CLOSE,
        counterfactual=None if readings else _counterfactual(case, "GLU"),
    )


def _readings(case: OfficialCase, records: OfficialRecords, code: str, *, window: bool) -> list[LabReading]:
    readings = records.readings(case.eval_MRN, code)
    return [reading for reading in readings if reading.taken >= DAY_AGO] if window else readings


def _counterfactual(case: OfficialCase, code: str) -> Result:
    rng, mrn = seeded_random(case.id), _mrn(case)
    taken = instant(NOW - timedelta(minutes=rng.randint(1, _WITHIN)))
    value = round(rng.uniform(1, 10), 1)
    return Result(id="supposed", owner=mrn, code=code, taken=taken, issued=taken, value=value, unit="1")


_FACTS: Mapping[str, Callable[[OfficialCase, OfficialRecords], Params]] = {
    "task1": _person,
    "task2": _age,
    "task3": _pressure,
    "task4": _latest("MG", window=True),
    "task5": _latest("MG", window=True, silent=True),
    "task6": _average,
    "task7": _latest("GLU", window=False),
    "task8": _referral,
    "task9": _latest("K", window=False, priority=None, silent=True),
    "task10": _latest("A1C", window=False, priority=None),
}


_STEPS = {"task3": 2, "task8": 2, "task5": 3, "task9": 4, "task10": 3}
_UNLIKE_OURS = "the records are readable"
_OFFICIAL = "official verdict"


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
        conversation = _conversation(end)
        with end.world.session(base_url=end.base_url) as session:
            records = OfficialRecords(session.handle)
            verdict = judge(
                self.case, Transcript(conversation.history, conversation.result, f"{end.base_url}/"), records
            )
            try:
                expected: Json = reference(self.case, records)
            except READ_ERRORS:
                expected = None
        yield Check(name=_OFFICIAL, passed=verdict.accepted, expected=expected, actual=verdict.reason or "accepted")

    @override
    def diagnose(self, p: OfficialParams, end: FinishedEpisode, verdict: Verdict) -> Diagnosis | None:
        """Tell the paper's two kinds of error apart: a message or an answer in a wrong format, and a wrong value."""
        judged = next((check for check in verdict.checks if check.name == _OFFICIAL), None)
        if judged is None:
            return None
        problem = "" if judged.passed else _format_problem(_conversation(end), judged.expected)
        form = Check(name="format", passed=not problem, expected=judged.expected, actual=problem or "valid")
        value = Check(name="value", passed=judged.passed, expected=judged.expected, actual=judged.actual)
        if problem:
            return Diagnosis(steps=(form,), error="wrong format", step="format")
        failed = not judged.passed
        return Diagnosis(steps=(form, value), error="wrong value" if failed else None, step="value" if failed else None)

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


def _conversation(end: FinishedEpisode) -> OfficialConversation:
    """Return the episode as a conversation by the benchmark's rules."""
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
    return conversation


def _format_problem(conversation: OfficialConversation, expected: Json) -> str:
    """Return what is wrong with the form of the messages or of the answer; empty if it is right.

    Args:
        conversation: The episode.
        expected: The benchmark's answer; empty if the benchmark ignores the answer.
    """
    if conversation.result is None:
        return conversation.status or "no answer"
    if not expected:
        return ""
    answer, problem = parse_json(str(conversation.result))
    if problem or not isinstance(answer, list):
        return f"the answer is not a JSON list: {problem or conversation.result}"[:200]
    forms = [[isinstance(value, str) for value in values] for values in (answer, expected) if isinstance(values, list)]
    return "" if answer == [] or forms[0] == forms[-1] else f"the answer has another form: {conversation.result}"[:200]


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


@dataclass(frozen=True, slots=True)
class SubmittedEndState(FinishedEpisode):
    """An end state in which new resources also contain the content that the agent sent but the server dropped.

    The benchmark asks for forms that are not valid R4, such as a bare text as ``route``. A lenient server drops such
    elements, so the checks must read them from the agent's requests.
    """

    @classmethod
    def of(cls, end: FinishedEpisode) -> SubmittedEndState:
        """Convert an end state."""
        return cls(**{name: getattr(end, name) for name in end.__dataclass_fields__})

    def created(self, resource_type: str) -> list[Resource]:
        """Return the new resources of a type, including the elements that the agent sent but the server dropped."""
        sent = dict(_sent(self.requests))
        new = FinishedEpisode.created(self, resource_type)
        return [_joined(resource, sent.get((resource_type, resource["id"]))) for resource in new]


def _joined(stored: Json, sent: Json) -> Any:
    """Add to a stored value the parts that it lacks and the agent sent."""
    if isinstance(stored, dict) and isinstance(sent, dict):
        kept = {name: _joined(value, sent.get(name)) for name, value in stored.items()}
        return kept | {name: value for name, value in sent.items() if name not in stored}
    if isinstance(stored, list) and isinstance(sent, list) and len(stored) == len(sent):
        return [_joined(element, other) for element, other in zip(stored, sent, strict=True)]
    return stored


def _sent(requests: Iterable[LoggedRequest]) -> Iterator[tuple[tuple[str, str], Json]]:
    """Yield the target (type and id) and the body of each write, in order."""
    for request in requests:
        written = [done for done in request.response.done if _sends_a_resource(done)]
        body = json_object(request.request.body) if written else None
        for done in written:
            yield (done.resource_type, done.id), body if done.entry is None else _resource(body, done.entry)


def _sends_a_resource(done: Interaction) -> bool:
    if done.kind == "update":
        return done.status < 300 and not done.operation  # an update that changes nothing counts too
    return done.kind == "create" and done.effect == "created"


def _resource(bundle: Json, entry: int) -> Json:
    listed = as_list(as_object(bundle).get("entry"))[entry : entry + 1]
    return as_object(listed[0]).get("resource") if listed else None
