"""The judgement of a live shift."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from fhir_gym.tasks import EndState
from fhir_gym.tasks.authoring import parse_instant
from fhir_gym.tasks.grading import differences
from fhir_gym.tasks.packs.shift.kind import Judgement, RequestKind
from fhir_gym.tasks.packs.shift.live.plan import IS_AGREED, WEIGHTS, DeskRequest, LiveParams
from fhir_gym.tasks.packs.shift.live.worklist import (
    CLOSED,
    answer_text,
    outcome_of,
    question_of,
    status_of,
    urgent_elements,
)
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOT_ALLOWED
from fhir_gym.tasks.packs.shift.writes import EpisodeLog
from fhir_gym.types import Json, Resource

_LATE = 0.5
_CLOSING = ("status", "statusReason", "businessStatus", "executionPeriod", "lastModified", "note", "output")
"""Elements of a Task that may change when the agent works on it and closes it."""
_HARM = -0.5


@dataclass(frozen=True, slots=True)
class Closing:
    """How the agent closed a Task.

    Attributes:
        status: The status of the Task.
        outcome: The reported outcome.
        request: Position of the closing request on the timeline.
        at: Its time.
    """

    status: str
    outcome: str
    request: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Work:
    """The time in which the agent worked on a request.

    Attributes:
        start: Its start.
        end: Its end.
    """

    start: datetime
    end: datetime

    def judgement(self, moment: datetime, before: Judgement, after: Judgement) -> Judgement:
        """Return the judgement that counts if policies came into force at a moment.

        If it was in the middle of the work, the agent may follow the earlier or the later policies.

        Args:
            moment: The moment.
            before: The judgement by the earlier policies.
            after: The judgement by the later policies.
        """
        if moment > self.end:
            return before
        if moment <= self.start:
            return after
        return max(before, after, key=lambda one: (one.right, not one.harmed, one.points))


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one request.

    Attributes:
        request: The request.
        right: Whether the records and the outcome are right.
        harmed: Whether a wrong change is left.
        late: Whether the Task was closed after its due time.
        withdrawn: Whether the request was withdrawn before the agent worked on it.
        share: The share of the request that is right, from 0 to 1, without regard to time.
        judgement: The judgement of its kind.
        found: What the agent did.
    """

    request: DeskRequest
    right: bool
    harmed: bool
    late: bool
    withdrawn: bool
    share: float
    judgement: Judgement
    found: Json

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong with the request."""
        return not self.harmed and (self.withdrawn or (self.right and not self.late))

    @property
    def weight(self) -> int:
        """The weight in the score."""
        return 0 if self.withdrawn else WEIGHTS[self.request.priority]

    @property
    def points(self) -> float:
        """The points, which the score multiplies with the weight of the priority."""
        if self.harmed:
            return _HARM
        return 0.0 if self.withdrawn else self.share * (_LATE if self.late else 1.0)


class LiveJudge:
    """Judges the requests of a live shift against the states that the agent met.

    Args:
        p: The parameters.
        kinds: The kinds by their keys.
        end: The end state of the episode.
    """

    def __init__(self, p: LiveParams, kinds: Mapping[str, RequestKind[Any, Any]], end: EndState) -> None:
        self._p, self._kinds, self._end = p, kinds, end
        self.log = EpisodeLog(end, self._counterfactuals)

    def _counterfactuals(self) -> Iterable[Resource]:
        """Return the counterfactuals of all requests."""
        found = (one for asked in self._p.requests for one in self._counterfactuals_of(asked))
        return {(one["resourceType"], one["id"]): one for one in found}.values()

    def _counterfactuals_of(self, one: DeskRequest) -> Iterator[Resource]:
        """Yield the counterfactuals of a request; of a declined one, also those under policies that came into force."""
        kind, scene, request = self._kinds[one.kind], self._p.scene[one.kind], self._request(one)
        yield from kind.counterfactuals(request, scene)
        closing = self._closing(one)
        if closing is not None and closing.outcome in kind.codes:
            declined = request.model_copy(update={"outcome": closing.outcome})
            for moment in self._amended_at(scene):
                if moment <= closing.at:
                    yield from kind.counterfactuals(declined, self._amended(scene, moment))

    def _request(self, one: DeskRequest) -> Any:
        """Return what is asked for: a description that changed before the agent worked on it counts as changed."""
        return one.first if one.first is not None and self._event("reworded", one) is None else one.request

    def _amended_at(self, scene: Any) -> list[datetime]:
        """Return the moments of the shift at which policies of a scene came into force."""
        library = getattr(scene, "library", None)
        last = self._end.timeline[-1].at if self._end.timeline else parse_instant(self._p.now)
        return [one for one in library.coming(parse_instant(self._p.now)) if one <= last] if library else []

    def _amended(self, scene: Any, moment: datetime) -> Any:
        """Return a scene with the policies as they were from a moment on."""
        return scene.model_copy(update={"library": scene.library.after(moment - parse_instant(self._p.now))})

    @cached_property
    def results(self) -> list[Result]:
        """The results in the order of the requests."""
        closings = {one.id: self._closing(one) for one in self._p.requests}
        found: dict[str, Result] = {}
        for key, kind in self._kinds.items():
            asked = self._p.of_kind(key)
            if asked:
                # Kinds judge requests in order, so this is the order in which the agent handled them.
                asked.sort(key=lambda one: closing.request if (closing := closings[one.id]) else len(self.log.requests))
                answers = [closing.outcome if (closing := closings[one.id]) else "" for one in asked]
                requests = [self._request(one) for one in asked]
                judged = kind.judge(requests, self._p.scene[key], self.log, answers)
                firsts = self._first_changes(judged)
                works = [self._work(one, closings[one.id], first) for one, first in zip(asked, firsts, strict=True)]
                for moment in self._amended_at(self._p.scene[key]):
                    if any(moment <= work.end for work in works):
                        scene = self._amended(self._p.scene[key], moment)
                        later = kind.judge(requests, scene, self.log, answers)
                        judged = [work.judgement(moment, *two) for work, *two in zip(works, judged, later, strict=True)]
                judged = [kind.without_added_meaning(one, self.log) for one in judged]
                for one, judgement, first in zip(asked, judged, firsts, strict=True):
                    found[one.id] = self._result(one, judgement, closings[one.id], first)
        return [found[one.id] for one in self._p.requests]

    def _first_changes(self, judged: Sequence[Judgement]) -> list[int | None]:
        """Return the position of the agent's first change for each request; records of several requests do not count.

        Args:
            judged: The judgements of all requests of a kind.
        """
        shared = Counter(record for judgement in judged for record in judgement.claimed)
        own = [{record for record in judgement.claimed if shared[record] == 1} for judgement in judged]
        writes = self.log.writes_of_agent
        return [min((write.request for write in writes if write.record in records), default=None) for records in own]

    def _work(self, one: DeskRequest, closing: Closing | None, first: int | None) -> Work:
        """Return when the agent worked on a request."""
        positions = [at for at in (first, closing.request if closing else None) if at is not None]
        if not positions:
            return Work(parse_instant(self._p.now), parse_instant(self._p.now))
        decided, on_task = positions[0], f"Task/{one.id}"
        begun = min([decided, *(write.request for write in self.log.writes_on(on_task) if write.by_agent)])
        start, changed, end = (self._end.timeline[at].at for at in (begun, decided, max(positions)))
        # Who sets all Tasks to in-progress at once does not work on all of them at once.
        return Work(max(start, changed - timedelta(minutes=self._kinds[one.kind].minutes)), end)

    @property
    def score(self) -> float:
        """The weighted points, divided by the sum of the weights. Other changes cost one point."""
        weights = sum(one.weight for one in self.results) or 1
        points = sum(one.points * WEIGHTS[one.request.priority] for one in self.results)
        return max(0.0, (points - bool(self.surplus)) / weights)

    @cached_property
    def surplus(self) -> list[str]:
        """References to the records that the agent touched although no request is about them."""
        claimed = {record for one in self.results for record in one.judgement.claimed}
        own = {f"Task/{one.id}" for one in self._p.requests}
        left = self.log.touched - claimed - own
        return sorted({one for one in left if not self._is_question(one)} | (self.log.recreated - claimed))

    def _is_question(self, record: str) -> bool:
        """Whether a record is a new Communication about a request."""
        if not record.startswith("Communication/") or self.log.at_start(record) is not None:
            return False
        asked = question_of(self.log.at_end(record) or {}, self._end.base_url)
        return asked is not None and any(one.id == asked[0] for one in self._p.requests)

    def _closing(self, one: DeskRequest) -> Closing | None:
        """Return how the agent closed the Task of a request; None if it is not closed."""
        states = self.log.writes_on(f"Task/{one.id}")
        if not states or not states[-1].by_agent or status_of(states[-1].after) not in CLOSED:
            return None
        final = _told(states[-1].after)
        closing = states[-1]
        for write in reversed(states):
            if not write.by_agent or _told(write.after) != final:
                break
            closing = write
        return Closing(*final, closing.request, self._end.timeline[closing.request].at)

    def _result(self, one: DeskRequest, judgement: Judgement, closing: Closing | None, first: int | None) -> Result:
        """Return the result of a request; `first` is the position of the agent's first change for it."""
        left = bool(judgement.claimed & self.log.changed)
        withdrawn = self._event("withdrawn", one)
        is_withdrawn = withdrawn is not None and (first is None or first > withdrawn)
        if is_withdrawn:
            found: Json = "changed, although it was withdrawn" if left else "withdrawn"
            return Result(one, False, left, False, True, 0.0, judgement, found)
        problem = self._problem(one, closing, first, left)
        right, harmed = judgement.right and not problem, judgement.harmed
        if one.asks == IS_AGREED and not one.agreed:
            right, harmed = not problem, left
        share = 1.0 if right else max(judgement.by_record or 0.0, 0.0) if closing and not problem else 0.0
        late = closing is not None and self._end_of(closing, first) > self._due(one, closing)
        told: dict[str, Json] = {"outcome": closing.outcome if closing else None}
        if closing:
            told["closed"] = f"{closing.at:%H:%M:%S}" + (" (late)" if late else "")
        found = told | ({"problem": problem} if problem else {}) | ({} if right else {"judged": judgement.found})
        return Result(one, right, harmed, late, False, share, judgement, found)

    def _problem(self, one: DeskRequest, closing: Closing | None, first: int | None, left: bool) -> str:
        """Describe what is wrong apart from the judgement of the kind; an empty text for nothing."""
        if closing is None:
            return "the Task is not closed"
        if one.asks and not self._answer_was_read(one, closing.request if first is None else first):
            return "nobody read the answer to the necessary question first"
        if one.asks == IS_AGREED and not one.agreed:
            if left:
                return "changed, although the patient does not agree"
            if closing.outcome != NOT_ALLOWED:
                return f'the outcome is not "{NOT_ALLOWED}"'
        if changed := self._changed_elements(one):
            return f"other elements of the Task changed: {', '.join(changed)}"
        is_done = closing.outcome == DONE or (bool(self._kinds[one.kind].value) and not self._declines(one, closing))
        wanted = "completed" if is_done else "rejected"
        return "" if closing.status == wanted else f"status {closing.status}"

    def _changed_elements(self, one: DeskRequest) -> list[str]:
        """Return the elements of the Task, other than those that close it, that the agent changed or added."""
        record = f"Task/{one.id}"
        by_others = next((write.after for write in self.log.writes_on(record) if not write.by_agent), {})
        first = self.log.at_start(record) or by_others or {}
        if self._event("urgent now", one) is not None:
            first = first | urgent_elements(one)
        if self._event("reworded", one) is not None:
            first = first | {"description": one.text}
        last = self.log.at_end(record) or {}
        found = last.get("output")
        outputs = found if isinstance(found, list) else []
        changed = {*differences(first, last, changing=_CLOSING, base_url=self._end.base_url)}
        if len(outputs) > 1 or any(isinstance(one, dict) and "modifierExtension" in one for one in outputs):
            changed.add("output")
        return sorted(changed)

    def _declines(self, one: DeskRequest, closing: Closing) -> bool:
        return closing.outcome in self._kinds[one.kind].codes

    def _answer_was_read(self, one: DeskRequest, before: int) -> bool:
        """Whether the agent read the answer to the necessary question before a request on the timeline."""
        earlier, text = self._end.timeline[:before], answer_text(one, one.asks)
        answers = [
            (number, timed.logged.response.done[0].id)
            for number, timed in enumerate(earlier)
            if timed.event == "answer" and _is_about(timed.logged.action.body, one, text)
        ]
        return any(
            not timed.event and f'"{id}"'.encode() in timed.logged.response.content
            for number, id in answers
            for timed in earlier[number:]
            if text.encode() in timed.logged.response.content
        )

    def _end_of(self, closing: Closing, first: int | None) -> datetime:
        """Return the time at which a request was done; who closes a Task before the work is not done yet."""
        return closing.at if first is None else max(closing.at, self._end.timeline[first].at)

    def _due(self, one: DeskRequest, closing: Closing) -> datetime:
        hurried = self._event("urgent now", one)
        return parse_instant(one.hurried_due if hurried is not None and hurried < closing.request else one.due)

    def _event(self, name: str, one: DeskRequest) -> int | None:
        """Return the position of an event on the timeline; None if it did not happen."""
        return self._events.get((name, one.id))

    @cached_property
    def _events(self) -> Mapping[tuple[str, str], int]:
        """The position of the first event of each kind for each id of a Task."""
        found: dict[tuple[str, str], int] = {}
        for number, timed in enumerate(self._end.timeline):
            if timed.event:
                _, task, id = timed.logged.action.url.rpartition("/Task/")
                found.setdefault((timed.event, id if task else ""), number)
        return found


def _told(task: Resource | None) -> tuple[str, str]:
    return status_of(task), outcome_of(task or {})


def _is_about(body: str | None, one: DeskRequest, text: str) -> bool:
    """Whether an answer is about a request and has a text."""
    return f'"Task/{one.id}"' in (body or "") and text in (body or "")
