"""Tasks 21a and 21b: attach all diagnostic reports, or only the relevant ones, of a patient to a genetic test order."""

from __future__ import annotations

import random
from collections.abc import Iterator

from typing_extensions import override

from fhir_gym.actions import Finish, Get
from fhir_gym.fhir import World
from fhir_gym.tasks import Gold
from fhir_gym.tasks.authoring import IdAllocator, Person, entries, find_patient
from fhir_gym.tasks.packs.genetic_testing.order_task import ORDER_INSTRUCTIONS, AttachParams, AttachReports
from fhir_gym.tasks.packs.genetic_testing.orders import GeneticOrder, attach_references, find_order
from fhir_gym.tasks.packs.genetic_testing.reports import (
    GENETIC,
    GENETICS,
    OTHER,
    GeneticReport,
    diagnostic_report,
    draw_reports,
)
from fhir_gym.tasks.packs.genetic_testing.scenes import GeneticScene, draw_orders, draw_scene_people
from fhir_gym.types import Resource

_STATUSES = ("final", "amended", "corrected", "preliminary")
_NOT_FINAL = ("registered", "preliminary", "cancelled", "entered-in-error")
_NUMBERS = (1, 2, 3)
_OTHERS = (1, 1, 2)


class AddReports(AttachReports[AttachParams]):
    """Attach all diagnostic reports of a patient to a genetic test order.

    Starting state: eight patients (all combinations of two given names, two family names and two dates of birth). Four
        of them have one to three reports of any kind, and draft orders for two tests. An earlier order or a report of
        the patient may already be attached to an order. The requested draft can be identified only by the patient's
        name and date of birth, the test and the status together.
    Decoys: a namesake, and a patient born on the same day, have reports and draft orders for the same test. The patient
        also has an order for the same test in another status, and a draft order for another test.
    Checks: the order's supporting information contains its old entries and all of the patient's reports, each exactly
        once. The rest of the order is unchanged. The answer is the order's id.
    Light: the order was updated and has supporting information.
    Differs from FHIR-AgentEval: only the purpose of the original task is known, not its prompt, seeds or checks. In
        this task there are several reports, orders and patients, and the agent must keep existing entries.
    """

    key = "21a"
    title = "Add supporting information to an order"
    prompts = (
        "Please attach all diagnostic reports of {patient} (given name {given}, family name {family}, born "
        "{birth_date}) to the patient's genetic test order for {display} (code {code}).",
        "The laboratory wants to see every diagnostic report of the patient with family name {family}, given name "
        "{given} and date of birth {birth_date}. Please add the reports as supporting information to the order for "
        "{display} (code {code}).",
        "{patient} (family name {family}, given name {given}, born {birth_date}) has an order for the genetic test "
        "{code} ({display}). Please attach all of the patient's diagnostic reports to it.",
    )
    brief = (
        "Please add all diagnostic reports of {patient}, born {birth_date}, to the supporting information of the "
        'patient\'s draft order for {display} (code {code}). Finish with FINISH(["<order id>"]).'
    )
    answer_instructions = (
        f"{ORDER_INSTRUCTIONS} All diagnostic reports means every DiagnosticReport whose subject is this patient, "
        'whatever its kind, status or date. Finish with FINISH(["<id>"]), where <id> is the id of the order.'
    )

    @override
    def draw_scene(self, rng: random.Random, world: World) -> GeneticScene:
        ids = IdAllocator(rng, world)
        people, doctor, pairs = draw_scene_people(rng, world, ids)
        by_patient = {
            person.id: draw_reports(
                rng, world, ids, person, rng.sample((*GENETIC, *OTHER), rng.choice((1, 2, 2, 3))), _STATUSES
            )
            for pair in pairs
            for person in pair
        }
        # At least one report of each patient is not attached yet, so that the agent always has something to attach.
        attachable = {id: [report.reference for report in reports[1:]] for id, reports in by_patient.items()}
        return GeneticScene(
            people=people,
            doctors=(doctor,),
            orders=draw_orders(rng, world, ids, pairs, doctor, attachable),
            reports=tuple(report for reports in by_patient.values() for report in reports),
        )

    @override
    def params_for(self, rng: random.Random, world: World, scene: GeneticScene, chosen: GeneticOrder) -> AttachParams:
        order = chosen
        reports = tuple(scene.reports_of(order.patient))
        return AttachParams(scene=scene, person=scene.person(order.patient), order=order, wanted=reports)

    @override
    def gold(self, p: AttachParams) -> Gold:
        patient_id = yield from find_patient(p.person)
        bundle = yield Get("/DiagnosticReport", {"subject": f"Patient/{patient_id}"})
        reports = [f"DiagnosticReport/{entry['id']}" for entry in entries(bundle)]
        order = yield from find_order(patient_id, p.order.test)
        yield attach_references(order, reports)
        yield Finish([order["id"]])


class RelevantReportsParams(AttachParams):
    """Parameters of task 21b.

    Attributes:
        missed: A relevant report that is not on the server. If no report on the server is relevant, the agent must have
            made a request that would return this report if it existed.
    """

    missed: GeneticReport


