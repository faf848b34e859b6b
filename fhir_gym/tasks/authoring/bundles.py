"""Helpers for reference solutions: look up people, read search responses and build references."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from fhir_gym.actions import Action, Get
from fhir_gym.tasks.authoring.people import Person
from fhir_gym.tasks.grading.comparison import named
from fhir_gym.types import Json, Resource

Finding = Generator[Action, Json, str]
"""Generator of a part of a reference solution; it returns the id that it finds."""


def reference(resource_type: str, id: str) -> dict[str, str]:
    """Build a Reference."""
    return {"reference": f"{resource_type}/{id}"}


def entries(bundle: Json) -> Iterator[Resource]:
    """Yield the resources in a search response; an error response yields no resources."""
    if isinstance(bundle, dict):
        for entry in bundle.get("entry", []):
            yield entry["resource"]


def has_name(resource: Resource, given: str, family: str) -> bool:
    """Whether a person has exactly this name."""
    return any(named(name, given, family) for name in resource.get("name", []))


def find_person(bundle: Json, person: Person) -> str:
    """Return the id of the resource in a search response that has exactly the person's name."""
    return next(str(entry["id"]) for entry in entries(bundle) if has_name(entry, person.given, person.family))


def find_patient(person: Person) -> Finding:
    """Search for a patient by name and birth date, and return the patient's id."""
    query = {"family": person.family, "given": person.given, "birthdate": person.birth_date}
    return find_person((yield Get("/Patient", query)), person)


def find_practitioner(person: Person) -> Finding:
    """Search for a practitioner by name, and return the practitioner's id."""
    query = {"family": person.family, "given": person.given}
    return find_person((yield Get("/Practitioner", query)), person)
