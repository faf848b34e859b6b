"""When a resource was last updated, where it does not say so itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import blake2b

from fhir_gym.types import Json, Resource

__all__ = ["at", "before", "clinical_dates", "last_happened", "last_update", "milliseconds", "moment_of", "settled"]

# Elements that say when something happened or was written down; plans and bookings (start, occurrence…) are left out.
_DATES = (
    "effectiveDateTime",
    "effectiveInstant",
    "issued",
    "authoredOn",
    "performedDateTime",
    "recordedDate",
    "assertedDate",
    "dateAsserted",
    "created",
    "date",
)
_PERIODS = {"effectivePeriod": None, "performedPeriod": None, "period": "Encounter"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_PAST = timedelta(days=5 * 365) // _MILLISECOND
"""How far back the updates of resources reach that tell no date."""
_SHORTEST = 2 * 60_000
_LAG = 4 * 60_000


def moment_of(value: Json) -> datetime | None:
    """The moment a date or instant begins, in UTC; None for a year or month alone, and for what is no date."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # a year or a month alone says too little; before year 1 in UTC
        return None


def clinical_dates(resource: Resource) -> list[tuple[str, datetime]]:
    """When something happened according to this resource: pairs of element and instant (without a zone: UTC)."""
    found: list[tuple[str, Json]] = [(name, resource[name]) for name in _DATES if name in resource]
    for name, only in _PERIODS.items():
        period = resource.get(name)
        if isinstance(period, dict) and only in (None, resource["resourceType"]):
            found.append((f"{name}.start", period.get("start")))
    return [(name, moment) for name, value in found if (moment := moment_of(value))]


def last_happened(resource: Resource, now: datetime) -> datetime | None:
    """The latest of a resource's clinical dates before `now`; None if it has none."""
    return max((moment for _, moment in clinical_dates(resource) if moment < now), default=None)


def settled(happened: datetime, now: datetime, bits: int) -> datetime:
    """When a resource was last updated that tells of something: minutes later mostly, days at times, before `now`.

    Args:
        happened: When that was.
        now: The present.
        bits: 44 random bits.
    """
    longest = _LAG << (bits & 15)  # up to three months
    later = _SHORTEST + (longest * (bits >> 4 & 0xFFFFFF) >> 24)
    left = (now - happened) // _MILLISECOND
    return happened + _MILLISECOND * min(later, left * (bits >> 28 & 0xFFFF) >> 16)


def last_update(resource: Resource, now: datetime) -> datetime:
    """When the resource was last updated: before `now`, and a while after the latest thing it says has happened.

    The same resource gives the same time on every machine. A resource that tells no date was updated at any time of the
    past years.
    """
    digest = blake2b(f"{resource['resourceType']}/{resource['id']}".encode(), digest_size=8).digest()
    bits = int.from_bytes(digest, "big")
    happened = last_happened(resource, now)
    return before(now, bits) if happened is None else settled(happened, now, bits)


def before(now: datetime, bits: int) -> datetime:
    """Any time of the years before `now`, made of 64 random bits."""
    return now - _MILLISECOND * (1 + bits % _PAST)


def milliseconds(moment: datetime) -> int:
    """Milliseconds since the epoch; what is left of one is cut off, as in an instant's text."""
    return (moment - _EPOCH) // _MILLISECOND


def at(milliseconds: int) -> datetime:
    """The moment so many milliseconds after the epoch."""
    return _EPOCH + _MILLISECOND * milliseconds
