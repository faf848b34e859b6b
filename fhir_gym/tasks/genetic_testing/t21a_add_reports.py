"""Task 21a: add a patient's diagnostic reports to a genetic test order."""

from __future__ import annotations

import random

from fhir_gym.actions import Finish, Get
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.bundles import entries
from fhir_gym.tasks.genetic_testing.attach import DEFINITIONS, AttachParams, AttachReports
from fhir_gym.tasks.genetic_testing.orders import attaching, draw_case, find_order, find_patient
from fhir_gym.tasks.genetic_testing.reports import GENETIC, OTHER, draw_reports
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.task import Fhir, Gold

__all__ = ["TASKS", "AddReports"]

_STATUSES = ("final", "amended", "corrected", "preliminary")


class AddReports(AttachReports[AttachParams]):
    """Attach all diagnostic reports of a patient to a genetic test order.

    Starting state: the patient with a draft order of the test and one to four reports of any kind, one of which may be
        attached already; the order may refer to a condition too.
    Decoys: a namesake with reports and a draft order of the same test (a search by name); an order of the patient for
        the same test in another status, and a draft for another test (the first order).
    Checks: the order's supporting information is what it was and all of the patient's reports, each once; the rest
        of the order is unchanged; the answer is its id.
    Light: the order was updated and has supporting information.
    Differs from FHIR-AgentEval: nothing is known of its prompt, seeds and checks but the aim; several reports, orders
        and patients, and entries that must be kept.
    """

    key = "21a"
    title = "Add supporting information to an order"
    prompts = (
        "Attach all diagnostic reports of {patient} (given name {given}, family name {family}, born {birth_date}) to "
        "the patient's genetic test order: {display}, code {code}.",
        "The laboratory wants to see every diagnostic report of the patient with family name {family}, given name "
        "{given} and date of birth {birth_date}. Please add them as supporting information to the order of {display} "
        "(code {code}).",
        "{patient}, born {birth_date} (family name {family}, given name {given}), has a genetic test order for {code} "
        "({display}). Complete it with all of the patient's diagnostic reports.",
    )
    ending = (
        f"{DEFINITIONS} All reports means every DiagnosticReport whose subject is this patient, whatever its kind, "
        'status and date. Finish with FINISH(["<id>"]), where <id> is the id of the order.'
    )

    def sample(self, rng: random.Random, world: World) -> AttachParams:
        """Draw the case and the reports of both patients."""
        ids = Ids(rng, world, 21)
        case = draw_case(rng, world, ids)
        kinds = rng.sample((*GENETIC, *OTHER), rng.randrange(1, 5))
        reports = draw_reports(rng, world, ids, case.person, kinds, _STATUSES)
        decoys = draw_reports(rng, world, ids, case.namesake, rng.sample((*GENETIC, *OTHER), 2), _STATUSES)
        if len(reports) > 1 and rng.random() < 0.5:
            attached = (*case.order.attached, rng.choice(reports).reference)
            case = case.model_copy(update={"order": case.order.model_copy(update={"attached": attached})})
        return AttachParams(case=case, wanted=reports, decoys=decoys)

    def gold(self, p: AttachParams, fhir: Fhir) -> Gold:
        """Find the patient, the reports, the order; attach."""
        patient_id = yield from find_patient(p.case.person)
        found = yield Get("/DiagnosticReport", {"subject": f"Patient/{patient_id}"})
        reports = [f"DiagnosticReport/{one['id']}" for one in entries(found)]
        order = yield from find_order(patient_id, p.case.order.test)
        yield attaching(order, reports)
        yield Finish([order["id"]])


TASKS = (AddReports,)
