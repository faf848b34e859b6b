"""Requests to register patients, and their judgement."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from typing_extensions import override

from fhir_gym.tasks.authoring import concept_texts
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.grading import is_within, parse_reference, phone_numbers, plain, same_moment, same_telephone
from fhir_gym.tasks.packs.shift.episode_log import Write
from fhir_gym.tasks.packs.shift.kind import Request, RequestContent, WriteJudge
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NO_SUCH_PATIENT, NOT_ALLOWED, SEVERAL_PATIENTS
from fhir_gym.tasks.packs.shift.patient_records import name_of, other_values, target_of
from fhir_gym.tasks.packs.shift.registry import CARD, RegistryScene, registered_resource
from fhir_gym.types import Json, Resource, as_list, as_object, objects_in

_ALIKE = 3
"""Number of details, of five, that a new Patient shares at least with the request to which it belongs."""
_RELATIONSHIPS = {
    "own": ("self", "onself"),
    "parent": (*("child", "natural child", "nchild", "dependent", "daughter", "dauc", "dau", "son", "sonc", "other"),),
}
"""Codes and texts that ``Coverage.relationship`` may have."""


class RegistrationContent(RequestContent):
    """A person to be registered.

    Attributes:
        card: Health card number, or an empty text.
        insured: Whether the person has an insurance of his or her own, one of a parent, or none.
        insurer: Name of the insurer, or an empty text.
        number: Member number of an insurance of the person's own, or an empty text.
        until: Last day of an insurance of the person's own, or an empty text.
        parent: The parent's name and date of birth; None if the person is not insured through a parent.
    """

    person: Named
    gender: str
    phone: str
    card: str = ""
    insured: Literal["", "own", "parent"] = ""
    insurer: str = ""
    number: str = ""
    until: str = ""
    parent: Named | None = None


class RegistrationRequest(Request):
    """A request to register a person. The attributes tell what holds at the start of the episode.

    Attributes:
        on_file: Ids of the Patients who are the person.
        parents: Ids of the Patients who are the parent.
        insurer: Id of the insurer, or an empty text.
        accepted: Whether the place accepts the insurer.
        covered: Whether the only parent is insured with the insurer.
    """

    ask: RegistrationContent
    on_file: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    insurer: str = ""
    accepted: bool = False
    covered: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What the rules decide about a request.

    Attributes:
        people: Ids of the Patients who are the person, or the parent.
        parent: Id of the only parent; empty if there is none.
        insurer: Id of the insurer; empty if there is none.
        coverage: The parent's Coverage, which the new one follows; None if there is none.
    """

    outcome: str
    people: tuple[str, ...] = ()
    parent: str = ""
    insurer: str = ""
    coverage: Resource | None = None


