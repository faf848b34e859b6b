"""HAPI's success messages for writes: OperationOutcomes with a storage response code.

The server returns them for `Prefer: return=OperationOutcome`, for every DELETE, and for every write entry of a bundle.
Two obvious mistakes of HAPI are corrected: a literal ``{1}`` instead of a URL, and milliseconds instead of an id.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from fhir_gym.types import Resource

_SYSTEM = "https://hapifhir.io/fhir/CodeSystem/hapi-fhir-storage-response-code"
_TOOK = " Took 1ms."
"""The elapsed time that HAPI appends; constant, because an answer must not depend on the machine."""
_NOTHING_TO_DELETE = 'Unable to find resource matching URL "{url}". Nothing has been deleted.'
_CREATED = 'Successfully created resource "{where}"'
_UPDATED = 'Successfully updated resource "{where}"'
_UPDATED_IF = 'Successfully conditionally updated resource "{where}"'
_PATCHED = 'Successfully patched resource "{where}"'
_PATCHED_IF = "Successfully conditionally patched resource"
_UNCHANGED = "No changes were detected so no action was taken."
_NO_MATCH = "no existing resource matched the conditional URL"
_MATCH = "an existing resource matched the conditional URL"

Timed = Literal["always", "alone", "never"]
"""When HAPI appends the elapsed time to a message: "alone" stands for writes outside bundles."""


class Success(Enum):
    """The kinds of success: the display of HAPI's code (``SUCCESSFUL_`` and the name), its text, and when it is timed.

    Attributes:
        display: The display of the code.
        text: The template of the diagnostics.
        timed: When HAPI appends the elapsed time.
    """

    CREATE = "Create succeeded.", f"{_CREATED}.", "always"
    UPDATE_AS_CREATE = (
        "Update as create succeeded.",
        f"{_CREATED} using update as create (ie. create with client assigned ID).",
        "always",
    )
    UPDATE = "Update succeeded.", f"{_UPDATED}.", "alone"
    UPDATE_NO_CHANGE = f"Update succeeded: {_UNCHANGED}", f"{_UPDATED} with no changes detected.", "alone"
    CREATE_NO_CONDITIONAL_MATCH = (
        f"Conditional create succeeded: {_NO_MATCH}.",
        'Successfully conditionally created resource "{where}". No existing resources matched URL "{url}".',
        "always",
    )
    CREATE_WITH_CONDITIONAL_MATCH = (
        f"Conditional create succeeded: {_MATCH} so no action was taken.",
        'Successfully conditionally created resource "{id}". Existing resource matched URL "{url}".',
        "never",
    )
    UPDATE_NO_CONDITIONAL_MATCH = (
        f"Conditional update succeeded: {_NO_MATCH} so a new resource was created.",
        f'{_UPDATED_IF}. Created resource because no existing resource matched URL "{{url}}".',
        "always",
    )
    UPDATE_WITH_CONDITIONAL_MATCH = (
        f"Conditional update succeeded: {_MATCH} and was updated.",
        f'{_UPDATED_IF}. Existing resource matched URL "{{url}}".',
        "alone",
    )
    UPDATE_WITH_CONDITIONAL_MATCH_NO_CHANGE = (
        f"Conditional update succeeded: {_MATCH} and was updated, but no changes were detected so no action was taken.",
        f'{_UPDATED_IF} with no changes detected. Existing resource matched URL "{{url}}".',
        "alone",
    )
    PATCH = "Patch succeeded.", f"{_PATCHED}.", "alone"
    PATCH_NO_CHANGE = f"Patch succeeded: {_UNCHANGED}", f"{_PATCHED} with no changes detected.", "alone"
    CONDITIONAL_PATCH = (
        "Conditional patch succeeded.",
        f"{_PATCHED_IF}. Existing resource {{where}} matched URL: {{url}}.",
        "alone",
    )
    CONDITIONAL_PATCH_NO_CHANGE = (
        f"Conditional patch succeeded: {_UNCHANGED}",
        f"{_PATCHED_IF} with no changes detected. Existing resource {{where}} matched URL: {{url}}.",
        "alone",
    )
    DELETE = "Delete succeeded.", "Successfully deleted 1 resource(s).", "always"
    DELETE_ALREADY_DELETED = (
        "Delete succeeded: Resource was already deleted so no action was taken.",
        "Not deleted, resource {where} was already deleted.",
        "never",
    )
    DELETE_NOT_FOUND = (
        "Delete succeeded: No existing resource was found so no action was taken.",
        "Not deleted, resource {where} does not exist.",
        "never",
    )

    def __init__(self, display: str, text: str, timed: Timed) -> None:
        self.display, self.text, self.timed = display, text, timed

    def unchanged(self) -> Success:
        """Return the kind for a write that changed nothing."""
        return Success[f"{self.name}_NO_CHANGE"]


@dataclass(frozen=True, slots=True)
class SuccessOutcome:
    """One success message, rendered on demand.

    Attributes:
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
        text = self.kind.text.format(where=self.where, url=self.url, id=id)
        timed = self.kind.timed == "always" or (self.kind.timed == "alone" and not self.in_bundle)
        return text + _TOOK if timed else text

    def resource(self) -> Resource:
        """The OperationOutcome."""
        warning = self.kind is Success.DELETE_NOT_FOUND and bool(self.url)
        coding = {"system": _SYSTEM, "code": f"SUCCESSFUL_{self.kind.name}", "display": self.kind.display}
        issue = {
            "severity": "warning" if warning else "information",
            "code": "not-found" if warning else "informational",
            "details": {"coding": [coding]},
            "diagnostics": self.diagnostics,
        }
        return {"resourceType": "OperationOutcome", "issue": [issue]}
