"""Requests to register patients, and their judgement."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.grading import is_within, parse_reference, plain
from fhir_gym.tasks.packs.shift.kind import Request, RequestContent
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NO_SUCH_PATIENT, NOT_ALLOWED, SEVERAL_PATIENTS
from fhir_gym.tasks.packs.shift.registry import (
    CARD,
    Contract,
    Insurance,
    RegistryScene,
    contract_resource,
    insurance_resource,
    is_during,
    registered_resource,
    registry_resources,
)
from fhir_gym.types import Json, Resource


class RegistrationContent(RequestContent):
    """A person to be registered.

    Attributes:
        person: The person's name and date of birth.
        gender: Sex of the person.
        phone: Telephone number.
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
        outcome: The outcome.
        people: Ids of the Patients who are the person, or the parent.
        parent: Id of the only parent; empty if there is none.
        coverage: The parent's Coverage, which the new one follows; None if there is none.
    """

    outcome: str
    people: tuple[str, ...] = ()
    parent: str = ""
    coverage: Resource | None = None


@dataclass(slots=True)
class Registry:
    """The patients, coverages and contracts of a place at one moment.

    Attributes:
        scene: The place.
        base_url: Base URL of the server.
        names: Ids of the Patients in use by their names, current and former, and dates of birth.
        cards: Ids of the Patients in use by their health card numbers.
        coverages: The Coverages by the ids of their beneficiaries.
    """

    scene: RegistryScene
    base_url: str = ""
    names: dict[Named, list[str]] = field(default_factory=dict)
    cards: dict[str, list[str]] = field(default_factory=dict)
    coverages: dict[str, list[Resource]] = field(default_factory=dict)

    @classmethod
    def at_start(cls, scene: RegistryScene, base_url: str = "") -> Registry:
        """Return the registry at the start of the episode."""
        registry = cls(scene, base_url)
        for one in registry_resources(scene):
            registry.add(one)
        return registry

    def copy(self) -> Registry:
        """Return a copy to which records can be added."""
        names = {key: [*ids] for key, ids in self.names.items()}
        cards = {key: [*ids] for key, ids in self.cards.items()}
        coverages = {key: [*records] for key, records in self.coverages.items()}
        return Registry(self.scene, self.base_url, names, cards, coverages)

    def add(self, record: Resource) -> None:
        """Add a Patient or a Coverage."""
        id = str(record.get("id"))
        if record.get("resourceType") == "Patient" and record.get("active") is not False:
            for name in people_in(record):
                self.names.setdefault(name, []).append(id)
            for card in cards_of(record):
                self.cards.setdefault(card, []).append(id)
        elif record.get("resourceType") == "Coverage":
            found = parse_reference(record.get("beneficiary"), self.base_url)
            if found:
                self.coverages.setdefault(found[1], []).append(record)

    def on_file(self, ask: RegistrationContent) -> tuple[str, ...]:
        """Return the ids of the Patients who are the person of a request."""
        by_card = self.cards.get(ask.card, []) if ask.card else []
        return tuple(dict.fromkeys([*self.names.get(ask.person, []), *by_card]))

    def parents(self, ask: RegistrationContent) -> tuple[str, ...]:
        """Return the ids of the Patients who are the parent of a request."""
        return tuple(dict.fromkeys(self.names.get(ask.parent, []))) if ask.parent else ()

    def accepts(self, insurer: str) -> bool:
        """Whether the place accepts an insurer."""
        return any(one.active and _is_in_force(one, self.scene.today) for one in contracts_of(self.scene, insurer))

    def insurances(self, patient: str, insurer: str | None = None) -> list[Resource]:
        """Return the Coverages through which a patient's children can be insured.

        Args:
            patient: Id of the patient.
            insurer: Id of the insurer; None for any insurer.
        """
        return [one for one in self.coverages.get(patient, []) if self._covers(one, patient, insurer)]

    def insurance(self, patient: str, insurer: str | None = None) -> Resource | None:
        """Return the Coverage that started last, then the one with the lower id; None if there is none."""
        found = self.insurances(patient, insurer)
        latest = max((bound_of(one, "start") for one in found), default="")
        last = [one for one in found if bound_of(one, "start") == latest]
        return min(last, key=lambda one: str(one["id"]), default=None)

    def _covers(self, coverage: Resource, patient: str, insurer: str | None) -> bool:
        payors = [self._refers(one) for one in items(coverage.get("payor"))]
        return (
            coverage.get("status") == "active"
            and self._refers(coverage.get("subscriber")) == f"Patient/{patient}"
            and (insurer is None or f"Organization/{insurer}" in payors)
            and is_within(f"{self.scene.today}T12:00:00Z", coverage.get("period") or {})
        )

    def _refers(self, value: Json) -> str:
        return "/".join(parse_reference(value, self.base_url) or ())


def contracts_of(scene: RegistryScene, insurer: str) -> list[Contract]:
    """Return the contracts of the place with an insurer."""
    return [one for one in scene.contracts if (one.place, one.insurer) == (scene.place, insurer)]


def _is_in_force(one: Contract, today: str) -> bool:
    return one.start <= today and (not one.end or one.end >= today)


def insurer_id(scene: RegistryScene, name: str) -> str:
    """Return the id of an insurer; empty for no name."""
    return next((one.id for one in scene.insurers if one.name == name), "")


def decide(registry: Registry, ask: RegistrationContent) -> Decision:
    """Apply the rules to a request."""
    there = registry.on_file(ask)
    if there:
        return Decision(ALREADY_DONE, there)
    parents = registry.parents(ask)
    if ask.parent and len(parents) != 1:
        return Decision(SEVERAL_PATIENTS if parents else NO_SUCH_PATIENT, parents)
    parent, insurer = parents[0] if parents else "", insurer_id(registry.scene, ask.insurer)
    coverage = registry.insurance(parent, insurer) if parent else None
    if insurer and (not registry.accepts(insurer) or (ask.parent and coverage is None)):
        return Decision(NOT_ALLOWED, parent=parent)
    return Decision(DONE, parent=parent, coverage=coverage)


def registered(ask: RegistrationContent, decision: Decision, scene: RegistryScene, patient: str) -> list[Resource]:
    """Return the records that a request asks for.

    Args:
        ask: The request.
        decision: What the rules decide.
        scene: The place.
        patient: Id of the new Patient; the Coverage has the same id.
    """
    who = ask.person
    card: Resource = {"identifier": [{"system": CARD, "value": ask.card}]} if ask.card else {}
    found: list[Resource] = [
        {
            "resourceType": "Patient",
            "id": patient,
            **card,
            "name": [{"family": who.family, "given": [who.given]}],
            "telecom": [{"system": "phone", "value": ask.phone}],
            "gender": ask.gender,
            "birthDate": who.birth_date,
        }
    ]
    if ask.insurer:
        number, until = insurance_terms(ask, decision)
        insurance = Insurance(
            id=patient,
            patient=patient,
            subscriber=decision.parent or patient,
            insurer=insurer_id(scene, ask.insurer),
            number=number,
            status="active",
            start=scene.today,
            end=until,
        )
        found.append(insurance_resource(insurance))
    return found


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
    valid = [one for one in scene.contracts if one.active and is_during(scene.today, one.start, one.end)]
    model = seeded_random("contract", request.ask).choice(valid or scene.contracts)
    names = {"id": _slug("contract", request.ask), "place": scene.place, "insurer": request.insurer}
    period = {} if valid else {"start": scene.today, "end": ""}
    return contract_resource(model.model_copy(update={**names, "active": True, **period}))


def missing_insurance(request: RegistrationRequest, scene: RegistryScene) -> Resource:
    """Return the Coverage that the parent would have if the child could be insured through the parent."""
    (parent,) = request.parents
    valid = [one for one in scene.insurances if one.status == "active" and is_during(scene.today, one.start, one.end)]
    model = seeded_random("insurance", request.ask).choice(valid or scene.insurances)
    names = {"patient": parent, "subscriber": parent, "insurer": request.insurer, "status": "active"}
    period = {} if valid else {"start": scene.today, "end": ""}
    return insurance_resource(model.model_copy(update={**names, **period, "id": _slug("insurance", request.ask)}))


def _slug(word: str, ask: RegistrationContent) -> str:
    """Return an id that depends only on the request."""
    parts = (word, ask.person.given, ask.person.family, ask.person.birth_date, ask.phone)
    return re.sub("[^A-Za-z0-9]+", "-", "-".join(parts))[:64].strip("-")


def people_in(patient: Resource) -> Iterator[Named]:
    """Yield the names of a Patient, current and former, each with the date of birth."""
    birth_date = patient.get("birthDate")
    for one in elements(patient.get("name")):
        family, givens = one.get("family"), [part for part in items(one.get("given")) if isinstance(part, str)]
        if isinstance(family, str) and isinstance(birth_date, str):
            yield Named(given=plain(" ".join(givens)), family=plain(family), birth_date=birth_date)


def cards_of(patient: Resource) -> list[str]:
    """Return the health card numbers of a Patient."""
    identifiers = elements(patient.get("identifier"))
    return [str(one.get("value")) for one in identifiers if one.get("system") == CARD]


def bound_of(coverage: Resource, name: str) -> str:
    """Return the first or the last day of a Coverage; empty if it is open."""
    period = coverage.get("period")
    return str(period.get(name) or "") if isinstance(period, dict) else ""


def items(value: Json) -> list[Json]:
    """Return a list as it is, and nothing for another value."""
    return value if isinstance(value, list) else []


def elements(value: Json) -> list[Resource]:
    """Return the objects in a list."""
    return [one for one in items(value) if isinstance(one, dict)]
