"""Validate resources as they were sent, against the definitions of R4, with the issues of HAPI's validator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.serialization import dumps
from fhir_gym.fhir.validation.report import Issue, Issues, Severity, Steps, described
from fhir_gym.fhir.validation.rules import check_resource
from fhir_gym.fhir.validation.tree import read_tree

__all__ = ["Issue", "Issues", "Severity", "Steps", "check_valid", "described", "validate"]

_SHOWN_ERRORS = 20


def _free(steps: int) -> None:
    """Do not count work."""


def validate(resource: Mapping[str, Any], spend: Callable[[int], None] = _free) -> Issues:
    """Return the issues of a resource, given as decoded JSON that no parser has corrected.

    Args:
        resource: The resource.
        spend: Function that receives the work, in steps of about a tenth of a microsecond, and may raise.
    """
    issues = Issues(spend)
    tree = read_tree(resource, issues)
    if tree is not None:
        check_resource(tree, issues)
    return issues


def check_valid(resource: Mapping[str, Any], text: bytes = b"", spend: Callable[[int], None] = _free) -> None:
    """Refuse a resource that is not valid.

    Args:
        resource: Decoded JSON.
        text: The text from which it was decoded, to name lines and columns; compact JSON if empty.
        spend: See `validate`.

    Raises:
        FhirError: 422 with all issues, if one is an error.
    """
    issues = validate(resource, spend)
    if errors := issues.errors:
        shown = "; ".join(f"{issue.path}: {issue.text}" for issue in errors[:_SHOWN_ERRORS])
        raise FhirError(422, shown, issues=described(issues, text or dumps(resource)))
