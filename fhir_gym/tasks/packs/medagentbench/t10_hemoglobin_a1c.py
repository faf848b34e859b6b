"""Task 10: report the latest HbA1c and its date, and order a new test if the result is more than a year old."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Post
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, ExpectedChange, FinishedEpisode, Gold
from fhir_gym.tasks.authoring import created_check, instant, new_resource, parse_instant
from fhir_gym.tasks.grading import ADD_NOTHING, same_moment
from fhir_gym.tasks.packs.medagentbench.internist_task import NO_RESULT, ItemsAnswer
from fhir_gym.tasks.packs.medagentbench.lab_task import DAY_MINUTES, NOTHING, SOMETHING, ChartFiller, ChartPlan, LabTask
from fhir_gym.tasks.packs.medagentbench.labs import A1C, RULES, LabParams
from fhir_gym.tasks.packs.medagentbench.orders import LOINC, SERVICE_ELEMENTS, service_checks, service_order
from fhir_gym.types import Json

A1C_LOINC = "4548-4"
_MINUTE = timedelta(minutes=1)


def year_before(now: str) -> datetime:
    """Return the instant one year earlier; 29 February becomes 28 February."""
    moment = parse_instant(now)
    day = 28 if (moment.month, moment.day) == (2, 29) else moment.day
    return moment.replace(year=moment.year - 1, day=day)


def is_due(p: LabParams) -> bool:
    """Return whether a new test is due: the latest result is more than a year old, or there is no result."""
    return p.taken is None or parse_instant(p.taken) < year_before(p.now)


class HemoglobinA1c(LabTask):
    """Report the latest HbA1c and when it was taken; order a new test if the result is more than a year old or missing.

    Starting state: seven patients. The prompt can ask about six of them: one has no HbA1c, three have a recent HbA1c,
        sometimes exactly a year old, and two have an HbA1c that is more than a year old, sometimes by only a minute or
        a day.
    Decoys: every patient has older results, some of which were issued after newer ones. Newer results do not count
        because they are withdrawn, measure glucose, or belong to another patient, sometimes a namesake. Some patients
        have two results of one specimen. Some patients have more than one page of old results.
    Checks: if a test is due, there is one new ServiceRequest with the right patient, test, time, status, intent and
        priority, and without doNotPerform. Otherwise nothing changed. The answer is the value and its time, or -1 if no
        result counts. The agent must have retrieved the latest result that counts. If no result counts, the agent must
        have made a search that would find such a result.
    Light: if an order is due, a ServiceRequest was created.
    Differs from MedAgentBench: the answer cannot be left out. Every outcome occurs regularly.
    """

    key = "10"
    title = "Latest HbA1c, repeated when old"
    category = "Test ordering"
    difficulty = 3
    kind = "action"
    required_tools = (("search",), ("search", "create"))
    required_resources = ("Observation", "ServiceRequest")
    prohibited_tools = ("delete",)
    prompts = (
        "What is the latest HbA1c of {name} (MRN {mrn}), and when was it taken? If it is more than a year old, or if "
        "there is none, please order a new one.",
        "Please look up the last hemoglobin A1c of {name} (MRN {mrn}) with its date. Order a new test if it is more "
        "than one year old or if the test was never done.",
        "Please tell me the value and time of the most recent HbA1c of {name} (MRN {mrn}). If there is none, or if it "
        "is more than one year old, place a new laboratory order.",
    )
    brief = (
        "Please report the latest HbA1c (code A1C, by time taken, then issued) of {name} (MRN {mrn}), and order a stat "
        "one (LOINC 4548-4), dated now, if there is none or it was taken more than a year ago to the minute. Finish "
        'with FINISH([<value in %>, "<time taken, as stored>"]), or with FINISH([-1]) if there is none.'
    )
    answer_instructions = (
        f"HbA1c is an Observation with the code A1C; the patient's id is the MRN. {RULES} A year ago means the same "
        "date and time in the previous year; a result of exactly that moment is not too old yet. An order is one new "
        "ServiceRequest with status active, intent order, priority stat, the patient as subject, the LOINC code "
        f"{A1C_LOINC} (system http://loinc.org), and the present as authoredOn. {ADD_NOTHING} "
        'Finish with FINISH([<value in %>, "<time it was taken>"]), with the time as it is stored, or with '
        "FINISH([-1]) if there is none."
    )
    answer = ItemsAnswer('[number, "time"] or [-1]', (("number", "text"), ("number",)))
    gold_steps = 3
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {"ServiceRequest": SERVICE_ELEMENTS}
    test = A1C
    branches = (NOTHING, "recent", "recent", "recent", "old", "old")
    strata = (NOTHING,) + (SOMETHING,) * 5
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "ServiceRequest": {"category": [{"text": "Laboratory"}], "reasonCode": [{"text": "Follow-up"}]}
    }

    @override
    def plan(self, filler: ChartFiller, branch: str, world: World) -> ChartPlan:
        rng, year = filler.rng, (world.now - year_before(instant(world.now))) // _MINUTE
        if branch == NOTHING:
            ago = rng.randrange(20, 200_000)
            return ChartPlan(newest=ago, counterfactual=ago)
        far = rng.randrange(3_000, 500_000)
        if branch == "recent":
            ago = rng.choice((year, year - DAY_MINUTES, far))
        else:
            ago = year + rng.choice((1, DAY_MINUTES, far))
        return ChartPlan([(ago, filler.level())], newest=ago, stale=ago)

    @override
    def gold(self, p: LabParams) -> Gold:
        results = yield from self.read_results(p)
        if not results or results[0].taken < year_before(p.now):
            yield Post("/ServiceRequest", service_order(p.mrn, p.now, LOINC, A1C_LOINC))
        yield Finish([results[0].value, results[0].text] if results else [NO_RESULT])

    @override
    def expected_changes(self, p: LabParams) -> tuple[ExpectedChange, ...]:
        return (ExpectedChange("created", "ServiceRequest"),) if is_due(p) else ()

    @override
    def checks(self, p: LabParams, end: FinishedEpisode) -> Iterator[Check]:
        if is_due(p):
            yield created_check(end, "ServiceRequest")
            order = new_resource(end, "ServiceRequest")
            yield from service_checks(end, order, p.mrn, p.now, LOINC, A1C_LOINC, p.priority)
        yield from super().checks(p, end)
        said = end.answer[1] if end.answer and len(end.answer) > 1 else None
        right = said is None if p.taken is None else same_moment(said, p.taken)
        yield Check(name="answered time", passed=right, expected=p.taken, actual=said)

    @override
    def near_misses(self, p: LabParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        yield from super().near_misses(p, gold)
        *before, finish = gold
        if p.taken is None or p.level is None:
            yield "a time for what is not there", [*before, Finish([NO_RESULT, p.now])]
            return
        later = instant(parse_instant(p.taken) + _MINUTE)
        yield "a minute later", [*before, Finish([p.level, later])]
        yield "the date alone", [*before, Finish([p.level, p.taken[:10]])]
        yield "another value", [*before, Finish([round(p.level + 0.1, 1), p.taken])]
        order = Post("/ServiceRequest", service_order(p.mrn, p.now, LOINC, A1C_LOINC))
        if not is_due(p):
            yield "an order that is not due", [*before, order, finish]

    @override
    def equivalents(self, p: LabParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        yield from super().equivalents(p, gold)
        *before, _ = gold
        if p.taken is not None:
            yield "time with an offset", [*before, Finish([p.level, p.taken.replace("Z", "+00:00")])]


TASKS = (HemoglobinA1c,)
