"""Draw random people with realistic names, and build their Patient and Practitioner resources."""

from __future__ import annotations

import random
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from datetime import date, timedelta
from functools import cache, lru_cache
from weakref import WeakKeyDictionary

import orjson

from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks.core.params import Params
from fhir_gym.tasks.grading.comparison import same_telephone
from fhir_gym.types import Resource


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_GIVEN = {
    "female": _words(
        "Abigail Aïcha Amélie Ana Anneke Beatriz Camille Chloé Danielle Dörte Eleanor Elżbieta Farah Fatima Frances "
        "Grace Hannah Hélène Imani Ingrid Irène Jasmine Jo-Ann Josephine Katarzyna Keiko Lakshmi Leila Lucía "
        "Marguerite Mary-Kate María Meera Mei-Ling Nadia Ngozi Noémie Olga Patricia Priya Renée Rosalind Ruth Saoirse "
        "Siobhán Sofía Solveig Theresa Ursula Valentina Wanda Xiomara Yara Zoë Zuzanna"
    ),
    "male": _words(
        "Aaron Abdul Adrián Ángel Anders Andrés Benedikt Björn Brendan Carlos Cédric Chidi Cormac Dmitri Eamon Émile "
        "Enrique Ethan Felix François Gustav Hassan Hiroshi Ibrahim István Jamal Jean-Luc Jesús João Jonas Joseph "
        "Jürgen Karl-Heinz Kwame Lars Lukas Malik Marek Mateo Min-Jun Nikolai Óscar Patrick Pedro Rajesh Rémi Ricardo "
        "Samuel Sebastián Stephen Tadeusz Thomas Vikram Walter Xavier Yusuf Zoltán"
    ),
}
_FAMILY = _words(
    "Abernathy Adeyemi Ahlström Al-Masri Álvarez Bergström Bianchi Björkman Brânză Calloway Carvalho Chaudhry Chen "
    "Çelik Contreras Costa D'Amico D'Angelo D'Souza Delacroix Dvořák Eriksson Espinoza Fairchild Fernández Fitzgerald "
    "Fournier García Gómez Grünwald Gutiérrez Hakimi Hallström Hernández Holloway Huang Ibáñez Iversen Jankowski "
    "Jiménez Kaminski Kowalczyk Kröger Laurent Lefèvre Lindqvist López M'Bala MacKenzie Martínez McAllister Mensah "
    "Moreau Müller N'Diaye Nakamura Nguyễn Nuñez O'Brien O'Connell O'Hara O'Neill O'Sullivan Okafor Oyelaran Patel "
    "Peña Petrović Pham Quiñones Ramírez Reyes Rodríguez Rousseau Sánchez Santos Sjöberg Sørensen Strand Takahashi "
    "Thorne Tremblay Ueda Vásquez Vandenberg Villaseñor Wójcik Whitfield Yamamoto Yücel Zhang Zieliński"
)
_STREETS = _words(
    "Alder Birch Chestnut Dogwood Elm Foxglove Hawthorn Juniper Linden Maple O'Hare Poplar Quarry St-Denis Willow"
)
_STREET_KINDS = ("Avenue", "Court", "Lane", "Road", "Street", "Terrace")
_CITIES = (
    ("Albany", "NY"),
    ("Ann Arbor", "MI"),
    ("Boston", "MA"),
    ("Cañon City", "CO"),
    ("Coeur d'Alene", "ID"),
    ("Duluth", "MN"),
    ("El Paso", "TX"),
    ("Española", "NM"),
    ("Fayetteville", "AR"),
    ("Grand Rapids", "MI"),
    ("La Cañada", "CA"),
    ("Madison", "WI"),
    ("New Haven", "CT"),
    ("O'Fallon", "MO"),
    ("Portland", "OR"),
    ("San José", "CA"),
    ("Savannah", "GA"),
    ("St. Louis", "MO"),
    ("Wilkes-Barre", "PA"),
    ("Winston-Salem", "NC"),
)
_TRIES = 1_000
_YOUNGEST, _OLDEST = 18, 95


class Person(Params):
    """A person for a Patient or Practitioner.

    Attributes:
        id: Id of the resource.
        given: Given name; several given names are one text.
        family: Family name.
        gender: ``female`` or ``male``.
        birth_date: Date of birth (``1985-03-20``).
        phone: Telephone number.
        line: Street address.
        state: Two-letter state code.
    """

    id: str
    given: str
    family: str
    gender: str
    birth_date: str
    phone: str
    line: str
    city: str
    state: str

    @property
    def name(self) -> str:
        """The full name."""
        return f"{self.given} {self.family}"


