"""Generate the clinic: Organizations, Locations and staff."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from itertools import islice
from typing import Any

from fhir_gym.types import Resource
from fhir_gym.worlds.hospital import datatypes as r4
from fhir_gym.worlds.hospital.people import CITIES, FAMILY, Demographics, address, given_name, telephone
from fhir_gym.worlds.hospital.seeded_random import SeededRandom, sequential_ids
from fhir_gym.worlds.hospital.times import NOW, iso, years_before

_STEP = 50_000
"""Largest gap between consecutive ids of rare types; tasks can use the ids in the gaps."""


@cache
def _ids(prefix: str) -> tuple[str, ...]:
    return tuple(islice(sequential_ids(prefix, _STEP), 40))


HOSPITAL, LABORATORY = _ids("ORG")[:2]
WARD, EMERGENCY = _ids("LOC")[:2]

_INSURERS = (
    "Atlantic Mutual Health",
    "Beacon Hill Health Plan",
    "Commonwealth Care Alliance of Boston",
    "Evergreen Insurance",
    "Northern Star Health",
    "Medicare",
)
INSURERS = tuple(zip(_ids("INS"), _INSURERS, strict=False))


@dataclass(frozen=True)
class Specialty:
    """A medical specialty with its SNOMED CT concept and the patients it accepts."""

    code: str
    display: str
    department: str
    youngest: int = 18
    oldest: int = 120
    sex: str | None = None

    def sees(self, person: Demographics) -> bool:
        """Return whether the specialty accepts this patient."""
        return self.youngest <= person.age() <= self.oldest and self.sex in (None, person.sex)


GENERAL = Specialty("394814009", "General practice", "Primary Care", youngest=0)
_SPECIALTIES = (
    GENERAL,
    Specialty("394579002", "Cardiology", "Cardiology"),
    GENERAL,
    Specialty("394801008", "Trauma and orthopedics", "Orthopedics", youngest=6),
    Specialty("394583002", "Endocrinology", "Endocrinology"),
    Specialty("394537008", "Pediatric specialty", "Pediatrics", youngest=0, oldest=17),
    GENERAL,
    Specialty("394585009", "Obstetrics and gynecology", "Women's Health", youngest=15, sex="female"),
    Specialty("394582007", "Dermatology", "Dermatology", youngest=0),
    Specialty("394591006", "Neurology", "Neurology", youngest=12),
    Specialty("394609007", "General surgery", "Surgery", youngest=12),
    Specialty("394580004", "Clinical genetics", "Medical Genetics", youngest=0),
    Specialty("394579002", "Cardiology", "Cardiology"),
    GENERAL,
)

_LANGUAGES = (
    (("es", "Spanish"), 8),
    (("zh", "Chinese"), 4),
    (("fr", "French"), 3),
    (("hi", "Hindi"), 3),
    (("pt", "Portuguese"), 3),
    (("ar", "Arabic"), 2),
    (("ru", "Russian"), 2),
    (("de", "German"), 2),
    (("vi", "Vietnamese"), 2),
)


@dataclass(frozen=True)
class Clinician:
    """A doctor with a schedule; `number` is the index among all clinicians."""

    id: str
    given: str
    family: str
    sex: str
    specialty: Specialty
    number: int

    @property
    def name(self) -> str:
        """Title and full name, as patients would say it."""
        return f"Dr. {self.given} {self.family}"

    @property
    def role(self) -> str:
        """Id of the PractitionerRole."""
        return _ids("ROLE")[self.number]

    @property
    def schedule(self) -> str:
        """Id of the Schedule."""
        return _ids("SCH")[self.number]

    @property
    def location(self) -> str:
        """Id of the department's Location."""
        return _department_ids("LOC")[self.specialty.department]


def clinicians(seed: int) -> tuple[Clinician, ...]:
    """Draw the doctors, one for each row of the specialty table, with distinct full names."""
    rng = SeededRandom(seed, "clinicians")
    families = rng.some(FAMILY, len(_SPECIALTIES) - 1)
    families.append(families[0])  # two doctors share a family name, as in many clinics
    drawn: list[Clinician] = []
    for number, (family, specialty) in enumerate(zip(families, _SPECIALTIES, strict=True)):
        sex = "female" if (number + seed) % 2 else "male"
        given = given_name(rng, sex)
        while any((given, family) == (other.given, other.family) for other in drawn):
            given = given_name(rng, sex)
        drawn.append(Clinician(_ids("PRA")[number], given, family, sex, specialty, number))
    return tuple(drawn)


def _department_ids(prefix: str) -> dict[str, str]:
    departments = dict.fromkeys(specialty.department for specialty in _SPECIALTIES)
    return dict(zip(departments, _ids(prefix)[2:], strict=False))


