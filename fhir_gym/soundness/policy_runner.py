"""Run policies on one variation; every policy starts from the same state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Invalid, to_request
from fhir_gym.errors import TaskError
from fhir_gym.fhir import Session, World
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.fhir.serialization import dumps, is_normal, normalise
from fhir_gym.fhir.session import Checkpoint
from fhir_gym.soundness.policy_groups import Expected, Group, expected_result
from fhir_gym.tasks.core.grader import Grading, SharedFindings, find_evidence, grade, idle_checks, measure_tool_usage
from fhir_gym.tasks.core.task import Gold, LatestResponse, Task
from fhir_gym.tasks.core.turn_protocol import Simulation
from fhir_gym.tasks.core.variation import Variation
from fhir_gym.tasks.grading.end_state import BeforeView, FinishedEpisode, LoggedRequest
from fhir_gym.tasks.grading.plain_requests import parse_plain
from fhir_gym.tasks.grading.responses import ParsedResponses
from fhir_gym.tasks.grading.tool_usage import ToolUsage
from fhir_gym.tasks.grading.verdict import Evidence, Verdict
from fhir_gym.types import Json, Resource

if TYPE_CHECKING:
    from fhir_gym.fhir.session import Session

_MOST_REMEMBERED = 128 * 1024 * 1024
"""Total size in bytes of the responses that a session remembers. If it is exceeded, the session forgets all of them."""

_EVERY_TYPE = ""
"""Stands for all resource types."""

_Key: TypeAlias = tuple[object, ...]


class _Known(NamedTuple):
    """The response to a read or search, and the number of tokens that it took."""

    response: Response
    tokens: int


class MemoizedSession(Session):
    """A session that answers a read or search from memory if it has answered it before and nothing relevant changed.

    A plain read or search depends on the writes of its types, another one on all writes. A response from memory has the
    time of the first such response, and takes no work budget. The session remembers what follows from one checkpoint,
    the latest that it made or returned to.

    Args:
        settings: Arguments of `Session`.
    """

    def __init__(self, world: World, **settings: Any) -> None:
        self._known: dict[_Key, _Known] = {}
        self._versions: dict[str, int] = {}
        """A number for what has been written of each type since the checkpoint; 0 if nothing was."""
        self._numbers: dict[_Key, int] = {}
        self._remembered = 0
        super().__init__(world, **settings)

    @override
    def handle(self, request: Request) -> Response:
        sent = (request.method, request.path, request.query, tuple(request.headers.items()), request.body)
        plain = parse_plain(request)
        versions = (
            self._versions.get(resource_type, 0)
            for resource_type in ((_EVERY_TYPE,) if plain is None else sorted(plain.types))
        )
        key = (*versions, *sent)
        cached = self._known.get(key)
        if cached is not None:
            self._counters.tokens += cached.tokens
            return cached.response
        tokens, now = self._counters.tokens, self.now
        response = super().handle(request)
        if not all(interaction.looks for interaction in response.done):
            written = {interaction.resource_type for interaction in response.done if interaction.effect}
            self._count(written, (now, *sent, response.status, response.done, response.content))
        elif b"_getpages" not in response.body:  # a paged search stores its result on the server
            self._known[key] = _Known(response, self._counters.tokens - tokens)
            self._remembered += len(response.content)
        return response

    @override
    def load(self, resources: Iterable[Resource], **settings: Any) -> None:
        copied, now = list(resources), self.now
        super().load(copied, **settings)
        self._count({resource["resourceType"] for resource in copied}, (now, dumps(copied), *settings.items()))

    @override
    def checkpoint(self) -> Checkpoint:
        checkpoint = self._checkpoint = super().checkpoint()
        self._forget()
        return checkpoint

    @override
    def rollback(self, to: Checkpoint | None = None) -> None:
        to = to or self._bare
        super().rollback(to)
        if to is not self._checkpoint or self._remembered > _MOST_REMEMBERED:
            self._checkpoint = to
            self._forget()
        self._versions = {}

    @override
    @contextmanager
    def returned_to(self, checkpoint: Checkpoint) -> Iterator[None]:
        cached, versions = self._known, self._versions
        with super().returned_to(checkpoint):
            self._known, self._versions = {}, {}
            yield
        self._known, self._versions = cached, versions

    def _forget(self) -> None:
        self._known, self._versions, self._numbers, self._remembered = {}, {}, {}, 0

    def _count(self, types: Iterable[str], write: _Key) -> None:
        """Number what has been written after a further write of some types."""
        digest = blake2b(repr(write).encode("utf-8", "surrogatepass"), digest_size=16).digest()  # bodies take memory
        for resource_type in (_EVERY_TYPE, *types):
            history = (resource_type, self._versions.get(resource_type, 0), digest)
            self._versions[resource_type] = self._numbers.setdefault(history, len(self._numbers) + 1)


WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})

_MAX_ACTIONS = 100
_MOST_PER_STEP = 3
"""A policy may take more actions than an agent, for example read each record again that it has written."""
_MOST_PARSED = 32 * 1024 * 1024
"""Total size in bytes of the responses that stay in memory in parsed form."""
_NOT_MEASURED = ToolUsage(requests={}, errors={})
_NOT_ASKED = Evidence(sufficient=True, note="not asked for.")


@dataclass(frozen=True, slots=True)
class Script:
    """A policy that sends a fixed sequence of actions and ignores the responses."""

    actions: tuple[Action, ...]

    def __call__(self, fhir: LatestResponse) -> Gold:
        """Yield the actions, in the form of a reference solution."""
        yield from (action for action in self.actions)  # `send` needs a generator, not a tuple


def script(actions: Iterable[Action]) -> Script:
    """Build a policy that sends a fixed sequence of actions and ignores the responses."""
    return Script(tuple(actions))


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy and its expected result.

    Attributes:
        group: The group that the report counts the policy in.
        name: Name within the group.
        play: Generator function of the actions, like `Task.gold`.
        answers: Further final answers with their names; each one is graded as a separate episode.
        grading: How the episode is graded.
        deserves: Expected result; None for the expected result of the group.
    """

    group: Group
    name: str
    play: Callable[[LatestResponse], Gold]
    answers: tuple[tuple[str, list[Json]], ...] = ()
    grading: Grading = "state"
    deserves: Expected | None = None

    @property
    def expected(self) -> Expected:
        """The expected result."""
        return self.deserves or expected_result(self.group)


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """One episode of a policy.

    Attributes:
        name: Name of the policy; for a further answer of the policy, the name of that answer.
        end: The end state.
        verdict: The verdict. Tool usage is measured only for the reference solution.
    """

    name: str
    actions: tuple[Action, ...]
    end: FinishedEpisode
    verdict: Verdict