def new_person(rng: random.Random, world: World, id: str, *, resource_type: str = "Patient") -> Person:
    """Draw a person with an unused name; see `is_new_name`.

    Args:
        rng: Random number generator.
        world: World in which the name must be new.
        id: Id of the person.
        resource_type: ``Patient`` or ``Practitioner``.

    Raises:
        TaskError: No unused name was found.
    """
    for _ in range(_TRIES):
        person = _draw(rng, world.now.date(), id)
        if is_new_name(world, resource_type, person.given, person.family):
            return person
    raise TaskError(f"no unused name in the world {world.manifest.name} after {_TRIES} attempts")


def namesake(rng: random.Random, person: Person, id: str) -> Person:
    """Draw a person with the same name and a similar date of birth."""
    other = rng.choice(confusable_dates(person.birth_date))
    return person.model_copy(update={**_other_contact(rng, person), "id": id, "birth_date": other})


def person_called(rng: random.Random, id: str, given: str, family: str, gender: str, birth_date: str) -> Person:
    """Make a person with these attributes and random contact details."""
    return Person(id=id, given=given, family=family, gender=gender, birth_date=birth_date, **_contact(rng))


def similar_person(rng: random.Random, person: Person, id: str, **same_but: str) -> Person:
    """Copy a person with new contact details. `same_but` changes further attributes (``given="Ana"``)."""
    return person.model_copy(update={**_other_contact(rng, person), "id": id, **same_but})


def other_given(rng: random.Random, person: Person) -> str:
    """Draw a different given name; neither of the two names is a prefix of the other."""
    return rng.choice(_other_givens(person.gender, person.given))


def longer_family(rng: random.Random, person: Person) -> str:
    """Draw a double name that starts with the person's family name, so that a search for the family name finds both."""
    return f"{person.family}-{rng.choice(_other_families(person.family))}"


def patient_resource(person: Person) -> Resource:
    """Build the Patient resource of a person."""
    return {
        "resourceType": "Patient",
        "id": person.id,
        "active": True,
        "name": [{"use": "official", "family": person.family, "given": [person.given]}],
        "telecom": [{"system": "phone", "value": person.phone, "use": "home"}],
        "gender": person.gender,
        "birthDate": person.birth_date,
        "address": [{"use": "home", "line": [person.line], "city": person.city, "state": person.state}],
    }


def practitioner_resource(person: Person) -> Resource:
    """Build the Practitioner resource of a person, with the person's address."""
    language = {"coding": [{"system": "urn:ietf:bcp:47", "code": "en", "display": "English"}]}
    return {
        "resourceType": "Practitioner",
        "id": person.id,
        "active": True,
        "name": [{"use": "official", "family": person.family, "given": [person.given], "prefix": ["Dr."]}],
        "telecom": [{"system": "phone", "value": person.phone, "use": "work"}],
        "address": [{"use": "work", "line": [person.line], "city": person.city, "state": person.state}],
        "gender": person.gender,
        "communication": [language],
    }


def _draw(rng: random.Random, today: date, id: str) -> Person:
    gender = rng.choice(("female", "male"))
    family = rng.choice(_FAMILY)
    if "-" not in family and rng.random() < 0.1:
        family = f"{family}-{rng.choice([name for name in _other_families(family) if '-' not in name])}"
    return Person(
        id=id,
        given=rng.choice(_GIVEN[gender]),
        family=family,
        gender=gender,
        birth_date=(today - timedelta(days=rng.randrange(_YOUNGEST * 365, _OLDEST * 365))).isoformat(),
        **_contact(rng),
    )


def _contact(rng: random.Random) -> dict[str, str]:
    city, state = rng.choice(_CITIES)
    area, number = rng.randrange(201, 990), rng.randrange(100, 200)
    flat = rng.choice(("", "", f" Apt {rng.randrange(1, 40)}"))
    return {
        "phone": rng.choice((f"{area}-555-0{number}", f"({area}) 555-0{number}", f"+1 {area} 555 0{number}")),
        "line": f"{rng.randrange(1, 9_999)} {rng.choice(_STREETS)} {rng.choice(_STREET_KINDS)}{flat}",
        "city": city,
        "state": state,
    }


