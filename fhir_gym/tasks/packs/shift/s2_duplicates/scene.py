"""The patient records of several sites, where some people are on file more than once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import NamedTuple

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import (
    Concept,
    IdAllocator,
    Person,
    instant,
    new_person,
    patient_resource,
    person_called,
    practitioner_resource,
    reference,
)
from fhir_gym.tasks.packs.shift.charts import COMMON_DIAGNOSES, Diagnosis, condition_resource
from fhir_gym.tasks.packs.shift.formulary import LOINC
from fhir_gym.tasks.packs.shift.kind import ShiftScene
from fhir_gym.tasks.packs.shift.registry import (
    CARD,
    INSURER,
    MEMBER,
    PROVIDER,
    Family,
    Organization,
    card_number,
    draw_family,
    draw_insurers,
    draw_period,
    insurance_resource,
    organization_resource,
    place_names,
)
from fhir_gym.types import Json, Resource

_TESTS = (
    Concept(system=LOINC, code="3016-3", display="TSH"),
    Concept(system=LOINC, code="2276-4", display="ferritin"),
    Concept(system=LOINC, code="1988-5", display="C-reactive protein"),
    Concept(system=LOINC, code="36643-5", display="chest X-ray in two views"),
)
_COMING = (*("booked",) * 3, "pending", "pending", "proposed", "cancelled")
_PAST = (*("fulfilled",) * 3, "noshow", "cancelled")
_ORDERED = ("active", "active", "on-hold", "completed", "revoked", "entered-in-error")
_INSURED = ("active", "active", "active", "cancelled", "draft")
_QUARTER, _DAYS = 15, 200


class DuplicatesScene(ShiftScene):
    """The records of several sites.

    Attributes:
        due: Minimum and maximum number of records that a request changes.
        decisive: Number of parts of the rules that must matter for a request.
        records: The patients, and the records that refer to them.
        others: The other records.
    """

    today: str
    due: tuple[int, int]
    decisive: int
    sites: tuple[Organization, ...]
    records: tuple[Resource, ...]
    others: tuple[Resource, ...]

    @override
    def resources(self) -> list[Resource]:
        return [{**record} for record in (*self.others, *self.records)]


class _Member(NamedTuple):
    """A person of a household, who has one or more records."""

    grown: bool
    given: str
    family: str
    former: str
    birth_date: str
    phones: tuple[str, str]
    cards: tuple[str, str]


class DuplicatesSceneSampler:
    """Draws sites whose patient records all come from the same random process.

    A household has up to two adults and two children. Each of them has one to three records; each record may have a
    former name, a wrong date of birth, no or other numbers, or may belong to another site.
    """

    def __init__(self, rng: random.Random, world: World, ids: IdAllocator, sites: int) -> None:
        self._rng, self._world, self._ids = rng, world, ids
        self._today = world.now.date()
        self._sites = [Organization(id=ids.new("Organization"), name=name) for name in place_names(rng, world, sites)]
        self._insurers = draw_insurers(rng, world, ids, 2)
        self._doctors = [
            new_person(rng, world, ids.new("Practitioner"), resource_type="Practitioner") for _ in range(2)
        ]

    def scene(self, *, families: int, households: int, due: tuple[int, int], decisive: int) -> DuplicatesScene:
        """Draw the records.

        Args:
            families: Number of groups of people with similar names at each site.
            households: Number of households in each group.
            due: See `DuplicatesScene`.
            decisive: See `DuplicatesScene`.
        """
        records: list[Resource] = []
        for site in self._sites:
            for _ in range(families):
                family = draw_family(self._rng, self._world, self._today, (4, 3))
                for _ in range(households):
                    records += self._household(site, family)
        self._rng.shuffle(records)
        return DuplicatesScene(
            today=self._today.isoformat(),
            due=due,
            decisive=decisive,
            sites=tuple(self._sites),
            records=tuple(records),
            others=(
                *(organization_resource(site.id, site.name, *PROVIDER) for site in self._sites),
                *(organization_resource(insurer.id, insurer.name, *INSURER) for insurer in self._insurers),
                *map(practitioner_resource, self._doctors),
            ),
        )

    def _household(self, site: Organization, family: Family) -> list[Resource]:
        """Draw the records of the people who live together."""
        rng = self._rng
        home = person_called(rng, "", "", rng.choice(family.families), family.gender, "")
        phone, member = self._phone(), card_number(rng)
        filed: list[tuple[_Member, Resource]] = []
        for grown, count in ((True, rng.choice((1, 2))), (False, rng.choice((0, 1, 2)))):
            for given in rng.sample(family.givens, count):
                resident = self._member(family, grown, given, home.family, phone)
                mine = [
                    self._patient(resident, site, family, home, member)
                    for _ in range(rng.choices((1, 2, 3), (5, 4, 1))[0])
                ]
                self._link(mine)
                filed += [(resident, patient) for patient in mine]
        adults = [patient["id"] for resident, patient in filed if resident.grown]
        records = [patient for _, patient in filed]
        for resident, patient in filed:
            records += self._referring(patient["id"], adults if not resident.grown else ())
        return records

    def _member(self, family: Family, grown: bool, given: str, name: str, phone: str) -> _Member:
        rng = self._rng
        return _Member(
            grown=grown,
            given=given,
            family=name if rng.random() < 0.8 else rng.choice(family.families),
            former=rng.choice(family.families) if rng.random() < 0.5 else "",
            birth_date=rng.choice(family.adults if grown else family.children),
            phones=(phone, self._phone()),
            cards=(card_number(rng), card_number(rng)),
        )

    def _phone(self) -> str:
        rng = self._rng
        return f"{rng.randrange(201, 990)}-555-0{rng.randrange(100, 200)}"

    def _patient(self, resident: _Member, site: Organization, family: Family, home: Person, member: str) -> Resource:
        """Draw a record of a person, with the changes and mistakes that make records of one person differ."""
        rng = self._rng
        given = resident.given if rng.random() < 0.95 else rng.choice(family.givens)
        dates = family.adults if resident.grown else family.children
        born = resident.birth_date if rng.random() < 0.85 else rng.choice(dates)
        person = person_called(rng, self._ids.new("Patient"), given, resident.family, family.gender, born)
        if rng.random() < 0.75:
            person = person.model_copy(update={"line": home.line, "city": home.city, "state": home.state})
        record = patient_resource(person)
        if resident.former and resident.former != resident.family:
            record["name"] = self._names(given, resident.family, resident.former)
        telecom = [
            {"system": "phone", "value": self._written(phone), "use": "old" if rng.random() < 0.2 else use}
            for phone, use, share in zip(resident.phones, ("home", "mobile"), (0.6, 0.45), strict=True)
            if rng.random() < share
        ]
        identifiers = [*self._cards(*resident.cards)]
        if rng.random() < 0.5:
            identifiers.append({"use": "secondary", "system": MEMBER, "value": member})
        at = site if rng.random() < 0.88 else rng.choice(self._sites)
        elements: Resource = {
            "resourceType": "Patient",
            "id": person.id,
            "identifier": identifiers,
            **record,
            "active": rng.random() < 0.85,
            "telecom": telecom,
            "managingOrganization": reference("Organization", at.id),
        }
        return {name: value for name, value in elements.items() if value != []}

    def _names(self, given: str, family: str, former: str) -> list[Json]:
        """Draw what a record says about a person who has changed the name."""
        current = {"use": "official", "family": family, "given": [given]}
        roll = self._rng.random()
        if roll < 0.4:
            return [{**current, "family": former}]
        use = self._rng.choice(("old", "maiden"))
        return [current, {"use": use, "family": former, "given": [given]}] if roll < 0.8 else [current]

    def _cards(self, card: str, earlier: str) -> Iterator[Json]:
        """Draw the health card numbers on a record: none, the valid one, or an earlier one."""
        roll = self._rng.random()
        if 0.3 <= roll < 0.8:
            yield {"use": "official", "system": CARD, "value": card}
        if 0.55 <= roll < 0.9:
            yield {"use": "old", "system": CARD, "value": earlier}
        if roll >= 0.9:
            yield {"use": "official", "system": CARD, "value": earlier}

    def _written(self, phone: str) -> str:
        area, rest = phone.split("-", 1)
        return self._rng.choice((phone, f"({area}) {rest}", f"+1 {area} {rest.replace('-', ' ')}"))

    def _link(self, records: Sequence[Resource]) -> None:
        """Link some records that are no longer in use to a record of the same person."""
        kept = [record for record in records if record["active"]]
        for record in records:
            if not record["active"] and kept and self._rng.random() < 0.6:
                by = self._rng.choice(kept)
                record.setdefault("link", []).append({"other": reference("Patient", by["id"]), "type": "replaced-by"})
                by.setdefault("link", []).append({"other": reference("Patient", record["id"]), "type": "replaces"})

    def _referring(self, patient: str, adults: Sequence[str]) -> Iterator[Resource]:
        """Draw the records that refer to a patient; those of children may also refer to an adult."""
        rng = self._rng
        for _ in range(rng.choice((0, 1, 2))):
            yield self._appointment(patient, rng.choice(adults) if adults and rng.random() < 0.6 else "")
        for concept in rng.sample(COMMON_DIAGNOSES, rng.choice((0, 1))):
            yield condition_resource(
                Diagnosis(
                    id=self._ids.new("Condition"),
                    patient=patient,
                    concept=concept,
                    clinical=rng.choice(("active", "active", "inactive", "resolved")),
                    verification="confirmed",
                    recorded=self._before_now(),
                )
            )
        for concept in rng.sample(_TESTS, rng.choice((0, 1))):
            yield {
                "resourceType": "ServiceRequest",
                "id": self._ids.new("ServiceRequest"),
                "status": rng.choice(_ORDERED),
                "intent": "order",
                "code": concept.concept,
                "subject": reference("Patient", patient),
                "authoredOn": self._before_now(),
            }
        for _ in range(rng.choice((0, 1))):
            start, end = draw_period(rng, self._today)
            yield insurance_resource(
                id=self._ids.new("Coverage"),
                patient=patient,
                subscriber=rng.choice(adults) if adults and rng.random() < 0.75 else patient,
                insurer=rng.choice(self._insurers).id,
                number=card_number(rng),
                status=rng.choice(_INSURED),
                start=start,
                end=end,
            )

    def _appointment(self, patient: str, adult: str) -> Resource:
        rng = self._rng
        coming = rng.random() < 0.6
        quarters = rng.randrange(1, _DAYS * 24 * 60 // _QUARTER)
        start = self._world.now + (1 if coming else -1) * timedelta(minutes=quarters * _QUARTER)
        doctor = rng.choice(self._doctors)
        people = [reference("Patient", id) for id in (patient, adult) if id]
        return {
            "resourceType": "Appointment",
            "id": self._ids.new("Appointment"),
            "status": rng.choice(_COMING if coming else _PAST),
            "start": instant(start),
            "end": instant(start + timedelta(minutes=2 * _QUARTER)),
            "participant": [
                {"actor": person, "status": "accepted"} for person in (*people, reference("Practitioner", doctor.id))
            ],
        }

    def _before_now(self) -> str:
        return instant(self._world.now - timedelta(minutes=self._rng.randrange(1, _DAYS * 24 * 60)))
