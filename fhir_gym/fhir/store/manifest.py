"""What a world file says of itself."""

from __future__ import annotations

from pydantic import AwareDatetime, BaseModel, ConfigDict

__all__ = ["Manifest"]


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
