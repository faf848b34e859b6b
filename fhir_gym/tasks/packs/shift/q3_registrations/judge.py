"""Judge registrations of patients against the registries that the agent met."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from fhir_gym.tasks.authoring import concept_texts
from fhir_gym.tasks.grading import phone_numbers, plain, same_moment, same_telephone
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog, Write
from fhir_gym.tasks.packs.shift.kind import Judgement
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NO_SUCH_PATIENT, NOT_ALLOWED, SEVERAL_PATIENTS
from fhir_gym.tasks.packs.shift.q3_registrations.rules import (
    Decision,
    RegistrationContent,
    RegistrationRequest,
    Registry,
    absent_parent,
    cards_of,
    contracts_of,
    decide,
    elements,
    insurance_terms,
    items,
    missing_contract,
    missing_insurance,
    people_in,
)
from fhir_gym.tasks.packs.shift.registry import RegistryScene
from fhir_gym.types import Json, Resource

_ALIKE = 3
"""Number of details, of five, that a new Patient shares at least with the request to which it belongs."""
_RELATIONSHIPS = {
    "own": ("self", "onself"),
    "parent": (*("child", "natural child", "nchild", "dependent", "daughter", "dauc", "dau", "son", "sonc", "other"),),
}
"""Codes and texts that ``Coverage.relationship`` may have."""


class RegistrationJudge:
    """Judges registrations.

    Args:
        requests: The requests.
        scene: The place.
        log: What the agent wrote and looked up.
    """

    def __init__(self, requests: Sequence[RegistrationRequest], scene: RegistryScene, log: EpisodeLog) -> None:
        self.requests, self.scene, self.log = requests, scene, log

    def judge(self, answers: Sequence[str]) -> list[Judgement]:
        """Judge all requests."""
        return [self._judge_one(number, answer) for number, answer in enumerate(answers)]

    def _judge_one(self, number: int, answer: str) -> Judgement:
        request, claimed = self.requests[number], self._claimed[number]
        left = claimed & self.log.changed
        if not left:
            return Judgement.declined(request, answer, self._declined(number, answer), claimed)
        decisions = [decide(one, request.ask) for one in (self._met(number), self._planned(number))]
        problems = self._problems(request.ask, [one for one in decisions if one.outcome == DONE], left)
        found: Json = [*problems, answer] if problems or answer != DONE else answer
        return Judgement(not problems and answer == DONE, bool(problems), request.outcome, found, claimed)

    @cached_property
    def _new(self) -> list[Write]:
        """The latest write of each new record, with the record as the agent last left it."""
        writes = {one.record: one for one in self.log.writes_of_agent}
        old = self.log.end.before
        return [one for one in writes.values() if old.read(one.resource_type, one.id) is None]

    @cached_property
    def _claimed(self) -> list[frozenset[str]]:
        """For each request, the records that belong to it."""
        owners: dict[str, int] = {}
        for number, request in reversed([*enumerate(self.requests)]):
            owners |= {f"Patient/{id}": number for id in request.on_file if f"Patient/{id}" in self.log.changed}
        for one in self._new:
            number = self._most_like(one.after or one.before or {}) if one.resource_type == "Patient" else -1
            if number >= 0:
                owners[one.record] = number
        for one in self._new:
            beneficiary = self.log.end.refers((one.after or one.before or {}).get("beneficiary"))
            if one.resource_type == "Coverage" and beneficiary in owners:
                owners[one.record] = owners[beneficiary]
        return [
            frozenset(record for record, owner in owners.items() if owner == number)
            for number in range(len(self.requests))
        ]

    def _most_like(self, patient: Resource) -> int:
        """Return the number of the request that a new Patient resembles most; -1 if it resembles none."""
        alike = [_details_in_common(one.ask, patient) for one in self.requests]
        return alike.index(max(alike)) if max(alike) >= _ALIKE else -1

    def _met(self, number: int) -> Registry:
        """Return the registry before the first write for a request."""
        first = min((one.number for one in self.log.writes_of_agent if one.record in self._claimed[number]), default=0)
        mine = {one.record for one in self._new}
        states = {one.record: one.after for one in self.log.writes[:first] if one.record in mine}
        return self._with(states.values())

    def _planned(self, number: int) -> Registry:
        """Return the registry after the requests with earlier letters, as the agent has left them."""
        earlier = {one for claimed in self._claimed[:number] for one in claimed}
        return self._with(one.after for one in self._new if one.record in earlier)

    @cached_property
    def _start(self) -> Registry:
        """The registry at the start of the episode."""
        return Registry.at_start(self.scene, self.log.end.base_url)

    def _with(self, states: Iterable[Resource | None]) -> Registry:
        """Return the registry at the start with more records."""
        registry = self._start.copy()
        for one in states:
            if one is not None:
                registry.add(one)
        return registry

    def _problems(self, ask: RegistrationContent, decisions: Sequence[Decision], left: frozenset[str]) -> list[Json]:
        """Describe what is wrong with the records that the agent left for a request."""
        made = [one for one in self._new if one.record in left]
        patients = [one.after for one in made if one.resource_type == "Patient" and one.after]
        coverages = [one.after for one in made if one.resource_type == "Coverage" and one.after]
        wanted = bool(ask.insurer)
        if not decisions or len(patients) != 1 or len(coverages) > wanted or len(left) > len(patients + coverages):
            return [f"left {one}" for one in sorted(left)]
        problems: list[Json] = [*_wrong_details(ask, patients[0])]
        if wanted and not coverages:
            problems.append("no Coverage")
        for coverage in coverages:
            possible = [[*self._wrong_terms(ask, one, coverage)] for one in decisions]
            fewest: list[str] = min(possible, key=len)
            problems += fewest
        return problems

    def _wrong_terms(self, ask: RegistrationContent, decision: Decision, coverage: Resource) -> Iterator[str]:
        """Yield what is wrong with a new Coverage whose beneficiary is right."""
        refers, (number, until) = self.log.end.refers, insurance_terms(ask, decision)
        beneficiary = refers(coverage.get("beneficiary"))
        subscriber = f"Patient/{decision.parent}" if decision.parent else beneficiary
        if coverage.get("status") != "active":
            yield f"status {coverage.get('status')}"
        for name in ("subscriber", "policyHolder"):
            if (name in coverage or name == "subscriber") and refers(coverage.get(name)) != subscriber:
                yield f"{name} {coverage.get(name)}"
        if coverage.get("subscriberId") != number:
            yield f"subscriberId {coverage.get('subscriberId')}"
        payors = [refers(one) for one in items(coverage.get("payor"))]
        insurer = next(one.id for one in self.scene.insurers if one.name == ask.insurer)
        if payors != [f"Organization/{insurer}"]:
            yield f"payor {payors}"
        period = coverage.get("period")
        period = period if isinstance(period, dict) else {}
        start, end = period.get("start"), period.get("end")
        if not same_moment(start, self.scene.today) or not (same_moment(end, until) if until else end is None):
            yield f"period {period}"
        said = {one.casefold() for one in _labels(coverage.get("relationship"))}
        if not said <= {*_RELATIONSHIPS["parent" if decision.parent else "own"]}:
            yield f"relationship {sorted(said)}"

    def _declined(self, number: int, answer: str) -> bool:
        """Whether a request was rightly declined, after the agent had looked."""
        request, registry = self.requests[number], self._planned(number)
        decision = decide(registry, request.ask)
        if answer == DONE or answer != decision.outcome:
            return False
        known = [self._knows(id) for id in decision.people]
        if answer in (ALREADY_DONE, SEVERAL_PATIENTS):
            return any(known) if answer == ALREADY_DONE else all(known)
        if answer == NO_SUCH_PATIENT:
            return bool(self.log.lookups_of(absent_parent(request, self.scene)))
        return answer == NOT_ALLOWED and (self._saw_no_contract(request) or self._saw_no_insurance(request, decision))

    def _knows(self, patient: str) -> bool:
        """Whether the agent has made or seen a Patient."""
        record = f"Patient/{patient}"
        return any(one.record == record for one in self._new) or self.log.has_seen([record])

    def _saw_no_contract(self, request: RegistrationRequest) -> bool:
        """Whether the place does not accept the insurer, and the agent has looked that up."""
        contracts = [f"OrganizationAffiliation/{one.id}" for one in contracts_of(self.scene, request.insurer)]
        looked = bool(self.log.lookups_of(missing_contract(request, self.scene)))
        return not request.accepted and (looked or bool(contracts and self.log.has_seen(contracts)))

    def _saw_no_insurance(self, request: RegistrationRequest, decision: Decision) -> bool:
        """Whether the child cannot be insured through the parent, and the agent has looked that up."""
        if decision.coverage is not None or not decision.parent:
            return False
        if decision.parent not in request.parents:
            return True  # the agent itself has registered the parent
        named = (request.insurer, decision.parent)
        own = [f"Coverage/{one.id}" for one in self.scene.insurances if (one.insurer, one.patient) == named]
        looked = bool(self.log.lookups_of(missing_insurance(request, self.scene)))
        return looked or bool(own and self.log.has_seen(own))


def _details_in_common(ask: RegistrationContent, patient: Resource) -> int:
    """Return how many of five details a new Patient shares with a request."""
    who, people = ask.person, [*people_in(patient)]
    return (
        any(one.given == who.given for one in people)
        + any(one.family == who.family for one in people)
        + (patient.get("birthDate") == who.birth_date)
        + (bool(ask.card) and ask.card in cards_of(patient))
        + any(same_telephone(one, ask.phone) for one in phone_numbers(patient))
    )


def _wrong_details(ask: RegistrationContent, patient: Resource) -> Iterator[str]:
    """Yield what is wrong with a new Patient."""
    names = elements(patient.get("name"))
    if not names or {*people_in(patient)} != {ask.person} or len([*people_in(patient)]) != len(names):
        yield f"name {patient.get('name')}, birthDate {patient.get('birthDate')}"
    if patient.get("gender") != ask.gender:
        yield f"gender {patient.get('gender')}"
    if cards_of(patient) != ([ask.card] if ask.card else []):
        yield f"health card numbers {cards_of(patient)}"
    phones = phone_numbers(patient)
    if not phones or not all(same_telephone(one, ask.phone) for one in phones):
        yield f"phones {phones}"


def _labels(concept: Json) -> Iterator[str]:
    """Yield the codes and texts of a CodeableConcept."""
    yield from map(plain, concept_texts(concept))
    if isinstance(concept, dict):
        yield from (str(one.get("code")) for one in elements(concept.get("coding")))
