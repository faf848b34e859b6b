"""Generate laboratory Observations, coded with the hospital's base names (`GLU`, `K`, …) and LOINC."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from fhir_gym.types import Resource
from fhir_gym.worlds.hospital import datatypes as r4
from fhir_gym.worlds.hospital.clinic import LABORATORY
from fhir_gym.worlds.hospital.people import Demographics
from fhir_gym.worlds.hospital.seeded_random import SeededRandom, decimal
from fhir_gym.worlds.hospital.times import iso, minutes


@dataclass(frozen=True)
class Lab:
    """A laboratory test. Values are integers in units of the last decimal place.

    Attributes:
        base: The hospital's name for the test.
        loinc: LOINC code and name.
        unit: Display unit and UCUM code.
        digits: Number of decimal places.
        low: Lower limits of the reference range, for women and for men.
        high: Upper limits of the reference range, for women and for men.
        spread: Standard deviation in healthy people, in percent of the range's width.
        shifts: For each disease (by its key), the shift of the mean in units of the last decimal place.
        floor: Lowest value the device reports.
    """

    base: str
    loinc: tuple[str, str]
    unit: tuple[str, str]
    digits: int
    low: tuple[int, int]
    high: tuple[int, int]
    spread: int = 28
    shifts: tuple[tuple[str, int], ...] = ()
    floor: int = 1


LABS = {
    lab.base: lab
    for lab in (
        Lab("GLU", ("2345-7", "Glucose [Mass/volume] in Serum or Plasma"), ("mg/dL", "mg/dL"), 0, (70, 70), (99, 99),
            50, (("diabetes", 68),), 38),
        Lab("A1C", ("4548-4", "Hemoglobin A1c/Hemoglobin.total in Blood"), ("%", "%"), 1, (40, 40), (56, 56),
            25, (("diabetes", 26),), 38),
        Lab("NA", ("2951-2", "Sodium [Moles/volume] in Serum or Plasma"), ("mmol/L", "mmol/L"), 0, (136, 136),
            (145, 145), 30, (("heart", -3),), 112),
        Lab("K", ("2823-3", "Potassium [Moles/volume] in Serum or Plasma"), ("mmol/L", "mmol/L"), 1, (35, 35), (51, 51),
            32, (("kidney", 4), ("heart", -3)), 22),
        Lab("CL", ("2075-0", "Chloride [Moles/volume] in Serum or Plasma"), ("mmol/L", "mmol/L"), 0, (98, 98),
            (107, 107), 30, (), 78),
        Lab("CA", ("17861-6", "Calcium [Mass/volume] in Serum or Plasma"), ("mg/dL", "mg/dL"), 1, (86, 86), (102, 102),
            28, (("kidney", -3),), 60),
        Lab("MG", ("19123-9", "Magnesium [Mass/volume] in Serum or Plasma"), ("mg/dL", "mg/dL"), 1, (17, 17), (24, 24),
            38, (("heart", -3), ("reflux", -2)), 7),
        Lab("CR", ("2160-0", "Creatinine [Mass/volume] in Serum or Plasma"), ("mg/dL", "mg/dL"), 2, (55, 70),
            (105, 130), 24, (("kidney", 75),), 30),
        Lab("BUN", ("3094-0", "Urea nitrogen [Mass/volume] in Serum or Plasma"), ("mg/dL", "mg/dL"), 0, (7, 8),
            (20, 24), 28, (("kidney", 14), ("heart", 6)), 3),
        Lab("TP", ("2885-2", "Protein [Mass/volume] in Serum or Plasma"), ("g/dL", "g/dL"), 1, (60, 60), (83, 83),
            22, (), 35),
        Lab("PT", ("5902-2", "Prothrombin time (PT)"), ("s", "s"), 1, (110, 110), (135, 135),
            26, (("fibrillation", 110),), 90),
        Lab("HGB", ("718-7", "Hemoglobin [Mass/volume] in Blood"), ("g/dL", "g/dL"), 1, (120, 135), (155, 175),
            26, (("anemia", -32), ("kidney", -16)), 52),
        Lab("HCT", ("4544-3", "Hematocrit [Volume Fraction] of Blood by Automated count"), ("%", "%"), 1, (360, 410),
            (455, 500), 26, (("anemia", -90), ("kidney", -45)), 160),
        Lab("WBC", ("6690-2", "Leukocytes [#/volume] in Blood by Automated count"), ("10*3/uL", "10*3/uL"), 1, (45, 45),
            (110, 110), 26, (("pneumonia", 45), ("appendicitis", 50)), 12),
        Lab("PLT", ("777-3", "Platelets [#/volume] in Blood by Automated count"), ("10*3/uL", "10*3/uL"), 0, (150, 150),
            (400, 400), 22, (), 18),
    )
}  # fmt: skip

# Panels: LOINC code and name, and the tests of the panel.
PANELS = {
    "BMP": (("51990-0", "Basic metabolic panel - Blood"), ("GLU", "NA", "K", "CL", "CA", "CR", "BUN")),
    "CBC": (("58410-2", "CBC panel - Blood by Automated count"), ("HGB", "HCT", "WBC", "PLT")),
    "ELEC": (("24326-1", "Electrolytes 1998 panel - Serum or Plasma"), ("NA", "K", "CL", "MG")),
}

_FLAGS = {"L": "Low", "N": "Normal", "H": "High"}
_LABORATORY = r4.hl7_concept("observation-category", "laboratory", "Laboratory")


def draw_value(rng: SeededRandom, lab: Lab, person: Demographics, diseases: Sequence[str]) -> int:
    """Draw a patient's value in units of the last decimal place."""
    column = person.sex == "male"
    low, high = lab.low[column], lab.high[column]
    middle, width = (low + high) // 2, high - low
    for disease, shift in lab.shifts:
        if disease in diseases:
            middle, width = middle + shift, width + abs(shift) * 2 // 3
    if lab.base in ("CR", "HGB", "HCT") and person.age() < 12:
        middle = middle * 85 // 100
    return max(lab.floor, rng.bell(middle, max(1, width * lab.spread // 100)))


def lab_observation(
    ident: str,
    lab: Lab,
    person: Demographics,
    taken: datetime,
    value: int | None,
    *,
    issued: datetime,
    status: str = "final",
) -> Resource:
    """Build the Observation of one result.

    Args:
        ident: Id of the Observation.
        lab: The test.
        person: The patient.
        taken: Time of the specimen.
        value: Value in units of the last decimal place; None if there is no result.
        issued: Time of the result.
        status: Status of the Observation.
    """
    unit, ucum = lab.unit
    column = person.sex == "male"
    low, high = lab.low[column], lab.high[column]
    observation: Resource = {
        "resourceType": "Observation",
        "id": ident,
        "status": status,
        "category": [_LABORATORY],
        "code": r4.concept(r4.coding(r4.LAB, lab.base, lab.base), r4.coding(r4.LOINC, *lab.loinc), text=lab.base),
        "subject": r4.ref("Patient", person.mrn),
        "effectiveDateTime": iso(taken),
        "issued": iso(issued),
        "performer": [r4.ref("Organization", LABORATORY)],
    }
    if value is None:
        reason = r4.coding(r4.hl7("data-absent-reason"), "not-performed", "Not Performed")
        return observation | {"dataAbsentReason": r4.concept(reason)}
    flag = "L" if value < low else "H" if value > high else "N"
    return observation | {
        "valueQuantity": r4.quantity(decimal(value, lab.digits), unit, ucum),
        "interpretation": [r4.hl7_concept("v3-ObservationInterpretation", flag, _FLAGS[flag])],
        "referenceRange": [
            {
                "low": r4.quantity(decimal(low, lab.digits), unit, ucum),
                "high": r4.quantity(decimal(high, lab.digits), unit, ucum),
            }
        ],
    }


def lab_resources(
    rng: SeededRandom,
    new_id: Callable[[str], str],
    person: Demographics,
    bases: Sequence[str],
    taken: datetime,
    diseases: Sequence[str],
) -> Iterator[Resource]:
    """Yield the results of one specimen. As in a real laboratory, some results are duplicated or cancelled."""
    issued = taken + minutes(rng.between(25, 110))
    for base in bases:
        lab = LABS[base]
        value = draw_value(rng, lab, person, diseases)
        status = rng.weighted([("final", 96), ("corrected", 2), ("cancelled", 2)])
        told = None if status == "cancelled" else value
        yield lab_observation(new_id("OBS"), lab, person, taken, told, issued=issued, status=status)
        if status == "cancelled" or rng.percent(2):
            yield lab_observation(new_id("OBS"), lab, person, taken, value, issued=issued)