def organizations_and_places(seed: int) -> Iterator[Resource]:
    """Yield the Organizations (hospital, laboratory, departments, insurers) and the Locations."""
    rng = SeededRandom(seed, "organizations")
    home = {"use": "work", "line": ["100 Longview Avenue"], "city": "Boston", "state": "MA", "postalCode": "02115"}
    yield _organization(HOSPITAL, "Longview General Hospital", "prov", "Healthcare Provider") | {
        "telecom": [{"system": "phone", "value": "617-555-0100", "use": "work"}],
        "address": [home | {"country": "US"}],
    }
    yield _organization(LABORATORY, "Longview Clinical Laboratory", "dept", "Hospital Department", HOSPITAL)
    for name, ident in _department_ids("ORG").items():
        yield _organization(ident, f"{name} Department", "dept", "Hospital Department", HOSPITAL)
    for ident, name in INSURERS:
        yield _organization(ident, name, "ins", "Insurance Company") | {"address": [address(rng, use="work")]}
    yield _location(WARD, "Inpatient Ward", "HOSP", "Hospital", HOSPITAL)
    yield _location(EMERGENCY, "Emergency Room", "ER", "Emergency room", HOSPITAL)
    places = _department_ids("LOC")
    for name, owner in _department_ids("ORG").items():
        yield _location(places[name], f"{name} Clinic", "OF", "Outpatient facility", owner)


def _organization(ident: str, name: str, kind: str, display: str, parent: str | None = None) -> Resource:
    organization: Resource = {
        "resourceType": "Organization",
        "id": ident,
        "active": True,
        "type": [r4.hl7_concept("organization-type", kind, display)],
        "name": name,
    }
    return organization | ({"partOf": r4.ref("Organization", parent)} if parent else {})


def _location(ident: str, name: str, kind: str, display: str, owner: str) -> Resource:
    return {
        "resourceType": "Location",
        "id": ident,
        "status": "active",
        "name": name,
        "mode": "instance",
        "type": [r4.hl7_concept("v3-RoleCode", kind, display)],
        "managingOrganization": r4.ref("Organization", owner),
    }


def staff_resources(seed: int, staff: tuple[Clinician, ...]) -> Iterator[Resource]:
    """Yield the Practitioners, PractitionerRoles and Schedules of all doctors."""
    departments = _department_ids("ORG")
    for doctor in staff:
        rng = SeededRandom(seed, "staff", doctor.id)
        yield _practitioner(rng, doctor)
    for doctor in staff:
        specialty = r4.coded(r4.SNOMED, doctor.specialty.code, doctor.specialty.display)
        yield {
            "resourceType": "PractitionerRole",
            "id": doctor.role,
            "active": True,
            "practitioner": r4.ref("Practitioner", doctor.id, doctor.name),
            "organization": r4.ref("Organization", departments[doctor.specialty.department]),
            "code": [r4.hl7_concept("practitioner-role", "doctor", "Doctor")],
            "specialty": [specialty],
            "location": [r4.ref("Location", doctor.location)],
        }
    for doctor in staff:
        yield {
            "resourceType": "Schedule",
            "id": doctor.schedule,
            "active": True,
            "serviceType": [r4.hl7_concept("service-type", "124", "General Practice")]
            if doctor.specialty is GENERAL
            else [{"text": doctor.specialty.display}],
            "specialty": [r4.coded(r4.SNOMED, doctor.specialty.code, doctor.specialty.display)],
            "actor": [r4.ref("Practitioner", doctor.id, doctor.name), r4.ref("Location", doctor.location)],
            "planningHorizon": {
                "start": iso(NOW.replace(hour=0, minute=0) - timedelta(days=90)),
                "end": iso(NOW.replace(hour=0, minute=0) + timedelta(days=365)),
            },
        }


def _practitioner(rng: SeededRandom, doctor: Clinician) -> Resource:
    city = rng.weighted([(place[0], place[4]) for place in CITIES[:6]])
    work = address(rng, use="work")
    while work["city"] != city:
        work = address(rng, use="work")
    languages = [("en", "English")]
    for _ in range(rng.weighted([(0, 35), (1, 45), (2, 20)])):
        language = rng.weighted(_LANGUAGES)
        if language not in languages:
            languages.append(language)
    graduated = years_before(NOW.date(), rng.between(4, 35)).year
    degree: dict[str, Any] = {
        "code": r4.coded(r4.hl7("v2-0360"), "MD", "Doctor of Medicine"),
        "period": {"start": str(graduated)},
    }
    return {
        "resourceType": "Practitioner",
        "id": doctor.id,
        "identifier": [{"system": r4.NPI, "value": _npi(rng)}],
        "active": True,
        "name": [{"use": "official", "family": doctor.family, "given": [doctor.given], "prefix": ["Dr."]}],
        "telecom": [{"system": "phone", "value": telephone(rng, city), "use": "work"}],
        "address": [work],
        "gender": doctor.sex,
        "qualification": [degree],
        "communication": [
            r4.concept(r4.coding("urn:ietf:bcp:47", code, display), text=display) for code, display in languages
        ],
    }


def _npi(rng: SeededRandom) -> str:
    """Draw a National Provider Identifier: nine digits, and a Luhn check digit that includes the prefix 80840."""
    body = f"1{rng.between(0, 99_999_999):08d}"
    total = 24  # contribution of the prefix 80840 to the Luhn sum
    for place, digit in enumerate(reversed(body)):
        doubled = int(digit) * 2 if place % 2 == 0 else int(digit)
        total += doubled - 9 if doubled > 9 else doubled
    return body + str(-total % 10)
