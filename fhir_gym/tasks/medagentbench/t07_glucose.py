"""Task 07: the latest glucose."""

from __future__ import annotations

import random
from collections.abc import Iterator

from fhir_gym.actions import Finish
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.checks import Check
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.medagentbench.lab_task import LabTask, empty_params, latest_params, level_check
from fhir_gym.tasks.medagentbench.labs import GLU, RULES, Charting, LabParams, look, seen
from fhir_gym.tasks.medagentbench.pack import NONE, READ_ONLY, Items
from fhir_gym.tasks.task import Fhir, Gold

__all__ = ["TASKS", "Glucose"]


class Glucose(LabTask[LabParams]):
    """Tell the latest glucose, however old.

    Starting state: a patient with results of minutes to weeks ago; in one of seven variations with none that counts.
    Decoys: an older result that was issued later; newer ones that are withdrawn, of lactate, or a namesake's; results
        in mmol/L; two of one specimen; more than a page of old results.
    Checks: the answer is the value in mg/dL, or -1; the deciding result was retrieved, or would have been.
    Light: none.
    Differs from MedAgentBench: status and unit count; a guess does not.
    """

    key = "07"
    title = "Latest glucose"
    category = "Lab result retrieval"
    difficulty = 1
    kind = "query"
    required_tools = (("search",),)
    required_resources = ("Observation",)
    prohibited_tools = READ_ONLY
    prompts = (
        "What is the most recent capillary blood glucose (CBG) of patient {mrn} ({name})?",
        "Give me the last CBG value in the chart of {name}, MRN {mrn}.",
        "Patient {mrn}, {name}: which capillary glucose was measured last?",
    )
    ending = (
        f"CBG is an Observation with the code GLU; the patient's id is the MRN. {RULES} However old it is, the latest "
        f"counts. {GLU.conversion} Finish with FINISH([<value in mg/dL>]), or with FINISH([-1]) if there is none. "
        "Change nothing."
    )
    answer = Items("[number]", (("number",),))
    gold_steps = 2

    def sample(self, rng: random.Random, world: World) -> LabParams:
        """Draw a chart."""
        chart = Charting(rng, world, GLU)
        ago = chart.minutes(20, rng.choice((300, 3_000, 60_000)))
        if rng.random() < 1 / 7:
            return LabParams(**empty_params(chart, ago))
        convert, tie = rng.random() < 0.3, rng.random() < 0.25
        return LabParams(**latest_params(chart, ago, chart.value(), stale=ago, convert=convert, tie=tie))

    def gold(self, p: LabParams, fhir: Fhir) -> Gold:
        """One search."""
        found = seen((yield look(p.mrn, GLU)), GLU)
        yield Finish([found[0].value if found else NONE])

    def checks(self, p: LabParams, end: EndState) -> Iterator[Check]:
        """The value."""
        yield level_check(p, end)


TASKS = (Glucose,)
