"""Task 06: place an order if the latest value is outside the range for the patient's sex and age."""

from __future__ import annotations

from fhir_gym.tasks.packs.action_reasoning.phrasing import BRIEFS, PROMPTS
from fhir_gym.tasks.packs.action_reasoning.reasoning_task import ConditionalTask


class RangeBySexAndAge(ConditionalTask):
    """Report the latest hemoglobin, hematocrit or creatinine; place an order if it is outside the patient's range.

    Starting state: the unchanged world, which contains the patient.
    Decoys: ranges of the other sex and of other ages, which lead to another decision; values just inside a limit.
    Checks: the checks of task 05; the agent also looked up the patient, because the prompt omits sex and birth date.
    Light: if an order is due, one was created.
    Differs from ART: the prompt never states sex or age; it includes the whole table of ranges.
    """

    key = "06"
    title = "Order by a range for sex and age"
    scenario = "demographic"
    prompts = PROMPTS["demographic"]
    brief = BRIEFS["demographic"]
    required_tools = (("read", "search"), ("read", "search", "create"))
    required_resources = ("Observation", "Patient", "MedicationRequest", "ServiceRequest")
    gold_steps = 4


TASKS = (RangeBySexAndAge,)