@dataclass(slots=True)
class Registry:
    """The patients, coverages and contracts of a place at one moment.

    Attributes:
        place: Id of the place.
        names: Ids of the Patients in use by their names, current and former, and dates of birth.
        cards: Ids of the Patients in use by their health card numbers.
        coverages: The Coverages by the ids of their beneficiaries.
        organizations: Ids of the Organizations by their names.
        accepted: Ids of the insurers that the place accepts.
    """

    place: str
    today: str
    base_url: str = ""
    names: dict[Named, list[str]] = field(default_factory=dict)
    cards: dict[str, list[str]] = field(default_factory=dict)
    coverages: dict[str, list[Resource]] = field(default_factory=dict)
    organizations: dict[str, str] = field(default_factory=dict)
    accepted: set[str] = field(default_factory=set)

    @classmethod
    def at_start(cls, scene: RegistryScene, base_url: str = "") -> Registry:
        """Return the registry at the start of the episode."""
        return cls(scene.place, scene.today, base_url).adding(scene.resources())

    def adding(self, records: Iterable[Resource]) -> Registry:
        """Return a copy with more records."""
        names = {key: [*ids] for key, ids in self.names.items()}
        cards = {key: [*ids] for key, ids in self.cards.items()}
        coverages = {key: [*records] for key, records in self.coverages.items()}
        copy = replace(self, names=names, cards=cards, coverages=coverages)
        copy.organizations, copy.accepted = {**self.organizations}, {*self.accepted}
        copy.add_all(records)
        return copy

    def add_all(self, records: Iterable[Resource]) -> None:
        """Add records."""
        for record in records:
            self.add(record)

    def add(self, record: Resource) -> None:
        """Add a record."""
        id = str(record.get("id"))
        match record.get("resourceType"):
            case "Patient" if record.get("active") is not False:
                for name in people_in(record):
                    self.names.setdefault(name, []).append(id)
                for card in cards_of(record):
                    self.cards.setdefault(card, []).append(id)
            case "Coverage" if beneficiary := self._id(record.get("beneficiary")):
                self.coverages.setdefault(beneficiary, []).append(record)
            case "Organization":
                self.organizations[record["name"]] = id
            case "OrganizationAffiliation" if record["active"] and _includes(record, self.today):
                if self._id(record["participatingOrganization"]) == self.place:
                    self.accepted.add(self._id(record["organization"]))

    def on_file(self, ask: RegistrationContent) -> tuple[str, ...]:
        """Return the ids of the Patients who are the person of a request."""
        by_card = self.cards.get(ask.card, []) if ask.card else []
        return tuple(dict.fromkeys([*self.names.get(ask.person, []), *by_card]))

    def parents(self, ask: RegistrationContent) -> tuple[str, ...]:
        """Return the ids of the Patients who are the parent of a request."""
        return tuple(dict.fromkeys(self.names.get(ask.parent, []))) if ask.parent else ()

    def insurances(self, patient: str, insurer: str | None = None) -> list[Resource]:
        """Return the Coverages through which a patient's children can be insured.

        Args:
            patient: Id of the patient.
            insurer: Id of the insurer; None for any insurer.
        """
        return [resource for resource in self.coverages.get(patient, []) if self._covers(resource, patient, insurer)]

    def insurance(self, patient: str, insurer: str | None = None) -> Resource | None:
        """Return the Coverage that started last, then the one with the lower id; None if there is none."""
        insurances = self.insurances(patient, insurer)
        latest = max((bound_of(insurance, "start") for insurance in insurances), default="")
        last = [insurance for insurance in insurances if bound_of(insurance, "start") == latest]
        return min(last, key=lambda insurance: str(insurance["id"]), default=None)

    def _covers(self, coverage: Resource, patient: str, insurer: str | None) -> bool:
        return (
            coverage.get("status") == "active"
            and self._id(coverage.get("subscriber")) == patient
            and (insurer is None or insurer in map(self._id, as_list(coverage.get("payor"))))
            and _includes(coverage, self.today)
        )

    def _id(self, value: Json) -> str:
        """Return the id to which a Reference points; empty for another value."""
        reference = parse_reference(value, self.base_url)
        return reference[1] if reference else ""


def _includes(record: Resource, day: str) -> bool:
    return is_within(f"{day}T12:00:00Z", record.get("period") or {})


def contracts_of(scene: RegistryScene, insurer: str) -> list[Resource]:
    """Return the contracts of the place with an insurer."""
    parties = f"Organization/{scene.place}", f"Organization/{insurer}"
    return [
        contract
        for contract in scene.contracts
        if (target_of(contract["participatingOrganization"]), target_of(contract["organization"])) == parties
    ]


def decide(registry: Registry, ask: RegistrationContent) -> Decision:
    """Apply the rules to a request."""
    there = registry.on_file(ask)
    if there:
        return Decision(ALREADY_DONE, there)
    parents = registry.parents(ask)
    if ask.parent and len(parents) != 1:
        return Decision(SEVERAL_PATIENTS if parents else NO_SUCH_PATIENT, parents)
    parent, insurer = parents[0] if parents else "", registry.organizations.get(ask.insurer, "")
    coverage = registry.insurance(parent, insurer) if parent else None
    if ask.insurer and (insurer not in registry.accepted or (ask.parent and coverage is None)):
        return Decision(NOT_ALLOWED, parent=parent)
    return Decision(DONE, parent=parent, insurer=insurer, coverage=coverage)


def new_patient(ask: RegistrationContent) -> Resource:
    """Return the Patient of a request."""
    card: Resource = {"identifier": [{"system": CARD, "value": ask.card}]} if ask.card else {}
    return {
        "resourceType": "Patient",
        **card,
        "name": [{"family": ask.person.family, "given": [ask.person.given]}],
        "telecom": [{"system": "phone", "value": ask.phone}],
        "gender": ask.gender,
        "birthDate": ask.person.birth_date,
    }


