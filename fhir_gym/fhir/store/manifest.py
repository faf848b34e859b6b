"""What a world file says of itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime

from pydantic import AwareDatetime, BaseModel, ConfigDict

__all__ = ["ContentHash", "Manifest"]


class ContentHash:
    """What identifies a world's content.

    Args:
        now: The world's present.
        resources: Type, id and body of resources, in creation order.
    """

    def __init__(self, now: datetime, resources: Iterable[tuple[str, str, bytes]] = ()) -> None:
        self._digest = hashlib.sha256(now.astimezone(UTC).isoformat(timespec="milliseconds").encode())
        for resource_type, id, body in resources:
            self.add(resource_type, id, body)

    def add(self, resource_type: str, id: str, body: bytes) -> None:
        """Count in the next resource."""
        self._digest.update(b"\0%s/%s\0%s" % (resource_type.encode(), id.encode(), body))

    def __str__(self) -> str:
        """In hexadecimal digits."""
        return self._digest.hexdigest()


class Manifest(BaseModel):
    """Name, origin and content of a world.

    Attributes:
        name: Name it was built under.
        seed: Seed of its generator; None for imported data.
        now: The world's present: the clock of every session starts here.
        counts: Number of resources by type, sorted by type.
        content_hash: SHA-256 over type, id and body of every resource in creation order, and `now`.
        next_id: First id the server may assign.
        format: Layout version of the file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    seed: int | None
    now: AwareDatetime
    counts: dict[str, int]
    content_hash: str
    next_id: int
    format: int

    @property
    def total(self) -> int:
        """Number of resources."""
        return sum(self.counts.values())
