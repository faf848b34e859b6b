"""Task 21a: attach all diagnostic reports of a patient to a genetic test order."""

from __future__ import annotations

import random

from typing_extensions import override

from fhir_gym.actions import Finish, Get
from fhir_gym.fhir import World
from fhir_gym.tasks import Gold
from fhir_gym.tasks.authoring import IdAllocator, entries, find_patient
from fhir_gym.tasks.packs.genetic_testing.order_task import ORDER_INSTRUCTIONS, AttachParams, AttachReports
from fhir_gym.tasks.packs.genetic_testing.orders import GeneticOrder, attach_references, find_order
from fhir_gym.tasks.packs.genetic_testing.reports import GENETIC, OTHER, draw_reports
from fhir_gym.tasks.packs.genetic_testing.scenes import GeneticScene, draw_orders, draw_scene_people

_STATUSES = ("final", "amended", "corrected", "preliminary")
_NUMBERS = (1, 2, 2, 3)


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
                rng, world, ids, person, rng.sample((*GENETIC, *OTHER), rng.choice(_NUMBERS)), _STATUSES
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


TASKS = (AddReports,)
