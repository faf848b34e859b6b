"""Generate the patients' diseases as Conditions, their allergies and their family history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from fhir_gym.types import Resource
from fhir_gym.worlds.hospital import datatypes as r4
from fhir_gym.worlds.hospital.people import Demographics
from fhir_gym.worlds.hospital.seeded_random import IdSequence, SeededRandom
from fhir_gym.worlds.hospital.times import NOW, START, at_hour, iso, years_before
from fhir_gym.worlds.hospital.visits import Visit


@dataclass(frozen=True)
class Disease:
    """A disease with its codes and prevalence.

    Attributes:
        key: Short name used by the other generators.
        icd: ICD-10-CM code and title.
        snomed: SNOMED CT code and term.
        youngest: Minimum age.
        share: Prevalence in percent among people of at least the minimum age.
        lasting: Whether the disease is chronic.
        sex: The affected sex, if only one.
    """

    key: str
    icd: tuple[str, str]
    snomed: tuple[str, str]
    youngest: int
    share: int
    lasting: bool = True
    sex: str | None = None


DISEASES = (
    Disease("hypertension", ("I10", "Essential (primary) hypertension"), ("38341003", "Hypertension"), 35, 45),
    Disease("diabetes", ("E11.9", "Type 2 diabetes mellitus without complications"),
            ("44054006", "Type 2 diabetes mellitus"), 35, 24),
    Disease("lipids", ("E78.5", "Hyperlipidemia, unspecified"), ("55822004", "Hyperlipidemia"), 35, 36),
    Disease("kidney", ("N18.30", "Chronic kidney disease, stage 3 unspecified"),
            ("433144002", "Chronic kidney disease stage 3"), 55, 12),
    Disease("heart", ("I50.9", "Heart failure, unspecified"), ("84114007", "Heart failure"), 60, 12),
    Disease("fibrillation", ("I48.91", "Unspecified atrial fibrillation"), ("49436004", "Atrial fibrillation"), 55, 12),
    Disease("thyroid", ("E03.9", "Hypothyroidism, unspecified"), ("40930008", "Hypothyroidism"), 25, 10),
    Disease("asthma", ("J45.909", "Unspecified asthma, uncomplicated"), ("195967001", "Asthma"), 4, 12),
    Disease("copd", ("J44.9", "Chronic obstructive pulmonary disease, unspecified"),
            ("13645005", "Chronic obstructive lung disease"), 50, 10),
    Disease("reflux", ("K21.9", "Gastro-esophageal reflux disease without esophagitis"),
            ("235595009", "Gastroesophageal reflux disease"), 20, 16),
    Disease("depression", ("F32.A", "Depression, unspecified"), ("35489007", "Depressive disorder"), 14, 13),
    Disease("anxiety", ("F41.9", "Anxiety disorder, unspecified"), ("48694002", "Anxiety"), 12, 10),
    Disease("knee", ("M17.9", "Osteoarthritis of knee, unspecified"), ("239873007", "Osteoarthritis of knee"), 50, 20),
    Disease("migraine", ("G43.909", "Migraine, unspecified, not intractable, without status migrainosus"),
            ("37796009", "Migraine"), 12, 10),
    Disease("back", ("M54.50", "Low back pain, unspecified"), ("279039007", "Low back pain"), 18, 18, lasting=False),
    Disease("anemia", ("D50.9", "Iron deficiency anemia, unspecified"), ("87522002", "Iron deficiency anemia"), 12, 9,
            lasting=False),
    Disease("urinary", ("N39.0", "Urinary tract infection, site not specified"),
            ("68566005", "Urinary tract infectious disease"), 15, 14, lasting=False, sex="female"),
    Disease("pneumonia", ("J18.9", "Pneumonia, unspecified organism"), ("233604007", "Pneumonia"), 1, 7, lasting=False),
    Disease("appendicitis", ("K35.80", "Unspecified acute appendicitis"), ("74400008", "Appendicitis"), 6, 4,
            lasting=False),
    Disease("throat", ("J02.9", "Acute pharyngitis, unspecified"), ("363746003", "Acute pharyngitis"), 2, 12,
            lasting=False),
    Disease("breast", ("C50.919", "Malignant neoplasm of unspecified site of unspecified female breast"),
            ("254837009", "Malignant neoplasm of breast"), 40, 5, sex="female"),
)  # fmt: skip


@dataclass(frozen=True)
class PatientDiagnosis:
    """A disease of one patient with its dates."""

    disease: Disease
    onset: date
    recorded: datetime
    abated: date | None
    visit: Visit | None


def draw_diseases(rng: SeededRandom, person: Demographics, visits: Sequence[Visit]) -> list[PatientDiagnosis]:
    """Draw the patient's past and current diseases; an acute disease is diagnosed at a visit."""
    problems = []
    for disease in DISEASES:
        if disease.sex in (None, person.sex) and person.age() >= disease.youngest and rng.percent(disease.share):
            problems.append(_lasting(rng, person, disease) if disease.lasting else _passing(rng, visits, disease))
    return [problem for problem in problems if problem is not None]


