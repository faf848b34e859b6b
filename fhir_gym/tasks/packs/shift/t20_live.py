"""Tasks day-3 and day-4: a stretch of the day at a clinic's desk, simulated while the agent works."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action
from fhir_gym.fhir import FhirSession, World
from fhir_gym.tasks import ADD_NOTHING, Check, Dial, EmptyAnswer, FinishedEpisode, Gold, Simulation, Task
from fhir_gym.tasks.authoring import instant, moment_in_words
from fhir_gym.tasks.grading.tool_usage import prohibited_uses
from fhir_gym.tasks.packs.shift.live.clock import RULE
from fhir_gym.tasks.packs.shift.live.desk_policies import desk_subjects
from fhir_gym.tasks.packs.shift.live.drawing import LiveDrawing
from fhir_gym.tasks.packs.shift.live.due_times import SHORTEST_NOTICE
from fhir_gym.tasks.packs.shift.live.gold import GoldDesk
from fhir_gym.tasks.packs.shift.live.judge import LiveJudge
from fhir_gym.tasks.packs.shift.live.kinds import live_kinds
from fhir_gym.tasks.packs.shift.live.plan import (
    IS_AGREED,
    MESSAGE_IN_TIME,
    NOT_GIVEN,
    TIME_TO_OBJECT,
    UPDATE_IN_TIME,
    WHICH_PATIENT,
    LiveParams,
    LiveSize,
)
from fhir_gym.tasks.packs.shift.live.simulation import LiveSimulation
from fhir_gym.tasks.packs.shift.live.worklist import question_of, task_resource
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOT_ALLOWED, WITHDRAWN
from fhir_gym.tasks.packs.shift.policies import policy_resources, validity_rules
from fhir_gym.types import Json, Resource

_WORKLIST = (
    "Your worklist consists of the Tasks whose owner is {desk} (Organization/{desk_id}). Each Task is one request: its "
    "code names the subject, its description says what is wanted, priority and restriction.period.end say how urgent "
    "it is and until when it must be closed. New Tasks arrive while you work, the last ones by {until}. Some are due "
    "{notice} minutes after their arrival, so look at the worklist often, also during long work. If you search "
    "for Tasks while none of yours is requested or in-progress, the time moves on to the next Task or answer. If none "
    "will come any more, that search finds no Task: then end the shift with FINISH([])."
)
_EVENTS = (
    "You are not alone. Colleagues book appointments on the same server, and while you work on a Task about a patient, "
    "they update the status of the patient's records (results, allergies, diagnoses, procedures, encounters, orders, "
    "drug statements and dispenses). At any time, also just after you have read it, a Task that is still requested may "
    "become more urgent, get another description, or be withdrawn (status cancelled; then change nothing for it).\n\n"
    "Before you work on a Task, set it to in-progress. From then on, nobody else changes the Task, except that "
    "colleagues may add notes (note), which must stay in it. But its requester learns about it and may send a message: "
    "a Communication whose basedOn refers to the Task and whose sender is the requester. The message contains a new "
    "description, which replaces the one in the Task (leave that as it is), or it withdraws the request: then change "
    "nothing for it, and reject the Task with the outcome "
    f'"{WITHDRAWN}". So send your first change for the request at least {TIME_TO_OBJECT.seconds} seconds after you '
    "sent the change to in-progress, and do not close the Task earlier either; otherwise it counts as wrong.\n\n"
    "Your first change for a request is your first write that does part of what it wants. (Changes of the Task itself "
    "and questions do not count.) Records, policies and messages count as they are at the time of this change or, if "
    "you change nothing, at the time at which you close the Task. You may ignore a message that was sent less than "
    f"{MESSAGE_IN_TIME.seconds} seconds before this time, and an update of a patient's record less than "
    f"{UPDATE_IN_TIME.seconds} seconds before it. Ignore what comes after it. All policies are on the server from the "
    "start; some policies and amendments come into force during the shift, when the clock reaches the time in their "
    "texts. For everything else (what has started, what is past, what lies in the future), the present stays {now}."
)
_CLOSING = (
    "Close a Task by an update, and leave its other elements as they are (notes, statusReason, executionPeriod and "
    "lastModified may be added). If you did what was wanted, or answered the "
    f'question: status completed and businessStatus.text "{DONE}"; a question also gets the value in output, with '
    'type.text "answer" and valueString. With every other outcome, also one of a question (such as "no result"): '
    "status rejected, and the outcome in businessStatus.text."
)
_ASKING = (
    "You can ask about a Task: create a Communication with status completed, basedOn (a list with the reference to the "
    f'Task) and reasonCode (such as [{{"text": "{WHICH_PATIENT}"}}]). Some minutes later, a Communication with '
    "the same basedOn answers it. While you wait, you may set the Task to on-hold; when the answer arrives, it becomes "
    "in-progress again. There are two questions:\n"
    f'- "{WHICH_PATIENT}": the description says "{NOT_GIVEN}". If only one patient has the given name and the family '
    "name, it is that one. If there are several, ask.\n"
    f'- "{IS_AGREED}": the requester of the Task is an Organization. Then always ask. If the patient does not agree, '
    f'change nothing for the request: then the outcome is always "{NOT_ALLOWED}".\n'
    "An answer counts only if you read it before your first change for the request."
)
_SCORE = (
    "A Task that is right and in time counts fully, a late one half; a wrong change costs points. A Task is in time if "
    "you send all changes for it, and close it for the last time, before it is due. Urgent Tasks weigh twice, stat "
    "Tasks three times as much as routine ones."
)
_EXTRA_STEPS = 40
"""Steps of a shift of another size beyond its share: even for a few requests, most rules must be read."""


def _dials(size: LiveSize) -> Mapping[str, Dial]:
    """Return the dials of a shift: see docs/shift_live.md."""
    return {
        "minutes": Dial(size.minutes, 10, 720, is_whole=True),
        "load": Dial(1, 0.1, 1.5),
        "policies": Dial(size.documents, 1, 500, is_whole=True),
        "events": Dial(1, 0, 4),
        "asking": Dial(1, 0, 5),
    }


class LiveShift(Task[LiveParams], abstract=True):
    """Handle the requests that arrive at a desk while time passes and other people write.

    Attributes:
        size: How large the shift is.
    """

    size: ClassVar[LiveSize]
    category = "live"
    kind = "action"
    difficulty = 3
    required_tools = (("search",),)
    required_resources = ("Task",)
    prohibited_tools = ("delete",)
    open_lists = frozenset({"Task.note"})
    judges_changes = True
    is_live = True
    answer = EmptyAnswer()
    answer_instructions = "Finish with FINISH([])."
    prompts = (
        "You work at the desk of a clinic.",
        "You are on duty at the desk of our clinic.",
        "The desk is yours for this shift.",
    )

    @override
    def sample(self, rng: random.Random, world: World) -> LiveParams:
        drawn = LiveDrawing(rng, world, self.size, live_kinds())
        return LiveParams(
            scene=drawn.scenes,
            now=instant(drawn.now),
            until=instant(drawn.until),
            desk=drawn.desk,
            desk_name=drawn.desk_name,
            library=drawn.library,
            requests=drawn.requests,
            bookings=drawn.bookings,
            background=(*drawn.organizations, *drawn.namesakes),
        )

    @override
    def setup(self, p: LiveParams, world: World) -> list[Resource]:
        kinds = live_kinds()
        subjects = desk_subjects(kinds, p.scene)
        return [
            *(resource for scene in p.scene.values() for resource in scene.resources()),
            *p.background,
            *policy_resources(p.library, subjects),
            *(
                task_resource(request, kinds[request.kind].title, p.desk)
                for request in p.requests
                if request.arrives <= p.now
            ),
        ]

    @override
    def prompt_values(self, p: LiveParams, world: World) -> Mapping[str, str]:
        return {}

    @override
    def prompt(self, p: LiveParams, world: World, phrasing: int) -> str:
        now, until = moment_in_words(world.now), p.until[11:16]
        desk = {"desk": p.desk_name, "desk_id": p.desk, "until": until, "notice": SHORTEST_NOTICE}
        parts = [
            f"Present: {now}.",
            self.prompts[phrasing],
            _WORKLIST.format_map(desk),
            RULE,
            _EVENTS.format(now=now),
            _ASKING,
            f"The rules for each subject:\n{validity_rules(desk_subjects(live_kinds(), p.scene))}",
            _CLOSING,
            f"Change nothing else, and delete nothing. {ADD_NOTHING}",
            _SCORE,
        ]
        return "\n\n".join(parts)

    @override
    def with_dials(self, key: str, values: Mapping[str, float]) -> LiveShift:
        size = _resized(self.size, values)
        steps = _EXTRA_STEPS + round(self.gold_steps * size.requests / self.size.requests)
        own = {"key": key, "size": size, "dials": _dials(size), "max_steps": steps, "gold_steps": steps}
        shift: LiveShift = type(type(self).__name__, (type(self),), own)()
        return shift

    @override
    def simulate(self, p: LiveParams, session: FhirSession) -> Simulation:
        return LiveSimulation(p, {key: kind.title for key, kind in live_kinds().items()}, session)

    @override
    def gold(self, p: LiveParams) -> Gold:
        yield from GoldDesk(p, live_kinds()).play()

    @override
    def near_misses(self, p: LiveParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        kinds = {f"/Task/{request.id}": request.kind for request in p.requests}
        closed: set[str] = set()
        for number, action in enumerate(gold):
            kind = kinds.get(action.url, "")
            body = json.loads(action.body or "{}") if kind else {}
            if "businessStatus" not in body or kind in closed:
                continue
            closed.add(kind)
            outcome = DONE if body["status"] == "rejected" else live_kinds()[kind].codes[0]
            wrong = {"status": "completed" if outcome == DONE else "rejected", "businessStatus": {"text": outcome}}
            others = {name: value for name, value in body.items() if name != "output"}
            changed = replace(action, body=json.dumps(others | wrong))
            yield f"a wrong outcome ({kind})", [*gold[:number], changed, *gold[number + 1 :]]

    @override
    def is_question(self, resource: Resource) -> bool:
        return resource["resourceType"] == "Communication" and question_of(resource, "") is not None

    @override
    def checks(self, p: LiveParams, end: FinishedEpisode) -> Iterator[Check]:
        yield from self.scored_checks(p, end)[0]

    @override
    def scored_checks(self, p: LiveParams, end: FinishedEpisode) -> tuple[list[Check], float]:
        judge = LiveJudge(p, live_kinds(), end)
        checks = [
            Check(
                name=f"request {number} ({result.request.kind})",
                passed=result.passed,
                expected="withdrawn" if result.withdrawn else result.judgement.expected,
                actual=result.found,
            )
            for number, result in enumerate(judge.results, 1)
        ]
        surplus: list[Json] = [*judge.surplus]
        checks.append(Check(name="nothing else changed", passed=not surplus, expected=[], actual=surplus))
        deleted = any(True for _ in prohibited_uses(end.requests, self.prohibited_tools))
        # Closing the Tasks is the work. A shift that the step limit ends fails, but its score tells how far it came.
        return checks, 0.0 if deleted else judge.score


class LiveLevel3(LiveShift):
    """Two hours at the desk, with about 25 requests.

    Starting state: the records of several kinds of request, each at its own place; 60 policies; the first requests.
    Decoys: those of the kinds; namesakes of patients; policies that are superseded, drafts, about other subjects or not
        yet in force.
    Checks: each request by the rules of its kind, against the state that the agent met; the answers to necessary
    questions were read; the Task is closed in time with the right outcome.
    Light: nothing.
    """

    key = "day-3"
    title = "Two hours at the desk"
    level = 3
    max_steps = gold_steps = 300
    size = LiveSize(
        level=3, requests=25, kinds=7, sweeps=2, minutes=120, waiting=4, bookings=10, documents=60, amendments=5
    )
    dials = _dials(size)


class LiveLevel4(LiveShift):
    """A whole day at the desk, with about 100 requests and 300 policies.

    Starting state: as in day-3, of all kinds.
    Decoys: as in day-3.
    Checks: as in day-3.
    Light: nothing.
    """

    key = "day-4"
    title = "A whole day at the desk"
    level = 4
    max_steps = gold_steps = 1_000
    size = LiveSize(
        level=4, requests=100, kinds=12, sweeps=4, minutes=480, waiting=8, bookings=30, documents=300, amendments=15
    )
    dials = _dials(size)


def _resized(usual: LiveSize, values: Mapping[str, float]) -> LiveSize:
    minutes, events = int(values.get("minutes", usual.minutes)), values.get("events", 1.0)
    factor = values.get("load", 1.0) * minutes / usual.minutes
    requests = max(1, round(usual.requests * factor))
    return replace(
        usual,
        minutes=minutes,
        requests=requests,
        kinds=round(usual.kinds * max(factor, 1.0)),
        sweeps=round(usual.sweeps * min(factor, 1.0)),
        waiting=min(usual.waiting, requests),
        bookings=round(usual.bookings * events * minutes / usual.minutes),
        amendments=round(usual.amendments * events * minutes / usual.minutes),
        documents=int(values.get("policies", usual.documents)),
        events=usual.events * events,
        asking=usual.asking * values.get("asking", 1.0),
    )


TASKS = (LiveLevel3, LiveLevel4)
