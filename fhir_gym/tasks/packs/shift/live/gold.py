"""The reference solution of live shifts: it handles the request that is due first, and looks everything up."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from fhir_gym.actions import Action, Finish, Get, Post
from fhir_gym.tasks import Gold
from fhir_gym.tasks.authoring import has_name, instant, parse_instant
from fhir_gym.tasks.packs.shift.kind import Knowledge, RequestKind, Solution
from fhir_gym.tasks.packs.shift.live.clock import READ, Watch
from fhir_gym.tasks.packs.shift.live.desk_policies import read_rules
from fhir_gym.tasks.packs.shift.live.due_times import LONGEST_STRETCH
from fhir_gym.tasks.packs.shift.live.plan import (
    IS_AGREED,
    NOT_GIVEN,
    TIME_TO_OBJECT,
    WHICH_PATIENT,
    DeskRequest,
    LiveParams,
)
from fhir_gym.tasks.packs.shift.live.worklist import description_in, due_of
from fhir_gym.tasks.packs.shift.lookups import Found, is_refused, search_all, update
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOT_ALLOWED, WITHDRAWN
from fhir_gym.tasks.packs.shift.policies import POLICY_TIME
from fhir_gym.types import Json, Resource

_LOOK_AGAIN = timedelta(minutes=4)
"""Time after which the reference solution looks at the worklist during long work."""


class GoldDesk:
    """The reference solution of one live shift. It knows a request only by the text of its Task.

    Args:
        p: The parameters.
        kinds: The kinds by their keys.
        rank: Function of a Task; the open Task with the lowest value is handled first. By default, questions are asked
            early, and the Task that is due first follows.
    """

    def __init__(
        self, p: LiveParams, kinds: Mapping[str, RequestKind[Any, Any]], rank: Callable[[Resource], Any] | None = None
    ) -> None:
        self._p, self._kinds, self._rank = p, kinds, rank or self._usual_rank
        self._by_text = {request.text: request for request in p.requests}
        self._by_text |= {
            request.first_text: request.model_copy(update={"request": request.first})
            for request in p.requests
            if request.first
        }
        self._asked: dict[str, str] = {}
        self._given: dict[str, Mapping[str, str]] = {}
        self._known: dict[str, dict[str, Any]] = {}
        self._in_progress_since: dict[str, datetime] = {}
        self._watch = Watch(self._now)
        self._looked = self._now
        self._open: list[Resource] = []
        self._messages: dict[str, str] = {}
        self._at_hand: list[DeskRequest] = []

    def play(self) -> Gold:
        """Yield the actions."""
        steps = self._play()
        action = next(steps)
        while action.kind != "FINISH":
            answer = yield action
            self._watch.count(action, answer)
            action = steps.send(answer)
        yield action

    def _play(self) -> Gold:
        while tasks := (yield from self._open_tasks()):
            first, *others = sorted(tasks, key=self._rank)
            task = yield from self._begin(first)
            if task is None:
                continue
            yield from self._begin_next(others)
            yield from self._handle(task)
            self._forget(task)
        yield Finish([])

    def _begin_next(self, others: Sequence[Resource]) -> Generator[Action, Json, None]:
        """Begin the Task after the one at hand: meanwhile, its requester can object, and colleagues update records."""
        if others:
            yield from self._begin(others[0])

    def _forget(self, task: Resource) -> None:
        self._open = [each for each in self._open if each["id"] != task["id"]]

    def _usual_rank(self, task: Resource) -> Any:
        must_ask = NOT_GIVEN in task["description"] or _is_for_organization(task)
        asks_now = must_ask and task["id"] not in self._asked
        return not asks_now, due_of(task), task["id"]

    def _open_tasks(self) -> Found:
        """Return the open Tasks as the last look showed them, or look again."""
        is_fresh = self._open and self._watch.now < self._looked + _LOOK_AGAIN
        return self._open if is_fresh else (yield from self._worklist())

    def _worklist(self) -> Found:
        """Look at the open Tasks and the messages about them."""
        query = {"owner": f"Organization/{self._p.desk}", "status": "requested,in-progress", "_count": "200"}
        resources = yield from search_all("/Task", {**query, "_revinclude": "Communication:based-on"})
        tasks = self._open = [task for task in resources if task["resourceType"] == "Task"]
        messages = (
            message for message in resources if message["resourceType"] == "Communication" and "sender" in message
        )
        self._messages |= {
            message["basedOn"][0]["reference"]: message["payload"][0]["contentString"]
            for message in messages
            if "inResponseTo" not in message
        }
        # If there was nothing to do, the search took until the next Task arrived.
        self._watch.move_to(max((parse_instant(task["authoredOn"]) for task in tasks), default=self._watch.now) + READ)
        self._looked = self._watch.now
        return tasks

    def _begin(self, task: Resource) -> Generator[Action, Json, Resource | None]:
        """Set a Task to in-progress unless it is; return it, or None if somebody has just changed it."""
        if task["status"] != "requested":
            return task
        self._in_progress_since[task["id"]] = self._watch.now
        begun = yield update(task, status="in-progress")
        if is_refused(begun) or not isinstance(begun, dict):
            self._open = []
            return None
        self._open = [begun if each["id"] == task["id"] else each for each in self._open]
        return begun

    def _handle(self, task: Resource) -> Generator[Action, Json, None]:
        """Handle a Task that is in-progress, or ask about it."""
        request = self._by_text[task["description"]]
        told = yield from self._answer_about(task)
        if _is_for_organization(task):
            if not told:
                yield from self._ask(task, IS_AGREED)
                return
            if told.startswith("No"):
                yield from self._close(task, NOT_ALLOWED, is_value=False)
                return
        born = ""
        if NOT_GIVEN in task["description"]:
            born = told.rpartition(" ")[2].rstrip(".") if told else (yield from self._only_birth_date(request))
            if not born:
                yield from self._ask(task, WHICH_PATIENT)
                return
        self._at_hand.append(request)
        outcome = yield from self._work(task, request, born)
        self._at_hand.pop()
        declined = (WITHDRAWN, *self._kinds[request.kind].codes)
        yield from self._close(
            task, outcome, is_value=bool(self._kinds[request.kind].value) and outcome not in declined
        )

    def _work(self, task: Resource, request: DeskRequest, born: str) -> Solution:
        """Do what a request wants unless a message says something else, and return the outcome."""
        yield from self._wait_for_others(task)
        solution, has_decided, heard = self._solve(request, _ask_of(request, born)), False, ""
        answer: Json = None
        while True:
            action, outcome = _next(solution, answer)
            if not has_decided and (action is None or action.kind != "GET"):
                yield from self._look_once_more(task)
                message = self._messages.get(f"Task/{task['id']}", "")
                if message != heard:
                    heard, described = message, description_in(message)
                    if not described:
                        return WITHDRAWN
                    solution, answer = self._solve(request, _ask_of(self._by_text[described], born)), None
                    continue
                has_decided = True
            if action is None:
                return outcome
            answer = yield action
            yield from self._interrupt(task, request)

    def _wait_for_others(self, task: Resource) -> Generator[Action, Json, None]:
        """Look at the worklist until the requester has had enough time to object, and colleagues to update records."""
        while self._watch.now < self._in_progress_since[task["id"]] + TIME_TO_OBJECT:
            yield from self._worklist()

    def _look_once_more(self, task: Resource) -> Generator[Action, Json, None]:
        """Look at the worklist and the messages immediately before the decision about a Task."""
        yield from self._worklist()

    def _interrupt(self, task: Resource, request: DeskRequest) -> Generator[Action, Json, None]:
        """During long work, look at the worklist from time to time, and handle what is due earlier.

        Requests of the same kind wait, because their records may be those of the work at hand.
        """
        if self._kinds[request.kind].minutes <= LONGEST_STRETCH or self._watch.now < self._looked + _LOOK_AGAIN:
            return
        kinds = {each.kind for each in self._at_hand}
        while True:
            tasks = yield from self._worklist()
            others = [each for each in tasks if self._by_text[each["description"]].kind not in kinds]
            first = min(others, key=self._rank, default=None)
            if first is None or self._rank(first) > self._rank(task):
                return
            begun = yield from self._begin(first)
            if begun is not None:
                yield from self._handle(begun)
                self._forget(begun)

    def _solve(self, request: DeskRequest, ask: Any) -> Solution:
        kind = self._kinds[request.kind]
        if request.kind not in self._given:
            values = kind.rule_values(self._p.scene[request.kind])
            self._given[request.kind] = yield from read_rules(kind, values, self._now)
        rule_values = {**self._given[request.kind], POLICY_TIME: instant(self._policy_time)}
        looked_up = self._known.setdefault(request.kind, {})
        return (yield from kind.solve(ask, Knowledge(rule_values, self._now, looked_up)))

    @property
    def _now(self) -> datetime:
        return parse_instant(self._p.now)

    @property
    def _policy_time(self) -> datetime:
        """The moment at which policies must be in force for the request at hand."""
        return self._watch.now

    def _answer_about(self, task: Resource) -> Generator[Action, Json, str]:
        """Return the answer to the question about a Task; an empty text if none was asked."""
        if task["id"] not in self._asked:
            return ""
        communications = yield from search_all("/Communication", {"based-on": f"Task/{task['id']}"})
        answers = [communication for communication in communications if communication.get("inResponseTo")]
        if not answers:
            return ""
        # If there was nothing else to do, the search for Tasks took until the answer came.
        self._watch.move_to(parse_instant(answers[0]["sent"]) + 2 * READ)
        return str(answers[0]["payload"][0]["contentString"])

    def _only_birth_date(self, request: DeskRequest) -> Generator[Action, Json, str]:
        """Return the date of birth of the only patient with a name; an empty text if there are several."""
        patient = request.request.ask.patient
        patients = yield from search_all("/Patient", {"family": patient.family, "given": patient.given})
        born = [each["birthDate"] for each in patients if has_name(each, patient.given, patient.family)]
        return born[0] if len(born) == 1 else ""

    def _ask(self, task: Resource, code: str) -> Generator[Action, Json, None]:
        self._asked[task["id"]] = code
        yield Post(
            "/Communication",
            {
                "resourceType": "Communication",
                "basedOn": [{"reference": f"Task/{task['id']}"}],
                "status": "completed",
                "reasonCode": [{"text": code}],
            },
        )
        yield from self._update_task(task, status="on-hold")

    def _close(self, task: Resource, outcome: str, *, is_value: bool) -> Generator[Action, Json, None]:
        if is_value:
            output: Json = [{"type": {"text": "answer"}, "valueString": outcome}]
            yield from self._update_task(task, status="completed", businessStatus={"text": DONE}, output=output)
        else:
            status = "completed" if outcome == DONE else "rejected"
            yield from self._update_task(task, status=status, businessStatus={"text": outcome})

    def _update_task(self, task: Resource, **changed: Json) -> Generator[Action, Json, None]:
        """Update a Task that is in-progress; if a colleague has added a note since the last look, read it again."""
        seen = next((resource for resource in self._open if resource["id"] == task["id"]), task)
        updated = yield update(seen, **changed)
        if is_refused(updated):
            latest = yield Get(f"/Task/{task['id']}")
            if isinstance(latest, dict) and not is_refused(latest):
                yield update(latest, **changed)


def _is_for_organization(task: Resource) -> bool:
    return str(task["requester"]["reference"]).startswith("Organization/")


def _ask_of(request: DeskRequest, born: str) -> Any:
    """Return the content of a request, with the date of birth if it was not given."""
    ask = request.request.ask
    return ask.model_copy(update={"patient": ask.patient.model_copy(update={"birth_date": born})}) if born else ask


def _next(solution: Solution, answer: Json) -> tuple[Action | None, str]:
    """Return the next action of a solution, or its outcome."""
    try:
        return (next(solution) if answer is None else solution.send(answer)), ""
    except StopIteration as ended:
        return None, str(ended.value)
