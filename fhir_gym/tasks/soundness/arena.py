"""Where policies are tried: one variation on one session, back to its start before each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self

from fhir_gym.actions import Action, Finish, Invalid, to_request
from fhir_gym.errors import TaskError
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.endstate import BeforeView, EndState, LoggedRequest
from fhir_gym.tasks.grading import Grading, grade
from fhir_gym.tasks.task import Fhir, Gold, Task, Variation
from fhir_gym.tasks.verdict import Verdict
from fhir_gym.types import Json

__all__ = ["MAY_PASS", "MUST_PASS", "WRITES", "Arena", "Group", "Policy", "Run", "script"]

Group = Literal[
    "gold",
    "equivalent",
    "idle",
    "constant answer",
    "always create",
    "other variation",
    "near miss",
    "by hand",
    "lazy",
    "hasty search",
]
MUST_PASS: frozenset[Group] = frozenset({"gold", "equivalent"})
MAY_PASS: frozenset[Group] = frozenset({"hasty search"})
"""Those who are right by chance now and then; their share is reported."""
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})

_MAX_ACTIONS = 100


@dataclass(frozen=True, slots=True)
class Policy:
    """A way to play a variation, and what it deserves.

    Attributes:
        group: Kind of policy, for the report.
        name: Which one.
        play: The actions, as a reference solution gives them.
        answers: Further answers to end with, each judged as an episode of its own, by name.
        grading: How it is graded.
    """

    group: Group
    name: str
    play: Callable[[Fhir], Gold]
    answers: tuple[tuple[str, list[Json]], ...] = ()
    grading: Grading = "state"

    @property
    def passes(self) -> bool | None:
        """Whether it must succeed; None if it may."""
        return None if self.group in MAY_PASS else self.group in MUST_PASS


@dataclass(frozen=True, slots=True)
class Run:
    """One episode of a policy.

    Attributes:
        name: The policy, with the answer where it has several.
        actions: What it did.
        end: How the episode ended.
        verdict: The judgement.
    """

    name: str
    actions: tuple[Action, ...]
    end: EndState
    verdict: Verdict


def script(actions: Iterable[Action]) -> Callable[[Fhir], Gold]:
    """A policy that sends these actions whatever is answered."""
    fixed = tuple(actions)

    def play(_: Fhir) -> Gold:
        yield from (action for action in fixed)  # unlike a tuple, a generator can be sent the answers

    return play


class Arena:
    """One variation of a task on a session of a world.

    Args:
        task: The task.
        variation: The variation.
        world: The world.
        settings: Settings of the session.
    """

    def __init__(self, task: Task[Any], variation: Variation, world: World, **settings: Any) -> None:
        self.task = task
        self.variation = variation
        self.world = world
        self._session = world.session(**settings)
        self._session.load(variation.setup, next_id=variation.next_id)
        self._start = self._session.checkpoint()

    def run(self, policy: Policy) -> list[Run]:
        """Play a policy from the start, and judge it with its answer and with each further one."""
        self._session.rollback(self._start)
        actions, logged, answer = self._play(policy.play)
        changes = tuple(self._session.changes(self._start))
        before = BeforeView(self.world, self.variation.setup, self._session, changes)
        end = EndState(answer, logged, before, self._session, changes, self.world, self._session.base_url)
        runs = [self._judge(policy.name, policy.grading, actions, end)]
        sent = actions if answer is None else actions[:-1]
        for name, other in policy.answers:
            other_end = replace(end, answer=other)
            runs.append(self._judge(name, policy.grading, (*sent, Finish(other)), other_end))
        return runs

    def gold(self) -> Run:
        """The reference solution's episode."""
        params = self.variation.params
        (run,) = self.run(Policy("gold", "gold", lambda fhir: self.task.gold(params, fhir)))
        return run

    def close(self) -> None:
        """Close the session."""
        self._session.close()

    def __enter__(self) -> Self:
        """For `with Arena(…) as arena`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _judge(self, name: str, grading: Grading, actions: Sequence[Action], end: EndState) -> Run:
        return Run(name, tuple(actions), end, grade(self.task, self.variation, end, grading))

    def _play(
        self, play: Callable[[Fhir], Gold]
    ) -> tuple[tuple[Action, ...], tuple[LoggedRequest, ...], list[Json] | None]:
        fhir = Fhir()
        steps = play(fhir)
        actions: list[Action] = []
        logged: list[LoggedRequest] = []
        action = next(steps, None)
        while action is not None:
            actions.append(action)
            if action.kind == "FINISH":
                return tuple(actions), tuple(logged), action.answer
            if len(actions) > _MAX_ACTIONS:
                raise TaskError(f"a policy for task {self.task.key} did not end within {_MAX_ACTIONS} actions")
            request = to_request(action, self._session.base_url)
            if isinstance(request, Invalid):
                raise TaskError(f"task {self.task.key}: {action.text()!r} is no valid action: {request.reason}")
            fhir.last = self._session.handle(request)
            logged.append(LoggedRequest(action, request, fhir.last))
            try:
                action = steps.send(fhir.json())
            except StopIteration:
                action = None
        return tuple(actions), tuple(logged), None
