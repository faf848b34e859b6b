"""Generate the Procedures, Conditions and MedicationRequests of the cohort."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from fhir_gym.types import Resource
from fhir_gym.worlds.cohort.catalogues import DIAGNOSES, MEDICINES, ORDERS
from fhir_gym.worlds.cohort.observations import moment, subject
from fhir_gym.worlds.cohort.patients import LATEST, Patient
from fhir_gym.worlds.cohort.timeline import Segment
from fhir_gym.worlds.hospital import datatypes as r4
from fhir_gym.worlds.hospital.problems import DISEASES
from fhir_gym.worlds.hospital.seeded_random import IdSequence, SeededRandom
from fhir_gym.worlds.hospital.times import DAY, START
from fhir_gym.worlds.hospital.treatments import DRUGS, Drug, medication_request

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
    known: set[str] = set()
    acute: dict[Segment, list[tuple[tuple[str, str], int]]] = {}
    fitting = [
        entry for entry in DIAGNOSES if entry[1] <= patient.person.age() and entry[2] in (None, patient.person.sex)
    ]
    chronic = [_CHRONIC[key].icd for key in patient.diseases]
    for segment, minute in sorted(_occasions(rng, segments, count), key=lambda one: one[1]):
        if segment not in acute:
            drawn = rng.some(fitting, rng.between(1, 2) if not segment.stay else rng.between(3, 7))
            acute[segment] = [(icd, weight) for icd, _, _, weight in drawn]
        lasting = bool(chronic) and rng.percent(45)
        code, title = rng.one(chronic) if lasting else rng.weighted(acute[segment])
        listed = code not in known and (lasting or rng.percent(30))
        known.add(code)
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
