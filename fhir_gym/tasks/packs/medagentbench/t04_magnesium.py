"""Task 04: report the latest magnesium level of the last 24 hours."""

from __future__ import annotations

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.packs.medagentbench.lab_task import (
    DAY_MINUTES,
    NOTHING,
    SOMETHING,
    ChartFiller,
    ChartPlan,
    LatestResultTask,
    draw_within_day,
)
from fhir_gym.tasks.packs.medagentbench.labs import DAY, MG, RULES


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


TASKS = (Magnesium,)
