"""Tasks S3-1 and S3-2: requests to end the contract of an insurer with a place."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping, Sequence
from datetime import date, datetime, timedelta
from itertools import islice, product
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator
from fhir_gym.tasks.packs.shift.kind import Knowledge, RequestSampler, ShiftSize, Solution
from fhir_gym.tasks.packs.shift.lookups import record_named, search_all
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.patient_records import name_of
from fhir_gym.tasks.packs.shift.s3_insurers.rules import (
    FLAWS,
    Ending,
    InsurerContent,
    InsurerJudge,
    InsurerRequest,
    missing_contract,
    records_of,
)
from fhir_gym.tasks.packs.shift.s3_insurers.scene import CHECK, InsurerScene, InsurerSceneSampler
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.tasks.packs.shift.sweeps import SweepKind
from fhir_gym.types import Json, Resource

_WITH_COVERAGES = {"_revinclude": "Coverage:beneficiary"}
_TRIES = 3
"""Number of choices of requests from a scene, until one of them depends on an earlier one."""
_LAST_DAYS = (7, 60)
"""Range of the number of days from the present day to the last day."""
_DAYS = 6
"""Number of last days from which a scene's requests are drawn."""


class InsurerSampler(RequestSampler[InsurerScene, InsurerRequest]):
    """Chooses requests one after the other, as the earlier ones leave the records.

    Attributes:
        is_related: Whether the result of a request depends on an earlier one.
    """

    def __init__(self, rng: random.Random, now: datetime, scene: InsurerScene, outcomes: Sequence[str]) -> None:
        super().__init__(rng, now, scene, outcomes)
        first = date.fromisoformat(scene.today)
        days = [(first + timedelta(days=day)).isoformat() for day in rng.sample(range(*_LAST_DAYS), _DAYS)]
        self._possible = [*product(scene.places, scene.insurers, days)]
        self._places = tuple(f"Organization/{place.id}" for place in scene.places)
        self._at_start = {place: records_of(place, scene.records) for place in self._places}
        self._now = {place: dict(records) for place, records in self._at_start.items()}
        self.is_related = False

    @override
    def draw(self, outcome: str, *, depends: bool) -> InsurerRequest | None:
        rng = self.rng
        left = [
            InsurerRequest(
                ask=InsurerContent(place=place.name, insurer=insurer.name, last_day=day),
                outcome=outcome,
                place=f"Organization/{place.id}",
                insurer=f"Organization/{insurer.id}",
                target=f"Organization/{place.id}",
                qualifying=self._places,
            )
            for place, insurer, day in rng.sample(self._possible, len(self._possible))
            if not any(
                (place.name, insurer.name) == (request.ask.place, request.ask.insurer) for request in self.chosen
            )
        ]
        used = [request.place for request in self.chosen if outcome == DONE]
        related = (
            request for request in left if request.place in used and self._depends(request) and self._fits(request)
        )
        chosen = next(related, None)
        self.is_related |= chosen is not None
        return chosen or next(filter(self._fits, left), None)

    def _ending(self, request: InsurerRequest, flaw: str = "") -> Ending:
        return Ending(
            self._now[request.place].values(), request.place, request.insurer, request.ask.last_day, flaw=flaw
        )

    def _depends(self, request: InsurerRequest) -> bool:
        """Whether the result of a request depends on what earlier requests have changed."""
        now = self._ending(request)
        if not now.contracts:
            return False
        records = self._at_start[request.place].values()
        first = Ending(records, request.place, request.insurer, request.ask.last_day)
        return first.changes.keys() != now.changes.keys() or first.tasks != now.tasks

    def _fits(self, request: InsurerRequest) -> bool:
        """Whether a request has its outcome and a fitting size, and many parts of the rules matter for it."""
        right, (fewest, most) = self._ending(request), self.scene.due
        if request.outcome == NOTHING_TO_DO:
            return not right.contracts and len(self._ending(request, "contract").changes) >= fewest
        if not right.contracts or not right.tasks or not fewest <= len(right.changes) + len(right.tasks) <= most:
            return False
        flawed = (self._ending(request, flaw) for flaw in FLAWS)
        wrong = (ending for ending in flawed if (ending.changes, ending.tasks) != (right.changes, right.tasks))
        return sum(1 for _ in islice(wrong, self.scene.decisive)) == self.scene.decisive

    @override
    def apply(self, request: InsurerRequest) -> None:
        ending, records = self._ending(request), self._now[request.place]
        records |= ending.changes
        for patient, visit in ending.tasks.items():
            task = {**_new_task(patient, visit), "id": f"new-{patient.rpartition('/')[2]}"}
            records[name_of(task)] = task


