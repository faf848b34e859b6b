"""Find the references of a resource in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote

from fhir_gym.fhir import FhirSession
from fhir_gym.fhir.definitions import search_parameters
from fhir_gym.types import Json, Resource
from fhir_gym.web.resource_view import Target, target_of


@dataclass(frozen=True, slots=True)
class OutgoingReference:
    """A reference that a resource contains.

    Attributes:
        path: Where the resource has the reference (``participant.actor``).
        reference: The reference (``Patient/12``).
        display: The display of the reference; an empty text without one.
    """

    path: str
    reference: str
    display: str

    @property
    def target(self) -> Target | None:
        """The referenced resource of the same server; None for other references."""
        return target_of(self.reference)


@dataclass(frozen=True, slots=True)
class IncomingReferences:
    """The resources of one type that refer to a resource at one place.

    Attributes:
        resource_type: Type of the referring resources.
        parameter: The search parameter of the place.
        count: Number of referring resources.
        query: Search that returns them.
    """

    resource_type: str
    parameter: str
    count: int
    query: str


def outgoing_references(resource: Resource) -> list[OutgoingReference]:
    """Return the references that a resource contains, each place and target once, in order."""
    return list(dict.fromkeys(_references(resource, "")))


def _references(value: Json, path: str) -> Iterator[OutgoingReference]:
    if isinstance(value, list):
        for item in value:
            yield from _references(item, path)
    elif isinstance(value, dict):
        reference = value.get("reference")
        if isinstance(reference, str) and path:
            yield OutgoingReference(path, reference, str(value.get("display") or ""))
        for name, inner in value.items():
            yield from _references(inner, f"{path}.{name}" if path else name)


def incoming_references(
    session: FhirSession, resource_type: str, id: str, types: Iterable[str]
) -> list[IncomingReferences]:
    """Return the resources that refer to a resource, by type and search parameter.

    Of parameters that find the same resources, such as `subject` and `patient`, only the more general one is listed.

    Args:
        session: A session on the resource's world.
        resource_type: Type of the resource.
        id: Id of the resource.
        types: The resource types to search.
    """
    found: list[IncomingReferences] = []
    for kind in types:
        own: dict[str, IncomingReferences] = {}
        for name, parameter in search_parameters(kind).items():
            if parameter.type != "reference" or resource_type not in parameter.targets:
                continue
            query = f"{kind}?{name}={resource_type}/{quote(id, safe='')}"
            counted = session.get(f"/{query}&_summary=count")
            count = counted.get("total", 0) if isinstance(counted, dict) else 0
            place = parameter.expression.partition(".where(")[0]
            known = own.get(place)
            if count and (known is None or known.count < count):
                own[place] = IncomingReferences(kind, name, count, query)
        found += sorted(own.values(), key=lambda one: one.parameter)
    return found