def new_coverage(ask: RegistrationContent, decision: Decision, patient: str, today: str) -> Resource:
    """Return the Coverage of a request."""
    number, until = insurance_terms(ask, decision)
    return {
        "resourceType": "Coverage",
        "status": "active",
        "subscriber": {"reference": f"Patient/{decision.parent or patient}"},
        "beneficiary": {"reference": f"Patient/{patient}"},
        "payor": [{"reference": f"Organization/{decision.insurer}"}],
        "subscriberId": number,
        "period": {"start": today, "end": until} if until else {"start": today},
    }


def insurance_terms(ask: RegistrationContent, decision: Decision) -> tuple[str, str]:
    """Return the member number and the last day of the new coverage; the day is empty if the coverage has no end."""
    if decision.coverage is None:
        return ask.number, ask.until
    return str(decision.coverage.get("subscriberId", "")), bound_of(decision.coverage, "end")


def absent_parent(request: RegistrationRequest, scene: RegistryScene) -> Resource:
    """Return the record that the parent would have; the rest of it is like that of another patient."""
    ask = request.ask
    assert ask.parent is not None
    model = seeded_random("parent", ask).choice(scene.people)
    names = {**ask.parent.model_dump(), "id": _slug("parent", ask), "gender": ask.gender}
    person = model.person.model_copy(update=names)
    return registered_resource(model.model_copy(update={"person": person, "active": True, "former": ""}))


def missing_contract(request: RegistrationRequest, scene: RegistryScene) -> Resource:
    """Return the contract that the place would have if it accepted the insurer."""
    valid = [contract for contract in scene.contracts if contract["active"] and _includes(contract, scene.today)]
    model = seeded_random("contract", request.ask).choice(valid or scene.contracts)
    return {
        **model,
        "id": _slug("contract", request.ask),
        "active": True,
        "period": model["period"] if valid else {"start": scene.today},
        "organization": {"reference": f"Organization/{request.insurer}"},
        "participatingOrganization": {"reference": f"Organization/{scene.place}"},
    }


def missing_insurance(request: RegistrationRequest, scene: RegistryScene) -> Resource:
    """Return the Coverage that the parent would have if the child could be insured through the parent."""
    parent = {"reference": f"Patient/{request.parents[0]}"}
    valid = [
        insurance
        for insurance in scene.insurances
        if insurance["status"] == "active" and _includes(insurance, scene.today)
    ]
    model = seeded_random("insurance", request.ask).choice(valid or scene.insurances)
    return {
        **model,
        "id": _slug("insurance", request.ask),
        "status": "active",
        "subscriber": parent,
        "beneficiary": parent,
        "period": model["period"] if valid else {"start": scene.today},
        "payor": [{"reference": f"Organization/{request.insurer}"}],
    }


def _slug(word: str, ask: RegistrationContent) -> str:
    """Return an id that depends only on the request."""
    parts = (word, ask.person.given, ask.person.family, ask.person.birth_date, ask.phone)
    return re.sub("[^A-Za-z0-9]+", "-", "-".join(parts))[:64].strip("-")


def people_in(patient: Resource) -> Iterator[Named]:
    """Yield the names of a Patient, current and former, each with the date of birth."""
    birth_date = patient.get("birthDate")
    for name in objects_in(patient.get("name")):
        family, givens = name.get("family"), [part for part in as_list(name.get("given")) if isinstance(part, str)]
        if isinstance(family, str) and isinstance(birth_date, str):
            yield Named(given=plain(" ".join(givens)), family=plain(family), birth_date=birth_date)


def cards_of(patient: Resource) -> list[str]:
    """Return the health card numbers of a Patient."""
    identifiers = objects_in(patient.get("identifier"))
    return [str(identifier.get("value")) for identifier in identifiers if identifier.get("system") == CARD]


def bound_of(coverage: Resource, name: str) -> str:
    """Return the first or the last day of a Coverage; empty if it is open."""
    period = coverage.get("period")
    return str(period.get(name) or "") if isinstance(period, dict) else ""


