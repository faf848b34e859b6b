"""Genetic and other diagnostic reports."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta

from fhir_gym.fhir import World
from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import Concept, IdAllocator, Person, reference
from fhir_gym.types import Resource

_LOINC = "http://loinc.org"
_SECTION = "http://terminology.hl7.org/CodeSystem/v2-0074"
GENETICS = Concept(system=_SECTION, code="GE", display="Genetics")


def _kind(code: str, display: str, section: str, name: str) -> tuple[Concept, Concept]:
    return (Concept(system=_LOINC, code=code, display=display), Concept(system=_SECTION, code=section, display=name))


GENETIC = tuple(
    _kind(code, display, GENETICS.code, GENETICS.display)
    for code, display in (
        ("51969-4", "Genetic analysis report"),
        ("55233-1", "Genetic analysis master panel"),
        ("81247-9", "Master HL7 genetic variant reporting panel"),
        ("62389-2", "Chromosome analysis master panel"),
    )
)
"""Code and category of each kind of genetic report."""
OTHER = (
    _kind("58410-2", "Complete blood count panel", "HM", "Hematology"),
    _kind("24331-1", "Lipid panel", "CH", "Chemistry"),
    _kind("24323-8", "Comprehensive metabolic panel", "CH", "Chemistry"),
    _kind("36643-5", "Chest X-ray, two views", "RAD", "Radiology"),
    _kind("30746-2", "Chest X-ray, portable", "RAD", "Radiology"),
    _kind("24627-2", "CT of the chest", "CT", "CAT Scan"),
    _kind("34552-0", "Echocardiogram", "CUS", "Cardiac Ultrasound"),
    _kind("11526-1", "Pathology study", "SP", "Surgical Pathology"),
)
"""Code and category of each kind of non-genetic report."""
_CONCLUSIONS = ("", "No change.", "Within normal limits.", "Genetic counseling and testing are recommended.")


class GeneticReport(Params):
    """A diagnostic report.

    Attributes:
        patient: Id of the patient.
        what: Code of the examination.
        category: Category of the report: the department that did the examination.
        day: Date of the examination.
        conclusion: Text of the conclusion; may be empty.
    """

    id: str
    patient: str
    what: Concept
    category: Concept
    status: str
    day: str
    conclusion: str

    @property
    def reference(self) -> str:
        """Reference to the report."""
        return f"DiagnosticReport/{self.id}"


def diagnostic_report(report: GeneticReport) -> Resource:
    """Build the DiagnosticReport of a report."""
    return {
        "resourceType": "DiagnosticReport",
        "id": report.id,
        "status": report.status,
        "category": [report.category.concept],
        "code": report.what.concept,
        "subject": reference("Patient", report.patient),
        "effectiveDateTime": report.day,
        **({"conclusion": report.conclusion} if report.conclusion else {}),
    }


def draw_reports(
    rng: random.Random,
    world: World,
    ids: IdAllocator,
    person: Person,
    kinds: Sequence[tuple[Concept, Concept]],
    statuses: Sequence[str],
) -> tuple[GeneticReport, ...]:
    """Draw reports of a patient, one of each of some kinds, on different days.

    Args:
        rng: Random generator.
        world: The world, which determines the current time.
        ids: Allocates the ids.
        person: The patient.
        kinds: Code and category of each report.
        statuses: Statuses to choose from.
    """
    days = rng.sample(range(1, 900), len(kinds))
    return tuple(
        GeneticReport(
            id=ids.new("DiagnosticReport"),
            patient=person.id,
            what=what,
            category=category,
            status=rng.choice(statuses),
            day=(world.now.date() - timedelta(days=ago)).isoformat(),
            conclusion=rng.choice(_CONCLUSIONS),
        )
        for (what, category), ago in zip(kinds, days, strict=True)
    )
