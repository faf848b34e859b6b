"""Errors that occur while a body is parsed, with HAPI's messages."""

from __future__ import annotations

from fhir_gym.fhir.outcome import FhirError


class ParseError(ValueError):
    """A body or resource that HAPI's parser refuses, with HAPI's message but without its prefix."""


def invalid_value(element: str, value: str, reason: str) -> ParseError:
    """Return the error for an invalid primitive value."""
    return ParseError(f'HAPI-1821: [element="{element}"] Invalid attribute value "{value}": {reason}')


def refusal(error: ParseError) -> FhirError:
    """Return the FHIR error for a request body that cannot be parsed."""
    return FhirError(400, f"HAPI-0450: Failed to parse request body as JSON resource. Error was: {error}")
