"""Task 04: the mean of all values within a time window."""

from __future__ import annotations

from fhir_gym.tasks.packs.action_reasoning.cases import GROUPS
from fhir_gym.tasks.packs.action_reasoning.phrasing import BRIEFS, ENDINGS, PROMPTS
from fhir_gym.tasks.packs.action_reasoning.reasoning_task import QueryTask


class WindowMean(QueryTask):
    """Report the average of a laboratory test over a window of 24 hours that has at least three results.

    Starting state: the unchanged world, which contains the patient.
    Decoys: results before and after the window, withdrawn results, and replaced results.
    Checks: the answer is the mean, rounded half up to the requested number of decimals or more; the agent retrieved
        every result of the window.
    Light: none.
    Differs from ART: the prompt says to round to one decimal more than the laboratory reports; windows may end in the
        past.
    """

    key = "04"
    title = "Average within a window"
    category = GROUPS["aggregation"]
    scenario = "window"
    prompts = PROMPTS["window"]
    brief = BRIEFS["window"]
    answer_instructions = ENDINGS["aggregation"]


TASKS = (WindowMean,)
