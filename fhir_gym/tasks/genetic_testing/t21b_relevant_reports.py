"""Task 21b: add only the relevant reports to a genetic test order."""

from __future__ import annotations

import random

from fhir_gym.actions import Finish, Get
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.bundles import entries
from fhir_gym.tasks.genetic_testing.attach import DEFINITIONS, AttachParams, AttachReports
from fhir_gym.tasks.genetic_testing.orders import attaching, draw_case, find_order, find_patient
from fhir_gym.tasks.genetic_testing.reports import (
    GENETIC,
    GENETICS,
    OTHER,
    Report,
    diagnostic_report,
    draw_reports,
)
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.task import Fhir, Gold
from fhir_gym.types import Resource

__all__ = ["TASKS", "RelevantReports", "RelevantReportsParams"]

_NOT_FINAL = ("registered", "preliminary", "cancelled", "entered-in-error")


class RelevantReportsParams(AttachParams):
    """Values of task 21b.

    Attributes:
        missed: A relevant report that is not there; the phantom where there is none.
    """

    missed: Report


class RelevantReports(AttachReports[RelevantReportsParams]):
    """Attach the relevant genetic reports of a patient to a genetic test order.

    Starting state: the patient with a draft order of the test, which may refer to a condition, and none to three
        final genetic reports.
    Decoys: the patient's final reports of other kinds, some of which speak of genetics, and a genetic report that is
        not final (all reports attached); a final genetic report of a namesake; orders as in 21a.
    Checks: the order's supporting information is what it was and the relevant reports, each once; the rest of the
        order is unchanged; the answer is its id. Where none is relevant: the order is as it was, and a request would
        have shown such a report, had there been one.
    Light: the order was updated and has supporting information; none where nothing is to be attached.
    Differs from FHIR-AgentEval: what is relevant stands in the prompt; none to three reports among several, where it
        was one against one; the rest of the order counts; random ids, where the solution knew them.
    """

    key = "21b"
    title = "Filter relevant reports for an order"
    prompts = (
        "Attach the relevant genetic reports of {patient} (given name {given}, family name {family}, born "
        "{birth_date}), and no other reports, to the patient's upcoming genetic test order: {display}, code {code}.",
        "The order of {display} (code {code}) for the patient with family name {family}, given name {given} and date "
        "of birth {birth_date} goes out soon. Please add those of the patient's reports that are relevant genetic ones "
        "as supporting information.",
        "{patient}, born {birth_date} (family name {family}, given name {given}), has a genetic test order for {code} "
        "({display}). Go through the patient's diagnostic reports and attach only the relevant genetic ones.",
    )
    ending = (
        f"{DEFINITIONS} A report is a relevant genetic one if it is a DiagnosticReport whose subject is this patient, "
        f"with category {GENETICS.code} (Genetics) of {GENETICS.system} and status final. If no report is relevant, "
        'leave the order as it is. Finish with FINISH(["<id>"]), where <id> is the id of the order, in either case.'
    )

    def sample(self, rng: random.Random, world: World) -> RelevantReportsParams:
        """Draw the case and the reports of both patients."""
        ids = Ids(rng, world, 21)
        case = draw_case(rng, world, ids)
        genetic = rng.sample(GENETIC, len(GENETIC))
        relevant = rng.randrange(4)
        return RelevantReportsParams(
            case=case,
            wanted=draw_reports(rng, world, ids, case.person, genetic[:relevant], ("final",)),
            missed=draw_reports(rng, world, ids, case.person, genetic[:1], ("final",))[0],
            decoys=(
                *draw_reports(rng, world, ids, case.person, genetic[3:], _NOT_FINAL),
                *draw_reports(rng, world, ids, case.person, rng.sample(OTHER, rng.randrange(1, 4)), ("final",)),
                *draw_reports(rng, world, ids, case.namesake, genetic[:1], ("final",)),
            ),
        )

    def gold(self, p: RelevantReportsParams, fhir: Fhir) -> Gold:
        """Find the patient, the relevant reports, the order; attach, if there is anything to attach."""
        patient_id = yield from find_patient(p.case.person)
        query = {"subject": f"Patient/{patient_id}", "category": GENETICS.token, "status": "final"}
        found = yield Get("/DiagnosticReport", query)
        reports = [f"DiagnosticReport/{one['id']}" for one in entries(found)]
        order = yield from find_order(patient_id, p.case.order.test)
        if reports:
            yield attaching(order, reports)
        yield Finish([order["id"]])

    def must_look(self, p: RelevantReportsParams) -> bool:
        """Where no report is relevant, nothing is to be done."""
        return not p.wanted

    def phantom(self, p: RelevantReportsParams, world: World) -> list[Resource]:
        """A relevant report, had there been one."""
        return [diagnostic_report(p.missed)]


TASKS = (RelevantReports,)
