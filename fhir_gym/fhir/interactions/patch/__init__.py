"""JSON Patch (RFC 6902) and FHIRPath Patch, with HAPI's messages."""

from __future__ import annotations

from typing import Protocol

from fhir_gym.fhir.interactions.patch.fhirpath_patch import FhirPathPatch
from fhir_gym.fhir.interactions.patch.json_patch import JsonPatch, PatchOperation, apply_json_patch, parse_json_patch
from fhir_gym.fhir.limits import Limits
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.serialization import parse_resource
from fhir_gym.fhir.serialization.xml import parse_xml
from fhir_gym.types import Resource

__all__ = [
    "FhirPathPatch", "JsonPatch", "Patch", "PatchOperation", "apply_json_patch", "parse_json_patch", "read_patch",
]  # fmt: skip

_FHIR_XML = frozenset({"application/fhir+xml", "application/xml+fhir"})
_FHIR_JSON = frozenset({"application/fhir+json", "application/json+fhir"})


class Patch(Protocol):
    """A change of a resource."""

    def apply(self, resource: Resource, label: str, limits: Limits) -> Resource:
        """Return the patched resource in normal form; this may also change `resource` itself.

        Args:
            resource: The stored resource.
            label: ``Type/id``, for messages.
            limits: Limits on the values that the patch adds.
        """


def read_patch(media_type: str, body: bytes) -> Patch:
    """Parse a PATCH body.

    Raises:
        FhirError: The media type is not a patch format, or the body is invalid.
    """
    if media_type == "application/json-patch+json":
        return JsonPatch(parse_json_patch(body))
    if media_type in _FHIR_JSON:
        return FhirPathPatch(parse_resource(body, None))
    if media_type in _FHIR_XML:
        return FhirPathPatch(parse_xml(body, None))
    if media_type == "application/xml-patch+xml":
        raise FhirError(415, f"This server does not read {media_type}: send application/json-patch+json")
    raise FhirError(400, f"HAPI-1965: Invalid Content-Type for PATCH operation: {media_type}")
