"""Parse request bodies as leniently as HAPI FHIR 8.8.0, and write resources as JSON."""

from __future__ import annotations

from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.serialization.json_text import MAX_DEPTH, dumps, loads, pretty, read_object
from fhir_gym.fhir.serialization.primitives import Number, ParseError, refusal
from fhir_gym.fhir.serialization.resource import ResourceParser
from fhir_gym.types import Json, Resource

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "Number",
    "dumps",
    "is_normal",
    "loads",
    "normalise",
    "parse_resource",
    "pretty",
    "read_body",
]

MAX_BYTES = 16 * 1024 * 1024
"""Maximum size of a body."""


def parse_resource(body: bytes, expected_type: str | None) -> Resource:
    """Parse a request body.

    As in HAPI, unknown elements and values of the wrong type are dropped. The elements are ordered as in the
    definition, and decimals keep their digits.

    Raises:
        FhirError: 400 with HAPI's message, 413 for a body longer than `MAX_BYTES`.
    """
    if len(body) > MAX_BYTES:
        raise FhirError(413, f"The request body has {len(body)} bytes; the most this server reads is {MAX_BYTES}")
    try:
        return ResourceParser().resource(read_object(body), expected_type)
    except ParseError as error:
        raise refusal(error) from None


def read_body(body: bytes) -> Json:
    """Decode the JSON of a request body without putting anything right.

    Raises:
        FhirError: 400; HAPI would refuse the text.
    """
    try:
        return read_object(body)
    except ParseError as error:
        raise refusal(error) from None


def normalise(resource: Json, *, strict: bool = False) -> Resource:
    """Normalise decoded JSON like a request body (for a bundle's entry, an import or a patched resource).

    Args:
        resource: Decoded JSON; `Number` keeps the digits of a decimal.
        strict: Whether to raise for elements that would otherwise be dropped. HAPI itself raises for them in the result
            of a patch.

    Raises:
        FhirError: 400; the message does not have the prefix about a request body.
    """
    try:
        return ResourceParser(strict=strict).resource(resource if isinstance(resource, dict) else {}, None)
    except ParseError as error:
        raise FhirError(400, str(error)) from None


def is_normal(resource: Resource) -> bool:
    """Return whether `normalise` would change nothing except the positions of ``resourceType`` and ``id``."""
    head = {name: resource[name] for name in ("resourceType", "id") if name in resource}
    try:
        return dumps(normalise(resource)) == dumps({**head, **resource})
    except FhirError:
        return False
