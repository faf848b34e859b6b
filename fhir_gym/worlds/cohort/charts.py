"""Generate the resources of the cohort.

Observations have the form of those on MedAgentBench's server. Procedures, Conditions and MedicationRequests come from
catalogues with codes and weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

from fhir_gym.types import Resource
from fhir_gym.worlds.cohort.patients import LATEST, Patient, Segment
from fhir_gym.worlds.cohort.sampling import CRITICAL, Measurement, limits
from fhir_gym.worlds.hospital import datatypes as r4
from fhir_gym.worlds.hospital.labs import LABS
from fhir_gym.worlds.hospital.people import Demographics
from fhir_gym.worlds.hospital.problems import DISEASES
from fhir_gym.worlds.hospital.seeded_random import IdSequence, SeededRandom, decimal
from fhir_gym.worlds.hospital.times import DAY, START, iso
from fhir_gym.worlds.hospital.treatments import DRUGS, PROCEDURES, Drug, medication_request
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


# (CPT code, description, where it is done ("stay", "visit" or "both"), minimum age, sex if limited to one, weight)
ORDERS: tuple[tuple[str, str, str, int, str | None, int], ...] = (
    ("80048", "Basic metabolic panel", "stay", 0, None, 120),
    ("80053", "Comprehensive metabolic panel", "both", 0, None, 45),
    ("80051", "Electrolyte panel", "stay", 0, None, 30),
    ("85025", "Complete blood count with differential", "both", 0, None, 90),
    ("85027", "Complete blood count", "stay", 0, None, 40),
    ("82962", "Glucose, bedside device", "stay", 0, None, 150),
    ("83735", "Magnesium", "stay", 0, None, 70),
    ("84132", "Potassium", "stay", 0, None, 45),
    ("84295", "Sodium", "stay", 0, None, 30),
    ("83036", "Hemoglobin A1c", "both", 0, None, 6),
    ("84155", "Total protein, serum", "both", 0, None, 6),
    ("85610", "Prothrombin time", "both", 0, None, 25),
    ("82565", "Creatinine", "both", 0, None, 10),
    ("83605", "Lactate", "stay", 0, None, 18),
    ("82803", "Blood gases", "stay", 0, None, 20),
    ("84484", "Troponin", "stay", 18, None, 10),
    ("87040", "Blood culture", "stay", 0, None, 16),
    ("87086", "Urine culture", "both", 0, None, 8),
    ("81001", "Urinalysis with microscopy", "both", 0, None, 14),
    ("86850", "Antibody screen, red cells", "stay", 0, None, 7),
    ("71045", "Chest X-ray, one view", "stay", 0, None, 35),
    ("74177", "CT of abdomen and pelvis with contrast", "stay", 14, None, 6),
    ("76705", "Ultrasound of the abdomen, limited", "both", 0, None, 4),
    ("93005", "Electrocardiogram, tracing", "both", 0, None, 22),
    ("94640", "Inhalation treatment", "stay", 0, None, 22),
    ("94003", "Ventilation, following day", "stay", 0, None, 10),
    ("96374", "Intravenous push, one drug", "stay", 0, None, 30),
    ("96365", "Intravenous infusion, first hour", "stay", 0, None, 30),
    ("36430", "Transfusion of blood", "stay", 0, None, 6),
    ("36556", "Central venous catheter", "stay", 5, None, 3),
    ("97161", "Physical therapy evaluation", "stay", 10, None, 10),
    ("97530", "Therapeutic activities, 15 minutes", "stay", 10, None, 14),
    ("97166", "Occupational therapy evaluation", "stay", 10, None, 7),
    ("92610", "Swallowing evaluation", "stay", 10, None, 4),
    ("99213", "Office visit, established patient", "visit", 0, None, 80),
    *((code, text, "both", youngest, sex, weight) for code, text, youngest, sex, weight in PROCEDURES),
)

# (ICD-10-CM code and title, minimum age, sex if limited to one, weight)
DIAGNOSES: tuple[tuple[tuple[str, str], int, str | None, int], ...] = (
    (("E87.1", "Hypo-osmolality and hyponatremia"), 0, None, 9),
    (("E87.0", "Hyperosmolality and hypernatremia"), 0, None, 4),
    (("E87.6", "Hypokalemia"), 0, None, 9),
    (("E87.5", "Hyperkalemia"), 0, None, 6),
    (("E83.42", "Hypomagnesemia"), 0, None, 7),
    (("E83.51", "Hypocalcemia"), 0, None, 4),
    (("E83.52", "Hypercalcemia"), 0, None, 2),
    (("E86.0", "Dehydration"), 0, None, 6),
    (("E16.2", "Hypoglycemia, unspecified"), 0, None, 3),
    (("R73.9", "Hyperglycemia, unspecified"), 0, None, 6),
    (("E46", "Unspecified protein-calorie malnutrition"), 0, None, 5),
    (("N17.9", "Acute kidney failure, unspecified"), 0, None, 9),
    (("D62", "Acute posthemorrhagic anemia"), 0, None, 5),
    (("D64.9", "Anemia, unspecified"), 0, None, 8),
    (("D69.6", "Thrombocytopenia, unspecified"), 0, None, 4),
    (("D72.829", "Elevated white blood cell count, unspecified"), 0, None, 4),
    (("A41.9", "Sepsis, unspecified organism"), 0, None, 7),
    (("J18.9", "Pneumonia, unspecified organism"), 0, None, 6),
    (("J96.01", "Acute respiratory failure with hypoxia"), 0, None, 6),
    (("J69.0", "Pneumonitis due to inhalation of food and vomit"), 30, None, 3),
    (("N39.0", "Urinary tract infection, site not specified"), 0, None, 6),
    (("L03.90", "Cellulitis, unspecified"), 0, None, 3),
    (("I21.4", "Non-ST elevation (NSTEMI) myocardial infarction"), 35, None, 3),
    (("I63.9", "Cerebral infarction, unspecified"), 40, None, 3),
    (("I26.99", "Other pulmonary embolism without acute cor pulmonale"), 18, None, 3),
    (("K92.2", "Gastrointestinal hemorrhage, unspecified"), 18, None, 3),
    (
        ("K56.609", "Unspecified intestinal obstruction, unspecified as to partial versus complete obstruction"),
        10,
        None,
        3,
    ),
    (("K85.90", "Acute pancreatitis without necrosis or infection, unspecified"), 18, None, 3),
    (("K74.60", "Unspecified cirrhosis of liver"), 30, None, 3),
    (("R41.82", "Altered mental status, unspecified"), 0, None, 5),
    (("R41.0", "Disorientation, unspecified"), 60, None, 4),
    (("R55", "Syncope and collapse"), 10, None, 3),
    (("R07.9", "Chest pain, unspecified"), 18, None, 5),
    (("R06.02", "Shortness of breath"), 0, None, 6),
    (("R50.9", "Fever, unspecified"), 0, None, 5),
    (("R10.9", "Unspecified abdominal pain"), 0, None, 5),
    (("R11.2", "Nausea with vomiting, unspecified"), 0, None, 4),
    (("R53.1", "Weakness"), 0, None, 4),
    (("W19.XXXA", "Unspecified fall, initial encounter"), 0, None, 2),
    (
        ("S72.001A", "Fracture of unspecified part of neck of right femur, initial encounter for closed fracture"),
        65,
        None,
        2,
    ),
    (("I95.9", "Hypotension, unspecified"), 18, None, 4),
    (("R00.0", "Tachycardia, unspecified"), 0, None, 4),
    (("Z79.4", "Long term (current) use of insulin"), 18, None, 2),
    (("Z79.01", "Long term (current) use of anticoagulants"), 40, None, 3),
    (("Z87.891", "Personal history of nicotine dependence"), 25, None, 4),
    (("Z66", "Do not resuscitate"), 65, None, 2),
    (("N83.209", "Unspecified ovarian cyst, unspecified side"), 18, "female", 3),
    (("N40.1", "Benign prostatic hyperplasia with lower urinary tract symptoms"), 50, "male", 5),
)

_IV = ("47625008", "Intravenous route")
_SC = ("34206005", "Subcutaneous route")

# (medication, weight); the RxNorm codes are ingredient codes
MEDICINES: tuple[tuple[Drug, int], ...] = (
    (Drug((), "8591", "Potassium chloride 20 mEq oral tablet", (20, "meq"), (1, 24), lasting=False), 9),
    (Drug((), "6585", "Magnesium sulfate 2 g/50 mL infusion", (2, "g"), (1, 24), False, _IV), 6),
    (Drug((), "9863", "Sodium chloride 0.9 % infusion 1000 mL", (1000, "mL"), (2, 24), False, _IV), 12),
    (Drug((), "86009", "Insulin lispro 100 units/mL injection", (4, "[iU]"), (3, 24), False, _SC), 8),
    (Drug((), "5224", "Heparin 5000 units/mL injection", (5000, "[iU]"), (3, 24), False, _SC), 9),
    (Drug((), "67108", "Enoxaparin 40 mg/0.4 mL injection", (40, "mg"), (1, 24), False, _SC), 6),
    (Drug((), "161", "Acetaminophen 325 mg oral tablet", (650, "mg"), (4, 24), lasting=False), 12),
    (Drug((), "40790", "Pantoprazole 40 mg injection", (40, "mg"), (1, 24), False, _IV), 6),
    (Drug((), "26225", "Ondansetron 4 mg/2 mL injection", (4, "mg"), (3, 24), False, _IV), 7),
    (Drug((), "11124", "Vancomycin 1 g injection", (1, "g"), (2, 24), False, _IV), 5),
    (Drug((), "2193", "Ceftriaxone 1 g injection", (1, "g"), (1, 24), False, _IV), 5),
    (Drug((), "2180", "Cefazolin 1 g injection", (1, "g"), (3, 24), False, _IV), 3),
    (Drug((), "6922", "Metronidazole 500 mg/100 mL infusion", (500, "mg"), (3, 24), False, _IV), 3),
    (Drug((), "4603", "Furosemide 40 mg/4 mL injection", (40, "mg"), (2, 24), False, _IV), 6),
    (Drug((), "82003", "Docusate 100 mg oral capsule", (100, "mg"), (2, 24), lasting=False), 6),
    (Drug((), "36387", "Sennosides 8.6 mg oral tablet", (17, "mg"), (1, 24), lasting=False), 5),
    (Drug((), "8640", "Prednisone 20 mg oral tablet", (40, "mg"), (1, 24), lasting=False), 4),
    (Drug((), "114477", "Levetiracetam 500 mg oral tablet", (500, "mg"), (2, 24), lasting=False), 3),
    (Drug((), "25480", "Gabapentin 300 mg oral capsule", (300, "mg"), (3, 24), lasting=False), 4),
    (Drug((), "1191", "Aspirin 81 mg oral tablet", (81, "mg"), (1, 24), lasting=False), 5),
    (Drug((), "7052", "Morphine 4 mg/mL injection", (4, "mg"), (4, 24), False, _IV), 3),
    (Drug((), "6711", "Melatonin 3 mg oral tablet", (3, "mg"), (1, 24), lasting=False), 3),
)


_CHRONIC = {disease.key: disease for disease in DISEASES}
_CONFIRMED = r4.hl7_concept("condition-ver-status", "confirmed", "Confirmed")


def procedure_resources(
    rng: SeededRandom, ids: IdSequence, patient: Patient, segments: Sequence[Segment], count: int
) -> Iterator[Resource]:
    """Yield `count` Procedures."""
    years = patient.person.age()
    fitting = {
        stay: [
            ((code, text), weight)
            for code, text, where, youngest, sex, weight in ORDERS
            if where in ("both", "stay" if stay else "visit")
            and years >= youngest
            and sex in (None, patient.person.sex)
        ]
        for stay in (True, False)
    }
    for segment, minute in _occasions(rng, segments, count):
        code, text = rng.weighted(fitting[segment.stay])
        yield {
            "resourceType": "Procedure",
            "id": ids.new("PRC"),
            "status": rng.weighted([("completed", 97), ("not-done", 2), ("entered-in-error", 1)]),
            "code": r4.coded(r4.CPT, code, text),
            "subject": subject(patient.person),
            "performedDateTime": moment(minute),
        }


def condition_resources(
    rng: SeededRandom, ids: IdSequence, patient: Patient, segments: Sequence[Segment], count: int
) -> Iterator[Resource]:
    """Yield `count` Conditions: encounter diagnoses; the first Condition of a disease may be a problem list item."""
    codes: set[str] = set()
    acute: dict[Segment, list[tuple[tuple[str, str], int]]] = {}
    fitting = [
        entry for entry in DIAGNOSES if entry[1] <= patient.person.age() and entry[2] in (None, patient.person.sex)
    ]
    chronic = [_CHRONIC[key].icd for key in patient.diseases]
    for segment, minute in sorted(_occasions(rng, segments, count), key=lambda occasion: occasion[1]):
        if segment not in acute:
            drawn = rng.some(fitting, rng.between(1, 2) if not segment.stay else rng.between(3, 7))
            acute[segment] = [(icd, weight) for icd, _, _, weight in drawn]
        lasting = bool(chronic) and rng.percent(45)
        code, title = rng.one(chronic) if lasting else rng.weighted(acute[segment])
        listed = code not in codes and (lasting or rng.percent(30))
        codes.add(code)
        over = not lasting and not segment.present
        yield _condition(ids.new("CON"), patient, (code, title), minute, listed=listed, over=over)


def _condition(
    ident: str, patient: Patient, icd: tuple[str, str], minute: int, *, listed: bool, over: bool
) -> Resource:
    status = ("resolved", "Resolved") if over else ("active", "Active")
    kind = ("problem-list-item", "Problem List Item") if listed else ("encounter-diagnosis", "Encounter Diagnosis")
    return {
        "resourceType": "Condition",
        "id": ident,
        "clinicalStatus": r4.hl7_concept("condition-clinical", *status),
        "verificationStatus": _CONFIRMED,
        "category": [r4.hl7_concept("condition-category", *kind)],
        "code": r4.coded(r4.ICD10, *icd),
        "subject": subject(patient.person),
        "onsetDateTime": moment(minute)[:10],
        "recordedDate": moment(minute),
    }


def medication_resources(
    rng: SeededRandom, ids: IdSequence, patient: Patient, segments: Sequence[Segment], count: int
) -> Iterator[Resource]:
    """Yield `count` MedicationRequests: home medications and medications given on the ward."""
    home = [drug for drug in DRUGS if set(drug.treats) & set(patient.diseases)]
    for segment, minute in _occasions(rng, segments, count):
        at_home = bool(home) and rng.percent(35 if segment.stay else 85)
        drug: Drug = rng.one(home) if at_home else rng.weighted(MEDICINES)
        status = rng.weighted([("active", 80), ("on-hold", 5), ("cancelled", 5), ("stopped", 10)])
        if not segment.present:
            status = rng.weighted([("completed", 80), ("stopped", 14), ("cancelled", 5), ("entered-in-error", 1)])
        yield medication_request(ids.new("MED"), patient.person, drug, START + timedelta(minutes=minute), status)


def _occasions(rng: SeededRandom, segments: Sequence[Segment], count: int) -> Iterator[tuple[Segment, int]]:
    """Draw `count` documentation times in no particular order; longer segments get more times."""
    weighted = [(segment, 1 + (segment.end - segment.start) // (DAY // 4)) for segment in segments]
    for _ in range(count):
        segment = rng.weighted(weighted)
        yield segment, rng.between(segment.start, min(segment.end, LATEST))
