"""Choose the columns of a table of resources: fixed ones for common types, summary elements for other types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir.definitions import children
from fhir_gym.types import Json, Resource

_MAX_COLUMNS = 5


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        title: The title.
        paths: Paths of elements, of which the first that a resource has is shown. A path is an element name
            (``code``), a name with a choice of types (``value[x]``), or such names separated by dots.
    """

    title: str
    paths: tuple[str, ...]

    def value(self, resource: Resource) -> Json:
        """Return the element of a resource; None if the resource does not have it."""
        return next((found for path in self.paths if (found := find_element(resource, path)) is not None), None)


def _columns(*paths: str) -> tuple[Column, ...]:
    return tuple(Column(path.split("|")[0].removesuffix("[x]"), tuple(path.split("|"))) for path in paths)


_COLUMNS: dict[str, tuple[Column, ...]] = {
    "Account": _columns("name", "status", "subject", "guarantor.party", "servicePeriod"),
    "AllergyIntolerance": _columns("code", "patient", "clinicalStatus", "criticality", "recordedDate"),
    "Appointment": _columns("status", "start", "end", "participant.actor", "appointmentType|serviceType"),
    "CarePlan": _columns("title|category", "status", "intent", "subject", "period"),
    "Communication": _columns("payload", "status", "sender", "recipient", "sent"),
    "Condition": _columns("code", "subject", "clinicalStatus", "onset[x]|recordedDate", "encounter"),
    "Coverage": _columns("status", "beneficiary", "payor", "type", "period"),
    "DiagnosticReport": _columns("code", "subject", "status", "effective[x]", "result"),
    "Encounter": _columns("class", "type", "subject", "status", "period"),
    "FamilyMemberHistory": _columns("relationship", "name", "patient", "status", "condition.code"),
    "Group": _columns("name", "type", "quantity", "characteristic"),
    "Immunization": _columns("vaccineCode", "patient", "status", "occurrence[x]"),
    "Location": _columns("name", "type", "status", "address", "managingOrganization"),
    "MedicationAdministration": _columns("medication[x]", "subject", "status", "effective[x]", "dosage"),
    "MedicationRequest": _columns("medication[x]", "subject", "status", "authoredOn", "dosageInstruction"),
    "Observation": _columns("code", "value[x]|component", "effective[x]", "subject", "status"),
    "Organization": _columns("name", "type", "telecom", "address"),
    "Patient": _columns("name", "birthDate", "gender", "identifier", "telecom", "address"),
    "Practitioner": _columns("name", "identifier", "gender", "qualification.code"),
    "PractitionerRole": _columns("practitioner", "organization", "code", "specialty", "location"),
    "Procedure": _columns("code", "subject", "status", "performed[x]", "encounter"),
    "RelatedPerson": _columns("name", "patient", "relationship", "birthDate", "telecom"),
    "Schedule": _columns("actor", "serviceType|serviceCategory", "specialty", "planningHorizon"),
    "ServiceRequest": _columns("code", "subject", "status", "intent", "authoredOn|occurrence[x]"),
    "Slot": _columns("schedule", "status", "start", "end"),
    "Specimen": _columns("type", "subject", "status", "collection.collected[x]"),
    "Task": _columns("description", "status", "priority", "owner", "restriction.period"),
}


def columns_of(resources: Sequence[Resource]) -> tuple[Column, ...]:
    """Return the columns for resources of one type, without columns that are empty for all of them."""
    if not resources:
        return ()
    resource_type = resources[0].get("resourceType")
    chosen = _COLUMNS.get(resource_type) if isinstance(resource_type, str) else None
    if chosen is None:
        chosen = _summary_columns(str(resource_type))
    used = [column for column in chosen if any(column.value(resource) is not None for resource in resources)]
    return tuple(used[: max(_MAX_COLUMNS, len(_COLUMNS.get(str(resource_type), ())))])


def find_element(resource: Resource, path: str) -> Json:
    """Return the element at a path of `Column.paths`; None if there is none, and the values of all items of a list."""
    values: list[Json] = [resource]
    for name in path.split("."):
        values = [found for value in values for found in _step(value, name)]
    return None if not values else values[0] if len(values) == 1 else values


def _step(value: Json, name: str) -> list[Json]:
    if isinstance(value, list):
        return [found for item in value for found in _step(item, name)]
    if not isinstance(value, dict):
        return []
    if not name.endswith("[x]"):
        return [value[name]] if value.get(name) is not None else []
    stem = name.removesuffix("[x]")
    return [
        inner
        for key, inner in value.items()
        if key.startswith(stem) and key[len(stem) : len(stem) + 1].isupper() and inner is not None
    ][:1]


def _summary_columns(resource_type: str) -> tuple[Column, ...]:
    """Return the elements that FHIR includes in summaries of a type, except for ids and texts about the resource."""
    try:
        elements = children(resource_type)
    except UnknownNameError:
        return ()
    names = dict.fromkeys(
        f"{one.choice}[x]" if one.choice else one.name
        for one in elements.values()
        if one.summary and one.name not in ("id", "meta", "implicitRules", "modifierExtension")
    )
    return _columns(*names)
