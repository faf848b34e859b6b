"""Build Observations from measurements, in the form of MedAgentBench's server."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache

from fhir_gym.types import Resource
from fhir_gym.worlds.cohort.physiology import CRITICAL, limits
from fhir_gym.worlds.cohort.sampling import Measurement
from fhir_gym.worlds.hospital import datatypes as r4
from fhir_gym.worlds.hospital.labs import LABS
from fhir_gym.worlds.hospital.people import Demographics
from fhir_gym.worlds.hospital.seeded_random import decimal
from fhir_gym.worlds.hospital.times import START, iso
from fhir_gym.worlds.hospital.vitals import VITALS


@dataclass(frozen=True)
class _Unit:
    """Another laboratory's unit: display, UCUM code, conversion factor as a fraction, and decimal places."""

    unit: str
    code: str
    over: int
    under: int
    digits: int

    def converted(self, value: int) -> int:
        """Convert a value to this unit, in units of the last decimal place, rounded half up."""
        return (value * self.over * 2 + self.under) // (2 * self.under)


_OTHER_UNITS = {
    "GLU": _Unit("mmol/L", "mmol/L", 10_000, 18_016, 1),  # glucose weighs 180.16 g/mol
    "MG": _Unit("mmol/L", "mmol/L", 100_000, 24_305, 2),
    "CA": _Unit("mmol/L", "mmol/L", 100_000, 40_078, 2),
    "CR": _Unit("umol/L", "umol/L", 8_842, 10_000, 0),
    "HGB": _Unit("g/L", "g/L", 1, 1, 0),
    "TP": _Unit("g/L", "g/L", 1, 1, 0),
    "HCT": _Unit("L/L", "L/L", 1, 1, 3),
    "K": _Unit("mEq/L", "meq/L", 1, 1, 1),
    "NA": _Unit("mEq/L", "meq/L", 1, 1, 0),
    "CL": _Unit("mEq/L", "meq/L", 1, 1, 0),
}
_FLAGS = {"LL": "Critical low", "L": "Low", "H": "High", "HH": "Critical high"}
_ABSENT = r4.hl7_concept("data-absent-reason", "not-performed", "Not Performed")


def subject(person: Demographics) -> Resource:
    """Build the reference to a patient, including the record number as identifier."""
    identifier = {"system": r4.hl7("v2-0203"), "value": person.mrn}
    return r4.ref("Patient", person.mrn) | {"identifier": identifier}


def moment(minute: int) -> str:
    """Format a time in minutes after `START` as a FHIR dateTime."""
    return iso(START + timedelta(minutes=minute))


def observation(ident: str, person: Demographics, reading: Measurement) -> Resource:
    """Build the Observation of a measurement."""
    category, code = _named(reading.base)
    resource: Resource = {
        "resourceType": "Observation",
        "id": ident,
        "status": reading.status,
        "category": category,
        "code": code,
        "subject": subject(person),
        "effectiveDateTime": moment(reading.taken),
        "issued": moment(reading.issued),
    }
    value = reading.value
    if value is None:
        resource["dataAbsentReason"] = _ABSENT
    elif isinstance(value, tuple):
        resource["valueString"] = f"{value[0]}/{value[1]} mmHg"
    elif reading.base in VITALS:
        sign = VITALS[reading.base]
        resource["valueQuantity"] = r4.quantity(decimal(value, sign.digits), *sign.unit)
    else:
        resource["valueQuantity"] = _amount(reading.base, value, other_unit=reading.other_unit)
        flag = _flag(reading.base, person, value)
        if flag:  # laboratories do not flag normal values
            concept = r4.hl7_concept("v3-ObservationInterpretation", flag, _FLAGS[flag])
            resource["interpretation"] = [concept]
    return resource


@cache
def _named(base: str) -> tuple[list[Resource], Resource]:
    laboratory = base in LABS
    category = ("laboratory", "Laboratory") if laboratory else ("vital-signs", "Vital Signs")
    return ([r4.hl7_concept("observation-category", *category)], r4.concept(r4.coding(r4.LOINC, base, base), text=base))


def _amount(base: str, value: int, *, other_unit: bool) -> Resource:
    lab, other = LABS[base], _OTHER_UNITS.get(base)
    if other_unit and other:
        return r4.quantity(decimal(other.converted(value), other.digits), other.unit, other.code)
    return r4.quantity(decimal(value, lab.digits), *lab.unit)


def _flag(base: str, person: Demographics, value: int) -> str | None:
    low, high = limits(LABS[base], person.sex)
    lowest, highest = CRITICAL[base]
    if value < low:
        return "LL" if value < lowest else "L"
    if value > high:
        return "HH" if value > highest else "H"
    return None
