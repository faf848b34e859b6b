"""The manifest of a world file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET

YEARS = range(1900, 2900)
"""Years in which a world's present may lie. The limits keep dates around the present valid too."""

_MAX_ID = 10**15 + 10**12  # new ids follow the world's highest id of at most 15 digits


def _printable(name: str) -> str:
    if not name.isprintable() or len(name) > 1000:
        raise ValueError("a world's name is one line of text")
    return name


def _in_range(now: datetime) -> datetime:
    if now.year not in YEARS:
        raise ValueError(f"a world's present must be in the years {YEARS[0]} to {YEARS[-1]}")
    return now


def _resource_type(name: str) -> str:
    if name not in RESOURCE_TYPE_SET:
        raise ValueError(f"{name!r} is not a resource type of FHIR R4")
    return name


class ContentHash:
    """The hash of a world's content, which identifies the world.

    Args:
        now: The world's present.
        resources: Type, id and body of resources to add immediately, in creation order.
    """

    def __init__(self, now: datetime, resources: Iterable[tuple[str, str, bytes]] = ()) -> None:
        self._digest = hashlib.sha256(now.astimezone(UTC).isoformat(timespec="milliseconds").encode())
        for resource_type, id, body in resources:
            self.add(resource_type, id, body)

    def add(self, resource_type: str, id: str, body: bytes) -> None:
        """Add the next resource."""
        self._digest.update(b"\0%s/%s\0%s" % (resource_type.encode(), id.encode(), body))

    def __str__(self) -> str:
        return self._digest.hexdigest()


class Manifest(BaseModel):
    """The name, origin and content of a world.

    Attributes:
        name: The world's name.
        seed: The generator's seed; None for imported data.
        now: The world's present, at which the clock of every session starts.
        counts: The number of resources of each type, sorted by type.
        content_hash: SHA-256 over type, id and body of every resource in creation order, and `now`.
        next_id: The first id that the server may assign.
        format: The version of the file format.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, AfterValidator(_printable)]
    seed: int | None
    now: Annotated[AwareDatetime, AfterValidator(_in_range)]
    counts: dict[Annotated[str, AfterValidator(_resource_type)], Annotated[int, Field(ge=0, le=_MAX_ID)]]
    content_hash: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    next_id: Annotated[int, Field(ge=1, le=_MAX_ID)]
    format: int

    @property
    def total(self) -> int:
        """The number of resources."""
        return sum(self.counts.values())
