"""Generator of the synthetic hospital: a clinic, its patients and their records.

The same seed gives the same resources on every machine. All resources are valid FHIR R4, every reference resolves, and
each resource comes after the resources it refers to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from fhir_gym.types import Resource
from fhir_gym.worlds.hospital import (
    billing,
    calendar,
    clinic,
    labs,
    orders,
    people,
    problems,
    treatments,
    visits,
    vitals,
)
from fhir_gym.worlds.hospital.seeded_random import IdSequence, SeededRandom
from fhir_gym.worlds.hospital.times import DAY, NOW, minutes

__all__ = ["NOW", "PATIENTS", "VERSION", "generate"]

VERSION = 3
"""Version that increases whenever a seed gives different resources, so that cached worlds are rebuilt."""

PATIENTS = 80

_STEP = 4_000
"""Largest gap between consecutive ids: wide enough that two variations of a task rarely create the same id."""


def generate(seed: int = 0, count: int = PATIENTS) -> Iterator[Resource]:
    """Yield all resources of the hospital, referenced resources first."""
    ids = IdSequence(_STEP)
    staff = clinic.clinicians(seed)
    cohort = people.cohort(seed, count)
    doctors = [doctor for doctor in staff if doctor.specialty is clinic.GENERAL]
    yield from clinic.organizations_and_places(seed)
    yield from clinic.staff_resources(seed, staff)
    for number, person in enumerate(cohort):
        doctor = doctors[number % len(doctors)]
        yield people.patient_resource(person, hospital=clinic.HOSPITAL, doctor=doctor.id)
    for number, person in enumerate(cohort):
        yield from _record(seed, ids, person, staff, doctors[number % len(doctors)])
    yield from calendar.calendar_resources(seed, ids, staff, cohort)


def _record(
    seed: int, ids: IdSequence, person: people.Demographics, staff: Sequence[clinic.Clinician], doctor: clinic.Clinician
) -> Iterator[Resource]:
    """Yield the record of one patient."""

    def rng(noun: str) -> SeededRandom:
        return SeededRandom(seed, noun, person.mrn)

    family = billing.relatives(rng("relatives"), ids, person)
    yield from (billing.relative_resource(relative, person) for relative in family)
    coverages = list(billing.coverage_resources(rng("coverage"), ids, person, family))
    yield from coverages
    policy = coverages[0]["id"] if coverages else None
    yield from billing.account_resources(rng("account"), ids, person, family, policy)
    yield from problems.allergy_resources(rng("allergies"), ids, person)
    yield from problems.family_history_resources(rng("family history"), ids, person)
    seen = visits.draw_visits(rng("visits"), ids, person, staff)
    yield from (visits.encounter_resource(visit) for visit in seen)
    diagnoses = problems.draw_diseases(rng("problems"), person, seen)
    yield from problems.condition_resources(ids, person, diagnoses)
    yield from treatments.medication_resources(rng("medications"), ids, person, diagnoses, doctor)
    yield from treatments.procedure_resources(rng("procedures"), ids, person, seen, diagnoses)
    for number, visit in enumerate(seen):
        ailing = [problem.disease.key for problem in diagnoses if problem.recorded <= visit.until]
        yield from _measurements(SeededRandom(seed, "measurements", person.mrn, number), ids, visit, ailing)
    yield from orders.plan_resources(rng("plans"), ids, person, seen)


def _measurements(
    rng: SeededRandom, ids: IdSequence, visit: visits.Visit, diseases: Sequence[str]
) -> Iterator[Resource]:
    """Yield the vital signs, laboratory results and reports of one visit; inpatients are measured repeatedly."""
    person = visit.person
    for moment in _moments(rng, visit):
        bases = ["BP", "HR", *rng.some(["TEMP", "RR", "SPO2", "WT"], 1 if visit.kind == "AMB" else 2)]
        bases += ["FIO2"] if visit.kind == "IMP" and rng.percent(20) else []
        for vital in vitals.vital_resources(rng, ids.new, person, bases, moment, diseases):
            yield vital | {"encounter": {"reference": f"Encounter/{visit.id}"}}
        if visit.kind != "AMB" or rng.percent(55):
            yield from _laboratory(rng, ids, visit, moment + minutes(10), diseases)
    if rng.percent(8) and visit.end:
        yield orders.chest_report(rng, ids.new("RPT"), visit)
    if visit.doctor.specialty.display == "Clinical genetics" and visit.end:
        yield orders.genetic_report(rng, ids.new("RPT"), visit)


def _moments(rng: SeededRandom, visit: visits.Visit) -> list[datetime]:
    """Draw the times of measurement, in no particular order."""
    moments = [visit.start + minutes(5)]
    if visit.kind == "IMP":
        step = minutes(rng.between(5 * 60, DAY // 2))
        while moments[-1] + step < visit.until - minutes(2 * 60):  # every result arrives before the visit ends
            moments.append(moments[-1] + step)
    return rng.shuffled(moments[-4:])


def _laboratory(
    rng: SeededRandom, ids: IdSequence, visit: visits.Visit, taken: datetime, diseases: Sequence[str]
) -> Iterator[Resource]:
    """Yield a panel with its order and report, and single tests."""
    singles = [base for base, share in _SINGLES if rng.percent(share)]
    if "diabetes" in diseases and "A1C" not in singles and rng.percent(25):
        singles.append("A1C")
    if rng.percent(60):
        panel = rng.weighted([("BMP", 55), ("CBC", 25), ("ELEC", 20)])
        order = ids.new("SRQ") if rng.percent(50) else None
        if order:
            yield orders.lab_order(order, visit, panel, taken - minutes(5))
        results = list(_results(rng, ids, visit, labs.PANELS[panel][1], taken, diseases))
        if order:
            results = [result | {"basedOn": [{"reference": f"ServiceRequest/{order}"}]} for result in results]
        yield from results
        yield orders.lab_report(ids.new("RPT"), visit, panel, order, results)
        singles = [base for base in singles if base not in labs.PANELS[panel][1]]
    yield from _results(rng, ids, visit, singles, taken, diseases)


_SINGLES = (("GLU", 30), ("A1C", 15), ("MG", 25), ("K", 20), ("TP", 10), ("PT", 10), ("CR", 10), ("HGB", 10))


def _results(
    rng: SeededRandom,
    ids: IdSequence,
    visit: visits.Visit,
    bases: Sequence[str],
    taken: datetime,
    diseases: Sequence[str],
) -> Iterator[Resource]:
    for result in labs.lab_resources(rng, ids.new, visit.person, bases, taken, diseases):
        yield result | {"encounter": {"reference": f"Encounter/{visit.id}"}}