class RegistrationJudge(WriteJudge[RegistryScene, RegistrationRequest]):
    """Judges registrations."""

    @override
    def problems(self, number: int, left: Sequence[str]) -> tuple[Sequence[Json], Json]:
        ask = self.requests[number].ask
        decisions = [decide(registry, ask) for registry in (self._met(number), self._planned(number))]
        return self._problems(ask, [decision for decision in decisions if decision.outcome == DONE], left), None

    @cached_property
    def _new(self) -> list[Write]:
        """The latest write of each new record, with the record as the agent last left it."""
        writes = {write.record: write for write in self.log.writes_of_agent}
        old = self.log.end.before
        return [write for write in writes.values() if old.read(write.resource_type, write.id) is None]

    @override
    @cached_property
    def claimed(self) -> list[frozenset[str]]:
        """For each request, the records that belong to it."""
        owners: dict[str, int] = {}
        for number, request in reversed([*enumerate(self.requests)]):
            owners |= {f"Patient/{id}": number for id in request.on_file if f"Patient/{id}" in self.log.changed}
        for write in self._new:
            number = self._most_like(write.after or write.before or {}) if write.resource_type == "Patient" else -1
            if number >= 0:
                owners[write.record] = number
        for write in self._new:
            beneficiary = self.log.end.refers((write.after or write.before or {}).get("beneficiary"))
            if write.resource_type == "Coverage" and beneficiary in owners:
                owners[write.record] = owners[beneficiary]
        return [
            frozenset(record for record, owner in owners.items() if owner == number)
            for number in range(len(self.requests))
        ]

    def _most_like(self, patient: Resource) -> int:
        """Return the number of the request that a new Patient resembles most; -1 if it resembles none."""
        alike = [_details_in_common(request.ask, patient) for request in self.requests]
        return alike.index(max(alike)) if max(alike) >= _ALIKE else -1

    def _met(self, number: int) -> Registry:
        """Return the registry before the first write for a request."""
        first = self.first_write(self.claimed[number]) or 0
        mine = {write.record for write in self._new}
        states = {write.record: write.after for write in self.log.writes[:first] if write.record in mine}
        return self._with(states.values())

    def _planned(self, number: int) -> Registry:
        """Return the registry after the requests with earlier letters, as the agent has left them."""
        earlier = {record for claimed in self.claimed[:number] for record in claimed}
        return self._with(write.after for write in self._new if write.record in earlier)

    @cached_property
    def _start(self) -> Registry:
        return Registry.at_start(self.scene, self.base_url)

    def _with(self, states: Iterable[Resource | None]) -> Registry:
        """Return the registry at the start with more records."""
        patients_and_coverages = (
            state for state in states if state is not None and state.get("resourceType") in ("Patient", "Coverage")
        )
        return self._start.adding(patients_and_coverages)

    def _problems(self, ask: RegistrationContent, decisions: Sequence[Decision], left: Sequence[str]) -> list[Json]:
        own_writes = [write for write in self._new if write.record in left]
        patients = [write.after for write in own_writes if write.resource_type == "Patient" and write.after]
        coverages = [write.after for write in own_writes if write.resource_type == "Coverage" and write.after]
        has_coverage = bool(ask.insurer)
        if (
            not decisions
            or len(patients) != 1
            or len(coverages) > has_coverage
            or len(left) > len(patients + coverages)
        ):
            return [f"left {record}" for record in left]
        problems: list[Json] = [*_wrong_details(ask, patients[0])]
        if has_coverage and not coverages:
            problems.append("no Coverage")
        for coverage in coverages:
            possible = [[*self._wrong_terms(ask, decision, coverage)] for decision in decisions]
            fewest: list[str] = min(possible, key=len)
            problems += fewest
        return problems

    def _wrong_terms(self, ask: RegistrationContent, decision: Decision, coverage: Resource) -> Iterator[str]:
        """Yield the errors in a new Coverage whose beneficiary is right."""
        refers, (number, until) = self.log.end.refers, insurance_terms(ask, decision)
        beneficiary = refers(coverage.get("beneficiary"))
        subscriber = f"Patient/{decision.parent}" if decision.parent else beneficiary
        yield from other_values(coverage, status="active")
        for name in ("subscriber", "policyHolder"):
            if (name in coverage or name == "subscriber") and refers(coverage.get(name)) != subscriber:
                yield f"{name} {coverage.get(name)}"
        yield from other_values(coverage, subscriberId=number)
        payors = [refers(payor) for payor in as_list(coverage.get("payor"))]
        insurer = next(insurer.id for insurer in self.scene.insurers if insurer.name == ask.insurer)
        if payors != [f"Organization/{insurer}"]:
            yield f"payor {payors}"
        period = as_object(coverage.get("period"))
        start, end = period.get("start"), period.get("end")
        if not same_moment(start, self.scene.today) or not (same_moment(end, until) if until else end is None):
            yield f"period {period}"
        said = {label.casefold() for label in _labels(coverage.get("relationship"))}
        if not said <= {*_RELATIONSHIPS["parent" if decision.parent else "own"]}:
            yield f"relationship {sorted(said)}"

    @override
    def is_rightly_declined(self, number: int) -> bool:
        request, answer = self.requests[number], self.answers[number]
        decision = decide(self._planned(number), request.ask)
        if answer == DONE or answer != decision.outcome:
            return False
        looked = [self._knows(id) for id in decision.people]
        if answer in (ALREADY_DONE, SEVERAL_PATIENTS):
            return any(looked) if answer == ALREADY_DONE else all(looked)
        if answer == NO_SUCH_PATIENT:
            return bool(self.log.lookups_of(absent_parent(request, self.scene)))
        return answer == NOT_ALLOWED and (self._saw_no_contract(request) or self._saw_no_insurance(request, decision))

    def _knows(self, patient: str) -> bool:
        """Whether the agent has made or seen a Patient."""
        record = f"Patient/{patient}"
        return any(write.record == record for write in self._new) or self.log.has_seen([record])

    def _saw_no_contract(self, request: RegistrationRequest) -> bool:
        """Whether the place does not accept the insurer, and the agent has looked that up."""
        contracts = [*map(name_of, contracts_of(self.scene, request.insurer))]
        looked = bool(self.log.lookups_of(missing_contract(request, self.scene)))
        return not request.accepted and (looked or bool(contracts and self.log.has_seen(contracts)))

    def _saw_no_insurance(self, request: RegistrationRequest, decision: Decision) -> bool:
        """Whether the child cannot be insured through the parent, and the agent has looked that up."""
        if decision.coverage is not None or not decision.parent:
            return False
        if decision.parent not in request.parents:
            return True  # the agent itself has registered the parent
        own = [
            name_of(coverage)
            for coverage in self.scene.insurances
            if target_of(coverage["beneficiary"]) == f"Patient/{decision.parent}"
            and target_of(coverage["payor"][0]) == f"Organization/{request.insurer}"
        ]
        looked = bool(self.log.lookups_of(missing_insurance(request, self.scene)))
        return looked or bool(own and self.log.has_seen(own))


