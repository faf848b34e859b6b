"""The simulation of a live shift: time passes, requests arrive, colleagues write, and questions are answered."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import count

from typing_extensions import override

from fhir_gym.actions import Action, Invalid, Post, Put, to_request
from fhir_gym.fhir import FhirSession
from fhir_gym.fhir.messages import Interaction, Request, Response
from fhir_gym.tasks import LoggedRequest, Simulation, TimedRequest
from fhir_gym.tasks.authoring import instant, parse_instant
from fhir_gym.tasks.grading.responses import ParsedResponse
from fhir_gym.tasks.packs.shift.live.clock import READ, duration
from fhir_gym.tasks.packs.shift.live.plan import ColleagueBooking, DeskRequest, LiveParams, RecordUpdate
from fhir_gym.tasks.packs.shift.live.worklist import (
    OPEN,
    answer_resource,
    answer_text,
    message_resource,
    question_of,
    status_of,
    task_resource,
    urgent_elements,
    with_note,
)
from fhir_gym.types import Resource

_Event = Callable[[], None]


class LiveSimulation(Simulation):
    """The simulation of one episode."""

    def __init__(self, p: LiveParams, titles: dict[str, str], session: FhirSession) -> None:
        self._p, self._titles, self._session = p, titles, session
        self._requests = {request.id: request for request in p.requests}
        self._now = parse_instant(p.now)
        self._timeline: list[TimedRequest] = []
        self._order = count()
        self._events: list[tuple[datetime, int, bool, _Event]] = []
        self._open: set[str] = {request.id for request in p.requests if request.arrives <= p.now}
        self._unanswered: dict[str, int] = {}
        self._begun: set[str] = set()
        self._looks: Counter[str] = Counter()
        self._changed: set[tuple[str, str]] = set()
        self._delayed: dict[str, list[str]] = {}
        self._plan()

    @property
    @override
    def now(self) -> datetime:
        return self._now

    @property
    @override
    def timeline(self) -> tuple[TimedRequest, ...]:
        return tuple(self._timeline)

    @override
    def answer(self, action: Action, request: Request) -> Response:
        response = self._handle(request)
        if not self._open and _only_looks_for_work(response) and self._wait():
            response = self._handle(request)
        self._timeline.append(TimedRequest(LoggedRequest(action, request, response), self._now))
        self._listen(response)
        self._pass(duration(response))
        return response

    @override
    def pass_time(self) -> None:
        self._pass(READ)

    def _handle(self, request: Request) -> Response:
        self._session.set_clock(self._now)
        return self._session.handle(request)

    def _plan(self) -> None:
        for request in self._p.requests:
            if request.arrives > self._p.now:
                self._at(request.arrives, partial(self._arrive, request), shows=True)
            for time, change in self._changes_of(request):
                self._at(time, partial(self._change, request, change))
        for booking in self._p.bookings:
            if booking.at:
                self._at(booking.at, partial(self._book, booking))

    def _changes_of(self, request: DeskRequest) -> Iterator[tuple[str, str]]:
        """Yield the times and names of the changes of a Task that is still requested."""
        named = {"withdrawn": request.withdrawn, "urgent now": request.hurried, "reworded": request.reworded}
        return ((time, name) for name, time in named.items() if time)

    def _at(self, time: str, event: _Event, *, shows: bool = False) -> None:
        """Plan an event.

        Args:
            time: Time of the event.
            event: Function that writes.
            shows: Whether the event brings work to the desk. An agent without work waits for such events.
        """
        heapq.heappush(self._events, (parse_instant(time), next(self._order), shows, event))

    def _pass(self, time: timedelta) -> None:
        """Let time pass, and let everything happen that is planned until then."""
        until = self._now + time
        while self._events and self._events[0][0] <= until:
            self._next()
        self._now = until

    def _wait(self) -> bool:
        """Let time pass until work arrives; return whether any does."""
        if not any(shows for _, _, shows, _ in self._events):
            return False
        while not self._next():
            pass
        return True

    def _next(self) -> bool:
        """Let the next event happen; return whether it brings work."""
        time, _, shows, event = heapq.heappop(self._events)
        self._now = max(self._now, time)
        event()
        return shows

    def _send(self, event: str, action: Action) -> Response | None:
        request = to_request(action, self._session.base_url)
        assert not isinstance(request, Invalid), request.reason
        response = self._handle(request)
        self._timeline.append(TimedRequest(LoggedRequest(action, request, response), self._now, event))
        return response

    def _task(self, request: DeskRequest, status: str) -> Resource | None:
        """Return the Task of a request if it has a status."""
        task = self._session.read("Task", request.id)
        return task if status_of(task) == status else None

    def _arrive(self, request: DeskRequest) -> None:
        self._send(
            "request", Put(f"/Task/{request.id}", task_resource(request, self._titles[request.kind], self._p.desk))
        )
        self._open.add(request.id)

    def _change(self, request: DeskRequest, change: str) -> None:
        """Change a Task, unless it has changed in this way already. While it is not requested, the change waits."""
        if (request.id, change) in self._changed:
            return
        if (task := self._task(request, "requested")) is None:
            self._delayed.setdefault(request.id, []).append(change)
            return
        self._changed.add((request.id, change))
        new: Resource = {"status": "cancelled"}
        if change != "withdrawn":
            new = urgent_elements(request) if change == "urgent now" else {"description": request.text}
        self._send(change, Put(f"/Task/{request.id}", _written(task) | new))
        if change == "withdrawn":
            self._open.discard(request.id)

    def _book(self, booking: ColleagueBooking) -> None:
        for slot, practitioner in booking.choices:
            stored = self._session.read("Slot", slot.id)
            if status_of(stored) == "free" and stored is not None:
                actors = (f"Patient/{booking.patient}", f"Practitioner/{practitioner}")
                appointment = {
                    "resourceType": "Appointment",
                    "status": "booked",
                    "start": slot.start,
                    "end": slot.end,
                    "slot": [{"reference": f"Slot/{slot.id}"}],
                    "participant": [{"actor": {"reference": actor}, "status": "accepted"} for actor in actors],
                }
                self._send("colleague booked", Post("/Appointment", appointment))
                self._send("colleague booked", Put(f"/Slot/{slot.id}", _written(stored) | {"status": "busy"}))
                return

    def _listen(self, response: Response) -> None:
        """Notice what the agent read of Tasks, did to them, and asked in Communications."""
        self._count_looks(response)
        statuses: dict[str, str] = {}
        for done, left in self._left_by(response):
            if done.resource_type == "Task" and done.id in self._requests:
                statuses[done.id] = status_of(left)
                if statuses[done.id] == "in-progress":
                    self._begin(self._requests[done.id])
            elif done.resource_type == "Communication" and done.effect == "created":
                asked = question_of(left, self._session.base_url) if left else None
                if left and asked and asked[0] in self._requests:
                    self._plan_answer(left, self._requests[asked[0]], asked[1])
        for id, status in statuses.items():
            self._go_on(self._requests[id], status)

    def _left_by(self, response: Response) -> Iterator[tuple[Interaction, Resource | None]]:
        """Yield the writes of a request, each with the version that it left: a Bundle may write a record repeatedly."""
        effects = [
            interaction
            for interaction in response.done
            if interaction.effect and interaction.resource_type in ("Task", "Communication")
        ]
        later = Counter((effect.resource_type, effect.id) for effect in effects)
        states = {key: self._session.versions(*key, count) for key, count in later.items()}
        for effect in effects:
            key = effect.resource_type, effect.id
            later[key] -= 1
            if later[key] < len(states[key]):
                yield effect, states[key][later[key]]

    def _go_on(self, request: DeskRequest, status: str) -> None:
        """Do what depends on the status in which the agent has just left a Task."""
        (self._open.add if status in OPEN else self._open.discard)(request.id)
        for change in self._delayed.pop(request.id, ()):
            self._change(request, change)
        if self._unanswered.get(request.id) == 0:  # all answers are there already: no later one would resume the Task
            self._resume(request)

    def _count_looks(self, response: Response) -> None:
        """Count the responses that show a Task in any form; after some of them, it changes."""
        if b"Task" not in response.content:  # the usual case, and one search instead of one for each request
            return
        for request in self._p.requests:
            if self._looks[request.id] < request.changes_at_look and request.id.encode() in response.content:
                self._looks[request.id] += 1
                if self._looks[request.id] == request.changes_at_look:
                    for _, change in self._changes_of(request):
                        self._at(self._in(request.changes_after), partial(self._change, request, change))

    def _begin(self, request: DeskRequest) -> None:
        """Plan what other people do when a Task is in-progress for the first time."""
        if request.id in self._begun:
            return
        self._begun.add(request.id)
        if request.message_after:
            sent = self._in(request.message_after)
            self._at(sent, partial(self._write_to_desk, request, sent))
        if request.record_update is not None:
            self._at(self._in(request.record_update.after), partial(self._update, request.record_update))
        if request.note:
            self._at(self._in(request.note_after), partial(self._add_note, request))
        for booking in self._p.bookings:
            if booking.task == request.id:
                self._at(self._in(booking.after), partial(self._book, booking))

    def _in(self, seconds: int) -> str:
        return instant(self._now + timedelta(seconds=seconds))

    def _update(self, update: RecordUpdate) -> None:
        self._send("record updated", Put(update.url, update.record))

    def _add_note(self, request: DeskRequest) -> None:
        """Note something in a Task, whatever the agent has done to it since it was in-progress."""
        if (task := self._session.read("Task", request.id)) is not None:
            self._send("note", Put(f"/Task/{request.id}", with_note(_written(task), request.note)))

    def _write_to_desk(self, request: DeskRequest, sent: str) -> None:
        self._send("message", Post("/Communication", message_resource(request, self._p.desk, sent)))

    def _plan_answer(self, question: Resource, request: DeskRequest, code: str) -> None:
        sent = instant(self._now + timedelta(minutes=request.answer_after))
        text = answer_text(request, code)
        self._unanswered[request.id] = self._unanswered.get(request.id, 0) + 1
        self._at(sent, partial(self._reply, question, request, text, sent), shows=True)

    def _reply(self, question: Resource, request: DeskRequest, text: str, sent: str) -> None:
        answer = answer_resource(question, request.id, self._p.desk, text, sent)
        self._send("answer", Post("/Communication", answer))
        self._unanswered[request.id] -= 1
        self._resume(request)

    def _resume(self, request: DeskRequest) -> None:
        """Set the Task of an answered question from on-hold to in-progress."""
        if (task := self._task(request, "on-hold")) is not None:
            self._send("answer", Put(f"/Task/{request.id}", _written(task) | {"status": "in-progress"}))
            self._open.add(request.id)
            self._begin(request)


def _only_looks_for_work(response: Response) -> bool:
    """Whether a request changed nothing, tried to change nothing, and searched for Tasks or found some."""
    if not all(interaction.looks for interaction in response.done):
        return False
    searches = [
        interaction.resource_type
        for interaction in response.done
        if interaction.kind in ("search", "history") and not interaction.id
    ]
    if not searches or "Task" in searches:
        return bool(searches)
    return any(
        returned_resource.startswith("Task/") for returned_resource in ParsedResponse(response).returned_resources
    )


def _written(resource: Resource) -> Resource:
    """Return a resource as a client sends it."""
    return {name: value for name, value in resource.items() if name != "meta"}
