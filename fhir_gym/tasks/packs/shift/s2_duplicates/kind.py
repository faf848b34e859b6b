"""Tasks S2-1 and S2-2: requests to merge duplicate patient records."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Sequence
from datetime import datetime
from functools import cached_property
from itertools import islice

from typing_extensions import override

from fhir_gym.actions import Action, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator
from fhir_gym.tasks.packs.shift.kind import Knowledge, RequestSampler, ShiftSize, Solution
from fhir_gym.tasks.packs.shift.lookups import search_all
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.patient_records import name_of
from fhir_gym.tasks.packs.shift.registry import CARD, Organization
from fhir_gym.tasks.packs.shift.s2_duplicates.rules import (
    FLAWS,
    Merge,
    MergeContent,
    MergeJudge,
    MergeRequest,
    is_covered,
    references_in,
)
from fhir_gym.tasks.packs.shift.s2_duplicates.scene import DuplicatesScene, DuplicatesSceneSampler
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.tasks.packs.shift.sweeps import SweepKind
from fhir_gym.types import Json, Resource

_RELATED = 0.6
"""Probability that a request preferably covers patients whom an earlier request covers."""
_DECISIVE_FOR_NOTHING = 2
"""Number of parts of the rules that must matter for a request with nothing to do."""
_SEARCHES = (
    ("Appointment", "patient"),
    ("Condition", "patient"),
    ("ServiceRequest", "patient"),
    ("Coverage", "beneficiary"),
    ("Coverage", "subscriber"),
)


class _SiteRequests:
    """The possible requests for a site."""

    def __init__(self, site: Organization, scene: DuplicatesScene) -> None:
        self.organization, self._scene = f"Organization/{site.id}", scene
        self._patients = [
            record for record in scene.records if is_covered(record, self.organization, MergeContent(site=site.name))
        ]
        names = {name_of(patient) for patient in self._patients}
        self._referring = [
            (referred, record) for record in scene.records if (referred := references_in(record) & names)
        ]
        years = sorted({patient["birthDate"][:4] for patient in self._patients})
        limits = [{}, *({name: f"{year}-01-01"} for year in years for name in ("before", "since"))]
        self.asks = [MergeContent(site=site.name, **limit) for limit in limits]

    @cached_property
    def _due(self) -> list[tuple[str, set[str]]]:
        """For the records of each person on file more than once: the date of birth, and the records that change."""
        merge = self._merge([*self._patients, *(resource for _, resource in self._referring)], self.asks[0])
        records = []
        for group in merge.groups:
            names = {name_of(resource) for resource in group}
            moved = names - {name_of(merge.kept(group))}
            changed = {name_of(resource) for patients, resource in self._referring if patients & moved}
            records.append((group[0]["birthDate"], names | (changed & merge.changes.keys())))
        return records

    def request(self, ask: MergeContent, earlier: Sequence[MergeContent], outcome: str) -> MergeRequest:
        """Return a request after earlier ones."""
        before = tuple(merge for merge in earlier if merge.site == ask.site)
        return MergeRequest(ask=ask, outcome=outcome, organization=self.organization, earlier=before)

    def fits(self, request: MergeRequest) -> bool:
        """Whether a request has its outcome and a fitting size, and many parts of the rules matter for it."""
        ask = request.ask
        due = set[str]().union(*(records for born, records in self._due if request.covers(born)))
        # A request of which earlier ones do everything would depend on who forgets what.
        idle = not any(ask.covers(born) for born, _ in self._due)
        if ask in request.earlier or (not due if request.outcome == DONE else not idle):
            return False
        moved = sum(not record.startswith("Patient/") for record in due)
        if due and not (moved and self._scene.due[0] <= len(due) <= self._scene.due[1]):
            return False
        patients = [patient for patient in self._patients if request.covers(patient["birthDate"])]
        names = {name_of(patient) for patient in patients}
        records = [*patients, *(resource for referred, resource in self._referring if referred & names)]
        needed = self._scene.decisive if due else _DECISIVE_FOR_NOTHING
        right = self._merge(records, ask).changes
        wrong = (flaw for flaw in FLAWS if self._merge(records, ask, flaw).changes != right)
        return sum(1 for _ in islice(wrong, needed)) == needed

    def _merge(self, records: Sequence[Resource], ask: MergeContent, flaw: str = "") -> Merge:
        return Merge(records, self.organization, ask, self._scene.today, flaw=flaw)


class MergeSampler(RequestSampler[DuplicatesScene, MergeRequest]):
    """Chooses requests one after the other, preferably about patients whom an earlier request covers."""

    def __init__(self, rng: random.Random, now: datetime, scene: DuplicatesScene, outcomes: Sequence[str]) -> None:
        super().__init__(rng, now, scene, outcomes)
        self._sites = {site.name: _SiteRequests(site, scene) for site in scene.sites}

    @override
    def add(self, outcome: str, *, depends: bool) -> bool:
        rng, sites, earlier = self.rng, self._sites, [request.ask for request in self.chosen]
        possible = [ask for site in sites.values() for ask in site.asks]
        left = rng.sample(possible, len(possible))
        if rng.random() < _RELATED:
            left.sort(key=lambda ask: not any(ask.overlaps(other) for other in earlier))
        requests = (sites[ask.site].request(ask, earlier, outcome) for ask in left)
        request = next((request for request in requests if sites[request.ask.site].fits(request)), None)
        if request is None:
            return False
        aimed = {"target": request.organization, "qualifying": tuple(site.organization for site in sites.values())}
        self.chosen.append(request.model_copy(update=aimed))
        return True


class Duplicates(SweepKind[DuplicatesScene, MergeRequest]):
    """Merge the duplicate records of patients."""

    key = "S2"
    title = "Duplicate records"
    minutes = 22
    nothing_share = 0.5
    sampler_type = MergeSampler
    judge_type = MergeJudge
    resource_types = ("Patient", "Organization", "Appointment", "Condition", "ServiceRequest", "Coverage")
    rules = (
        "- Each request is about one site, the Organization with exactly that name. It covers the Patients whose "
        "managingOrganization is the site, whose birthDate is in the time that the request names (if it names one), "
        "and whose active is not false. All other Patients stay as they are, with everything that refers to them.\n"
        "- Two covered Patients are records of the same person if they have all three in common: the birthDate; a name "
        "(the same given name and family name; former names, with use old or maiden, count too); and a number. A "
        f"number is a health card number (an identifier with system {CARD}; a number with use old counts too) or a "
        "telephone number (system phone, but not with use old; only the digits count, without a leading +1). Other "
        "identifiers, the address and everything else decide nothing. If A and B are records of the same person, and "
        "so are B and C, then A and C are too.\n"
        "- Keep one record of each person: one with a valid health card (a health card number with use official) "
        "rather than one without; among several, the one whose latest appointment that took place (an Appointment with "
        "status fulfilled in which it is a participant) starts last, and one without such an appointment after all "
        "others; then the one with the lower id. The other records of the person are merged into the kept one.\n"
        "- A merged record gets active false and a link to the kept record, of type replaced-by. The kept record gets "
        "a link to each merged record, of type replaces, and each health card number (of any use) of the merged "
        "records that it does not have yet (with any use), as an identifier with use secondary. Everything else in "
        "these Patients stays as it is, also links that are there already.\n"
        "- What is still open moves to the kept record. This concerns Appointments with status booked or pending, "
        "Conditions with clinicalStatus active, ServiceRequests with status active or on-hold, and Coverages with "
        "status active whose period has no end or ends today or later. In these records, every reference to the merged "
        "record, in whatever element (such as participant.actor, subject, beneficiary or subscriber), becomes a "
        "reference to the kept one. An Appointment may have several Patients, and a Coverage may have the merged "
        "record as subscriber only. All other records stay as they are.\n"
        f'- If a request covers no two records of the same person, the outcome is "{NOTHING_TO_DO}".'
    )

    @override
    def draw_scene(self, rng: random.Random, world: World, ids: IdAllocator, size: ShiftSize) -> DuplicatesScene:
        if size.level == 1:
            sampler = DuplicatesSceneSampler(rng, world, ids, sites=3)
            return sampler.scene(families=1, households=5, due=(4, 7), decisive=4)
        sampler = DuplicatesSceneSampler(rng, world, ids, sites=2)
        return sampler.scene(families=2, households=10, due=(10, 14), decisive=6)

    @override
    def text(self, ask: MergeContent, wording: int) -> str:
        born = f" born before {ask.before}" if ask.before else f" born on or after {ask.since}" if ask.since else ""
        return (
            f"Some patients of {ask.site}{born} may be on file more than once. Please merge their records.",
            f"Please look for duplicate records among the patients of {ask.site}{born}, and merge them.",
            f"Duplicates: {ask.site}, {'all patients' if not born else f'patients{born}'}.",
        )[wording]

    @override
    def solve(self, ask: MergeContent, knowledge: Knowledge) -> Solution:
        looked_up = knowledge.looked_up
        if ask.site not in looked_up:
            sites = yield from search_all("/Organization", {"name": ask.site})
            looked_up[ask.site] = next(f"Organization/{site['id']}" for site in sites if site.get("name") == ask.site)
        organization, today = looked_up[ask.site], knowledge.now.date().isoformat()
        query = {"organization": organization, "active": "true", "_count": "200"}
        if ask.before or ask.since:
            query["birthdate"] = f"lt{ask.before}" if ask.before else f"ge{ask.since}"
        records = yield from search_all("/Patient", query)
        groups = Merge(records, organization, ask, today).groups
        if not groups:
            return NOTHING_TO_DO
        records += yield from _records_of(f"Patient/{resource['id']}" for group in groups for resource in group)
        for record, body in Merge(records, organization, ask, today).changes.items():
            yield Put(f"/{record}", body)
        return DONE


def _records_of(patients: Iterator[str]) -> Generator[Action, Json, list[Resource]]:
    """Look up the records that refer to some patients."""
    records: dict[str, Resource] = {}
    listed = ",".join(patients)
    for resource_type, name in _SEARCHES:
        for resource in (yield from search_all(f"/{resource_type}", {name: listed, "_count": "200"})):
            records[f"{resource_type}/{resource['id']}"] = resource
    return [*records.values()]


class DuplicatesLevel1(StaticShift, requests=Duplicates(), level=1):
    """Merge the duplicate records of one or two groups of patients of a site.

    Starting state: three sites with about 60 patient records in all, of households with similar names. Some people have
        two or three records, which may have a former name, a wrong date of birth, other telephone or health card
        numbers, or belong to another site. Appointments, diagnoses, orders and coverages refer to them.
    Decoys: twins, parents and children with the same name, namesakes without a common number, households that share a
        telephone or a member number, numbers that are no longer valid, records that are no longer in use, records at
        other sites, and open and finished records that refer to duplicates.
    Checks: each record is as the rules say; the score is the share of records right minus the share harmed. A site
        without duplicates needs its outcome, and the agent must have read its patients. Nothing else changed.
    Light: none of the checks.
    """


class DuplicatesLevel2(StaticShift, requests=Duplicates(), level=2):
    """Merge the duplicate records of two or three groups of patients, which may overlap.

    Starting state: as at level 1, with two sites, and about 80 patient records of two groups of names at each of them.
    Decoys: as at level 1; patients whom an earlier request covers, too.
    Checks: as at level 1.
    Light: none of the checks.
    """


TASKS = (DuplicatesLevel1, DuplicatesLevel2)
