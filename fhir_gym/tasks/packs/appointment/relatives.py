"""Draw, build and check relatives of patients; relationships are codes of v3-RoleCode or words."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from fhir_gym.tasks import Check, Params
from fhir_gym.tasks.authoring import SNOMED, Person, codings, concept_texts, other_given, reference, similar_person
from fhir_gym.tasks.grading import named, plain
from fhir_gym.types import Json, Resource

ROLES = "http://terminology.hl7.org/CodeSystem/v3-RoleCode"
_OLDEST = 104
_YEAR = 365.25


@dataclass(frozen=True, slots=True)
class _Relation:
    """A relation.

    Attributes:
        code: Code in v3-RoleCode.
        narrower: Codes with a narrower meaning, which the checks accept too.
        broader: Codes with a broader meaning, which the checks accept only in addition to another code.
        gender: Gender that the relation implies; None if the relation implies no gender.
        older: Minimum and maximum number of years by which the relative is older than the patient.
    """

    code: str
    narrower: tuple[str, ...]
    broader: tuple[str, ...]
    gender: str | None
    older: tuple[int, int]


_PARENT, _SIBLING, _CHILD = ("PRN", "FAMMEMB"), ("SIB", "FAMMEMB"), ("CHILD", "NCHILD", "FAMMEMB")
RELATIONS = {
    "mother": _Relation("MTH", ("NMTH",), _PARENT, "female", (20, 36)),
    "father": _Relation("FTH", ("NFTH",), _PARENT, "male", (20, 38)),
    "guardian": _Relation("GUARD", (), ("RESPRSN",), None, (15, 36)),
    "spouse": _Relation("SPS", ("HUSB", "WIFE"), ("SIGOTHR", "FAMMEMB"), None, (-6, 6)),
    "brother": _Relation("BRO", ("NBRO",), _SIBLING, "male", (-8, 8)),
    "sister": _Relation("SIS", ("NSIS",), _SIBLING, "female", (-8, 8)),
    "son": _Relation("SONC", ("SON",), _CHILD, "male", (-36, -20)),
    "daughter": _Relation("DAUC", ("DAU",), _CHILD, "female", (-36, -20)),
}
"""Relations by the word for them in prompts."""
ONLY_ONE = frozenset({"mother", "father", "spouse"})
"""Relations that a patient can have with only one person."""

_V2 = "http://terminology.hl7.org/CodeSystem/v2-0063"
_MEANINGS: Mapping[str, Mapping[str, str]] = {
    ROLES: {code: word for word, relation in RELATIONS.items() for code in (relation.code, *relation.narrower)},
    _V2: {"MTH": "mother", "FTH": "father", "GRD": "guardian", "SPO": "spouse", "BRO": "brother", "SIS": "sister"},
    SNOMED: {
        **{"72705000": "mother", "65656005": "mother", "66839005": "father", "9947008": "father"},
        **{"58626002": "guardian", "127848009": "spouse", "127849001": "spouse", "127850001": "spouse"},
        **{"70924004": "brother", "27733009": "sister", "65616008": "son", "66089001": "daughter"},
    },
}
"""Meaning of each code, by code system."""
_V2_CODES = {word: (code,) for code, word in _MEANINGS[_V2].items()}
_SAME_SYSTEM = {"http://hl7.org/fhir/v3/RoleCode": ROLES, "http://hl7.org/fhir/v2/0063": _V2}
_SYNONYMS: Mapping[str, str] = {
    **{word: word for word in RELATIONS},
    **dict.fromkeys(("mom", "mum", "mommy"), "mother"),
    **dict.fromkeys(("dad", "daddy"), "father"),
    **dict.fromkeys(("husband", "wife"), "spouse"),
}
"""Words for each relation."""
_OTHER_RELATIONS = frozenset(
    {"adopted", "adoptive", "aunt", "cousin", "ex", "former", "foster", "friend", "god", "godfather", "godmother"}
    | {"granddaughter", "grandfather", "grandmother", "grandson", "great", "half", "law", "neighbor", "neighbour"}
    | {"nephew", "niece", "no", "not", "partner", "step", "stepbrother", "stepdaughter", "stepfather", "stepmother"}
    | {"stepsister", "stepson", "uncle"}
)
"""Words that change the meaning of a relation."""
_TOKEN = re.compile(r"[^\W\d_]+")


class Relative(Params):
    """A relative of a patient.

    Attributes:
        patient: Id of the patient.
        person: The relative; the person's `id` is the id of the RelatedPerson.
        relation: Relation to the patient, one of `RELATIONS`.
    """

    patient: str
    person: Person
    relation: str


def fitting_relations(patient: Person, today: date, *, youngest: int = 0) -> list[str]:
    """Return the relations that a relative can have to a patient if the relative is at least `youngest` years old."""
    age = int((today - date.fromisoformat(patient.birth_date)).days / _YEAR)
    return [
        word
        for word, relation in RELATIONS.items()
        if age + relation.older[0] > youngest and age + relation.older[1] < _OLDEST
    ]


def new_relative(
    rng: random.Random, patient: Person, id: str, relation: str, *, gender: str = "", given: str = ""
) -> Relative:
    """Draw a relative of a patient, with the same family name and another given name.

    Args:
        rng: Random generator.
        patient: The patient.
        id: Id of the RelatedPerson.
        relation: One of `RELATIONS`.
        gender: Gender if the relation implies no gender; an empty string draws the gender.
        given: Given name; an empty string draws the name.
    """
    kinship = RELATIONS[relation]
    gender = kinship.gender or gender or rng.choice(("female", "male"))
    days = rng.randrange(int(kinship.older[0] * _YEAR), int(kinship.older[1] * _YEAR))
    born = date.fromisoformat(patient.birth_date) - timedelta(days=days)
    given = given or other_given(rng, patient.model_copy(update={"gender": gender}))
    person = similar_person(rng, patient, id, given=given, gender=gender, birth_date=born.isoformat())
    return Relative(patient=patient.id, person=person, relation=relation)


def relation_concept(word: str) -> Resource:
    """Build the CodeableConcept of a relation."""
    return {"coding": [{"system": ROLES, "code": RELATIONS[word].code}]}


def related_person(relative: Relative) -> Resource:
    """Build the RelatedPerson of a relative."""
    person = relative.person
    return {
        "resourceType": "RelatedPerson",
        "id": person.id,
        "active": True,
        "patient": reference("Patient", relative.patient),
        "relationship": [relation_concept(relative.relation)],
        "name": [{"use": "official", "family": person.family, "given": [person.given]}],
        "telecom": [{"system": "phone", "value": person.phone, "use": "home"}],
        "gender": person.gender,
        "birthDate": person.birth_date,
        "address": [{"use": "home", "line": [person.line], "city": person.city, "state": person.state}],
    }


def relative_checks(relative: Relative, record: Resource) -> Iterator[Check]:
    """Yield checks that a RelatedPerson has the name and relation of a relative, and no other name or relation.

    The relation may be a code of v3-RoleCode in any coding, or words in a text.
    """
    names, person = list(record.get("name", [])), relative.person
    right = bool(names) and all(named(name, person.given, person.family) for name in names)
    yield Check(name="name", passed=right, expected=person.name, actual=names)
    concepts = list(record.get("relationship", []))
    right = says_relation(concepts, relative.relation)
    yield Check(name="relationship", passed=right, expected=relative.relation, actual=concepts)


def says_relation(concepts: list[Json], word: str) -> bool:
    """Return whether concepts state a relation and no other relation, by codes or in words."""
    return _said(concepts) - set(RELATIONS[word].broader) == {word}


def relation_spellings(word: str) -> Iterator[tuple[str, list[Resource]]]:
    """Yield the forms of a relation that the checks must accept, each with a name."""
    relation = RELATIONS[word]
    coding = {"system": ROLES, "code": relation.code, "display": word}
    local = {"system": "http://example.org/roles", "code": "7"}
    yield "as text", [{"text": word}]
    yield "as text with a capital", [{"text": word.capitalize()}]
    yield "in a phrase", [{"text": f"{word.capitalize()} of the patient"}]
    yield (
        "as a v2 code",
        [{"coding": [{"system": _V2, "code": code}]} for code in _V2_CODES.get(word, ())] or [{"text": word.upper()}],
    )
    yield "by the second coding", [{"coding": [local, coding], "text": f"The patient's {word}"}]
    yield "after a broader one", [{"coding": [{"system": ROLES, "code": relation.broader[0]}]}, {"coding": [coding]}]
    for code in relation.narrower:
        yield f"as {code}", [{"coding": [{"system": ROLES, "code": code}]}]


def _said(concepts: list[Json]) -> set[str]:
    """Return the words of all relations that concepts state; an unknown code of v3-RoleCode is returned unchanged."""
    said: set[str] = set()
    for coding in codings(concepts):
        system, code = str(coding.get("system")), str(coding.get("code"))
        system = _SAME_SYSTEM.get(system, system)
        word = _MEANINGS.get(system, {}).get(code)
        said |= {word} if word else {code} if system == ROLES else set()
    for label in concept_texts(concepts):
        tokens = _TOKEN.findall(plain(label).casefold())
        said |= {_SYNONYMS[token] for token in tokens if token in _SYNONYMS}
        said |= {token for token in tokens if token in _OTHER_RELATIONS}
    return said
