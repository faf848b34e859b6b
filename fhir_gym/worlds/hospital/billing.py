"""Generate RelatedPersons, Coverages and Accounts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta

from fhir_gym.types import Resource
from fhir_gym.worlds.hospital import datatypes as r4
from fhir_gym.worlds.hospital.clinic import HOSPITAL, INSURERS
from fhir_gym.worlds.hospital.people import FAMILY, Demographics, given_name
from fhir_gym.worlds.hospital.seeded_random import IdSequence, SeededRandom
from fhir_gym.worlds.hospital.times import NOW, START, age, years_before

_PLANS = ("BRONZE100", "SILVER250", "GOLD123", "PLATINUM500")
_MEDICARE_AGE = 65


@dataclass(frozen=True)
class FamilyMember:
    """A relative of a patient: id of the RelatedPerson, v3-RoleCode with display, name, sex and date of birth."""

    id: str
    code: str
    word: str
    family: str
    given: str
    sex: str
    born: date

    @property
    def name(self) -> str:
        """The full name."""
        return f"{self.given} {self.family}"


def relatives(rng: SeededRandom, ids: IdSequence, person: Demographics) -> list[FamilyMember]:
    """Draw a patient's relatives: one or both parents of a child; at most one relative of an adult."""
    if person.age() < 18:
        kinds = ["MTH", "FTH"] if rng.percent(60) else [rng.one(("MTH", "FTH"))]
    elif rng.percent(60):
        kinds = [rng.weighted([("SPS", 50 if person.age() > 24 else 0), ("CHILD", 25 if person.age() > 45 else 0),
                                  ("SIB", 15), ("MTH", 10 if person.age() < 60 else 0)])]  # fmt: skip
    else:
        kinds = []
    return [_relative(rng, ids.new("REL"), kind, person) for kind in kinds]


def _relative(rng: SeededRandom, ident: str, kind: str, person: Demographics) -> FamilyMember:
    sex = {"MTH": "female", "FTH": "male"}.get(kind) or rng.one(("female", "male"))
    code, word = {
        "MTH": ("MTH", "mother"),
        "FTH": ("FTH", "father"),
        "SPS": ("SPS", "spouse"),
        "CHILD": ("DAU", "natural daughter") if sex == "female" else ("SON", "natural son"),
        "SIB": ("SIS", "sister") if sex == "female" else ("BRO", "brother"),
    }[kind]
    older = {"MTH": (20, 38), "FTH": (20, 42), "SPS": (-5, 5), "CHILD": (-38, -22), "SIB": (-9, 9)}[kind]
    shift = rng.between(*older)
    born = years_before(person.born, shift) - timedelta(days=rng.between(0, 364))
    family = person.family if rng.percent(75) else rng.one(FAMILY)
    return FamilyMember(ident, code, word, family, given_name(rng, sex), sex, born)


def relative_resource(relative: FamilyMember, person: Demographics) -> Resource:
    """Build the RelatedPerson."""
    return {
        "resourceType": "RelatedPerson",
        "id": relative.id,
        "active": True,
        "patient": r4.ref("Patient", person.mrn, person.name),
        "relationship": [r4.coded(r4.hl7("v3-RoleCode"), relative.code, relative.word)],
        "name": [{"use": "official", "family": relative.family, "given": [relative.given]}],
        "telecom": [{"system": "phone", "value": person.phone, "use": "home"}],
        "gender": relative.sex,
        "birthDate": relative.born.isoformat(),
        "address": [person.home],
    }


def coverage_resources(
    rng: SeededRandom, ids: IdSequence, person: Demographics, family: list[FamilyMember]
) -> Iterator[Resource]:
    """Yield the current Coverage and sometimes an earlier, cancelled Coverage. One patient in ten has no Coverage."""
    if rng.percent(10):
        return
    private = [insurer for insurer in INSURERS if insurer[1] != "Medicare"]
    insurer = INSURERS[-1] if person.age() >= _MEDICARE_AGE else rng.one(private)
    start = date(NOW.year - rng.between(0, 2), 1, 1)
    if person.age() >= _MEDICARE_AGE:
        start = max(START.date(), years_before(person.born, -_MEDICARE_AGE).replace(day=1))
    yield _coverage(rng, ids.new("COV"), person, family, insurer, "active", max(start, person.born))
    if rng.percent(25) and start - timedelta(days=400) > max(person.born, START.date()):
        before = rng.one([other for other in private if other != insurer])
        earlier = start - timedelta(days=rng.between(366, 399))
        yield _coverage(rng, ids.new("COV"), person, family, before, "cancelled", earlier, start - timedelta(days=1))


def _coverage(
    rng: SeededRandom, ident: str, person: Demographics, family: list[FamilyMember], insurer: tuple[str, str],
    status: str, start: date, end: date | None = None,
) -> Resource:  # fmt: skip
    holders = [relative for relative in family if age(relative.born, NOW.date()) >= 18]
    holder = holders[0] if holders and person.age() < 26 else None
    subscriber = r4.ref("RelatedPerson", holder.id, holder.name) if holder else r4.ref("Patient", person.mrn)
    relation = ("child", "Child") if holder and holder.code in ("MTH", "FTH") else ("self", "Self")
    if holder and relation[0] == "self":
        relation = ("other", "Other")
    public = insurer[1] == "Medicare"
    kind = ("PUBLICPOL", "public healthcare") if public else ("EHCPOL", "extended healthcare")
    return {
        "resourceType": "Coverage",
        "id": ident,
        "status": status,
        "type": r4.hl7_concept("v3-ActCode", *kind),
        "policyHolder": subscriber,
        "subscriber": subscriber,
        "subscriberId": f"M{rng.between(10_000_000, 99_999_999)}",
        "beneficiary": r4.ref("Patient", person.mrn, person.name),
        "relationship": r4.hl7_concept("subscriber-relationship", *relation),
        "period": {"start": start.isoformat(), "end": (end or date(NOW.year + rng.between(0, 2), 12, 31)).isoformat()},
        "payor": [r4.ref("Organization", *insurer)],
        "class": [
            _class("group", "Group", f"Group-{rng.between(10_000, 99_999)}"),
            _class("plan", "Plan", rng.one(_PLANS)),
        ],
    }


def _class(code: str, display: str, value: str) -> Resource:
    return {"type": r4.hl7_concept("coverage-class", code, display), "value": value}


def account_resources(
    rng: SeededRandom, ids: IdSequence, person: Demographics, family: list[FamilyMember], coverage: str | None
) -> Iterator[Resource]:
    """Yield an Account for most patients; an adult relative may be the guarantor."""
    if rng.percent(15):
        return
    adults = [relative for relative in family if age(relative.born, NOW.date()) >= 18]
    opened = max(START.date(), person.born) + timedelta(days=rng.between(0, 30))
    account: Resource = {
        "resourceType": "Account",
        "id": ids.new("ACC"),
        "status": rng.weighted([("active", 90), ("inactive", 10)]),
        "type": r4.hl7_concept("v3-ActCode", "PBILLACCT", "patient billing account"),
        "name": f"Billing account of {person.name}",
        "subject": [r4.ref("Patient", person.mrn, person.name)],
        "servicePeriod": {"start": min(opened, NOW.date()).isoformat()},
        "owner": r4.ref("Organization", HOSPITAL),
    }
    if coverage:
        account["coverage"] = [{"coverage": r4.ref("Coverage", coverage), "priority": 1}]
    if adults and (person.age() < 18 or rng.percent(40)):
        account["guarantor"] = [{"party": r4.ref("RelatedPerson", adults[0].id, adults[0].name), "onHold": False}]
    yield account
