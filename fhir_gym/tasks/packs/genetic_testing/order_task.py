"""Base classes of the genetic testing tasks: tasks about a patient, and tasks about a patient's draft order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Generic, TypeVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Put
from fhir_gym.fhir import World
from fhir_gym.tasks import Candidate, Check, ExpectedChange, FinishedEpisode, SceneParams, SceneTask, equal
from fhir_gym.tasks.authoring import Person
from fhir_gym.tasks.grading import IdAnswer
from fhir_gym.tasks.packs.genetic_testing.orders import (
    TEST_SYSTEM,
    GeneticOrder,
    attach_references,
    attachment_checks,
    order_prompt_values,
    order_request,
)
from fhir_gym.tasks.packs.genetic_testing.reports import GeneticReport
from fhir_gym.tasks.packs.genetic_testing.scenes import GeneticScene, order_candidates
from fhir_gym.types import Resource

ORDER_INSTRUCTIONS = (
    "The genetic test order is the patient's ServiceRequest with status draft and the code named above in the system "
    f"{TEST_SYSTEM}. To attach a record, add a reference to it to the order's supportingInfo. Keep the existing "
    "entries, list no record twice, and leave everything else as it is."
)
"""The sentences that the prompts of tasks 21a, 21b and 21c share."""


class OrderPatientParams(SceneParams):
    """Parameters of a task about a patient.

    Attributes:
        scene: All records that the task adds to the server.
    """

    scene: GeneticScene
    person: Person


class OrderParams(OrderPatientParams):
    """Parameters of tasks 21a, 21b and 21c.

    Attributes:
        order: The order to which the agent should attach records.
    """

    order: GeneticOrder

    @property
    def others(self) -> tuple[GeneticOrder, ...]:
        """The orders that are easily confused with the right order."""
        return self.scene.confusable_with(self.order)


class AttachParams(OrderParams):
    """Parameters of tasks 21a and 21b.

    Attributes:
        wanted: The reports that the agent should attach; some may be attached already.
    """

    wanted: tuple[GeneticReport, ...]

    @property
    def decoys(self) -> list[GeneticReport]:
        """The reports that the agent must not attach."""
        return [report for report in self.scene.reports if report not in self.wanted]


P = TypeVar("P", bound=SceneParams)
C = TypeVar("C", bound=Candidate)
B = TypeVar("B", bound=OrderParams)
A = TypeVar("A", bound=AttachParams)


class GeneticTask(SceneTask[P, GeneticScene, C], Generic[P, C]):
    """A task that changes the records of one of several similar patients."""

    category = "Surgery & Test Orders"
    difficulty = 2
    kind = "action"
    prohibited_tools: ClassVar[tuple[str, ...]] = ("delete",)
    fewest = 5

    @override
    def scene_resources(self, scene: GeneticScene, world: World) -> list[Resource]:
        return scene.resources()


class OrderTask(GeneticTask[B, GeneticOrder], Generic[B]):
    """A task that attaches records to a patient's draft order."""

    answer = IdAnswer(("ServiceRequest",))
    gold_steps = 5

    @override
    def candidates(self, scene: GeneticScene) -> dict[str, list[GeneticOrder]]:
        return {"": order_candidates(scene)}

    @override
    def prompt_values(self, p: B, world: World) -> dict[str, str]:
        return order_prompt_values(p.person, p.order.test)


class AttachReports(OrderTask[A], Generic[A]):
    """A task that attaches some of a patient's reports to an order."""

    required_tools = (("search", "search", "search", "update"),)
    required_resources = ("Patient", "DiagnosticReport", "ServiceRequest")
    prohibited_tools = ("create", "delete")

    @override
    def near_misses(self, p: A, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        order, finish = order_request(p.order), gold[-1]
        bare = {name: value for name, value in order.items() if name != "supportingInfo"}
        attached = [report.reference for report in p.wanted]
        there = [*p.order.attached, *(reference for reference in attached if reference not in p.order.attached)]
        wrong = {f"attaches {decoy.reference} too": [*there, decoy.reference] for decoy in p.decoys}
        for lost in there:
            wrong[f"without {lost}"] = [reference for reference in there if reference != lost]
            wrong[f"{lost} twice"] = [*there, lost]
        for name, references in wrong.items():
            listed = [{"reference": reference} for reference in references]
            yield name, [Put(f"/ServiceRequest/{order['id']}", {**bare, "supportingInfo": listed}), finish]
        for other in p.others:
            changed = attach_references(order_request(other), attached or [decoy.reference for decoy in p.decoys])
            for answer in (other.id, p.order.id):
                yield f"attaches to {other.id}, answers {answer}", [changed, Finish([answer])]

    @override
    def expected_changes(self, p: A) -> tuple[ExpectedChange, ...]:
        return (ExpectedChange("updated", "ServiceRequest", p.order.id),) if p.wanted else ()

    @override
    def required_records(self, p: A) -> tuple[str, ...]:
        records = (f"Patient/{p.person.id}", f"ServiceRequest/{p.order.id}")
        return (*records, *(report.reference for report in p.wanted))

    @override
    def checks(self, p: A, end: FinishedEpisode) -> Iterator[Check]:
        if p.wanted:
            yield from attachment_checks(end, p.order, [report.reference for report in p.wanted])
        (answer,) = end.answer_ids("ServiceRequest")
        yield equal("answer", answer, p.order.id)
