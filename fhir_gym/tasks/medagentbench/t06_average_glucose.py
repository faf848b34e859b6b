"""Task 06: the average glucose of the last 24 hours."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta

from fhir_gym.actions import Finish
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.checks import Check
from fhir_gym.tasks.clock import instant
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.medagentbench.lab_task import LabTask, level_check
from fhir_gym.tasks.medagentbench.labs import DAY, GLU, RULES, Charting, LabParams, day_before, look, seen
from fhir_gym.tasks.medagentbench.pack import NONE, READ_ONLY, Items
from fhir_gym.tasks.task import Fhir, Gold

__all__ = ["TASKS", "AverageGlucose"]

_CLOSE = 0.1
_NEWEST = timedelta(minutes=20)


class AverageGlucose(LabTask[LabParams]):
    """Tell the average glucose of the last 24 hours.

    Starting state: a patient with older results and, in seven of ten variations, two to six within the window, now and
        then one at its very beginning.
    Decoys: a result from a minute before the window, issued within it; ones within it that are withdrawn, of lactate,
        or a namesake's; results in mmol/L; more than a page of old results.
    Checks: the answer is within 0.1 of the average in mg/dL, or -1; every result in the window was retrieved, or would
        have been.
    Light: none.
    Differs from MedAgentBench: status and unit count; a guess does not.
    """

    key = "06"
    title = "Average glucose within 24 hours"
    category = "Patient data aggregation"
    difficulty = 2
    kind = "query"
    required_tools = (("search",),)
    required_resources = ("Observation",)
    prohibited_tools = READ_ONLY
    prompts = (
        "What was the average capillary blood glucose (CBG) of patient {mrn} ({name}) over the last 24 hours?",
        "Please work out the mean CBG of {name}, MRN {mrn}, from all results of the last 24 hours.",
        "I am rounding on patient {mrn}, {name}. Average all capillary glucose results of the past 24 hours for me.",
    )
    ending = (
        f"CBG is an Observation with the code GLU; the patient's id is the MRN. {RULES} A result taken exactly 24 "
        f"hours ago still counts. Results in mmol/L have to be converted: 1 mmol/L is {GLU.factor:g} mg/dL. Round the "
        "average to one decimal, or not at all, and the single values not at all. Finish with FINISH([<average in "
        "mg/dL>]), or with FINISH([-1]) if there is no such result. Change nothing."
    )
    answer = Items("[number]", (("number",),))
    gold_steps = 2

    def sample(self, rng: random.Random, world: World) -> LabParams:
        """Draw a chart with results in the window, or without."""
        chart = Charting(rng, world, GLU)
        counted, phantom = [], None
        if rng.random() < 0.7:
            agos = [chart.minutes(25, 24 * 60) for _ in range(rng.randrange(2, 7))]
            if rng.random() < 0.3:
                agos[0] = DAY
            counted = [chart.measured(ago, chart.value(), convert=rng.random() < 0.25) for ago in agos]
        else:
            phantom = chart.phantom(chart.minutes(25, 24 * 60))
        chart.distract(_NEWEST)
        chart.stale(DAY)
        values = [value for _, value in counted]
        return LabParams(
            now=instant(world.now),
            mrn=chart.mrn,
            people=chart.people,
            results=tuple(chart.results),
            deciding=tuple(result.id for result, _ in counted),
            level=sum(values) / len(values) if values else None,
            tolerance=_CLOSE,
            phantom=phantom,
        )

    def gold(self, p: LabParams, fhir: Fhir) -> Gold:
        """One search with a window."""
        values = [one.value for one in seen((yield look(p.mrn, GLU, since=day_before(p.now))), GLU)]
        yield Finish([round(sum(values) / len(values), 1) if values else NONE])

    def checks(self, p: LabParams, end: EndState) -> Iterator[Check]:
        """The average."""
        yield level_check(p, end)


TASKS = (AverageGlucose,)