def _lasting(rng: SeededRandom, person: Demographics, disease: Disease) -> PatientDiagnosis:
    years = max(0, min(15, person.age() - disease.youngest))
    onset = years_before(NOW.date(), years and rng.between(0, years)) - timedelta(days=rng.between(30, 300))
    onset = max(onset, person.born)
    noted = START + timedelta(days=rng.between(0, 300), minutes=rng.between(0, 420))
    recorded = max(at_hour(onset + timedelta(days=7), 9), noted)
    return PatientDiagnosis(disease, onset, recorded, None, None)


def _passing(rng: SeededRandom, visits: Sequence[Visit], disease: Disease) -> PatientDiagnosis | None:
    old_enough = [visit for visit in visits if visit.person.age(visit.start.date()) >= disease.youngest]
    if not old_enough:
        return None
    visit = rng.one(old_enough)
    over = visit.until.date() + timedelta(days=rng.between(5, 30))
    onset = max(visit.start.date() - timedelta(days=rng.between(0, 5)), visit.person.born)
    return PatientDiagnosis(disease, onset, visit.start, over if over < NOW.date() else None, visit)


def condition_resources(
    ids: IdSequence, person: Demographics, problems: Sequence[PatientDiagnosis]
) -> Iterator[Resource]:
    """Yield the Conditions: problem list items for chronic diseases, encounter diagnoses for acute diseases."""
    for problem in problems:
        disease = problem.disease
        status = "resolved" if problem.abated else "active"
        kind, kind_name = (
            ("encounter-diagnosis", "Encounter Diagnosis")
            if problem.visit
            else ("problem-list-item", "Problem List Item")
        )
        condition: Resource = {
            "resourceType": "Condition",
            "id": ids.new("CON"),
            "clinicalStatus": r4.hl7_concept("condition-clinical", status, status.title()),
            "verificationStatus": r4.hl7_concept("condition-ver-status", "confirmed", "Confirmed"),
            "category": [r4.hl7_concept("condition-category", kind, kind_name)],
            "code": r4.concept(
                r4.coding(r4.ICD10, *disease.icd), r4.coding(r4.SNOMED, *disease.snomed), text=disease.snomed[1]
            ),
            "subject": r4.ref("Patient", person.mrn),
            "onsetDateTime": problem.onset.isoformat(),
            "recordedDate": iso(problem.recorded),
        }
        if problem.visit:
            condition["encounter"] = r4.ref("Encounter", problem.visit.id)
        if problem.abated:
            condition["abatementDateTime"] = problem.abated.isoformat()
        yield condition


# system, code, name, category, reactions (SNOMED CT)
_ALLERGENS = (
    (r4.RXNORM, "7980", "Penicillin G", "medication", ("126485001", "271807003", "39579001")),
    (r4.RXNORM, "10180", "Sulfamethoxazole", "medication", ("271807003", "126485001")),
    (r4.RXNORM, "1191", "Aspirin", "medication", ("56018004", "126485001")),
    (r4.RXNORM, "2670", "Codeine", "medication", ("422587007",)),
    (r4.SNOMED, "762952008", "Peanut", "food", ("39579001", "126485001")),
    (r4.SNOMED, "735029006", "Shellfish", "food", ("126485001", "422587007")),
    (r4.SNOMED, "111088007", "Latex", "environment", ("271807003",)),
    (r4.SNOMED, "288328004", "Bee venom", "environment", ("126485001", "39579001")),
)
_REACTIONS = {
    "126485001": ("Urticaria", "moderate"),
    "271807003": ("Eruption of skin", "mild"),
    "39579001": ("Anaphylaxis", "severe"),
    "56018004": ("Wheezing", "moderate"),
    "422587007": ("Nausea", "mild"),
}

