"""The orders that an agent wrote."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from types import MappingProxyType

from fhir_gym.tasks.authoring import codings, concept_texts, instant
from fhir_gym.tasks.grading import same_moment
from fhir_gym.tasks.packs.shift.charts import EarlierOrder
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.formulary import Formulary, Item
from fhir_gym.types import Json, Resource

ORDERS = ("MedicationRequest", "ServiceRequest")
"""The resource types of orders."""
_ORDER = ("status", "intent", "subject", "authoredOn")
_DOSE = ("dosageInstruction", "dosageInstruction.doseAndRate", "dosageInstruction.doseAndRate.doseQuantity")
DOSE_RULE = (
    "A MedicationRequest has one dosageInstruction with one doseAndRate. Its doseQuantity has the dose as value and mg "
    "as unit, as code or as both; the system of the code may be added. The dosageInstruction says nothing else: it has "
    "no text, route or timing."
)
"""How an order states its dose, for prompts."""
ORDER_ELEMENTS = MappingProxyType(
    {"MedicationRequest": (*_ORDER, "medicationCodeableConcept", *_DOSE), "ServiceRequest": (*_ORDER, "code")}
)
"""The elements that requests for orders ask for; see `Task.requested_elements`."""


class OrderReader:
    """Reads the orders that an agent wrote.

    Args:
        formulary: The drugs and tests that can be ordered.
        log: What the agent wrote.
    """

    def __init__(self, formulary: Formulary, log: EpisodeLog) -> None:
        self._formulary, self._log = formulary, log
        self._today = instant(log.end.world.now)[:10]

    @cached_property
    def new(self) -> dict[str, Resource]:
        """The orders that the agent created, each as it last was, in the order of their creation."""
        found: dict[str, Resource] = {}
        for one in self._log.writes_of_agent:
            created = one.record in found or (
                one.before is None and self._log.end.before.read(one.resource_type, one.id) is None
            )
            if one.resource_type in ORDERS and created and one.after is not None:
                found[one.record] = one.after
        return found

    @cached_property
    def new_by_patient(self) -> dict[str, frozenset[str]]:
        """References to the new orders by the id of the patient."""
        found: dict[str, set[str]] = {}
        for record, order in self.new.items():
            found.setdefault(self._patient(order), set()).add(record)
        return {patient: frozenset(records) for patient, records in found.items()}

    def _patient(self, order: Resource) -> str:
        return (self._log.end.refers(order.get("subject")) or "").removeprefix("Patient/")

    def about(self, order: Resource) -> tuple[str, str]:
        """Return the id of the patient and the name of the item of an order; empty if it is about others."""
        concept = order.get("code") if order.get("resourceType") == "ServiceRequest" else _drug(order)
        told = {(one.get("system"), one.get("code")) for one in codings(concept)}
        items = (one for one in self._formulary.items if (one.system, one.code) in told)
        item = next((one.name for one in items if one.resource_type == order.get("resourceType")), "")
        return self._patient(order), item

    def read(self, record: str, order: Resource) -> EarlierOrder:
        """Read an order."""
        patient, item = self.about(order)
        status, intent, written = (str(order.get(name)) for name in ("status", "intent", "authoredOn"))
        id = record.partition("/")[2]
        return EarlierOrder(id=id, patient=patient, item=item, status=status, intent=intent, written=written, dose=0)

    def problems(self, order: Resource, patient: str, item: Item, dose: int) -> Iterator[Json]:
        """Yield what is wrong with a new order.

        Args:
            order: The order.
            patient: Id of the patient.
            item: The drug or test.
            dose: The dose of a drug in milligrams.
        """
        if self.about(order) != (patient, item.name) or not self._names_only(order, item):
            yield f"ordered {_drug(order) if item.group else order.get('code')}"
        for name, wanted in (("status", "active"), ("intent", "order")):
            if order.get(name) != wanted:
                yield f"{name} {order.get(name)}"
        if not same_moment(order.get("authoredOn"), self._today):
            yield f"authoredOn {order.get('authoredOn')}"
        if item.group and not _is_dose(order.get("dosageInstruction"), dose):
            yield {"expected dose in mg": dose, "dosageInstruction": order.get("dosageInstruction")}

    def _names_only(self, order: Resource, item: Item) -> bool:
        """Whether an order has no other code, and its texts do not name another drug or test."""
        concept = _drug(order) if item.group else order.get("code")
        if {(one.get("system"), one.get("code")) for one in codings(concept)} != {(item.system, item.code)}:
            return False
        texts, name = [one.casefold() for one in concept_texts(concept)], item.name.casefold()
        if item.group:
            return all(name in one or one == item.code for one in texts)
        # The code system has other names for a test.
        others = [one.name.casefold() for one in self._formulary.items if one.name != item.name]
        return not any(other in one for one in texts for other in others)


def _drug(order: Resource) -> Json:
    return order.get("medicationCodeableConcept")


def _is_dose(instructions: Json, dose: int) -> bool:
    """Whether a dosage instruction contains exactly this dose in milligrams."""
    given = _only(_only(instructions).get("doseAndRate")).get("doseQuantity")
    if not isinstance(given, dict) or "comparator" in given:
        return False
    value, units = given.get("value"), [given[name] for name in ("unit", "code") if name in given]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and value == dose and bool(units) and all(one == "mg" for one in units)


def _only(items: Json) -> Resource:
    """Return the only object of a list; an empty object if the list has more or fewer items."""
    return items[0] if isinstance(items, list) and len(items) == 1 and isinstance(items[0], dict) else {}
