"""`/metadata`: the CapabilityStatement in HAPI's form, but only with capabilities of this server."""

from __future__ import annotations

from functools import cache
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from fhir_gym.fhir.definitions import RESOURCE_TYPES, search_parameters
from fhir_gym.types import Resource

_INTERACTIONS = (
    "search-type", "update", "vread", "read", "patch", "history-type", "history-instance", "delete", "create",
)  # fmt: skip
_OPERATIONS = ("validate", "meta-delete", "meta-add", "meta")


def capability_statement(base_url: str, now: str) -> Resource:
    """Return the server's CapabilityStatement. Do not change it, because all calls return the same parts."""
    return {
        "resourceType": "CapabilityStatement",
        "id": str(uuid5(NAMESPACE_URL, base_url)),
        "name": "RestServer",
        "status": "active",
        "date": f"{now[:19]}Z",
        "publisher": "Not provided",
        "kind": "instance",
        "software": {"name": "HAPI FHIR Server", "version": "8.8.0"},
        "implementation": {"description": "HAPI FHIR R4 Server", "url": base_url},
        "fhirVersion": "4.0.1",
        "format": ["application/fhir+json", "json"],
        "patchFormat": ["application/fhir+json", "application/json-patch+json"],
        "rest": [_rest()],
    }


@cache
def _rest() -> dict[str, Any]:
    return {
        "mode": "server",
        "resource": [_resource(kind) for kind in RESOURCE_TYPES],
        "interaction": [{"code": "transaction"}, {"code": "history-system"}],
        "operation": [_operation("meta")],
    }


def _resource(kind: str) -> dict[str, Any]:
    parameters = sorted(search_parameters(kind).values(), key=lambda p: p.name)
    return {
        "type": kind,
        "profile": f"http://hl7.org/fhir/StructureDefinition/{kind}",
        "interaction": [{"code": code} for code in _INTERACTIONS],
        "versioning": "versioned-update",
        "conditionalCreate": True,
        "conditionalUpdate": True,
        "conditionalDelete": "multiple",
        "searchInclude": ["*", *(f"{kind}:{p.name}" for p in parameters if p.type == "reference")],
        "searchRevInclude": _pointing_at(kind),
        "searchParam": [
            {
                "name": parameter.name,
                "definition": f"http://hl7.org/fhir/SearchParameter/{parameter.definition}",
                "type": parameter.type,
            }
            for parameter in parameters
        ],
        "operation": [_operation(name) for name in _OPERATIONS],
    }


def _pointing_at(kind: str) -> list[str]:
    """Return the search parameters (`Type:name`) with which resources may refer to this type."""
    return [name for name, targets in _references() if not targets or kind in targets]


@cache
def _references() -> tuple[tuple[str, frozenset[str]], ...]:
    references = [
        (f"{kind}:{parameter.name}", frozenset(parameter.targets))
        for kind in RESOURCE_TYPES
        for parameter in search_parameters(kind).values()
        if parameter.type == "reference"
    ]
    return tuple(sorted(references))


def _operation(name: str) -> dict[str, str]:
    return {"name": name, "definition": f"http://hl7.org/fhir/OperationDefinition/Resource-{name}"}