_RELATIVES = (
    (("MTH", "mother"), "female", 27),
    (("FTH", "father"), "male", 30),
    (("SIS", "sister"), "female", 0),
    (("BRO", "brother"), "male", 0),
    (("MGRMTH", "maternal grandmother"), "female", 54),
    (("PGRFTH", "paternal grandfather"), "male", 60),
)
# (SNOMED CT code and term, earliest and latest age of onset, sex if limited to one)
_HEREDITARY = (
    (("363406005", "Malignant tumor of colon"), 38, 75, None),
    (("254837009", "Malignant neoplasm of breast"), 35, 75, "female"),
    (("44054006", "Type 2 diabetes mellitus"), 35, 70, None),
    (("38341003", "Hypertension"), 32, 70, None),
    (("22298006", "Myocardial infarction"), 42, 80, None),
    (("26929004", "Alzheimer's disease"), 62, 82, None),
    (("399068003", "Malignant tumor of prostate"), 50, 78, "male"),
)


def allergy_resources(rng: SeededRandom, ids: IdSequence, person: Demographics) -> Iterator[Resource]:
    """Yield up to three AllergyIntolerances."""
    for system, code, name, category, reactions in rng.some(
        _ALLERGENS, rng.weighted([(0, 50), (1, 32), (2, 13), (3, 5)])
    ):
        manifestation = rng.one(reactions)
        term, severity = _REACTIONS[manifestation]
        yield {
            "resourceType": "AllergyIntolerance",
            "id": ids.new("ALG"),
            "clinicalStatus": r4.hl7_concept("allergyintolerance-clinical", "active", "Active"),
            "verificationStatus": r4.hl7_concept("allergyintolerance-verification", "confirmed", "Confirmed"),
            "type": "allergy",
            "category": [category],
            "criticality": "high" if severity == "severe" else "low",
            "code": r4.coded(system, code, name),
            "patient": r4.ref("Patient", person.mrn),
            "recordedDate": _asked(rng, person),
            "reaction": [{"manifestation": [r4.coded(r4.SNOMED, manifestation, term)], "severity": severity}],
        }


def _asked(rng: SeededRandom, person: Demographics) -> str:
    first = max(START.date(), person.born + timedelta(days=14))
    day = first + timedelta(days=rng.between(0, max(0, (NOW.date() - first).days - 1)))
    return iso(at_hour(day, rng.between(8, 16), rng.between(0, 59))) if day < NOW.date() else iso(NOW)


def family_history_resources(rng: SeededRandom, ids: IdSequence, person: Demographics) -> Iterator[Resource]:
    """Yield FamilyMemberHistories of relatives who are old enough for the onset of their illness."""
    for (code, relation), sex, older in rng.some(_RELATIVES, rng.weighted([(0, 40), (1, 35), (2, 20), (3, 5)])):
        born = person.born.year - older + rng.between(-4, 4)
        age = NOW.year - born
        fitting = [item for item in _HEREDITARY if item[1] < age and item[3] in (None, sex)]
        if not fitting:
            continue
        illness, earliest, latest, _ = rng.one(fitting)
        onset = rng.between(earliest, min(latest, age))
        yield {
            "resourceType": "FamilyMemberHistory",
            "id": ids.new("FMH"),
            "status": "completed",
            "patient": r4.ref("Patient", person.mrn),
            "date": _asked(rng, person)[:10],
            "relationship": r4.coded(r4.hl7("v3-RoleCode"), code, relation),
            "sex": r4.concept(r4.coding("http://hl7.org/fhir/administrative-gender", sex, sex.title())),
            "bornString": str(born),
            "condition": [{"code": r4.coded(r4.SNOMED, *illness), "onsetAge": r4.quantity(onset, "years", "a")}],
        }
