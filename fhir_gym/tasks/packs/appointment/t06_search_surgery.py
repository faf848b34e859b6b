"""Tasks 06a and 06b: look up a surgery plan that is on file (06a) or not (06b), with the same prompts and scenes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date, timedelta

from typing_extensions import override

from fhir_gym.actions import Finish, Get
from fhir_gym.fhir import World
from fhir_gym.tasks import Gold
from fhir_gym.tasks.authoring import Concept, IdAllocator, entries
from fhir_gym.tasks.grading import IdAnswer
from fhir_gym.tasks.packs.appointment.patient_scenes import draw_namesakes
from fhir_gym.tasks.packs.appointment.patient_tasks import ABSENT, PRESENT, LookupTask, PatientCandidate, PatientParams
from fhir_gym.tasks.packs.appointment.surgery import (
    IMAGING,
    OPERATIONS,
    SCANS,
    SURGICAL,
    SurgeryOrder,
    SurgeryScene,
    service_request,
)
from fhir_gym.types import Resource

_PLAN, _INACTIVE, _SCAN = "plan", "inactive", "scan"
_INACTIVE_STATUSES = ("revoked", "draft", "on-hold", "entered-in-error")
_TIMES = tuple(f"T{hour:02}:{minute}:00Z" for hour in range(7, 17) for minute in ("00", "30"))
_NAMESAKES = 6
"""Number of patients; all of them have the same name."""
_MAX_DAYS = 60


class SearchSurgeryParams(PatientParams):
    """Parameters of tasks 06a and 06b.

    Attributes:
        scene: Patients and orders for them.
        days: Length in days of the window, which starts today.
        plan: The plan within the window; in task 06b it is not on file.
    """

    scene: SurgeryScene
    days: int
    plan: SurgeryOrder


class PlanWindow(PatientCandidate):
    """Windows in which a patient has one surgery plan, or in which a patient has no surgery plan.

    Attributes:
        shortest: Length of the shortest window in which every condition of the prompt matters.
        longest: Length of the longest window in which every condition of the prompt matters.
    """

    shortest: int
    longest: int


class _SearchSurgery(LookupTask[SearchSurgeryParams, SurgeryScene, PlanWindow]):
    category = "Surgery & Test Orders"
    required_resources = ("ServiceRequest",)
    prompts = (
        "Does {patient} (Patient/{id}) have a surgery plan within the next {days} days?",
        "Before we call {patient} (Patient/{id}), please check whether a surgery is planned for this patient in the "
        "next {days} days.",
        "Is an operation coming up for {patient} (Patient/{id})? Please look at the next {days} days only.",
    )
    brief = (
        "Which active surgery order of {patient} (Patient/{id}) is for one of the {days} days that begin with today? "
        'Finish with FINISH(["<service request id>"]), or with FINISH([]) if there is none.'
    )
    answer_instructions = (
        "A surgery plan is a ServiceRequest with status active and category 387713003 (Surgical procedure) in the "
        "system http://snomed.info/sct. For the next N days, a plan counts if its occurrence is on or after today's "
        "date and before the date N days later. All dates are in UTC. "
        'Finish with FINISH(["<id>"]), where <id> is the id of that ServiceRequest, or with FINISH([]) if there is '
        "none. Do not change any records."
    )
    answer = IdAnswer(("ServiceRequest",), or_empty=True)

    @override
    def draw_scene(self, rng: random.Random, world: World) -> SurgeryScene:
        ids, today = IdAllocator(rng, world), world.now.date()
        people = draw_namesakes(rng, world, ids, (_NAMESAKES,))
        on_today = rng.choice(people)
        orders = [
            _order(rng, ids, person.id, today + timedelta(days=ahead), status, category)
            for person in people
            for ahead, status, category in _agenda(rng, 0 if person == on_today else rng.randrange(3, 35))
        ]
        return SurgeryScene(patients=people, orders=tuple(orders), today=today.isoformat())

    @override
    def candidates(self, scene: SurgeryScene) -> dict[str, list[PlanWindow]]:
        today = date.fromisoformat(scene.today).toordinal()
        coming: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for order in scene.orders:
            ahead = date.fromisoformat(order.when[:10]).toordinal() - today
            if ahead >= 0:
                coming.setdefault((order.patient, _kind(order)), []).append((ahead, order.id))
        first = {key: min(days) for key, days in coming.items()}
        present, absent = [], []
        for person in scene.patients:
            # Each window must contain a namesake's surgery plan, and orders of the patient that are not surgery plans.
            namesakes_first = min(first[id, _PLAN][0] for id in scene.namesakes(person))
            shortest = 1 + max(namesakes_first, first[person.id, _INACTIVE][0], first[person.id, _SCAN][0])
            (until, plan), (later, _), *_ = sorted(coming[person.id, _PLAN])
            if shortest <= until:
                absent.append(PlanWindow(patient=person.id, shortest=shortest, longest=until))
            shortest = max(shortest, until + 1)
            if shortest <= later:
                record = f"ServiceRequest/{plan}"
                present.append(PlanWindow(patient=person.id, record=record, shortest=shortest, longest=later))
        return self.both_outcomes(present, absent)

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: SurgeryScene, chosen: PlanWindow
    ) -> SearchSurgeryParams:
        # The window often ends on the day of the next plan, or one day after the last plan that the window contains.
        days = rng.choice((chosen.shortest, chosen.longest, rng.randint(chosen.shortest, chosen.longest)))
        orders = {order.id: order for order in scene.orders}
        if chosen.record:
            plan = orders[chosen.record_id]
        else:
            ids, today = IdAllocator(rng, world), date.fromisoformat(scene.today)
            others = {order.when[:10] for order in scene.orders if _kind(order) == _PLAN}
            within = [day for day in (today + timedelta(days=ahead) for ahead in range(days)) if str(day) in others]
            day = rng.choice(within or [today + timedelta(days=rng.randrange(days))])
            drawn = (_order(rng, ids, chosen.patient, day, "active", SURGICAL) for _ in range(len(orders) + 1))
            plan = next(order for order in drawn if order.id not in orders)
        return SearchSurgeryParams(scene=scene, patient=scene.patient(chosen.patient), days=days, plan=plan)

    @override
    def prompt_values(self, p: SearchSurgeryParams, world: World) -> dict[str, str]:
        return {**super().prompt_values(p, world), "days": str(p.days)}

    @override
    def gold(self, p: SearchSurgeryParams) -> Gold:
        end = date.fromisoformat(p.scene.today) + timedelta(days=p.days)
        query = {
            "subject": f"Patient/{p.patient.id}",
            "category": SURGICAL.token,
            "status": "active",
            "occurrence": [f"ge{p.scene.today}", f"lt{end}"],
        }
        bundle = yield Get("/ServiceRequest", query)
        yield Finish([order["id"] for order in entries(bundle)])

    @override
    def siblings(self, p: SearchSurgeryParams) -> Iterator[str]:
        end = date.fromisoformat(p.scene.today) + timedelta(days=p.days)
        for order in p.scene.orders:
            if _kind(order) == _PLAN and p.scene.today <= order.when[:10] < str(end):
                yield f"ServiceRequest/{order.id}"

    @override
    def record(self, p: SearchSurgeryParams) -> Resource:
        return service_request(p.plan)


def _agenda(rng: random.Random, first: int) -> list[tuple[int, str, Concept]]:
    """Draw the days ahead, the status and the category of each of a patient's orders.

    One or two inactive orders and an imaging order come before the next surgery plan. If the next plan is today, they
    come before the plan after that.

    Args:
        rng: Random generator.
        first: Number of days from today to the next surgery plan.
    """
    second = first + rng.randrange(3, 30)
    sooner = first or second
    agenda = [(ahead, "active", SURGICAL) for ahead in (-rng.choice((1, rng.randrange(2, _MAX_DAYS))), first, second)]
    agenda += [
        (rng.randrange(sooner), rng.choice(_INACTIVE_STATUSES), SURGICAL),
        (rng.randrange(sooner), "active", IMAGING),
    ]
    if rng.random() < 0.5:
        return [*agenda, (rng.randrange(sooner), rng.choice(_INACTIVE_STATUSES), SURGICAL)]
    past_or_later = rng.choice((-rng.randrange(1, _MAX_DAYS), second + rng.randrange(1, _MAX_DAYS)))
    return [*agenda, (past_or_later, "active", SURGICAL)]


def _order(
    rng: random.Random, ids: IdAllocator, patient: str, day: date, status: str, category: Concept
) -> SurgeryOrder:
    return SurgeryOrder(
        id=ids.new("ServiceRequest"),
        patient=patient,
        category=category,
        what=rng.choice(SCANS if category is IMAGING else OPERATIONS),
        status=status,
        when=f"{day}{rng.choice(('', rng.choice(_TIMES)))}",
    )


def _kind(order: SurgeryOrder) -> str:
    if order.category.code != SURGICAL.code:
        return _SCAN
    return _PLAN if order.status == "active" else _INACTIVE


class SearchSurgeryPresent(_SearchSurgery):
    """Find a patient's surgery plan within the next days.

    Starting state: six patients with the same name. Each has six orders, including past and future surgery plans. The
        window of the prompt contains one plan of the patient, often on its first or last day.
    Decoys: the patient has past plans, often on the day before the window, and later plans, often on the day after the
        window; a search without dates or with wrong bounds finds them. Within the window there are inactive orders, an
        imaging order and a namesake's plan.
    Checks: the answer is the plan.
    Light: none.
    Differs from FHIR-AgentEval: the prompt says what a surgery plan is and states the bounds of the window. Prompt and
        checks use the same clock. There are decoys and random ids; in the original, the same id was always the right
        answer.
    """

    key = "06a"
    title = "Search a surgery plan, present"
    strata = (PRESENT,)


class SearchSurgeryAbsent(_SearchSurgery):
    """Find out that a patient has no surgery plan within the next days.

    Starting state: as in 06a, but the patient's next surgery plan is after the window, often immediately after it.
    Decoys: as in 06a.
    Checks: the answer is ``[]``, and the agent made a request that would return any plan in the window.
    Light: none.
    Differs from FHIR-AgentEval: an empty answer without a look-up fails, and the prompt states the form of the empty
        answer.
    """

    key = "06b"
    title = "Search a surgery plan, absent"
    strata = (ABSENT,)


TASKS = (SearchSurgeryPresent, SearchSurgeryAbsent)
