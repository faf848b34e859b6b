"""Tasks 04 and 05: report the latest magnesium level of the last 24 hours, and replace magnesium if it is low."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Post
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, ExpectedChange, FinishedEpisode, Gold
from fhir_gym.tasks.authoring import created_check, new_resource
from fhir_gym.tasks.grading import ADD_NOTHING
from fhir_gym.tasks.packs.medagentbench.internist_task import NO_RESULT
from fhir_gym.tasks.packs.medagentbench.lab_task import (
    DAY_MINUTES,
    NOTHING,
    SOMETHING,
    ChartFiller,
    ChartPlan,
    LabTask,
    LatestResultTask,
    draw_level,
    draw_within_day,
)
from fhir_gym.tasks.packs.medagentbench.labs import DAY, MG, RULES, LabParams
from fhir_gym.tasks.packs.medagentbench.orders import (
    MEDICATION_ELEMENTS,
    RATE_ELEMENTS,
    medication_checks,
    medication_order,
)
from fhir_gym.tasks.packs.medagentbench.routes import INTRAVENOUS
from fhir_gym.tasks.packs.medagentbench.wording import OrderedDose
from fhir_gym.types import Json, Resource


class Magnesium(LatestResultTask):
    """Report the latest magnesium level of the last 24 hours.

    Starting state: seven patients with results older than 24 hours. The prompt can ask about six of them. Five of these
        also have a result from the last 24 hours, sometimes from exactly 24 hours ago. Seven of ten variations ask
        about one of the five.
    Decoys: about half of the patients have a result that was taken a minute before the window and issued within it.
        Newer results do not count because they are withdrawn, measure calcium, or belong to another patient, sometimes
        a namesake. Some results are in mmol/L. Some patients have two results of one specimen. Some patients have more
        than one page of old results.
    Checks: the answer is the value in mg/dL, or -1 if no result counts. The agent must have retrieved the latest result
        that counts. If no result counts, the agent must have made a search that would find such a result.
    Light: none.
    Differs from MedAgentBench: a result's status and unit matter, and a guessed answer is not accepted.
    """

    key = "04"
    title = "Latest magnesium within 24 hours"
    category = "Lab result retrieval"
    difficulty = 2
    prompts = (
        "What is the latest magnesium level of {name} (MRN {mrn}) within the last 24 hours?",
        "Please look up the most recent serum magnesium of {name} (MRN {mrn}). Only results of the last 24 hours "
        "matter.",
        "Has the magnesium of {name} (MRN {mrn}) been measured during the last 24 hours, and what was the last value?",
    )
    brief = (
        "What is the latest magnesium (code MG, by time taken, then issued) of {name} (MRN {mrn}) taken in the last 24 "
        "hours (inclusive), in mg/dL (1 mmol/L is 2.43 mg/dL)? Finish with FINISH([<value>]), or with FINISH([-1]) if "
        "there is none."
    )
    answer_instructions = (
        f"Magnesium is an Observation with the code MG; the patient's id is the MRN. {RULES} A result taken exactly 24 "
        f"hours ago still counts. {MG.conversion} Finish with FINISH([<value in mg/dL>]), or with FINISH([-1]) if "
        "there is no such result. Change nothing."
    )
    test, window = MG, DAY
    strata = (NOTHING,) * 3 + (SOMETHING,) * 7

    @override
    def plan(self, filler: ChartFiller, branch: str, world: World) -> ChartPlan:
        ago = draw_within_day(filler.rng)
        if branch == NOTHING:
            return ChartPlan(stale=DAY_MINUTES, counterfactual=ago)
        return ChartPlan([(ago, filler.level())], newest=ago, stale=DAY_MINUTES)


MAGNESIUM_NDC = "0338-1715-40"
_LOW = 1.9
_V3 = "http://terminology.hl7.org/CodeSystem/v3-RouteOfAdministration"
_QUALIFIED = "Intravenous route (qualifier value)"
_NAMES = ("magnesium", "sulfate", "sulphate", "mgso4", "mg", "mag")
_BRANCHES: Mapping[str, tuple[tuple[float, float], ...]] = {
    "enough": ((2.0, 3.2), (2.0, 2.1)),
    "mild": ((1.5, 1.9), (1.9, 1.9), (1.5, 1.5)),
    "moderate": ((1.0, 1.4), (1.0, 1.0), (1.4, 1.4)),
    "severe": ((0.6, 0.9), (0.9, 0.9)),
}
"""Branches of the dosing rule, each with its whole range of levels, followed by narrow ranges at the edges."""


def grams(level: float | None) -> int | None:
    """Return the grams of magnesium (also the hours of the infusion) that a level requires; None if no order is due."""
    if level is None or level > _LOW:
        return None
    return 4 if level < 1 else 2 if level < 1.5 else 1


class MagnesiumReplacement(LabTask):
    """Order the intravenous magnesium that the latest level of the last 24 hours requires, if it is low.

    Starting state: seven patients. The prompt can ask about six of them: one has no level in the last 24 hours, two
        have a sufficient level, and one each has a mild, moderate or severe deficiency. Some levels are at the edge of
        their range. Four of five variations ask about a patient with a level.
    Decoys: as in task 04, but all results are in mg/dL. Some of these results indicate another degree of deficiency.
    Checks: if the level is low, there is one new MedicationRequest for a single dose, with the right patient, drug,
        time, route, dose, duration, status and intent, and without doNotPerform. Otherwise nothing changed. The answer
        is the level, or -1 if no result counts. The agent must have retrieved the latest result that counts. If no
        result counts, the agent must have made a search that would find such a result.
    Light: if an order is due, a MedicationRequest was created.
    Differs from MedAgentBench: the answer must give the level. Any valid form of the route is accepted. Every outcome
        of the dosing rule occurs regularly.
    """

    key = "05"
    title = "Magnesium replacement"
    category = "Medication ordering"
    difficulty = 3
    kind = "action"
    required_tools = (("search",), ("search", "create"))
    required_resources = ("Observation", "MedicationRequest")
    prohibited_tools = ("delete",)
    prompts = (
        "Please check the latest serum magnesium of {name} (MRN {mrn}) within the last 24 hours. If it is low, order "
        "intravenous replacement according to the dosing rule. If it was not measured in that time, order nothing.",
        "For {name} (MRN {mrn}), please look at the last magnesium level of the last 24 hours. Only if it is low, "
        "order the IV magnesium that the dosing rule gives. If there is no level in that time, order nothing.",
        "Please take care of the magnesium of {name} (MRN {mrn}): replace it intravenously according to the dosing "
        "rule if the most recent result within the last 24 hours is low; otherwise order nothing.",
    )
    brief = (
        "Please check the latest magnesium (code MG, by time taken, then issued) of {name} (MRN {mrn}) taken in the "
        "last 24 hours (inclusive) and, dated now, order one IV dose (NDC 0338-1715-40) at a rate of 1 g/h: 1 g for "
        "1.5 to 1.9 mg/dL, 2 g for 1.0 to below 1.5, 4 g below 1.0, nothing above 1.9. Finish with FINISH([<value in "
        "mg/dL>]), or with FINISH([-1]) if there is none."
    )
    answer_instructions = (
        "Dosing rule: 1.5 to 1.9 mg/dL is a mild deficiency: 1 g over 1 hour; 1.0 to below 1.5 mg/dL is moderate: 2 g "
        "over 2 hours; below 1.0 mg/dL is severe: 4 g over 4 hours; above 1.9 mg/dL, order nothing. "
        f"Magnesium is an Observation with the code MG; the patient's id is the MRN. {RULES} A result taken exactly 24 "
        "hours ago still counts. An order is one new MedicationRequest with status active, intent order, the patient "
        f"as subject, the NDC {MAGNESIUM_NDC} (system http://hl7.org/fhir/sid/ndc) in medicationCodeableConcept, the "
        "present as authoredOn, and one dosageInstruction for a single dose with route IV and one doseAndRate: the "
        "dose as doseQuantity in g, and the duration as rateQuantity in h. "
        f"{ADD_NOTHING} Finish with FINISH([<value in mg/dL>]), or with "
        "FINISH([-1]) if there is no such result."
    )
    gold_steps = 3
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "MedicationRequest": (*MEDICATION_ELEMENTS, *RATE_ELEMENTS)
    }
    test, window, converted = MG, DAY, 0.0
    branches = (NOTHING, "enough", "enough", "mild", "moderate", "severe")
    strata = (NOTHING,) + (SOMETHING,) * 4
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "MedicationRequest": {"priority": "routine", "requester": {"display": "Dr. Someone"}}
    }

    @override
    def plan(self, filler: ChartFiller, branch: str, world: World) -> ChartPlan:
        ago = draw_within_day(filler.rng)
        if branch == NOTHING:
            return ChartPlan(stale=DAY_MINUTES, counterfactual=ago)
        return ChartPlan([(ago, draw_level(filler, _BRANCHES[branch]))], newest=ago, stale=DAY_MINUTES)

    @override
    def gold(self, p: LabParams) -> Gold:
        results = yield from self.read_results(p)
        level = results[0].value if results else None
        amount = grams(level)
        if amount is not None:
            yield Post("/MedicationRequest", _order(p.mrn, p.now, amount))
        yield Finish([NO_RESULT if level is None else level])

    @override
    def expected_changes(self, p: LabParams) -> tuple[ExpectedChange, ...]:
        return (ExpectedChange("created", "MedicationRequest"),) if grams(p.level) else ()

    @override
    def checks(self, p: LabParams, end: FinishedEpisode) -> Iterator[Check]:
        amount = grams(p.level)
        if amount is not None:
            yield created_check(end, "MedicationRequest")
            order = new_resource(end, "MedicationRequest")
            told = OrderedDose(_NAMES, INTRAVENOUS, amount, "g", hours=amount)
            yield from medication_checks(end, order, p.mrn, p.now, MAGNESIUM_NDC, told)
        yield from super().checks(p, end)

    @override
    def near_misses(self, p: LabParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        yield from super().near_misses(p, gold)
        search, finish = gold[0], gold[-1]
        for amount in (1, 2, 4):
            if amount != grams(p.level):
                order = _order(p.mrn, p.now, amount)
                yield f"orders {amount} g", [search, Post("/MedicationRequest", order), finish]

    @override
    def equivalents(self, p: LabParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        if len(gold) < 3:
            return
        yield from super().equivalents(p, gold)
        search, order, finish = gold
        body = json.loads(order.body or "")
        amount = grams(p.level)
        dose = {"value": amount, "unit": "g"}
        minute = {"unit": "minutes", "system": "http://unitsofmeasure.org", "code": "min"}
        ratio = {"numerator": dose, "denominator": {"value": amount, "unit": "h"}}
        dose_elements: dict[str, tuple[Any, Any]] = {
            "route in words": ({"text": "Intravenous"}, {"rateQuantity": {"value": amount, "unit": "hour"}}),
            "route coded": (
                {"coding": [{"system": "http://snomed.info/sct", "code": "47625008", "display": "Intravenous route"}]},
                {"rateRatio": ratio},
            ),
            "grams an hour": ({"text": "IV"}, {"rateQuantity": {"value": 1.0, "unit": "g/h"}}),
            "milligrams a minute": ({"text": "IV infusion"}, {"rateQuantity": {"value": 16.67, "unit": "mg/min"}}),
            "duration in minutes": (
                {"text": "IV (intravenous)"},
                {"rateQuantity": {"value": 60 * (amount or 0), **minute}},
            ),
            "a ratio in other units": (
                {"coding": [{"system": "http://snomed.info/sct", "code": "47625008", "display": _QUALIFIED}]},
                {"rateRatio": {"numerator": {"value": 1000, "unit": "mg"}, "denominator": {"value": 60, **minute}}},
            ),
            "route in v3": ({"coding": [{"system": _V3, "code": "IV"}], "text": "IV"}, {"rateRatio": ratio}),
        }
        for name, (route, rate) in dose_elements.items():
            dosage = [{"route": route, "doseAndRate": [{"doseQuantity": dose, **rate}]}]
            yield name, [search, Post("/MedicationRequest", {**body, "dosageInstruction": dosage}), finish]
        timing = {"repeat": {"duration": amount, "durationUnit": "h"}}
        dosage = [{"route": {"text": "iv"}, "timing": timing, "doseAndRate": [{"doseQuantity": dose}]}]
        yield "duration as timing", [search, Post("/MedicationRequest", {**body, "dosageInstruction": dosage}), finish]


def _order(mrn: str, now: str, amount: int) -> Resource:
    dose, rate = {"value": amount, "unit": "g"}, {"value": amount, "unit": "h"}
    return medication_order(mrn, now, MAGNESIUM_NDC, "IV", dose, rate)


TASKS = (Magnesium, MagnesiumReplacement)
