"""What tasks 21a and 21b share: reports of a patient are attached to a draft order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from fhir_gym.actions import Action, Finish, Put
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Ids as IdsAnswer
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.genetic_testing.orders import (
    TEST_SYSTEM,
    Case,
    attaching,
    attachment_checks,
    case_words,
    on_file,
    order_request,
)
from fhir_gym.tasks.genetic_testing.reports import Report, diagnostic_report
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.task import Task, Touch
from fhir_gym.types import Resource

__all__ = ["DEFINITIONS", "AttachParams", "AttachReports"]

DEFINITIONS = (
    "The genetic test order is the patient's ServiceRequest with status draft whose code is the one named above, in "
    f"the system {TEST_SYSTEM}. To attach is to add a reference to the order's supportingInfo; keep the entries that "
    "are there, list none twice, and leave everything else as it is."
)
"""What the prompts of tasks 21 say about orders."""


class AttachParams(Params):
    """Values of tasks 21a and 21b.

    Attributes:
        case: The patient and the orders.
        wanted: Reports to attach; the order may have some of them already.
        decoys: Reports not to attach.
    """

    case: Case
    wanted: tuple[Report, ...]
    decoys: tuple[Report, ...]


A = TypeVar("A", bound=AttachParams)


class AttachReports(Task[A], Generic[A]):
    """What both tasks share."""

    category = "Surgery & Test Orders"
    difficulty = 2
    kind = "action"
    required_tools = (("search", "search", "search", "update"),)
    required_resources = ("Patient", "DiagnosticReport", "ServiceRequest")
    prohibited_tools = ("create", "delete")
    answer = IdsAnswer(("ServiceRequest",))
    gold_steps = 5

    def setup(self, p: A, world: World) -> list[Resource]:
        """The case and the reports."""
        return [*on_file(p.case), *map(diagnostic_report, (*p.wanted, *p.decoys))]

    def words(self, p: A, world: World) -> dict[str, str]:
        """The patient and the test."""
        return case_words(p.case)

    def near_misses(self, p: A, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """One report too many or too few, entries lost or doubled, another order."""
        order, finish = order_request(p.case.order), gold[-1]
        bare = {name: value for name, value in order.items() if name != "supportingInfo"}
        wanted = [report.reference for report in p.wanted]
        there = [*p.case.order.attached, *(one for one in wanted if one not in p.case.order.attached)]
        wrong = {f"attaches {one.reference} too": [*there, one.reference] for one in p.decoys}
        for lost in there:
            wrong[f"without {lost}"] = [one for one in there if one != lost]
            wrong[f"{lost} twice"] = [*there, lost]
        for name, references in wrong.items():
            listed = [{"reference": one} for one in references]
            yield name, [Put(f"/ServiceRequest/{order['id']}", {**bare, "supportingInfo": listed}), finish]
        for other in p.case.others:
            changed = attaching(order_request(other), wanted or [one.reference for one in p.decoys])
            for answer in (other.id, p.case.order.id):
                yield f"attaches to {other.id}, answers {answer}", [changed, Finish([answer])]

    def touches(self, p: A) -> tuple[Touch, ...]:
        """The order, unless there is nothing to attach."""
        return (Touch("updated", "ServiceRequest", p.case.order.id),) if p.wanted else ()

    def rests_on(self, p: A) -> tuple[str, ...]:
        """The patient, the order, the reports."""
        records = (f"Patient/{p.case.person.id}", f"ServiceRequest/{p.case.order.id}")
        return (*records, *(report.reference for report in p.wanted))

    def checks(self, p: A, end: EndState) -> Iterator[Check]:
        """The order and the answer."""
        if p.wanted:
            yield from attachment_checks(end, p.case.order, [report.reference for report in p.wanted])
        (answer,) = end.answer_ids("ServiceRequest")
        yield equal("answer", answer, p.case.order.id)
