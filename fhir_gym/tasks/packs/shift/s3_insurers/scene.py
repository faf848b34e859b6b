"""The patients of several places with their coverages, accounts, appointments and tasks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import date, timedelta

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import (
    IdAllocator,
    instant,
    new_person,
    patient_resource,
    person_called,
    practitioner_resource,
    reference,
)
from fhir_gym.tasks.packs.shift.kind import ShiftScene
from fhir_gym.tasks.packs.shift.registry import (
    INSURER,
    PROVIDER,
    Organization,
    card_number,
    contract_resource,
    draw_family,
    draw_insurers,
    insurance_resource,
    organization_resource,
    period_between,
    place_names,
)
from fhir_gym.types import Json, Resource

CHECK = "Check insurance"
"""The text of the code of the tasks for the desk."""

_SELF_PAY = "http://terminology.hl7.org/CodeSystem/coverage-selfpay"
_INSURED = (*("active",) * 6, "cancelled", "draft", "entered-in-error")
_ACCOUNTS = (*("active",) * 4, "on-hold", "inactive")
_COMING = ("booked", "booked", "booked", "pending", "cancelled", "proposed")
_PAST = ("fulfilled", "noshow", "booked")
_TASKS = ("requested", "accepted", "in-progress", "completed", "cancelled")
_SOON, _AHEAD = 90, 120


class InsurerScene(ShiftScene):
    """The records of several places.

    Attributes:
        due: Minimum and maximum number of records that a request changes or creates.
        decisive: Number of parts of the rules that must matter for a request.
        records: The contracts, patients, coverages, accounts, appointments and tasks.
    """

    today: str
    due: tuple[int, int]
    decisive: int
    places: tuple[Organization, ...]
    insurers: tuple[Organization, ...]
    records: tuple[Resource, ...]
    practitioners: tuple[Resource, ...]

    @override
    def resources(self) -> list[Resource]:
        return [
            *(organization_resource(place.id, place.name, *PROVIDER) for place in self.places),
            *(organization_resource(insurer.id, insurer.name, *INSURER) for insurer in self.insurers),
            *({**practitioner} for practitioner in (*self.practitioners, *self.records)),
        ]


class InsurerSceneSampler:
    """Draws places whose patients, coverages and contracts all come from the same random process.

    Args:
        rng: Random generator.
        ids: Allocates ids.
        insurers: Number of insurers whose names are unlike; some have a branch with a longer name.
    """

    def __init__(self, rng: random.Random, world: World, ids: IdAllocator, insurers: int) -> None:
        self._rng, self._world, self._ids = rng, world, ids
        self._today: date = world.now.date()
        self._insurers = draw_insurers(rng, world, ids, insurers)
        doctors = (new_person(rng, world, ids.new("Practitioner"), resource_type="Practitioner") for _ in range(2))
        self._doctors = [practitioner_resource(doctor) for doctor in doctors]

    def scene(self, *, places: int, patients: int, due: tuple[int, int], decisive: int) -> InsurerScene:
        """Draw the records."""
        names = place_names(self._rng, self._world, places)
        sites = [Organization(id=self._ids.new("Organization"), name=name) for name in names]
        records = [record for site in sites for record in self._place(site, patients)]
        self._rng.shuffle(records)
        return InsurerScene(
            today=self._today.isoformat(),
            due=due,
            decisive=decisive,
            places=tuple(sites),
            insurers=self._insurers,
            records=tuple(records),
            practitioners=tuple(self._doctors),
        )

    def _place(self, place: Organization, patients: int) -> list[Resource]:
        rng = self._rng
        family = draw_family(rng, self._world, self._today, (4, 3))
        named = rng.sample([*family.people((*family.adults, *family.children))], patients)
        people = [
            person_called(rng, self._ids.new("Patient"), name.given, name.family, family.gender, name.birth_date)
            for name in named
        ]
        records = [*self._contracts(place)]
        for person in people:
            records.append({**patient_resource(person), "managingOrganization": reference("Organization", place.id)})
            subscriber = person.id if rng.random() < 0.75 else rng.choice(people).id
            coverages = [self._coverage(person.id, subscriber) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
            records += coverages
            records += [self._appointment(person.id) for _ in range(rng.choice((0, 1, 2, 2)))]
            records += [self._account(person.id, coverages) for _ in range(rng.choice((0, 1, 1, 2)))]
            records += [self._task(person.id) for _ in range(rng.choice((0, 0, 1)))]
        return records

    def _contracts(self, place: Organization) -> Iterator[Resource]:
        rng = self._rng
        for insurer in self._insurers:
            for _ in range(rng.choice((1, 1, 2))):
                start, end = period_between(
                    self._today - timedelta(days=rng.randrange(100, 900)),
                    self._today + timedelta(days=rng.choice((-1, 1, 1)) * rng.randrange(1, 500)),
                )
                yield contract_resource(
                    id=self._ids.new("OrganizationAffiliation"),
                    place=place.id,
                    insurer=insurer.id,
                    active=rng.random() < 0.9,
                    start=start,
                    end="" if rng.random() < 0.4 else end,
                )

    def _coverage(self, patient: str, subscriber: str) -> Resource:
        """Draw a coverage; some are self-pay, and some begin soon."""
        rng = self._rng
        soon = rng.random() < 0.15
        start, end = period_between(
            self._today + timedelta(days=rng.randrange(1, _SOON) if soon else -rng.randrange(1, 900)),
            self._today + timedelta(days=rng.choice((-1, 1, 1, 1)) * rng.randrange(1, 500)),
        )
        coverage = insurance_resource(
            id=self._ids.new("Coverage"),
            patient=patient,
            subscriber=subscriber,
            insurer=rng.choice(self._insurers).id,
            number=card_number(rng),
            status=rng.choice(_INSURED),
            start=start,
            end="" if rng.random() < 0.4 else end,
        )
        if rng.random() < 0.85:
            return coverage
        kind = {"coding": [{"system": _SELF_PAY, "code": "pay", "display": "PAY"}]}
        head = {name: coverage[name] for name in ("resourceType", "id", "status")}
        return {**head, "type": kind, **coverage, "payor": [reference("Patient", patient)]}

    def _account(self, patient: str, coverages: Sequence[Resource]) -> Resource:
        rng = self._rng
        listed: list[Json] = [
            {"coverage": reference("Coverage", coverage["id"]), "priority": number}
            for number, coverage in enumerate(rng.sample(coverages, rng.randint(1, min(2, len(coverages)))), 1)
        ]
        return {
            "resourceType": "Account",
            "id": self._ids.new("Account"),
            "status": rng.choice(_ACCOUNTS),
            "name": f"Account {card_number(rng)}",
            "subject": [reference("Patient", patient)],
            "coverage": listed,
        }

    def _appointment(self, patient: str) -> Resource:
        rng = self._rng
        past = rng.random() < 0.15
        minutes = 15 * rng.randrange(1, _AHEAD * 24 * 4)
        start = self._world.now + timedelta(minutes=-minutes if past else minutes)
        actors = (reference("Patient", patient), reference("Practitioner", rng.choice(self._doctors)["id"]))
        return {
            "resourceType": "Appointment",
            "id": self._ids.new("Appointment"),
            "status": rng.choice(_PAST if past else _COMING),
            "start": instant(start),
            "end": instant(start + timedelta(minutes=30)),
            "participant": [{"actor": actor, "status": "accepted"} for actor in actors],
        }

    def _task(self, patient: str) -> Resource:
        rng = self._rng
        return {
            "resourceType": "Task",
            "id": self._ids.new("Task"),
            "status": rng.choice(_TASKS),
            "intent": "order",
            "code": {"text": rng.choice((CHECK, CHECK, "Call back"))},
            "for": reference("Patient", patient),
            "authoredOn": instant(self._world.now - timedelta(minutes=rng.randrange(60, 30 * 24 * 60))),
        }
