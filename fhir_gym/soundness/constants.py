"""Policies that ignore the variation's records.

They idle, answer a constant, create a record, or replay another variation's solution.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fhir_gym.actions import Action, Finish, Post
from fhir_gym.soundness.answer_variants import consists_of_ids
from fhir_gym.soundness.policy_groups import Expected
from fhir_gym.soundness.policy_runner import Policy, script
from fhir_gym.soundness.recording import GoldRecording
from fhir_gym.tasks.core.ids import id_number
from fhir_gym.tasks.core.task import Gold, LatestResponse, Task
from fhir_gym.types import Json

_WORDS = (
    *("", "none", "None", "NONE", "null", "nil", "no", "No", "yes", "true", "false", "unknown", "n/a", "N/A", "-"),
    *("not found", "none found", "no slot", "new patient", "success", "done", "ok", "[]", "{}"),
)
_NUMBERS = (-1, *range(21))
_FORMS: tuple[list[Json], ...] = ([None], [[]], [{}], [True], [False], ["", ""], [None, None], [0, None], [0, 0])
_TOKEN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,62}[A-Za-z0-9])?")


def constant_answers(prompt: str, number_asked: bool) -> Iterator[Policy]:
    """Yield policies that idle, or answer without any request: common words, numbers, or words of the prompt.

    Args:
        prompt: The variation's prompt.
        number_asked: Whether a number may be right; then a guessed number may succeed by chance.
    """
    yield Policy("idle", "finishes at once", script([Finish()]))
    yield Policy("idle", "does nothing", script([]))
    numbers: list[list[Json]] = [[number] for number in _NUMBERS]
    answers: list[list[Json]] = [*_FORMS, *([word] for word in _WORDS)]
    if number_asked:
        named = tuple((f"answers {answer!r}", answer) for answer in numbers)
        yield Policy("guessed number", "answers [0.25]", script([Finish([0.25])]), answers=named)
    else:
        answers += [*numbers, *([str(number)] for number in _NUMBERS)]
    answers += [[sentence.strip()] for sentence in re.split(r"[.\n]", prompt) if sentence.strip()]
    tokens = list(dict.fromkeys(_TOKEN.findall(prompt)))
    answers += [[token] for token in tokens if not (number_asked and token.isdecimal())]
    ids = [token for token in tokens if id_number(token) is not None and not token.isdecimal()]
    answers += [[first, second] for first in ids for second in ids]
    answers += [[kind, *some] for some in (ids[:1], ids) for kind in (0, 1, len(some))]
    named = tuple((f"answers {answer!r}", answer) for answer in answers)
    yield Policy("constant answer", "answers [0.5]", script([Finish([0.5])]), answers=named)


def always_create(task: Task[Any], gold: GoldRecording) -> Iterator[Policy]:
    """Yield policies that create one resource, empty or copied from a seeded one, and answer with the new id.

    Each type that the task requires is tried.
    """
    for kind in task.required_resources:
        yield Policy("always create", f"a bare {kind}", _creating(kind, {"resourceType": kind}))
        for one in gold.others_of_type(kind)[:3]:
            copy = {name: value for name, value in one.items() if name not in ("id", "meta")}
            yield Policy("always create", f"a copy of {kind}/{one['id']}", _creating(kind, copy))


def _creating(kind: str, body: Json) -> Any:
    def play(fhir: LatestResponse) -> Gold:
        made = yield Post(f"/{kind}", body)
        yield Finish([made["id"]] if isinstance(made, dict) and "id" in made else [])

    return play


def other_variation(task: Task[Any], gold: GoldRecording, other: GoldRecording) -> Iterator[Policy]:
    """Yield policies that replay another variation's solution: all requests, only the reads, or only the answer.

    Args:
        task: The task.
        gold: The reference episode of this variation.
        other: The reference episode of the other variation.
    """
    actions: list[Action] = other.actions
    # Two variations may share an answer without ids by chance; then the replayed solution may pass.
    differs = other.answer != gold.answer
    may: Expected | None = None if differs or consists_of_ids(task.answer) else "may pass"
    yield Policy("other variation", "all of its solution", script([*actions, Finish(other.answer)]), deserves=may)
    if differs:
        yield Policy("other variation", "its answer", script([Finish(other.answer)]))
        yield Policy("other variation", "its look-ups and answer", script([*other.reads, Finish(other.answer)]))