class PolicyRunner(AbstractContextManager["PolicyRunner"]):
    """Runs policies on one variation of a task.

    The start state is prepared once. The sessions remember responses, because most policies send the same requests.

    Args:
        settings: Arguments of `World.session`.
    """

    def __init__(self, task: Task[Any], variation: Variation, world: World, **settings: Any) -> None:
        self.task = task
        self.variation = variation
        self.world = world
        self._settings = settings
        _require_normal(task, variation)
        self._session, self._start = self._open_session()
        self._parsed = ParsedResponses(_MOST_PARSED)
        self._must_look = task.requires_evidence(variation.params)
        self._scratch: tuple[Session, Checkpoint] | None = None
        self._simulation: Simulation | None = None
        self._most_actions = max(_MAX_ACTIONS, _MOST_PER_STEP * (task.max_steps or 0))

    def run(self, policy: Policy) -> list[PolicyRun]:
        """Run a policy once; grade its own answer and each further answer."""
        self._session.rollback(self._start)
        if self._parsed.is_full:
            self._parsed = ParsedResponses(_MOST_PARSED)
        if self.task.is_live:
            self._simulation = self.task.simulate(self.variation.params, self._session)
        actions, logged, answer = self._play(policy.play)
        changes = tuple(self._session.changes(self._start))
        before = BeforeView(self.world, self.variation.setup, self._session, changes)
        end = FinishedEpisode(answer, logged, before, self._session, changes, self.world, self._session.base_url)
        timeline = self._simulation.timeline if self._simulation else ()
        end = replace(end, open_scratch=self._open_scratch, timeline=timeline, parsed=self._parsed)
        findings = self._findings(policy, end)
        runs = [self._judge(policy.name, policy.grading, actions, end, findings)]
        sent = actions if answer is None else actions[:-1]
        for name, other in policy.answers:
            other_end = replace(end, answer=other)
            runs.append(self._judge(name, policy.grading, (*sent, Finish(other)), other_end, findings))
        return runs

    def gold(self) -> PolicyRun:
        """Run the reference solution."""
        params = self.variation.params
        (run,) = self.run(Policy("gold", "gold", lambda fhir: self.task.gold(params)))
        return run

    def close(self) -> None:
        """Close the sessions."""
        self._session.close()
        if self._scratch is not None:
            self._scratch[0].close()

    @override
    def __exit__(self, *error: object) -> None:
        self.close()

    def _judge(
        self, name: str, grading: Grading, actions: Sequence[Action], end: FinishedEpisode, findings: SharedFindings
    ) -> PolicyRun:
        return PolicyRun(name, tuple(actions), end, grade(self.task, self.variation, end, grading, findings=findings))

    def _findings(self, policy: Policy, end: FinishedEpisode) -> SharedFindings:
        """Compute only the findings that the verdicts need, to save time over many policies."""
        grading, is_gold = policy.grading, policy.group == "gold"
        asked = self._must_look or is_gold or grading == "evidence"
        evidence = find_evidence(self.task, self.variation, end) if asked else _NOT_ASKED
        usage = measure_tool_usage(self.task, end) if is_gold else _NOT_MEASURED
        return SharedFindings(evidence, usage, idle_checks(self.task, self.variation, end, grading))

    @contextmanager
    def _open_scratch(self, records: Sequence[Resource]) -> Iterator[Session]:
        """Yield the shared scratch session with the start state and additional records."""
        if self._scratch is None:
            self._scratch = self._open_session()
        session, start = self._scratch
        session.rollback(start)
        session.load(records, keep_next_id=True)
        yield session

    def _play(
        self, play: Callable[[LatestResponse], Gold]
    ) -> tuple[tuple[Action, ...], tuple[LoggedRequest, ...], list[Json] | None]:
        fhir = LatestResponse()
        steps = play(fhir)
        listens = not isinstance(play, Script)
        actions: list[Action] = []
        logged: list[LoggedRequest] = []
        action = next(steps, None)
        while action is not None:
            actions.append(action)
            if action.kind == "FINISH":
                return tuple(actions), tuple(logged), action.answer
            if len(actions) > self._most_actions:
                raise TaskError(f"a policy for task {self.task.key} did not end within {self._most_actions} actions")
            logged.append(self._send(action))
            fhir.last = logged[-1].response
            try:
                action = steps.send(fhir.json() if listens else None)
            except StopIteration:
                action = None
        return tuple(actions), tuple(logged), None

    def _send(self, action: Action) -> LoggedRequest:
        request = to_request(action, self._session.base_url)
        if isinstance(request, Invalid):
            raise TaskError(f"task {self.task.key}: {action.text()!r} is not a valid action: {request.reason}")
        simulation = self._simulation
        response = simulation.answer(action, request) if simulation else self._session.handle(request)
        return LoggedRequest(action, request, response)

    def _open_session(self) -> tuple[Session, Checkpoint]:
        """Open a session with the start state, and return it with a checkpoint of this state."""
        session = MemoizedSession(self.world, **self._settings)
        self.variation.load_into(session)
        return session, session.checkpoint()


def _require_normal(task: Task[Any], variation: Variation) -> None:
    """Raise if a seeded resource is not in the form that a server stores, because sessions load it unchanged."""
    for resource in variation.setup:
        if not is_normal(resource):
            raise TaskError(
                f"task {task.key}, variation {variation.number}: setup must return resources as a server stores them: "
                f"{dumps(normalise(resource)).decode()}, not {dumps(resource).decode()}"
            )
