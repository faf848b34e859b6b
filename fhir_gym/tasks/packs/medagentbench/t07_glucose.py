"""Task 07: report the latest glucose level."""

from __future__ import annotations

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.packs.medagentbench.lab_task import (
    NOTHING,
    SOMETHING,
    ChartFiller,
    ChartPlan,
    LatestResultTask,
    draw_recent,
)
from fhir_gym.tasks.packs.medagentbench.labs import GLU, RULES


class Glucose(LatestResultTask):
    """Report the latest glucose level, however old it is.

    Starting state: seven patients. The prompt can ask about six of them: five have results from minutes to weeks ago,
        and one has no result that counts. Six of seven variations ask about one of the five.
    Decoys: every patient has older results, some of which were issued after newer ones. Newer results do not count
        because they are withdrawn, measure lactate, or belong to another patient, sometimes a namesake. Some results
        are in mmol/L. Some patients have two results of one specimen. Some patients have more than one page of old
        results.
    Checks: the answer is the value in mg/dL, or -1 if no result counts. The agent must have retrieved the latest result
        that counts. If no result counts, the agent must have made a search that would find such a result.
    Light: none.
    Differs from MedAgentBench: a result's status and unit matter, and a guessed answer is not accepted.
    """

    key = "07"
    title = "Latest glucose"
    category = "Lab result retrieval"
    difficulty = 1
    prompts = (
        "What is the most recent capillary blood glucose (CBG) of {name} (MRN {mrn})?",
        "Please give me the last CBG value in the chart of {name} (MRN {mrn}).",
        "What was the last capillary blood glucose (CBG) measured for {name} (MRN {mrn})?",
    )
    brief = (
        "What is the latest glucose (code GLU, by time taken, then issued) of {name} (MRN {mrn}), in mg/dL (1 mmol/L "
        "is 18.02 mg/dL)? Finish with FINISH([<value>]), or with FINISH([-1]) if there is none."
    )
    answer_instructions = (
        f"CBG is an Observation with the code GLU; the patient's id is the MRN. {RULES} The latest result counts, "
        f"however old it is. {GLU.conversion} Finish with FINISH([<value in mg/dL>]), or with FINISH([-1]) if there is "
        "none. Change nothing."
    )
    test = GLU
    strata = (NOTHING,) + (SOMETHING,) * 6

    @override
    def plan(self, filler: ChartFiller, branch: str, world: World) -> ChartPlan:
        ago = draw_recent(filler.rng)
        if branch == NOTHING:
            return ChartPlan(newest=ago, counterfactual=ago)
        return ChartPlan([(ago, filler.level())], newest=ago, stale=ago)


TASKS = (Glucose,)
