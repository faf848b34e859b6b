"""Orders for genetic tests, and the records attached to them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from fhir_gym.actions import Action, Get, Put
from fhir_gym.tasks import Check, FinishedEpisode, Params, equal
from fhir_gym.tasks.authoring import SNOMED, Concept, Person, entries, reference, update_checks
from fhir_gym.types import Json, Resource

TEST_SYSTEM = "http://example.org/fhir/CodeSystem/genetic-tests"
TESTS = tuple(
    Concept(system=TEST_SYSTEM, code=code, display=display)
    for code, display in (
        ("wgs-rare-disease", "Whole genome sequencing for rare disease"),
        ("wgs-hereditary-cancer", "Whole genome sequencing for hereditary cancer"),
        ("wgs-cardiomyopathy", "Whole genome sequencing for cardiomyopathy"),
        ("wgs-epilepsy", "Whole genome sequencing for epilepsy"),
        ("wgs-kidney-disease", "Whole genome sequencing for kidney disease"),
        ("wgs-trio", "Whole genome sequencing, trio"),
    )
)
_LABORATORY = Concept(system=SNOMED, code="108252007", display="Laboratory procedure")


class GeneticOrder(Params):
    """An order for a genetic test.

    Attributes:
        patient: Id of the patient.
        requester: Id of the practitioner.
        authored: Date of the order.
        attached: References in the order's supporting information.
    """

    id: str
    patient: str
    requester: str
    test: Concept
    status: str
    priority: str
    authored: str
    attached: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """Reference to the order."""
        return f"ServiceRequest/{self.id}"


def order_request(order: GeneticOrder) -> Resource:
    """Build the ServiceRequest of an order."""
    attached = [{"reference": report} for report in order.attached]
    return {
        "resourceType": "ServiceRequest",
        "id": order.id,
        "status": order.status,
        "intent": "order",
        "category": [_LABORATORY.concept],
        "priority": order.priority,
        "code": order.test.concept,
        "subject": reference("Patient", order.patient),
        "authoredOn": order.authored,
        "requester": reference("Practitioner", order.requester),
        **({"supportingInfo": attached} if attached else {}),
    }


def order_prompt_values(person: Person, test: Concept) -> dict[str, str]:
    """Return the prompt values for a patient and a test."""
    display = test.display[0].lower() + test.display[1:]
    return {**patient_prompt_values(person), "code": test.code, "display": display}


def patient_prompt_values(person: Person) -> dict[str, str]:
    """Return the prompt values for a patient."""
    names = person.model_dump(include={"given", "family", "birth_date"})
    return {**names, "patient": person.name}


def find_order(patient_id: str, test: Concept) -> Generator[Action, Json, Resource]:
    """Find a patient's draft order for a test."""
    query = {"subject": f"Patient/{patient_id}", "status": "draft", "code": test.token}
    return next(entries((yield Get("/ServiceRequest", query))))


def attach_references(order: Resource, references: Iterable[str]) -> Action:
    """Build the update that adds missing references to an order's supporting information."""
    there = list(order.get("supportingInfo", []))
    attached = {supporting_info.get("reference") for supporting_info in there}
    added = [{"reference": report} for report in references if report not in attached]
    return Put(f"/ServiceRequest/{order['id']}", {**order, "supportingInfo": [*there, *added]})


def attachment_checks(end: FinishedEpisode, order: GeneticOrder, references: Iterable[str | None]) -> Iterator[Check]:
    """Yield checks that an order refers to some records in its supporting information and is otherwise unchanged.

    Args:
        end: End state of the episode.
        order: The order before the episode.
        references: References to the records; the order may already contain some of them.
    """
    yield from update_checks(end, "ServiceRequest", order.id, changing=("supportingInfo",), called="order")
    after = end.after_update("ServiceRequest", order.id)
    references_after = [end.refers(supporting_info) for supporting_info in after.get("supportingInfo", [])]
    yield Check(
        name="has supporting information",
        passed=not after or bool(references_after),
        actual=list(references_after),
        level="exists",
    )
    expected_references = sorted({*order.attached, *references}, key=str)
    yield equal("supporting information", sorted(references_after, key=str), expected_references)
