"""The patients on file at a place, their insurance, and the insurers that the place accepts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from itertools import product

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import (
    IdAllocator,
    Person,
    confusable_dates,
    insurer_name,
    new_names,
    organization_name,
    patient_resource,
    person_called,
    reference,
    similar_person,
)
from fhir_gym.tasks.packs.shift.kind import ShiftScene
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.types import Json, Resource

CARD = "http://example.org/health-card"
"""System of health card numbers."""
MEMBER = "http://example.org/member-number"
"""System of numbers that are no health card numbers."""

_PLACE_WORDS = (
    ("Ashford", "Birchwood", "Copperfield", "Dunmore", "Elmhurst", "Fairview", "Glenwood", "Hillcrest"),
    ("Family", "Pediatric", "Children's", "Neighborhood"),
    ("Practice", "Clinic", "Health Center", "Medical Group"),
)
_REGIONS = ("New England", "the Great Lakes", "the Midwest", "the Pacific", "the South")
_ORGANIZATION_TYPE = "http://terminology.hl7.org/CodeSystem/organization-type"
_STATUSES = (*("active",) * 7, "cancelled", "draft", "entered-in-error")
_CHILDHOOD, _GROWN = 17 * 365, 30 * 365
_SHORTEST = timedelta(days=27)
_OLDEST = 55 * 365


class Family(Params):
    """The names and dates of birth from which people are drawn; every combination is equally likely to be on file.

    Attributes:
        gender: Sex of everyone.
        givens: Given names.
        families: Family names.
        adults: Dates of birth of adults.
        children: Dates of birth of children.
    """

    gender: str
    givens: tuple[str, ...]
    families: tuple[str, ...]
    adults: tuple[str, ...]
    children: tuple[str, ...]

    def people(self, dates: Sequence[str]) -> Iterator[Named]:
        """Yield everyone with one of these dates of birth."""
        for given, family, birth_date in product(self.givens, self.families, dates):
            yield Named(given=given, family=family, birth_date=birth_date)


class Registered(Params):
    """A patient on file.

    Attributes:
        active: Whether the record is in use.
        former: Former family name; empty if there is none.
        maiden: Whether the former name is the maiden name.
        card: Health card number; empty if there is none.
        old_card: Number of a replaced health card; empty if there is none.
        member: A number that is no health card number; empty if there is none.
    """

    person: Person
    active: bool
    former: str = ""
    maiden: bool = False
    card: str = ""
    old_card: str = ""
    member: str = ""


class Organization(Params):
    """A place or an insurer."""

    id: str
    name: str


class RegistryScene(ShiftScene):
    """The records of a place.

    Attributes:
        place: Id of the Organization.
        other: Id of another Organization that has contracts with the same insurers.
        other_name: Name of the other Organization.
        families: The names and dates of birth from which people are drawn.
        people: The patients on file.
        contracts: The OrganizationAffiliations.
        insurances: The Coverages.
    """

    today: str
    place: str
    name: str
    other: str
    other_name: str
    families: tuple[Family, ...]
    people: tuple[Registered, ...]
    insurers: tuple[Organization, ...]
    contracts: tuple[Resource, ...]
    insurances: tuple[Resource, ...]

    @override
    def resources(self) -> list[Resource]:
        return [
            *(organization_resource(id, name, *PROVIDER) for id, name in _places(self)),
            *(organization_resource(insurer.id, insurer.name, *INSURER) for insurer in self.insurers),
            *map(registered_resource, self.people),
            *({**record} for record in (*self.contracts, *self.insurances)),
        ]


def draw_registry(
    rng: random.Random,
    world: World,
    ids: IdAllocator,
    *,
    families: int,
    shape: tuple[int, int],
    on_file: int,
    twins: int,
    insurers: int,
) -> RegistryScene:
    """Draw a place whose patients, coverages and contracts come from the same random process.

    Args:
        rng: Random generator.
        world: The world.
        ids: Allocates ids.
        families: Number of groups of people with similar names.
        shape: Number of given names and of family names of a group.
        on_file: Number of people of a group who are on file.
        twins: Number of further patients who share name and date of birth with another patient.
        insurers: Number of insurers whose names are unlike; some have a branch with a longer name.
    """
    today = world.now.date()
    groups = [draw_family(rng, world, today, shape) for _ in range(families)]
    people: list[Registered] = []
    for group in groups:
        named = rng.sample([*group.people((*group.adults, *group.children))], on_file)
        drawn = [
            person_called(rng, ids.new("Patient"), name.given, name.family, group.gender, name.birth_date)
            for name in named
        ]
        drawn += [similar_person(rng, twin, ids.new("Patient")) for twin in rng.sample(drawn, twins // families)]
        people += [_register(rng, person, group) for person in drawn]
    rng.shuffle(people)
    payers = draw_insurers(rng, world, ids, insurers)
    place, other = ids.new("Organization"), ids.new("Organization")
    first, second = place_names(rng, world, 2)
    grown = {day for group in groups for day in group.adults}
    return RegistryScene(
        today=today.isoformat(),
        place=place,
        name=first,
        other=other,
        other_name=second,
        families=tuple(groups),
        people=tuple(people),
        insurers=payers,
        contracts=tuple(_draw_contracts(rng, ids, today, (place, other), payers)),
        insurances=tuple(_draw_insurances(rng, ids, today, people, grown, payers)),
    )


def place_names(rng: random.Random, world: World, number: int) -> list[str]:
    """Draw different names of places."""
    names: dict[str, None] = {}
    while len(names) < number:
        names[organization_name(rng, world, _PLACE_WORDS)] = None
    return [*names]


def draw_family(rng: random.Random, world: World, today: date, shape: tuple[int, int]) -> Family:
    """Draw names and dates of birth that are easily confused.

    Args:
        rng: Random generator.
        world: World in which the names are new.
        today: The present day.
        shape: Number of given names and of family names.
    """
    seed, (givens, families, *_) = new_names(rng, world, (*shape, 1), "Patient")
    first_of_adults = (today - timedelta(days=rng.randrange(_GROWN, _OLDEST))).isoformat()
    first_of_children = (today - timedelta(days=rng.randrange(500, _CHILDHOOD - 800))).isoformat()
    youth = ((today - timedelta(days=_CHILDHOOD)).isoformat(), (today - timedelta(days=2)).isoformat())
    children = [day for day in confusable_dates(first_of_children) if youth[0] < day < youth[1]]
    adults = confusable_dates(first_of_adults)
    return Family(
        gender=seed.gender,
        givens=tuple(givens),
        families=tuple(families),
        adults=(first_of_adults, *rng.sample(adults, 2)),
        children=(first_of_children, *rng.sample(children, 2)),
    )


def card_number(rng: random.Random) -> str:
    """Draw a number as on health cards."""
    return f"{rng.choice('ABCDEFGHJKLMNPRSTUVWXYZ')}{rng.randrange(10**8, 10**9)}"


def _register(rng: random.Random, person: Person, group: Family) -> Registered:
    others = [family for family in group.families if family != person.family]
    return Registered(
        person=person,
        active=rng.random() < 0.85,
        former=rng.choice(others) if rng.random() < 0.35 else "",
        maiden=rng.random() < 0.5,
        card=card_number(rng) if rng.random() < 0.8 else "",
        old_card=card_number(rng) if rng.random() < 0.6 else "",
        member=card_number(rng) if rng.random() < 0.5 else "",
    )


def draw_insurers(rng: random.Random, world: World, ids: IdAllocator, number: int) -> tuple[Organization, ...]:
    """Draw `number` insurers with unlike names, and half as many branches, whose names are longer."""
    names: dict[str, None] = {}
    while len(names) < number:
        names[insurer_name(rng, world)] = None
    branches = [f"{name} of {rng.choice(_REGIONS)}" for name in rng.sample([*names], number // 2)]
    everyone = [*names, *branches]
    return tuple(Organization(id=ids.new("Organization"), name=name) for name in rng.sample(everyone, len(everyone)))


def _draw_contracts(
    rng: random.Random, ids: IdAllocator, today: date, places: Sequence[str], insurers: Sequence[Organization]
) -> Iterator[Resource]:
    for place, insurer in product(places, insurers):
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            start, end = draw_period(rng, today)
            yield contract_resource(
                id=ids.new("OrganizationAffiliation"),
                place=place,
                insurer=insurer.id,
                active=rng.random() < 0.95,
                start=start,
                end=end,
            )


def _draw_insurances(
    rng: random.Random,
    ids: IdAllocator,
    today: date,
    people: Sequence[Registered],
    grown: set[str],
    insurers: Sequence[Organization],
) -> Iterator[Resource]:
    adults = [person.person.id for person in people if person.person.birth_date in grown]
    for person in people:
        is_grown, mine = person.person.birth_date in grown, rng.sample(insurers, 2)
        for _ in range(rng.choice((4, 5, 6) if is_grown else (0, 0, 1))):
            start, end = draw_period(rng, today)
            yield insurance_resource(
                id=ids.new("Coverage"),
                patient=person.person.id,
                subscriber=person.person.id if is_grown and rng.random() < 0.85 else rng.choice(adults),
                insurer=rng.choice(mine).id,
                number=card_number(rng),
                status=rng.choice(_STATUSES),
                start=start,
                end=end,
            )


def draw_period(rng: random.Random, today: date) -> tuple[str, str]:
    """Draw the first and the last day of a period, which often contains the present day; some have no end."""
    start = today + timedelta(days=rng.choice((-1, -1, -1, -1, -1, -1, 1)) * rng.randrange(1, 900))
    if rng.random() < 0.25:
        return start.isoformat(), ""
    return period_between(start, today + timedelta(days=rng.choice((-1, 0, 1, 1, 1)) * rng.randrange(1, 500)))


def period_between(day: date, other: date) -> tuple[str, str]:
    """Return the first and the last day of a period that is between two days, but lasts at least four weeks."""
    first, last = sorted((day, other))
    return first.isoformat(), max(last, first + _SHORTEST).isoformat()


def _places(scene: RegistryScene) -> Iterator[tuple[str, str]]:
    yield scene.place, scene.name
    yield scene.other, scene.other_name


PROVIDER, INSURER = ("prov", "Healthcare Provider"), ("ins", "Insurance Company")
"""Code and display of types of Organizations."""


def organization_resource(id: str, name: str, code: str, display: str) -> Resource:
    """Build an Organization with a code of the FHIR organization types."""
    kind = {"system": _ORGANIZATION_TYPE, "code": code, "display": display}
    return {"resourceType": "Organization", "id": id, "active": True, "type": [{"coding": [kind]}], "name": name}


def registered_resource(person: Registered) -> Resource:
    """Build the Patient of a patient on file."""
    identifiers: list[Json] = []
    if person.card:
        identifiers.append({"use": "official", "system": CARD, "value": person.card})
    if person.old_card:
        identifiers.append({"use": "old", "system": CARD, "value": person.old_card})
    if person.member:
        identifiers.append({"use": "secondary", "system": MEMBER, "value": person.member})
    head, rest = {"resourceType": "Patient", "id": person.person.id}, patient_resource(person.person)
    names: list[Json] = list(rest["name"])
    if person.former:
        use = "maiden" if person.maiden else "old"
        names.append({"use": use, "family": person.former, "given": [person.person.given]})
    return {
        **head,
        **({"identifier": identifiers} if identifiers else {}),
        **rest,
        "active": person.active,
        "name": names,
    }


def contract_resource(*, id: str, place: str, insurer: str, active: bool, start: str, end: str) -> Resource:
    """Build the OrganizationAffiliation of an insurer's contract with a place. An empty `end` means an open end."""
    return {
        "resourceType": "OrganizationAffiliation",
        "id": id,
        "active": active,
        "period": _period(start, end),
        "organization": reference("Organization", insurer),
        "participatingOrganization": reference("Organization", place),
    }


def insurance_resource(
    *, id: str, patient: str, subscriber: str, insurer: str, number: str, status: str, start: str, end: str
) -> Resource:
    """Build the Coverage of a patient."""
    return {
        "resourceType": "Coverage",
        "id": id,
        "status": status,
        "subscriber": reference("Patient", subscriber),
        "subscriberId": number,
        "beneficiary": reference("Patient", patient),
        "period": _period(start, end),
        "payor": [reference("Organization", insurer)],
    }


def _period(start: str, end: str) -> dict[str, str]:
    return {"start": start, "end": end} if end else {"start": start}
