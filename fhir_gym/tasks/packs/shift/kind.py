"""The base class of the kinds of request, and the judgement of one request."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from math import ceil
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

from typing_extensions import override

from fhir_gym.actions import Action
from fhir_gym.fhir import World
from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import IdAllocator
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.outcomes import BY_NAME, DONE
from fhir_gym.types import Json, Resource

_DECLINED = 0.3
"""Probability that a request is declined."""
_BY_NAME = 0.2
"""Probability that the search for the patient alone settles a declined request."""


class ShiftScene(Params):
    """The records that all requests of one shift share."""

    @abstractmethod
    def resources(self) -> list[Resource]:
        """Return the records as resources."""


S = TypeVar("S", bound=ShiftScene)

Solution = Generator[Action, Json, str]
"""A generator of the actions for one request; it receives the responses and returns the outcome."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What a solution knows besides the request.

    Attributes:
        rule_values: The values in the rules; see `RequestKind.rule_values`.
        looked_up: What earlier solutions of the kind have learnt; a solution may add to it.
    """

    rule_values: Mapping[str, str]
    now: datetime
    looked_up: dict[str, Any] = field(default_factory=dict)


class RequestContent(Params):
    """What a request says. Subclasses add fields."""


StatusUpdates = Mapping[str, tuple[str, Mapping[str, str]]]
"""For fields of a scene: the field of a record with its status, and the status that may follow each status."""


class StatusUpdate(Params):
    """Somebody updates the status of one record of a scene.

    Attributes:
        records: Name of the field of the scene that contains the record.
        element: Name of the field of the record that changes.
    """

    records: str
    id: str
    element: str
    status: str

    def applied_to(self, scene: S) -> S:
        """Return the scene after the update."""
        records = (
            record.model_copy(update={self.element: self.status}) if record.id == self.id else record
            for record in getattr(scene, self.records)
        )
        return scene.model_copy(update={self.records: tuple(records)})


class Request(Params):
    """One request of a shift. Subclasses declare the type of `ask`, and add what only the checks know.

    Attributes:
        outcome: The right outcome if the agent handles the requests in order and makes no mistake.
        target: The record that the request is about (``Patient/S1234567``), or an empty text. Only analyses use it.
        qualifying: The records that were equally likely to become the target. Only analyses use them.
    """

    ask: Any
    outcome: str
    target: str = ""
    qualifying: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of one request.

    Attributes:
        right: Whether the outcome and the state that the agent left are right.
        harmed: Whether the agent left a wrong change.
        expected: What would have been right.
        found: What the agent did and answered.
        claimed: References to the records that belong to the request, whether their changes are right or wrong.
        by_record: For a request about many records: the share of records that are right minus the share of records that
            are harmed. None for other requests.
    """

    right: bool
    harmed: bool
    expected: Json
    found: Json
    claimed: frozenset[str] = frozenset()
    by_record: float | None = None

    @property
    def points(self) -> float:
        """What the request adds to the score, from -1 to 1."""
        return float(self.right - self.harmed) if self.by_record is None else self.by_record

    def better_than(self, other: Judgement) -> bool:
        """Whether this judgement is better for the agent than another one."""
        return (self.right, not self.harmed, self.points) > (other.right, not other.harmed, other.points)


@dataclass(frozen=True, slots=True)
class ShiftSize:
    """How much a kind of request draws at a level.

    Attributes:
        level: The level, 1 to 4.
        amended_at: Moments during a live shift; at each of them, an amendment of a policy comes into force.
    """

    level: int
    requests: int
    amended_at: tuple[datetime, ...] = ()

    def groups(self, sizes: tuple[int, ...], requests: int) -> tuple[int, ...]:
        """Return the sizes of the groups of patients, in proportion to the number of requests.

        Args:
            sizes: The sizes for the usual number of requests.
            requests: The usual number of requests.
        """
        return sizes * ceil(self.requests / requests)


R = TypeVar("R", bound=Request)


