"""Scenes: variations as the learners see them, with the target and the right answer as labels."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fhir_gym.fhir import World
from fhir_gym.soundness.policy_runner import PolicyRun, PolicyRunner
from fhir_gym.tasks.core.params import SceneParams
from fhir_gym.tasks.core.task import Task
from fhir_gym.tasks.core.variation import Variation
from fhir_gym.tasks.grading.answers import CountedIdsAnswer, IdAnswer, IdSetAnswer
from fhir_gym.types import Json, Resource

SOME = "some"
"""Class of all answers that contain record ids."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The server's content in one variation, with labels for training.

    Attributes:
        number: Number of the variation.
        records: The scene's records as stored, in order of creation.
        target: Reference to the record that the prompt asks about; empty if there is no single record.
        qualifying: References to the records that were equally likely to be the target, including the target.
        answer: Class of the right answer: ``some``, ``none`` or a number; for an action, the written content.
        said: Class of the ``FINISH`` answer. For a query task, it equals `answer`.
        declared: Whether the variation declares its target and the qualifying records.
        is_part: Whether the scene is about one of several requests in the prompt. There is one scene for each request.
        mismatch: Why the declared target disagrees with the reference solution; empty if it agrees.
    """

    number: int
    records: tuple[Resource, ...]
    target: str
    qualifying: tuple[str, ...]
    answer: str
    said: str
    declared: bool
    is_part: bool = False
    mismatch: str = ""


def reference_of(resource: Resource) -> str:
    """The reference (``Type/id``) of a resource."""
    return f"{resource['resourceType']}/{resource['id']}"


def scenes_of(task: Task[Any], world: World, numbers: Iterable[int]) -> Iterator[Scene]:
    """Yield one scene for each variation, or for each request of a prompt that contains several."""
    for number in numbers:
        with PolicyRunner(task, task.variation(number, world), world) as runner:
            yield from _scenes(task, runner.variation, runner.gold())


def _scenes(task: Task[Any], variation: Variation, run: PolicyRun) -> Iterator[Scene]:
    params = variation.params
    requests = params.labelled_requests if isinstance(params, SceneParams) else ()
    if not requests:
        yield _scene(task, variation, run)
        return
    named = sorted({name for request in requests for name in request.qualifying})
    records = _records(variation, run, named)
    for target, qualifying, answer in requests:
        mismatch = _unqualified(run, target, qualifying)  # requests share lookups, so nothing more can be checked
        yield Scene(variation.number, records, target, qualifying, answer, answer, True, True, mismatch)


def _scene(task: Task[Any], variation: Variation, run: PolicyRun) -> Scene:
    target, qualifying, mismatch = variation._target, variation._qualifying, ""
    declared = isinstance(variation.params, SceneParams)
    if declared:
        mismatch = _mismatch(task, variation, run, target, qualifying)
    else:
        target = _solved(task, variation, run)
        kind = target.partition("/")[0]
        qualifying = tuple(reference_of(resource) for resource in variation.setup if resource["resourceType"] == kind)
    records = _records(variation, run, qualifying)
    said = _said(task, variation, run)
    answer = said if task.kind == "query" else _written(run)
    return Scene(variation.number, records, target, qualifying, answer, said, declared, mismatch=mismatch)


def _records(variation: Variation, run: PolicyRun, qualifying: Iterable[str]) -> tuple[Resource, ...]:
    """Return the qualifying records of the world, and the records that the variation adds."""
    prepared = [reference_of(resource) for resource in variation.setup]
    here = set(prepared)
    residents = [name for name in qualifying if name not in here]
    read = (run.end.before.read(*name.split("/", 1)) for name in (*residents, *prepared))
    return tuple(resource for resource in read if resource is not None)


def _solved(task: Task[Any], variation: Variation, run: PolicyRun) -> str:
    """Return the seeded record that the solution answers, changes, requires or refers to; empty if there is none."""
    here = {str(resource["id"]): reference_of(resource) for resource in variation.setup}
    answered = [here[item] for item in map(str, run.end.answer or []) if item in here]
    if isinstance(task.answer, IdSetAnswer | CountedIdsAnswer):
        return ""  # the answer may contain several records
    changed = [f"{change.resource_type}/{change.id}" for change in run.end.changes if change.id in here]
    required_records = [
        required_record
        for required_record in task.required_records(variation.params)
        if required_record in here.values()
    ]
    written = [change.after for change in run.end.changes if change.kind == "created"]
    referred = [name for resource in written for name in here.values() if f'"{name}"' in json.dumps(resource)]
    return next(iter([*answered, *changed, *required_records, *referred]), "")


def _mismatch(task: Task[Any], variation: Variation, run: PolicyRun, target: str, qualifying: tuple[str, ...]) -> str:
    """Why a declared target disagrees with the reference solution; empty if it agrees."""
    problem = _unqualified(run, target, qualifying)
    if problem or not target:
        return problem
    id = target.partition("/")[2]
    texts = [action.text() for action in run.actions] + list(task.required_records(variation.params))
    if any(id in text for text in texts):
        return ""
    bodies = [logged.response.body or b"" for logged in run.end.requests]
    others = [reference.partition("/")[2].encode() for reference in qualifying if reference != target]
    if any(id.encode() in body and not any(other in body for other in others) for body in bodies):
        return ""
    return f"the solution neither answers {target}, nor writes to it, refers to it or reads it alone"


def _unqualified(run: PolicyRun, target: str, qualifying: tuple[str, ...]) -> str:
    """Why a target cannot have been chosen among the qualifying records; empty if it can, or if there is no target."""
    gone = [name for name in qualifying if run.end.before.read(*name.split("/", 1)) is None]
    if target and gone:
        return f"{gone[0]} qualifies but is not on the server"
    return f"{target} is not among those that qualify" if target and target not in qualifying else ""


def _written(run: PolicyRun) -> str:
    return (
        ", ".join(sorted({f"{change.kind} {change.resource_type}" for change in run.end.changes})) or "nothing written"
    )


def _said(task: Task[Any], variation: Variation, run: PolicyRun) -> str:
    """The class of the right answer; the class contains no ids."""
    answer = run.end.answer or []
    if isinstance(task.answer, IdAnswer | IdSetAnswer):
        return SOME if answer else "none"
    if isinstance(task.answer, CountedIdsAnswer):
        return str(answer[0])
    here = {str(resource["id"]) for resource in variation.setup}
    return json.dumps([_reduced(item, here) for item in answer])


def _reduced(item: Json, here: set[str]) -> Json:
    return SOME if isinstance(item, str) and item in here else item
