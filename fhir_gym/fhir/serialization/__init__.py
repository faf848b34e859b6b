"""Parse request bodies as leniently as HAPI FHIR 8.8.0, and write resources as JSON."""

from __future__ import annotations

from fhir_gym.fhir.serialization.json_text import MAX_DEPTH, dumps, loads, pretty
from fhir_gym.fhir.serialization.primitives import Number
from fhir_gym.fhir.serialization.resource import MAX_BYTES, is_normal, normalise, parse_resource, read_body

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
