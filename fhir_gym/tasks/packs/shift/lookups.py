"""Lookups and writes that the reference solutions of several kinds share."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from fhir_gym.actions import Action, Get, Put
from fhir_gym.fhir.paging import link
from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import Person, entries, has_name
from fhir_gym.types import Json, Resource

Found = Generator[Action, Json, list[Resource]]
"""A generator of the actions of a lookup; it returns the resources that it finds."""


class Named(Params):
    """A person as a request names one."""

    given: str
    family: str
    birth_date: str

    @classmethod
    def of(cls, person: Person) -> Named:
        """Return the name and the date of birth of a person."""
        return cls(given=person.given, family=person.family, birth_date=person.birth_date)


def search_all(path: str, params: Mapping[str, str | Sequence[str]]) -> Found:
    """Search, and follow the links to further pages; several values of a parameter repeat it."""
    bundle = yield Get(path, params)
    resources = [*entries(bundle)]
    while (following := link(bundle, "next")) is not None:
        bundle = yield Get(following)
        resources += entries(bundle)
    return resources


def record_named(resource_type: str, name: str, **params: str) -> Generator[Action, Json, Resource]:
    """Search for the record with exactly this name."""
    records = yield from search_all(f"/{resource_type}", {"name": name, **params})
    return next(record for record in records if record.get("name") == name)


def update(resource: Resource, **changed: Json) -> Action:
    """Return the update of a resource that the server refuses if somebody else has changed it in the meantime.

    The resource has no version if observations are compact and nobody else works on the records.
    """
    version = resource.get("meta", {}).get("versionId")
    headers = {} if version is None else {"If-Match": f'W/"{version}"'}
    kept = {name: value for name, value in resource.items() if name != "meta"}
    url = f"/{resource['resourceType']}/{resource['id']}"
    return Put(url, kept | changed, headers=headers)


def is_refused(answer: Json) -> bool:
    """Whether the answer to a write tells a problem."""
    return isinstance(answer, dict) and answer.get("resourceType") == "OperationOutcome"


def patients_called(name: Named) -> Found:
    """Search for the patients with exactly this name and date of birth."""
    query = {"family": name.family, "given": name.given, "birthdate": name.birth_date}
    patients = yield from search_all("/Patient", query)
    return [patient for patient in patients if has_name(patient, name.given, name.family)]