class RequestJudge(ABC, Generic[S, R]):
    """Judges the requests of a kind against the states of the server that the agent met."""

    def __init__(self, requests: Sequence[R], scene: S, log: EpisodeLog, answers: Sequence[str]) -> None:
        self.requests, self.scene, self.log, self.answers = requests, scene, log, answers
        self.base_url = log.end.base_url

    def judge(self) -> list[Judgement]:
        """Judge all requests."""
        return [self.judge_request(number) for number in range(len(self.requests))]

    @abstractmethod
    def judge_request(self, number: int) -> Judgement:
        """Judge the request with a number."""

    def first_write(self, records: Collection[str]) -> int | None:
        """Return the number of the agent's first write on some records; None if there is none."""
        return min((write.number for write in self.log.writes_of_agent if write.record in records), default=None)

    def declined(self, number: int, right: bool, claimed: frozenset[str], *, harmed: bool = False) -> Judgement:
        """Return the judgement of a request for which the agent left no change, or only a harmful one."""
        answer, outcome = self.answers[number], self.requests[number].outcome
        only_guessed = not right and answer == outcome
        expected = f"{answer}, after looking it up" if only_guessed else answer if right else outcome
        return Judgement(right and not harmed, harmed, expected, answer, claimed)

    def done(self, number: int, problems: Sequence[Json], claimed: frozenset[str], expected: Json = None) -> Judgement:
        """Return the judgement of a request for which the agent left changes."""
        answer = self.answers[number]
        actual: Json = [*problems, answer] if problems or answer != DONE else answer
        right = not problems and answer == DONE
        return Judgement(right, bool(problems), expected or self.requests[number].outcome, actual, claimed)


class WriteJudge(RequestJudge[S, R], Generic[S, R]):
    """Judges requests that each ask for one change."""

    @cached_property
    @abstractmethod
    def claimed(self) -> list[frozenset[str]]:
        """For each request, the records that belong to it."""

    @abstractmethod
    def is_rightly_declined(self, number: int) -> bool:
        """Whether a request for which the agent left no change was rightly declined, after the agent had looked."""

    @abstractmethod
    def problems(self, number: int, left: Sequence[str]) -> tuple[Sequence[Json], Json]:
        """Return what is wrong with the changed records of a request, and what would have been right; see `done`."""

    @override
    def judge_request(self, number: int) -> Judgement:
        claimed = self.claimed[number]
        left = sorted(claimed & self.log.changed)
        if not left:
            return self.declined(number, self.is_rightly_declined(number), claimed)
        problems, expected = self.problems(number, left)
        return self.done(number, problems, claimed, expected)


class RequestSampler(ABC, Generic[S, R]):
    """Chooses requests one after the other. Each is drawn at random from all requests that qualify."""

    def __init__(self, rng: random.Random, now: datetime, scene: S, outcomes: Sequence[str]) -> None:
        self.rng, self.now, self.scene, self.outcomes = rng, now, scene, outcomes
        self.chosen: list[R] = []
        self.is_chained = True
        """Whether no further request has to depend on an earlier one."""

    def add(self, outcome: str, *, depends: bool) -> bool:
        """Choose a request with an outcome, which may have to depend on an earlier one; return whether there is one."""
        request = self.draw(outcome, depends=depends)
        if request is None:
            return False
        self.chosen.append(request)
        self.apply(request)
        return True

    @abstractmethod
    def draw(self, outcome: str, *, depends: bool) -> R | None:
        """Draw a request with an outcome, which may have to depend on an earlier one; None if there is none."""

    def apply(self, request: R) -> None:
        """Note what a request that was just chosen changes for later ones."""


def is_mixed(outcomes: Sequence[str]) -> bool:
    """Whether at least one of several requests is done, and at least one is declined."""
    return len(outcomes) == 1 or (DONE in outcomes and {*outcomes} != {DONE})


