"""Draw and build the conditions of a patient's medical history."""

from __future__ import annotations

import random
from datetime import timedelta

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import SNOMED, Concept, IdAllocator, codes_of, reference
from fhir_gym.tasks.packs.appointment.patient_scenes import CodedRecord, PatientScene
from fhir_gym.types import Resource

CLINICAL_STATUS = "http://terminology.hl7.org/CodeSystem/condition-clinical"
VERIFICATION_STATUS = "http://terminology.hl7.org/CodeSystem/condition-ver-status"
CONFIRMED, ENTERED_IN_ERROR = "confirmed", "entered-in-error"
_CATEGORY = "http://terminology.hl7.org/CodeSystem/condition-category"
_CATEGORIES = ("problem-list-item", "encounter-diagnosis")

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


class Problem(CodedRecord):
    """One condition.

    Attributes:
        clinical: Clinical status.
        verification: Verification status.
        category: ``problem-list-item`` or ``encounter-diagnosis``.
        recorded: Date on which the condition was recorded.
    """

    clinical: str
    verification: str
    category: str
    recorded: str

    @property
    def mistaken(self) -> bool:
        """Whether the condition was entered in error."""
        return self.verification == ENTERED_IN_ERROR


class HistoryScene(PatientScene):
    """Patients and their conditions.

    Attributes:
        problems: Conditions of the patients.
    """

    problems: tuple[Problem, ...]

    @override
    def resources(self) -> list[Resource]:
        return [*super().resources(), *map(condition_resource, self.problems)]


def condition_resource(problem: Problem) -> Resource:
    """Build the Condition; one entered in error has no clinical status (FHIR constraint con-5)."""
    clinical = {"clinicalStatus": {"coding": [{"system": CLINICAL_STATUS, "code": problem.clinical}]}}
    return {
        "resourceType": "Condition",
        "id": problem.id,
        **({} if problem.mistaken else clinical),
        "verificationStatus": {"coding": [{"system": VERIFICATION_STATUS, "code": problem.verification}]},
        "category": [{"coding": [{"system": _CATEGORY, "code": problem.category}]}],
        "code": problem.what.concept,
        "subject": reference("Patient", problem.patient),
        "recordedDate": problem.recorded,
    }


def draw_problem(
    rng: random.Random,
    world: World,
    ids: IdAllocator,
    patient: str,
    what: Concept,
    days_ago: int,
    clinical: str,
    verification: str = CONFIRMED,
) -> Problem:
    """Draw a condition of a random category that was recorded `days_ago` days before the world's current time."""
    return Problem(
        id=ids.new("Condition"),
        patient=patient,
        what=what,
        clinical=clinical,
        verification=verification,
        category=rng.choice(_CATEGORIES),
        recorded=(world.now.date() - timedelta(days=days_ago)).isoformat(),
    )


def entered_in_error(condition: Resource) -> bool:
    """Return whether a Condition has the verification status ``entered-in-error``."""
    return ENTERED_IN_ERROR in codes_of(condition.get("verificationStatus"), VERIFICATION_STATUS)


def draw_conditions(rng: random.Random, count: int) -> list[Concept]:
    """Draw different conditions."""
    return rng.sample(PROBLEMS, count)
