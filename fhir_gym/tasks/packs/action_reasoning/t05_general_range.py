"""Task 05: place an order if the latest value is outside a reference range that applies to everybody."""

from __future__ import annotations

from fhir_gym.tasks.packs.action_reasoning.phrasing import BRIEFS, PROMPTS
from fhir_gym.tasks.packs.action_reasoning.reasoning_task import ConditionalTask


class GeneralRange(ConditionalTask):
    """Report the latest value of a laboratory test, and place an order if the value is outside the reference range.

    Starting state: the unchanged world, which contains the patient.
    Decoys: values just inside a limit, values out of range on the side that requires no order, older values of another
        category, ranges of other tests in long contexts.
    Checks: if an order is due, one new MedicationRequest (patient, drug, time, route, dose, status, intent) or
        ServiceRequest (patient, test, time, status, intent, priority); otherwise no change; the answer is the value and
        whether an order is due; the agent retrieved the latest result.
    Light: if an order is due, one was created.
    Differs from ART: the prompt states the range and the content of the order; half of the variations require an order.
    """

    key = "05"
    title = "Order by a general range"
    scenario = "general"
    prompts = PROMPTS["general"]
    brief = BRIEFS["general"]


TASKS = (GeneralRange,)
