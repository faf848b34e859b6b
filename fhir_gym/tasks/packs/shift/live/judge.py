"""The judgement of a live shift."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import takewhile
from typing import Any

from fhir_gym.tasks import FinishedEpisode
from fhir_gym.tasks.authoring import parse_instant
from fhir_gym.tasks.grading import differences
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog, Write
from fhir_gym.tasks.packs.shift.kind import Judgement, RequestKind
from fhir_gym.tasks.packs.shift.live.clock import WRITE
from fhir_gym.tasks.packs.shift.live.plan import (
    IS_AGREED,
    MESSAGE_IN_TIME,
    TIME_TO_OBJECT,
    UPDATE_IN_TIME,
    WEIGHTS,
    DeskRequest,
    LiveParams,
)
from fhir_gym.tasks.packs.shift.live.results import Closing, Decided, RequestResult, Work
from fhir_gym.tasks.packs.shift.live.worklist import (
    CLOSED,
    answer_text,
    has_note,
    message_text,
    outcome_of,
    question_of,
    status_of,
    urgent_elements,
)
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOT_ALLOWED, WITHDRAWN
from fhir_gym.types import Json, Resource, as_list

_ADDED = ("statusReason", "executionPeriod", "lastModified", "note")
"""Elements of a Task that the agent may add at any time."""
_CLOSING = ("status", "businessStatus", "output", *_ADDED)
"""Elements of a Task that may change when the agent works on it and closes it."""
_LONGEST = 2
"""Work on a request may take this many times its usual minutes."""


class LiveJudge:
    """Judges the requests of a live shift against the states that the agent met."""

    def __init__(self, p: LiveParams, kinds: Mapping[str, RequestKind[Any, Any]], end: FinishedEpisode) -> None:
        self._p, self._kinds, self._end = p, kinds, end
        self.log = EpisodeLog(end, self._counterfactuals, self._report)

    def _report(self, request: object) -> int | None:
        """Return the number of the write with which the agent closed the Task of a request; None if it is open."""
        desk_request = next(
            desk_request for desk_request in self._p.requests if request in (desk_request.request, desk_request.first)
        )
        closing = self._closings[desk_request.id]
        return closing.write if closing else None

    def _counterfactuals(self) -> Iterable[Resource]:
        records = (counterfactual for asked in self._p.requests for counterfactual in self._counterfactuals_of(asked))
        return {
            (counterfactual["resourceType"], counterfactual["id"]): counterfactual for counterfactual in records
        }.values()

    def _counterfactuals_of(self, desk_request: DeskRequest) -> Iterator[Resource]:
        """Yield the counterfactuals of a request that the agent declined, also under policies that came into force."""
        kind, scene, closing = (
            self._kinds[desk_request.kind],
            self._p.scene[desk_request.kind],
            self._closings[desk_request.id],
        )
        if closing is None or closing.outcome not in kind.codes:
            return
        usual, latest = (
            (self._request(desk_request), scene),
            (self._latest_request(desk_request), self._updated(scene, [desk_request])),
        )
        for request, records in (usual, latest) if self._has_changed(desk_request) else (usual,):
            yield from kind.counterfactuals(request, records)
            declined = request.model_copy(update={"outcome": closing.outcome})
            for moment in self._amended_at(scene):
                if moment <= closing.at:
                    yield from kind.counterfactuals(declined, self._amended(records, moment))

    def _request(self, request: DeskRequest) -> Any:
        """Return the request with its changed description, or with its first description if it has not changed."""
        return (
            request.first if request.first is not None and self._event("reworded", request) is None else request.request
        )

    def _latest_request(self, request: DeskRequest) -> Any:
        """Return the request after a message that was sent, with the outcome after an update."""
        if request.record_update is not None and self._event("record updated", request) is not None:
            return self._request(request).model_copy(update={"outcome": request.record_update.outcome})
        return self._request(request) if self._event("message", request) is None else request.request

    def _updated(self, scene: Any, asked: Iterable[DeskRequest]) -> Any:
        """Apply to a scene the record updates that happened while the agent worked on these requests."""
        for request in asked:
            if request.record_update is not None and self._event("record updated", request) is not None:
                scene = request.record_update.update.applied_to(scene)
        return scene

    def _has_changed(self, request: DeskRequest) -> bool:
        """Whether a message or an update of a record came while the agent worked on a request."""
        return any(self._event(name, request) is not None for name in ("message", "record updated"))

    def _amended_at(self, scene: Any) -> list[datetime]:
        """Return the moments of the shift at which policies of a scene came into force."""
        library = getattr(scene, "library", None)
        last = self._end.timeline[-1].at if self._end.timeline else parse_instant(self._p.now)
        return [moment for moment in library.coming(parse_instant(self._p.now)) if moment <= last] if library else []

    def _amended(self, scene: Any, moment: datetime) -> Any:
        """Return a scene with the policies that are in force at a moment."""
        return scene.model_copy(update={"library": scene.library.after(moment - parse_instant(self._p.now))})

    @cached_property
    def results(self) -> list[RequestResult]:
        """The results in the order of the requests."""
        closings = self._closings
        by_request: dict[str, RequestResult] = {}
        for key, kind in self._kinds.items():
            asked = self._p.of_kind(key)
            if asked:
                # Kinds judge requests in order, so this is the order in which the agent handled them.
                asked.sort(
                    key=lambda request: closing.request if (closing := closings[request.id]) else len(self.log.requests)
                )
                requests = [self._request(request) for request in asked]
                decided = self._judge(key, asked, requests, self._p.scene[key], closings)
                if any(map(self._has_changed, asked)):
                    changed = [self._latest_request(request) for request in asked]
                    later = self._judge(key, asked, changed, self._updated(self._p.scene[key], asked), closings)
                    triples = zip(asked, decided, later, strict=True)
                    decided = [self._by_time(triple, closings[triple.id], *both) for triple, *both in triples]
                for request, final in zip(asked, decided, strict=True):
                    judgement = kind.without_added_meaning(final.judgement, self.log)
                    by_request[request.id] = self._result(
                        request, replace(final, judgement=judgement), closings[request.id]
                    )
        return [by_request[request.id] for request in self._p.requests]

    def _judge(
        self,
        key: str,
        asked: Sequence[DeskRequest],
        requests: Sequence[Any],
        usual: Any,
        closings: Mapping[str, Closing | None],
    ) -> list[Decided]:
        """Judge the requests of a kind by the records of a scene, each by the policies of its time."""
        kind = self._kinds[key]
        if not self.log.requests:  # to judge what an idle agent left would take a tenth of the time of grading
            return [Decided(Judgement(False, False, request.outcome, "")) for request in requests]
        answers = [closing.outcome if (closing := closings[request.id]) else "" for request in asked]
        judged = kind.judge(requests, usual, self.log, answers)
        changes = self._changes(asked, judged)
        works = [
            self._work(request, closings[request.id], first) for request, (first, _) in zip(asked, changes, strict=True)
        ]
        for moment in self._amended_at(usual):
            if any(moment <= work.end for work in works):
                later = kind.judge(requests, self._amended(usual, moment), self.log, answers)
                judged = [work.judgement(moment, *both) for work, *both in zip(works, judged, later, strict=True)]
        return [Decided(judgement, *both) for judgement, both in zip(judged, changes, strict=True)]

    def _by_time(self, request: DeskRequest, closing: Closing | None, before: Decided, after: Decided) -> Decided:
        """Return the judgement of a request that a message or an update of a record may have changed."""
        event, in_time = ("record updated", UPDATE_IN_TIME) if request.record_update else ("message", MESSAGE_IN_TIME)
        age = self._age_of(event, request, closing, after.first)
        if age is None or age < timedelta():
            return before
        if age >= in_time or after.judgement.better_than(before.judgement):
            return after
        return before

    def _age_of(self, event: str, request: DeskRequest, closing: Closing | None, first: int | None) -> timedelta | None:
        """Return how long before the agent decided something happened; None if it did not, or nothing was decided.

        It is negative if the agent decided first.
        """
        sent = self._event(event, request)
        moment = self._decided_at(closing, first)
        if sent is None or moment is None:
            return None
        if moment < sent:
            return timedelta(microseconds=-1)
        return self._end.timeline[moment].at - self._end.timeline[sent].at

    def _decided_at(self, closing: Closing | None, first: int | None) -> int | None:
        """Return the position on the timeline of the first change for a request, or of the closing of its Task."""
        return closing.request if first is None and closing else first

    def _changes(
        self, asked: Sequence[DeskRequest], judged: Sequence[Judgement]
    ) -> list[tuple[int | None, datetime | None]]:
        """Return the position of the agent's first change for each request, and the time of its last change.

        A first change is one of a record of this request alone. A change of a record of several requests is for the
        request that is due last.
        """
        owners: dict[str, list[int]] = {}
        for number, judgement in enumerate(judged):
            for record in judgement.claimed:
                owners.setdefault(record, []).append(number)
        firsts: list[int | None] = [None] * len(asked)
        lasts: list[datetime | None] = [None] * len(asked)
        for write in self.log.writes_of_agent:
            if not (numbers := owners.get(write.record)):
                continue
            if len(numbers) == 1 and firsts[numbers[0]] is None:
                firsts[numbers[0]] = write.request
            owner = max(numbers, key=lambda number: asked[number].due)
            lasts[owner] = max(lasts[owner] or self._time(write), self._time(write))
        return list(zip(firsts, lasts, strict=True))

    def _time(self, write: Write) -> datetime:
        """Return when the agent was done with what it did before a write, also in the same Bundle."""
        return self._end.timeline[write.request].at + write.place * WRITE

    def _work(self, request: DeskRequest, closing: Closing | None, first: int | None) -> Work:
        positions = [at for at in (first, closing.request if closing else None) if at is not None]
        if not positions:
            return Work(parse_instant(self._p.now), parse_instant(self._p.now))
        decided, on_task = positions[0], f"Task/{request.id}"
        begun = min([decided, *(write.request for write in self.log.writes_on(on_task) if write.by_agent)])
        start, changed, end = (self._end.timeline[at].at for at in (begun, decided, max(positions)))
        # An agent that sets all Tasks to in-progress at once does not work on all of them at once.
        return Work(max(start, changed - _LONGEST * timedelta(minutes=self._kinds[request.kind].minutes)), end)

    @property
    def score(self) -> float:
        """The weighted points, divided by the sum of the weights. Other changes cost one point."""
        weights = sum(result.weight for result in self.results) or 1
        points = sum(result.points * WEIGHTS[result.request.priority] for result in self.results)
        return max(0.0, (points - bool(self.surplus)) / weights)

    @cached_property
    def surplus(self) -> list[str]:
        """References to the records that the agent touched although no request is about them, or others wrote them."""
        claimed = {record for result in self.results for record in result.judgement.claimed}
        own = {f"Task/{request.id}" for request in self._p.requests}
        left = {record for record in self.log.touched - claimed - own if not self._is_question(record)}
        return sorted(left | (self.log.recreated - claimed) | (self.log.overwritten - own))

    def _is_question(self, record: str) -> bool:
        """Whether a record is a new Communication about a request."""
        if not record.startswith("Communication/") or self.log.at_start(record) is not None:
            return False
        asked = question_of(self.log.at_end(record) or {}, self._end.base_url)
        return asked is not None and any(request.id == asked[0] for request in self._p.requests)

    @cached_property
    def _closings(self) -> dict[str, Closing | None]:
        return {request.id: self._closing(request) for request in self._p.requests}

    def _closing(self, request: DeskRequest) -> Closing | None:
        """Return how the agent closed the Task of a request; None if it is not closed."""
        states = self.log.writes_on(f"Task/{request.id}")
        final = _told(states[-1].after) if states else ("", "")
        closed = [*takewhile(lambda write: _told(write.after) == final, reversed(states))]
        if final[0] not in CLOSED or not closed[-1].by_agent:
            return None
        last = next(write for write in closed if write.by_agent)
        return Closing(*final, closed[-1].request, closed[-1].number, self._time(last))

    def _result(self, request: DeskRequest, decided: Decided, closing: Closing | None) -> RequestResult:
        judgement, first = decided.judgement, decided.first
        left = bool(judgement.claimed & self.log.changed)
        withdrawn = self._event("withdrawn", request)
        is_withdrawn = withdrawn is not None and (first is None or first > withdrawn)
        if is_withdrawn:
            alone = not judgement.claimed & self.log.touched and self._left_alone(request, closing)
            actual: Json = "withdrawn" if alone else "changed, although it was withdrawn"
            return RequestResult(request, alone, left, False, True, 0.0, judgement, actual)
        judgement = self._by_withdrawal(request, judgement, closing, first, left=left)
        problem = self._problem(request, closing, first, left)
        right, harmed = judgement.right and not problem, judgement.harmed
        if request.asks == IS_AGREED and not request.agreed:
            right, harmed = not problem, left
        share = 1.0 if right else max(judgement.by_record or 0.0, 0.0) if closing and not problem else 0.0
        late = closing is not None and max(closing.at, decided.last or closing.at) > self._due(request, closing)
        told: dict[str, Json] = {"outcome": closing.outcome if closing else None}
        if closing:
            told["closed"] = f"{closing.at:%H:%M:%S}" + (" (late)" if late else "")
        actual = told | ({"problem": problem} if problem else {}) | ({} if right else {"judged": judgement.found})
        return RequestResult(request, right, harmed, late, False, share, judgement, actual)

    def _left_alone(self, request: DeskRequest, closing: Closing | None) -> bool:
        """Whether the Task of a withdrawn request is as it was then, or the agent rejected it as withdrawn."""
        if closing is not None:
            return (closing.status, closing.outcome) == ("rejected", WITHDRAWN) and not self._changed_elements(request)
        states = [write.after for write in self.log.writes_on(f"Task/{request.id}") if not write.by_agent]
        last = self.log.at_end(f"Task/{request.id}") or {}
        left = next((state for state in states if state and status_of(state) == "cancelled"), last)
        changed = [*differences(left, last, changing=_ADDED, base_url=self._end.base_url)]
        return status_of(last) == "cancelled" and not changed

    def _by_withdrawal(
        self, request: DeskRequest, judgement: Judgement, closing: Closing | None, first: int | None, *, left: bool
    ) -> Judgement:
        """Return the judgement of a request that a message may have withdrawn.

        An agent may undo changes that it made before it had to know the message.
        """
        age = self._age_of("message", request, closing, first) if request.message_withdraws else None
        if age is None or age < timedelta():
            return judgement
        outcome = closing.outcome if closing else None
        if age < MESSAGE_IN_TIME and outcome != WITHDRAWN:
            return judgement
        was_read = closing is not None and self._was_read("message", request, message_text(request), closing.request)
        harm = self.log.changed if age < MESSAGE_IN_TIME else self.log.touched
        right = outcome == WITHDRAWN and was_read and not judgement.claimed & harm
        return replace(judgement, right=right, harmed=left, expected=WITHDRAWN, found=outcome, by_record=None)

    def _problem(self, request: DeskRequest, closing: Closing | None, first: int | None, left: bool) -> str:
        """Describe errors that the kind does not judge; empty if there are none."""
        if closing is None:
            return "the Task is not closed"
        decided = closing.request if first is None else first
        if not self._was_begun(request, min(decided, closing.request)):
            minutes = TIME_TO_OBJECT // timedelta(minutes=1)
            return f"the Task was not in-progress for {minutes} minutes before"
        if request.asks and not self._was_read("answer", request, answer_text(request, request.asks), decided):
            return "nobody read the answer to the necessary question first"
        if request.asks == IS_AGREED and not request.agreed:
            if left:
                return "changed, although the patient does not agree"
            if closing.outcome != NOT_ALLOWED:
                return f'the outcome is not "{NOT_ALLOWED}"'
        if changed := self._changed_elements(request):
            return f"other elements of the Task changed: {', '.join(changed)}"
        is_done = closing.outcome == DONE or (
            bool(self._kinds[request.kind].value) and not self._declines(request, closing)
        )
        expected_status = "completed" if is_done else "rejected"
        return "" if closing.status == expected_status else f"status {closing.status}"

    def _changed_elements(self, request: DeskRequest) -> list[str]:
        """Return the elements of the Task that the agent must not change, but changed, added or lost."""
        record = f"Task/{request.id}"
        by_others = next((write.after for write in self.log.writes_on(record) if not write.by_agent), {})
        first = self.log.at_start(record) or by_others or {}
        if self._event("urgent now", request) is not None:
            first = first | urgent_elements(request)
        if self._event("reworded", request) is not None:
            first = first | {"description": request.text}
        last = self.log.at_end(record) or {}
        outputs = as_list(last.get("output"))
        changed = {*differences(first, last, changing=_CLOSING, base_url=self._end.base_url)}
        if len(outputs) > 1 or any(isinstance(output, dict) and "modifierExtension" in output for output in outputs):
            changed.add("output")
        if self._event("note", request) is not None and not has_note(last, request.note):
            changed.add("note")
        return sorted(changed)

    def _declines(self, request: DeskRequest, closing: Closing) -> bool:
        return closing.outcome in (WITHDRAWN, *self._kinds[request.kind].codes)

    def _was_begun(self, request: DeskRequest, before: int) -> bool:
        """Whether a Task became in-progress long enough before a request on the timeline."""
        latest = self._end.timeline[before].at - TIME_TO_OBJECT
        writes = [
            write for write in self.log.writes_on(f"Task/{request.id}") if status_of(write.after) == "in-progress"
        ]
        return any(self._end.timeline[write.request].at <= latest for write in writes)

    def _was_read(self, event: str, request: DeskRequest, text: str, before: int) -> bool:
        """Whether the agent read an answer or message with a text about a Task before a request on the timeline."""
        earlier = self._end.timeline[:before]
        sent = [
            (number, timed.logged.response.done[0].id)
            for number, timed in enumerate(earlier)
            if timed.event == event and _is_about(timed.logged.action.body, request, text)
        ]
        return any(
            not timed.event and f'"{id}"'.encode() in timed.logged.response.content
            for number, id in sent
            for timed in earlier[number:]
            if text.encode() in timed.logged.response.content
        )

    def _due(self, request: DeskRequest, closing: Closing) -> datetime:
        hurried = self._event("urgent now", request)
        return parse_instant(request.hurried_due if hurried is not None and hurried < closing.request else request.due)

    def _event(self, name: str, request: DeskRequest) -> int | None:
        """Return the position of an event on the timeline; None if it did not happen."""
        return self._events.get((name, request.id))

    @cached_property
    def _events(self) -> Mapping[tuple[str, str], int]:
        """The position of the first event of each kind and Task id; events that the server refused are left out."""
        tasks = {request.record_update.url: request.id for request in self._p.requests if request.record_update}
        times: dict[tuple[str, str], int] = {}
        for number, timed in enumerate(self._end.timeline):
            if timed.event and timed.logged.response.status < 300:
                action = timed.logged.action
                id = tasks.get(action.url) or action.url.rpartition("/Task/")[2]
                if action.url == "/Communication":
                    id = json.loads(action.body or "{}")["basedOn"][0]["reference"].removeprefix("Task/")
                times.setdefault((timed.event, id), number)
        return times


def _told(task: Resource | None) -> tuple[str, str]:
    return status_of(task), outcome_of(task or {})


def _is_about(body: str | None, request: DeskRequest, text: str) -> bool:
    """Whether an answer is about a request and has a text."""
    return f'"Task/{request.id}"' in (body or "") and text in (body or "")
