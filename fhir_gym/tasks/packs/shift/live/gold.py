"""The reference solution of live shifts: it handles the request that is due first, and looks everything up."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from typing import Any

from fhir_gym.actions import Action, Finish, Post
from fhir_gym.tasks import Gold
from fhir_gym.tasks.authoring import has_name, instant, parse_instant
from fhir_gym.tasks.packs.shift.kind import RequestKind, Solution
from fhir_gym.tasks.packs.shift.live.clock import READ, Watch
from fhir_gym.tasks.packs.shift.live.desk_policies import read_rules
from fhir_gym.tasks.packs.shift.live.plan import IS_AGREED, NOT_GIVEN, WHICH_PATIENT, DeskRequest, LiveParams
from fhir_gym.tasks.packs.shift.live.worklist import due_of
from fhir_gym.tasks.packs.shift.lookups import Found, is_refused, search_all, update
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOT_ALLOWED
from fhir_gym.tasks.packs.shift.policies import POLICY_TIME
from fhir_gym.types import Json, Resource

_Steps = Generator[Action, Json, bool]


class GoldDesk:
    """The reference solution of one live shift. It knows a request only by the text of its Task.

    Args:
        p: The parameters.
        kinds: The kinds by their keys.
        rank: Function of a Task; the open Task with the lowest value is handled first.
    """

    def __init__(
        self,
        p: LiveParams,
        kinds: Mapping[str, RequestKind[Any, Any]],
        rank: Callable[[Resource], Any] = lambda task: (due_of(task), task["id"]),
    ) -> None:
        self._p, self._kinds, self._rank = p, kinds, rank
        self._by_text = {one.text: one for one in p.requests}
        self._by_text |= {
            one.first_text: one.model_copy(update={"request": one.first}) for one in p.requests if one.first
        }
        self._asked: dict[str, str] = {}
        self._given: dict[str, Mapping[str, str]] = {}
        self._watch = Watch(self._now)

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
        while tasks := (yield from self._worklist()):
            yield from self._handle(min(tasks, key=self._rank))
        yield Finish([])

    def _worklist(self) -> Found:
        query = {"owner": f"Organization/{self._p.desk}", "status": "requested,in-progress", "_count": "200"}
        tasks = yield from search_all("/Task", query)
        # If there was nothing to do, the search took until the next Task arrived.
        self._watch.move_to(max((parse_instant(one["authoredOn"]) for one in tasks), default=self._watch.now) + READ)
        return tasks

    def _handle(self, task: Resource) -> Generator[Action, Json, None]:
        one = self._by_text[task["description"]]
        if task["status"] == "requested":
            begun = yield update(task, status="in-progress")
            if is_refused(begun) or not isinstance(begun, dict):
                return  # somebody has just changed the Task
            task = begun
        told = yield from self._answer_about(task)
        ask = one.request.ask
        if task["requester"]["reference"].startswith("Organization/"):
            if not told:
                yield from self._ask(task, IS_AGREED)
                return
            if told.startswith("No"):
                yield from _close(task, NOT_ALLOWED, is_value=False)
                return
        if NOT_GIVEN in task["description"]:
            born = told.rpartition(" ")[2].rstrip(".") if told else (yield from self._only_birth_date(one))
            if not born:
                yield from self._ask(task, WHICH_PATIENT)
                return
            ask = ask.model_copy(update={"patient": ask.patient.model_copy(update={"birth_date": born})})
        kind = self._kinds[one.kind]
        outcome = yield from self._solve(one, ask)
        yield from _close(task, outcome, is_value=bool(kind.value) and outcome not in kind.codes)

    def _solve(self, one: DeskRequest, ask: Any) -> Solution:
        """Do what a request wants, and return the outcome."""
        kind = self._kinds[one.kind]
        if one.kind not in self._given:
            values = kind.rule_values(self._p.scene[one.kind])
            self._given[one.kind] = yield from read_rules(kind, values, self._now)
        given = {**self._given[one.kind], POLICY_TIME: instant(self._policy_time)}
        return (yield from kind.solve(ask, given, self._now, {}))

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
        found = yield from search_all("/Communication", {"based-on": f"Task/{task['id']}"})
        answers = [one for one in found if one.get("inResponseTo")]
        if not answers:
            return ""
        # If there was nothing else to do, the search for Tasks took until the answer came.
        self._watch.move_to(parse_instant(answers[0]["sent"]) + 2 * READ)
        return str(answers[0]["payload"][0]["contentString"])

    def _only_birth_date(self, one: DeskRequest) -> Generator[Action, Json, str]:
        """Return the date of birth of the only patient with a name; an empty text if there are several."""
        patient = one.request.ask.patient
        found = yield from search_all("/Patient", {"family": patient.family, "given": patient.given})
        born = [each["birthDate"] for each in found if has_name(each, patient.given, patient.family)]
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
        yield update(task, status="on-hold")


def _close(task: Resource, outcome: str, *, is_value: bool) -> Generator[Action, Json, None]:
    if is_value:
        output: Json = [{"type": {"text": "answer"}, "valueString": outcome}]
        yield update(task, status="completed", businessStatus={"text": DONE}, output=output)
    else:
        status = "completed" if outcome == DONE else "rejected"
        yield update(task, status=status, businessStatus={"text": outcome})
