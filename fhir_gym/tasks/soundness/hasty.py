"""Policies that solve the task but for one search, which they make without one of its conditions.

They take what they find, so they are right now and then; how often says how well the decoys do their work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl

from fhir_gym.actions import Action, Finish, Get
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.soundness.arena import Policy
from fhir_gym.tasks.soundness.recording import Recording
from fhir_gym.tasks.task import Fhir, Gold, Task

__all__ = ["hasty_searches"]

_LOST = (RuntimeError, LookupError, TypeError)
"""What a reference solution raises when it does not find what it looks for."""


def hasty_searches(task: Task[Any], params: Params, gold: Recording) -> Iterator[Policy]:
    """One policy for each condition of each search of the reference solution.

    Args:
        task: The task.
        params: The variation.
        gold: Its reference solution's episode.
    """
    for index, step in enumerate(gold.steps):
        path, mark, query = step.action.url.partition("?")
        for name, _ in parse_qsl(query) if step.action.kind == "GET" and mark else ():
            yield Policy("hasty search", f"{path} without {name}", _without(task, params, index, name))


def _without(task: Task[Any], params: Params, index: int, name: str) -> Callable[[Fhir], Gold]:
    def play(fhir: Fhir) -> Gold:
        steps = task.gold(params, fhir)
        action = next(steps)
        for number in range(task.gold_steps):
            answer = yield _dropping(action, name) if number == index else action
            try:
                action = steps.send(answer)
            except StopIteration:
                return
            except _LOST:
                yield Finish()

    return play


def _dropping(action: Action, name: str) -> Action:
    path, _, query = action.url.partition("?")
    return Get(path, [(other, value) for other, value in parse_qsl(query) if other != name])
