"""Generate Procedures and MedicationRequests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fhir_gym.types import Resource
from fhir_gym.worlds.hospital import datatypes as r4
from fhir_gym.worlds.hospital.clinic import Clinician
from fhir_gym.worlds.hospital.people import Demographics
from fhir_gym.worlds.hospital.problems import PatientDiagnosis
from fhir_gym.worlds.hospital.seeded_random import IdSequence, SeededRandom
from fhir_gym.worlds.hospital.times import NOW, iso, minutes
from fhir_gym.worlds.hospital.visits import Visit

# (CPT code, our own short description, minimum age, sex if limited to one, weight)
PROCEDURES = (
    ("36415", "Venous blood draw", 2, None, 30),
    ("93000", "Electrocardiogram with interpretation", 18, None, 16),
    ("71046", "Chest X-ray, two views", 5, None, 12),
    ("94010", "Spirometry", 6, None, 7),
    ("90471", "Administration of one vaccine", 1, None, 12),
    ("97110", "Therapeutic exercises, 15 minutes", 12, None, 9),
    ("45378", "Diagnostic colonoscopy", 45, None, 6),
    ("43239", "Upper endoscopy with biopsy", 25, None, 4),
    ("93306", "Echocardiogram, complete, with Doppler", 40, None, 6),
    ("73721", "MRI of a leg joint without contrast", 14, None, 6),
    ("70450", "CT of the head without contrast", 10, None, 5),
    ("76700", "Ultrasound of the abdomen, complete", 10, None, 6),
    ("77067", "Screening mammography of both breasts", 45, "female", 7),
    ("20610", "Injection into a large joint", 40, None, 5),
    ("17000", "Destruction of a premalignant skin lesion", 50, None, 4),
    ("12001", "Simple repair of a superficial wound", 3, None, 4),
)

_SURGERIES = {  # disease: (CPT code, description, percentage of patients)
    "appendicitis": ("44970", "Laparoscopic appendectomy", 100),
    "knee": ("27447", "Total knee replacement", 25),
    "breast": ("19301", "Partial mastectomy", 80),
}


@dataclass(frozen=True)
class Drug:
    """A medication.

    Attributes:
        treats: Keys of the diseases that the medication treats.
        rxnorm: RxNorm concept of the ingredient.
        name: Ingredient, strength and form.
        dose: Amount and unit of one dose.
        times: Number of doses per period, and the length of the period in hours.
        lasting: Whether the medication is for long-term use.
        route: SNOMED CT code and term of the route.
    """

    treats: tuple[str, ...]
    rxnorm: str
    name: str
    dose: tuple[int, str]
    times: tuple[int, int]
    lasting: bool = True
    route: tuple[str, str] = ("26643006", "Oral route")

    @property
    def ingredient(self) -> str:
        """The name without strength and form."""
        return re.split(r" (?=\d)", self.name)[0]


_INHALED = ("447694001", "Respiratory tract route")
_INJECTED = ("34206005", "Subcutaneous route")

DRUGS = (
    Drug(("diabetes",), "6809", "Metformin 500 mg oral tablet", (500, "mg"), (2, 24)),
    Drug(("diabetes",), "274783", "Insulin glargine 100 units/mL injection", (14, "[iU]"), (1, 24), route=_INJECTED),
    Drug(("hypertension", "heart"), "29046", "Lisinopril 10 mg oral tablet", (10, "mg"), (1, 24)),
    Drug(("hypertension",), "17767", "Amlodipine 5 mg oral tablet", (5, "mg"), (1, 24)),
    Drug(("lipids",), "83367", "Atorvastatin 20 mg oral tablet", (20, "mg"), (1, 24)),
    Drug(("heart", "kidney"), "4603", "Furosemide 40 mg oral tablet", (40, "mg"), (1, 24)),
    Drug(("heart", "fibrillation"), "6918", "Metoprolol 50 mg oral tablet", (50, "mg"), (2, 24)),
    Drug(("fibrillation",), "11289", "Warfarin 5 mg oral tablet", (5, "mg"), (1, 24)),
    Drug(("thyroid",), "10582", "Levothyroxine 50 mcg oral tablet", (50, "ug"), (1, 24)),
    Drug(("asthma", "copd"), "435", "Albuterol 90 mcg inhaler", (180, "ug"), (4, 24), route=_INHALED),
    Drug(("reflux",), "7646", "Omeprazole 20 mg oral capsule", (20, "mg"), (1, 24)),
    Drug(("depression", "anxiety"), "36437", "Sertraline 50 mg oral tablet", (50, "mg"), (1, 24)),
    Drug(("migraine",), "37418", "Sumatriptan 50 mg oral tablet", (50, "mg"), (1, 24)),
    Drug(("anemia",), "24947", "Ferrous sulfate 325 mg oral tablet", (325, "mg"), (1, 24)),
    Drug(("back", "knee"), "5640", "Ibuprofen 400 mg oral tablet", (400, "mg"), (3, 24), lasting=False),
    Drug(("urinary",), "7454", "Nitrofurantoin 100 mg oral capsule", (100, "mg"), (2, 24), lasting=False),
    Drug(("pneumonia", "throat"), "723", "Amoxicillin 500 mg oral capsule", (500, "mg"), (3, 24), lasting=False),
)


def procedure_resources(
    rng: SeededRandom,
    ids: IdSequence,
    person: Demographics,
    visits: Sequence[Visit],
    problems: Sequence[PatientDiagnosis],
) -> Iterator[Resource]:
    """Yield Procedures: minor procedures at most visits, and surgery for some diseases."""
    for visit in visits:
        years = person.age(visit.start.date())
        fitting = [
            ((code, text), weight)
            for code, text, youngest, sex, weight in PROCEDURES
            if years >= youngest and sex in (None, person.sex)
        ]
        for _ in range(rng.weighted([(0, 25), (1, 60), (2, 15)]) if fitting else 0):
            code, text = rng.weighted(fitting)
            yield _procedure(rng, ids.new("PRC"), visit, code, text)
    for problem in problems:
        code, text, share = _SURGERIES.get(problem.disease.key, ("", "", 0))
        later = [visit for visit in visits if visit.kind != "AMB" and visit.start >= problem.recorded]
        if later and rng.percent(share):
            yield _procedure(rng, ids.new("PRC"), problem.visit or rng.one(later), code, text)


def _procedure(rng: SeededRandom, ident: str, visit: Visit, code: str, text: str) -> Resource:
    begin = visit.start + minutes(rng.between(5, 15))
    status = "completed" if visit.end and rng.percent(97) else "in-progress" if not visit.end else "not-done"
    procedure: Resource = {
        "resourceType": "Procedure",
        "id": ident,
        "status": status,
        "code": r4.coded(r4.CPT, code, text),
        "subject": r4.ref("Patient", visit.person.mrn),
        "encounter": r4.ref("Encounter", visit.id),
        "performedDateTime": iso(begin),
    }
    if status != "not-done":
        procedure["performer"] = [{"actor": r4.ref("Practitioner", visit.doctor.id, visit.doctor.name)}]
    return procedure


def medication_resources(
    rng: SeededRandom, ids: IdSequence, person: Demographics, problems: Sequence[PatientDiagnosis], doctor: Clinician
) -> Iterator[Resource]:
    """Yield MedicationRequests for the patient's diseases, with renewals and stopped medications."""
    drugs: set[str] = set()
    for problem in problems:
        for drug in DRUGS:
            if problem.disease.key not in drug.treats or drug.name in drugs or not rng.percent(65):
                continue
            drugs.add(drug.name)
            adviser = problem.visit.doctor if problem.visit else doctor
            yield from _prescriptions(rng, ids, person, drug, problem, adviser)


