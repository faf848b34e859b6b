"""Tasks S2-1 and S2-2: requests to merge duplicate patient records."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import combinations, islice
from typing import NamedTuple

from typing_extensions import override

from fhir_gym.actions import Action, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator
from fhir_gym.tasks.grading import differences, has_coding, plain
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.kind import (
    Judgement,
    Knowledge,
    Request,
    RequestContent,
    RequestSampler,
    ShiftSize,
    Solution,
)
from fhir_gym.tasks.packs.shift.lookups import record_named, search_all
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.patient_records import name_of, target_of
from fhir_gym.tasks.packs.shift.registry import CARD, MEMBER, Organization
from fhir_gym.tasks.packs.shift.s2_duplicates.scene import DuplicatesScene, DuplicatesSceneSampler
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.tasks.packs.shift.sweeps import RecordVerdict, SweepKind, UpdateJudge
from fhir_gym.types import Json, Resource, as_list, as_object, objects_in

FLAWS = (
    *("birth date", "name", "former names", "number", "old cards", "old phones", "member numbers", "chains"),
    *("inactive records", "valid card", "latest visit", "new numbers", "status"),
)
"""Parts of the rules that an agent may overlook."""
CLINICAL = "http://terminology.hl7.org/CodeSystem/condition-clinical"
"""System of the clinical statuses of conditions."""
_PATIENT_ELEMENTS: Mapping[str, tuple[str, ...]] = {
    "Condition": ("subject",),
    "ServiceRequest": ("subject",),
    "Coverage": ("beneficiary", "subscriber", "policyHolder"),
}
READ = ("name", "birthDate")
"""Elements of patients that an agent must have read before it declines."""


class MergeContent(RequestContent):
    """A request to merge the duplicate records of a site.

    Attributes:
        site: Name of the site.
        since: First date of birth; empty for no limit.
        before: The first date of birth that is too late; empty for no limit.
    """

    site: str
    since: str = ""
    before: str = ""

    def covers(self, born: Json) -> bool:
        """Whether the request covers patients with a date of birth."""
        return isinstance(born, str) and self.since <= born and (not self.before or born < self.before)

    def overlaps(self, other: MergeContent) -> bool:
        """Whether a patient may be covered by both requests."""
        apart = (self.before and self.before <= other.since) or (other.before and other.before <= self.since)
        return self.site == other.site and not apart


class MergeRequest(Request):
    """A request to merge duplicate records.

    Attributes:
        organization: The site (``Organization/1``).
        earlier: The earlier requests for the site.
    """

    ask: MergeContent
    organization: str
    earlier: tuple[MergeContent, ...] = ()

    def covers(self, born: Json) -> bool:
        """Whether the request, and none before it, covers patients with a date of birth."""
        return self.ask.covers(born) and not any(merge.covers(born) for merge in self.earlier)


class _Filed(NamedTuple):
    """The criteria for patient records of one person."""

    patient: Resource
    names: frozenset[tuple[str, str]]
    numbers: frozenset[str]


class Merge:
    """What a request to merge duplicate records changes.

    Args:
        records: Patients, and the records that refer to them. Other records may be among them.
        organization: The site.
        ask: The request.
        today: The present day.
        base_url: Base URL of the server, if references may be absolute.
        flaw: One of `FLAWS`, or an empty text.
    """

    def __init__(
        self,
        records: Iterable[Resource],
        organization: str,
        ask: MergeContent,
        today: str,
        *,
        base_url: str = "",
        flaw: str = "",
    ) -> None:
        self._records = [*records]
        self._organization, self._ask, self._today, self._base, self._flaw = organization, ask, today, base_url, flaw

    @cached_property
    def covered(self) -> list[Resource]:
        """The patients that count."""
        return [
            record
            for record in self._records
            if is_covered(record, self._organization, self._ask, self._base)
            and (record.get("active") is not False or self._flaw == "inactive records")
        ]

    @cached_property
    def groups(self) -> list[list[Resource]]:
        """The records of each person with more than one record."""
        filed = [
            _Filed(resource, frozenset(self._names(resource)), frozenset(self._numbers(resource)))
            for resource in self.covered
        ]
        group_of = {number: {number} for number in range(len(filed))}
        for (place, mine), (other, theirs) in combinations(enumerate(filed), 2):
            if self._alike(mine, theirs) and group_of[place] is not group_of[other]:
                if self._flaw == "chains" and max(len(group_of[place]), len(group_of[other])) > 1:
                    continue
                group_of[place] |= group_of[other]
                for number in group_of[place]:
                    group_of[number] = group_of[place]
        by_first = {min(group): group for group in group_of.values() if len(group) > 1}
        return [[filed[number].patient for number in sorted(group)] for group in by_first.values()]

    def _alike(self, filed: _Filed, other: _Filed) -> bool:
        return (
            (self._flaw == "birth date" or filed.patient.get("birthDate") == other.patient.get("birthDate"))
            and (self._flaw == "name" or not filed.names.isdisjoint(other.names))
            and (self._flaw == "number" or not filed.numbers.isdisjoint(other.numbers))
        )

    def _names(self, patient: Resource) -> Iterator[tuple[str, str]]:
        for name in objects_in(patient.get("name")):
            family, givens = name.get("family"), [part for part in as_list(name.get("given")) if isinstance(part, str)]
            if isinstance(family, str) and not (self._flaw == "former names" and name.get("use") in ("old", "maiden")):
                yield plain(" ".join(givens)), plain(family)

    def _numbers(self, patient: Resource) -> Iterator[str]:
        systems = (CARD, MEMBER) if self._flaw == "member numbers" else (CARD,)
        for identifier in objects_in(patient.get("identifier")):
            if identifier.get("system") in systems and not (
                self._flaw == "old cards" and identifier.get("use") == "old"
            ):
                yield str(identifier.get("value"))
        for telecom in objects_in(patient.get("telecom")):
            if telecom.get("system") == "phone" and (telecom.get("use") != "old" or self._flaw == "old phones"):
                digits = "".join(letter for letter in str(telecom.get("value")) if letter.isdigit())
                yield f"phone {digits[-10:]}"

    @cached_property
    def _visits(self) -> dict[str, str]:
        """The start of the latest appointment that took place, for each patient."""
        visits: dict[str, str] = {}
        for record in self._records:
            if record.get("resourceType") == "Appointment" and record.get("status") == "fulfilled":
                for patient in references_in(record, self._base):
                    visits[patient] = max(visits.get(patient, ""), str(record.get("start")))
        return visits

    def kept(self, group: Sequence[Resource]) -> Resource:
        """Return the record of a person that is kept."""
        left = (
            group
            if self._flaw == "valid card"
            else [resource for resource in group if _has_valid_card(resource)] or group
        )
        if self._flaw != "latest visit":
            latest = max(self._visits.get(name_of(resource), "") for resource in left)
            left = [resource for resource in left if self._visits.get(name_of(resource), "") == latest]
        return min(left, key=lambda resource: str(resource.get("id")))

    @cached_property
    def changes(self) -> dict[str, Resource]:
        """The records that change, as they become, by reference."""
        patients: dict[str, Resource] = {}
        moved: dict[str, str] = {}
        for group in self.groups:
            kept = self.kept(group)
            merged = [resource for resource in group if resource is not kept]
            moved |= {name_of(resource): name_of(kept) for resource in merged}
            links = [{"other": {"reference": name_of(resource)}, "type": "replaces"} for resource in merged]
            base = kept if self._flaw == "new numbers" else _with_numbers_of(kept, merged)
            patients[name_of(kept)] = {**base, "link": [*as_list(kept.get("link")), *links]}
            for resource in merged:
                link = {"other": {"reference": name_of(kept)}, "type": "replaced-by"}
                patients[name_of(resource)] = {
                    **resource,
                    "active": False,
                    "link": [*as_list(resource.get("link")), link],
                }
        changed: dict[str, Resource] = {}
        for record in self._records:
            if (self._flaw == "status" or is_open(record, self._today)) and moved.keys() & references_in(
                record, self._base
            ):
                changed[name_of(record)] = redirected(record, moved, self._base)
        return changed | patients


def is_covered(patient: Resource, organization: str, ask: MergeContent, base_url: str = "") -> bool:
    """Whether a request covers a record, in use or not."""
    return (
        patient.get("resourceType") == "Patient"
        and ask.covers(patient.get("birthDate"))
        and target_of(patient.get("managingOrganization"), base_url) == organization
    )


def _has_valid_card(patient: Resource) -> bool:
    identifiers = objects_in(patient.get("identifier"))
    return any(identifier.get("system") == CARD and identifier.get("use") == "official" for identifier in identifiers)


def _with_numbers_of(kept: Resource, merged: Sequence[Resource]) -> Resource:
    """Return a kept record with the health card numbers of the merged ones."""
    mine = [*_cards(kept)]
    others = dict.fromkeys(number for resource in merged for number in _cards(resource) if number not in mine)
    added = [{"use": "secondary", "system": CARD, "value": number} for number in others]
    if not added:
        return kept
    head: Resource = {name: kept[name] for name in ("resourceType", "id", "meta", "text") if name in kept}
    identifiers = [*as_list(kept.get("identifier")), *added]
    return {**head, "identifier": None} | kept | {"identifier": identifiers}


def _cards(patient: Resource) -> Iterator[str]:
    for identifier in objects_in(patient.get("identifier")):
        if identifier.get("system") == CARD:
            yield str(identifier.get("value"))


def is_open(record: Resource, today: str) -> bool:
    """Whether a record moves to the kept record of its patient."""
    status = record.get("status")
    match record.get("resourceType"):
        case "Appointment":
            return status in ("booked", "pending")
        case "Condition":
            return has_coding(record.get("clinicalStatus"), CLINICAL, "active")
        case "ServiceRequest":
            return status in ("active", "on-hold")
        case "Coverage":
            end = as_object(record.get("period")).get("end")
            return status == "active" and (end is None or str(end)[: len(today)] >= today)
    return False


def references_in(record: Resource, base_url: str = "") -> set[str]:
    """Return the patients whom an appointment, diagnosis, order or coverage is about."""
    values = [record.get(name) for name in _PATIENT_ELEMENTS.get(str(record.get("resourceType")), ())]
    values += [participant.get("actor") for participant in objects_in(record.get("participant"))]
    return {target for value in values if (target := target_of(value, base_url)).startswith("Patient/")}


def redirected(value: Json, moved: Mapping[str, str], base_url: str = "") -> Json:
    """Return a value in which References to some records refer to others."""
    if isinstance(value, list):
        return [redirected(element, moved, base_url) for element in value]
    if not isinstance(value, dict):
        return value
    target = target_of(value, base_url) if "reference" in value else ""
    if target in moved:
        return {"reference": moved[target]}
    return {name: redirected(element, moved, base_url) for name, element in value.items()}


class MergeJudge(UpdateJudge[DuplicatesScene, MergeRequest]):
    """Judges requests to merge duplicate records."""

    def __init__(
        self, requests: Sequence[MergeRequest], scene: DuplicatesScene, log: EpisodeLog, answers: Sequence[str]
    ) -> None:
        super().__init__(requests, scene, log, answers)
        self.at_start = {name_of(record): record for record in scene.records}
        self._patients = [
            {
                name
                for name, record in self.at_start.items()
                if is_covered(record, request.organization, request.ask) and request.covers(record.get("birthDate"))
            }
            for request in requests
        ]
        self._about = {name: references_in(record) for name, record in self.at_start.items()}
        self._others: set[str] = set()
        """The patients of the requests other than the one that is judged."""

    @override
    def judge_request(self, number: int) -> Judgement:
        request, patients = self.requests[number], self._patients[number]
        self._others = {record for place, covered in enumerate(self._patients) if place != number for record in covered}
        mine = patients | {name for name, about in self._about.items() if about & patients}
        first = self.first_write(mine) or 0
        met = {record: self.before(record, first) for record in sorted(mine)}
        there = [record for record in met.values() if record is not None]
        merge = Merge(there, request.organization, request.ask, self.scene.today, base_url=self.base_url)
        verdicts = [*self._verdicts(met, merge.changes)]
        claimed = frozenset(
            verdict.record for verdict in verdicts
        )  # a record that was changed and put back is not claimed
        return self.sweep(number, verdicts, claimed, lambda: self._looked(request))

    def _looked(self, request: MergeRequest) -> bool:
        """Whether the agent has read the patients whom a request covers."""
        covered = Merge(self.scene.records, request.organization, request.ask, self.scene.today).covered
        return all({*READ} <= self.log.seen.get(name_of(resource), {}).keys() for resource in covered)

    def _verdicts(self, met: Mapping[str, Resource | None], due: Mapping[str, Resource]) -> Iterator[RecordVerdict]:
        """Yield the verdicts on the records that should change, and on those that changed and should not."""
        for record, before in met.items():
            if record in due:
                yield self.updated(record, due[record], before)
            elif record in self.log.touched and (change := self.difference(before, self.at_end(record))):
                yield RecordVerdict(record, change, harmed=True, due=False)

    @override
    def difference(self, expected: Resource | None, left: Resource | None) -> Json:
        """Return how a record differs from what it should be, but for references to patients of other requests."""
        if expected is None or left is None:
            return super().difference(expected, left)
        hidden = dict.fromkeys(self._others, "Patient/other")
        states = (redirected(state, hidden, self.base_url) for state in (expected, _in_short(left)))
        return differences(*states, base_url=self.base_url) or None


def _in_short(record: Resource) -> Resource:
    """Return a record in which additional health card numbers have only the elements that the rules name."""
    identifiers = record.get("identifier")
    if record.get("resourceType") != "Patient" or not isinstance(identifiers, list):
        return record
    kept = ("use", "system", "value")
    short = [
        {name: identifier[name] for name in kept if name in identifier}
        if isinstance(identifier, dict) and identifier.get("system") == CARD and identifier.get("use") == "secondary"
        else identifier
        for identifier in identifiers
    ]
    return {**record, "identifier": short}


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
    def draw(self, outcome: str, *, depends: bool) -> MergeRequest | None:
        rng, sites, earlier = self.rng, self._sites, [request.ask for request in self.chosen]
        possible = [ask for site in sites.values() for ask in site.asks]
        left = rng.sample(possible, len(possible))
        if rng.random() < _RELATED:
            left.sort(key=lambda ask: not any(ask.overlaps(other) for other in earlier))
        requests = (sites[ask.site].request(ask, earlier, outcome) for ask in left)
        request = next((request for request in requests if sites[request.ask.site].fits(request)), None)
        if request is None:
            return None
        qualifying = tuple(site.organization for site in sites.values())
        return request.model_copy(update={"target": request.organization, "qualifying": qualifying})


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
            looked_up[ask.site] = name_of((yield from record_named("Organization", ask.site)))
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
