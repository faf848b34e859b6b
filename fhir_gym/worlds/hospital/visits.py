"""Generate Encounters; the other generators attach their resources to these visits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fhir_gym.types import Resource
from fhir_gym.worlds.hospital import datatypes as r4
from fhir_gym.worlds.hospital.clinic import EMERGENCY, GENERAL, HOSPITAL, WARD, Clinician
from fhir_gym.worlds.hospital.people import Demographics
from fhir_gym.worlds.hospital.seeded_random import IdSequence, SeededRandom
from fhir_gym.worlds.hospital.times import NOW, START, at_hour, iso, minutes, workday

_KINDS = {
    "AMB": ("ambulatory", "185349003", "Encounter for check up (procedure)"),
    "EMER": ("emergency", "50849002", "Emergency room admission (procedure)"),
    "IMP": ("inpatient encounter", "32485007", "Hospital admission (procedure)"),
}


@dataclass(frozen=True)
class Visit:
    """One encounter of a patient; `kind` is its class (AMB, EMER or IMP), and an ongoing encounter has no end."""

    id: str
    person: Demographics
    doctor: Clinician
    kind: str
    start: datetime
    end: datetime | None

    @property
    def until(self) -> datetime:
        """The end, or the current time for an ongoing visit."""
        return self.end or NOW

    @property
    def location(self) -> str:
        """Id of the Location."""
        return {"EMER": EMERGENCY, "IMP": WARD}.get(self.kind, self.doctor.location)


def draw_visits(rng: SeededRandom, ids: IdSequence, person: Demographics, staff: Sequence[Clinician]) -> list[Visit]:
    """Draw a patient's visits in the last five years, in any order. About one patient in eight is an inpatient now."""
    family_doctor = rng.one([doctor for doctor in staff if doctor.specialty is GENERAL])
    others = [doctor for doctor in staff if doctor.specialty.sees(person)]
    visits: list[Visit] = []
    if rng.percent(12) and person.age() >= 18:
        start = NOW - minutes(rng.between(20 * 60, 5 * 24 * 60))
        visits.append(Visit("", person, rng.one(others), "IMP", start, None))
    for _ in range(rng.between(2, 5)):
        kind = rng.weighted([("AMB", 78), ("EMER", 14), ("IMP", 8)])
        doctor = rng.one(others) if rng.percent(50) else family_doctor
        begin = _start(rng, kind, person)
        if begin is not None:
            start, end = begin, begin + minutes(_length(rng, kind))
            if end < NOW and not any(start < visit.until and visit.start < end for visit in visits):
                visits.append(Visit("", person, doctor, kind, start, end))
    return [
        Visit(ids.new("ENC"), person, visit.doctor, visit.kind, visit.start, visit.end)
        for visit in rng.shuffled(visits)
    ]


def _start(rng: SeededRandom, kind: str, person: Demographics) -> datetime | None:
    """Draw the start of a visit, with a preference for recent dates; None if no day is possible."""
    first = max(START.date(), person.born + timedelta(days=14))
    days = (NOW.date() - first).days - 8
    if days < 1:
        return None
    back = 8 + (rng.between(1, days) if rng.percent(60) else rng.between(1, min(days, 365)))
    day = NOW.date() - timedelta(days=min(back, days + 7))
    if kind != "AMB":
        return at_hour(day, rng.between(0, 23), rng.between(0, 59))
    return max(workday(at_hour(day, rng.between(8, 16), rng.one((0, 20, 40)))), at_hour(first, 8))


def _length(rng: SeededRandom, kind: str) -> int:
    """Draw the length of a visit in minutes."""
    if kind == "AMB":
        return rng.one((20, 20, 30, 40, 60))
    return rng.between(90, 600) if kind == "EMER" else rng.between(26 * 60, 6 * 24 * 60)


def encounter_resource(visit: Visit) -> Resource:
    """Build the Encounter."""
    display, code, kind = _KINDS[visit.kind]
    attender = r4.hl7_concept("v3-ParticipationType", "ATND", "attender")
    return {
        "resourceType": "Encounter",
        "id": visit.id,
        "status": "finished" if visit.end else "in-progress",
        "class": r4.coding(r4.hl7("v3-ActCode"), visit.kind, display),
        "type": [r4.coded(r4.SNOMED, code, kind)],
        "subject": r4.ref("Patient", visit.person.mrn, visit.person.name),
        "participant": [{"type": [attender], "individual": r4.ref("Practitioner", visit.doctor.id, visit.doctor.name)}],
        "period": {"start": iso(visit.start)} | ({"end": iso(visit.end)} if visit.end else {}),
        "location": [{"location": r4.ref("Location", visit.location)}],
        "serviceProvider": r4.ref("Organization", HOSPITAL),
    }
