"""`ValueSet/$expand` and `ValueSet/$validate-code`, for value sets that contain only codes defined by R4."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from fhir_gym.fhir import serialization
from fhir_gym.fhir.definitions import value_set
from fhir_gym.fhir.messages import Response
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.urls import Pairs
from fhir_gym.types import Json


def known_value_set(url: str) -> Mapping[str, tuple[str, ...]]:
    """Return the codes of a value set by system.

    Raises:
        FhirError: The value set or its codes (SNOMED CT, LOINC, UCUM …) are not part of R4.
    """
    codes = value_set(url)
    if codes is None:
        raise FhirError(404, f"HAPI-2788: Unknown ValueSet: {quote(url, safe='')}")
    return codes


def expand(pairs: Pairs) -> Response:
    """Answer ``GET ValueSet/$expand?url=…``."""
    codes = known_value_set(_url(pairs, "$expand"))
    contains = [{"system": system, "code": code} for system, listed in codes.items() for code in listed]
    return Response(200, {}, serialization.dumps({"resourceType": "ValueSet", "expansion": {"contains": contains}}))


def validate_code(pairs: Pairs) -> Response:
    """Answer ``GET ValueSet/$validate-code?url=…&code=…``; if there is no `system`, the code may be in any system."""
    url = _url(pairs, "$validate-code")
    codes = known_value_set(url)
    options = dict(pairs)
    code, system = options.get("code", ""), options.get("system", "")
    listed = (
        codes.get(system, ()) if system else tuple(c for codes_of_system in codes.values() for c in codes_of_system)
    )
    parameters: list[Json] = [{"name": "result", "valueBoolean": code in listed}]
    if code not in listed:
        shown = f"{system}#{code}" if system else code
        text = f"Unknown code '{shown}' for in-memory expansion of ValueSet '{url}'"
        parameters.append({"name": "message", "valueString": text})
    return Response(200, {}, serialization.dumps({"resourceType": "Parameters", "parameter": parameters}))


def _url(pairs: Pairs, operation: str) -> str:
    url = dict(pairs).get("url", "")
    if not url:
        raise FhirError(400, f"ValueSet/{operation} needs the parameter url")
    return url
