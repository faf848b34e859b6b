"""Task 02: the latest of several values taken close together."""

from __future__ import annotations

from fhir_gym.tasks.packs.action_reasoning.phrasing import BRIEFS, PROMPTS
from fhir_gym.tasks.packs.action_reasoning.reasoning_task import QueryTask


class Cluster(QueryTask):
    """Report the latest value of a laboratory test that was measured several times within two hours.

    Starting state: the unchanged world, which contains the patient.
    Decoys: other values of the same two hours; results issued later but taken earlier; withdrawn results.
    Checks: the answer is the stored value; the agent retrieved the latest result.
    Light: none.
    Differs from ART: the prompt says which of two results taken at the same instant counts: the result issued later.
    """

    key = "02"
    title = "Latest value of a cluster"
    scenario = "cluster"
    prompts = PROMPTS["cluster"]
    brief = BRIEFS["cluster"]


TASKS = (Cluster,)