def _prescriptions(
    rng: SeededRandom, ids: IdSequence, person: Demographics, drug: Drug, problem: PatientDiagnosis, doctor: Clinician
) -> Iterator[Resource]:
    written = problem.recorded + minutes(rng.between(10, 20))
    if not drug.lasting:
        status = "completed" if written + timedelta(days=10) < NOW else "active"
        yield medication_request(ids.new("MED"), person, drug, written, status, doctor, problem)
        return
    renewals = rng.between(0, 2)
    for renewal in range(renewals + 1):
        days = (NOW - written).days
        last = renewal == renewals
        status = rng.weighted([("active", 85), ("stopped", 10), ("on-hold", 5)]) if last else "completed"
        yield medication_request(ids.new("MED"), person, drug, written, status, doctor, problem)
        if days > 60:
            written += timedelta(days=rng.between(30, days - 20))


def medication_request(
    ident: str,
    person: Demographics,
    drug: Drug,
    written: datetime,
    status: str,
    doctor: Clinician | None = None,
    problem: PatientDiagnosis | None = None,
) -> Resource:
    """Build a MedicationRequest, with the requester and the reason if they are given."""
    amount, unit = drug.dose
    count, hours = drug.times
    printed = {"[iU]": "units", "ug": "mcg", "meq": "mEq"}.get(unit, unit)
    request: Resource = {
        "resourceType": "MedicationRequest",
        "id": ident,
        "status": status,
        "intent": "order",
        "medicationCodeableConcept": r4.concept(r4.coding(r4.RXNORM, drug.rxnorm, drug.ingredient), text=drug.name),
        "subject": r4.ref("Patient", person.mrn),
        "authoredOn": iso(written),
        **({"requester": r4.ref("Practitioner", doctor.id, doctor.name)} if doctor else {}),
        "dosageInstruction": [
            {
                "text": f"{amount} {printed} {_often(count)}",
                "timing": {"repeat": {"frequency": count, "period": hours, "periodUnit": "h"}},
                "route": r4.coded(r4.SNOMED, *drug.route),
                "doseAndRate": [{"doseQuantity": r4.quantity(amount, printed, unit)}],
            }
        ],
    }
    if problem:
        request["reasonCode"] = [r4.coded(r4.SNOMED, *problem.disease.snomed)]
        if problem.visit:
            request["encounter"] = r4.ref("Encounter", problem.visit.id)
    return request


def _often(count: int) -> str:
    return {1: "once a day", 2: "twice a day"}.get(count, f"{count} times a day")