class RelevantReports(AttachReports[RelevantReportsParams]):
    """Attach the relevant genetic reports of a patient to a genetic test order.

    Starting state: patients and orders as in 21a. Two of the four patients with orders have one to three final genetic
        reports, and the other two have no such report. The prompt can ask about the same number of drafts in both
        pairs.
    Decoys: orders as in 21a. Each of the four patients has final reports of other kinds, some of which mention
        genetics, and a genetic report that is not final. An agent that attaches all reports fails.
    Checks: the order's supporting information contains its old entries and the relevant reports, each exactly once. The
        rest of the order is unchanged. The answer is the order's id. If no report is relevant, the order is unchanged,
        and the agent must have made a request that would return a relevant report if there were any.
    Light: the order was updated and has supporting information. If there is nothing to attach, there is no light check.
    Differs from FHIR-AgentEval: the prompt says which reports are relevant. Zero to three of several reports are
        relevant; the original had one relevant report and one other report. The rest of the order is checked. Ids are
        random, whereas the original's solution contained fixed ids.
    """

    key = "21b"
    title = "Filter relevant reports for an order"
    prompts = (
        "Please attach the relevant genetic reports of {patient} (given name {given}, family name {family}, born "
        "{birth_date}) to the patient's genetic test order for {display} (code {code}). Attach no other reports.",
        "The order for {display} (code {code}) for the patient with family name {family}, given name {given} and date "
        "of birth {birth_date} goes out soon. Please add the patient's relevant genetic reports, and only these, as "
        "supporting information.",
        "{patient} (family name {family}, given name {given}, born {birth_date}) has an order for the genetic test "
        "{code} ({display}). Please go through the patient's diagnostic reports and attach only the relevant genetic "
        "ones.",
    )
    brief = (
        "Please add the final genetic reports (category GE), if there are any, of {patient}, born "
        "{birth_date}, to the supporting information of the patient's draft order for {display} (code {code}). "
        'Finish with FINISH(["<order id>"]).'
    )
    answer_instructions = (
        f"{ORDER_INSTRUCTIONS} A relevant genetic report is a DiagnosticReport with this patient as subject, the "
        f"category {GENETICS.code} (Genetics) of {GENETICS.system}, and status final. If there is no such report, "
        'leave the order as it is. Whether or not there was one, finish with FINISH(["<id>"]), where <id> is the id '
        "of the order."
    )

    @override
    def draw_scene(self, rng: random.Random, world: World) -> GeneticScene:
        ids = IdAllocator(rng, world)
        people, doctor, pairs = draw_scene_people(rng, world, ids)
        without, having = pairs
        reports = [report for person in without for report in _reports(rng, world, ids, person, 0)]
        reports += [report for person in having for report in _reports(rng, world, ids, person, rng.choice(_NUMBERS))]
        orders = draw_orders(rng, world, ids, pairs, doctor, {})
        return GeneticScene(people=people, doctors=(doctor,), orders=orders, reports=tuple(reports))

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: GeneticScene, chosen: GeneticOrder
    ) -> RelevantReportsParams:
        person = scene.person(chosen.patient)
        genetic = [report for report in scene.reports_of(person.id) if report.category == GENETICS]
        relevant = tuple(report for report in genetic if report.status == "final")
        model = next(report for report in genetic if report.status != "final")
        ids, report_ids = IdAllocator(rng, world), {report.id for report in scene.reports}
        free = next(id for _ in report_ids if (id := ids.new("DiagnosticReport")) not in report_ids)
        missed = model.model_copy(update={"id": free, "status": "final"})
        return RelevantReportsParams(scene=scene, person=person, order=chosen, wanted=relevant, missed=missed)

    @override
    def gold(self, p: RelevantReportsParams) -> Gold:
        patient_id = yield from find_patient(p.person)
        query = {"subject": f"Patient/{patient_id}", "category": GENETICS.token, "status": "final"}
        bundle = yield Get("/DiagnosticReport", query)
        reports = [f"DiagnosticReport/{entry['id']}" for entry in entries(bundle)]
        order = yield from find_order(patient_id, p.order.test)
        if reports:
            yield attach_references(order, reports)
        yield Finish([order["id"]])

    @override
    def requires_evidence(self, p: RelevantReportsParams) -> bool:
        return not p.wanted

    @override
    def siblings(self, p: RelevantReportsParams) -> Iterator[str]:
        relevant = (report for report in p.scene.reports if report.category == GENETICS and report.status == "final")
        return (f"DiagnosticReport/{report.id}" for report in relevant)

    @override
    def counterfactual(self, p: RelevantReportsParams, world: World) -> list[Resource]:
        return [diagnostic_report(p.missed)]


def _reports(rng: random.Random, world: World, ids: IdAllocator, person: Person, relevant: int) -> list[GeneticReport]:
    """Draw `relevant` final genetic reports, a genetic report that is not final, and one or two other reports."""
    *genetic, last = rng.sample(GENETIC, len(GENETIC))
    other = rng.sample(OTHER, rng.choice(_OTHERS))
    return [
        *draw_reports(rng, world, ids, person, genetic[:relevant], ("final",)),
        *draw_reports(rng, world, ids, person, (last,), _NOT_FINAL),
        *draw_reports(rng, world, ids, person, other, ("final",)),
    ]


TASKS = (AddReports, RelevantReports)
