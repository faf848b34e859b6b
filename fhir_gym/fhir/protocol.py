"""The interface that the embedded session and a session on a remote server share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from fhir_gym.fhir.messages import Request, Response
from fhir_gym.types import Json, Resource


@dataclass(frozen=True, slots=True)
class Change:
    """A resource written since a checkpoint, even if it has the same content as before.

    Attributes:
        before: The earlier resource; None if the resource was created.
        after: The current resource; None if the resource was deleted.
        versions: All versions written since, oldest first, with None for a deletion; empty if the server has no
            history.
    """

    kind: Literal["created", "updated", "deleted"]
    resource_type: str
    id: str
    before: Resource | None
    after: Resource | None
    versions: tuple[Resource | None, ...] = ()


class FhirSession(Protocol):
    """One agent's access to a FHIR server: answers requests, loads and compares resources, and undoes writes."""

    base_url: str

    @property
    def now(self) -> datetime:
        """The present time of the session."""

    def set_clock(self, now: datetime) -> None:
        """Set the present time of the session; a remote server keeps its own clock."""

    def handle(self, request: Request) -> Response:
        """Answer a request; errors are reported in an OperationOutcome."""

    def load(self, resources: Iterable[Resource], *, next_id: int | None = None, normal: bool = False) -> None:
        """Store resources at their own ids, in any order.

        Args:
            resources: The resources, each with `resourceType` and `id`.
            next_id: The lowest id that the server may assign to later resources; a remote server ignores this.
            normal: Whether the resources are in normal form (`serialization.is_normal`), which saves a third of the
                time; a remote server ignores this.

        Raises:
            FhirError: A resource is unusable.
        """

    def checkpoint(self) -> Any:
        """Return a checkpoint of the current state; `rollback` can return to it any number of times."""

    def rollback(self, to: Any = None) -> None:
        """Undo all writes since a checkpoint, or since the session began."""

    def changes(self, since: Any = None) -> list[Change]:
        """Return the resources written since a checkpoint, in order of first write.

        A resource that was both created and deleted since the checkpoint is left out.
        """

    def get(self, url: str) -> Json:
        """Return the parsed body of a GET; `url` is absolute or relative to the base URL."""

    def read(self, resource_type: str, id: str) -> Resource | None:
        """Return the current resource; None if the resource is unknown or deleted."""

    def versions(self, resource_type: str, id: str, count: int) -> list[Resource | None]:
        """Return the latest versions of a resource, newest first, with None for a deletion.

        A server without a history returns no earlier version than the current one.
        """

    def search(self, resource_type: str, **params: object) -> list[Resource]:
        """Return all matches of a search, without included resources.

        Args:
            resource_type: The type to search.
            params: Search parameters; an underscore inside a name stands for a hyphen (``address_city="Boston"``), and
                a list repeats the parameter.

        Raises:
            FhirError: The server refuses the search.
        """

    def close(self) -> None:
        """Close the session and undo its writes; a second call does nothing."""
