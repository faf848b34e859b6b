"""Tasks S4-1 and S4-2: sweeps that recall patients for a test."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import product
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Post
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator, instant
from fhir_gym.tasks.packs.shift.kind import Knowledge, RequestSampler, ShiftSize, Solution
from fhir_gym.tasks.packs.shift.laboratory import TESTS
from fhir_gym.tasks.packs.shift.lookups import Found, record_named, search_all
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.patient_records import charts_of
from fhir_gym.tasks.packs.shift.s4_recalls.rules import (
    RULES,
    Facts,
    Reading,
    RecallContent,
    RecallDesk,
    RecallJudge,
    RecallRequest,
    conditions_that_would_count,
)
from fhir_gym.tasks.packs.shift.s4_recalls.scene import CARE, CONDITIONS, RecallRules, RecallScene, RecallSceneSampler
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.tasks.packs.shift.sweeps import SweepKind
from fhir_gym.types import Resource

_NOTHING = 0.25
"""Probability that a sweep other than the first finds nobody to recall."""
_EARLIEST, _LATEST = 500, 40
"""The window of a request starts this many days ago."""
_WINDOWS = 8
"""Number of windows that are tried for a condition and a test."""
_TRIES = 6
"""Number of tries to choose sweeps from a scene."""
_HOLDERS = 2
"""Minimum number of patients with the condition if nobody needs a recall."""


class RecallSampler(RequestSampler[RecallScene, RecallRequest]):
    """Chooses sweeps one after the other."""

    def __init__(self, rng: random.Random, now: datetime, scene: RecallScene, outcomes: Sequence[str]) -> None:
        super().__init__(rng, now, scene, outcomes)
        self._desk = RecallDesk.of(scene)
        self._read: dict[str, dict[str, Reading]] = {}
        self._facts: dict[tuple[str, str], dict[str, Facts]] = {}
        self._rules: dict[str, dict[str, frozenset[str]]] = {}
        self._ordered: set[tuple[str, str]] = set()
        self._influenced = False

    def choose_all(self) -> bool:
        """Choose sweeps with all outcomes, of which one influences a later one; return whether that succeeds."""
        self.chosen, self._ordered, self._influenced = [], set(), self.outcomes.count(DONE) == 1
        return all(self.add(outcome, depends=False) for outcome in self.outcomes) and self._influenced

    @override
    def draw(self, outcome: str, *, depends: bool) -> RecallRequest | None:
        for must_be_influenced, ask in product((bool(self._ordered) and not self._influenced, False), self._asks()):
            alone = self._recalled(ask)
            needed = {name: urgent for name, urgent in alone.items() if (name, ask.test) not in self._ordered}
            if (needed != alone or not must_be_influenced) and self._qualifies(ask, outcome, needed):
                return RecallRequest(ask=ask, outcome=outcome)
        return None

    @override
    def apply(self, request: RecallRequest) -> None:
        recalled = {(name, request.ask.test) for name in self._recalled(request.ask)}
        self._influenced |= not self._ordered.isdisjoint(recalled)
        self._ordered |= recalled

    def _asks(self) -> list[RecallContent]:
        rules, used = self.scene.rules, [(request.ask.condition, request.ask.test) for request in self.chosen]
        asks = [
            RecallContent(condition=condition, test=test, since=(self.now.date() - timedelta(days=ago)).isoformat())
            for condition, test in product(rules.conditions, rules.limits)
            if (condition, test) not in used
            for ago in self.rng.sample(range(_LATEST, _EARLIEST), _WINDOWS)
        ]
        self.rng.shuffle(asks)
        return asks

    def _facts_for(self, test: str, ignoring: str) -> dict[str, Facts]:
        """Return the facts about all patients for an agent that ignores one of the rules."""
        if test not in self._read:
            self._read[test] = {name: self._desk.read(test, chart) for name, chart in self.scene.charts.items()}
            self._facts[test, ""] = {name: reading.facts() for name, reading in self._read[test].items()}
            self._rules[test] = {name: reading.deciding_rules for name, reading in self._read[test].items()}
        if (test, ignoring) not in self._facts:
            changed = [name for name, rules in self._rules[test].items() if ignoring in rules]
            facts = {name: self._read[test][name].facts(ignoring) for name in changed}
            self._facts[test, ignoring] = self._facts[test, ""] | facts
        return self._facts[test, ignoring]

    def _recalled(self, ask: RecallContent, ignoring: str = "") -> dict[str, bool]:
        """Return the patients to recall if there are no earlier sweeps, and whether it is urgent."""
        facts = self._facts_for(ask.test, ignoring)
        return {name: fact.urgent for name, fact in facts.items() if fact.needs_recall(ask)}

    def _qualifies(self, ask: RecallContent, outcome: str, needed: Mapping[str, bool]) -> bool:
        """Whether a sweep has an outcome, and enough of the rules make a difference."""
        scene, alone = self.scene, self._recalled(ask)
        if outcome == NOTHING_TO_DO:
            holders = sum(fact.has_condition(ask) for fact in self._facts_for(ask.test, "").values())
            would_count = conditions_that_would_count(ask, self._desk, scene)
            return not needed and holders >= _HOLDERS and any(True for _ in would_count)
        if not scene.fewest <= len(needed) <= scene.most:
            return False
        return sum(self._recalled(ask, rule) != alone for rule in RULES) >= scene.rules_that_matter


class Recalls(SweepKind[RecallScene, RecallRequest]):
    """Recall the patients of a place who have a condition and no recent result of a test."""

    key = "S4"
    title = "Recall of patients"
    minutes = 22
    sampler_type = RecallSampler
    judge_type = RecallJudge
    resource_types = ("Patient", "Condition", "Observation", "ServiceRequest", "Appointment", "Consent", "Organization")
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "ServiceRequest": ("status", "intent", "priority", "code", "subject", "authoredOn", "reasonCode")
    }
    wordings = (
        "Please recall our patients with {ask.condition} who have had no {ask.test} since {ask.since}.",
        "Everyone here with {ask.condition} who has had no {ask.test} since {ask.since} needs a recall.",
        "Recall for {ask.test}: patients with {ask.condition}, none since {ask.since}.",
    )
    rules = (
        "- The requests are about the patients of {place}: Patients with this Organization as managingOrganization "
        "and active true. Other patients, and patients who have died (deceasedBoolean is true, or there is a "
        "deceasedDateTime), are not recalled.\n"
        "- The conditions have these SNOMED CT codes: {conditions}. A patient has a condition if there is a Condition "
        "with its code, clinicalStatus active, recurrence or relapse, and verificationStatus confirmed.\n"
        "- The tests have two LOINC codes each, for two units:\n"
        "{tests}\n"
        "- Results are Observations with one of the two codes of the test. Valid are those with status final, amended "
        "or corrected, a valueQuantity, and {laboratory} (an Organization) as performer. A patient has had no test "
        "since a day if there is no valid result with an effectiveDateTime on or after that day.\n"
        "- A patient with the condition and without such a result is recalled, unless one of these is true: (1) The "
        "patient has an order of the test: a ServiceRequest with one of its two codes, intent order, status active or "
        "on-hold, and an authoredOn in the last {order_days} days. Recalls for earlier requests are such orders. "
        "(2) The patient has an Appointment with status booked or pending that starts in the next {visit_days} days. "
        "(3) The patient refuses: of the patient's Consents with status active and the provision.purpose "
        f"{CARE}, the latest by dateTime has the provision.type deny.\n"
        "- To recall a patient, create one ServiceRequest with status active, intent order, the first code of the test "
        "and no other code, the patient as subject, today's date as authoredOn (with or without a time), one "
        "reasonCode with the code of the condition and no other code, and a priority: urgent if the patient's latest "
        "valid result of the test (by effectiveDateTime, however old) is above the limit, otherwise routine.\n"
        f'- The outcome of a request is "{DONE}" if you recalled somebody, and "{NOTHING_TO_DO}" if nobody had to be '
        "recalled."
    )

    @override
    def draw_scene(self, rng: random.Random, world: World, ids: IdAllocator, size: ShiftSize) -> RecallScene:
        drawer = RecallSceneSampler(rng, world, ids)
        if size.level == 1:
            most = 6 if size.requests == 1 else 5
            return drawer.scene(patients=30, tests=2, results=(0, 1, 2, 2, 3), fewest=4, most=most, rules_that_matter=7)
        return drawer.scene(patients=60, tests=2, results=(0, 1, 2, 3, 4), fewest=7, most=14, rules_that_matter=10)

    @override
    def draw_outcomes(self, rng: random.Random, count: int) -> list[str]:
        outcomes = [DONE, *(NOTHING_TO_DO if rng.random() < _NOTHING else DONE for _ in range(count - 1))]
        return rng.sample(outcomes, count)

    @override
    def choose(
        self,
        rng: random.Random,
        world: World,
        scene: RecallScene,
        outcomes: Sequence[str],
        dependent: int | None = None,
    ) -> tuple[RecallRequest, ...] | None:
        sampler = RecallSampler(rng, world.now, scene, outcomes)
        return next((tuple(sampler.chosen) for _ in range(_TRIES) if sampler.choose_all()), None)

    @override
    def rule_values(self, scene: RecallScene) -> Mapping[str, str]:
        rules = scene.rules
        return {
            "place": rules.place,
            "laboratory": rules.laboratory,
            "conditions": ", ".join(f"{condition} {CONDITIONS[condition].code}" for condition in rules.conditions),
            "tests": "\n".join(_about(limit, rules) for limit in rules.limits),
            "order_days": str(rules.order_days),
            "visit_days": str(rules.visit_days),
            "all": rules.model_dump_json(),
        }

    @override
    def solve(self, ask: RecallContent, knowledge: Knowledge) -> Solution:
        rules, looked_up = RecallRules.model_validate_json(knowledge.rule_values["all"]), knowledge.looked_up
        for name in (rules.place, rules.laboratory):
            if name not in looked_up:
                looked_up[name] = (yield from record_named("Organization", name))["id"]
        place = looked_up[rules.place]
        desk = RecallDesk(rules, place, looked_up[rules.laboratory], instant(knowledge.now))
        here = {"organization": f"Organization/{place}", "active": "true", "_count": "200"}
        people = yield from search_all("/Patient", here)
        with_it = yield from _of(people, "Condition", code=CONDITIONS[ask.condition].token)
        charts = charts_of(people, with_it).values()
        people = [chart.patient for chart in charts if desk.read(ask.test, chart).facts().has_condition(ask)]
        records = [*with_it]
        if people:
            codes = ",".join(TESTS[ask.test].codes)
            records += yield from _of(people, "Observation", code=codes)
            records += yield from _of(people, "ServiceRequest", code=codes)
            records += yield from _of(people, "Appointment", date=f"ge{instant(knowledge.now)[:10]}")
            records += yield from _of(people, "Consent")
        charts = charts_of(people, records).values()
        recalls = [recall for chart in charts if (recall := desk.recall(ask, chart)) is not None]
        for recall in recalls:
            yield Post("/ServiceRequest", recall)
        return DONE if recalls else NOTHING_TO_DO

    @override
    def counterfactuals(self, request: RecallRequest, scene: RecallScene) -> list[Resource]:
        if request.outcome != NOTHING_TO_DO:
            return []
        return [*conditions_that_would_count(request.ask, RecallDesk.of(scene), scene)]


def _of(people: Sequence[Resource], resource_type: str, **more: str) -> Found:
    patients = ",".join(f"Patient/{person['id']}" for person in people)
    return (yield from search_all(f"/{resource_type}", {"patient": patients, **more, "_count": "200"}))


def _about(name: str, rules: RecallRules) -> str:
    test = TESTS[name]
    limits = " or ".join(
        f"{rules.limit_text(name, analyte.code)} {analyte.unit} ({analyte.code})" for analyte in (test.main, test.other)
    )
    return (
        f"  - {name}: {test.main.code} in {test.main.unit} and {test.other.code} in {test.other.unit}; limit {limits}"
    )


class RecallsLevel1(StaticShift, requests=Recalls(), level=1):
    """Handle one or two requests to recall patients.

    Starting state: thirty patients of two places with up to four conditions each, and results of two tests from two
        laboratories, orders, appointments and consents of all statuses. The conditions, tests and windows of the
        requests are chosen at random among those for which four to six patients need a recall, or none, and for which
        several rules make a difference.
    Decoys: conditions that are inactive, refuted or entered in error; results that are void, preliminary, without a
        value, of a similar test, from another laboratory or in another unit; orders that are planned, void or old;
        appointments that are cancelled, past or far away; consents for another purpose, or revoked by later ones.
    Checks: each patient is judged by the records as the agent met them. Exactly the patients who need a recall have
        one, with the right priority. If nobody needs one, the agent has looked. Nothing else changed.
    Light: none of the checks.
    """


class RecallsLevel2(StaticShift, requests=Recalls(), level=2):
    """Handle two or three requests to recall patients; recalls for one request are orders for the next.

    Starting state: as at level 1, with sixty patients, of whom seven to fourteen need a recall for each request.
    Decoys: as at level 1.
    Checks: as at level 1.
    Light: none of the checks.
    """


TASKS = (RecallsLevel1, RecallsLevel2)
