"""Surgery plans: ServiceRequests for an operation on a day."""

from __future__ import annotations

import random

from fhir_gym.tasks.bundles import reference
from fhir_gym.tasks.compare import same_moment
from fhir_gym.tasks.concepts import SNOMED, Concept
from fhir_gym.tasks.params import Params
from fhir_gym.types import Json, Resource

__all__ = ["IMAGING", "OPERATIONS", "SCANS", "SURGICAL", "Plan", "another", "on_day", "plan_request"]


def _concepts(*pairs: tuple[str, str]) -> tuple[Concept, ...]:
    return tuple(Concept(system=SNOMED, code=code, display=display) for code, display in pairs)


SURGICAL, IMAGING = _concepts(("387713003", "Surgical procedure"), ("363679005", "Imaging"))
OPERATIONS = _concepts(
    ("13619001", "Thyroidectomy"),
    ("26390003", "Total colectomy"),
    ("38102005", "Cholecystectomy"),
    ("44558001", "Repair of inguinal hernia"),
    ("52734007", "Total replacement of hip"),
    ("54885007", "Extraction of cataract"),
    ("80146002", "Appendectomy"),
    ("108022006", "Nephrectomy"),
    ("172043006", "Simple mastectomy"),
    ("173422009", "Tonsillectomy"),
    ("232717009", "Coronary artery bypass graft"),
    ("609588000", "Total knee replacement"),
)
SCANS = _concepts(
    ("77477000", "Computerized axial tomography"),
    ("113091000", "Magnetic resonance imaging"),
    ("16310003", "Ultrasonography"),
)


class Plan(Params):
    """One order for a procedure.

    Attributes:
        id: Its id.
        patient: Id of the patient.
        category: What kind of procedure it is.
        what: The procedure.
        status: Status of the order.
        when: Date, or instant, of the procedure.
    """

    id: str
    patient: str
    category: Concept
    what: Concept
    status: str
    when: str


def plan_request(plan: Plan) -> Resource:
    """The ServiceRequest."""
    return {
        "resourceType": "ServiceRequest",
        "id": plan.id,
        "status": plan.status,
        "intent": "order",
        "category": [plan.category.concept],
        "code": plan.what.concept,
        "subject": reference("Patient", plan.patient),
        "occurrenceDateTime": plan.when,
    }


def another(rng: random.Random, operation: Concept) -> Concept:
    """Another operation."""
    return rng.choice([one for one in OPERATIONS if one != operation])


def on_day(request: Resource, day: str) -> bool:
    """Whether a ServiceRequest is for one day: a dateTime of that day, or a Period that starts and ends on it."""
    period: Json = request.get("occurrencePeriod")
    if isinstance(period, dict):
        return same_moment(period.get("start"), day) and same_moment(period.get("end"), day)
    return same_moment(request.get("occurrenceDateTime"), day)