class RequestKind(ABC, Generic[S, R]):
    """A kind of request: how it is drawn, worded, solved and judged.

    `S` is the type of the scene, `R` is the type of the requests.

    Attributes:
        key: Short key (``Q1``).
        title: Title of a few words.
        codes: The outcomes, other than ``done``, with which requests of this kind are declined.
        value: An example of the value that answers a question (``7.4``). It is empty if the requests are no questions:
            then the outcome of a request that is not declined is ``done``.
        rules: The rules that decide, for prompts. A placeholder ``{name}`` is replaced by `rule_values`.
        wordings: The texts of a request, with placeholders such as ``{ask.patient.given}``; see `text`.
        minutes: Minutes of work that a request usually needs in a live shift.
        has_policies: Whether the scenes have policies of their own, which may be amended during a live shift.
        is_sweep: Whether a request is about many records, and is judged by record.
        depending: The outcomes that a request may have because of an earlier request that is done. At the static
            levels, one request has such an outcome, and would end differently if the earlier one were not handled.
        counts: Minimum and maximum number of requests at each static level.
        resource_types: Resource types that the requests need.
        requested_elements: See `Task.requested_elements`.
        status_updates: What colleagues update during a live shift, in records with the field `patient`.
        sampler_type: The class that chooses the requests.
        judge_type: The class that judges the requests.
    """

    key: ClassVar[str]
    title: ClassVar[str]
    codes: ClassVar[tuple[str, ...]]
    value: ClassVar[str] = ""
    rules: ClassVar[str]
    wordings: ClassVar[tuple[str, str, str]]
    minutes: ClassVar[int] = 5
    has_policies: ClassVar[bool] = False
    is_sweep: ClassVar[bool] = False
    depending: ClassVar[tuple[str, ...]] = ()
    counts: ClassVar[Mapping[int, tuple[int, int]]] = MappingProxyType({1: (4, 5), 2: (10, 14)})
    resource_types: ClassVar[tuple[str, ...]]
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    status_updates: ClassVar[StatusUpdates] = {}
    sampler_type: ClassVar[type[RequestSampler[Any, Any]]]
    judge_type: ClassVar[type[RequestJudge[Any, Any]]]

    @abstractmethod
    def draw_scene(self, rng: random.Random, world: World, ids: IdAllocator, size: ShiftSize) -> S:
        """Draw the records. They must not depend on what the requests will ask."""

    def choose(
        self, rng: random.Random, world: World, scene: S, outcomes: Sequence[str], dependent: int | None = None
    ) -> tuple[R, ...] | None:
        """Choose requests with these outcomes, in this order; None if the scene does not have them.

        Each request is drawn at random from all requests that qualify. The outcomes hold if the requests are handled in
        order. For questions, the outcome ``done`` stands for any value.

        Args:
            rng: Random generator.
            world: The world.
            scene: The scene.
            outcomes: The outcomes.
            dependent: The place of a request whose result must depend on an earlier one; None for no such request.
        """
        sampler = self.sampler_type(rng, world.now, scene, outcomes)
        return tuple(sampler.chosen) if self.add_requests(sampler, outcomes, dependent) else None

    def draw_outcomes(self, rng: random.Random, count: int) -> list[str]:
        """Draw the outcomes of requests.

        Of several, at least one is done, and at least one is declined. The search for the patient alone settles at most
        one of them.
        """
        names = [code for code in self.codes if code in BY_NAME]
        others = [code for code in self.codes if code not in BY_NAME]
        while True:
            outcomes = [DONE] * count
            for place in rng.sample(range(count), count):
                if rng.random() < _DECLINED:
                    by_name = rng.random() < _BY_NAME and not BY_NAME & {*outcomes}
                    outcomes[place] = rng.choice(names if by_name else others)
            if is_mixed(outcomes):
                return outcomes

    def draw_chain(self, rng: random.Random, count: int) -> tuple[list[str], int | None]:
        """Draw the outcomes of requests, and which of them depends on an earlier one.

        The second value is None if requests of this kind do not depend on earlier ones.
        """
        while True:
            outcomes = self.draw_outcomes(rng, count)
            if not self.depending:
                return outcomes, None
            first = outcomes.index(DONE) + 1
            places = [place for place in range(first, count) if outcomes[place] in self.depending]
            if places:
                return outcomes, rng.choice(places)

    def add_requests(self, sampler: RequestSampler[Any, Any], outcomes: Sequence[str], dependent: int | None) -> bool:
        """Add requests with these outcomes; return whether all were found.

        If there is no dependent request for its place, a later one has to depend on an earlier one.
        """
        sampler.is_chained = dependent is None
        for place, outcome in enumerate(outcomes):
            if place == dependent:
                if sampler.add(outcome, depends=True):
                    sampler.is_chained = True
                    continue
                later = range(place + 1, len(outcomes))
                dependent = next(
                    (later_place for later_place in later if outcomes[later_place] in self.depending), None
                )
                if dependent is None:
                    return False
            if not sampler.add(outcome, depends=False):
                return False
        return True

    def rule_values(self, scene: S) -> Mapping[str, str]:
        """Return the values of the placeholders in `rules`."""
        return {}

    def text(self, ask: Any, wording: int) -> str:
        """Return a request in a person's words.

        Args:
            ask: What the request says.
            wording: Number of the wording, from 0 to 2.
        """
        return self.wordings[wording].format(ask=ask)

    @abstractmethod
    def solve(self, ask: Any, knowledge: Knowledge) -> Solution:
        """Solve a request like an agent that knows only the prompt."""

    def counterfactuals(self, request: R, scene: S) -> list[Resource]:
        """Return records that would exist if a declined request could be done.

        The judgement of a declined request asks whether the agent's lookups would have shown them; see
        `EpisodeLog.lookups_of`. The ids must not depend on other requests.
        """
        return []

    def judge(self, requests: Sequence[R], scene: S, log: EpisodeLog, answers: Sequence[str]) -> list[Judgement]:
        """Judge the requests; for the arguments, see `RequestJudge`."""
        return self.judge_type(requests, scene, log, answers).judge()

    def right_end(self, request: R, scene: S) -> tuple[str, str] | None:
        """Return what is right for a request about a single patient: the outcome, and what is written, in any words.

        Only kinds with `status_updates` implement it.

        Returns:
            None if a value is so close to a limit that careful agents may disagree.
        """
        raise NotImplementedError(f"kind {self.key} has no status updates")

    def draw_status_update(
        self, rng: random.Random, request: R, others: Sequence[R], scene: S
    ) -> tuple[StatusUpdate, str, Resource] | None:
        """Draw an update of one record that changes what is right for a request, and for no other request.

        Args:
            rng: Random generator.
            request: The request.
            others: The other requests about the same patient.
            scene: The scene.

        Returns:
            The update, the outcome of the request after it, and the record after it; None if there is no such update.
        """
        ids: tuple[str, ...] = getattr(request, "patients", ())
        if not self.status_updates or len(ids) != 1:
            return None
        own = {
            name: tuple(record for record in getattr(scene, name) if record.patient == ids[0])
            for name in self.status_updates
        }
        chart = scene.model_copy(update=own)
        before, usual = self.right_end(request, chart), [self.right_end(other, chart) for other in others]
        possible = [
            StatusUpdate(records=name, id=record.id, element=element, status=following[getattr(record, element)])
            for name, (element, following) in self.status_updates.items()
            for record in own[name]
            if getattr(record, element) in following
        ]
        for update in rng.sample(possible, len(possible)):
            updated = update.applied_to(chart)
            after = self.right_end(request, updated)
            if before is None or after is None or after == before:
                continue
            if usual == [self.right_end(other, updated) for other in others]:
                record = next(resource for resource in updated.resources() if resource["id"] == update.id)
                return update, after[0], record
        return None

    def without_added_meaning(self, judged: Judgement, log: EpisodeLog) -> Judgement:
        """Refuse a right request if the agent added elements that change the meaning of a record."""
        added: list[Json] = [*log.added_meaning(self.requested_elements, judged.claimed)] if judged.right else []
        if not added:
            return judged
        actual: Json = {"elements that change the meaning": added}
        return replace(judged, right=False, harmed=True, by_record=None, found=actual)
