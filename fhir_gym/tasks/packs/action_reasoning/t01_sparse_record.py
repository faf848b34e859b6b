"""Task 01: the latest value in a record that has few results or no result."""

from __future__ import annotations

from fhir_gym.tasks.packs.action_reasoning.phrasing import BRIEFS, PROMPTS
from fhir_gym.tasks.packs.action_reasoning.reasoning_task import QueryTask


class SparseRecord(QueryTask):
    """Report the latest value of a laboratory test for which the patient has at most three results.

    Starting state: the unchanged world, which contains the patient.
    Decoys: the patient's other laboratory tests, withdrawn results if any, and other patients' results.
    Checks: the answer is the stored value, or -1 if there is no result; the agent retrieved the latest result or, if
        there is none, searched for it.
    Light: none.
    Differs from ART: the patient may have no result of the test; a value counts only if the agent looked it up.
    """

    key = "01"
    title = "Latest value of a sparse record"
    scenario = "sparse"
    prompts = PROMPTS["sparse"]
    brief = BRIEFS["sparse"]


TASKS = (SparseRecord,)
