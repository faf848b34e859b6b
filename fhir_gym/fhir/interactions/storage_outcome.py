"""HAPI's success messages for writes: OperationOutcomes with a storage response code.

The server returns them for `Prefer: return=OperationOutcome`, for every DELETE, and for every write entry of a bundle.
Two obvious mistakes of HAPI are corrected: a literal ``{1}`` instead of a URL, and milliseconds instead of an id.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fhir_gym.types import Resource

_SYSTEM = "https://hapifhir.io/fhir/CodeSystem/hapi-fhir-storage-response-code"
_TOOK = " Took 1ms."
"""The elapsed time that HAPI appends; constant, because an answer must not depend on the machine."""


class Success(Enum):
    """The kinds of success: HAPI's code (after ``SUCCESSFUL_``) and its display text."""

    CREATE = "Create succeeded."
    UPDATE_AS_CREATE = "Update as create succeeded."
    UPDATE = "Update succeeded."
    UPDATE_NO_CHANGE = "Update succeeded: No changes were detected so no action was taken."
    CREATE_NO_CONDITIONAL_MATCH = "Conditional create succeeded: no existing resource matched the conditional URL."
    CREATE_WITH_CONDITIONAL_MATCH = (
        "Conditional create succeeded: an existing resource matched the conditional URL so no action was taken."
    )
    UPDATE_NO_CONDITIONAL_MATCH = (
        "Conditional update succeeded: no existing resource matched the conditional URL so a new resource was created."
    )
    UPDATE_WITH_CONDITIONAL_MATCH = (
        "Conditional update succeeded: an existing resource matched the conditional URL and was updated."
    )
    UPDATE_WITH_CONDITIONAL_MATCH_NO_CHANGE = (
        "Conditional update succeeded: an existing resource matched the conditional URL and was updated, "
        "but no changes were detected so no action was taken."
    )
    PATCH = "Patch succeeded."
    PATCH_NO_CHANGE = "Patch succeeded: No changes were detected so no action was taken."
    CONDITIONAL_PATCH = "Conditional patch succeeded."
    CONDITIONAL_PATCH_NO_CHANGE = "Conditional patch succeeded: No changes were detected so no action was taken."
    DELETE = "Delete succeeded."
    DELETE_ALREADY_DELETED = "Delete succeeded: Resource was already deleted so no action was taken."
    DELETE_NOT_FOUND = "Delete succeeded: No existing resource was found so no action was taken."

    def unchanged(self) -> Success:
        """Return the kind for a write that changed nothing."""
        return _UNCHANGED[self]


_TEXTS: dict[Success, str] = {
    Success.CREATE: 'Successfully created resource "{where}".',
    Success.UPDATE_AS_CREATE: (
        'Successfully created resource "{where}" using update as create (ie. create with client assigned ID).'
    ),
    Success.UPDATE: 'Successfully updated resource "{where}".',
    Success.UPDATE_NO_CHANGE: 'Successfully updated resource "{where}" with no changes detected.',
    Success.CREATE_NO_CONDITIONAL_MATCH: (
        'Successfully conditionally created resource "{where}". No existing resources matched URL "{url}".'
    ),
    Success.CREATE_WITH_CONDITIONAL_MATCH: (
        'Successfully conditionally created resource "{id}". Existing resource matched URL "{url}".'
    ),
    Success.UPDATE_NO_CONDITIONAL_MATCH: (
        'Successfully conditionally updated resource "{where}". '
        'Created resource because no existing resource matched URL "{url}".'
    ),
    Success.UPDATE_WITH_CONDITIONAL_MATCH: (
        'Successfully conditionally updated resource "{where}". Existing resource matched URL "{url}".'
    ),
    Success.UPDATE_WITH_CONDITIONAL_MATCH_NO_CHANGE: (
        'Successfully conditionally updated resource "{where}" with no changes detected. '
        'Existing resource matched URL "{url}".'
    ),
    Success.PATCH: 'Successfully patched resource "{where}".',
    Success.PATCH_NO_CHANGE: 'Successfully patched resource "{where}" with no changes detected.',
    Success.CONDITIONAL_PATCH: (
        "Successfully conditionally patched resource. Existing resource {where} matched URL: {url}."
    ),
    Success.CONDITIONAL_PATCH_NO_CHANGE: (
        "Successfully conditionally patched resource with no changes detected. "
        "Existing resource {where} matched URL: {url}."
    ),
    Success.DELETE: "Successfully deleted 1 resource(s).",
    Success.DELETE_ALREADY_DELETED: "Not deleted, resource {where} was already deleted.",
    Success.DELETE_NOT_FOUND: "Not deleted, resource {where} does not exist.",
}
_NOTHING_TO_DELETE = 'Unable to find resource matching URL "{url}". Nothing has been deleted.'

_TIMED = {
    Success.CREATE,
    Success.UPDATE_AS_CREATE,
    Success.CREATE_NO_CONDITIONAL_MATCH,
    Success.UPDATE_NO_CONDITIONAL_MATCH,
    Success.DELETE,
}
_TIMED_ALONE = {
    Success.UPDATE,
    Success.UPDATE_NO_CHANGE,
    Success.UPDATE_WITH_CONDITIONAL_MATCH,
    Success.UPDATE_WITH_CONDITIONAL_MATCH_NO_CHANGE,
    Success.PATCH,
    Success.PATCH_NO_CHANGE,
    Success.CONDITIONAL_PATCH,
    Success.CONDITIONAL_PATCH_NO_CHANGE,
}
_UNCHANGED = {
    Success.UPDATE: Success.UPDATE_NO_CHANGE,
    Success.UPDATE_WITH_CONDITIONAL_MATCH: Success.UPDATE_WITH_CONDITIONAL_MATCH_NO_CHANGE,
    Success.PATCH: Success.PATCH_NO_CHANGE,
    Success.CONDITIONAL_PATCH: Success.CONDITIONAL_PATCH_NO_CHANGE,
}


@dataclass(frozen=True, slots=True)
class SuccessOutcome:
    """One success message, rendered on demand.

    Attributes:
        kind: The kind of success.
        where: The versioned location ``Patient/1/_history/1``, or ``Patient/1`` for a resource that never existed.
        url: The conditional URL to quote.
        in_bundle: Whether the write was a bundle's entry; HAPI then omits some elapsed times.
    """

    kind: Success
    where: str = ""
    url: str = ""
    in_bundle: bool = False

    @property
    def diagnostics(self) -> str:
        """The diagnostics text."""
        if self.kind is Success.DELETE_NOT_FOUND and self.url:
            return _NOTHING_TO_DELETE.format(url=self.url)
        id = self.where.partition("/_history/")[0].rpartition("/")[2]
        text = _TEXTS[self.kind].format(where=self.where, url=self.url, id=id)
        timed = self.kind in _TIMED or (self.kind in _TIMED_ALONE and not self.in_bundle)
        return text + _TOOK if timed else text

    def resource(self) -> Resource:
        """The OperationOutcome."""
        warning = self.kind is Success.DELETE_NOT_FOUND and bool(self.url)
        coding = {"system": _SYSTEM, "code": f"SUCCESSFUL_{self.kind.name}", "display": self.kind.value}
        issue = {
            "severity": "warning" if warning else "information",
            "code": "not-found" if warning else "informational",
            "details": {"coding": [coding]},
            "diagnostics": self.diagnostics,
        }
        return {"resourceType": "OperationOutcome", "issue": [issue]}
