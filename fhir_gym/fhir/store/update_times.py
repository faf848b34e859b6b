"""Choose plausible `meta.lastUpdated` times for resources that have none."""

from __future__ import annotations

from datetime import datetime, timedelta
from hashlib import blake2b

from fhir_gym.fhir.clock import EPOCH, MILLISECOND, instant, milliseconds, moment_of
from fhir_gym.types import Json, Resource

# Elements with the time of an event or of its recording, but not of a plan or booking (start, occurrence…).
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
_TELLING = frozenset((*_DATES, *_PERIODS))
_INSTANT = len("2023-11-13T10:15:00.000+00:00")
_PAST = timedelta(days=5 * 365) // MILLISECOND
"""Period before the present, in milliseconds, in which resources without a date get their update time."""
_SHORTEST = 2 * 60_000
_LAG = 4 * 60_000


def update_stamp(value: Json, otherwise: datetime) -> tuple[int, str]:
    """Return the time of a last update in milliseconds and as an instant."""
    moment = moment_of(value) or otherwise
    if isinstance(value, str) and len(value) == _INSTANT and value[4:22:3] == "--T::." and value.endswith("+00:00"):
        return milliseconds(moment), value  # unchanged, because formatting an instant is slow
    return milliseconds(moment), instant(moment)


def clinical_dates(resource: Resource) -> list[tuple[str, datetime]]:
    """Return the resource's clinical dates as pairs of element and time; times without a zone count as UTC."""
    dates: list[tuple[str, Json]] = [(name, resource[name]) for name in _DATES if name in resource]
    for name, only in _PERIODS.items():
        if name in resource and only in (None, resource["resourceType"]) and isinstance(resource[name], dict):
            dates.append((f"{name}.start", resource[name].get("start")))
    return [(name, moment) for name, value in dates if (moment := moment_of(value))]


def last_event(resource: Resource, now: int) -> int | None:
    """Return the latest of a resource's clinical dates before `now`, in milliseconds; None if there is no such date."""
    if _TELLING.isdisjoint(resource):
        return None
    dates = clinical_dates(resource)
    return max([ms for _, moment in dates if (ms := milliseconds(moment)) < now], default=None) if dates else None


def update_after(happened: int, now: int, bits: int) -> int:
    """Return a random update time after an event: usually minutes later, sometimes days later, always before `now`.

    The event's time `happened` and `now` are in milliseconds; `bits` are 44 random bits.
    """
    longest = _LAG << (bits & 15)  # up to three months
    later = _SHORTEST + (longest * (bits >> 4 & 0xFFFFFF) >> 24)
    return happened + min(later, (now - happened) * (bits >> 28 & 0xFFFF) >> 16)


def last_update(resource: Resource, now: datetime) -> datetime:
    """Return an update time between the resource's latest clinical date and `now`.

    The same resource gets the same time on every machine. For a resource without a clinical date, the result is a
    random time in the past five years.
    """
    digest = blake2b(f"{resource['resourceType']}/{resource['id']}".encode(), digest_size=8).digest()
    bits = int.from_bytes(digest, "big")
    present = milliseconds(now)
    happened = last_event(resource, present)
    moment = random_past(present, bits) if happened is None else update_after(happened, present, bits)
    return EPOCH + MILLISECOND * moment


def random_past(now: int, bits: int) -> int:
    """Return a random time in the five years before `now`, from 64 random bits; both times are in milliseconds."""
    return now - 1 - bits % _PAST