def _details_in_common(ask: RegistrationContent, patient: Resource) -> int:
    """Return how many of five details a new Patient shares with a request."""
    who, people = ask.person, [*people_in(patient)]
    return (
        any(person.given == who.given for person in people)
        + any(person.family == who.family for person in people)
        + (patient.get("birthDate") == who.birth_date)
        + (bool(ask.card) and ask.card in cards_of(patient))
        + any(same_telephone(phone_number, ask.phone) for phone_number in phone_numbers(patient))
    )


def _wrong_details(ask: RegistrationContent, patient: Resource) -> Iterator[str]:
    names = objects_in(patient.get("name"))
    if not names or {*people_in(patient)} != {ask.person} or len([*people_in(patient)]) != len(names):
        yield f"name {patient.get('name')}, birthDate {patient.get('birthDate')}"
    yield from other_values(patient, gender=ask.gender)
    if cards_of(patient) != ([ask.card] if ask.card else []):
        yield f"health card numbers {cards_of(patient)}"
    phones = phone_numbers(patient)
    if not phones or not all(same_telephone(phone, ask.phone) for phone in phones):
        yield f"phones {phones}"


def _labels(concept: Json) -> Iterator[str]:
    yield from map(plain, concept_texts(concept))
    yield from (str(coding.get("code")) for coding in objects_in(as_object(concept).get("coding")))
