"""Draw and build surgery plans: ServiceRequests for an operation on a certain day."""

from __future__ import annotations

from typing_extensions import override

from fhir_gym.tasks.authoring import SNOMED, Concept, reference
from fhir_gym.tasks.grading import same_moment
from fhir_gym.tasks.packs.appointment.patient_scenes import CodedRecord, PatientScene
from fhir_gym.types import Json, Resource


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


class SurgeryOrder(CodedRecord):
    """One order for a procedure.

    Attributes:
        category: Category of the procedure, such as `SURGICAL`.
        when: Date or instant of the procedure.
    """

    category: Concept
    status: str
    when: str


class SurgeryScene(PatientScene):
    """Patients and orders for procedures.

    Attributes:
        orders: Orders for the patients.
        today: Current date.
    """

    orders: tuple[SurgeryOrder, ...]
    today: str

    @override
    def resources(self) -> list[Resource]:
        return [*super().resources(), *map(service_request, self.orders)]


def service_request(order: SurgeryOrder) -> Resource:
    """Build the ServiceRequest of an order."""
    return {
        "resourceType": "ServiceRequest",
        "id": order.id,
        "status": order.status,
        "intent": "order",
        "category": [order.category.concept],
        "code": order.what.concept,
        "subject": reference("Patient", order.patient),
        "occurrenceDateTime": order.when,
    }


def on_day(request: Resource, day: str) -> bool:
    """Return whether the occurrence of a ServiceRequest, a dateTime or a whole Period, is on a day."""
    period: Json = request.get("occurrencePeriod")
    if isinstance(period, dict):
        return same_moment(period.get("start"), day) and same_moment(period.get("end"), day)
    return same_moment(request.get("occurrenceDateTime"), day)
