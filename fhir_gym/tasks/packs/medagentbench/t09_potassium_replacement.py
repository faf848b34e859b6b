"""Task 09: if the latest potassium level is low, replace potassium and order a test for the next morning."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Post
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, ExpectedChange, FinishedEpisode, Gold
from fhir_gym.tasks.authoring import SNOMED, at, created_check, instant, new_resource, parse_instant
from fhir_gym.tasks.grading import ADD_NOTHING
from fhir_gym.tasks.packs.medagentbench.internist_task import NO_RESULT, same_minute
from fhir_gym.tasks.packs.medagentbench.lab_task import (
    NOTHING,
    SOMETHING,
    ChartFiller,
    ChartPlan,
    LabTask,
    draw_level,
    draw_recent,
)
from fhir_gym.tasks.packs.medagentbench.labs import RULES, K, LabParams
from fhir_gym.tasks.packs.medagentbench.orders import (
    LOINC,
    MEDICATION_ELEMENTS,
    SERVICE_ELEMENTS,
    medication_checks,
    medication_order,
    service_checks,
    service_order,
)
from fhir_gym.tasks.packs.medagentbench.routes import ORAL
from fhir_gym.tasks.packs.medagentbench.wording import OrderedDose
from fhir_gym.types import Json, Resource

POTASSIUM_NDC, POTASSIUM_LOINC = "40032-917-01", "2823-3"
_GOAL = 3.5
_ORALLY: Mapping[str, Resource] = {
    "in SNOMED CT": {
        "coding": [{"system": SNOMED, "code": "26643006", "display": "Oral route (qualifier value)"}],
        "text": "PO",
    },
    "in v3": {
        "coding": [
            {
                "system": "http://terminology.hl7.org/CodeSystem/v3-RouteOfAdministration",
                "code": "PO",
                "display": "Swallow, oral",
            }
        ]
    },
    "by mouth": {"text": "By mouth"},
}
_NAMES = ("potassium", "chloride", "kcl", "k", "klor", "con", "tab", "dur", "er")
_CLOSE = 0.1 + 1e-6
_BRANCHES: Mapping[str, tuple[tuple[float, float], ...]] = {
    "enough": ((3.5, 5.4), (3.5, 3.5), (3.6, 3.6)),
    "low": ((2.9, 3.4), (3.4, 3.4)),
    "very low": ((2.4, 2.8),),
}


def milliequivalents(level: float | None) -> int | None:
    """Return how many milliequivalents of potassium a level requires; None if no order is due."""
    return None if level is None or level >= _GOAL else round((_GOAL - level) * 100)


class PotassiumReplacement(LabTask):
    """Order oral potassium, and a potassium test for the next morning, if the latest level is low.

    Starting state: seven patients. The prompt can ask about six of them: one has no level, two have a sufficient level,
        two a low level and one a very low level. Some levels are at the edge of their range.
    Decoys: every patient has older results, some of which were issued after newer ones. Newer results do not count
        because they are withdrawn, measure sodium, or belong to another patient, sometimes a namesake. Some results are
        in mEq/L. Some patients have two results of one specimen. Some patients have more than one page of old results.
    Checks: if the level is low, there is one new MedicationRequest (patient, drug, time, route, dose, status, intent)
        and one new ServiceRequest (patient, test, time, day and hour, status, intent, priority). Each is for a single
        time and without doNotPerform. Otherwise nothing changed. The answer is the level, or -1 if no result counts.
        The agent must have retrieved the latest result that counts. If no result counts, the agent must have made a
        search that would find such a result.
    Light: if orders are due, both were created.
    Differs from MedAgentBench: the answer must give the level. Any valid form of the route is accepted. Every outcome
        of the dosing rule occurs regularly.
    """

    key = "09"
    title = "Potassium replacement"
    category = "Medication ordering"
    difficulty = 3
    kind = "action"
    required_tools = (("search",), ("search", "create", "create"))
    required_resources = ("Observation", "MedicationRequest", "ServiceRequest")
    prohibited_tools = ("delete",)
    prompts = (
        "Please check the latest potassium of {name} (MRN {mrn}). If it is low, order oral replacement according to "
        "the dosing rule, and a serum potassium for tomorrow at 8 am. If it is not low or was never measured, order "
        "nothing.",
        "For {name} (MRN {mrn}), please look at the most recent potassium level. Only if it is low, place two orders: "
        "oral potassium as the dosing rule gives, and a morning potassium level for tomorrow at 8 am. If there is no "
        "level, order nothing.",
        "Please take care of the potassium of {name} (MRN {mrn}): replace it by mouth according to the dosing rule if "
        "the last result is low, and then also have it measured tomorrow at 8 am; otherwise order nothing.",
    )
    brief = (
        "Please check the latest potassium (code K, by time taken, then issued) of {name} (MRN {mrn}) and, if it is "
        "below 3.5 mmol/L, order, dated now, one oral dose (NDC 40032-917-01) of 10 mEq for every 0.1 mmol/L below, "
        "and a stat potassium (LOINC 2823-3) for tomorrow at 8 am. Finish with FINISH([<value in mmol/L>]), or with "
        "FINISH([-1]) if there is none."
    )
    answer_instructions = (
        "Dosing rule: the goal is 3.5 mmol/L; for every 0.1 mmol/L (or mEq/L, which is the same) below the goal, order "
        f"10 mEq. Potassium is an Observation with the code K; the patient's id is the MRN. {RULES} The latest result "
        "counts, however old it is. The drug order is one new MedicationRequest with status active, intent order, the "
        f"patient as subject, the NDC {POTASSIUM_NDC} (system http://hl7.org/fhir/sid/ndc) in "
        "medicationCodeableConcept, the present as authoredOn, and one dosageInstruction for a single dose with route "
        "oral and one doseAndRate with a doseQuantity in mEq. The laboratory order is one new ServiceRequest with "
        f"status active, intent order, priority stat, the patient as subject, the LOINC code {POTASSIUM_LOINC} (system "
        f"http://loinc.org), the present as authoredOn, and tomorrow at 8 am as occurrenceDateTime. {ADD_NOTHING} "
        "Finish with FINISH([<value in mmol/L>]), or with FINISH([-1]) if there is none."
    )
    gold_steps = 4
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "MedicationRequest": MEDICATION_ELEMENTS,
        "ServiceRequest": (*SERVICE_ELEMENTS, "occurrenceDateTime"),
    }
    test = K
    branches = (NOTHING, "enough", "enough", "low", "low", "very low")
    strata = (NOTHING,) + (SOMETHING,) * 5
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "MedicationRequest": {"note": [{"text": "Low potassium."}]},
        "ServiceRequest": {"reasonCode": [{"text": "Low potassium"}]},
    }

    @override
    def plan(self, filler: ChartFiller, branch: str, world: World) -> ChartPlan:
        ago = draw_recent(filler.rng)
        if branch == NOTHING:
            return ChartPlan(newest=ago, counterfactual=ago)
        return ChartPlan([(ago, draw_level(filler, _BRANCHES[branch]))], newest=ago, stale=ago)

    @override
    def gold(self, p: LabParams) -> Gold:
        results = yield from self.read_results(p)
        level = results[0].value if results else None
        amount = milliequivalents(level)
        if amount is not None:
            dose = {"value": amount, "unit": "mEq"}
            yield Post("/MedicationRequest", medication_order(p.mrn, p.now, POTASSIUM_NDC, "oral", dose, None))
            yield Post("/ServiceRequest", _morning(p.mrn, p.now))
        yield Finish([NO_RESULT if level is None else level])

    @override
    def expected_changes(self, p: LabParams) -> tuple[ExpectedChange, ...]:
        if milliequivalents(p.level) is None:
            return ()
        return ExpectedChange("created", "MedicationRequest"), ExpectedChange("created", "ServiceRequest")

    @override
    def checks(self, p: LabParams, end: FinishedEpisode) -> Iterator[Check]:
        amount = milliequivalents(p.level)
        if amount is not None:
            yield created_check(end, "MedicationRequest")
            order = new_resource(end, "MedicationRequest")
            told = OrderedDose(_NAMES, ORAL, amount, "mEq", _CLOSE)
            yield from medication_checks(end, order, p.mrn, p.now, POTASSIUM_NDC, told)
            yield created_check(end, "ServiceRequest")
            order = new_resource(end, "ServiceRequest")
            yield from service_checks(end, order, p.mrn, p.now, LOINC, POTASSIUM_LOINC, p.priority)
            when, due = order.get("occurrenceDateTime"), _next_morning(p.now)
            yield Check(name="service occurrence", passed=same_minute(when, due), expected=due, actual=when)
        yield from super().checks(p, end)

    @override
    def near_misses(self, p: LabParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        yield from super().near_misses(p, gold)
        search, finish = gold[0], gold[-1]
        right = milliequivalents(p.level)
        lab = Post("/ServiceRequest", _morning(p.mrn, p.now))
        for amount in (10, 20, 40, 100):
            if amount != right:
                dose = {"value": amount, "unit": "mEq"}
                drug = Post("/MedicationRequest", medication_order(p.mrn, p.now, POTASSIUM_NDC, "oral", dose, None))
                yield f"orders {amount} mEq", [search, drug, lab, finish]
        if right is None:
            yield "the laboratory order alone", [search, lab, finish]

    @override
    def equivalents(self, p: LabParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        yield from super().equivalents(p, gold)
        if len(gold) < 4:
            return
        search, drug, *rest = gold
        body = json.loads(drug.body or "")
        for name, route in _ORALLY.items():
            dosage = [{**dosage_instruction, "route": route} for dosage_instruction in body["dosageInstruction"]]
            yield f"route {name}", [search, Post(drug.url, {**body, "dosageInstruction": dosage}), *rest]


def _next_morning(now: str) -> str:
    return instant(at((parse_instant(now) + timedelta(days=1)).date(), 8))


def _morning(mrn: str, now: str) -> Resource:
    return service_order(mrn, now, LOINC, POTASSIUM_LOINC, occurrenceDateTime=_next_morning(now))


TASKS = (PotassiumReplacement,)