def _other_contact(rng: random.Random, person: Person) -> dict[str, str]:
    """Draw a telephone number and an address that differ from the person's."""
    while True:
        other = _contact(rng)
        shared = (
            same_telephone(other["phone"], person.phone) or other["line"] == person.line or other["city"] == person.city
        )
        if not shared:
            return other


_known: WeakKeyDictionary[World, dict[str, list[tuple[str, str]]]] = WeakKeyDictionary()


def is_new_name(world: World, resource_type: str, given: str, family: str) -> bool:
    """Whether a name is new in the world: a search for it finds nobody, in whatever order the names are given.

    Searches match prefixes, so a name is also taken if it is the start of an existing name.
    """
    names = _names(world, resource_type)
    for first, last in ((_searched(given), _searched(family)), (_searched(family), _searched(given))):
        for place in range(bisect_left(names, (last, "")), len(names)):
            known_last, known_first = names[place]
            if not known_last.startswith(last):
                break
            if known_first.startswith(first):
                return False
    return True


def _names(world: World, resource_type: str) -> list[tuple[str, str]]:
    """The sorted family and given names of all people of a type; the result is cached for each world."""
    kinds = _known.setdefault(world, {})
    if resource_type not in kinds:
        people = (orjson.loads(body) for body in world.resources(resource_type))
        kinds[resource_type] = sorted(
            {
                (_searched(name.get("family", "")), _searched(given))
                for person in people
                for name in person.get("name", [])
                for given in (*name.get("given", [""]), " ".join(name.get("given", [])))
            }
        )
    return kinds[resource_type]


@cache
def _other_givens(gender: str, given: str) -> tuple[str, ...]:
    return tuple(n for n in _GIVEN[gender] if not n.startswith(given) and not given.startswith(n))


@cache
def _other_families(family: str) -> tuple[str, ...]:
    return tuple(name for name in _FAMILY if name != family)


@lru_cache(maxsize=10_000)
def _searched(name: str) -> str:
    """Normalise a name as searches do: lower case, without accents."""
    letters = unicodedata.normalize("NFKD", name.casefold())
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def confusable_dates(birth_date: str) -> list[str]:
    """Return dates that are easily confused with a date: day and month swapped, or a day, year or decade off."""
    born = date.fromisoformat(birth_date)
    days = [born - timedelta(days=1), born + timedelta(days=1)]
    if born.day <= 12:
        days.append(born.replace(month=born.day, day=born.month))
    if born.day <= 28:
        days += [born.replace(year=born.year - 1), born.replace(year=born.year - 10)]
    return [day.isoformat() for day in dict.fromkeys(days) if day != born]


_INSURER_WORDS = (
    (
        *("Acadia", "Blue Heron", "Canyon", "Cornerstone", "Evergrove", "First Prairie", "Granite State", "Keystone"),
        *("Lakeland", "Meridian", "New Dominion", "Old Harbor", "Pinnacle", "Redwood", "Silver Birch", "Summit"),
        "Tidewater",
    ),
    ("Assurance", "Benefit", "Family", "Mutual", "National", "People's", "Regional", "United"),
    ("Health Insurance", "Health Plan", "Health Partners", "Medical Insurance", "Healthcare"),
)
_organization_names: WeakKeyDictionary[World, list[str]] = WeakKeyDictionary()


def insurer_name(rng: random.Random, world: World) -> str:
    """Draw an insurer's name; no organization in the world has a name that starts with it.

    Raises:
        TaskError: No unused name was found.
    """
    return organization_name(rng, world, _INSURER_WORDS)


def organization_name(rng: random.Random, world: World, words: Sequence[Sequence[str]]) -> str:
    """Draw a name that has one word of each group; no organization in the world has a name that starts with it.

    Args:
        rng: Random number generator.
        world: World in which the name must be new.
        words: The groups of words.

    Raises:
        TaskError: No unused name was found.
    """
    names = _organizations(world)
    for _ in range(_TRIES):
        name = " ".join(rng.choice(group) for group in words)
        place = bisect_left(names, name.casefold())
        if not any(other.startswith(name.casefold()) for other in names[place : place + 1]):
            return name
    raise TaskError(f"the world {world.manifest.name} has no unused organization name after {_TRIES} attempts")


def _organizations(world: World) -> list[str]:
    """Return the sorted and casefolded names of a world's organizations; the result is cached for each world."""
    if world not in _organization_names:
        bodies = (orjson.loads(body) for body in world.resources("Organization"))
        _organization_names[world] = sorted(str(body.get("name", "")).casefold() for body in bodies)
    return _organization_names[world]
