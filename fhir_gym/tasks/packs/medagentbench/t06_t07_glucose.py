"""Tasks 06 and 07: report the average glucose level of the last 24 hours, and the latest one."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from fhir_gym.actions import Finish
from fhir_gym.fhir import World
from fhir_gym.tasks import Gold
from fhir_gym.tasks.packs.medagentbench.internist_task import NO_RESULT
from fhir_gym.tasks.packs.medagentbench.lab_task import (
    DAY_MINUTES,
    NOTHING,
    SOMETHING,
    ChartFiller,
    ChartPlan,
    LabFinding,
    LatestResultTask,
    draw_recent,
)
from fhir_gym.tasks.packs.medagentbench.labs import DAY, GLU, RULES, LabChart, LabParams, Result

_CLOSE = 0.1


class AverageGlucose(LatestResultTask):
    """Report the average glucose level of the last 24 hours.

    Starting state: six patients with results older than 24 hours. Five of them also have two to six results from the
        last 24 hours, sometimes one from exactly 24 hours ago. Seven of ten variations ask about one of the five.
    Decoys: about half of the patients have a result that was taken a minute before the window and issued within it.
        Other results within the window do not count because they are withdrawn, measure lactate, or belong to another
        patient, sometimes a namesake. Some results are in mmol/L. Some patients have more than one page of old results.
    Checks: the answer differs from the average in mg/dL by at most 0.1, or is -1 if no result counts. The agent must
        have retrieved every result that counts. If no result counts, the agent must have made a search that would find
        such a result.
    Light: none.
    Differs from MedAgentBench: a result's status and unit matter, and a guessed answer is not accepted.
    """

    key = "06"
    title = "Average glucose within 24 hours"
    category = "Patient data aggregation"
    difficulty = 2
    prompts = (
        "What was the average capillary blood glucose (CBG) of {name} (MRN {mrn}) over the last 24 hours?",
        "Please work out the mean CBG of {name} (MRN {mrn}) from all results of the last 24 hours.",
        "I am rounding on {name} (MRN {mrn}). Please average all capillary blood glucose (CBG) results of the past 24 "
        "hours for me.",
    )
    brief = (
        "What is the average glucose (code GLU) of {name} (MRN {mrn}) in samples taken in the last 24 hours "
        "(inclusive), in mg/dL (1 mmol/L is 18.02 mg/dL)? Finish with FINISH([<average>]), or with FINISH([-1]) if "
        "there is none."
    )
    answer_instructions = (
        f"CBG is an Observation with the code GLU; the patient's id is the MRN. {RULES} A result taken exactly 24 "
        f"hours ago still counts. Convert results in mmol/L: 1 mmol/L is {GLU.factor:g} mg/dL. Round the average to "
        "one decimal, or do not round it; do not round the single values. Finish with FINISH([<average in mg/dL>]), or "
        "with FINISH([-1]) if there is no such result. Change nothing."
    )
    test, window, converted = GLU, DAY, 0.25
    strata = (NOTHING,) * 3 + (SOMETHING,) * 7
    newcomer = False

    @override
    def plan(self, filler: ChartFiller, branch: str, world: World) -> ChartPlan:
        rng = filler.rng
        if branch == NOTHING:
            return ChartPlan(stale=DAY_MINUTES, counterfactual=rng.randrange(25, DAY_MINUTES))
        agos = rng.sample(range(25, DAY_MINUTES), rng.choice((2, 2, 2, 3, 3, 4, 6)))
        if rng.random() < 0.3:
            agos[0] = DAY_MINUTES
        return ChartPlan([(ago, filler.level()) for ago in agos], stale=DAY_MINUTES, tie=False)

    @override
    def found(self, counted: Sequence[Result]) -> LabFinding:
        levels = [self.level_of(result)[0] for result in counted]
        return LabFinding(sum(levels) / len(levels), _CLOSE, deciding=tuple(result.id for result in counted))

    @override
    def asked_about(self, chart: LabChart, finding: LabFinding) -> str:
        return f"Patient/{chart.person.id}" if finding.deciding else ""

    @override
    def gold(self, p: LabParams) -> Gold:
        values = [result.value for result in (yield from self.read_results(p))]
        yield Finish([round(sum(values) / len(values), 1) if values else NO_RESULT])


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


TASKS = (AverageGlucose, Glucose)
