"""Which patient records belong to one person, what a merge changes, and the judgement of merges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from typing_extensions import override

from fhir_gym.tasks.grading import differences, has_coding, plain
from fhir_gym.tasks.packs.shift.engine.updates import UpdateJudge
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.kind import Judgement, Request, RequestContent
from fhir_gym.tasks.packs.shift.patient_records import elements, items, name_of, target_of
from fhir_gym.tasks.packs.shift.registry import CARD, MEMBER
from fhir_gym.tasks.packs.shift.s2_duplicates.scene import DuplicatesScene
from fhir_gym.tasks.packs.shift.sweeps import RecordVerdict
from fhir_gym.types import Json, Resource

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
        for name in elements(patient.get("name")):
            family, givens = name.get("family"), [part for part in items(name.get("given")) if isinstance(part, str)]
            if isinstance(family, str) and not (self._flaw == "former names" and name.get("use") in ("old", "maiden")):
                yield plain(" ".join(givens)), plain(family)

    def _numbers(self, patient: Resource) -> Iterator[str]:
        systems = (CARD, MEMBER) if self._flaw == "member numbers" else (CARD,)
        for identifier in elements(patient.get("identifier")):
            if identifier.get("system") in systems and not (
                self._flaw == "old cards" and identifier.get("use") == "old"
            ):
                yield str(identifier.get("value"))
        for telecom in elements(patient.get("telecom")):
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
            patients[name_of(kept)] = {**base, "link": [*items(kept.get("link")), *links]}
            for resource in merged:
                link = {"other": {"reference": name_of(kept)}, "type": "replaced-by"}
                patients[name_of(resource)] = {
                    **resource,
                    "active": False,
                    "link": [*items(resource.get("link")), link],
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
    identifiers = elements(patient.get("identifier"))
    return any(identifier.get("system") == CARD and identifier.get("use") == "official" for identifier in identifiers)


def _with_numbers_of(kept: Resource, merged: Sequence[Resource]) -> Resource:
    """Return a kept record with the health card numbers of the merged ones."""
    mine = [*_cards(kept)]
    others = dict.fromkeys(number for resource in merged for number in _cards(resource) if number not in mine)
    added = [{"use": "secondary", "system": CARD, "value": number} for number in others]
    if not added:
        return kept
    head: Resource = {name: kept[name] for name in ("resourceType", "id", "meta", "text") if name in kept}
    identifiers = [*items(kept.get("identifier")), *added]
    return {**head, "identifier": None} | kept | {"identifier": identifiers}


def _cards(patient: Resource) -> Iterator[str]:
    for identifier in elements(patient.get("identifier")):
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
            period = record.get("period")
            end = period.get("end") if isinstance(period, dict) else None
            return status == "active" and (end is None or str(end)[: len(today)] >= today)
    return False


def references_in(record: Resource, base_url: str = "") -> set[str]:
    """Return the patients whom an appointment, diagnosis, order or coverage is about."""
    values = [record.get(name) for name in _PATIENT_ELEMENTS.get(str(record.get("resourceType")), ())]
    values += [participant.get("actor") for participant in elements(record.get("participant"))]
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
    def judge_one(self, number: int) -> Judgement:
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
