"""Errors of the FHIR server and their OperationOutcomes.

Handlers raise `FhirError`; `Session.handle` converts it to a response. Diagnostics follow HAPI FHIR 8.8.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fhir_gym.fhir.hash_order import names_in_hash_order
from fhir_gym.types import Json, Resource


class FhirError(Exception):
    """The error with which the server answers a request.

    Args:
        status: HTTP status, 4xx.
        diagnostics: The message for the agent.
        code: Issue type code (``processing``, ``not-supported``, ``not-found`` …).
        headers: Extra response headers.
        issues: The issues of the OperationOutcome, if there are several; else one with `diagnostics`.
    """

    def __init__(
        self,
        status: int,
        diagnostics: str,
        *,
        code: str = "processing",
        headers: Mapping[str, str] | None = None,
        issues: Sequence[Json] = (),
    ) -> None:
        super().__init__(diagnostics)
        self.status = status
        self.diagnostics = diagnostics
        self.code = code
        self.headers = dict(headers or {})
        self.issues = list(issues)


def operation_outcome(diagnostics: str, *, severity: str = "error", code: str = "processing") -> Resource:
    """Return an OperationOutcome with one issue."""
    return {
        "resourceType": "OperationOutcome",
        "issue": [{"severity": severity, "code": code, "diagnostics": diagnostics}],
    }


def unroutable(method: str, path: str, pairs: Iterable[tuple[str, str]]) -> FhirError:
    """Return the error for a request that is not a FHIR interaction; `path` is decoded and has no leading slash."""
    names = ", ".join(names_in_hash_order(name for name, _ in pairs))
    return FhirError(
        400,
        f"Invalid request: The FHIR endpoint on this server does not know how to handle {method} "
        f"operation[{path}] with parameters [[{names}]]",
        code="not-supported",
    )