class InsurerEnds(SweepKind[InsurerScene, InsurerRequest]):
    """End the contract of an insurer with a place."""

    key = "S3"
    title = "Ends of contracts with insurers"
    minutes = 22
    nothing_share = 0.5
    sampler_type = InsurerSampler
    judge_type = InsurerJudge
    resource_types = (
        *("Patient", "Organization", "OrganizationAffiliation", "Coverage", "Account", "Appointment", "Task"),
    )
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {"Task": ("status", "intent", "code", "for", "focus")}
    wordings = (
        "{ask.insurer} ends its contract with {ask.place}; the last day is {ask.last_day}. Please update our records.",
        "The contract of {ask.place} with {ask.insurer} ends on {ask.last_day}. Please bring our records up to date.",
        "End of contract: {ask.insurer} with {ask.place}, last day {ask.last_day}.",
    )
    rules = (
        "- Each request names a place and an insurer, the Organizations with exactly these names, and the last day of "
        "their contract. In all periods, the first and the last day count, and a period without end goes on. Days are "
        "UTC days.\n"
        "- A contract is an OrganizationAffiliation with active true, the insurer as organization and the place as "
        "participatingOrganization. It is concerned if its period includes the last day and goes on after it (no end, "
        f'or a later end). If no contract is concerned, the outcome is "{NOTHING_TO_DO}", and nothing changes. '
        "Otherwise the last day becomes the period.end of each contract that is concerned.\n"
        "- The Coverages of the request are those with status active, the insurer as payor, and a patient of the place "
        "(a Patient with the place as managingOrganization) as beneficiary; the subscriber does not matter. If the "
        "period includes the last day and goes on after it, period.end becomes the last day. If the period starts "
        "after the last day, status becomes cancelled, and the period stays. Coverages that end on the last day or "
        "earlier stay as they are.\n"
        "- A beneficiary of a Coverage that the request changes is still insured if, after these changes, there is a "
        "Coverage with status active whose beneficiary is the patient, whose payor is an Organization (a Coverage "
        "whose payor is a Patient is self-pay and does not count), and whose period includes the day after the last "
        "day. For patients who are still insured, nothing else changes. For each of the others, do both of these:\n"
        "  - Set Accounts to on-hold that have status active, the patient as subject, and in coverage at least one "
        "Coverage that the request changes.\n"
        "  - If the patient is a participant of an Appointment with status booked or pending that starts on a day "
        "after the last day, create one Task: status requested, intent order, the text "
        f'"{CHECK}" as code.text, the patient as for, and as focus the first such Appointment (by start, then by the '
        f'lower id). Create none if there already is a Task for the patient with the code.text "{CHECK}" and status '
        "requested, accepted or in-progress. A description, notes, a requester, the priority routine and the time "
        "(authoredOn, lastModified) may be added to the Task."
    )

    @override
    def draw_scene(self, rng: random.Random, world: World, ids: IdAllocator, size: ShiftSize) -> InsurerScene:
        if size.level == 1:
            sampler = InsurerSceneSampler(rng, world, ids, insurers=3)
            return sampler.scene(places=3, patients=9, due=(4, 7), decisive=3)
        sampler = InsurerSceneSampler(rng, world, ids, insurers=2)
        return sampler.scene(places=3, patients=24, due=(10, 14), decisive=6)

    @override
    def choose(
        self,
        rng: random.Random,
        world: World,
        scene: InsurerScene,
        outcomes: Sequence[str],
        dependent: int | None = None,
    ) -> tuple[InsurerRequest, ...] | None:
        requests = None
        for _ in range(_TRIES):
            sampler = InsurerSampler(rng, world.now, scene, outcomes)
            if self.add_requests(sampler, outcomes, dependent):
                requests = tuple(sampler.chosen)
                if sampler.is_related or outcomes.count(DONE) < 2:
                    break
        return requests

    @override
    def solve(self, ask: InsurerContent, knowledge: Knowledge) -> Solution:
        looked_up = knowledge.looked_up
        for name in (ask.place, ask.insurer):
            if name not in looked_up:
                looked_up[name] = name_of((yield from record_named("Organization", name, _count="200")))
        place, insurer = looked_up[ask.place], looked_up[ask.insurer]
        query = {"participating-organization": place, "primary-organization": insurer, "_count": "200"}
        records = yield from search_all("/OrganizationAffiliation", query)
        if not Ending(records, place, insurer, ask.last_day).contracts:
            return NOTHING_TO_DO
        records += yield from search_all("/Patient", {"organization": place, "_count": "200"} | _WITH_COVERAGES)
        affected = Ending(records, place, insurer, ask.last_day).uninsured
        if affected:
            records += yield from _records_of(affected)
        ending = Ending(records, place, insurer, ask.last_day)
        for record, body in ending.changes.items():
            yield Put(f"/{record}", body)
        for patient, visit in ending.tasks.items():
            yield Post("/Task", _new_task(patient, visit))
        return DONE

    @override
    def counterfactuals(self, request: InsurerRequest, scene: InsurerScene) -> list[Resource]:
        return [missing_contract(request, scene)] if request.outcome == NOTHING_TO_DO else []


def _records_of(patients: Sequence[str]) -> Generator[Action, Json, list[Resource]]:
    records: list[Resource] = []
    for resource_type in ("Account", "Appointment", "Task"):
        records += yield from search_all(f"/{resource_type}", {"patient": ",".join(patients), "_count": "200"})
    return records


def _new_task(patient: str, visit: str) -> Resource:
    return {
        "resourceType": "Task",
        "status": "requested",
        "intent": "order",
        "code": {"text": CHECK},
        "focus": {"reference": visit},
        "for": {"reference": patient},
    }


class InsurerEndsLevel1(StaticShift, requests=InsurerEnds(), level=1):
    """End the contract of an insurer with a place, or two such contracts.

    Starting state: three places with nine patients each and four insurers, one of which has the longer name of another.
        The patients have up to three coverages, some of them self-pay, and accounts, appointments and tasks.
    Decoys: contracts that have ended or are no longer in use; coverages that have ended, are void or start later;
        patients of the other place, patients with another coverage, accounts of other coverages, appointments that are
        cancelled or before the last day, and tasks that are done.
    Checks: each record is as the rules say; the score is the share of records right minus the share harmed. If there is
        no contract, the agent must have looked for it. Nothing else changed.
    Light: none of the checks.
    """


class InsurerEndsLevel2(StaticShift, requests=InsurerEnds(), level=2):
    """End two or three contracts of insurers with places; patients may have coverages with two of the insurers.

    Starting state: as at level 1, with three insurers, and 24 patients at each place.
    Decoys: as at level 1; coverages that an earlier request ends.
    Checks: as at level 1.
    Light: none of the checks.
    """


TASKS = (InsurerEndsLevel1, InsurerEndsLevel2)
