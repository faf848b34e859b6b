"""Task 05: enter a surgery plan."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Post
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, FinishedEpisode, equal
from fhir_gym.tasks.authoring import Concept, IdAllocator, concept_checks, reference
from fhir_gym.tasks.grading import ADD_NOTHING, IdAnswer
from fhir_gym.tasks.packs.appointment.patient_scenes import SIX, draw_namesakes
from fhir_gym.tasks.packs.appointment.patient_tasks import CreateTask, PatientCandidate, PatientParams
from fhir_gym.tasks.packs.appointment.surgery import OPERATIONS, SURGICAL, SurgeryOrder, SurgeryScene, on_day
from fhir_gym.types import Json, Resource

_OCCURRENCE = ("occurrenceDateTime", "occurrencePeriod")
_FEWEST = 4
_FIRST_DAY, _LAST_DAY = 3, 200


class EnterSurgeryParams(PatientParams):
    """Parameters of task 05.

    Attributes:
        scene: Patients and orders for their operations.
        what: Code of the operation to enter.
        day: The date of the operation.
    """

    scene: SurgeryScene
    what: Concept
    day: str

    @property
    def decoys(self) -> list[SurgeryOrder]:
        """The patient's orders on file, and the namesakes' orders for the operation to enter."""
        return self.scene.confusable(self.scene.orders, self.patient, self.what)


class UnplannedOperation(PatientCandidate):
    """An operation for which a patient has no active order.

    Attributes:
        what: Code of the operation.
        days: Days on which namesakes have the same operation.
    """

    what: Concept
    days: tuple[str, ...]


class EnterSurgery(CreateTask[EnterSurgeryParams, SurgeryScene, UnplannedOperation]):
    """Enter a surgery plan.

    Starting state: six patients with the same name or one of two names. Each has a revoked order for one of three
        operations, and active orders for one or both of the others. The prompt asks for the operation of the revoked
        order, on a day on which a namesake has the same operation.
    Decoys: the patient's revoked order for the same operation, which a careless agent overwrites; the namesake's active
        order for the same operation and day; the patient's orders for other operations.
    Checks: the agent created exactly one ServiceRequest. It has the right subject, code, display and day, status active
        and intent order, but no doNotPerform. The answer is its id.
    Light: the agent created a ServiceRequest with a status, an intent, a subject, a code and an occurrence.
    Differs from FHIR-AgentEval: the prompt states code, code system, status and intent; the original checked the code
        but did not state it. A dateTime or a Period on the right day is accepted. Intent, code system and answer are
        checked.
    """

    key = "05"
    title = "Enter a surgery plan"
    category = "Surgery & Test Orders"
    difficulty = 2
    required_tools = (("create",), ("read", "update"), ("search", "create"))
    required_resources = ("ServiceRequest",)
    creates = "ServiceRequest"
    called = "order"
    prompts = (
        "Please record a confirmed surgery plan for {patient} (Patient/{id}): {display}, SNOMED CT code {code}, on "
        "{day}.",
        "The surgeon has confirmed an operation. Please enter the surgery plan.\n- Patient: {patient}, Patient/{id}\n"
        "- Operation: {display} (SNOMED CT code {code})\n- Date: {day}",
        "{patient} (Patient/{id}) has a confirmed operation on {day}. Operation: {display}, SNOMED CT code {code}. "
        "Please enter the surgery plan.",
    )
    brief = (
        "Please enter an active surgery order for {patient} (Patient/{id}): {display} (SNOMED CT {code}), on {day}. "
        'Finish with FINISH(["<service request id>"]).'
    )
    answer_instructions = (
        "A confirmed surgery plan is a ServiceRequest with status active and intent order, the patient as its subject, "
        "the operation's code and its display in the system http://snomed.info/sct, and the date as its occurrence. "
        f"Create a new one; do not reuse or change an existing record. {ADD_NOTHING} "
        'Finish with FINISH(["<id>"]), where <id> is the id of the new ServiceRequest.'
    )
    answer = IdAnswer(("ServiceRequest",))
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "ServiceRequest": ("status", "intent", "code", "subject", *_OCCURRENCE)
    }
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "ServiceRequest": {"category": [SURGICAL.concept], "priority": "routine", "doNotPerform": False}
    }

    @override
    def draw_scene(self, rng: random.Random, world: World) -> SurgeryScene:
        ids, today = IdAllocator(rng, world), world.now.date()
        people = draw_namesakes(rng, world, ids, rng.choice(SIX))
        common, orders = rng.sample(OPERATIONS, 3), []
        for person in people:
            operations = rng.sample(common, rng.choice((2, 3)))
            days = rng.sample(range(_FIRST_DAY, _LAST_DAY), len(operations))
            for number, (what, ahead) in enumerate(zip(operations, days, strict=True)):
                order = SurgeryOrder(
                    id=ids.new("ServiceRequest"),
                    patient=person.id,
                    category=SURGICAL,
                    what=what,
                    status="active" if number else "revoked",
                    when=(today + timedelta(days=ahead)).isoformat(),
                )
                orders.append(order)
        return SurgeryScene(patients=people, orders=tuple(orders), today=today.isoformat())

    @override
    def candidates(self, scene: SurgeryScene) -> dict[str, list[UnplannedOperation]]:
        names = {person.id: person.name for person in scene.patients}
        days: dict[tuple[str, str], list[str]] = {}
        for order in scene.orders:
            if order.status == "active":
                days.setdefault((names[order.patient], order.what.code), []).append(order.when)
        missing = []
        for order in scene.orders:
            others = [when for when in days.get((names[order.patient], order.what.code), ()) if when != order.when]
            if order.status == "revoked" and others:
                missing.append(UnplannedOperation(patient=order.patient, what=order.what, days=tuple(others)))
        return {"": missing} if len(missing) >= _FEWEST else {}

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: SurgeryScene, chosen: UnplannedOperation
    ) -> EnterSurgeryParams:
        patient = scene.patient(chosen.patient)
        return EnterSurgeryParams(scene=scene, patient=patient, what=chosen.what, day=rng.choice(chosen.days))

    @override
    def prompt_values(self, p: EnterSurgeryParams, world: World) -> dict[str, str]:
        return {**super().prompt_values(p, world), "display": p.what.display, "code": p.what.code, "day": p.day}

    @override
    def new_record(self, p: EnterSurgeryParams) -> Resource:
        return {
            "resourceType": "ServiceRequest",
            "status": "active",
            "intent": "order",
            "code": p.what.concept,
            "subject": reference("Patient", p.patient.id),
            "occurrenceDateTime": p.day,
        }

    @override
    def near_misses(self, p: EnterSurgeryParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        body, undated = self.new_record(p), self._undated(p)
        other = next(decoy.what for decoy in p.decoys if decoy.what != p.what)
        next_day = (date.fromisoformat(p.day) + timedelta(days=1)).isoformat()
        bodies = {
            "an order not to operate": {**body, "doNotPerform": True},
            "two operations in one code": {**body, "code": {"coding": [p.what.coding, other.coding]}},
            "the month only": {**body, "occurrenceDateTime": p.day[:7]},
            "a period without end": {**undated, "occurrencePeriod": {"start": p.day}},
            "a period of two days": {**undated, "occurrencePeriod": {"start": p.day, "end": next_day}},
        }
        for name, wrong in bodies.items():
            yield name, [Post("/ServiceRequest", wrong), gold[-1]]
        yield from self.decoy_misses(p, gold, (decoy.id for decoy in p.decoys))

    @override
    def equivalents(self, p: EnterSurgeryParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        body, undated = self.new_record(p), self._undated(p)
        bare = {"system": p.what.system, "code": p.what.code}
        before = (date.fromisoformat(p.day) - timedelta(days=1)).isoformat()
        start, end = f"{p.day}T08:00:00Z", f"{p.day}T11:30:00Z"
        bodies: dict[str, Resource] = {
            "an instant of the day": {**body, "occurrenceDateTime": start},
            "an instant of the day, in another zone": {**body, "occurrenceDateTime": f"{p.day}T10:00:00+02:00"},
            "an instant whose local day is another": {**body, "occurrenceDateTime": f"{before}T20:00:00-05:00"},
            "a period of the day": {**undated, "occurrencePeriod": {"start": start, "end": end}},
            "the day as period": {**undated, "occurrencePeriod": {"start": p.day, "end": p.day}},
            "display as text": {**body, "code": {"text": p.what.display, "coding": [bare]}},
        }
        return self.put_bodies(bodies)

    def _undated(self, p: EnterSurgeryParams) -> Resource:
        return {name: value for name, value in self.new_record(p).items() if name != "occurrenceDateTime"}

    @override
    def record_checks(self, p: EnterSurgeryParams, record: Resource, end: FinishedEpisode) -> Iterator[Check]:
        when = {name: record[name] for name in _OCCURRENCE if name in record}
        required = {"subject": "subject" in record, "code": "code" in record, "occurrence": bool(when)}
        for name, there in required.items():
            yield Check(name=f"has {name}", passed=not record or there, level="exists")
        yield equal("status", record.get("status"), "active")
        yield equal("intent", record.get("intent"), "order")
        yield equal("subject", end.refers(record.get("subject")), f"Patient/{p.patient.id}")
        yield from concept_checks("operation", record.get("code"), p.what)
        yield Check(name="day", passed=on_day(record, p.day), expected=p.day, actual=when)


TASKS = (EnterSurgery,)
