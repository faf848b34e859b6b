"""Conditions, as medical history has them."""

from __future__ import annotations

import random

from fhir_gym.tasks.bundles import reference
from fhir_gym.tasks.concepts import SNOMED, Concept, codes_of
from fhir_gym.tasks.params import Params
from fhir_gym.types import Resource

__all__ = [
    "CLINICAL_STATUS",
    "PROBLEMS",
    "VERIFICATION_STATUS",
    "Problem",
    "condition",
    "entered_in_error",
    "some_problems",
]

CLINICAL_STATUS = "http://terminology.hl7.org/CodeSystem/condition-clinical"
VERIFICATION_STATUS = "http://terminology.hl7.org/CodeSystem/condition-ver-status"
_CATEGORY = "http://terminology.hl7.org/CodeSystem/condition-category"

PROBLEMS = tuple(
    Concept(system=SNOMED, code=code, display=display)
    for code, display in (
        ("13645005", "Chronic obstructive pulmonary disease"),
        ("24700007", "Multiple sclerosis"),
        ("34000006", "Crohn's disease"),
        ("35489007", "Depressive disorder"),
        ("37796009", "Migraine"),
        ("38341003", "Hypertension"),
        ("40930008", "Hypothyroidism"),
        ("44054006", "Diabetes mellitus type 2"),
        ("46635009", "Diabetes mellitus type 1"),
        ("49049000", "Parkinson's disease"),
        ("49436004", "Atrial fibrillation"),
        ("55822004", "Hyperlipidemia"),
        ("56265001", "Heart disease"),
        ("59282003", "Pulmonary embolism"),
        ("64766004", "Ulcerative colitis"),
        ("64859006", "Osteoporosis"),
        ("69896004", "Rheumatoid arthritis"),
        ("73211009", "Diabetes mellitus"),
        ("74400008", "Appendicitis"),
        ("78275009", "Obstructive sleep apnea"),
        ("84757009", "Epilepsy"),
        ("90560007", "Gout"),
        ("128053003", "Deep venous thrombosis"),
        ("195967001", "Asthma"),
        ("235595009", "Gastroesophageal reflux disease"),
        ("271737000", "Anemia"),
        ("396275006", "Osteoarthritis"),
        ("709044004", "Chronic kidney disease"),
    )
)


class Problem(Params):
    """One condition.

    Attributes:
        id: Its id.
        patient: Id of the patient.
        what: What it is.
        clinical: Clinical status.
        verification: Verification status.
        category: ``problem-list-item`` or ``encounter-diagnosis``.
        recorded: Date it was recorded.
    """

    id: str
    patient: str
    what: Concept
    clinical: str
    verification: str
    category: str
    recorded: str


def condition(problem: Problem) -> Resource:
    """The Condition; one entered in error has no clinical status (FHIR constraint con-5)."""
    clinical = {"clinicalStatus": {"coding": [{"system": CLINICAL_STATUS, "code": problem.clinical}]}}
    return {
        "resourceType": "Condition",
        "id": problem.id,
        **(clinical if problem.verification != "entered-in-error" else {}),
        "verificationStatus": {"coding": [{"system": VERIFICATION_STATUS, "code": problem.verification}]},
        "category": [{"coding": [{"system": _CATEGORY, "code": problem.category}]}],
        "code": problem.what.concept,
        "subject": reference("Patient", problem.patient),
        "recordedDate": problem.recorded,
    }


def entered_in_error(condition: Resource) -> bool:
    """Whether a Condition should never have been recorded."""
    return "entered-in-error" in codes_of(condition.get("verificationStatus"), VERIFICATION_STATUS)


def some_problems(rng: random.Random, count: int) -> list[Concept]:
    """Different problems."""
    return rng.sample(PROBLEMS, count)
