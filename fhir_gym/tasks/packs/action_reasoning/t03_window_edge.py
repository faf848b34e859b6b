"""Task 03: the latest value within a time window, with results close to the start of the window."""

from __future__ import annotations

from fhir_gym.tasks.packs.action_reasoning.phrasing import BRIEFS, PROMPTS
from fhir_gym.tasks.packs.action_reasoning.reasoning_task import QueryTask


class WindowEdge(QueryTask):
    """Report a patient's latest value of the last 24 hours; the latest result was taken 23 to 25 hours ago.

    Starting state: the unchanged world, which contains the patient.
    Decoys: results from just before the window, and results after the reference time of the question.
    Checks: the answer is the stored value, or -1 if the window is empty; the agent retrieved the latest result in the
        window or, if the window is empty, searched for it.
    Light: none.
    Differs from ART: the prompt says that both ends belong to the window; if the window is empty, the answer is -1.
    """

    key = "03"
    title = "Latest value at the edge of a window"
    scenario = "edge"
    prompts = PROMPTS["edge"]
    brief = BRIEFS["edge"]


TASKS = (WindowEdge,)
